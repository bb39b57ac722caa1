//! Requests in parts: one for each shard that has keys of it, and for each server or shard of a
//! request about tables.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::ops::Range;

use caravan_van::wire::{Coding, Kind};
use caravan_van::{Buffer, Draft, PeerId, Pool, Values};

use super::{Payload, Request, is_lent};
use crate::error::{Error, Result};
use crate::filter::{AtWorker, Outstanding, Signed};
use crate::map::Placed;
use crate::op::{DISCLOSES, FINISHES, Op};
use crate::runs::Runs;
use crate::slicer;
use crate::table::{SHARED_BYTES_MIN, TableSpec};
use crate::tracker::{Part, Timestamp};
use crate::worker::kept::Kept;
use crate::worker::lanes::Server;
use crate::worker::recovery::{self, Recovery};
use crate::worker::table::{FOLLOWS_WORKER, TableState, unknown};
use crate::worker::waiting::{Awaited, Silence};
use crate::worker::{Table, Worker};

/// A request that is being sent part by part.
struct Sending<'a> {
    timestamp: Timestamp,
    request: &'a Request<'a>,
    /// The keys with their signature, if they are to be cached.
    list: Option<&'a Signed>,
    /// Bytes of the values of the parts that have been sent.
    value_bytes: usize,
    /// The destination of all values that remain.
    into: Option<Buffer>,
}

impl Worker {
    /// Sends a request to all servers that hold its keys, part by part.
    #[inline(never)]
    pub(in crate::worker) fn request_parts(&mut self, request: Request<'_>) -> Result<Timestamp> {
        let mut request = request;
        let (place, list) = self.check(&request)?;
        self.check_iteration(&request)?;
        let Request { op, table, keys, .. } = request;
        let into = match (op, request.into.take()) {
            (Op::Push, _) => None,
            (_, Some(into)) => Some(into),
            (_, None) if place == 0 || self.is_lent_whole(keys, table, place) => None,
            (_, None) => Some(self.endpoint.lanes.memory().allocate(place)?),
        };
        let timestamp = self.tracker.begin(op)?;
        let list = list.as_ref();
        let mut sending = Sending { timestamp, request: &request, list, value_bytes: 0, into };
        let mut sent = Ok(());
        let (mut from, mut next) = (0, 0);
        while let Some((shard, slice)) =
            slicer::next(keys, from, &self.tables[table.0 as usize].map)
        {
            from = slice.end;
            if request.is_last {
                sent = self.send_clocks(timestamp, table, next..shard);
                next = shard + 1;
            }
            sent = sent.and_then(|()| self.send_part(&mut sending, shard, slice));
            if sent.is_err() {
                break;
            }
        }
        if request.is_last && sent.is_ok() {
            let rest = next..self.tables[table.0 as usize].map.shards().len();
            sent = self.send_clocks(timestamp, table, rest);
        }
        let into = sending.into;
        self.seal(timestamp, sent.map(|()| into.filter(|_| keys.is_empty())));
        Ok(timestamp)
    }

    /// Sends a request for the keys of `runs` to all servers that hold them.
    pub(in crate::worker) fn request_runs(
        &mut self,
        runs: &Runs,
        request: Request<'_>,
    ) -> Result<Timestamp> {
        let TableState { spec, row_bytes, .. } = self.known(request.table)?;
        if *row_bytes == 0 {
            let what = "a request for runs of keys";
            let instead = "pull and push_varying";
            return Err(Error::VaryingTable { what, table: spec.name.clone(), instead });
        }
        let most = self.memory().bytes_max() / row_bytes;
        let mut keys = std::mem::take(&mut self.implied);
        let written = runs.write(&mut keys, most);
        let request = Request { keys: &keys, is_implied: true, ..request };
        let made = written.and_then(|()| self.request_parts(request));
        self.implied = keys;
        made
    }

    /// Whether one shard has all keys and its answer is [lent](is_lent).
    fn is_lent_whole(&self, keys: &[u64], table: Table, place: usize) -> bool {
        let map = &self.tables[table.0 as usize].map;
        let first = slicer::next(keys, 0, map).filter(|(_, slice)| slice.len() == keys.len());
        first.is_some_and(|(shard, _)| {
            let peer = self.servers[map.shards()[shard].server].peer;
            is_lent(&self.endpoint.lanes, peer, keys.len(), place)
        })
    }

