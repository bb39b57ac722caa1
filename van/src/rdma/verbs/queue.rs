//! Skeleton.
#![allow(missing_docs, unused_variables, missing_debug_implementations)]
use super::device::Device;
use super::domain::Domain;
use crate::error::Result;
use crate::memory::Buffer;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
pub struct CompletionQueue {
    _p: Rc<()>,
}
impl CompletionQueue {
    pub fn new(device: Device, entries: usize) -> io::Result<Rc<CompletionQueue>> {
        todo!()
    }
    pub fn resize(&self, entries: usize) -> io::Result<()> {
        todo!()
    }
    pub fn entries(&self) -> usize {
        todo!()
    }
    pub fn poll(&self, into: &mut Vec<Completion>) -> io::Result<usize> {
        todo!()
    }
    pub fn arm(&self) -> io::Result<()> {
        todo!()
    }
    pub fn fd(&self) -> RawFd {
        todo!()
    }
    pub fn take_notices(&self) -> io::Result<()> {
        todo!()
    }
}
#[derive(Debug)]
pub struct Completion {
    pub queue: u32,
    pub outcome: Outcome,
    pub status: Status,
}
#[derive(Debug)]
pub enum Outcome {
    Sent(Through),
    Received { slot: Slot, bytes: u32, imm: Option<u32>, written: bool },
}
/// Everything up to one piece of work has been done; only a completion makes one.
#[derive(Debug)]
pub struct Through {
    _p: u64,
}
/// A receive that has ended; only a completion makes one.
#[derive(Debug)]
pub struct Slot {
    _p: u64,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(u32);
impl Status {
    pub fn is_ok(self) -> bool {
        todo!()
    }
    pub fn code(self) -> u32 {
        self.0
    }
    pub fn is_flushed(self) -> bool {
        todo!()
    }
}
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}
pub struct ReceiveQueue {
    _p: Rc<()>,
}
impl ReceiveQueue {
    pub fn new(domain: &Rc<Domain>, entries: usize) -> io::Result<ReceiveQueue> {
        todo!()
    }
    pub fn supply(&mut self, buffer: Buffer) -> Result<()> {
        todo!()
    }
    pub fn ring(&mut self) -> io::Result<()> {
        todo!()
    }
    pub fn take(&mut self, slot: Slot, bytes: u32) -> Option<Buffer> {
        todo!()
    }
    pub fn posted(&self) -> usize {
        todo!()
    }
    pub fn room(&self) -> usize {
        todo!()
    }
}
