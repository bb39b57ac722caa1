//! Long values over several ports at once: stripes.
//!
//! Between two nodes with several equal ports each, a lane has other lanes beside it, one over each
//! further pair of ports. An offer of [`STRIPED_BYTES_MIN`] bytes or more is cut into one piece for
//! each of these lanes, and each piece is an offer of the van that carries it. The first piece
//! stands for the whole: its key is the key that the layer above knows. A frame ahead of the offer
//! tells the peer of all pieces, and a frame on the lane of each other piece says that this one is
//! open: an offer holds from when something has arrived that was posted behind it. Who writes to
//! such an offer writes to every piece, be it no bytes, and to each once it is open. What follows a
//! write on the lane is held back until all pieces of it have come, so that order stays.
//!
//! ```text
//! caller                                    called
//! [ask]                            ->       numbers its lane        when it first offers so much
//! connects each further pair      <-        [number]                or when the called side does
//! [up k]                          <->       [up k]                  both ends of lane k are there
//! [cut] the pieces, then a frame with the offer     ->              over the lane itself
//! [open] its piece                 ->                               over each lane beside it
//! [gone] an offer                  ->                               that was withdrawn
//! ```
//!
//! A lane beside another one has no other frames, and writes only into pieces. A connection made
//! for it says so in its hello ([`Beside`]). One that cannot be made leaves its pair of ports out.
//! One that breaks ends the lane that it is beside, a little later: what the peer has sent there
//! before may still be on its way. The layer above then connects again, by the ports that are left.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::address::Way;
use super::member::{Place, Stripe};
use super::{Mixed, Stage};
use crate::error::{Error, Result};
use crate::memory::{Buffer, SLOT_ALIGN};
use crate::transport::{
    Event, FRAME_PREFIX, Frame, Gather, PeerId, WRITE_AT_END, WRITE_BYTES_MAX, check_write,
};
use crate::wire::{Beside, Hello, Offer};

/// Shortest offer that is cut, in bytes: pieces are long beside what is said of them.
pub(super) const STRIPED_BYTES_MIN: usize = 256 << 10;

/// Time from the end of a lane beside another one to the end of that one, if its van goes on.
pub(super) const ENDS_WITHIN: Duration = Duration::from_millis(100);

/// "CRVS": begins a frame of this file, as no message does.
const MAGIC: u32 = u32::from_le_bytes(*b"CRVS");

/// What the two ends of a lane tell each other of its stripes, in a frame of its own. After
/// [`Told::CUT`] the pieces follow.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Told {
    magic: U32,
    what: U32,
    /// The number of the lane, of the stripe that is up, or of the pieces; the key of the piece
    /// that is open, or of the offer that is withdrawn.
    number: U64,
}

impl Told {
    const ASK: u32 = 1;
    const NUMBER: u32 = 2;
    const UP: u32 = 3;
    const CUT: u32 = 4;
    const OPEN: u32 = 5;
    const GONE: u32 = 6;
}

/// One piece of an offer. The first is on the lane itself, stripe 0.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ToldPiece {
    stripe: U64,
    offer: Offer,
}

/// Pieces of a peer's offers that are not written, at most.
const TARGETS_MAX: usize = 1 << 16;

/// The most pieces of an offer.
const PIECES_MAX: usize = Beside::STRIPES + 1;

/// The stripes of one lane.
#[derive(Debug, Default)]
pub(super) struct Stripes {
    /// By which other lanes name this one, on the side that was called; 0 until it is needed.
    number: u32,
    /// Whether this side has set about connecting other lanes, or has asked for it.
    is_begun: bool,
    /// Where this side connects them, if it called.
    ways: Option<Vec<Way>>,
    /// The peer's node and incarnation.
    who: (u32, u64),
    beside: [Option<Lane>; Beside::STRIPES],
    /// When to end the lane because one of them has ended, and why.
    ends: Option<(Instant, String)>,
    /// Which of them are up at the other end.
    is_up_there: [bool; Beside::STRIPES],
    /// Pieces of this side's offers, of each offer in order.
    own: Vec<Piece>,
    /// Pieces of the peer's offers that this side has not written, of each offer in order.
    theirs: Vec<Target>,
    /// Pieces that are open and of which nothing else has been heard yet: stripe and key, the
    /// latest last.
    opened: VecDeque<(usize, u64)>,
    /// What has come behind a write that is not whole, that write first.
    held: VecDeque<Held>,
}

