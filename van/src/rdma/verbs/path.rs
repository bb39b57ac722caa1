//! A connection without the connection manager: both ends tell each other what their queue pairs
//! need to know, and each brings its own up.

use std::io;

use super::bindings as ffi;
use super::bindings::ibv_qp_attr_mask as mask;
use super::connection::RECEIVER_NOT_READY_RETRIES;
use super::queue_pair::{QueuePair, no_attributes};

/// Reads that a side serves and has under way at a time; every device has at least this.
const READS: u8 = 1;

/// The way to a peer's queue pair, as the two ends have agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The peer's queue pair.
    pub queue: u32,
    /// Number of the first packet that this side sends, 24 bits.
    pub first_sent: u32,
    /// Number of the first packet that the peer sends.
    pub first_received: u32,
    /// Bytes of a packet.
    pub mtu_bytes: u16,
    /// The peer's address within its InfiniBand subnet.
    pub lid: u16,
    /// Addresses beyond that: always on Ethernet.
    pub global: Option<Global>,
    /// Service level.
    pub service_level: u8,
    /// This side's port.
    pub port: u8,
    /// As [`RdmaConfig::ack_timeout`](crate::RdmaConfig::ack_timeout).
    pub ack_timeout: u8,
    /// How often the device sends again.
    pub retries: u8,
    /// As in [`QueuePair::set_receiver_not_ready_timer`].
    pub not_ready_timer: u8,
}

/// The addresses of a packet that crosses subnets or Ethernet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// The peer's.
    pub gid: [u8; 16],
    /// This side's place in the table of its port.
    pub own: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// Routers that a packet may cross.
const HOPS_MAX: u8 = 64;

impl QueuePair {
    /// Ties it to a port and to the partition at `pkey` in the port's table. Peers may write memory
    /// that is exposed to them.
    ///
    /// # Errors
    /// The system's.
    pub fn start(&self, port: u8, pkey: u16) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::ibv_qp_state::IBV_QPS_INIT;
        attributes.port_num = port;
        attributes.pkey_index = pkey;
        attributes.qp_access_flags = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        self.modify(
            attributes,
            mask::IBV_QP_STATE
                | mask::IBV_QP_PORT
                | mask::IBV_QP_PKEY_INDEX
                | mask::IBV_QP_ACCESS_FLAGS,
        )
    }

    /// Connects a started one. Its peer can send once this returns.
    ///
    /// # Errors
    /// The system's, for example that no way leads there.
    pub fn join(&self, path: &Path) -> io::Result<()> {
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = u32::from(path.mtu_bytes / 128).trailing_zeros();
        attributes.dest_qp_num = path.queue;
        attributes.rq_psn = path.first_received;
        attributes.max_dest_rd_atomic = READS;
        attributes.min_rnr_timer = path.not_ready_timer;
        let address = &mut attributes.ah_attr;
        address.dlid = path.lid;
        address.sl = path.service_level;
        address.port_num = path.port;
        if let Some(global) = &path.global {
            address.is_global = 1;
            address.grh.dgid = ffi::ibv_gid { raw: global.gid };
            address.grh.sgid_index = global.own;
            address.grh.hop_limit = HOPS_MAX;
            address.grh.traffic_class = global.traffic_class;
        }
        self.modify(
            attributes,
            mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut attributes = no_attributes();
        attributes.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
        attributes.sq_psn = path.first_sent;
        attributes.timeout = path.ack_timeout;
        attributes.retry_cnt = path.retries;
        attributes.rnr_retry = RECEIVER_NOT_READY_RETRIES;
        attributes.max_rd_atomic = READS;
        self.modify(
            attributes,
            mask::IBV_QP_STATE
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }
}
