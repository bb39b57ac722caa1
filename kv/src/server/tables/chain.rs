//! Copies of a shard along a chain of server threads.
//!
//! The head of a chain serves the shard's requests. It applies one, forwards it to its successor as
//! it was received, with the name of its worker, and answers when that has confirmed it
//! (`Record`); that one confirms when the next has, and the tail at once. A pull is forwarded
//! without values, and its answer waits likewise: no worker ever reads what the death of a thread
//! could undo, or what a thread serves that does not know that it counts as lost. All of a chain
//! apply the same pushes in the same order, so any rule that computes the same from the same
//! requests has equal copies. Commands are records like pushes.
//!
//! Each shard knows of each worker the last timestamp that it has applied, since a worker's
//! requests to a shard come in the order of their timestamps. A push that comes again is not
//! applied again, or refused again if it was; of commands the answer to a worker's last one is
//! kept, for the same reason. Joins, clocks and leaves of a table with a consistency model are
//! records, too (`models.rs`). What is not confirmed stays in the log (`log.rs`), and goes again to
//! whoever follows after a loss. Invariant: the log of each replica is a prefix of the log of its
//! predecessor, and every acknowledged record is in all of them.
//!
//! Under BSP all pushes of an iteration are applied at its end, one behind the other. They go on
//! together, as the rows that they have changed, where these take fewer bytes (`gathered.rs`). The
//! parts of a sum, as those of a gradient, go on as the sum (`sums.rs`).
//!
//! Who is in a chain follows from the [`Membership`], of which the scheduler tells servers, and
//! workers before they ask anything that depends on it. A thread that finds another one behind
//! itself asks it to follow (`Follow`). If that has no copy, it gets one: all rows, a piece at a
//! time beside other work (`Rows`), pushes meanwhile, and at the end what was applied of whom, and
//! how far the workers are (`Whole`). A shard that is no rows goes as an image of one moment, and
//! before the copy is whole the records since. This is chain replication of van Renesse and
//! Schneider (OSDI 2004), with reads at the head that the tail confirms.
//!
//! `serve.rs` has the head's side, `follow.rs` that of the others.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

mod follow;
mod gathered;
mod leaving;
mod log;
mod models;
mod serve;
mod sessions;
mod sums;
mod tables;
mod way;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::AddAssign;
use std::time::Duration;

use caravan_van::wire::Kind;
use caravan_van::{Connections, Draft, Endpoint, Message, PeerId, Pool, Shared, Values};
use serde::{Deserialize, Serialize};

pub(in crate::server) use self::follow::serve_forwarded;
use self::log::{Log, LogEntry, Place, Sum};
use self::models::{Awaiting, tells_clock};
use self::sessions::{Applied, ClientSessions, Sender};
use self::way::{Follow, Lane, Posted, Way};
use super::cut::put;
use super::image::Outgoing;
use super::versions::Versions;
use super::{AdmissionController, Held, Trouble};
use crate::consistency::Standing;
use crate::membership::{ChainMember, ChainOf, Membership};
use crate::op::Op;
use crate::refusal::Refused;
use crate::server::answer::{collect, gather};
use crate::server::shard::{Extract, Request, Shard};
use crate::table::TableSpec;

/// Time between two attempts to reach a thread.
pub(in crate::server) const RETRY: Duration = Duration::from_millis(20);

/// Bytes of records that are kept while the image of their shard goes to the next thread; requests
/// wait when there are as many.
const BEHIND_BYTES_MAX: usize = 1 << 20;

/// A shard's place in its chain.
pub(in crate::server) struct Chain {
    of: ChainOf,
    /// The change since which this thread is in the chain ([`Membership::since`]).
    since: u64,
    /// Whether nobody waits for copies.
    is_asynchronous: bool,
    /// Whether all rows are here.
    is_whole: bool,
    /// The lane on which they come, until they are.
    comes_from: Option<PeerId>,
    applied: ClientSessions,
    /// Where this thread stands, as of the last view that was looked at.
    seen: Standpoint,
    /// The thread behind this one.
    next: Option<ChainMember>,
    link: Link,
    /// The copy that it gets, if that is an image.
    copying: Option<Box<Copying>>,
    /// What the next thread has not confirmed.
    log: Log,
    /// What was applied and is to go on together; nothing else is applied before it has.
    gathered: Vec<LogEntry>,
    /// What was applied and is to go on as sums, in their order.
    sums: VecDeque<Sum>,
    /// Requests that wait for room or for the next thread.
    held: VecDeque<Held>,
    /// Requests that wait for the table's model, in its order, and that of their arrival.
    awaiting: Vec<Awaiting>,
}