/// A lane beside another one.
#[derive(Debug)]
struct Lane {
    member: usize,
    /// The peer's number there.
    peer: PeerId,
    is_up: bool,
}

/// A piece of an offer of this side.
#[derive(Debug)]
struct Piece {
    /// Key of the offer, which is that of its first piece.
    of: u64,
    stripe: usize,
    key: u64,
    len: usize,
    landed: Option<Landed>,
}

/// A piece that was written.
#[derive(Debug)]
struct Landed {
    memory: Buffer,
    at: usize,
    len: usize,
}

/// A piece of an offer of the peer.
#[derive(Debug)]
struct Target {
    /// Key of the offer, which is that of its first piece.
    of: u64,
    stripe: usize,
    offer: Offer,
    is_open: bool,
    write: Write,
}

/// What has become of the part of a write that goes to one piece.
#[derive(Debug)]
enum Write {
    Unknown,
    /// It waits until the piece is open.
    Waits(Gather),
    Posted,
}

#[derive(Debug)]
enum Held {
    Event(Event),
    /// A write to the offer of this key.
    Write(u64),
}

impl Stripes {
    /// Those of a lane to whoever has said this. A side that called connects them in these ways.
    fn new(hello: &Hello, ways: Option<Vec<Way>>) -> Box<Stripes> {
        let who = (hello.node.get(), hello.incarnation.get());
        Box::new(Stripes { ways, who, ..Stripes::default() })
    }

    /// Drops what was held back.
    pub(super) fn drop_held(&mut self) {
        self.held.clear();
    }

    /// The lanes beside this one that are up at both ends, by stripe.
    fn usable(&self) -> impl Iterator<Item = (usize, &Lane)> {
        let lanes = self.beside.iter().zip(self.is_up_there).zip(1..);
        lanes.filter_map(|((lane, is_up_there), stripe)| {
            let lane = lane.as_ref().filter(|lane| lane.is_up && is_up_there)?;
            Some((stripe, lane))
        })
    }

    /// The piece of an own offer with this key among those of one lane.
    fn piece(&mut self, stripe: Stripe, key: u64) -> Option<&mut Piece> {
        let stripe = match stripe {
            Stripe::Whole | Stripe::First => 0,
            Stripe::Beside(stripe) => stripe,
        };
        self.own.iter_mut().find(|piece| piece.key == key && piece.stripe == stripe)
    }

    /// Enters the pieces of an offer of the peer.
    ///
    /// # Errors
    /// What is wrong with them.
    fn told_pieces(&mut self, count: u64, bytes: &[u8]) -> std::result::Result<(), String> {
        let wrong = || format!("it cut an offer into {count} pieces that are none");
        let pieces = <[ToldPiece]>::ref_from_bytes(bytes).map_err(|_| wrong())?;
        let follows = |pair: &[ToldPiece]| pair[0].stripe.get() < pair[1].stripe.get();
        // A write begins in the first piece.
        let is_long = |(place, piece): (usize, &ToldPiece)| {
            let least = if place == 0 { WRITE_AT_END } else { 0 };
            (least..=WRITE_BYTES_MAX as u64).contains(&piece.offer.len.get())
        };
        let is_up = |piece: &ToldPiece| match piece.stripe.get() {
            0 => true,
            stripe => self.beside.get(stripe as usize - 1).is_some_and(Option::is_some),
        };
        let is_right = pieces.len() as u64 == count
            && pieces.len() > 1
            && pieces[0].stripe.get() == 0
            && pieces.windows(2).all(follows)
            && pieces.iter().all(is_up)
            && pieces.iter().enumerate().all(is_long);
        if !is_right {
            return Err(wrong());
        }
        let of = pieces[0].offer.key.get();
        self.theirs.retain(|target| target.of != of);
        if self.theirs.len() >= TARGETS_MAX {
            return Err(format!("it has cut over {TARGETS_MAX} offers that nobody used"));
        }
        for &ToldPiece { stripe, offer } in pieces {
            let stripe = stripe.get() as usize;
            let opened = self.opened.iter().position(|it| *it == (stripe, offer.key.get()));
            let is_open = stripe == 0 || opened.and_then(|at| self.opened.remove(at)).is_some();
            self.theirs.push(Target { of, stripe, offer, is_open, write: Write::Unknown });
        }
        Ok(())
    }

