//! A hostile peer that knows the protocol and the secret, for tests and for fuzzing what this van
//! receives.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests, and a fuzz target")]

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connect::{Link, Packet, Taken, name_in, send, take};
use super::ring::{Kind, LINE_BYTES, LINES, SEGMENT_BYTES, Stamp, line_at, write};
use super::segment::{Foreign, Own};
use super::socket::Socket;
use super::{NAME, Shm};
use crate::config::VanConfig;
use crate::handshake::{Credentials, PROOF_BYTES};
use crate::transport::{Event, PeerId, Transport};

/// Bytes of the memory that a [`Stranger`] shares.
pub(super) const SHARED: usize = 1 << 16;

/// A node to attack.
pub(super) fn node() -> Shm {
    Shm::new(&VanConfig { memory_bytes: 64 << 20, ..VanConfig::default() }).unwrap()
}

/// A caller that knows the secret and was welcomed.
pub(super) struct Caller {
    pub(super) socket: Socket,
    pub(super) own: Own,
    pub(super) foreign: Foreign,
    pub(super) proof: [u8; PROOF_BYTES],
}

impl Caller {
    pub(super) fn welcomed(node: &mut Shm) -> Caller {
        let socket = Socket::connect(name_in(&node.about().address).unwrap()).unwrap();
        let credentials = Credentials::new(&VanConfig { node: 9, ..VanConfig::default() }, NAME);
        let (calling, call) = credentials.call();
        send(&socket, Packet::Greeting(&call), None).unwrap();
        loop {
            match take(&socket).unwrap() {
                Taken::Greeting(welcome, Some(file)) => {
                    let (_, proof) = credentials.prove(calling, &welcome).unwrap();
                    let foreign = Foreign::map(file.as_fd(), SEGMENT_BYTES).unwrap();
                    return Caller {
                        socket,
                        own: Own::new(SEGMENT_BYTES).unwrap(),
                        foreign,
                        proof,
                    };
                }
                Taken::Nothing => node.wait(Duration::from_millis(1)).unwrap(),
                _ => panic!("the node welcomes who knows the secret"),
            }
        }
    }
}

/// A hostile peer that knows the protocol and the secret.
pub(super) struct Stranger {
    pub(super) link: Link,
    /// Number of lines put into its ring so far.
    pub(super) head: u64,
}

impl Stranger {
    /// A peer that has proved itself and has shared an arena of [`SHARED`] bytes, and its number at
    /// the node.
    pub(super) fn peer(node: &mut Shm) -> (Stranger, PeerId) {
        let Caller { socket, own, foreign, proof } = Caller::welcomed(node);
        send(&socket, Packet::Greeting(&proof), Some(own.file())).unwrap();
        let link = Link { own, foreign, socket: Rc::new(socket) };
        let peer = connected(node);
        let shared = Own::new(SHARED).unwrap();
        link.send(Packet::Arena(SHARED as u64), Some(shared.file())).unwrap();
        (Stranger { link, head: 0 }, peer)
    }

    pub(super) fn put_word(&mut self, word: u64, record: &[u8]) {
        write(&mut self.link.own, self.head, record);
        self.link.own.store(line_at(self.head), word, Ordering::Release);
    }
}

fn connected(node: &mut Shm) -> PeerId {
    let mut events = Vec::new();
    loop {
        node.poll(&mut events).unwrap();
        match events.pop() {
            Some(Event::Connected { peer, .. }) => return peer,
            Some(Event::Lost { .. }) => {} // of the previous peer, which has just gone
            Some(other) => panic!("{other:?} of a peer that has said nothing"),
            None => node.wait(Duration::from_millis(1)).unwrap(),
        }
    }
}

/// Most polls that a script takes: each poll takes up to 64 records.
const POLLS: usize = LINES as usize / 64 + 2;

/// Bytes of the offer to the stranger.
const OFFERED: usize = 4096;

/// Makes a peer put the lines of `script` into its ring, each with the position of its place in the
/// stamp. A write with key 0 names the offer to the peer.
///
/// # Panics
/// If the node hands on more bytes than a frame may have, or fails itself.
pub fn ring(script: &[u8]) {
    thread_local! {
        static NODE: RefCell<Shm> = RefCell::new(node());
    }
    NODE.with_borrow_mut(|node| {
        let (mut stranger, peer) = Stranger::peer(node);
        let offered = node.about().memory.allocate(OFFERED).unwrap();
        let key = node.offer(peer, offered).unwrap().key.get();
        let lines: Vec<[u8; LINE_BYTES]> =
            script.chunks(LINE_BYTES).take(LINES as usize / 2).map(padded).collect();
        // The first line comes last: the node polls it, and then sees all lines.
        for (position, line) in lines.iter().enumerate().rev() {
            stranger.put_line(position as u64, line, key);
        }
        let mut events = Vec::new();
        for _ in 0..POLLS {
            node.poll(&mut events).unwrap();
        }
        let limit = node.about().limits.frame_bytes;
        for event in &events {
            if let Event::Received { frame, .. } = event {
                assert!(frame.len() <= limit);
            }
        }
        drop(events);
        node.disconnect(peer);
    });
}

fn padded(part: &[u8]) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    line[..part.len()].copy_from_slice(part);
    line
}

impl Stranger {
    fn put_line(&mut self, position: u64, line: &[u8; LINE_BYTES], key: u64) {
        let (stamp, rest) = line.split_first_chunk::<8>().expect("a line is longer");
        let about = u64::from(u64::from_le_bytes(*stamp) as u32);
        let due = Stamp::of(Kind::Write).word(position);
        let mut rest: [u8; LINE_BYTES - 8] = rest.try_into().expect("the rest of a line");
        let is_write = about == u64::from(due as u32);
        if is_write && rest[..8] == [0; 8] {
            rest[..8].copy_from_slice(&key.to_le_bytes());
        }
        self.head = position;
        self.put_word(due >> 32 << 32 | about, &rest);
    }
}