/// Where a thread stands in a chain.
#[derive(Debug, Default, Clone, Copy)]
struct Standpoint {
    /// Number of the view.
    view: u64,
    /// Whether it is the head.
    is_first: bool,
    /// Whether it counts as lost, or has left.
    is_gone: bool,
    /// Whether the chain is not that of the placement.
    is_placed: bool,
    /// Whether it has more threads than it will have, since the shard moves.
    is_joint: bool,
    /// The thread before it.
    previous: Option<usize>,
    next: Option<ChainMember>,
    /// How many threads follow it.
    behind: usize,
}

/// How a copy of a shard is.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct CopyState {
    /// Whether requests to the shard are served by this thread.
    pub(super) serves: bool,
    /// Whether fewer threads are left than are to have the shard.
    pub(super) is_short: bool,
    /// Whether a copy is coming to this thread. The loss of another one may have taken it out of
    /// the chain meanwhile.
    pub(super) is_coming: bool,
    /// Whether the next thread has no whole copy of it.
    pub(super) lacks_copy: bool,
    /// Whether that can have none.
    pub(super) has_failed: bool,
}

/// How far the next thread follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// It was not asked.
    Unasked,
    /// It was asked, or has said that it does not follow this thread: there is news of the chain.
    Asked,
    /// It gets a copy: the rows from this key on are missing. Nothing waits for it.
    Copies { next: Option<u64>, unanswered: u32 },
    /// It has all, and every answer waits for it.
    Follows,
    /// It can have no copy, and has none.
    Failed,
}

/// The body of [`Op::Whole`]: all of a copy but the shard itself.
#[derive(Serialize, Deserialize)]
struct Rest {
    /// What was applied of whom.
    applied: Vec<(Sender, Applied)>,
    /// If the table has a consistency model.
    model: Option<Standing>,
}

/// A copy that the next thread gets as an image.
struct Copying {
    image: Outgoing,
    /// Bytes of records since its moment, which go behind it.
    behind: usize,
}

/// Counters of the copies of a server thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ChainCounters {
    /// Requests passed on.
    pub passed: u64,
    /// Of these, pushes that went together with others, as the rows that they have changed.
    pub gathered: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Of these, requests that were passed on before, to another thread or on a lane that broke.
    pub passed_again: u64,
    /// Pushes that came again and had been applied.
    pub repeated: u64,
    /// Requests that waited for the next thread.
    pub held: u64,
    /// Pieces of rows sent to new copies.
    pub pieces: u64,
    /// Copies that are whole.
    pub copied: u64,
    /// Shards whose chain the thread has left while it went on.
    pub left: u64,
    /// Messages of threads that count as lost, which were refused.
    pub refused: u64,
    /// Requests that waited for their table's consistency model.
    pub awaited: u64,
    /// Times that one of them was asked about again.
    pub looks: u64,
}

impl AddAssign for ChainCounters {
    fn add_assign(&mut self, other: ChainCounters) {
        self.passed += other.passed;
        self.gathered += other.gathered;
        self.bytes += other.bytes;
        self.passed_again += other.passed_again;
        self.repeated += other.repeated;
        self.held += other.held;
        self.pieces += other.pieces;
        self.copied += other.copied;
        self.left += other.left;
        self.refused += other.refused;
        self.awaited += other.awaited;
        self.looks += other.looks;
    }
}

