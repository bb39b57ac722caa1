//! Settings of a transport: one plain struct, checked once.

mod rdma;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use rdma::{RdmaConfig, RdmaConnect};

use crate::error::{Error, Result};
use crate::handshake::Secret;
use crate::wait::Wait;
use caravan_numa::{NumaId, PageSource};

/// A node's identity, which it proves to its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// Its role; the layer above gives it a meaning.
    pub role: u8,
    /// Its rank within the role, if it has one.
    pub rank: Option<u32>,
    /// Drawn at random when the node starts.
    pub incarnation: u64,
}

/// Settings of one transport.
#[derive(Debug, Clone)]
pub struct VanConfig {
    /// The cluster it belongs to; peers of other clusters are refused.
    pub cluster: u64,
    /// The cluster's secret. A peer that does not prove it knows the secret is refused.
    pub secret: Secret,
    /// This node's id within the cluster.
    pub node: u32,
    /// This node's identity.
    pub identity: Identity,
    /// Whether everything sent over sockets is encrypted; both sides of a lane must agree.
    pub encrypt: bool,
    /// Whether peers may connect to it; a node that only connects to others does not listen.
    pub accepts: bool,
    /// Requests that a peer may have outstanding here, at least 1.
    pub credits: u16,
    /// Address to listen on, as `host:port`; port 0 selects a free one. Vans without sockets ignore
    /// it. A device's van takes the device's own address if this one does not belong to the device.
    pub listen: String,
    /// Settings of the rdma van alone.
    pub rdma: RdmaConfig,
    /// The NUMA node of the thread, if it is of one: it takes ports there before others.
    pub near: Option<NumaId>,
    /// Number of the thread among those of this machine: they begin at different ones of equal
    /// ports.
    pub turn: u32,
    /// Limit of registered memory in bytes, at least [`VanConfig::MEMORY_BYTES_MIN`].
    pub memory_bytes: usize,
    /// Source of that memory. Vans whose peers map it make it shareable themselves.
    pub pages: PageSource,
    /// Longest eager frame, in bytes; longer messages go by rendezvous. Within
    /// [`VanConfig::FRAME_BYTES`].
    pub frame_bytes: usize,
    /// Sends and writes that may be queued to one peer, at least [`VanConfig::QUEUE_PER_CREDIT`]
    /// per credit; otherwise a lane could be full although it has credits left.
    pub queue_depth: usize,
    /// How a thread waits for work.
    pub wait: Wait,
    /// A host that acknowledges nothing for this long has lost its connections; for vans over
    /// sockets, on Linux. The kernel also counts the time in which a process reads nothing and its
    /// window is full, so that where much is sent a stopped process must have this long.
    pub silence_max: Duration,
}

impl Default for VanConfig {
    fn default() -> Self {
        VanConfig {
            cluster: 0,
            secret: Secret::NONE,
            node: 0,
            identity: Identity::default(),
            encrypt: false,
            accepts: true,
            credits: 256,
            listen: "127.0.0.1:0".to_owned(),
            rdma: RdmaConfig::default(),
            near: None,
            turn: 0,
            memory_bytes: 4 << 30,
            pages: PageSource::default(),
            frame_bytes: 24 << 10,
            queue_depth: 1024,
            wait: Wait::default(),
            silence_max: VanConfig::SILENCE_MAX,
        }
    }
}

impl VanConfig {
    /// Default of `silence_max`.
    pub const SILENCE_MAX: Duration = Duration::from_secs(120);

    /// Range of `frame_bytes`: 512 bytes to 32 KiB, half a staging buffer of the stream.
    pub const FRAME_BYTES: RangeInclusive<usize> = 512..=32 << 10;

    /// Most requests outstanding on a lane, whatever the peer admits. It bounds the state kept for
    /// them.
    pub const CREDITS_MAX: u16 = 4096;

    /// Each side's requests and answers may all be queued at once, each behind a frame of messages
    /// packed before it.
    pub const QUEUE_PER_CREDIT: usize = 4;

    /// Lower bound of `memory_bytes`: 1 MiB, a pool's first arena.
    pub const MEMORY_BYTES_MIN: usize = 1 << 20;

    /// Checks these settings for a van over sockets.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first that is out of range.
    pub fn check(&self) -> Result<()> {
        let at_least = |min| min..=usize::MAX;
        let queue = Self::QUEUE_PER_CREDIT * usize::from(self.credits.max(1));
        let settings = [
            ("frame_bytes", self.frame_bytes, Self::FRAME_BYTES),
            ("credits", self.credits.into(), at_least(1)),
            ("queue_depth", self.queue_depth, at_least(queue)),
            ("memory_bytes", self.memory_bytes, at_least(Self::MEMORY_BYTES_MIN)),
        ];
        match settings.into_iter().find(|(_, value, takes)| !takes.contains(value)) {
            None => Ok(()),
            Some((name, value, takes)) => {
                Err(Error::Setting { name, value, min: *takes.start(), max: *takes.end() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_held_to_their_ranges() {
        let base = VanConfig::default;
        let good = [
            base(),
            VanConfig { frame_bytes: 512, credits: 1, ..base() },
            VanConfig { frame_bytes: 32 << 10, memory_bytes: 1 << 20, ..base() },
            VanConfig { credits: 7, queue_depth: 28, ..base() },
        ];
        good.iter().for_each(|config| assert!(config.check().is_ok(), "{config:?}"));
        for (config, words) in [
            (VanConfig { frame_bytes: 511, ..base() }, "frame_bytes is 511; it takes 512 to 32768"),
            (VanConfig { frame_bytes: 32769, ..base() }, "frame_bytes is 32769"),
            (VanConfig { credits: 0, ..base() }, "credits is 0; it takes 1 or more"),
            (VanConfig { queue_depth: 0, ..base() }, "queue_depth is 0; it takes 1024 or more"),
            (
                VanConfig { credits: 7, queue_depth: 27, ..base() },
                "queue_depth is 27; it takes 28 or more",
            ),
            (
                VanConfig { memory_bytes: 0, ..base() },
                "memory_bytes is 0; it takes 1048576 or more",
            ),
        ] {
            let error = config.check().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(words), "{error}");
        }
    }
}