    /// Notes that a piece of an offer of the peer is open.
    fn open(&mut self, stripe: usize, key: u64) {
        let mut theirs = self.theirs.iter_mut();
        let is_it = |target: &&mut Target| {
            !target.is_open && target.stripe == stripe && target.offer.key.get() == key
        };
        if let Some(target) = theirs.find(is_it) {
            target.is_open = true;
            return;
        }
        if self.opened.len() >= TARGETS_MAX {
            self.opened.pop_front(); // its offer was given up
        }
        self.opened.push_back((stripe, key));
    }

    /// Forgets an offer of the peer all of which is written.
    fn forget_written(&mut self, of: u64) {
        let mut pieces = self.theirs.iter().filter(|target| target.of == of);
        if pieces.all(|target| matches!(target.write, Write::Posted)) {
            self.theirs.retain(|target| target.of != of);
        }
    }

    /// Takes a write to the offer of this key that is whole.
    ///
    /// # Errors
    /// What is wrong with it.
    fn whole(&mut self, key: u64) -> std::result::Result<Option<Landed>, String> {
        let mut pieces = self.own.iter().filter(|piece| piece.of == key);
        if pieces.any(|piece| piece.landed.is_none()) {
            return Ok(None);
        }
        let mut whole: Option<Landed> = None;
        let mut is_full = true;
        for piece in self.own.extract_if(.., |piece| piece.of == key) {
            let Some(Landed { memory, at, len }) = piece.landed else { continue };
            let gap = || format!("it wrote {len} bytes at {at} of a piece, behind a gap");
            match &mut whole {
                None => whole = Some(Landed { memory, at, len }),
                Some(_) if at != 0 || len > 0 && !is_full => return Err(gap()),
                Some(all) => {
                    all.memory.join(memory).map_err(|_| gap())?;
                    all.len += len;
                }
            }
            is_full = is_full && at + len == piece.len;
        }
        Ok(whole)
    }
}

impl Mixed {
    /// The stripes of a new lane over a member to whoever has said this, if it may have any. A side
    /// that called over that member to one address has dialled all of these.
    pub(super) fn stripes(
        &self,
        member: usize,
        hello: &Hello,
        dialled: Option<(&str, &str)>,
    ) -> Option<Box<Stripes>> {
        let carrier = self.members[member].van.carrier();
        let is_port = |at: usize| self.members[at].van.carrier() == carrier;
        let Some((address, all)) = dialled else {
            let ports = (0..self.members.len()).filter(|&at| is_port(at)).count();
            return (ports > 1).then(|| Stripes::new(hello, None));
        };
        let ways = self.ways(all).into_iter().filter(|way| is_port(way.member));
        let (mut ports, mut addresses) = (vec![member], vec![address.to_owned()]);
        let (mut beside, mut is_one) = (Vec::new(), true);
        for way in ways {
            is_one = is_one && way.address == address;
            let is_new = !ports.contains(&way.member) && !addresses.contains(&way.address);
            if is_new && beside.len() < Beside::STRIPES {
                ports.push(way.member);
                addresses.push(way.address.clone());
                beside.push(way);
            }
        }
        (!is_one).then(|| Stripes::new(hello, Some(beside)))
    }

    fn stripes_of(&mut self, peer: PeerId) -> Option<&mut Stripes> {
        let lane = self.lanes.get_mut(peer.0 as usize)?.as_mut()?;
        lane.stripes.as_deref_mut().filter(|_| matches!(lane.stage, Stage::Up))
    }

    /// Tells a peer something of the stripes of its lane.
    fn tell(&mut self, peer: PeerId, what: u32, number: u64, pieces: &[ToldPiece]) -> Result<()> {
        self.tell_over(0, peer, what, number, pieces)
    }

