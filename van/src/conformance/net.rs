//! Several transports, driven from one thread, and what has happened at each.

use std::collections::VecDeque;
use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use crate::wire::Offer;
use crate::{Buffer, Error, Event, FRAME_PREFIX, Limits, PeerId, Shared, Transport, VanConfig};

/// How long something may take to happen, in the transports' own time.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a node sleeps when there was nothing to do at any.
const BACKOFF: Duration = Duration::from_micros(100);

/// What memory holds that nobody has written.
pub(super) const UNTOUCHED: u8 = 0xee;

/// A write that came, and the memory it went to.
pub struct Written {
    /// Of the offer.
    pub key: u64,
    /// All of it.
    pub memory: Buffer,
    /// Where the write begins.
    pub at: usize,
    /// How long it is.
    pub len: usize,
}

impl Written {
    fn of(event: Event) -> Written {
        match event {
            Event::Written { key, memory, at, len, .. } => Written { key, memory, at, len },
            _ => unreachable!("picked"),
        }
    }

    /// Asserts that it is the write of `len` bytes that `seed` decides, at `at` of `offer`.
    pub(super) fn check(&self, offer: &Offer, at: usize, seed: u64, len: usize) {
        assert_eq!((self.key, self.at, self.len), (offer.key.get(), at, len));
        assert_eq!(self.memory.len() as u64, offer.len.get(), "all of it is handed back");
        check(&self.memory[at..at + len], seed, len);
    }
}

/// Nodes of one cluster, numbered from 0, with the events that no test has asked for yet.
pub struct Net<T> {
    /// The transports; `None` once dropped.
    pub vans: Vec<Option<T>>,
    events: Vec<VecDeque<Event>>,
    polled: Vec<Event>,
    backoffs: usize,
    /// The two ends of each connection that was made: a node, and what it calls the other one.
    links: Vec<[(usize, PeerId); 2]>,
}

impl<T: Transport> Net<T> {
    /// `count` nodes with the ids 100, 101, … in cluster 7.
    pub fn new(make: &impl Fn(VanConfig) -> T, count: usize) -> Self {
        Net::with(make, count, VanConfig::default())
    }

    /// The same with other settings.
    pub fn with(make: &impl Fn(VanConfig) -> T, count: usize, config: VanConfig) -> Self {
        let (events, polled, links) = Default::default();
        let mut net = Net { vans: Vec::new(), events, polled, backoffs: 0, links };
        for index in 0..count {
            net.add(make(VanConfig { cluster: 7, node: 100 + index as u32, ..config.clone() }));
        }
        net
    }

    /// Adds a node, and returns its index.
    pub fn add(&mut self, van: T) -> usize {
        self.vans.push(Some(van));
        self.events.push(VecDeque::new());
        self.vans.len() - 1
    }

    /// The transport of `node`.
    pub fn van(&mut self, node: usize) -> &mut T {
        self.vans[node].as_mut().expect("it has not been dropped")
    }

    /// What the van of the first lane of `node` can carry.
    pub fn limits(&mut self, node: usize) -> Limits {
        let ends = self.links.iter().flatten();
        let lane = ends.copied().find(|(end, _)| *end == node).map(|(_, peer)| peer);
        let van = self.van(node);
        lane.map_or(van.about().limits, |peer| van.about_of(peer).limits)
    }

    /// Lets every node poll once, and one of them, each in its turn, take a backoff if nothing
    /// happened anywhere. On a busy machine a backoff may last a hundred times longer, and
    /// strangers are given seconds.
    pub fn turn(&mut self) {
        let mut idle = true;
        for (van, events) in self.vans.iter_mut().zip(&mut self.events) {
            let Some(van) = van else { continue };
            van.poll(&mut self.polled).expect("the van itself works");
            idle &= self.polled.is_empty();
            events.extend(self.polled.drain(..));
        }
        if idle {
            let living = self.vans.iter().flatten().count().max(1);
            self.backoffs += 1;
            let van = self.vans.iter_mut().flatten().nth(self.backoffs % living);
            van.into_iter().for_each(|van| van.wait(BACKOFF).expect("the van itself works"));
        }
    }

