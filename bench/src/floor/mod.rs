//! The floor: the smallest program that moves the same bytes by the same means between two
//! processes.
//!
//! It waits by the policy of the van that it is compared with, so a ratio compares the handling of
//! bytes and not the way of waiting. A push is a request of a header, 8 bytes for each key and the
//! values, and a reply of a header; a pull is a request of a header and 8 bytes for each key, and a
//! reply of a header and the values. The first word of a request is its number, which the reply
//! returns. `socket.rs` moves them over a socket, `verbs.rs` over a queue pair, `shm.rs` through
//! shared memory.

#[cfg(all(target_os = "linux", feature = "rdma"))]
pub(crate) mod address;
mod asking;
pub(crate) mod lengths;
#[cfg(all(target_os = "linux", feature = "rdma"))]
pub(crate) mod link;
#[cfg(all(target_os = "linux", feature = "rdma"))]
pub(crate) mod outbox;
pub(crate) mod place;
pub(crate) mod process;
#[cfg(all(target_os = "linux", feature = "shm"))]
mod shm;
mod socket;
#[cfg(all(target_os = "linux", feature = "rdma"))]
mod verbs;
#[cfg(all(target_os = "linux", feature = "rdma"))]
pub(crate) mod words;

#[cfg(not(all(target_os = "linux", feature = "shm")))]
mod shm {
    use super::*;

    pub(super) fn spawn(_: Wait) -> Result<Box<dyn Subject>> {
        Err(caravan_kv::Error::VanLeftOut { van: caravan_kv::Van::Shm }.into())
    }

    pub(super) fn run(_: Wait) -> Result<()> {
        Err(caravan_kv::Error::VanLeftOut { van: caravan_kv::Van::Shm }.into())
    }
}
#[cfg(not(all(target_os = "linux", feature = "rdma")))]
mod verbs {
    use super::*;

    pub(super) fn spawn(_: &NodeConfig) -> Result<Box<dyn Subject>> {
        Err(caravan_kv::Error::VanLeftOut { van: caravan_kv::Van::Rdma }.into())
    }

    pub(super) fn reach(_: &NodeConfig, _: SocketAddr) -> Result<Box<dyn Subject>> {
        Err(caravan_kv::Error::VanLeftOut { van: caravan_kv::Van::Rdma }.into())
    }

    pub(super) fn run(_: SocketAddr, _: Wait) -> Result<()> {
        Err(caravan_kv::Error::VanLeftOut { van: caravan_kv::Van::Rdma }.into())
    }
}

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Result, bail};
use caravan_kv::{NodeConfig, Van};
use caravan_van::Wait;

use self::process::{Answerer, Process};
use crate::measure::subject::Subject;
use crate::vans::opens;

/// The floor for a van, and what a reader should doubt of it. Its other process runs where the
/// server does: here, and then it ends with the floor, or beside the server on another host.
pub(crate) fn spawn(
    van: &str,
    config: &NodeConfig,
    server: &str,
) -> Result<(Box<dyn Subject>, Option<String>)> {
    let mut doubt = None;
    if let Some(host) = elsewhere(van, server) {
        let at = SocketAddr::new(host, process::port(config.job));
        match reach(van, config, at) {
            Ok(floor) => return Ok((floor, None)),
            Err(error) => {
                doubt = Some(format!(
                    "the floor is that of this host alone, and ratios say nothing: none answers \
                     beside the server, at {at} ({error:#}); launch the job with --hosts"
                ));
            }
        }
    }
    let floor = match van {
        "shm" => shm::spawn(config.wait)?,
        "rdma" => verbs::spawn(config)?,
        _ => socket::spawn(config.wait)?,
    };
    Ok((floor, doubt))
}

/// The floor whose other process answers at an address.
fn reach(van: &str, config: &NodeConfig, at: SocketAddr) -> Result<Box<dyn Subject>> {
    if van == "rdma" { verbs::reach(config, at) } else { socket::reach(at, config.wait) }
}

/// The host of a server's address, if it is another one than this.
fn elsewhere(van: &str, server: &str) -> Option<IpAddr> {
    let (host, _) = server.rsplit_once(':').filter(|_| van != "shm")?;
    let host: IpAddr = host.trim_matches(['[', ']']).parse().ok()?;
    // An address of this host can be bound.
    UdpSocket::bind((host, 0)).is_err().then_some(host)
}

/// The other processes of the floors between hosts, beside the first server of a bench. They end
/// with it.
pub(crate) struct Beside {
    _processes: Vec<Process>,
}

impl Beside {
    /// Starts them at the address of this server. Floors that do not work here are left out.
    pub(crate) fn start(config: &NodeConfig) -> Beside {
        let Ok(host) = config.host.parse::<IpAddr>() else {
            return Beside { _processes: Vec::new() };
        };
        let mut answerers = vec![Answerer::Socket];
        if opens(Van::Rdma).is_ok() {
            answerers.push(Answerer::Verbs);
        }
        let port = process::port(config.job);
        let start = |answerer| Process::start(answerer, (host, port).into(), config.wait);
        let started = answerers.into_iter().map(start);
        let started = started.filter_map(|process| {
            process
                .inspect_err(|error| tracing::warn!("no floor beside this server: {error:#}"))
                .ok()
        });
        Beside { _processes: started.collect() }
    }
}

/// The answering process, `caravan floor`: prints its address, answers, and ends with its input.
pub(crate) fn run(answerer: Answerer, at: SocketAddr, wait: Wait) -> Result<()> {
    match answerer {
        Answerer::Socket => socket::run(at, wait),
        Answerer::Verbs => verbs::run(at, wait),
        Answerer::Memory => shm::run(wait),
        Answerer::Device => bail!("bench verbs answers for a device, not the floor"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::thread::JoinHandle;
    use std::time::Duration;

    use anyhow::Result;
    use caravan_van::Wait;

    use crate::measure::subject::{Op, Shape, Subject};

    /// Every shape, from a floor whose other side is the thread.
    pub(super) fn answers_under_every_wait_policy<F: Subject>(
        floor: impl Fn(Wait) -> (F, JoinHandle<Result<()>>),
    ) {
        let bound = Duration::from_micros(50);
        for wait in [Wait::Yield, Wait::Adaptive(bound), Wait::Block, Wait::default()] {
            let (mut floor, server) = floor(wait);
            answers_every_shape(&mut floor, &[(8, 1), (8, 64), (70_000, 3), (1 << 20, 8)]);
            drop(floor);
            server.join().unwrap().unwrap();
        }
    }

    /// One at a time and streamed, every op with each of `sizes`: bytes and window.
    pub(super) fn answers_every_shape(floor: &mut dyn Subject, sizes: &[(usize, usize)]) {
        for op in [Op::Push, Op::Pull, Op::PushPull] {
            for &(bytes, window) in sizes {
                let shape = Shape { op, keys: 1, bytes, window };
                floor.prepare(shape).unwrap();
                for _ in 0..3 {
                    floor.once().unwrap();
                    assert_eq!(floor.check().unwrap(), 0, "{shape:?}");
                }
                floor.stream(100).unwrap();
                assert_eq!(floor.settle().unwrap(), 0, "{shape:?}");
            }
        }
    }
}
