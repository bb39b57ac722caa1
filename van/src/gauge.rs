//! A gauge shows what a thread has done so far to other threads of its process.
//!
//! The counters of a transport are plain numbers in the thread that owns it. Another thread asks by
//! a flag, which the owner reads once a poll; only then does the owner write its counters where
//! others can read them. An endpoint that nobody asks pays for one look at the flag.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::Counters;

/// One thread's counters, for others to read. Clones show the same.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<Shown>);

/// Vans by name, each with a number of lanes.
pub type ByVan = Vec<(&'static str, usize)>;

#[derive(Debug, Default)]
struct Shown {
    is_asked: AtomicBool,
    counters: Mutex<Counters>,
    lanes: Mutex<ByVan>,
    /// The number that the layer above has marked.
    mark: AtomicU64,
}

impl Gauge {
    /// Asks the thread to show its counters at its next poll.
    pub fn ask(&self) {
        self.0.is_asked.store(true, Ordering::Relaxed);
    }

    /// The counters that the thread has last shown.
    pub fn counters(&self) -> Counters {
        *self.0.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lanes that the thread had then, by van.
    pub fn lanes(&self) -> ByVan {
        self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number that the thread has last marked.
    pub fn marked(&self) -> u64 {
        self.0.mark.load(Ordering::Relaxed)
    }

    /// Shows a number of the layer above at once, as the iteration that a worker is in.
    pub fn mark(&self, number: u64) {
        self.0.mark.store(number, Ordering::Relaxed);
    }

    /// Whether somebody waits for the counters.
    #[inline(always)]
    pub(crate) fn is_asked(&self) -> bool {
        self.0.is_asked.load(Ordering::Relaxed)
    }

    /// Shows the counters and the lanes to whoever has asked.
    pub(crate) fn show(&self, counters: Counters, lanes: ByVan) {
        *self.0.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
        *self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner) = lanes;
        self.0.is_asked.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::sim::{Faults, Network};
    use crate::wire::{Coding, Kind};
    use crate::{Draft, Endpoint, VanConfig};

    fn endpoint(network: &Network) -> Endpoint {
        let config = VanConfig { memory_bytes: 16 << 20, ..VanConfig::default() };
        Endpoint::new(Box::new(network.transport(&config)), 0, 8)
    }

    #[test]
    fn an_endpoint_shows_its_counters_when_it_is_asked_and_polls() {
        let network = Network::new(1, Faults::none());
        let (mut a, mut b) = (endpoint(&network), endpoint(&network));
        let gauge = Gauge::default();
        a.lanes.show_by(gauge.clone());
        let peer = a.connect(b.lanes.address()).unwrap();
        while a.lanes.credits(peer) == 0 {
            for endpoint in [&mut a, &mut b] {
                endpoint.wait(Duration::from_millis(1)).unwrap();
                endpoint.poll().unwrap();
                while endpoint.take().is_some() {}
            }
        }
        a.lanes.post(peer, Draft::new(Kind::Request), &mut Coding::plain()).unwrap();
        assert_eq!(gauge.counters(), Counters::default(), "nobody has asked");
        gauge.ask();
        assert_eq!(gauge.counters(), Counters::default(), "it has not polled");
        a.poll().unwrap();
        assert_eq!(gauge.counters().messages_sent, 1);
        assert_eq!(gauge.lanes(), [("sim", 1)]);
        assert!(!gauge.is_asked());
    }

    #[test]
    fn marks_are_seen_at_once() {
        let gauge = Gauge::default();
        let shown = gauge.clone();
        gauge.mark(7);
        assert_eq!(shown.marked(), 7);
    }
}
