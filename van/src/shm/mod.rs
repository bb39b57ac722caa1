//! The van between processes of one host: rings in memory that both see, and large data copied
//! once, from where it lies.
//!
//! Each end of a lane has a segment that it alone writes and the other end reads (`segment.rs`):
//! its ring (`ring.rs`), how far it has read the other's, and whether it sleeps. To post is to
//! write a record and its stamp; to poll is to read the line where the next stamp will stand, one
//! for each peer. Short frames stand in the ring. Longer ones and writes lie in the sender's pool,
//! whose arenas its peers can read: the ring says where, and the receiver copies them, into the
//! offered memory for a write. Values that are lent are not copied at all (`loan.rs`): the receiver
//! reads them there, and says when it is done. Values that do not fit into the ring are lent where
//! they may stay (`van/docs/decisions/0005-lending.md`).
//!
//! # Lines between two cores
//! A line that one core writes and another looks at travels twice: the writer first takes it from
//! the reader's cache, then the reader fetches it back, and each takes as long as all that is
//! computed for a short message at one end. So the first journey begins early: when a frame has
//! come, the lines of the next record to its sender are taken, as an answer or the next request
//! will follow, while that is being made. The reader looks there all the time and may fetch them
//! back too soon, but then it has asked for them already when they are written. For the same reason
//! all that is written to a record's first line is written at once, after its other lines.
//!
//! # Sleeping
//! Who sleeps says so in its segment, looks once more, and waits for its sockets; who has posted
//! looks there, once for all that was posted since the last poll, and sends a packet if need be.
//! Between the store and the load of each side stands a fence, so that one of them sees the other's
//! (Dekker's argument): `tests/shm.rs` has both sides race for it. The same sockets bring
//! connections and say when a peer is gone; while there is no sleep they are looked at now and
//! then.
//!
//! # Trust
//! Peers are processes of the same user that know the cluster's secret (`greeting.rs`). A peer that
//! misbehaves can make this node read other bytes than it meant, never outside of what it shared,
//! and never wait: see `segment.rs` and `receive.rs`.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

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
use crate::transport::progress::{self, Pace, Progress};
use crate::transport::{About, Clock, Event, Frame, Gather, Limits, PeerId, Transport};
use crate::wire::Offer;

use connect::{Peer, Sockets, Table};
use greeting::{Greetings, LISTENER};
use loan::Limbo;
use receive::Hub;
use ring::ASLEEP;
use socket::Epoll;

/// The van's name.
const NAME: &str = "shm";

/// Sockets are looked at after this many polls, of which an empty one counts for [`EMPTY_POLL`].
const POLLS_PER_LOOK: u32 = 4096;

/// See [`POLLS_PER_LOOK`].
const EMPTY_POLL: u32 = 16;

/// In the word of who sleeps: a record shall wake it, ...
const FOR_RECORDS: u64 = 1;

/// ... and so shall room in its own ring. What is above is the number of the sleep.
const FOR_ROOM: u64 = 2;

/// One more sleep.
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
    /// Whether some peer may have to be woken, ...
    touched: bool,
    /// ... as something was posted since the last turn.
    posted: bool,
    /// How often it slept, times [`SLEEP`].
    sleeps: u64,
    /// What is lent on lanes that have ended.
    limbo: Vec<Limbo>,
}

