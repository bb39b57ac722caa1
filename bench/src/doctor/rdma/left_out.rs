//! Stands in for `find.rs` in a build without RDMA, which examines no device.

use super::Found;

pub(crate) fn find() -> Found {
    Found { ports: Vec::new(), obstacle: None }
}
