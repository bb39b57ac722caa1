//! The cost of requests to the threads that make and serve them.

use std::ops::{Add, Sub};

use caravan_van::Counters;
use serde::{Deserialize, Serialize};

/// Cost of one or several threads so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// System calls of the van.
    pub system_calls: u64,
    /// Bytes copied in user space to send them, or to put them in place.
    pub bytes_copied: u64,
    /// CPU time in nanoseconds; 0 if the system does not report it.
    pub cpu_ns: u64,
}

impl Cost {
    /// The cost of this thread, with the counters of its endpoint.
    pub(crate) fn of_this_thread(counted: &Counters) -> Cost {
        Cost {
            system_calls: counted.system_calls,
            bytes_copied: counted.message_bytes_copied + counted.payload_bytes_copied,
            cpu_ns: caravan_numa::thread_cpu_ns(),
        }
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            system_calls: self.system_calls + other.system_calls,
            bytes_copied: self.bytes_copied + other.bytes_copied,
            cpu_ns: self.cpu_ns + other.cpu_ns,
        }
    }
}

impl Sub for Cost {
    type Output = Cost;

    /// The cost since `before`.
    fn sub(self, before: Cost) -> Cost {
        Cost {
            system_calls: self.system_calls.saturating_sub(before.system_calls),
            bytes_copied: self.bytes_copied.saturating_sub(before.bytes_copied),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
        }
    }
}
