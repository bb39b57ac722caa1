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

    pub(super) fn run(_: IpAddr, _: Wait) -> Result<()> {
        Err(caravan_kv::Error::VanLeftOut { van: caravan_kv::Van::Rdma }.into())
    }
}

use std::net::IpAddr;

use anyhow::{Result, bail};
use caravan_kv::NodeConfig;
use caravan_van::Wait;

use self::process::Answerer;
use crate::measure::subject::Subject;

/// The floor for a van, and its other process, which ends with it.
pub(crate) fn spawn(van: &str, config: &NodeConfig) -> Result<Box<dyn Subject>> {
    Ok(match van {
        "shm" => shm::spawn(config.wait)?,
        "rdma" => verbs::spawn(config)?,
        _ => socket::spawn(config.wait)?,
    })
}

/// The answering process, `caravan floor`: prints its address, answers, and ends with its input.
pub(crate) fn run(answerer: Answerer, host: IpAddr, wait: Wait) -> Result<()> {
    match answerer {
        Answerer::Socket => socket::run(host, wait),
        Answerer::Verbs => verbs::run(host, wait),
        Answerer::Memory => shm::run(wait),
        Answerer::Device => bail!("bench verbs answers for a device, not the floor"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::measure::subject::{Op, Shape, Subject};

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