    /// Lets the nodes run until `look` finds something.
    ///
    /// # Panics
    /// If that takes a minute.
    pub fn until<R>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<R>) -> R {
        let began = self.now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(self.now() - began < PATIENCE, "waited too long for {what}: {:?}", self.events);
            self.turn();
        }
    }

    /// The first event at `node` that `pick` takes; those it leaves alone stay.
    pub fn event<R>(
        &mut self,
        node: usize,
        what: &str,
        pick: impl Fn(&Event) -> bool,
        take: impl Fn(Event) -> R,
    ) -> R {
        self.until(what, |net| {
            let at = net.events[node].iter().position(&pick)?;
            net.events[node].remove(at).map(&take)
        })
    }

    /// Connects `a` to `b`; returns each one's number for the other.
    pub fn connect(&mut self, a: usize, b: usize) -> (PeerId, PeerId) {
        let address = self.van(b).about().address.clone();
        let peer = self.van(a).connect(&address).expect("b listens there");
        let is_up =
            |event: &Event| matches!(event, Event::Connected { peer: up, .. } if *up == peer);
        self.event(a, "the connection at the caller", is_up, drop);
        let id = 100 + a as u32;
        let is_up = |event: &Event| matches!(event, Event::Connected { hello, .. } if hello.node.get() == id);
        let back = self.event(b, "the connection at the called", is_up, |event| match event {
            Event::Connected { peer, .. } => peer,
            _ => unreachable!("picked"),
        });
        self.links.push([(a, peer), (b, back)]);
        (peer, back)
    }

    /// Two nodes, connected.
    pub fn pair(make: &impl Fn(VanConfig) -> T) -> (Self, PeerId, PeerId) {
        let mut net = Net::new(make, 2);
        let (there, back) = net.connect(0, 1);
        (net, there, back)
    }

    /// The next frame at `node` from `peer`.
    pub fn frame(&mut self, node: usize, peer: PeerId) -> Buffer {
        let is_it = |event: &Event| match event {
            Event::Received { peer: from, .. } => *from == peer,
            Event::Lost { peer: of, error } if *of == peer => panic!("{peer} is lost: {error}"),
            _ => false,
        };
        self.event(node, "a frame", is_it, |event| match event {
            Event::Received { frame, .. } => frame,
            _ => unreachable!("picked"),
        })
    }

    /// Offers `len` bytes of `node` to `peer`, 0xee all of them.
    pub fn offer(&mut self, node: usize, peer: PeerId, len: usize) -> Offer {
        let mut into = self.van(node).about().memory.allocate(len).expect("memory is left");
        into.fill(UNTOUCHED);
        self.offer_memory(node, peer, into)
    }

    /// Offers memory of `node` to `peer` and tells it so; until it knows, it need not be able to
    /// write.
    pub fn offer_memory(&mut self, node: usize, peer: PeerId, into: Buffer) -> Offer {
        let len = into.len() as u64;
        let offer = self.van(node).offer(peer, into).expect("the peer is connected");
        assert_eq!(offer.len.get(), len);
        let mut frame = self.framed(node, 0, size_of::<Offer>());
        frame[FRAME_PREFIX..].copy_from_slice(offer.as_bytes());
        self.van(node).post_send(peer, frame.into()).expect("there is room in the queue");
        let ends = self.links.iter().flat_map(|&[a, b]| [(a, b), (b, a)]);
        let (_, (other, back)) =
            ends.into_iter().find(|(end, _)| *end == (node, peer)).expect("they are connected");
        let told = self.frame(other, back);
        Offer::read_from_bytes(&told).expect("the frame that was posted here")
    }

    /// The next write at `node` by `peer`.
    pub fn written(&mut self, node: usize, peer: PeerId) -> Written {
        let is_it = |event: &Event| match event {
            Event::Written { peer: by, .. } => *by == peer,
            Event::Lost { peer: of, error } if *of == peer => panic!("{peer} is lost: {error}"),
            _ => false,
        };
        self.event(node, "a write", is_it, Written::of)
    }

    /// The next frame or write at `node` from `peer`, whichever comes first.
    pub fn next(&mut self, node: usize, peer: PeerId) -> Event {
        let is_it = |event: &Event| match event {
            Event::Lost { peer: of, error } if *of == peer => panic!("{peer} is lost: {error}"),
            Event::Connected { .. } | Event::Lost { .. } => false,
            Event::Received { .. } | Event::Lent { .. } | Event::Written { .. } => {
                event.peer() == peer
            }
        };
        self.event(node, "a frame or a write", is_it, |event| event)
    }

    /// Drops the events of `node` that no test has asked for.
    pub(super) fn forget(&mut self, node: usize) {
        self.events[node].clear();
    }

    /// Why `node` lost `peer`.
    pub fn lost(&mut self, node: usize, peer: PeerId) -> Error {
        let is_it = |event: &Event| matches!(event, Event::Lost { peer: of, .. } if *of == peer);
        self.event(node, "the loss of a peer", is_it, |event| match event {
            Event::Lost { error, .. } => error,
            _ => unreachable!("picked"),
        })
    }

    /// Lets things happen for a while and returns what is there at `node` then.
    pub fn rest(&mut self, node: usize) -> Vec<Event> {
        for _ in 0..30 {
            self.turn();
        }
        self.events[node].drain(..).collect()
    }

    /// Registered memory of `node` with `len` bytes that `seed` decides.
    pub fn bytes(&mut self, node: usize, seed: u64, len: usize) -> Shared {
        let mut data = self.van(node).about().memory.allocate(len).expect("memory is left");
        fill(&mut data, seed);
        data.share()
    }

    /// A frame of `len` bytes that `seed` decides, with its prefix.
    pub fn framed(&mut self, node: usize, seed: u64, len: usize) -> Buffer {
        let memory = &self.van(node).about().memory;
        let mut frame = memory.allocate(FRAME_PREFIX + len).expect("memory is left");
        fill(&mut frame[FRAME_PREFIX..], seed);
        frame
    }

    /// Posts such a frame; lets the nodes run while the queue is full.
    pub fn send(&mut self, node: usize, peer: PeerId, seed: u64, len: usize) {
        self.until("room in the queue", |net| {
            let frame = net.framed(node, seed, len);
            match net.van(node).post_send(peer, frame.into()) {
                Ok(_) => Some(()),
                Err(Error::QueueFull { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        });
    }

    /// Sends a frame from `a` to `b` and checks that it arrives.
    pub fn exchange(&mut self, a: usize, to: PeerId, b: usize, from: PeerId) {
        self.send(a, to, 99, 41);
        check(&self.frame(b, from), 99, 41);
    }

    fn now(&self) -> Duration {
        let van = self.vans.iter().flatten().next().expect("a node is left");
        van.about().clock.now()
    }
}

/// Fills `bytes` with what `seed` decides.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut word = seed;
    for chunk in bytes.chunks_mut(8) {
        word = step(word);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// Asserts that `bytes` are the `len` that `seed` decides.
pub(super) fn check(bytes: &[u8], seed: u64, len: usize) {
    assert_eq!(bytes.len(), len);
    let mut word = seed;
    for (index, chunk) in bytes.chunks(8).enumerate() {
        word = step(word);
        let expected = word.to_le_bytes();
        assert_eq!(chunk, &expected[..chunk.len()], "seed {seed}, at {} of {len}", index * 8);
    }
}

/// The next of a sequence of well mixed numbers (Steele et al., "Fast splittable pseudorandom
/// number generators", 2014).
pub(super) fn step(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