    /// The same over the lane of one stripe.
    fn tell_over(
        &mut self,
        stripe: usize,
        peer: PeerId,
        what: u32,
        number: u64,
        pieces: &[ToldPiece],
    ) -> Result<()> {
        let told = Told { magic: MAGIC.into(), what: what.into(), number: number.into() };
        let bytes = size_of::<Told>() + size_of_val(pieces);
        let mut frame = self.about.memory.allocate(FRAME_PREFIX + bytes)?;
        let (head, tail) = frame[FRAME_PREFIX..].split_at_mut(size_of::<Told>());
        head.copy_from_slice(told.as_bytes());
        tail.copy_from_slice(pieces.as_bytes());
        self.has_posted = true;
        let (member, inner) = self.lane_of(peer, stripe).ok_or(Error::NotConnected { peer })?;
        self.members[member].van.post_send(inner, Frame::Owned(frame)).map(drop)
    }

    /// Sets about connecting the lanes beside the one to `peer`, once.
    #[cold]
    fn begin_stripes(&mut self, peer: PeerId) {
        let next = self.lane_number % Beside::LANES + 1;
        let Some(stripes) = self.stripes_of(peer) else { return };
        if std::mem::replace(&mut stripes.is_begun, true) {
            return;
        }
        let told = match &stripes.ways {
            Some(ways) if ways.is_empty() => return,
            Some(_) => self.tell(peer, Told::ASK, 0, &[]),
            None => {
                stripes.number = next;
                self.lane_number = next;
                self.tell(peer, Told::NUMBER, next.into(), &[])
            }
        };
        if let Err(error) = told {
            tracing::debug!(%peer, %error, "no stripes");
        }
    }

    /// Connects the lanes beside one, by the number that the called side gave it.
    #[cold]
    fn connect_stripes(&mut self, peer: PeerId, lane: u32) {
        let Some(stripes) = self.stripes_of(peer) else { return };
        stripes.is_begun = true;
        let ways = stripes.ways.as_mut().map(std::mem::take).unwrap_or_default();
        for (way, stripe) in ways.into_iter().zip(1..) {
            let Way { member, address } = way;
            let beside = Beside { lane, stripe };
            match self.members[member].van.connect_beside(&address, beside) {
                Ok(inner) => self.enter_stripe(peer, stripe, member, inner, false),
                Err(error) => tracing::debug!(%peer, stripe, %error, "a port is left out"),
            }
        }
    }

    fn enter_stripe(
        &mut self,
        peer: PeerId,
        stripe: usize,
        member: usize,
        inner: PeerId,
        is_up: bool,
    ) {
        let Some(stripes) = self.stripes_of(peer) else { return };
        let lane = Lane { member, peer: inner, is_up };
        stripes.beside[stripe - 1] = Some(lane);
        self.members[member].enter(inner, Place { peer, stripe: Stripe::Beside(stripe) });
    }

    /// Takes in a lane that somebody has connected beside another one.
    #[cold]
    pub(super) fn attach(&mut self, member: usize, inner: PeerId, hello: &Hello, beside: Beside) {
        let who = (hello.node.get(), hello.incarnation.get());
        let Beside { lane, stripe } = beside;
        let wants_it = |peer: &PeerId, all: &mut Mixed| {
            all.stripes_of(*peer).is_some_and(|stripes| {
                let is_free = stripes.beside.get(stripe - 1).is_some_and(Option::is_none);
                stripes.number == lane && stripes.who == who && is_free
            })
        };
        let peer = (0..self.lanes.len() as u32).map(PeerId).find(|peer| wants_it(peer, self));
        let Some(peer) = peer else {
            tracing::debug!(lane, stripe, "a lane beside none");
            return self.members[member].van.disconnect(inner);
        };
        self.enter_stripe(peer, stripe, member, inner, true);
        self.stripe_up(peer, stripe);
    }