/// What all chains of a thread share.
#[derive(Default)]
pub(super) struct Chains {
    pub(super) view: Membership,
    /// Rises with each change of the view, from 1.
    views: u64,
    /// The view at which this thread has left chains last.
    left_at: u64,
    /// Lanes to the threads that follow.
    lanes: BTreeMap<usize, Lane>,
    /// By lane, the node at the other end.
    nodes: HashMap<PeerId, Node>,
    /// Lanes on which an answer could not be sent.
    pub(super) broken: Vec<PeerId>,
    /// Whether there may be anything for [`Tables::advance_chains`] to do.
    pub(super) is_due: bool,
    /// Whether anything waited for credits when that looked last.
    awaits_room: bool,
    /// Number of requests that have gathered, of all shards.
    gathered: usize,
    /// No part of a sum has waited for longer than since then; `None` if none waits.
    pub(super) parts_since: Option<Duration>,
    count: u64,
    counters: ChainCounters,
}

/// What a request to a shard with copies needs beside the shard.
pub(super) struct Around<'a> {
    pub(super) lanes: &'a mut Connections,
    pub(super) chains: &'a mut Chains,
    /// This thread's place among all server threads.
    pub(super) index: usize,
}

/// What a lane has proved of the node at its other end.
struct Node {
    number: u32,
    /// Which start of it this is.
    incarnation: u64,
    /// Its role, by number.
    role: u8,
    /// The server thread that it is, once it has said so.
    thread: Option<usize>,
    /// Of how many changes the view told that came on the lane last.
    heard: u64,
}

/// The place of thread `index` in a chain, and by node and incarnation of a worker the timestamp of
/// the last record that was applied.
pub(super) fn log_of(
    chain: &Chain,
    chains: &Chains,
    index: usize,
) -> (Option<usize>, BTreeMap<(u32, u64), u64>) {
    let mut threads = chains.view.chain(chain.of);
    (threads.position(|thread| thread == index), chain.applied.timestamps().collect())
}

impl Standpoint {
    /// Where thread `index` stands in a chain.
    fn of(chains: &Chains, of: ChainOf, index: usize) -> Standpoint {
        let view = &chains.view;
        let mut threads = view.chain(of).peekable();
        let is_first = threads.peek() == Some(&index);
        let mut previous = None;
        while let Some(thread) = threads.next_if(|thread| *thread != index) {
            previous = Some(thread);
        }
        let is_in = threads.next().is_some();
        let member =
            |thread: &usize| ChainMember { thread: *thread, since: view.since(of, *thread) };
        let next = threads.peek().map(member);
        let is_placed = view.has_entry(of);
        let is_joint = is_placed && view.chain(of).count() > of.replicas as usize + 1;
        Standpoint {
            view: chains.views,
            is_first,
            is_gone: view.is_gone(index),
            is_placed,
            is_joint,
            previous: previous.filter(|_| is_in),
            next,
            behind: threads.count(),
        }
    }
}

impl Chain {
    pub(super) fn new(
        (of, since): (ChainOf, u64),
        spec: &TableSpec,
        is_whole: bool,
        pool: &Pool,
    ) -> Box<Chain> {
        Box::new(Chain {
            of,
            since,
            is_asynchronous: spec.asynchronous,
            is_whole,
            comes_from: None,
            applied: ClientSessions::new(pool),
            seen: Standpoint::default(),
            next: None,
            link: Link::Unasked,
            copying: None,
            log: Log::default(),
            gathered: Vec::new(),
            sums: VecDeque::new(),
            held: VecDeque::new(),
            awaiting: Vec::new(),
        })
    }

