//! Skeleton.
#![allow(missing_docs, unused_variables, missing_debug_implementations)]
use super::connection::Connection;
use super::domain::{Domain, Invalidated, OpenWindow, Window};
use super::queue::{CompletionQueue, ReceiveQueue, Through};
use crate::error::Result;
use crate::memory::Buffer;
use crate::transport::Gather;
use std::io;
use std::rc::Rc;
pub struct QueuePair {
    _p: Rc<()>,
}
pub enum Work {
    Send { data: Gather, imm: u32 },
    Write { data: Gather, address: u64, key: u32, imm: Option<u32> },
    Read { into: Buffer, address: u64, key: u32 },
    Invalidate { key: u32 },
    Notice { imm: u32 },
    Probe,
}
#[derive(Debug)]
pub enum Done {
    Read(u32, Buffer),
    Invalidated(u32, Invalidated),
}
impl QueuePair {
    pub fn new(
        connection: Connection,
        domain: &Rc<Domain>,
        completions: &Rc<CompletionQueue>,
        receives: &ReceiveQueue,
        sends: usize,
        inline_bytes: usize,
    ) -> io::Result<QueuePair> {
        todo!()
    }
    pub fn connection(&self) -> &Connection {
        todo!()
    }
    pub fn number(&self) -> u32 {
        todo!()
    }
    pub fn inline_bytes(&self) -> usize {
        todo!()
    }
    pub fn room(&self) -> usize {
        todo!()
    }
    pub fn push(&mut self, work: Work, tag: u32, signal: bool) -> Result<()> {
        todo!()
    }
    pub fn bind(&mut self, window: Window, memory: Buffer) -> Result<OpenWindow> {
        todo!()
    }
    pub fn ring(&mut self) -> io::Result<()> {
        todo!()
    }
    pub fn retire(&mut self, through: Through, done: &mut Vec<Done>) {
        todo!()
    }
    pub fn set_receiver_not_ready_timer(&self, code: u8) -> io::Result<()> {
        todo!()
    }
    pub fn fail(&self) -> io::Result<()> {
        todo!()
    }
}
