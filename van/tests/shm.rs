//! The van in shared memory: the contract of a van, for each way to wait.
#![cfg(all(target_os = "linux", feature = "shm"))]

use std::time::Duration;

use caravan_van::shm::Shm;
use caravan_van::{VanConfig, Wait};

fn shm(config: &VanConfig) -> Shm {
    Shm::new(config).expect("this machine lets processes share memory")
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
