//! Skeleton.
#![allow(missing_docs, unused_variables, missing_debug_implementations)]
use std::io;
use std::os::fd::RawFd;
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    _p: *mut (),
}
#[derive(Clone, Debug)]
pub struct Capabilities {
    pub queue_depth_max: usize,
    pub gather_max: usize,
    pub completions_max: usize,
    pub receives_max: usize,
    pub region_bytes_max: u64,
    pub windows_max: usize,
    pub windows: bool,
    pub message_bytes_max: usize,
    pub mtu_bytes: usize,
    pub port: u8,
    pub port_state: PortState,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    Down,
    Init,
    Armed,
    Active,
    Other(u32),
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    pub kind: AsyncKind,
    pub port: Option<u8>,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncKind {
    PortError,
    PortActive,
    DeviceFatal,
    QueuePairFatal(u32),
    Other(u32),
}
impl Device {
    pub fn name(&self) -> String {
        todo!()
    }
    pub fn capabilities(&self) -> io::Result<Capabilities> {
        todo!()
    }
    pub fn async_fd(&self) -> RawFd {
        todo!()
    }
    pub fn next_async_event(&self) -> io::Result<Option<AsyncEvent>> {
        todo!()
    }
}
