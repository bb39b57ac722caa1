//! The portable van: plain non-blocking sockets, for machines where nothing faster works, and for the control plane.
//!
//! No unsafe code and nothing that only one operating system has: it builds wherever sockets do. It frames with
//! [`caravan_van::socket`], so frames and the data of writes leave from where they lie, and writes land where they belong.
//!
//! ```
//! use std::time::Duration;
//! use caravan_fallback_tcp::Tcp;
//! use caravan_van::{Event, FRAME_PREFIX, Transport, VanConfig};
//!
//! # fn main() -> caravan_van::Result<()> {
//! let mut server = Tcp::new(&VanConfig { node: 1, ..VanConfig::default() })?;
//! let mut worker = Tcp::new(&VanConfig { node: 2, ..VanConfig::default() })?;
//! worker.connect(&server.about().address)?;
//! let mut events = Vec::new();
//! loop {
//!     worker.poll(&mut events)?;
//!     if let Some(Event::Connected { peer, .. }) = events.pop() {
//!         let mut frame = worker.about().memory.allocate(FRAME_PREFIX + 5)?;
//!         frame[FRAME_PREFIX..].copy_from_slice(b"hello");
//!         worker.post_send(peer, frame.into())?;
//!     }
//!     server.poll(&mut events)?;
//!     if let Some(Event::Received { frame, .. }) = events.pop() {
//!         assert_eq!(&*frame, b"hello");
//!         return Ok(());
//!     }
//!     events.clear();
//!     server.wait(Duration::from_micros(100))?;
//! }
//! # }
//! ```
//!
//! How it looks for work: up to [`DIRECT_PEERS`] peers are tried one by one, since a read that finds nothing is as cheap as
//! asking whether there is something, and a read that finds something saves the question. With more, the system is asked
//! once which of them are ready. The listener never costs a call of its own: it is among those asked about, at least once a
//! millisecond. A [`Tcp`] belongs to one thread.
//!
//! The system watches a socket only for who may sleep or asks: whatever comes in or is acknowledged has to be entered with the
//! watcher, which took 0.3 of the 6.5 µs of a small round trip. A thread that has not slept for a millisecond takes its
//! sockets out, and puts them back before it sleeps.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (**tcp**).

#![forbid(unsafe_code)]

mod callers;
mod connect;
mod peer;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use caravan_van::handshake::{Credentials, Refusals};
use caravan_van::offers::Offers;
use caravan_van::socket;
use caravan_van::transport::check_frame;
use caravan_van::wait::{Idle, Next};
use caravan_van::wire::Offer;
use caravan_van::{
    About, Buffer, Clock, Counters, Error, Event, Frame, Gather, Limits, Numbers, PeerId, Pool,
    Result, Transport, VanConfig,
};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

use callers::STRANGERS_MAX;
use connect::{Dial, listen};
use peer::{Fault, Leaving, Peer, PeerConfig, Stage};

/// Up to this many peers are read without asking first which of them have something.
pub const DIRECT_PEERS: usize = 4;

/// How long a connected peer may take to prove itself.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a busy transport looks after its listener and its deadlines.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// Reports taken from the system at a time.
const REPORTS_MAX: usize = 256;

/// Looks after which a transport that tries its few peers directly asks what time it is.
const LOOKS_PER_CLOCK: u32 = 32;

const LISTENER: Token = Token(usize::MAX);

