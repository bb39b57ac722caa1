//! What a transport is made from: one plain struct, checked once.

use crate::wait::Wait;

/// Settings of one transport.
#[derive(Debug, Clone)]
pub struct VanConfig {
    /// Which cluster it belongs to; peers of others are turned away.
    pub cluster: u64,
    /// This node's id within it.
    pub node: u32,
    /// Requests a peer may have outstanding here, at least 1.
    pub credits: u16,
    /// Where to listen, as `host:port`; port 0 takes a free one. Vans without sockets ignore it.
    pub listen: String,
    /// Most bytes of registered memory.
    pub memory_bytes: usize,
    /// Longest frame, in bytes: what is longer goes by rendezvous. At most 32 KiB, half a staging buffer.
    pub frame_bytes: usize,
    /// Sends and writes that may be queued to one peer.
    pub queue_depth: usize,
    /// What to do while there is nothing to do.
    pub wait: Wait,
}

impl Default for VanConfig {
    fn default() -> Self {
        VanConfig {
            cluster: 0,
            node: 0,
            credits: 256,
            listen: "127.0.0.1:0".to_owned(),
            memory_bytes: 4 << 30,
            frame_bytes: 24 << 10,
            queue_depth: 1024,
            wait: Wait::default(),
        }
    }
}
