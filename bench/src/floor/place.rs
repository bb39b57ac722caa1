//! The cores of the two sides of a measurement. The van's server thread has a core of its own, so
//! the floor's other process takes that same core, and the thread that measures both takes another.
//! Otherwise the kernel may put one pair on a single core and the other pair on two, and their
//! ratio means nothing.

use std::path::Path;

use caravan_kv::NodeConfig;
use caravan_kv::node::{Seating, nic};
use caravan_numa::Topology;

/// Core of the first server thread.
pub(crate) const SERVER: usize = 0;

/// Pins the calling thread to the core of thread `seat`, counted over all server threads and
/// beyond. A thread without a core of its own stays free.
pub(crate) fn pin(seat: usize, config: &NodeConfig) {
    let topology = match Topology::this_machine() {
        Ok(topology) => topology,
        Err(error) => return tracing::warn!(%error, "the sides of the measurement are not pinned"),
    };
    // The servers use the same plan, so `seat` means the same to all.
    match Seating::new(config, &topology, nic(config, Path::new("/sys")), seat..seat + 1) {
        Ok(Seating { plan: Some(plan), .. }) => {
            let placement = plan.pin_current_thread(0);
            tracing::info!(%placement, seat, "placed a side of the measurement");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the sides of the measurement are not pinned"),
    }
}