    /// Checks a request as a whole. Returns the bytes of its answer, 0 if unknown, and the keys
    /// with their signature if they are to be cached.
    #[inline]
    fn check(&mut self, request: &Request<'_>) -> Result<(usize, Option<Signed>)> {
        let known = self.tables.get_mut(request.table.0 as usize);
        let TableState { spec, range, filters, .. } =
            known.filter(|it| it.is(request.table)).ok_or_else(|| unknown(request.table))?;
        if let Payload::Values { value, type_name: found, .. } = request.payload
            && value != Some(spec.value)
        {
            let table = spec.name.clone();
            let expected = spec.value.name();
            return Err(Error::WrongType { table, expected, found });
        }
        let check = |keys: &[u64]| slicer::check(keys, *range, &spec.name);
        let list = match filters {
            None => check(request.keys).map(|()| None)?,
            Some(filters) => {
                let is_named = !request.is_implied;
                filters.sign(spec, request.keys, is_named, request.payload.all(), check)?
            }
        };
        let wrong = |what, expected, found| Error::WrongLength {
            what,
            table: spec.name.clone(),
            expected,
            found,
        };
        let count = request.keys.len();
        let row = spec.row_bytes();
        if row == 0 && request.into.is_some() {
            let what = "pulling into a buffer";
            return Err(Error::VaryingTable { what, table: spec.name.clone(), instead: "pull" });
        }
        let pushed = request.payload.bytes();
        let lengths = if row == 0 && pushed.is_some() { count } else { 0 };
        if request.lengths.len() != lengths {
            return Err(wrong("lengths", lengths, request.lengths.len()));
        }
        let expected = part_bytes(spec, count, request.lengths);
        if let Some(found) = pushed.filter(|&found| found != expected) {
            let size = spec.value.bytes();
            return Err(wrong("values", expected / size, found / size));
        }
        let place = count.saturating_mul(row);
        match &request.into {
            Some(into) if into.len() != place => Err(wrong("the buffer", place, into.len())),
            _ => Ok((place, list)),
        }
    }

    /// Checks that a lane has room for a worker's pushes of an iteration, which servers acknowledge
    /// at its end, or for the pulls that announce later ones, and for that end. It may be one lane:
    /// other servers may be lost.
    fn check_iteration(&self, request: &Request<'_>) -> Result<()> {
        let known = &self.tables[request.table.0 as usize];
        let op = request.op;
        if !matches!(op, Op::Push | Op::Pull) || !known.keeps_credits(op) {
            return Ok(());
        }
        let is_open = |number: u32, clock: u64| {
            let mut keeping = self.tables.iter().filter(|it| it.keeps_credits(op));
            keeping.any(|it| it.number == number && (op == Op::Pull || it.clock == clock))
        };
        let mut parts = self.recovery.parts(op, is_open);
        let mut from = 0;
        while let Some((_, slice)) = slicer::next(request.keys, from, &known.map) {
            from = slice.end;
            parts += 1;
        }
        // One credit is for the news of a loss.
        let credits = usize::from(self.endpoint.lanes.credits_max());
        let most = credits.saturating_sub(1) / 2;
        let name = &known.spec.name;
        match op {
            _ if parts <= most => Ok(()),
            Op::Push => Err(Error::Config(format!(
                "iteration {} of table {name} has {parts} pushes to shards, and with {credits} credits a table under BSP with replicas has at most {most}: push fewer and larger ones, or raise CARAVAN_CREDITS",
                known.clock
            ))),
            _ => Err(Error::Config(format!(
                "table {name} has {parts} pulls from shards that are not answered, and with {credits} credits a table under SparseSSP with replicas has at most {most}: announce fewer iterations ahead, or raise CARAVAN_CREDITS"
            ))),
        }
    }

