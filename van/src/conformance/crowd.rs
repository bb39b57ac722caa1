//! Many lanes of one transport.

use super::net::{Net, check};
use crate::{PeerId, Transport, VanConfig};

/// Lanes among which the active one is compared with that among many.
const FEW: usize = 10;

/// Round trips that are counted together.
const ROUND_TRIPS: u64 = 100;

/// `lanes` lanes are made and each carries something. After that one that is in use takes about as
/// many system calls as among ten, since looking at lanes costs by those with work. A transport
/// that makes a call for each look should sleep for what has not come ([`crate::Wait::Block`]): it
/// would count how long the machine takes. Returns the bytes of registered memory that each lane
/// took on both sides together.
pub fn a_crowd_costs_the_active_lane_nothing<T: Transport>(
    make: impl Fn(VanConfig) -> T,
    lanes: usize,
) -> usize {
    let mut few = Crowd::new(&make, FEW);
    let mut many = Crowd::new(&make, lanes);
    let calls = [&mut few, &mut many].map(|crowd| {
        // The least of several: what else happens on the machine adds calls and takes none away.
        (0..30).map(|_| crowd.calls()).min().unwrap_or(0)
    });
    let allowed = calls[0] + calls[0] / 10 + ROUND_TRIPS / 10;
    assert!(calls[1] <= allowed, "{calls:?} calls for {ROUND_TRIPS} round trips");
    (many.reserved() - few.reserved()) / (lanes - FEW)
}

/// Lanes that a test makes: `CARAVAN_TEST_LANES`, or `usual`.
pub fn lanes(usual: usize) -> usize {
    std::env::var("CARAVAN_TEST_LANES").map_or(usual, |lanes| lanes.parse().unwrap())
}

/// Two nodes with many lanes between them.
struct Crowd<T> {
    net: Net<T>,
    active: (PeerId, PeerId),
}

impl<T: Transport> Crowd<T> {
    fn new(make: &impl Fn(VanConfig) -> T, lanes: usize) -> Self {
        let mut net = Net::with(make, 2, VanConfig::default());
        let links: Vec<_> = (0..lanes).map(|_| net.connect(0, 1)).collect();
        let mut crowd = Crowd { net, active: links[0] };
        for (seed, &link) in (0..).zip(&links) {
            crowd.active = link;
            crowd.round_trip(seed);
        }
        crowd
    }

    fn round_trip(&mut self, seed: u64) {
        let (there, back) = self.active;
        self.net.send(0, there, seed, 64);
        check(&self.net.frame(1, back), seed, 64);
        self.net.send(1, back, seed, 64);
        check(&self.net.frame(0, there), seed, 64);
    }

    /// System calls of some round trips.
    fn calls(&mut self) -> u64 {
        let before = self.calls_so_far();
        (0..ROUND_TRIPS).for_each(|seed| self.round_trip(seed));
        self.calls_so_far() - before
    }

    fn calls_so_far(&mut self) -> u64 {
        [0, 1].map(|node| self.net.van(node).counters().system_calls).iter().sum()
    }

    fn reserved(&mut self) -> usize {
        [0, 1].map(|node| self.net.van(node).about().memory.bytes_reserved()).iter().sum()
    }
}
