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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use caravan_van::Pool;

    use super::*;
    use crate::membership::{ChainEntry, ChainMember, ChainOf, Event, Membership};
    use crate::table::{TableSpec, ValueType};

    #[test]
    fn who_joins_its_chain_again_gives_up_what_it_had() {
        let of = ChainOf { table: 1, begin: 0, first: 0, replicas: 1 };
        let (spec, pool) =
            (TableSpec::new(1, "t", ValueType::I64, 1).replicas(1), Pool::new(1 << 16));
        let addresses = vec![String::new(); 3];
        let view = Membership { addresses, threads: 1, ..Membership::default() };
        let mut chains = Chains { view, ..Chains::default() };
        let is_over = |chains: &Chains, since, index| {
            super::is_over(&Chain::new((of, since), &spec, true, &pool), chains, index)
        };
        assert!(!is_over(&chains, 0, 0) && !is_over(&chains, 0, 2), "no chain has changed");
        let mut change = |members: &[(usize, u64)]| {
            let member = |&(thread, since)| ChainMember { thread, since };
            let members = members.iter().map(member).collect();
            chains.view.enter(Event::Chains(vec![ChainEntry { table: 1, begin: 0, members }]));
        };
        change(&[(1, 0), (2, 1)]);
        change(&[(1, 0), (2, 1), (0, 2)]);
        assert!(is_over(&chains, 0, 0), "it has not heard that it was not in it");
        assert!(!is_over(&chains, 2, 0) && !is_over(&chains, 0, 1) && !is_over(&chains, 1, 2));
        chains.view.lost.insert(1);
        assert!(!is_over(&chains, 2, 0), "a loss changes nothing of that");
    }
}