    /// Sends the owner of a shard its slice of a request: the keys at these positions.
    fn send_part(
        &mut self,
        sending: &mut Sending<'_>,
        shard: usize,
        keys: Range<usize>,
    ) -> Result<()> {
        let &mut Sending { timestamp: whole, request, list, ref mut value_bytes, ref mut into } =
            sending;
        let (Placed { range, server, .. }, peer) = self.owner(request.table, shard)?;
        let timestamp = self.tracker.begin_part(whole)?;
        let eager_bytes = self.endpoint.lanes.eager_bytes();
        let TableState { spec, coding, filters, clock, disclosed, .. } =
            &mut self.tables[request.table.0 as usize];
        let clock = if *clock == FOLLOWS_WORKER { self.clock } else { *clock };
        let ends = if request.is_last { ending(spec, clock, *disclosed) } else { 0 };
        let lengths =
            if request.lengths.is_empty() { &[][..] } else { &request.lengths[keys.clone()] };
        let bytes = part_bytes(spec, keys.len(), lengths);
        let values = *value_bytes..*value_bytes + bytes;
        *value_bytes = values.end;
        let mut place = take_place(into, bytes);
        let asked = if place.is_none() { keys.len() * spec.row_bytes() } else { 0 };
        let fits = self.servers[server].up && may_be_placed(spec, filters);
        let offered = place.take_if(|place| fits && place.len() > eager_bytes);
        let offer = offered.map(|place| self.endpoint.lanes.offer(peer, place)).transpose()?;
        let named = list.filter(|list| omits_keys(filters, list.signature, shard, keys.len()));
        let mut draft = Draft {
            command: self.command,
            range,
            offer,
            signature: list.map(|list| list.signature),
            keys: &request.keys[keys.clone()],
            lengths,
            values: request.payload.part(values.clone(), peer, &self.endpoint.lanes),
            ..draft(timestamp, request.op, request.table.1, clock)
        };
        draft.op |= ends;
        let (mut block, mut passage) = (None, None);
        if let Some(filters) = filters {
            let is_dropped = list.is_none() && !request.is_implied;
            let drops_keys = is_dropped && request.op == Op::Push;
            // A pull pushes nothing.
            let pushed = request.payload.all().get(values).unwrap_or_default();
            let memory = self.endpoint.lanes.memory();
            passage =
                Some(filters.encode(spec, &mut draft, pushed, drops_keys, &mut block, memory)?);
        }
        if request.is_implied {
            self.coded.find(draft.keys);
            draft.keys = &self.coded.first;
            draft.lengths = &self.coded.counts;
        }
        if spec.replicas > 0 {
            let kept = keep(&mut self.recovery, self.endpoint.lanes.memory(), server, &mut draft);
            kept.inspect_err(|_| self.tracker.end_part(timestamp, whole.0))?;
        }
        if named.is_some() {
            draft.keys = &[];
        }
        let saved = coding.saved_bytes();
        let posted = self.endpoint.lanes.post(peer, draft, coding);
        let posted = posted.or_else(|error| self.recovery.excuse(timestamp, error));
        if let (Some(passage), Some(filters)) = (passage, filters) {
            let saved = coding.saved_bytes() - saved;
            let is_short = named.is_some() || request.is_implied;
            filters.count_sent(passage, list.is_some(), is_short, keys.len(), saved);
        }
        if let (Some(list), Ok(())) = (named, &posted) {
            let (list, table) = (list.clone(), request.table.0 as usize);
            let outstanding = Outstanding { list, keys: keys.clone(), table, shard, server, offer };
            self.named.insert(timestamp, outstanding);
        }
        let offered = offer.map(|offer| offer.key.get());
        let bytes = if request.op == Op::Push { 0 } else { asked };
        let (keys, into) = (keys.len(), place);
        let part = Part { timestamp, server, answered: false, keys, into, bytes, offered };
        self.enter(whole, part, posted)
    }

    /// Sends the same clock and body to the owners of these shards of a known table.
    pub(in crate::worker) fn request_shards(
        &mut self,
        op: Op,
        table: Table,
        shards: Range<usize>,
        clock: u64,
        body: &[u8],
    ) -> Result<Timestamp> {
        let whole = self.tracker.begin(op)?;
        let mut shards = shards;
        let sent = shards.try_for_each(|shard| {
            if matches!(op, Op::Command | Op::Join) {
                self.wait_for_command(table, shard)?;
            }
            let values = Values::Copied(body);
            let command = self.command;
            let draft = Draft { command, values, ..draft(0, op, table.1, clock) };
            self.send_bare(whole, table, shard, draft)
        });
        self.seal(whole, sent.map(|()| None));
        Ok(whole)
    }

    /// Sends the same body to every server.
    pub(in crate::worker) fn broadcast(
        &mut self,
        op: Op,
        table: u32,
        body: &[u8],
    ) -> Result<Timestamp> {
        self.tell(&self.living(), op, table, body)
    }

