//! One transport made of several: each lane goes over the first of them that both ends have.
//!
//! A node has members, fastest first: shared memory, the ports of a device, sockets. Its address
//! joins theirs (`address.rs`). Who connects takes its own first member that the address names, and
//! the next one if no lane comes about that way. A member that breaks loses its lanes and is passed
//! over from then on; the others go on.
//!
//! Members with one carrier are ports of this host. Every one of them may reach every port of the
//! peer, and each end lists its ports in the order in which it wants them. A lane goes over the
//! first port of both; the other pairs are tried after it. Long values go over further pairs as
//! well (`stripes.rs`).
//!
//! Members number peers each in its own way, so this transport numbers them anew. The memory is the
//! first member's: others register it, copy from it or copy into it. A thread that sleeps has all
//! members park and waits for any of their descriptors ([`Sleeper`]).
//!
//! The limits that count for a lane are those of the van that carries it
//! ([`Transport::about_of`]): whether messages have checksums, say, on which both ends agree. Until
//! a lane is up, nobody knows which van that will be, and the limits are those that any of them
//! understands: messages have checksums, and nothing is lent.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport** (around the one that
//! carries the lane).

mod address;
mod member;
mod sleep;
mod stripes;

use std::io;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::metrics::Counters;
use crate::numbers::Numbers;
use crate::transport::{About, Event, Frame, Gather, Limits, MIXED, PeerId, Sleeper, Transport};
use crate::wait::{self, Pace, Progress, Wait};
use crate::wire::{Hello, Offer};

use address::{Way, digest};
use member::{Member, Place, Stripe};
use stripes::{ENDS_WITHIN, STRIPED_BYTES_MIN, Stripes};

/// A node's lanes over several vans.
pub struct Mixed {
    /// Fastest first.
    members: Vec<Member>,
    about: About,
    /// By peer number; `None` once the peer is forgotten.
    lanes: Vec<Option<Connection>>,
    numbers: Numbers,
    /// The last number that a lane got for the sake of its stripes.
    lane_number: u32,
    pace: Pace,
    /// Events that are not reported yet.
    ready: Vec<Event>,
    /// What a member has reported just now.
    polled: Vec<Event>,
    has_posted: bool,
    /// Peers to whose stripes something could not be written for want of room.
    waiting: Vec<PeerId>,
    /// Peers whose lanes are to end because a stripe has ended.
    ending: Vec<PeerId>,
    descriptors: Vec<i32>,
    /// What this transport does itself.
    own: Counters,
}

/// The lane to a peer.
struct Connection {
    member: usize,
    /// Its number there.
    peer: PeerId,
    stage: Stage,
    /// Where it goes from one of several ports to one of several.
    stripes: Option<Box<Stripes>>,
}

impl Connection {
    /// Notes that it is lost; returns the former stage. Nothing more comes of it.
    fn lose(&mut self) -> Stage {
        if let Some(stripes) = &mut self.stripes {
            stripes.drop_held();
        }
        std::mem::replace(&mut self.stage, Stage::Lost)
    }
}

enum Stage {
    /// No answer yet.
    Dialling(Dialled),
    Up,
    Lost,
}

/// What was dialled.
struct Dialled {
    /// The address, and the part of it that the member was given.
    address: String,
    part: String,
    /// The ways that are left if no answer comes.
    others: Vec<Way>,
}

impl Mixed {
    /// A transport of these, fastest first, that waits like this.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are none; as [`Sleeper::descriptors`].
    pub fn new(members: Vec<Box<dyn Sleeper>>, wait: Wait) -> Result<Mixed> {
        let members = members.into_iter().map(Member::new).collect::<Result<Vec<_>>>()?;
        let Some(first) = members.first() else {
            let reason = "it is made of other vans, and none of them works".to_owned();
            return Err(Error::Unavailable { van: MIXED, reason });
        };
        let first = first.van.about();
        let about = About {
            name: MIXED,
            address: own_address(&members),
            host: None,
            port: None,
            limits: members.iter().map(|member| member.van.about().limits).fold(
                Limits { checks_bytes: false, lent_bytes_min: usize::MAX, ..first.limits },
                |all, one| Limits {
                    frame_bytes: all.frame_bytes.min(one.frame_bytes),
                    queue_depth: all.queue_depth.min(one.queue_depth),
                    copy_bytes: all.copy_bytes.max(one.copy_bytes),
                    ..all
                },
            ),
            memory: first.memory.clone(),
            clock: first.clock.clone(),
        };
        let descriptors = descriptors(&members);
        Ok(Mixed {
            members,
            about,
            lanes: Vec::new(),
            numbers: Numbers::default(),
            lane_number: 0,
            pace: Pace::new(wait),
            ready: Vec::new(),
            polled: Vec::new(),
            has_posted: false,
            waiting: Vec::new(),
            ending: Vec::new(),
            descriptors,
            own: Counters::default(),
        })
    }