/// A node's sockets: one to each peer, one to listen.
#[derive(Debug)]
pub struct Tcp {
    config: PeerConfig,
    credentials: Rc<Credentials>,
    idle: Idle,
    about: About,
    offers: Offers,
    poll: Poll,
    reports: Events,
    listener: Option<TcpListener>,
    /// Whether somebody may be waiting to be accepted.
    acceptable: bool,
    /// Not to accept before.
    accept_at: Instant,
    /// By [`PeerId`]; `None` once gone.
    peers: Vec<Option<Box<Peer>>>,
    numbers: Numbers,
    /// The numbers of those that have proved themselves, or that this side has called.
    live: Vec<u32>,
    /// The numbers of callers that have not proved themselves, the oldest first. Only the system tells when there is something to do
    /// for them, so that they make no difference to how the others are looked after.
    strangers: VecDeque<u32>,
    /// Those of them for which there is.
    stirring: Vec<u32>,
    refusals: Refusals,
    leaving: Vec<Leaving>,
    /// What happened while waiting, for the next poll.
    seen: Vec<Event>,
    look_around_at: Instant,
    /// Looks since the clock was read.
    looks: u32,
    /// The last look found nothing, so that to look again at once would find nothing either.
    looked: bool,
    /// It has slept since it last looked around.
    slept: bool,
    /// Calls and bytes, and what gone peers had counted.
    counters: Counters,
}

impl Tcp {
    /// Listens on `config.listen`. Peers connect to [`About::address`], which names what was listened on: give an address
    /// that they can reach, not a wildcard.
    ///
    /// # Errors
    /// [`Error::Setting`] as [`VanConfig::check`] says; [`Error::Listen`]; [`Error::Os`].
    pub fn new(config: &VanConfig) -> Result<Tcp> {
        config.check()?;
        let os = |call| move |source| Error::Os { call, source };
        let poll = Poll::new().map_err(os("opening the poller"))?;
        let (mut listener, mut address) = (None, String::new());
        if config.accepts {
            let (socket, bound) = listen(&config.listen)?;
            address = bound;
            poll.registry()
                .register(listener.insert(socket), LISTENER, Interest::READABLE)
                .map_err(os("watching the listener"))?;
        }
        let now = Instant::now();
        Ok(Tcp {
            config: PeerConfig {
                frame_bytes: config.frame_bytes,
                queue_depth: config.queue_depth,
                proof_timeout: PROOF_TIMEOUT,
            },
            credentials: Rc::new(Credentials::new(config, socket::CARRIER)),
            idle: Idle::new(config.wait),
            about: About {
                name: "tcp",
                address,
                host: None,
                limits: Limits::plain(config.frame_bytes, config.queue_depth),
                memory: Pool::from_pages(config.memory_bytes, config.pages, None),
                clock: Clock::start(),
            },
            offers: Offers::default(),
            poll,
            reports: Events::with_capacity(REPORTS_MAX),
            listener,
            acceptable: config.accepts,
            accept_at: now,
            peers: Vec::new(),
            numbers: Numbers::default(),
            live: Vec::new(),
            strangers: VecDeque::new(),
            stirring: Vec::new(),
            refusals: Refusals::default(),
            leaving: Vec::new(),
            seen: Vec::new(),
            look_around_at: now,
            looks: 0,
            looked: false,
            slept: false,
            counters: Counters::default(),
        })
    }

    /// One turn: sends what is posted and takes what has come, into `seen`.
    fn look(&mut self) -> Result<()> {
        let directly = self.tries_directly();
        self.looks += 1;
        if !directly || self.looks >= LOOKS_PER_CLOCK {
            self.looks = 0;
            let now = Instant::now();
            let around = now >= self.look_around_at;
            if !directly {
                self.watch(true)?;
            } else if around && !std::mem::take(&mut self.slept) {
                self.watch(false)?;
            }
            if around || !directly {
                self.ask(Duration::ZERO)?;
            }
            if around || self.acceptable {
                self.look_around(now);
            }
        }
        self.serve(directly, true);
        Ok(())
    }

    /// Whether to try sockets without asking first; only the system can tell about those that are being set up.
    fn tries_directly(&self) -> bool {
        self.live.len() <= DIRECT_PEERS
            && self.live.iter().all(|&id| self.at(id).is_some_and(Peer::is_up))
    }

    /// Writes to all peers that have something posted, and reads from all if `reading`.
    fn serve(&mut self, directly: bool, reading: bool) {
        let mut next = 0;
        while let Some(&id) = self.live.get(next) {
            match self.serve_one(id, directly, reading) {
                Ok(()) => next += 1,
                Err(fault) => self.lose(id, fault),
            }
        }
    }