    /// Sends the same body to these servers.
    pub(in crate::worker) fn tell(
        &mut self,
        servers: &[usize],
        op: Op,
        table: u32,
        body: &[u8],
    ) -> Result<Timestamp> {
        let whole = self.tracker.begin(op)?;
        let sent = servers.iter().try_for_each(|&server| {
            let peer = self.room(server, 1)?;
            let timestamp = self.tracker.begin_part(whole)?;
            let values = Values::Copied(body);
            let draft = Draft { values, ..draft(timestamp, op, table, self.clock) };
            let posted = self.endpoint.lanes.post(peer, draft, &mut Coding::plain());
            let part = Part { timestamp, server, ..Part::default() };
            self.enter(whole, part, posted).map_err(|error| match error {
                Error::Van(error) if recovery::is_closed(&error) => self.servers[server].error(),
                error => error,
            })
        });
        self.seal(whole, sent.map(|()| None));
        Ok(whole)
    }

    /// Tells shards that get no part of a push that this worker's iteration ends with it.
    fn send_clocks(&mut self, whole: Timestamp, table: Table, shards: Range<usize>) -> Result<()> {
        let TableState { clock, disclosed, .. } = &self.tables[table.0 as usize];
        let (clock, disclosed) = (*clock, disclosed.to_le_bytes());
        let mut shards = shards;
        shards.try_for_each(|shard| {
            let values = Values::Copied(&disclosed);
            let draft = Draft { values, ..draft(0, Op::Clock, table.1, clock + 1) };
            self.send_bare(whole, table, shard, draft)
        })
    }

    /// Sends the owner of a shard a part of a request that is not about rows.
    fn send_bare(
        &mut self,
        whole: Timestamp,
        table: Table,
        shard: usize,
        draft: Draft<'_>,
    ) -> Result<()> {
        let (Placed { range, server, .. }, peer) = self.owner(table, shard)?;
        let timestamp = self.tracker.begin_part(whole)?;
        let mut draft = Draft { range, timestamp, ..draft };
        if self.tables[table.0 as usize].spec.replicas > 0 {
            let kept = keep(&mut self.recovery, self.endpoint.lanes.memory(), server, &mut draft);
            kept.inspect_err(|_| self.tracker.end_part(timestamp, whole.0))?;
        }
        let posted = self.endpoint.lanes.post(peer, draft, &mut Coding::plain());
        let posted = posted.or_else(|error| self.recovery.excuse(timestamp, error));
        self.enter(whole, Part { timestamp, server, ..Part::default() }, posted)
    }

    /// Records one part of a request if it was posted.
    fn enter(
        &mut self,
        request: Timestamp,
        part: Part,
        posted: caravan_van::Result<()>,
    ) -> Result<()> {
        if let Err(error) = posted {
            self.tracker.end_part(part.timestamp, request.0);
            self.recovery.forget(part.timestamp);
            if let Some(key) = part.offered {
                // A closed lane has already taken back its offers.
                let _ = self.endpoint.lanes.withdraw(self.servers[part.server].peer, key);
            }
            return Err(error.into());
        }
        let progress = self.tracker.progress(request.0).expect("open until it is sealed");
        progress.missing += 1;
        progress.parts.push(part);
        Ok(())
    }

