//! Skeleton.
#![allow(
    missing_docs,
    unused_variables,
    missing_debug_implementations,
    clippy::len_without_is_empty
)]
use super::device::Device;
use crate::error::Result;
use crate::memory::{Buffer, Registrar, Registration};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
pub struct Domain {
    _p: Rc<()>,
}
impl Domain {
    pub fn new(device: Device) -> io::Result<Rc<Domain>> {
        todo!()
    }
    pub fn device(&self) -> Device {
        todo!()
    }
}
impl Registrar for Domain {
    fn id(&self) -> u64 {
        todo!()
    }
    fn register(
        &self,
        base: NonNull<u8>,
        len: usize,
        writable: bool,
    ) -> Result<Box<dyn Registration>> {
        todo!()
    }
}
pub struct Window {
    _p: Rc<()>,
}
impl Window {
    pub fn new(domain: &Rc<Domain>) -> io::Result<Window> {
        todo!()
    }
}
pub struct OpenWindow {
    _p: Rc<()>,
}
impl OpenWindow {
    pub fn remote_key(&self) -> u32 {
        todo!()
    }
    pub fn address(&self) -> u64 {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn revoke(self) -> Buffer {
        todo!()
    }
    pub fn close(self, proof: Invalidated) -> (Window, Buffer) {
        todo!()
    }
}
/// Proof that the card has taken back one remote key.
#[derive(Debug)]
pub struct Invalidated {
    _p: Rc<()>,
}
pub struct Exposed {
    _p: Rc<()>,
}
impl Exposed {
    pub fn new(domain: &Rc<Domain>, memory: Buffer, readable: bool) -> Result<Exposed> {
        todo!()
    }
    pub fn remote_key(&self) -> u32 {
        todo!()
    }
    pub fn address(&self) -> u64 {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn close(self) -> Buffer {
        todo!()
    }
    pub fn word(&self, at: usize) -> u64 {
        todo!()
    }
}
