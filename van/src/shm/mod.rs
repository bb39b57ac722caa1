//! The van between processes of one host: rings in memory that both see, and long data that is
//! copied once, from where it lies.
//!
//! Each end of a lane has a segment that it alone writes and the other end reads (`segment.rs`):
//! its ring (`ring.rs`), how far it has read the other ring, and whether it sleeps. A post writes a
//! record and its stamp. A poll reads one line of each peer, where the next stamp will be. The ring
//! holds short frames. Longer frames and writes lie in the sender's pool, whose arenas its peers
//! can read (`arenas.rs`): the ring holds a reference, and the receiver copies the data, into the
//! offered memory for a write. Lent values are not copied at all (`loan.rs`): the receiver reads
//! them in place and returns the loan. Decision 0005 (`van/docs/decisions/0005-lending.md`) says
//! which values are lent.
//!
//! # Cache lines between two cores
//! A line that one core writes and another polls moves twice: the writer takes it from the reader's
//! cache, then the reader fetches it back. Each move takes about as long as all the computing for a
//! short message at one end. So the first move begins early: when a frame has come, the sender
//! claims the lines of its next record, which an answer or the next request will need. The reader
//! may fetch them back too soon, but then its request for them is already under way when they are
//! written. For the same reason a record's first line is written last and at once.
//!
//! # Sleeping
//! A node that wants to sleep stores so in its segment, looks once more, and waits on its sockets.
//! A node that has posted looks at that word, once for everything since the last poll, and sends a
//! packet if the peer sleeps. A fence stands between the store and the load on each side, so at
//! least one side sees the other's store (Dekker's argument); `tests/pairs.rs` has both sides race
//! for it. The same sockets bring connections and report lost peers. A node that does not sleep
//! looks at them now and then.
//!
//! # Trust
//! Peers are processes of the same user that know the cluster's secret (`greeting.rs`). A peer that
//! misbehaves can make this node read other bytes than it meant, never outside of the shared
//! memory, and never make it wait: see `segment.rs` and `receive.rs`.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

mod arenas;
pub mod bare;
mod connect;
mod greeting;
mod loan;
mod receive;
mod ring;
mod segment;
mod send;
mod socket;
#[cfg(any(test, feature = "conformance"))]
pub mod stranger;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use caravan_numa::PageSource;

use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::handshake::{Credentials, Refusals};
use crate::memory::{Buffer, Pool};
use crate::metrics::Counters;
use crate::numbers::Numbers;
use crate::transport::{
    About, Clock, Event, Frame, Gather, Limits, PeerId, Sleeper, Transport, check_frame,
};
use crate::wait::{self, Pace, Progress};
use crate::wire::Offer;

use connect::{Link, Packet, Sockets, host, probe, reason};
use greeting::{Greetings, LISTENER};
use receive::{Hub, Receiver};
use ring::ASLEEP;
use send::Sender;
use socket::Epoll;

/// The van's name.
const NAME: &str = "shm";

/// Polls between two looks at the sockets. An empty poll counts for [`EMPTY_POLL`].
const POLLS_PER_LOOK: u32 = 4096;

/// See [`POLLS_PER_LOOK`].
const EMPTY_POLL: u32 = 16;

/// Bit of the word [`ASLEEP`]: a new record ends the sleep.
const FOR_RECORDS: u64 = 1;

/// Bit of the word [`ASLEEP`]: new room in the sleeper's ring ends the sleep.
const FOR_ROOM: u64 = 2;

/// Unit of the number of the sleep, which the bits above hold.
const SLEEP: u64 = 4;

/// A node's lanes to other processes of its host.
pub struct Shm {
    config: VanConfig,
    credentials: Credentials,
    about: About,
    pace: Pace,
    table: Table,
    greetings: Greetings,
    refusals: Refusals,
    hub: Hub,
    sockets: Sockets,
    /// Whether some peer may have to be woken.
    touched: bool,
    /// Whether something was posted since the last turn.
    posted: bool,
    /// Number of sleeps, times [`SLEEP`].
    sleeps: u64,
}

/// A peer that has proved itself.
struct Peer {
    id: PeerId,
    address: String,
    /// Longest frame that both sides take.
    frame_bytes: usize,
    link: Link,
    sender: Sender,
    receiver: Receiver,
    /// The last sleep of the peer that it was woken from.
    woken: u64,
}

/// The peers of a transport.
#[derive(Default)]
struct Table {
    /// In no order, so that a poll visits them without gaps.
    peers: Vec<Peer>,
    /// The place of each peer in `peers`, by peer number; `None` once it is gone.
    places: Vec<Option<usize>>,
    /// The numbers of peers and of connections under way.
    numbers: Numbers,
}

