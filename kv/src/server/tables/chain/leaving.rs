//! What becomes of a shard at a thread that has left its chain while the cluster goes on.
//!
//! The others have all that it has ever answered, and it answers nothing more: whoever waits is
//! sent to the chain of today. A thread that is in the chain again begins anew.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use caravan_van::Connections;

use super::{Chain, Chains};
use crate::server::tables::{Held, Replica, Tables};

/// Whether a thread has no part in the chain that it was in before.
fn is_over(chain: &Chain, chains: &Chains, index: usize) -> bool {
    let (view, of) = (&chains.view, chain.of);
    view.has_entry(of)
        && (view.since(of, index) != chain.since || !view.chain(of).any(|it| it == index))
}

/// Gives up the shards in whose chains this thread is no longer since the view has changed.
pub(super) fn leave_chains(tables: &mut Tables, lanes: &mut Connections) {
    let Tables { entries, chains, moves, index, left, last, .. } = tables;
    if std::mem::replace(&mut chains.left_at, chains.views) == chains.views {
        return;
    }
    let is_over = |entry: &mut Replica| {
        entry.chain.as_ref().is_some_and(|chain| is_over(chain, chains, *index))
    };
    let over: Vec<Replica> = entries.extract_if(.., is_over).collect();
    *last = 0;
    for entry in over {
        let place = (entry.number, entry.range);
        let Some(mut chain) = entry.chain else { continue };
        let first = place.1.begin();
        tracing::debug!(table = place.0, first, "a shard has left this thread");
        chains.gathered -= chain.gathered.len();
        chains.counters.left += 1;
        left.push(place);
        let parts = chain.take_parts();
        for logged in chain.log.take().chain(chain.gathered.drain(..)).chain(parts) {
            logged.send_away(place, lanes, &mut chains.broken);
        }
        // They find no shard here, and are sent away as well.
        moves.released.append(&mut chain.held);
        moves.released.extend(chain.awaiting.drain(..).map(|awaiting| awaiting.held));
        let waiting = entry.admission.into_iter().flat_map(|it| it.into_waiting());
        moves
            .released
            .extend(waiting.filter_map(|it| {
                Some(Held { peer: it.peer?, message: it.message, list: it.list })
            }));
        let readers = entry.moving.map(|moving| *moving);
        readers.into_iter().for_each(|mut moving| moving.release(&mut moves.released));
    }
}
