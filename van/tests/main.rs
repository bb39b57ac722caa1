//! All tests of vans in one program, a module for each subject.
#![allow(clippy::unwrap_used, reason = "tests")]

mod allocation;
mod codec;
mod corpus;
mod endpoint;
mod rdma;
mod rdma_faults;
mod rdma_lies;
mod shm;
mod support;
mod uring;
mod verbs;
