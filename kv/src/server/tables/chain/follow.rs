//! The copies of a shard behind the head of its chain: they apply the records that the thread
//! before them forwards, in its order, and forward them further.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::wire::Kind;
use caravan_van::{Connections, Draft, Message, PeerId, Values};

use super::log::{Awaiter, LogEntry, Records, confirm};
use super::models::{access, keeps_order, tells_clock};
use super::serve::PushRun;
use super::sessions::Sender;
use super::{Around, apply, keep_version};
use crate::node::Role;
use crate::op::{BITS, DISCLOSES, FINISHES, Op};
use crate::refusal::{Refusal, Refused};
use crate::server::answer::post;
use crate::server::shard::Request;
use crate::server::tables::{Replica, Step, Tables, Trouble};

/// A record that the thread before this one has applied.
#[derive(Clone, Copy)]
struct Forwarded {
    op: Op,
    /// The bits of a push that ends its worker's iteration.
    ends: u8,
    sender: Sender,
    /// The lane that it came on.
    peer: PeerId,
}

impl Forwarded {
    /// What the records of a message have in common.
    fn of(peer: PeerId, message: &Message) -> Option<Forwarded> {
        let raw = message.op();
        let op = Op::from_raw(raw & !BITS)?;
        let is_record = matches!(
            op,
            Op::Push
                | Op::Pull
                | Op::Record
                | Op::Command
                | Op::Checkpoint
                | Op::Refused
                | Op::Rows
        );
        let ends = raw & (FINISHES | DISCLOSES);
        let is_known = (is_record || tells_clock(op)) && raw == op as u8 | ends;
        let sender = message.origin()?.into();
        is_known.then_some(Forwarded { op, ends, sender, peer })
    }
}

/// Applies the records of a message that the thread before this one forwards, and forwards them, up
/// to one that has to wait.
///
/// # Errors
/// If an answer cannot be posted and the lane must be closed.
pub(in crate::server) fn serve_forwarded(
    tables: &mut Tables,
    lanes: &mut Connections,
    peer: PeerId,
    message: &mut Message,
) -> caravan_van::Result<Step> {
    while !message.is_empty() {
        let trouble = match apply_forwarded(tables, lanes, peer, message) {
            Ok(step) => return Ok(step),
            Err(Trouble::Lane(error)) => return Err(error),
            Err(trouble) => trouble,
        };
        let op = match trouble {
            Trouble::Lost => Op::Lost,
            Trouble::Elsewhere => Op::Follow,
            _ => Op::Record,
        };
        let refused = trouble.into_refused();
        let failure = Draft {
            op: op as u8,
            table: message.table(),
            range: message.range(),
            timestamp: message.timestamp(),
            command: refused.kind.number(),
            values: Values::Copied(refused.reason.as_bytes()),
            ..Draft::new(Kind::Failure)
        };
        post(lanes, peer, failure)?;
        message.advance();
    }
    Ok(Step::Done)
}

fn apply_forwarded(
    tables: &mut Tables,
    lanes: &mut Connections,
    peer: PeerId,
    message: &mut Message,
) -> Result<Step, Trouble> {
    let node = tables.chains.nodes.get(&peer);
    if node.is_none_or(|node| Role::of(node.role) != Some(Role::Server)) {
        return Err(Refusal::Unsupported
            .because("records come from servers alone, and this is none")
            .into());
    }
    let thread = node.and_then(|node| node.thread);
    let thread = thread
        .ok_or_else(|| Refusal::Internal.because("it has not asked this thread to follow"))?;
    let of = Forwarded::of(peer, message);
    let of = of.ok_or_else(|| {
        Refusal::Unsupported.because(format!("operation {} is no record", message.op()))
    })?;
    tables.check_lost(thread)?;
    tables.seek(message.table(), message.range().begin())?;
    let Tables { entries, chains, last, index, .. } = tables;
    let entry = &mut entries[*last];
    let Replica { chain: Some(chain), image, .. } = &mut *entry else {
        return Err(Refusal::Unsupported.because("this shard has no copies").into());
    };
    let seen = chain.seen(chains, *index);
    if seen.is_placed && seen.previous != Some(thread) {
        return Err(Trouble::Elsewhere);
    }
    if !chain.is_whole && (chain.comes_from != Some(peer) || image.is_some()) {
        return Err(Refusal::Unsupported.because("no copy comes from there").into());
    }
    let mut around = Around { lanes, chains, index: *index };
    let op = of.op as u8 | of.ends;
    let mut run = PushRun::new(op, of.sender, None, false, peer);
    let served = entry.follow_records(&mut around, of, message, &mut run);
    around.log_run(entry, &mut run);
    served
}