    /// The answer to a request that was applied here: pulled values, a clock, or a
    /// command's.
    fn answer_to(
        &self,
        shard: &mut dyn Shard,
        admission: Option<&AdmissionController>,
        memory: &Pool,
        (sender, timestamp): (Sender, u64),
        (op, request): (Op, &Request<'_>),
    ) -> Result<Option<(Vec<u32>, Shared)>, Refused> {
        let fresh;
        let answer = match op {
            Op::Pull | Op::PushPull => {
                let rows = collect(memory, shard, request)?;
                let versions = admission.and_then(|it| it.versions.as_deref());
                return match versions {
                    None => Ok(Some(rows)),
                    Some(versions) => {
                        let rows = versions.at(request.clock, request.keys, rows, memory);
                        rows.map(Some).map_err(Refused::from)
                    }
                };
            }
            Op::Command | Op::Join => self.applied.answer(sender, timestamp)?,
            Op::Fresh => {
                fresh = admission.map_or(0, |it| it.freshness(request.range)).to_le_bytes();
                &fresh
            }
            _ => &[],
        };
        if answer.is_empty() {
            return Ok(None);
        }
        let write = |into: &mut [u8]| into.copy_from_slice(answer);
        Ok(Some((Vec::new(), gather(memory, answer.len(), write)?)))
    }

    /// All of the copy but the shard itself, as JSON.
    fn rest(&self, admission: Option<&AdmissionController>) -> Result<Vec<u8>, Refused> {
        let rest = Rest {
            applied: self.applied.all(),
            model: admission.map(AdmissionController::standing),
        };
        serde_json::to_vec(&rest).map_err(Refused::from)
    }

    /// Where thread `index` stands in this chain now.
    #[inline]
    fn seen(&mut self, chains: &Chains, index: usize) -> Standpoint {
        if self.seen.view != chains.views {
            self.seen = Standpoint::of(chains, self.of, index);
        }
        self.seen
    }

    /// How many requests may be executed now; none if they have to wait: for others before them,
    /// for the next thread, or for room there. Where copies are asynchronous nothing waits until as
    /// much is under way as a lane has credits. The last message to each thread that is for others
    /// further on leaves room for those that end there, so that full lanes never wait for each
    /// other in a circle.
    fn room(&mut self, chains: &Chains, lanes: &Connections, index: usize) -> usize {
        if !self.held.is_empty() {
            return 0;
        }
        let seen = self.seen(chains, index);
        // There may be a next thread of which this chain has not heard.
        let Some(ChainMember { thread: next, .. }) = self.next else {
            return if seen.next.is_some() { 0 } else { usize::MAX };
        };
        if self.is_asynchronous && !seen.is_joint && !matches!(self.link, Link::Copies { .. }) {
            return usize::from(lanes.credits_max()).saturating_sub(self.log.len());
        }
        let is_sent = matches!(self.link, Link::Copies { next: None, .. });
        let is_behind = match &self.copying {
            Some(copying) => is_sent || copying.behind >= BEHIND_BYTES_MAX,
            None => !self.log.is_posted(),
        };
        if is_behind {
            return 0;
        }
        match self.link {
            Link::Unasked | Link::Asked => 0,
            Link::Failed => usize::MAX,
            Link::Copies { .. } | Link::Follows => {
                let peer = chains.lanes.get(&next).and_then(|lane| lane.peer);
                let credits = peer.map_or(0, |peer| lanes.credits(peer));
                // What has gathered will need room, too.
                credits.saturating_sub(seen.behind.max(1) - 1 + chains.gathered)
            }
        }
    }

    /// Whether no thread follows this one, as far as the chain has heard.
    pub(super) fn is_last(&self) -> bool {
        self.is_whole && self.next.is_none()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// How the copy of thread `index` is, and the one behind it.
    pub(super) fn state(&self, chains: &Chains, index: usize, place: Place) -> CopyState {
        let mut threads = chains.view.chain(self.of);
        let serves = self.is_whole && threads.next() == Some(index);
        CopyState {
            serves,
            is_short: chains.view.chain(self.of).count() <= self.of.replicas as usize,
            is_coming: !self.is_whole
                && self.comes_from.is_some()
                && chains.view.chain(self.of).any(|thread| thread == index),
            lacks_copy: self.is_whole && self.lacks_copy(chains, index, place),
            has_failed: self.link == Link::Failed,
        }
    }

    /// Whether there is a next thread, and it has no whole copy, or nobody knows whether it has.
    fn lacks_copy(&self, chains: &Chains, index: usize, place: Place) -> bool {
        let Standpoint { next: Some(next), is_joint, .. } = Standpoint::of(chains, self.of, index)
        else {
            return false;
        };
        // Who leaves has answered nothing that the others have not.
        if is_joint && self.is_asynchronous && self.log.has_unawaited() {
            return true;
        }
        if self.is_unused() && chains.view.was_in_chain(self.of, next.thread) {
            return false;
        }
        let is_under_way = chains.lanes.get(&next.thread).is_none_or(|lane| lane.completes(place));
        self.next != Some(next) || self.link != Link::Follows || is_under_way
    }

    /// Whether this thread may leave: all that it has ever answered is elsewhere, too. From now on
    /// it answers nothing before that.
    pub(super) fn may_part(&mut self, chains: &Chains, index: usize, place: Place) -> bool {
        self.is_asynchronous = false;
        let is_first = chains.view.chain(self.of).next() == Some(index);
        let is_behind = self.log.has_unawaited();
        let is_alone = self.next.is_none() || self.lacks_copy(chains, index, place);
        !self.is_whole || !(is_behind || is_first && is_alone)
    }

    /// Whether there was never a request for the shard.
    fn is_unused(&self) -> bool {
        self.is_new() && self.held.is_empty() && self.awaiting.is_empty()
    }

    /// Whether none was ever executed.
    fn is_new(&self) -> bool {
        self.applied.is_empty() && self.log.is_empty()
    }

    /// Forwards records that were applied here, or answers them if nobody has to confirm them.
    fn pass_on(&mut self, way: Option<Way<'_>>, broken: &mut Vec<PeerId>, entry: LogEntry) {
        let mut entry = entry;
        match (way, self.link) {
            (Some(mut way), Link::Follows) => {
                let is_next = self.log.is_posted();
                self.log.push(entry);
                if is_next {
                    way.replicate_next(&mut self.log, usize::MAX);
                }
            }
            (Some(mut way), Link::Copies { .. }) => {
                entry.answer_all(way.place, way.lanes, broken);
                match &mut self.copying {
                    _ if entry.does_nothing() => {}
                    Some(copying) => {
                        copying.behind += entry.bytes();
                        self.log.push(entry);
                    }
                    None if way.replicate(&entry, 0, usize::MAX) == entry.len() => {}
                    None => self.link = Link::Unasked, // it begins anew
                }
            }
            (Some(way), Link::Failed) => entry.answer_all(way.place, way.lanes, broken),
            (Some(_), Link::Unasked | Link::Asked) | (None, _) => self.log.push(entry),
        }
    }

    /// Answers everything, since nobody has to confirm it.
    fn answer_all(&mut self, place: Place, lanes: &mut Connections, broken: &mut Vec<PeerId>) {
        let parts = self.take_parts();
        let entries = self.log.take().chain(parts);
        entries.for_each(|mut entry| entry.answer_all(place, lanes, broken));
    }

    /// Records that the next thread is another one, or on another lane.
    fn turn_to(&mut self, next: Option<ChainMember>) {
        self.next = next;
        self.link = Link::Unasked;
        self.copying = None;
        self.log.rewind();
    }

    /// Records that the next thread refuses what it was told. If it does not follow this one, there
    /// is news of the chain, for which this one waits; else it can have no copy.
    fn enter_refusal(
        &mut self,
        message: &Message,
        (server, place): (usize, Place),
        lanes: &mut Connections,
        broken: &mut Vec<PeerId>,
    ) {
        if matches!(Op::from_raw(message.op()), Some(Op::Follow | Op::Moved)) {
            self.link = Link::Asked;
            self.copying = None;
            return self.log.rewind();
        }
        let reason = String::from_utf8_lossy(message.values());
        let first = place.1.begin();
        tracing::warn!(server, %reason, first, "a copy cannot be kept there");
        self.fail(place, lanes, broken);
    }

    /// Records that the next thread can have no copy.
    fn fail(&mut self, place: Place, lanes: &mut Connections, broken: &mut Vec<PeerId>) {
        self.link = Link::Failed;
        self.copying = None;
        self.answer_all(place, lanes, broken);
    }

    /// Begins to copy the shard, whose first key this is, to the next thread.
    ///
    /// # Errors
    /// If there is no memory for an image.
    fn begin_copy(&mut self, shard: &dyn Shard, begin: u64, pool: &Pool) -> Result<(), Refused> {
        self.copying = match shard.image_bytes() {
            None => None,
            Some(_) => {
                let image = Outgoing::of(shard, BEHIND_BYTES_MAX, pool)?;
                Some(Box::new(Copying { image, behind: 0 }))
            }
        };
        self.link = Link::Copies { next: Some(begin), unanswered: 0 };
        Ok(())
    }

    /// Does the next thing that its next thread needs; returns whether there was anything.
    fn advance(
        &mut self,
        way: &mut Way<'_>,
        shard: &mut dyn Shard,
        admission: Option<&mut AdmissionController>,
        text: &str,
        piece_bytes: usize,
        counters: &mut ChainCounters,
    ) -> Result<bool, Refused> {
        match self.link {
            Link::Asked | Link::Failed => Ok(false),
            Link::Unasked => {
                let asked = way.ask_to_follow(text, self.of, self.is_new());
                if asked? {
                    self.link = Link::Asked;
                }
                Ok(false)
            }
            Link::Copies { unanswered, .. } if unanswered >= way.pieces_max() => Ok(false),
            Link::Copies { next: Some(from), unanswered } => {
                let mut piece = Extract::default();
                let next = match &self.copying {
                    None => shard.give(from, piece_bytes, &mut piece)?,
                    Some(copying) => {
                        let (part, is_last) = copying.image.piece(piece_bytes);
                        piece.values = part;
                        (!is_last).then_some(from)
                    }
                };
                let draft = Draft {
                    keys: &piece.keys,
                    lengths: &piece.lengths,
                    values: Values::Copied(&piece.values),
                    ..Draft::new(Kind::Request)
                };
                let is_posted = way.post(draft, Op::Rows);
                if is_posted {
                    if let Some(copying) = &mut self.copying {
                        copying.image.advance(&piece.values);
                    }
                    counters.pieces += 1;
                    self.link = Link::Copies { next, unanswered: unanswered + 1 };
                }
                Ok(is_posted)
            }
            Link::Copies { next: None, unanswered } => {
                if let Some((entry, _)) = self.log.next() {
                    let is_posted = way.replicate(entry, 0, 1) > 0;
                    if is_posted {
                        self.log.drop_first();
                    }
                    return Ok(is_posted);
                }
                let mut admission = admission;
                let versions = admission.as_mut().and_then(|it| it.versions.as_mut());
                if let Some(is_posted) = way.give_versions(versions, piece_bytes) {
                    let unanswered = unanswered + u32::from(is_posted);
                    self.link = Link::Copies { next: None, unanswered };
                    return Ok(is_posted);
                }
                let rest = self.rest(admission.as_deref())?;
                let values = Values::Copied(&rest);
                if way.post(Draft { values, ..Draft::new(Kind::Request) }, Op::Whole) {
                    counters.copied += 1;
                    self.copying = None;
                    self.link = Link::Follows;
                }
                Ok(false)
            }
            Link::Follows => {
                let was_posted = self.log.next().is_some_and(|(entry, _)| entry.was_posted());
                let posted = way.replicate_next(&mut self.log, 1);
                counters.passed_again += if was_posted { posted as u64 } else { 0 };
                Ok(posted > 0)
            }
        }
    }

    /// Forgets what was held for a peer, and its answers.
    fn forget(&mut self, peer: PeerId) {
        self.held.retain(|held| held.peer != peer);
        self.awaiting.retain(|awaiting| awaiting.held.peer != peer);
        self.log.forget(peer);
        self.gathered.iter_mut().for_each(|entry| entry.waiting.forget(peer));
        self.parts_mut().for_each(|entry| entry.waiting.forget(peer));
    }
}

impl Chains {
    /// The lane to the next thread of a chain, if there is one; so many are behind this one.
    fn way<'a>(
        &'a mut self,
        lanes: &'a mut Connections,
        next: Option<ChainMember>,
        index: usize,
        place: Place,
        behind: usize,
    ) -> Option<Way<'a>> {
        let lane = self.lanes.entry(next?.thread).or_default();
        let reserve = behind.saturating_sub(1);
        let (count, view) = (&mut self.count, &self.view);
        Some(Way { lanes, lane, count, index, place, reserve, view })
    }

