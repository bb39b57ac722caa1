//! The van over TCP with io_uring: [`crate::socket`] on a [`Ring`].
//!
//! Asking the ring costs no system call while nothing has become ready, and watching a socket costs
//! none of its own. What else rings offer was measured, and is not used:
//! `van/docs/decisions/0016-sockets-by-readiness.md`.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (socket, **uring**).

mod probe;
mod ring;

pub use ring::Ring;

use crate::socket::Sockets;

/// A node's TCP connections on one ring.
pub type Uring = Sockets<Ring>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::{Duration, Instant};

    use super::probe::Mode;
    use super::*;
    use crate::config::VanConfig;
    use crate::error::Error;
    use crate::transport::{Event, FRAME_PREFIX, Transport};
    use crate::wait::Wait;

    /// Waits until `van` has something to report while `other` goes on as well.
    fn next(van: &mut Uring, other: &mut Uring) -> Event {
        let mut events = Vec::new();
        let began = Instant::now();
        while events.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "nothing came");
            van.wait(Duration::from_millis(1)).unwrap();
            van.poll(&mut events).unwrap();
            other.wait(Duration::ZERO).unwrap();
        }
        events.remove(0)
    }

    #[test]
    fn every_mode_carries_frames() {
        for wait in [Wait::default(), Wait::Block, Wait::Spin] {
            for mode in Mode::BEST_FIRST {
                let config = VanConfig { wait, ..VanConfig::default() };
                let make = || Uring::on(Ring::new(&[mode])?, &config);
                let (Ok(mut a), Ok(mut b)) = (make(), make()) else {
                    eprintln!("skipped: this kernel does not offer {mode:?}");
                    continue;
                };
                let to_b = a.connect(&b.about().address).unwrap();
                assert!(matches!(next(&mut a, &mut b), Event::Connected { .. }));
                let Event::Connected { peer: to_a, .. } = next(&mut b, &mut a) else { panic!() };
                for _ in 0..100 {
                    a.post_send(to_b, a.about().memory.allocate(FRAME_PREFIX + 8).unwrap().into())
                        .unwrap();
                    assert!(matches!(next(&mut b, &mut a), Event::Received { .. }), "{mode:?}");
                    b.post_send(to_a, b.about().memory.allocate(FRAME_PREFIX + 8).unwrap().into())
                        .unwrap();
                    assert!(matches!(next(&mut a, &mut b), Event::Received { .. }), "{mode:?}");
                }
            }
        }
    }

    #[test]
    fn an_address_is_free_once_its_transport_is_dropped() {
        for _ in 0..50 {
            let Ok(mut van) = Uring::new(&VanConfig::default()) else {
                eprintln!("skipped: io_uring is refused here");
                return;
            };
            van.wait(Duration::from_millis(1)).unwrap(); // the kernel watches the listener now
            let address = van.about().address.clone();
            drop(van);
            let again = std::net::TcpListener::bind(&address);
            assert!(again.is_ok(), "{again:?}");
        }
    }

    #[test]
    fn settings_are_checked_before_the_kernel_is_asked() {
        let refused = Uring::new(&VanConfig { credits: 0, ..VanConfig::default() }).err();
        assert!(matches!(refused, Some(Error::Setting { name: "credits", value: 0, .. })));
    }
}
