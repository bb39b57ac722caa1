//! Simulated clusters as benches run them: a network of machines that take time, and nodes that are
//! never given up.

use std::num::NonZeroU64;
use std::time::Duration;

use caravan_kv::node::Numa;
use caravan_kv::{ClusterConfig, NodeConfig};
use caravan_van::sim::{Faults, Hosts, Network, Stragglers};

use crate::cli::SimulatedNetwork;

/// A network as the flags describe it, of machines that are `slower` times as slow as charges for
/// computing assume.
pub(super) fn network(
    seed: u64,
    flags: &SimulatedNetwork,
    slower: f64,
    stragglers: Stragglers,
) -> Network {
    let SimulatedNetwork { gbit, latency_us, jitter, overhead_us, overhead_ns_per_byte } = *flags;
    let latency = micros(latency_us)..=micros(latency_us * (1.0 + jitter));
    let hosts = Hosts {
        card_bytes_per_second: bytes_per_second(gbit),
        overhead: micros(overhead_us),
        overhead_nanos_per_byte: overhead_ns_per_byte,
        slower,
        stragglers,
    };
    Network::of_hosts(seed, Faults { latency, ..Faults::none() }, hosts)
}

/// The settings of a simulated cluster with `shape`'s numbers of nodes, which compute for long.
pub(super) fn patient(shape: ClusterConfig) -> ClusterConfig {
    let node = NodeConfig {
        huge_pages: caravan_numa::HugePages::AsSystem,
        numa: Numa::Any,
        join_timeout: Duration::from_secs(3600),
        request_timeout: Duration::from_secs(86_400), // simulated, while workers compute
        heartbeat: Duration::from_secs(3600),         // nobody is lost
        ..NodeConfig::default()
    };
    ClusterConfig { threads: 1, node, ..shape }
}

pub(super) fn micros(micros: f64) -> Duration {
    Duration::from_nanos((micros * 1e3) as u64)
}

/// The rate of a card; no limit if `gbit` is 0.
fn bytes_per_second(gbit: f64) -> Option<NonZeroU64> {
    let bytes = NonZeroU64::new((gbit * 1e9 / 8.0) as u64).unwrap_or(NonZeroU64::MIN);
    (gbit > 0.0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_card_is_not_one_without_limit() {
        assert_eq!(bytes_per_second(0.0), None);
        assert_eq!(bytes_per_second(8.0), NonZeroU64::new(1_000_000_000));
        assert_eq!(bytes_per_second(1e-300), Some(NonZeroU64::MIN));
    }
}