    fn serve_one(&mut self, id: u32, directly: bool, reading: bool) -> Result<(), Fault> {
        let Some(peer) = &mut self.peers[id as usize] else { return Ok(()) };
        if matches!(peer.stage, Stage::Dialling(_)) && !peer.dial_on()? {
            return Ok(());
        }
        let writing = peer.may_write(directly);
        let written = if writing { peer.flush(&mut self.counters) } else { Ok(()) };
        // Behind a write it is too early for the answer: the next look reads.
        peer.wrote_only = directly && writing && !peer.wrote_only;
        // Who cannot be written to any more may have said why.
        if (reading && peer.may_read(directly) && !peer.wrote_only) || written.is_err() {
            let before = self.seen.len();
            let read =
                peer.read(&self.about.memory, &mut self.offers, &mut self.seen, &mut self.counters);
            if !peer.is_up()
                && let Some(Event::Connected { hello, .. }) = self.seen.get(before)
            {
                peer.stage = Stage::Up;
                peer.frame_bytes = peer.frame_bytes.min(hello.frame_bytes.get() as usize);
            }
            read?;
        }
        written
    }

    /// Has the system watch all sockets for what is waited for, or none.
    fn watch(&mut self, watch: bool) -> Result<()> {
        for &id in &self.live {
            if let Some(peer) = &mut self.peers[id as usize] {
                peer.watch(watch, self.poll.registry(), &mut self.counters)
                    .map_err(|source| Error::Os { call: "watching a socket", source })?;
            }
        }
        Ok(())
    }

    /// Asks the system which of what it watches is ready, for at most `timeout`; returns whether it had anything to report.
    fn ask(&mut self, timeout: Duration) -> Result<bool> {
        self.counters.system_calls += 1;
        match self.poll.poll(&mut self.reports, Some(timeout)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(source) => return Err(Error::Os { call: "waiting for sockets", source }),
        }
        for report in &self.reports {
            if report.token() == LISTENER {
                self.acceptable = true;
            } else if let Some(Some(peer)) = self.peers.get_mut(report.token().0) {
                let broken = report.is_error();
                let readable = report.is_readable() || report.is_read_closed() || broken;
                let writable = report.is_writable() || report.is_write_closed() || broken;
                peer.is_ready(readable, writable);
                if peer.is_stranger() {
                    self.stirring.push(peer.id.0);
                }
            }
        }
        Ok(!self.reports.is_empty())
    }

    /// Gives a connection its place in the table.
    fn enter(&mut self, peer: Peer) {
        let index = peer.id.0 as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        self.peers[index] = Some(Box::new(peer));
    }

    /// Ends a connection because of `fault`. Nobody above hears of callers that have not proved themselves.
    fn lose(&mut self, id: u32, fault: Fault) {
        let Some(peer) = self.remove(id) else { return };
        let misdeed = match &fault {
            Fault::Misdeed(reason) => Some(reason.clone()),
            _ => None,
        };
        let error = peer.error(fault);
        if peer.is_stranger() {
            self.numbers.give_back(id);
            self.refusals.log(self.about.clock.now(), &peer.address, &error.to_string());
        } else {
            self.numbers.lose(id);
            self.seen.push(Event::Lost { peer: peer.id, error });
        }
        if let Some(reason) = misdeed
            && self.leaving.len() < STRANGERS_MAX
        {
            self.leaving.extend(peer.farewell(&reason, &mut self.counters));
        }
    }

    fn remove(&mut self, id: u32) -> Option<Box<Peer>> {
        let peer = self.peers.get_mut(id as usize)?.take()?;
        // One that proved itself and failed in one breath is a stranger's number and a peer.
        self.strangers.retain(|&stranger| stranger != id);
        self.live.retain(|&live| live != id);
        add(&mut self.counters, &peer);
        Some(peer)
    }