    /// Enters that a lane beside another one is up at this end, and tells the peer.
    #[cold]
    pub(super) fn stripe_up(&mut self, peer: PeerId, stripe: usize) {
        let Some(stripes) = self.stripes_of(peer) else { return };
        let Some(lane) = &mut stripes.beside[stripe - 1] else { return };
        lane.is_up = true;
        let member = lane.member;
        tracing::debug!(%peer, stripe, van = self.members[member].label(), "a lane beside it");
        if let Err(error) = self.tell(peer, Told::UP, stripe as u64, &[]) {
            tracing::debug!(%peer, stripe, %error, "its lane is not used");
        }
    }

    /// Ends the lane that a lost one is beside, unless the lost one had not come about.
    #[cold]
    pub(super) fn stripe_lost(&mut self, peer: PeerId, stripe: usize, error: &Error) {
        let Some(stripes) = self.stripes_of(peer) else { return };
        let Some(lane) = &stripes.beside[stripe - 1] else { return };
        let (member, inner, is_up) = (lane.member, lane.peer, lane.is_up);
        let (van, why) = (self.members[member].label(), super::with_sources(error));
        tracing::debug!(%peer, stripe, why, "{van} is left out");
        let Some(stripes) = self.stripes_of(peer) else { return };
        if is_up {
            let reason = || format!("its stripes over {van} are lost: {why}");
            stripes.ends.get_or_insert_with(|| (Instant::now() + ENDS_WITHIN, reason()));
            stripes.is_up_there[stripe - 1] = false;
            return self.ending.push(peer);
        }
        stripes.beside[stripe - 1] = None;
        self.members[member].forget(inner);
    }

    /// Ends lanes whose stripes have ended a while ago.
    #[cold]
    pub(super) fn end_lanes(&mut self) {
        let now = Instant::now();
        for peer in std::mem::take(&mut self.ending) {
            let Some(stripes) = self.stripes_of(peer) else { continue }; // it has ended by itself
            match stripes.ends.take_if(|(at, _)| now >= *at) {
                Some((_, reason)) => self.break_off(peer, reason),
                None if stripes.ends.is_some() => self.ending.push(peer),
                None => {}
            }
        }
    }

    /// Ends a lane that its van would go on with. Its memory can be withdrawn until the layer above
    /// disconnects.
    #[cold]
    fn break_off(&mut self, peer: PeerId, reason: String) {
        let Some(Some(lane)) = self.lanes.get_mut(peer.0 as usize) else { return };
        if matches!(lane.stage, Stage::Lost) {
            return;
        }
        lane.lose();
        let address = format!("over {}", self.members[lane.member].label());
        self.numbers.lose(peer.0);
        let error = Error::PeerLost { peer, address, reason: reason.into() };
        self.ready.push(Event::Lost { peer, error });
    }

    /// Takes in an event of a lane that has stripes, or is one.
    #[inline(never)]
    pub(super) fn take_in_stripe(&mut self, place: Place, event: Event) {
        let Place { peer, stripe } = place;
        let Some(stripes) = self.stripes_of(peer) else { return };
        let outcome = match (event, stripe) {
            (Event::Received { frame, .. }, Stripe::First)
                if frame.starts_with(&MAGIC.to_le_bytes()) =>
            {
                self.hear(peer, &frame)
            }
            (Event::Written { key, memory, at, len, .. }, _)
                if let Some(piece) = stripes.piece(stripe, key) =>
            {
                piece.landed = Some(Landed { memory, at, len });
                if piece.stripe == 0 {
                    stripes.held.push_back(Held::Write(key));
                }
                self.release(peer)
            }
            (Event::Received { frame, .. }, Stripe::Beside(stripe)) => match opened(&frame) {
                Some(key) => {
                    stripes.open(stripe, key);
                    self.post_waiting(peer);
                    Ok(())
                }
                None => Err("it sent a frame that no piece needs".to_owned()),
            },
            (event, Stripe::Whole | Stripe::First) => {
                let event = event.of(peer);
                match stripes.held.is_empty() {
                    true => self.ready.push(event),
                    false => stripes.held.push_back(Held::Event(event)),
                }
                Ok(())
            }
            (_, Stripe::Beside(_)) => Err("it wrote what is no piece".to_owned()),
        };
        if let Err(why) = outcome {
            self.break_off(peer, why);
        }
    }

