//! RDMA: the van over InfiniBand and RoCE network cards.

pub mod devices;
pub mod verbs;
