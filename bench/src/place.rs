//! Where the two sides of a measurement run. The van's server thread has a core of its own, so the floor's other process is
//! put on that same core, and the thread that measures both on another: else the kernel puts one pair on a single core and
//! the other pair on two, where moving a megabyte takes three times as long, and their ratio says nothing.

use std::path::Path;

use caravan_kv::NodeConfig;
use caravan_kv::node::{Seating, nic};
use caravan_numa::Topology;

/// Core of the first server thread.
pub(crate) const SERVER: usize = 0;

/// Pins the calling thread to the core of thread `seat`, counted over all server threads and then on. A thread for which the
/// machine has no core left stays free.
pub(crate) fn pin(seat: usize, config: &NodeConfig) {
    let topology = match Topology::this_machine() {
        Ok(topology) => topology,
        Err(error) => return tracing::warn!(%error, "the sides of the measurement are not pinned"),
    };
    // As the servers do, so that `seat` means the same to all.
    match Seating::new(config, &topology, nic(config, Path::new("/sys")), seat..seat + 1) {
        Ok(Seating { plan: Some(plan), .. }) => {
            let placement = plan.pin_current_thread(0);
            tracing::info!(%placement, seat, "placed a side of the measurement");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the sides of the measurement are not pinned"),
    }
}