    /// Reports what was held back, up to the next write that is not whole.
    ///
    /// # Errors
    /// What is wrong with a write.
    fn release(&mut self, peer: PeerId) -> std::result::Result<(), String> {
        let Some(stripes) = self.lanes[peer.0 as usize].as_mut().and_then(|it| it.stripes.as_mut())
        else {
            return Ok(());
        };
        while let Some(first) = stripes.held.pop_front() {
            let event = match first {
                Held::Event(event) => event,
                Held::Write(key) => match stripes.whole(key)? {
                    Some(Landed { memory, at, len }) => {
                        Event::Written { peer, key, memory, at, len }
                    }
                    None => {
                        stripes.held.push_front(Held::Write(key));
                        return Ok(());
                    }
                },
            };
            self.ready.push(event);
        }
        Ok(())
    }

    /// Takes in what the peer tells of the stripes of its lane.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline(never)]
    fn hear(&mut self, peer: PeerId, frame: &[u8]) -> std::result::Result<(), String> {
        let (told, pieces) =
            Told::ref_from_prefix(frame).map_err(|_| "it told of stripes in too few bytes")?;
        let Some(stripes) = self.stripes_of(peer) else { return Ok(()) };
        let number = told.number.get();
        match told.what.get() {
            Told::ASK if stripes.ways.is_none() => self.begin_stripes(peer),
            Told::NUMBER
                if stripes.ways.is_some() && (1..=u64::from(Beside::LANES)).contains(&number) =>
            {
                self.connect_stripes(peer, number as u32);
            }
            Told::UP if (1..=Beside::STRIPES as u64).contains(&number) => {
                stripes.is_up_there[number as usize - 1] = true;
            }
            Told::CUT => stripes.told_pieces(number, pieces)?,
            Told::GONE => stripes.theirs.retain(|target| target.of != number),
            what => return Err(format!("it told of stripes what it must not: {what}, {number}")),
        }
        Ok(())
    }

    /// Lets `peer` write `into`, a piece over each lane that is there.
    pub(super) fn offer_pieces(&mut self, peer: PeerId, into: Buffer) -> Result<Offer> {
        let lane = self.lanes.get(peer.0 as usize).and_then(Option::as_ref);
        let Some((lane, stripes)) = lane.and_then(|it| Some((it, it.stripes.as_deref()?))) else {
            return self.offer_whole(peer, into);
        };
        let mut lanes = [(0, lane.member, lane.peer); PIECES_MAX];
        let mut count = 1;
        for (stripe, beside) in stripes.usable() {
            lanes[count] = (stripe, beside.member, beside.peer);
            count += 1;
        }
        if count == 1 {
            self.begin_stripes(peer);
            return self.offer_whole(peer, into);
        }
        let len = into.len();
        let size = len.div_ceil(count).next_multiple_of(SLOT_ALIGN);
        let mut told = [ToldPiece { stripe: 0.into(), offer: Offer::default() }; PIECES_MAX];
        let mut rest = into;
        for (place, &(stripe, member, inner)) in lanes[..count].iter().enumerate() {
            let piece = rest.split_to(if place + 1 < count { size } else { rest.len() });
            match self.members[member].van.offer(inner, piece) {
                Ok(offer) => told[place] = ToldPiece { stripe: (stripe as u64).into(), offer },
                Err(error) => {
                    let _ = self.take_back(peer, &told[..place]);
                    return Err(error.of(peer));
                }
            }
        }
        let told = &told[..count];
        let opened = told[1..].iter().try_for_each(|piece| {
            let stripe = piece.stripe.get() as usize;
            self.tell_over(stripe, peer, Told::OPEN, piece.offer.key.get(), &[])
        });
        if opened.and_then(|()| self.tell(peer, Told::CUT, count as u64, told)).is_err() {
            // There is no room for a frame now.
            let whole = self.take_back(peer, told)?;
            return self.offer_whole(peer, whole);
        }
        let offer = Offer { len: (len as u64).into(), ..told[0].offer };
        if let Some(stripes) = self.stripes_of(peer) {
            stripes.own.extend(told.iter().map(|piece| Piece {
                of: offer.key.get(),
                stripe: piece.stripe.get() as usize,
                key: piece.offer.key.get(),
                len: piece.offer.len.get() as usize,
                landed: None,
            }));
        }
        Ok(offer)
    }