impl Shm {
    /// A transport that other processes of this host can connect to. It ignores `config.listen`.
    ///
    /// # Errors
    /// [`Error::Setting`] as [`VanConfig::check`] says; [`Error::Unavailable`] if this machine does
    /// not let processes share memory in this way.
    pub fn new(config: &VanConfig) -> Result<Shm> {
        config.check()?;
        let unavailable = |what: &'static str| {
            move |source: io::Error| Error::Unavailable { van: NAME, reason: reason(what, &source) }
        };
        probe().map_err(unavailable("sealed memory files"))?;
        if config.encrypt {
            let reason = "it has no encryption; take uring or tcp with --encrypt".to_owned();
            return Err(Error::Unavailable { van: NAME, reason });
        }
        let epoll = Epoll::new().map_err(unavailable("epoll"))?;
        let (mut listener, mut address) = (None, String::new());
        if config.accepts {
            let (socket, bound) = connect::listen().map_err(unavailable("abstract sockets"))?;
            address = bound;
            epoll.watch(listener.insert(socket), LISTENER).map_err(unavailable("epoll"))?;
        }
        tracing::debug!(%address, "listening in memory");
        let pages = PageSource { shareable: true, ..config.pages };
        let about = About {
            name: NAME,
            address,
            host: Some(host().map_err(unavailable("/proc"))?),
            port: None,
            limits: Limits {
                frame_bytes: config.frame_bytes,
                queue_depth: config.queue_depth,
                checks_bytes: true, // memory does not lose bytes on the way
                copy_bytes: ring::INLINE_BYTES_MAX,
                lent_bytes_min: ring::INLINE_BYTES_MAX + 1,
            },
            memory: Pool::from_pages(config.memory_bytes, pages, None),
            clock: Clock::start(),
        };
        Ok(Shm {
            config: config.clone(),
            credentials: Credentials::new(config, NAME),
            hub: Hub::new(&about.memory),
            about,
            pace: Pace::new(config.wait),
            table: Table::default(),
            greetings: Greetings::default(),
            refusals: Refusals::default(),
            sockets: Sockets {
                listener,
                epoll,
                ready: Vec::new(),
                polls_left: 0,
                orphaned: Vec::new(),
            },
            touched: false,
            posted: false,
            sleeps: 0,
        })
    }

    /// Wakes the peers that sleep and have something to do since the last turn.
    #[inline]
    fn wake_sleepers(&mut self) {
        (self.touched, self.posted) = (false, false);
        fence(Ordering::SeqCst); // stores for a peer come before the look at whether it sleeps
        for peer in &mut self.table.peers {
            let posted = std::mem::take(&mut peer.sender.ring.posted);
            let consumed = std::mem::take(&mut peer.receiver.consumed);
            if !(posted | consumed) {
                continue;
            }
            let asleep = peer.link.foreign.load(ASLEEP, Ordering::Relaxed);
            let awaited = (FOR_RECORDS * u64::from(posted)) | (FOR_ROOM * u64::from(consumed));
            if asleep & awaited != 0 && peer.woken != asleep {
                self.hub.counters.system_calls += 1;
                peer.wake(asleep);
            }
        }
    }

    /// Looks at the sockets; returns whether there was an event.
    #[cold]
    fn look_now(&mut self) -> Result<bool> {
        self.sockets.polls_left = POLLS_PER_LOOK;
        self.look_at_sockets(Duration::ZERO)?;
        Ok(!self.hub.ready.is_empty())
    }
}

impl Peer {
    /// Takes what has come and goes on with what waits; returns whether anything moved.
    ///
    /// # Errors
    /// The reason to drop the peer.
    #[inline(always)]
    fn turn(&mut self, hub: &mut Hub) -> std::result::Result<bool, String> {
        let Peer { link, sender, receiver, .. } = self;
        let received = receiver.receive(link, hub)?;
        if received {
            sender.ring.prepare(&link.own); // an answer follows, or the next request
        }
        sender.take_back(&mut receiver.returned);
        sender.give_back(link, &receiver.views);
        Ok(sender.turn(link, hub)? || received)
    }

    /// Sends a frame; hands it back if it cannot be sent in that form now. Finished loans return
    /// first: a peer that learns from the frame that they are finished has them back then.
    #[inline]
    fn send<'a>(&mut self, frame: Frame<'a>, hub: &mut Hub) -> Result<Option<Frame<'a>>> {
        let Peer { link, sender, receiver, frame_bytes, .. } = self;
        sender.give_back(link, &receiver.views);
        match frame {
            Frame::Borrowed(frame) => {
                let is_sent = frame.len() <= *frame_bytes && sender.copy(link, frame, hub);
                Ok(if is_sent { None } else { Some(Frame::Borrowed(frame)) })
            }
            Frame::Owned(frame) => {
                check_frame(&frame, *frame_bytes)?;
                sender.frame(link, frame, None, hub).map(|()| None)
            }
            Frame::Lent { frame, values } => {
                check_frame(&frame, *frame_bytes)?;
                if sender.lent.is_full() {
                    return Ok(Some(Frame::Lent { frame, values }));
                }
                sender.frame(link, frame, Some(values), hub).map(|()| None)
            }
        }
    }

    /// Wakes it from the sleep `asleep`.
    #[cold]
    fn wake(&mut self, asleep: u64) {
        self.woken = asleep;
        // A full socket wakes the peer anyway; a closed one shows when it is read.
        let _ = self.link.send(Packet::Wake, None);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.link.close(); // before the sender, a field, releases what records refer to
        // The socket may stay open while what is lent is read.
        let _ = self.link.send(Packet::Bye, None);
    }
}