    /// Pretends to run on the host of this name.
    #[cfg(any(test, feature = "conformance"))]
    #[must_use]
    pub fn on_host(mut self, host: &str) -> Mixed {
        self.members.iter_mut().for_each(|member| {
            member.host = member.host.take().map(|_| digest(host));
        });
        self.about.address = own_address(&self.members);
        self
    }

    /// The van that carries the lane to a peer, and its number there.
    ///
    /// # Errors
    /// [`Error::NotConnected`].
    #[inline]
    fn lane(&mut self, peer: PeerId) -> Result<(&mut dyn Sleeper, PeerId)> {
        match self.lanes.get(peer.0 as usize) {
            Some(Some(lane)) if !matches!(lane.stage, Stage::Lost) => {
                Ok((&mut *self.members[lane.member].van, lane.peer))
            }
            _ => Err(Error::NotConnected { peer }),
        }
    }

    fn offer_whole(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        let (van, inner) = self.lane(peer)?;
        van.offer(inner, into).map_err(|error| error.of(peer))
    }

    /// Records that a peer has a lane over a member.
    fn enter_lane(&mut self, peer: PeerId, lane: Connection) {
        self.members[lane.member].enter(lane.peer, Place { peer, stripe: Stripe::Whole });
        let index = peer.0 as usize;
        if self.lanes.len() <= index {
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index] = Some(lane);
    }

    /// The ways to an address, fastest first.
    fn ways(&self, address: &str) -> Vec<Way> {
        let members = self.members.iter().enumerate().filter(|(_, member)| !member.is_broken);
        let own = members.map(|(at, member)| address::Own {
            member: at,
            carrier: member.van.carrier(),
            host: member.host.as_deref(),
        });
        address::ways(&own.collect::<Vec<_>>(), &address::named(address))
    }

    /// Starts a connection by the first of these ways on which one can start.
    ///
    /// # Errors
    /// [`Error::Connect`], the last way's.
    fn dial(&mut self, peer: PeerId, ways: Vec<Way>, address: &str) -> Result<()> {
        let mut ways = ways.into_iter();
        let mut failed = None;
        while let Some(Way { member, address: at }) = ways.next() {
            if self.members[member].is_broken {
                continue;
            }
            match self.members[member].van.connect(&at) {
                Ok(inner) => {
                    let (address, others) = (address.to_owned(), ways.collect());
                    let stage = Stage::Dialling(Dialled { address, part: at, others });
                    self.enter_lane(peer, Connection { member, peer: inner, stage, stripes: None });
                    return Ok(());
                }
                Err(error) => {
                    tell_of_next(&self.members[member].label(), address, &error, ways.len());
                    failed = Some(error);
                }
            }
        }
        let source = match failed {
            Some(Error::Connect { source, .. }) => source,
            Some(other) => io::Error::other(other.to_string()),
            None => {
                let names: Vec<_> = self.members.iter().map(Member::name).collect();
                let why = format!("it has none of this node's vans: {}", names.join(", "));
                io::Error::new(io::ErrorKind::AddrNotAvailable, why)
            }
        };
        Err(Error::Connect { address: address.to_owned(), source })
    }

    /// Takes in what a member reports.
    fn look_at(&mut self, at: usize) -> Result<()> {
        let mut polled = std::mem::take(&mut self.polled);
        let outcome = self.members[at].van.poll(&mut polled);
        for event in polled.drain(..) {
            self.ingest(at, event);
        }
        self.polled = polled;
        outcome.or_else(|error| self.break_down(at, error))
    }

    /// Gives an event of a member this transport's number.
    #[inline]
    fn ingest(&mut self, at: usize, event: Event) {
        match event {
            Event::Connected { peer, hello } => return self.connected(at, peer, hello),
            Event::Lost { peer, error } => return self.lost(at, peer, error),
            Event::Received { .. } | Event::Lent { .. } | Event::Written { .. } => {}
        }
        match self.members[at].place(event.peer()) {
            Some(Place { peer, stripe: Stripe::Whole }) => self.ready.push(event.of(peer)),
            Some(place) => self.take_in_stripe(place, event),
            None => {}
        }
    }