    /// Withdraws pieces that the peer has not heard of.
    fn take_back(&mut self, peer: PeerId, pieces: &[ToldPiece]) -> Result<Buffer> {
        let mut whole: Option<Buffer> = None;
        for piece in pieces {
            let memory =
                self.withdraw_piece(peer, piece.stripe.get() as usize, piece.offer.key.get())?;
            whole = join(whole, memory);
        }
        let pieces = pieces.len() as u64;
        whole.ok_or(Error::OutsideOffer { key: 0, at: 0, len: 0, offered: pieces })
    }

    /// Withdraws an offer of one van.
    pub(super) fn withdraw_piece(
        &mut self,
        peer: PeerId,
        stripe: usize,
        key: u64,
    ) -> Result<Buffer> {
        let missing = Error::OutsideOffer { key, at: 0, len: 0, offered: 0 };
        match self.lane_of(peer, stripe) {
            Some((member, inner)) => {
                let withdrawn = self.members[member].van.withdraw(inner, key);
                withdrawn.map_err(|error| error.of(peer))
            }
            None => Err(missing),
        }
    }

    /// The member that carries a stripe of the lane to `peer`, and the peer's number there.
    fn lane_of(&self, peer: PeerId, stripe: usize) -> Option<(usize, PeerId)> {
        let lane = self.lanes.get(peer.0 as usize)?.as_ref()?;
        match stripe.checked_sub(1) {
            None => Some((lane.member, lane.peer)),
            Some(at) => {
                let beside = lane.stripes.as_ref()?.beside.get(at)?.as_ref()?;
                Some((beside.member, beside.peer))
            }
        }
    }

    /// Ends an offer that was cut and not used; `None` if there is no such one.
    pub(super) fn withdraw_pieces(&mut self, peer: PeerId, key: u64) -> Option<Result<Buffer>> {
        let stripes = self.lanes.get_mut(peer.0 as usize)?.as_mut()?.stripes.as_mut()?;
        let first = stripes.own.iter().find(|piece| piece.of == key)?;
        if first.landed.is_some() {
            return Some(Err(Error::OutsideOffer {
                key,
                at: 0,
                len: 0,
                offered: first.len as u64,
            }));
        }
        let mut whole = match self.withdraw_piece(peer, 0, key) {
            Ok(memory) => Some(memory),
            Err(error) => return Some(Err(error)),
        };
        let mut is_begun = None;
        while let Some(piece) = self.take_piece(peer, key) {
            let memory = match piece.landed {
                _ if piece.stripe == 0 => continue,
                Some(Landed { memory, .. }) => Ok(memory),
                None => self.withdraw_piece(peer, piece.stripe, piece.key),
            };
            match memory {
                Ok(memory) => whole = join(whole, memory),
                Err(error) => is_begun = Some(error),
            }
        }
        if let Some(error) = is_begun {
            // The write has begun, and cannot end any more.
            self.break_off(peer, "an offer was withdrawn while it was written".to_owned());
            return Some(Err(error));
        }
        let _ = self.tell(peer, Told::GONE, key, &[]); // a peer that does not hear it keeps a note
        whole.map(Ok)
    }

    fn take_piece(&mut self, peer: PeerId, key: u64) -> Option<Piece> {
        let stripes = self.lanes.get_mut(peer.0 as usize)?.as_mut()?.stripes.as_mut()?;
        let at = stripes.own.iter().position(|piece| piece.of == key)?;
        Some(stripes.own.remove(at))
    }

    /// Writes to every piece of an offer that the peer has cut; `None` if there is no such one.
    pub(super) fn write_pieces(
        &mut self,
        peer: PeerId,
        data: &Gather,
        into: &Offer,
        at: u64,
    ) -> Option<Result<()>> {
        let key = into.key.get();
        let theirs = &self.stripes_of(peer)?.theirs;
        let first = theirs.iter().position(|target| target.of == key)?;
        let count = theirs[first..].iter().take_while(|target| target.of == key).count();
        Some(self.post_pieces(peer, first..first + count, data, at))
    }