    /// Connects to a thread, or returns that a lane is open.
    fn reach(&mut self, endpoint: &mut Endpoint, server: usize) -> bool {
        let now = endpoint.lanes.now();
        let Chains { lanes, view, is_due, .. } = self;
        let lane = lanes.entry(server).or_default();
        if lane.peer.is_some() {
            return true;
        }
        if std::mem::take(&mut lane.was_lost) {
            lane.retry_at = Some(now + RETRY);
        }
        *is_due = true;
        if lane.retry_at.is_some_and(|at| now < at) {
            return false;
        }
        let address = view.address(server).unwrap_or_default();
        match endpoint.connect(address) {
            Ok(peer) => lane.peer = Some(peer),
            Err(error) => {
                tracing::debug!(server, %error, "no lane to a thread that has to follow");
                lane.was_lost = true;
            }
        }
        lane.peer.is_some()
    }
}

impl Chains {
    /// Checks that a thread is the one before thread `index` in the chain of a shard that is not
    /// that of its placement.
    ///
    /// # Errors
    /// If it is not: it has not heard of a change.
    fn check_before(&self, of: ChainOf, from: usize, index: usize) -> Result<(), Trouble> {
        let before = self.view.chain(of).take_while(|thread| *thread != index);
        match self.view.has_entry(of) && before.last() != Some(from) {
            true => Err(Trouble::Elsewhere),
            false => Ok(()),
        }
    }

