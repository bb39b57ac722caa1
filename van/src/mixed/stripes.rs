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
//! Here are the lanes and what comes over them. `told` has what the ends tell each other, `offers`
//! own offers in pieces, `writes` those to the peer's.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > **transport**.

mod offers;
mod told;
mod writes;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use self::told::{MAGIC, Told, opened};
use super::address::Way;
use super::member::{Place, Stripe};
use super::{Mixed, Stage};
use crate::error::Error;
use crate::memory::Buffer;
use crate::transport::{Event, Gather, PeerId};
use crate::wire::{Beside, Hello, Offer};

/// Shortest offer that is cut, in bytes: pieces are long beside what is said of them.
pub(super) const STRIPED_BYTES_MIN: usize = 256 << 10;

/// Time from the end of a lane beside another one to the end of that one, if its van goes on.
pub(super) const ENDS_WITHIN: Duration = Duration::from_millis(100);

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
    beside: [Option<Connection>; Beside::STRIPES],
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
struct Connection {
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
    fn usable(&self) -> impl Iterator<Item = (usize, &Connection)> {
        let lanes = self.beside.iter().zip(self.is_up_there).zip(1..);
        lanes.filter_map(|((lane, is_up_there), stripe)| {
            let lane = lane.as_ref().filter(|lane| lane.is_up && is_up_there)?;
            Some((stripe, lane))
        })
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
        let lane = Connection { member, peer: inner, is_up };
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

    /// Records that a lane beside another one is up at this end, and tells the peer.
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

    /// Forgets the lanes beside one.
    pub(super) fn forget_stripes(&mut self, stripes: &Stripes) {
        for lane in stripes.beside.iter().flatten() {
            self.members[lane.member].forget(lane.peer);
        }
    }
}