    /// Posts the pieces of one write, the first of them last. One that finds no room leaves those
    /// that are posted to the next try.
    fn post_pieces(
        &mut self,
        peer: PeerId,
        pieces: Range<usize>,
        data: &Gather,
        at: u64,
    ) -> Result<()> {
        let len_of = |target: &Target| target.offer.len.get();
        let all = self.targets(peer, &pieces)?;
        let mut end: u64 = all.iter().map(len_of).sum();
        let (of, len) = (all[0].of, data.len() as u64);
        check_write(of, at, len, end)?;
        if matches!(all[0].write, Write::Posted) {
            return Err(Error::OutsideOffer { key: of, at, len, offered: 0 }); // a second write
        }
        for place in (0..pieces.len()).rev() {
            let target = &mut self.targets(peer, &pieces)?[place];
            let (stripe, offer) = (target.stripe, target.offer);
            let begin = end - offer.len.get();
            let in_data = |place: u64| place.saturating_sub(at).min(data.len() as u64) as usize;
            let part = data.slice(in_data(begin)..in_data(end));
            end = begin;
            match target.write {
                Write::Unknown if target.is_open => {
                    let at = if stripe == 0 { at } else { 0 };
                    self.post_piece(peer, stripe, part, &offer, at)?;
                    self.targets(peer, &pieces)?[place].write = Write::Posted;
                }
                Write::Unknown => target.write = Write::Waits(part),
                Write::Waits(_) | Write::Posted => {} // by an earlier try
            }
        }
        if let Some(stripes) = self.stripes_of(peer) {
            stripes.forget_written(of);
        }
        Ok(())
    }

    fn post_piece(
        &mut self,
        peer: PeerId,
        stripe: usize,
        part: Gather,
        into: &Offer,
        at: u64,
    ) -> Result<()> {
        let (member, inner) = self.lane_of(peer, stripe).ok_or(Error::NotConnected { peer })?;
        self.has_posted = true;
        let posted = self.members[member].van.post_write(inner, part, into, at);
        posted.map_err(|error| error.of(peer))
    }

    /// Posts what waited for pieces that are open now. Where there is no room, the next turn tries
    /// again.
    pub(super) fn post_waiting(&mut self, peer: PeerId) {
        let waits = |target: &Target| target.is_open && matches!(target.write, Write::Waits(_));
        while let Some(stripes) = self.stripes_of(peer)
            && let Some(place) = stripes.theirs.iter().position(waits)
        {
            let target = &stripes.theirs[place];
            let Write::Waits(part) = &target.write else { return };
            let (of, stripe, offer, part) = (target.of, target.stripe, target.offer, part.clone());
            match self.post_piece(peer, stripe, part, &offer, 0) {
                Ok(()) => {}
                Err(Error::QueueFull { .. }) => return self.waiting.push(peer),
                Err(_) => return, // its loss is reported as an event
            }
            if let Some(stripes) = self.stripes_of(peer) {
                stripes.theirs[place].write = Write::Posted;
                stripes.forget_written(of);
            }
        }
    }

    fn targets(&mut self, peer: PeerId, pieces: &Range<usize>) -> Result<&mut [Target]> {
        match self.stripes_of(peer) {
            Some(stripes) => Ok(&mut stripes.theirs[pieces.clone()]),
            None => Err(Error::NotConnected { peer }),
        }
    }

    /// Forgets the lanes beside one.
    pub(super) fn forget_stripes(&mut self, stripes: &Stripes) {
        for lane in stripes.beside.iter().flatten() {
            self.members[lane.member].forget(lane.peer);
        }
    }
}

/// The key of the piece that a frame says is open.
fn opened(frame: &[u8]) -> Option<u64> {
    let told = Told::ref_from_bytes(frame).ok()?;
    let is_it = (told.magic.get(), told.what.get()) == (MAGIC, Told::OPEN);
    is_it.then(|| told.number.get())
}

/// Two pieces that followed each other, as one.
fn join(whole: Option<Buffer>, piece: Buffer) -> Option<Buffer> {
    let Some(mut whole) = whole else { return Some(piece) };
    let joined = whole.join(piece);
    debug_assert!(joined.is_ok(), "pieces of an offer follow each other");
    Some(whole)
}
