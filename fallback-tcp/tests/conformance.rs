//! The contract of a van, held against sockets, for each way to wait.

use std::time::Duration;

use caravan_fallback_tcp::Tcp;
use caravan_van::conformance::{a_crowd_costs_the_active_lane_nothing, lanes};
use caravan_van::{VanConfig, Wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn waiting(wait: Wait) -> impl Fn(VanConfig) -> Tcp {
    move |config| Tcp::new(&VanConfig { wait, ..config }).expect("a free port")
}

mod adaptive {
    caravan_van::conformance!(super::waiting(super::Wait::Adaptive(super::Duration::from_micros(
        50
    ))));
}

mod block {
    caravan_van::conformance!(super::waiting(super::Wait::Block));
}

mod strangers {
    caravan_van::socket_conformance!(super::waiting(super::Wait::default()));
}

mod strangers_of_a_node_that_sleeps {
    caravan_van::socket_conformance!(super::waiting(super::Wait::Block));
}

mod encrypted {
    use super::*;

    caravan_van::conformance!(|config| waiting(Wait::default())(VanConfig {
        encrypt: true,
        ..config
    }));
}

mod over_ipv6 {
    use super::*;

    fn ipv6(config: VanConfig) -> Tcp {
        Tcp::new(&VanConfig { listen: "[::1]:0".to_owned(), ..config }).expect("a free port")
    }

    #[test]
    fn says_hello() {
        if std::net::TcpListener::bind("[::1]:0").is_err() {
            eprintln!("skipped: this machine has no IPv6");
            return;
        }
        caravan_van::conformance::says_hello(ipv6);
        caravan_van::conformance::random_sizes_add_up(ipv6);
    }
}

#[test]
fn an_active_lane_among_a_thousand() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("up to the hard one");
    let bytes = a_crowd_costs_the_active_lane_nothing(waiting(Wait::Block), lanes(1000));
    println!("{bytes} bytes of registered memory a lane");
}