impl Shm {
    /// A transport that other processes of this host can connect to; `config.listen` does not
    /// matter.
    ///
    /// # Errors
    /// [`Error::Setting`] as [`VanConfig::check`] says; [`Error::Unavailable`] when this machine
    /// does not let processes share memory like this.
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
            sockets: Sockets { listener, epoll, ready: Vec::new(), polls_left: 0 },
            touched: false,
            posted: false,
            sleeps: 0,
            limbo: Vec::new(),
        })
    }

    /// Wakes who sleeps and has something to do since the last turn.
    #[inline]
    fn wake_sleepers(&mut self) {
        (self.touched, self.posted) = (false, false);
        fence(Ordering::SeqCst); // what was stored for a peer comes before the look at whether it sleeps
        for peer in &mut self.table.peers {
            let posted = std::mem::take(&mut peer.sender.posted);
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

    /// Looks at sockets, as it is time to; whether there was anything.
    #[cold]
    fn look_now(&mut self) -> Result<bool> {
        self.sockets.polls_left = POLLS_PER_LOOK;
        self.look_at_sockets(Duration::ZERO)?;
        Ok(!self.hub.ready.is_empty())
    }

    /// Looks after a lane that has something else to do; whether anything moved.
    #[inline(never)]
    fn attend(&mut self, place: usize) -> bool {
        let peer = &mut self.table.peers[place];
        let outcome = peer.turn(&mut self.hub);
        self.touched |= peer.sender.posted | peer.receiver.consumed;
        outcome.unwrap_or_else(|reason| {
            self.lose(place, reason);
            true
        })
    }
}

/// What processes have in common that can reach each other here: the system since it was started,
/// the namespaces of abstract sockets and of users, and the user.
fn host() -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let net = std::fs::read_link("/proc/self/ns/net")?;
    let users = std::fs::read_link("/proc/self/ns/user")?;
    Ok(format!("{} {} {} user:{}", boot.trim(), net.display(), users.display(), socket::user()))
}

/// Whether memory can be shared here as this van does it.
fn probe() -> io::Result<()> {
    let own = segment::Own::new(4096)?;
    segment::Foreign::map(own.file(), 4096).map(drop).map_err(io::Error::other)
}

/// Why the van does not work here, and what to do.
fn reason(what: &str, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "no file descriptors are left; raise `ulimit -n`",
        Some(libc::ENOMEM | libc::ENOSPC) => "memory is short; raise the container's limit",
        Some(libc::EPERM | libc::EACCES) => {
            "a sandbox forbids it; allow memfd_create and Unix sockets"
        }
        Some(libc::EINVAL) => "it takes Linux 5.1 (F_SEAL_FUTURE_WRITE)",
        Some(libc::ENOSYS) => "this kernel has no memfd_create, or a container hides it",
        _ => "take another van",
    };
    format!("{what}: {error} ({remedy})")
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

    /// Looks at every lane once, and at sockets now and then; whether anything moved.
    #[inline(always)]
    fn turn(&mut self) -> Result<bool> {
        if self.touched {
            self.wake_sleepers();
        }
        let mut moved = self.sockets.polls_left == 0 && self.look_now()?;
        // From the last one on: who takes the place of one that is lost has had its turn.
        for place in (0..self.table.peers.len()).rev() {
            let Peer { link, sender, receiver, .. } = &mut self.table.peers[place];
            let (has_received, is_more) = receiver.receive_short(link, &mut self.hub);
            if has_received {
                sender.prepare(link); // an answer follows, or the next request
            }
            (moved, self.touched) = (moved | has_received, self.touched | has_received);
            if is_more || receiver.has_work() || sender.has_work() {
                moved |= self.attend(place);
            }
        }
        let cost = if moved { 1 } else { EMPTY_POLL };
        self.sockets.polls_left = self.sockets.polls_left.saturating_sub(cost);
        Ok(moved)
    }

    /// Sleeps until a peer wakes this node, or anything happens at a socket.
    #[cold]
    fn sleep(&mut self, timeout: Duration) -> Result<()> {
        self.sleeps += SLEEP;
        for peer in &self.table.peers {
            let room = if peer.sender.waits() { FOR_ROOM } else { 0 };
            let word = self.sleeps | FOR_RECORDS | room;
            peer.link.own.store(ASLEEP, word, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst); // what was stored comes before the look at what there is
        if !self.turn()? && self.hub.ready.is_empty() {
            self.hub.counters.sleeps += 1;
            let timeout = self.patience(timeout);
            self.look_at_sockets(timeout)?;
            self.sockets.polls_left = POLLS_PER_LOOK;
        }
        for peer in &self.table.peers {
            peer.link.own.store(ASLEEP, 0, Ordering::Relaxed);
        }
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
        progress::poll(self, events)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        progress::wait(self, timeout)
    }

    fn counters(&self) -> Counters {
        self.hub.counters
    }
}