    /// Sleeps for at most `limit` if there is nothing left to try; returns whether there may be something now.
    fn sleep(&mut self, limit: Duration) -> Result<bool> {
        let now = Instant::now();
        self.look_around(now);
        if !self.seen.is_empty() {
            return Ok(true);
        }
        let is_blocked = |&id| self.at(id).is_none_or(Peer::is_blocked);
        if !self.stirring.is_empty() || !self.live.iter().all(is_blocked) {
            return Ok(false); // look again until every socket has said that it has nothing
        }
        let waited_for = self.live.iter().chain(self.strangers.front());
        let deadlines = waited_for.filter_map(|&id| self.at(id)?.deadline());
        let deadlines = deadlines.chain(self.leaving.iter().map(|leaving| leaving.until));
        let until = deadlines.chain(self.acceptable.then_some(self.accept_at)).min();
        let limit = until.map_or(limit, |until| limit.min(until.saturating_duration_since(now)));
        self.counters.sleeps += 1;
        self.slept = true;
        self.watch(true)?;
        self.ask(limit)
    }

    fn at(&self, id: u32) -> Option<&Peer> {
        self.peers.get(id as usize)?.as_deref()
    }

    fn connected(&mut self, peer: PeerId) -> Result<&mut Peer> {
        let slot = self.peers.get_mut(peer.0 as usize).and_then(Option::as_deref_mut);
        slot.filter(|found| found.is_up()).ok_or(Error::NotConnected { peer })
    }
}

impl Transport for Tcp {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.counters.system_calls += 1;
        let failed = |source| Error::Connect { address: address.to_owned(), source };
        let (dial, stream) = Dial::start(address).map_err(failed)?;
        let id = PeerId(self.numbers.unused());
        let (credentials, stage) = (&self.credentials, Stage::Dialling(dial));
        let peer = Peer::new(id, stage, stream, address.to_owned(), credentials, self.config);
        self.enter(peer.map_err(failed)?);
        self.live.push(id.0);
        Ok(id)
    }

    fn disconnect(&mut self, peer: PeerId) {
        match self.remove(peer.0) {
            Some(_) => self.numbers.give_back(peer.0),
            None => self.numbers.forget(peer.0),
        }
        self.offers.forget(peer);
        self.seen.retain(|event| event.peer() != peer);
    }

    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        let to = self.connected(peer)?;
        let Frame::Owned(frame) = frame else { return Ok(Some(frame)) };
        check_frame(&frame, to.frame_bytes)?;
        to.sender.frame(frame)?;
        self.looked = false;
        Ok(None)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.connected(peer)?;
        Ok(self.offers.open(peer, into))
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.offers.close(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        self.connected(peer)?.sender.write(data, into, at)?;
        self.looked = false;
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        if self.seen.is_empty() {
            self.look()?;
        } else {
            // The wait before has just looked: deliver what it saw, and only send.
            let directly = self.tries_directly();
            self.serve(directly, false);
        }
        self.looked = self.seen.is_empty();
        if !self.looked {
            events.append(&mut self.seen);
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.idle.begin(timeout);
        loop {
            let received = self.counters.bytes_received;
            if !std::mem::take(&mut self.looked) {
                self.look()?;
            }
            if !self.seen.is_empty() {
                return Ok(());
            }
            if self.counters.bytes_received != received {
                continue; // a part of something: the rest is on its way
            }
            match self.idle.after_empty_look() {
                Next::Look => {}
                Next::Return => return Ok(()),
                Next::Sleep(limit) => {
                    if self.sleep(limit)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        self.live.iter().filter_map(|&id| self.at(id)).for_each(|peer| add(&mut counters, peer));
        counters
    }
}

/// Adds what a peer has counted.
fn add(counters: &mut Counters, peer: &Peer) {
    counters.frames_sent += peer.sender.frames_sent();
    counters.frames_received += peer.receiver.frames_received();
    counters.payload_bytes_copied += peer.receiver.payload_bytes_copied();
}