    #[cold]
    fn connected(&mut self, at: usize, inner: PeerId, hello: Hello) {
        let peer = match (self.members[at].place(inner), hello.beside()) {
            (Some(Place { peer, stripe: Stripe::Beside(stripe) }), _) => {
                return self.stripe_up(peer, stripe);
            }
            (Some(Place { peer, .. }), _) => peer,
            (None, Some(beside)) => return self.attach(at, inner, &hello, beside),
            (None, None) => {
                let peer = PeerId(self.numbers.free());
                let (stage, stripes) = (Stage::Up, None);
                self.enter_lane(peer, Connection { member: at, peer: inner, stage, stripes });
                peer
            }
        };
        let Some(Some(lane)) = self.lanes.get_mut(peer.0 as usize) else { return };
        let stage = std::mem::replace(&mut lane.stage, Stage::Up);
        let dialled = match &stage {
            Stage::Dialling(Dialled { part, address, .. }) => Some((&**part, &**address)),
            Stage::Up | Stage::Lost => None,
        };
        if let Some(stripes) = self.stripes(at, &hello, dialled)
            && let Some(Some(lane)) = self.lanes.get_mut(peer.0 as usize)
        {
            lane.stripes = Some(stripes);
            self.members[at].enter(inner, Place { peer, stripe: Stripe::First });
        }
        tracing::debug!(%peer, van = self.members[at].label(), node = hello.node.get(), "a lane");
        self.ready.push(Event::Connected { peer, hello });
    }

    #[cold]
    fn lost(&mut self, at: usize, inner: PeerId, error: Error) {
        let peer = match self.members[at].place(inner) {
            Some(Place { peer, stripe: Stripe::Beside(stripe) }) => {
                return self.stripe_lost(peer, stripe, &error);
            }
            Some(Place { peer, .. }) => peer,
            None => return,
        };
        let Some(Some(lane)) = self.lanes.get_mut(peer.0 as usize) else { return };
        let stage = lane.lose();
        let mut error = error.of(peer);
        match stage {
            Stage::Lost => return, // it has been reported
            Stage::Up => {}
            Stage::Dialling(Dialled { address: whole, others, .. }) => {
                if !others.is_empty() && !error.is_refusal() {
                    tell_of_next(&self.members[at].label(), &whole, &error, others.len());
                    self.members[at].forget(inner);
                    self.lanes[peer.0 as usize] = None;
                    match self.dial(peer, others, &whole) {
                        Ok(()) => return,
                        Err(last) => error = last,
                    }
                }
                if let Error::Connect { address, .. } | Error::PeerLost { address, .. } = &mut error
                {
                    *address = whole;
                }
            }
        }
        self.numbers.lose(peer.0);
        self.ready.push(Event::Lost { peer, error });
    }

    /// Goes on without a member that is broken: its lanes are lost, and new ones go over others.
    ///
    /// # Errors
    /// The member's, if it is the last.
    #[cold]
    fn break_down(&mut self, at: usize, error: Error) -> Result<()> {
        self.members[at].is_broken = true;
        let others: Vec<_> =
            self.members.iter().filter(|member| !member.is_broken).map(Member::label).collect();
        if others.is_empty() {
            return Err(error);
        }
        let van = self.members[at].label();
        let why = with_sources(&error);
        tracing::warn!(why, "the {van} van is broken; its lanes go over {}", others.join(" or "));
        for inner in (0..self.members[at].peers.len() as u32).map(PeerId) {
            let reason = format!("the {van} van is broken: {why}").into();
            let error = Error::PeerLost { peer: inner, address: format!("over {van}"), reason };
            self.lost(at, inner, error);
        }
        self.descriptors = descriptors(&self.members);
        Ok(())
    }
}

/// What wakes a thread that sleeps on all members that are not broken.
fn descriptors(members: &[Member]) -> Vec<i32> {
    let whole = members.iter().filter(|member| !member.is_broken);
    whole.flat_map(|member| &member.descriptors).copied().collect()
}

/// The addresses of all members as one.
fn own_address(members: &[Member]) -> String {
    let named = members.iter().map(|member| address::Named {
        carrier: member.van.carrier(),
        host: member.host.as_deref(),
        address: &member.van.about().address,
    });
    address::join(named)
}

/// The address of a node whose vans have these carriers, hosts and addresses: the one that it has
/// itself once it is a transport of them. A van that leaves its host has none.
pub fn address<'a>(vans: impl Iterator<Item = (&'a str, Option<&'a str>, &'a str)>) -> String {
    let vans: Vec<_> = vans.map(|(carrier, host, at)| (carrier, host.map(digest), at)).collect();
    let named = vans.iter().map(|(carrier, host, address)| address::Named {
        carrier,
        host: host.as_deref(),
        address,
    });
    address::join(named)
}

