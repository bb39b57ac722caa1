//! Skeleton.
#![allow(missing_docs, unused_variables, missing_debug_implementations)]
use super::device::Device;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;
pub struct Channel {
    _p: Rc<()>,
}
impl Channel {
    pub fn open() -> io::Result<Rc<Channel>> {
        todo!()
    }
    pub fn fd(&self) -> RawFd {
        todo!()
    }
    pub fn next(&self) -> io::Result<Option<CmEvent>> {
        todo!()
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConnectionKey(usize);
pub struct CmEvent {
    pub key: ConnectionKey,
    pub kind: CmKind,
    pub status: i32,
    pub private_data: Vec<u8>,
    pub request: Option<Connection>,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmKind {
    AddressResolved,
    AddressError,
    RouteResolved,
    RouteError,
    ConnectRequest,
    ConnectError,
    Unreachable,
    Rejected,
    Established,
    Disconnected,
    DeviceRemoved,
    AddressChanged,
    TimewaitExit,
    Other(u32),
}
pub struct Connection {
    _p: Rc<()>,
}
impl Connection {
    pub fn new(channel: &Rc<Channel>) -> io::Result<Connection> {
        todo!()
    }
    pub fn key(&self) -> ConnectionKey {
        todo!()
    }
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        todo!()
    }
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        todo!()
    }
    pub fn local_address(&self) -> Option<SocketAddr> {
        todo!()
    }
    pub fn peer_address(&self) -> Option<SocketAddr> {
        todo!()
    }
    pub fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        todo!()
    }
    pub fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        todo!()
    }
    pub fn set_ack_timeout(&self, exponent: u8) -> io::Result<()> {
        todo!()
    }
    pub fn device(&self) -> Option<Device> {
        todo!()
    }
    pub fn connect(&self, private_data: &[u8], retries: u8) -> io::Result<()> {
        todo!()
    }
    pub fn accept(&self, private_data: &[u8]) -> io::Result<()> {
        todo!()
    }
    pub fn reject(self, private_data: &[u8]) -> io::Result<()> {
        todo!()
    }
    pub fn disconnect(&self) -> io::Result<()> {
        todo!()
    }
}