    /// Records that this thread knows more of the others.
    fn note_view(&mut self) {
        self.views += 1;
        self.is_due = true;
    }

    /// Records that others count this thread as lost.
    fn count_as_lost(&mut self, index: usize) {
        tracing::warn!("this server thread counts as lost: it serves no longer");
        self.view.lost.insert(index);
        self.note_view();
    }

    /// Forwards records that were applied here, and answers those for which nobody has to wait.
    fn pass_on(
        &mut self,
        lanes: &mut Connections,
        chain: &mut Chain,
        index: usize,
        place: Place,
        entry: LogEntry,
    ) {
        let mut broken = std::mem::take(&mut self.broken);
        let mut entry = entry;
        let is_last = chain.next.is_none();
        if is_last {
            entry.answer_all(place, lanes, &mut broken);
        } else {
            if chain.is_asynchronous && !chain.seen(self, index).is_joint {
                entry.answer_all(place, lanes, &mut broken);
            }
            if !(entry.does_nothing() && entry.waiting.is_nobody()) {
                self.counters.passed += entry.len() as u64;
                self.counters.bytes += entry.payload() as u64;
                let behind = chain.seen(self, index).behind;
                let way = self.way(lanes, chain.next, index, place, behind);
                chain.pass_on(way, &mut broken, entry);
            }
        }
        self.is_due |= !broken.is_empty() || !chain.log.is_posted();
        self.broken = broken;
    }
}

