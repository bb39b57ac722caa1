//! A server thread that leaves the cluster. It may once it has no shard but copies that others have
//! whole, and then takes none any more: whoever asked tells everybody where its shards have gone.
//! Until the last client has closed its lane it goes on sending requests back.
//!
//! If it numbers the tables, all of them go to whoever numbers them next, with the news that it has
//! left. Until that comes it numbers none, and drops none: who wants that asks the next one then.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::BTreeMap;

use caravan_van::Pool;

use super::Gone;
use crate::map::Retired;
use crate::membership::{Departed, Event, Handed, Handover, Membership};
use crate::refusal::{Refusal, Refused};
use crate::server::tables::{Known, Tables, Trouble};

impl Tables {
    /// Takes no shard from now on, if none is here that has to go. Another thread is to have the
    /// place of this one.
    ///
    /// # Errors
    /// If that is this thread itself.
    pub(in crate::server::tables) fn retire(
        &mut self,
        successor: usize,
    ) -> Result<Retired, Trouble> {
        let numbers_tables = self.gives_numbers();
        let Tables { entries, chains, moves, known, numbers, index, .. } = self;
        if successor == *index {
            return Err(Refusal::Shape
                .because(format!("server thread {index} cannot have its own place"))
                .into());
        }
        let (mut shards, mut alone) = (0, 0);
        for entry in entries {
            let place = (entry.number, entry.range);
            match &mut entry.chain {
                None => shards += 1,
                Some(chain) => alone += usize::from(!chain.may_part(chains, *index, place)),
            }
        }
        let agrees = shards == 0 && alone == 0;
        moves.is_retired |= agrees;
        let handed = |Gone { table, range, to, .. }: &Gone| Handed {
            table: *table,
            begin: range.begin(),
            server: to.server,
            epoch: to.epoch,
        };
        let handover = |(number, known): (&u32, &Known)| {
            let Known { text, is_complete, .. } = known;
            (*number, Handover { table: text.clone(), is_complete: *is_complete })
        };
        let departed = Departed {
            thread: *index,
            successor,
            is_last: false, // the scheduler says it
            gone: moves.gone.iter().filter(|_| agrees).map(handed).collect(),
            dropped: if agrees { numbers.dropped() } else { Vec::new() },
            tables: match agrees && numbers_tables {
                true => known.iter().map(handover).collect(),
                false => BTreeMap::new(),
            },
        };
        Ok(Retired { shards, alone, departed })
    }

    /// Checks that this thread takes shards.
    ///
    /// # Errors
    /// If it leaves.
    pub(super) fn check_takes(&self) -> Result<(), Trouble> {
        if !self.moves.is_retired {
            return Ok(());
        }
        let index = self.index;
        Err(Refusal::Draining
            .because(format!(
                "server thread {index} leaves the cluster and takes no shards: try again when it \
             has left"
            ))
            .into())
    }

    /// Checks that this thread still says which tables there are, if it was the one to do so.
    ///
    /// # Errors
    /// If it leaves or has left: another one will.
    pub(in crate::server) fn check_numbers(&self) -> Result<(), Trouble> {
        let is_asked = self.gives_numbers() || self.chains.view.is_gone(self.index);
        match self.moves.is_retired && is_asked {
            true => Err(Trouble::Lost),
            false => Ok(()),
        }
    }

    /// Whether this thread has left, as a view says.
    pub(in crate::server) fn has_left(&self, view: &Membership) -> bool {
        view.has_left(self.index)
    }

    /// Records the tables of threads that have left, from this step of the view on: this thread may
    /// come to number them.
    pub(in crate::server::tables) fn inherit(&mut self, first: usize, memory: &Pool) {
        let Tables { chains, numbers, known, .. } = self;
        let new = chains.view.events[first..].iter().filter_map(Event::departed);
        for Departed { thread, dropped, tables, .. } in new {
            let mut inherit = || {
                for (first, last) in dropped {
                    numbers.drop_all(*first, *last)?;
                }
                // Whoever drops a table does not tell those that have none of its shards.
                known.retain(|number, known| known.is_created || !numbers.is_dropped(*number));
                for (number, Handover { table, is_complete }) in tables {
                    numbers.note(*number);
                    if numbers.is_dropped(*number) {
                        continue;
                    }
                    if !known.contains_key(number) {
                        let mut new = Known::read(table.as_bytes(), memory)?;
                        new.shorten()?;
                        known.insert(*number, new);
                    }
                    known.entry(*number).and_modify(|it| it.is_complete |= is_complete);
                }
                Ok::<(), Refused>(())
            };
            if let Err(reason) = inherit() {
                tracing::error!(thread, %reason, "tables of a thread that has left are unknown");
            }
        }
    }
}