    /// The owner of a shard of a known table and its peer, as soon as its lane has room.
    fn owner(&mut self, table: Table, shard: usize) -> Result<(Placed, PeerId)> {
        let at = table.0 as usize;
        loop {
            if self.moves.concern(at, shard) {
                self.wait_until_settled_at(at, shard)?;
            }
            let placed = self.tables[at].map.shards()[shard];
            if self.servers[placed.server].is_unused() {
                self.check_lost_nodes()?; // it may have left
                if self.tables[at].map.shards()[shard] != placed {
                    continue;
                }
            }
            let is_kept = self.tables[at].spec.replicas > 0;
            if is_kept && self.recovery.concerns(placed.server) {
                self.wait_until_recovered(placed.server)?;
            }
            // A full lane of requests that wait for a lost server must take the news of that.
            let room = self.room(placed.server, if is_kept { 2 } else { 1 });
            let is_still_there = self.tables[at].map.shards()[shard] == placed
                && !self.moves.concern(at, shard)
                && !(is_kept && self.recovery.concerns(placed.server));
            match room {
                // The shard may have moved during the wait for room.
                Ok(_) if !is_still_there => {}
                Ok(peer) => return Ok((placed, peer)),
                Err(_) if self.tables[at].map.shards()[shard] != placed => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the peer of `server` as soon as its lane has room for so many requests.
    #[inline]
    fn room(&mut self, server: usize, requests: usize) -> Result<PeerId> {
        let Server { peer, lost, .. } = &self.servers[server];
        if lost.is_none() && self.endpoint.lanes.credits(*peer) >= requests {
            return Ok(*peer);
        }
        self.wait_for_room(server, requests)
    }

    /// Processes answers until the lane to `server` has room for so many requests.
    #[cold]
    fn wait_for_room(&mut self, server: usize, requests: usize) -> Result<PeerId> {
        let mut silence = Silence::default();
        loop {
            self.open_lane(server);
            let Server { peer, ref lost, .. } = self.servers[server];
            let is_lost = lost.is_some() && !self.recovery.is_kept_up(server);
            if is_lost && server >= self.founders {
                self.check_lost_nodes()?; // it may have left
            }
            if is_lost && !self.may_have_left(server) {
                return Err(self.servers[server].error());
            }
            if self.endpoint.lanes.credits(peer) >= requests {
                return Ok(peer);
            }
            match self.poll()? {
                true => silence.began = None,
                false => self.backoff(&mut silence, Awaited::Room(server))?,
            }
        }
    }

    /// Ends the sending of a request, successful or not. From now on, the answers to all sent parts
    /// complete it.
    pub(in crate::worker) fn seal(&mut self, timestamp: Timestamp, sent: Result<Option<Buffer>>) {
        let progress = self.tracker.progress(timestamp.0).expect("open until it is sealed");
        match sent {
            Ok(values) => progress.answer.values = values,
            Err(error) => progress.error = progress.error.take().or(Some(error)),
        }
        self.settle(timestamp.0);
    }
}

/// Keeps the message of a draft until it is answered. Long values are then sent from where they are
/// kept.
fn keep(
    recovery: &mut Recovery,
    memory: &Pool,
    server: usize,
    draft: &mut Draft<'_>,
) -> caravan_van::Result<()> {
    let kept = Kept::of(server, draft, draft.keys, memory)?;
    if matches!(draft.values, Values::Copied(bytes) if bytes.len() >= SHARED_BYTES_MIN) {
        draft.values = Values::Apart(kept.values());
    }
    recovery.kept.insert(kept);
    Ok(())
}

/// The header fields that all messages of a request share.
fn draft<'a>(timestamp: u64, op: Op, table: u32, clock: u64) -> Draft<'a> {
    Draft { op: op as u8, table, timestamp, clock, ..Draft::new(Kind::Request) }
}

/// Memory for an answer of so many bytes, from the beginning of what is left.
#[inline(always)]
fn take_place(into: &mut Option<Buffer>, bytes: usize) -> Option<Buffer> {
    let whole = into.take_if(|into| into.len() == bytes);
    whole.or_else(|| into.as_mut().map(|into| into.split_to(bytes)))
}

/// Whether answers may be placed. What is posted again needs the same destination again, and a
/// filter may shorten an answer.
#[inline(always)]
fn may_be_placed(spec: &TableSpec, filters: &Option<Box<AtWorker>>) -> bool {
    spec.replicas == 0 && filters.as_ref().is_none_or(|filters| !filters.shortens_answers())
}

/// Whether a shard's part of a list of keys goes by the list's signature alone.
#[inline(always)]
fn omits_keys(
    filters: &mut Option<Box<AtWorker>>,
    signature: u64,
    shard: usize,
    keys: usize,
) -> bool {
    let sent = filters.as_mut().and_then(|filters| filters.sent.as_mut());
    sent.is_some_and(|sent| sent.omits(signature, shard, keys))
}

/// The bits of the operation of a push that ends iteration `clock`, when requests for iterations
/// below `disclosed` were announced.
fn ending(spec: &TableSpec, clock: u64, disclosed: u64) -> u8 {
    let speculation = spec.consistency.map_or(0, |consistency| consistency.speculation());
    let is_disclosed = disclosed > clock.saturating_add(speculation);
    if is_disclosed { FINISHES | DISCLOSES } else { FINISHES }
}

/// Bytes of the values of `keys` keys. `lengths` determines them if rows have their own lengths.
fn part_bytes(spec: &TableSpec, keys: usize, lengths: &[u32]) -> usize {
    match spec.row_bytes() {
        0 => lengths.iter().map(|&n| n as usize).sum::<usize>() * spec.value.bytes(),
        row => keys.saturating_mul(row),
    }
}