impl Replica {
    /// Applies the records of a message, up to one for which there is no room. Those of a run are
    /// in `run` afterwards, and not in the log.
    fn follow_records(
        &mut self,
        around: &mut Around<'_>,
        of: Forwarded,
        message: &mut Message,
        run: &mut PushRun<'_>,
    ) -> Result<Step, Trouble> {
        let Forwarded { op, ends, sender, peer } = of;
        let common = Request::of(message, op, sender.node);
        while !message.is_empty() {
            if op == Op::Push && ends == 0 && self.chain.as_ref().is_some_and(|it| it.is_whole) {
                let pushed = self.push_run(around, common, message, run);
                if let Some(reason) = pushed {
                    return Err(self.spoil(around, run, reason));
                }
                if message.is_empty() {
                    break;
                }
            }
            let request = common.with_record(message, None);
            self.check_keys(request.keys)?;
            let place = (self.number, self.range);
            let Some(chain) = &mut self.chain else { return Ok(Step::Done) };
            let is_whole = chain.is_whole;
            let room = || chain.room(around.chains, around.lanes, around.index);
            if is_whole && !run.has_room(room) {
                return Ok(Step::Hold);
            }
            let timestamp = message.timestamp();
            let does_something = op != Op::Record;
            let is_new = does_something
                && (!is_whole || !keeps_order(op) || chain.applied.is_new(sender, timestamp));
            if is_new && let Err(reason) = self.repeat(around.lanes, (of, timestamp), &request) {
                return Err(self.spoil(around, run, reason));
            }
            if !is_whole {
                confirm(around.lanes, peer, place, timestamp)?;
            } else if is_new && op == Op::Push {
                run.add(message);
            } else {
                around.chains.counters.repeated += u64::from(does_something && !is_new);
                around.log_run(self, run);
                let records = if is_new {
                    let op = op as u8 | ends;
                    Records::Received { message: message.first(1), list: None, op }
                } else {
                    Records::Received {
                        message: message.first(1),
                        list: None,
                        op: Op::Record as u8,
                    }
                };
                around.log(self, false, LogEntry::new(sender, records, Awaiter::Predecessor(peer)));
            }
            message.advance();
        }
        Ok(Step::Done)
    }

    /// Ends a copy that could not apply what the thread before this one has applied.
    fn spoil(
        &mut self,
        around: &mut Around<'_>,
        run: &mut PushRun<'_>,
        reason: Refused,
    ) -> Trouble {
        around.log_run(self, run);
        if let Some(chain) = &mut self.chain {
            chain.is_whole = false; // it is one no longer
        }
        reason.into()
    }

    /// Applies what the thread before this one has applied or refused. A copy that is not whole
    /// hears of the model with the rest; none hears of what is announced.
    fn repeat(
        &mut self,
        lanes: &Connections,
        (of, timestamp): (Forwarded, u64),
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let Forwarded { op, ends, sender, .. } = of;
        let Replica { chain: Some(chain), shard, admission, .. } = self else { return Ok(()) };
        let memory = lanes.memory();
        if op == Op::Rows {
            return self.repeat_gathered(request, memory);
        }
        if op == Op::Refused && !request.keys.is_empty() {
            shard.remove(request.keys)?;
        }
        if !chain.is_whole {
            return match tells_clock(op) || op == Op::Refused {
                true => Ok(()),
                false => {
                    let versions = admission.as_mut().and_then(|it| it.versions.as_deref_mut());
                    keep_version(versions, &mut **shard, request, memory)?;
                    apply(&mut **shard, None, op, request, memory).map(drop)
                }
            };
        }
        if op == Op::Refused {
            chain.applied.refuse(sender, timestamp, lanes.credits_max());
        } else {
            chain.applied.charge(sender)?;
            let values = if op == Op::Clock { &[] } else { request.values };
            let request = &Request { values, ..*request };
            let answer = apply(&mut **shard, admission.as_deref_mut(), op, request, memory)?;
            match keeps_order(op) {
                true => chain.applied.enter(sender, timestamp, answer),
                false => chain.applied.note(sender),
            }
        }
        let Some(admission) = admission else { return Ok(()) };
        if matches!(op, Op::Push | Op::Pull) {
            admission.charge(request.keys.len())?;
            admission.repeat(&access(request));
        }
        if ends & FINISHES != 0 {
            admission.finish(sender.node, request.clock, FINISHES);
        }
        Ok(())
    }
}