impl Table {
    /// The place of a peer in `peers`.
    #[inline]
    fn place(&self, peer: PeerId) -> Option<usize> {
        self.places.get(peer.0 as usize).copied().flatten()
    }

    /// A peer.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    #[inline]
    fn get(&mut self, peer: PeerId) -> Result<&mut Peer> {
        let Some(place) = self.place(peer) else { return Err(Error::NotConnected { peer }) };
        Ok(&mut self.peers[place])
    }

    fn enter(&mut self, peer: Peer) {
        let index = peer.id.0 as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(self.peers.len());
        self.peers.push(peer);
    }

    fn remove(&mut self, place: usize) -> Peer {
        let peer = self.peers.swap_remove(place);
        self.places[peer.id.0 as usize] = None;
        if let Some(moved) = self.peers.get(place) {
            self.places[moved.id.0 as usize] = Some(place);
        }
        peer
    }
}

impl Progress for Shm {
    #[inline]
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    #[inline]
    fn ready(&mut self) -> &mut Vec<Event> {
        &mut self.hub.ready
    }

    #[inline]
    fn has_posted(&self) -> bool {
        self.posted
    }

    /// Looks at every lane once, and at the sockets now and then; returns whether anything moved.
    #[inline(always)]
    fn turn(&mut self) -> Result<bool> {
        if self.touched {
            self.wake_sleepers();
        }
        let mut moved = self.sockets.polls_left == 0 && self.look_now()?;
        // Backwards: the peer that takes the place of a lost one has had its turn.
        for place in (0..self.table.peers.len()).rev() {
            let peer = &mut self.table.peers[place];
            let outcome = peer.turn(&mut self.hub);
            self.touched |= peer.sender.ring.posted | peer.receiver.consumed;
            match outcome {
                Ok(has_moved) => moved |= has_moved,
                Err(reason) => {
                    self.lose(place, reason);
                    moved = true;
                }
            }
        }
        let cost = if moved { 1 } else { EMPTY_POLL };
        self.sockets.polls_left = self.sockets.polls_left.saturating_sub(cost);
        Ok(moved)
    }

    /// Sleeps until a peer wakes this node or a socket is ready.
    #[cold]
    fn sleep(&mut self, timeout: Duration) -> Result<()> {
        if self.fall_asleep()? {
            let timeout = self.patience(timeout);
            self.look_at_sockets(timeout)?;
            self.sockets.polls_left = POLLS_PER_LOOK;
        }
        self.awake();
        Ok(())
    }
}

impl Shm {
    /// Says that this node sleeps, and looks once more; returns whether it still can.
    fn fall_asleep(&mut self) -> Result<bool> {
        self.sleeps += SLEEP;
        for peer in &self.table.peers {
            let room = if peer.sender.waits() { FOR_ROOM } else { 0 };
            let word = self.sleeps | FOR_RECORDS | room;
            peer.link.own.store(ASLEEP, word, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst); // the stores come before the look at the rings
        let sleeps = !self.turn()? && self.hub.ready.is_empty();
        self.hub.counters.sleeps += u64::from(sleeps);
        Ok(sleeps)
    }

    fn awake(&mut self) {
        for peer in &self.table.peers {
            peer.link.own.store(ASLEEP, 0, Ordering::Relaxed);
        }
    }
}

impl Sleeper for Shm {
    fn carrier(&self) -> &'static str {
        NAME
    }

    fn descriptors(&mut self) -> Result<Vec<i32>> {
        Ok(vec![self.sockets.epoll.descriptor()])
    }

    fn park(&mut self, limit: Duration) -> Result<Duration> {
        Ok(if self.fall_asleep()? { self.patience(limit) } else { Duration::ZERO })
    }

    fn unpark(&mut self) -> Result<()> {
        self.awake();
        self.sockets.polls_left = 0; // the next turn looks at the sockets
        Ok(())
    }
}

impl Transport for Shm {
    fn about(&self) -> &About {
        &self.about
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        self.connect_to(address)
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.forget(peer);
    }

    #[inline]
    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        let peer = self.table.get(peer)?;
        (self.touched, self.posted) = (true, true);
        peer.send(frame, &mut self.hub)
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        self.table.get(peer)?;
        Ok(self.hub.offers.open(peer, into))
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        self.hub.offers.close(peer, key)
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        let Peer { link, sender, .. } = self.table.get(peer)?;
        (self.touched, self.posted) = (true, true);
        sender.write(link, data, (into, at), &mut self.hub)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        wait::poll(self, events)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        wait::wait(self, timeout)
    }

    fn counters(&self) -> Counters {
        self.hub.counters
    }
}
