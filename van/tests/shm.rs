//! The van in shared memory: the contract of a van, for each way to wait, and what is its own.
#![cfg(all(target_os = "linux", feature = "shm"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use caravan_van::shm::Shm;
use caravan_van::{Buffer, Event, FRAME_PREFIX, PeerId, Transport, VanConfig, Wait};

fn shm(config: &VanConfig) -> Shm {
    Shm::new(config).unwrap()
}

fn config(wait: Wait) -> VanConfig {
    VanConfig { wait, memory_bytes: 64 << 20, ..VanConfig::default() }
}

/// What makes transports that wait like this.
macro_rules! makes {
    ($wait:expr) => {
        |config| super::shm(&super::VanConfig { wait: $wait, ..config })
    };
}

mod adaptive {
    caravan_van::conformance!(makes!(super::Wait::Adaptive(super::Duration::from_micros(50))));
}

mod block {
    caravan_van::conformance!(makes!(super::Wait::Block));
}

mod yielding {
    caravan_van::conformance!(makes!(super::Wait::Yield));
}