/// Whether a thread is the next one of a chain.
fn is_next(next: Option<ChainMember>, thread: usize) -> bool {
    next.is_some_and(|next| next.thread == thread)
}

/// Applies a record to a shard and its model, if it has one here; returns the answer of a command
/// or a join.
///
/// # Errors
/// The reason why they are invalid.
fn apply(
    shard: &mut dyn Shard,
    admission: Option<&mut AdmissionController>,
    op: Op,
    request: &Request<'_>,
    memory: &Pool,
) -> Result<Option<Vec<u8>>, Refused> {
    let &Request { sender, clock, values, .. } = request;
    match op {
        Op::Command => shard.command(sender, values).map(Some),
        Op::Checkpoint => put(shard, values, memory).map(|()| None),
        Op::Pull => Ok(None),
        _ if tells_clock(op) => {
            let Some(admission) = admission else { return Ok(None) };
            let clock = admission.enter(op, sender, clock, values)?;
            Ok(clock.map(|clock| clock.to_le_bytes().to_vec()))
        }
        _ => {
            let versions = admission.and_then(|it| it.versions.as_deref_mut());
            keep_version(versions, shard, request, memory)?;
            shard.push(request, memory).map(|()| None)
        }
    }
}

/// Keeps the rows of a push as they are before it, if readers may ask for them again.
///
/// # Errors
/// If they cannot be read; if there is no memory for them.
fn keep_version(
    versions: Option<&mut Versions>,
    shard: &mut dyn Shard,
    push: &Request<'_>,
    memory: &Pool,
) -> Result<(), Refused> {
    let is_write = push.pushes && push.clock > 0 && !push.keys.is_empty();
    let Some(versions) = versions.filter(|_| is_write) else { return Ok(()) };
    let read = Request { pushes: false, pulls: true, rows: None, values: &[], ..*push };
    let (lengths, values) = collect(memory, shard, &Request { lengths: &[], ..read })?;
    let entered = versions.enter(push.clock, push.keys, &lengths, &values);
    entered.map_err(Refused::from)
}
