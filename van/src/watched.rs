//! A transport that somebody watches: it tells of every message that passes it.
//!
//! Whoever wants to see messages puts this around a transport. One that nobody watches is not
//! wrapped, so that watching costs the others nothing.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::Result;
use crate::memory::Buffer;
use crate::message::KeyRange;
use crate::metrics::Counters;
use crate::transport::{About, Event, FRAME_PREFIX, Frame, Gather, PeerId, Transport};
use crate::wire::{Kind, Offer, Peeked, peek, peek_landed};

/// A message that passes a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passing {
    /// When: before it left, or after it came.
    pub at: Duration,
    /// Whether it leaves, or has come.
    pub is_sent: bool,
    /// The other side.
    pub peer: PeerId,
    /// Its node id, as its hello says.
    pub node: u32,
    /// Request, reply, failure, or a notice between endpoints.
    pub kind: Kind,
    /// Operation of a request or a failure, as the layer above numbers it.
    pub op: u8,
    /// Its table; 0 of a placed answer, as for the fields below but the last two.
    pub table: u32,
    /// The sender's iteration.
    pub clock: u64,
    /// Its key range.
    pub range: KeyRange,
    /// Number of the request; a reply has that of its request.
    pub timestamp: u64,
    /// Bytes of its sections, as they are on the wire.
    pub bytes: usize,
}

/// A watched transport.
pub struct Watched {
    inner: Box<dyn Transport>,
    now: fn() -> Duration,
    /// When the message that is told of passes.
    at: Duration,
    watcher: Box<dyn FnMut(&Passing)>,
    places: Places,
    /// By peer, the node id of its hello.
    nodes: HashMap<PeerId, u32>,
}

/// Where answers are placed, which come without a header: by who has offered the memory (this side
/// or the other), peer and key of the offer, the number of the request.
type Places = HashMap<(bool, PeerId, u64), u64>;

impl Watched {
    /// Tells `watcher` of all that passes `inner`, with the time by `now`. Messages that share a
    /// frame are told of one by one.
    pub fn new(
        inner: Box<dyn Transport>,
        now: fn() -> Duration,
        watcher: impl FnMut(&Passing) + 'static,
    ) -> Watched {
        Watched {
            inner,
            now,
            at: Duration::ZERO,
            watcher: Box::new(watcher),
            places: HashMap::new(),
            nodes: HashMap::new(),
        }
    }

    /// Tells of a message with a header, and remembers where its answer may be placed.
    fn tell(&mut self, is_sent: bool, peer: PeerId, peeked: &Peeked<'_>) {
        let Peeked { kind, timestamp, offer, header } = peeked;
        match (kind, offer) {
            (Kind::Request, Some(offer)) => {
                self.places.insert((is_sent, peer, offer.key.get()), *timestamp);
            }
            // The answer was not placed, so its memory is free for another request.
            (Kind::Reply | Kind::Failure, _) => {
                let is_own = !is_sent;
                self.places.retain(|(own, of, _), number| {
                    (*own, *of, *number) != (is_own, peer, *timestamp)
                });
            }
            _ => {}
        }
        let sections = [header.key_bytes, header.value_bytes];
        let bytes = sections.iter().map(|bytes| bytes.get() as usize).sum();
        let range = KeyRange::new(header.range_begin.get(), header.range_end.get());
        let passing = Passing {
            kind: *kind,
            op: header.op,
            table: header.table.get(),
            clock: header.clock.get(),
            range: range.unwrap_or(KeyRange::ALL),
            ..self.placed(is_sent, peer, *timestamp, bytes)
        };
        (self.watcher)(&passing);
    }

    /// A placed answer, which has no header.
    fn placed(&self, is_sent: bool, peer: PeerId, timestamp: u64, bytes: usize) -> Passing {
        Passing {
            at: self.at,
            is_sent,
            peer,
            node: self.nodes.get(&peer).copied().unwrap_or_default(),
            kind: Kind::Reply,
            op: 0,
            table: 0,
            clock: 0,
            range: KeyRange::ALL,
            timestamp,
            bytes,
        }
    }

    /// Tells of a write: an answer that is placed, or a long message.
    fn tell_write(
        &mut self,
        is_sent: bool,
        (peer, key): (PeerId, u64),
        bytes: usize,
        long: impl FnOnce(&mut Watched),
    ) {
        match self.places.remove(&(!is_sent, peer, key)) {
            None => long(self),
            Some(timestamp) => {
                let passing = self.placed(is_sent, peer, timestamp, bytes);
                (self.watcher)(&passing);
            }
        }
    }

    fn tell_event(&mut self, event: &Event) {
        match event {
            Event::Connected { peer, hello } => drop(self.nodes.insert(*peer, hello.node.get())),
            Event::Received { peer, frame } => {
                peek(frame, None, |message| self.tell(false, *peer, &message));
            }
            Event::Lent { peer, frame, values } => {
                peek(frame, Some(values.len()), |message| self.tell(false, *peer, &message));
            }
            Event::Written { peer, key, memory, at, len } => {
                let written = memory.get(*at..*at + *len).unwrap_or_default();
                self.tell_write(false, (*peer, *key), *len, |it| {
                    peek_landed(written, *at == 0, |message| it.tell(false, *peer, &message));
                });
            }
            Event::Lost { peer, .. } => self.forget(*peer),
        }
    }

    fn forget(&mut self, peer: PeerId) {
        self.nodes.remove(&peer);
        self.places.retain(|(_, of, _), _| *of != peer);
    }
}

impl Transport for Watched {
    fn about(&self) -> &About {
        self.inner.about()
    }

    fn about_of(&self, peer: PeerId) -> &About {
        self.inner.about_of(peer)
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.inner.connect(address)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.forget(peer);
        self.inner.disconnect(peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        // It is read before it moves in, and told of only if it has.
        self.at = (self.now)();
        let (bytes, apart) = match &frame {
            Frame::Owned(frame) => (frame.get(FRAME_PREFIX..).unwrap_or_default().to_vec(), None),
            Frame::Borrowed(frame) => (frame.to_vec(), None),
            Frame::Lent { frame, values } => {
                (frame.get(FRAME_PREFIX..).unwrap_or_default().to_vec(), Some(values.len()))
            }
        };
        let back = self.inner.post_send(peer, frame)?;
        if back.is_none() {
            peek(&bytes, apart, |message| self.tell(true, peer, &message));
        }
        Ok(back)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.inner.offer(peer, into)
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.places.remove(&(true, peer, key));
        self.inner.withdraw(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        self.at = (self.now)();
        self.inner.post_write(peer, data.clone(), into, at)?;
        self.tell_write(true, (peer, into.key.get()), data.len(), |it| {
            // The header is in the last part.
            let part = data.tail.as_ref().unwrap_or(&data.head);
            peek_landed(part, data.tail.is_some(), |message| it.tell(true, peer, &message));
        });
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let before = events.len();
        let polled = self.inner.poll(events);
        if events.len() > before {
            self.at = (self.now)();
        }
        events[before..].iter().for_each(|event| self.tell_event(event));
        polled
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.inner.wait(timeout)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