/// Says that no lane came about over a van, if another one is tried.
fn tell_of_next(van: &str, address: &str, error: &Error, left: usize) {
    if left > 0 {
        let why = with_sources(error);
        tracing::warn!(address, why, "no lane over {van}; the next van is tried");
    }
}

/// An error and all that it comes from, as one line.
fn with_sources(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl Progress for Mixed {
    #[inline]
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    #[inline]
    fn ready(&mut self) -> &mut Vec<Event> {
        &mut self.ready
    }

    #[inline]
    fn has_posted(&self) -> bool {
        self.has_posted
    }

    /// Looks at the members that have lanes, and at the others now and then.
    fn turn(&mut self) -> Result<bool> {
        self.has_posted = false;
        if !self.waiting.is_empty() {
            std::mem::take(&mut self.waiting).into_iter().for_each(|peer| self.post_waiting(peer));
        }
        if !self.ending.is_empty() {
            self.end_lanes();
        }
        for at in 0..self.members.len() {
            match self.members[at].is_due() {
                Ok(true) => self.look_at(at)?,
                Ok(false) => {}
                Err(error) => self.break_down(at, error)?,
            }
        }
        Ok(false) // only whole events count as progress
    }

    /// Sleeps until a member has something.
    fn sleep(&mut self, limit: Duration) -> Result<()> {
        let mut left = if self.ending.is_empty() { limit } else { limit.min(ENDS_WITHIN) };
        let mut down = 0;
        for member in &mut self.members {
            if left.is_zero() {
                break;
            }
            down += 1;
            if !member.is_broken {
                left = member.van.park(left)?;
            }
        }
        if !left.is_zero() {
            self.own.sleeps += 1;
            self.own.system_calls += 1;
            sleep::until_readable(&self.descriptors, left)
                .map_err(|source| Error::Os { call: "sleeping on several vans", source })?;
        }
        for member in self.members.iter_mut().take(down).filter(|member| !member.is_broken) {
            member.van.unpark()?;
            member.turns_left = 0; // it may have been called
        }
        Ok(())
    }
}

impl Transport for Mixed {
    fn about(&self) -> &About {
        &self.about
    }

    fn about_of(&self, peer: PeerId) -> &About {
        match self.lanes.get(peer.0 as usize) {
            Some(Some(Connection { stage: Stage::Dialling(..), .. })) | Some(None) | None => {
                &self.about
            }
            Some(Some(lane)) => self.members[lane.member].van.about(),
        }
    }

    fn connect(&mut self, address: &str) -> Result<PeerId> {
        let ways = self.ways(address);
        let peer = PeerId(self.numbers.unused());
        match self.dial(peer, ways, address) {
            Ok(()) => Ok(peer),
            Err(error) => {
                self.numbers.give_back(peer.0);
                Err(error)
            }
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        let Some(lane) = self.lanes.get_mut(peer.0 as usize).and_then(Option::take) else { return };
        self.members[lane.member].forget(lane.peer);
        if let Some(stripes) = &lane.stripes {
            self.forget_stripes(stripes);
        }
        self.ready.retain(|event| event.peer() != peer);
        match lane.stage {
            Stage::Lost => self.numbers.forget(peer.0),
            Stage::Dialling(..) | Stage::Up => self.numbers.give_back(peer.0),
        }
    }

    #[inline]
    fn post_send<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Option<Frame<'a>>> {
        self.has_posted = true;
        let (van, inner) = self.lane(peer)?;
        van.post_send(inner, frame).map_err(|error| error.of(peer))
    }

    fn offer(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        match into.len() {
            STRIPED_BYTES_MIN.. => self.offer_pieces(peer, into),
            _ => self.offer_whole(peer, into),
        }
    }

    fn withdraw(&mut self, peer: PeerId, key: u64) -> Result<Buffer> {
        match self.withdraw_pieces(peer, key) {
            Some(withdrawn) => withdrawn,
            None => self.withdraw_piece(peer, 0, key),
        }
    }

    fn post_write(&mut self, peer: PeerId, data: Gather, into: &Offer, at: u64) -> Result<()> {
        if let Some(posted) = self.write_pieces(peer, &data, into, at) {
            return posted;
        }
        self.has_posted = true;
        let (van, inner) = self.lane(peer)?;
        van.post_write(inner, data, into, at).map_err(|error| error.of(peer))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<()> {
        wait::poll(self, events)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        wait::wait(self, timeout)
    }

    /// The sums of all members.
    fn counters(&self) -> Counters {
        self.members.iter().map(|member| member.van.counters()).fold(self.own, |sum, one| sum + one)
    }
}
