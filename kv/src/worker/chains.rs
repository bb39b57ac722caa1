//! Moves of shards with copies: a driver has their chains become others, step by step.
//!
//! The scheduler records each step, if the chain is still the one that was seen, and tells
//! everybody. Before any thread leaves, all copies are whole. Whoever hears of a step redirects
//! what is not answered. If a driver is cut off, a chain is longer than it has to be, and nothing
//! else; the next move goes on from there.
//!
//! Path: **worker** > slicer > filter > message > codec > endpoint > transport.

use std::collections::BTreeMap;
use std::time::Duration;

use super::recovery::redirect;
use super::{Table, Worker};
use crate::error::{Error, Result};
use crate::map::Map;
use crate::membership::{ChainEntry, ChainOf};
use crate::op::Op;
use crate::rechain::{Rechain, RechainError, check_there, next_chain, target};
use crate::server::Served;

/// Time between two looks at copies that are on their way.
const LOOK: Duration = Duration::from_millis(1);

/// The new heads of shards of a table, on the way there.
pub(super) struct ChainMove<'a> {
    worker: &'a mut Worker,
    table: Table,
    /// The shards as the table is placed.
    placed: Map,
    /// By shard, the thread at which its chain is to begin.
    heads: BTreeMap<usize, usize>,
    /// Threads that no chain of these is to have.
    without: Vec<usize>,
}

impl ChainMove<'_> {
    /// Of no shard yet.
    pub(super) fn of(worker: &mut Worker, table: Table) -> Result<ChainMove<'_>> {
        let spec = &worker.known(table)?.spec;
        let placed = spec.placement.map(spec.range()?, worker.founders)?;
        Ok(ChainMove { worker, table, placed, heads: BTreeMap::new(), without: Vec::new() })
    }

    /// Makes the chain of a shard begin at this thread.
    ///
    /// # Errors
    /// [`Error::Config`] if nobody can tell the others of it, if a thread is gone, if another
    /// server is needed to keep the copies meanwhile, or if a thread can have no copy.
    pub(super) fn one(mut self, shard: usize, head: usize) -> Result<()> {
        self.heads.insert(shard, head);
        self.run()
    }

    /// Makes the chains of shards begin at these threads, and leaves no copy of any at those of
    /// `without`.
    ///
    /// # Errors
    /// As [`ChainMove::one`].
    pub(super) fn all(mut self, heads: Vec<(usize, usize)>, without: &[usize]) -> Result<()> {
        self.heads = heads.into_iter().collect();
        self.without = without.to_vec();
        let shards = self.worker.known(self.table)?.map.shards();
        for (at, shard) in shards.iter().enumerate() {
            let mut chain = self.worker.recovery.view.chain(self.chain_of(at));
            if chain.any(|thread| without.contains(&thread)) {
                self.heads.entry(at).or_insert(shard.server);
            }
        }
        self.run()
    }

    fn run(&mut self) -> Result<()> {
        loop {
            self.worker.check_lost_nodes()?;
            let mut changes = Vec::new();
            for (shard, head) in self.heads.clone() {
                let of = self.chain_of(shard);
                let change = self.next_change(of, head).map_err(|why| {
                    let name = &self.spec_name();
                    let begin = of.begin;
                    Error::Config(format!(
                        "the shard from key {begin} of table {name} stays: {why}"
                    ))
                })?;
                changes.extend(change);
            }
            if changes.is_empty() {
                return Ok(());
            }
            match self.change(&changes)? {
                true => self.await_whole(&changes)?,
                false => self.worker.sleep(LOOK)?,
            }
        }
    }

    fn spec_name(&self) -> String {
        self.worker.tables[self.table.0 as usize].spec.name.clone()
    }

    /// A shard, as others know it.
    fn chain_of(&self, shard: usize) -> ChainOf {
        let replicas = self.worker.tables[self.table.0 as usize].spec.replicas;
        self.placed.shards()[shard].chain(self.table.1, replicas)
    }

    /// The next step of a shard's chain on its way to another head; `None` if it is there.
    fn next_change(
        &self,
        of: ChainOf,
        head: usize,
    ) -> std::result::Result<Option<Rechain>, RechainError> {
        let view = &self.worker.recovery.view;
        check_there(view, head)?;
        let seen: Vec<usize> = view.chain(of).collect();
        let target = target(view, of, head, &self.without);
        if seen == target {
            return Ok(None);
        }
        let wanted = next_chain(&seen, &target, of.replicas as usize + 1)?;
        Ok(Some(Rechain { of, seen, wanted }))
    }

    /// Has chains changed, and all servers hear of it; returns false if one of them is not the one
    /// that was seen.
    fn change(&mut self, changes: &[Rechain]) -> Result<bool> {
        let name = self.spec_name();
        let Some(change) = &mut self.worker.waits.change_chains else {
            return Err(Error::Config(format!(
                "table {name} has replicas, so a driver moves its shards: the scheduler tells \
                 everybody of that"
            )));
        };
        let Some(number) = change(changes)? else { return Ok(false) };
        let knows_less = |worker: &mut Worker| worker.recovery.view.events.len() < number;
        self.worker.wait_for_news(|worker| knows_less(worker).then_some(0))?;
        self.worker.tell_view()?;
        Ok(true)
    }

    /// Waits until all copies of these shards are whole. If one cannot be, its chain goes back.
    fn await_whole(&mut self, changes: &[Rechain]) -> Result<()> {
        let (mut fewest, mut since) = (usize::MAX, self.worker.now());
        loop {
            let each: Vec<BTreeMap<u32, Served>> = self.worker.ask_all(Op::Served)?;
            let lacking = each.iter().filter_map(|served| served.get(&self.table.1));
            let lacking: BTreeMap<u64, bool> =
                lacking.flat_map(|served| &served.lacking).copied().collect();
            let of = |change: &Rechain| lacking.get(&change.of.begin).copied();
            if let Some(failed) = changes.iter().find(|it| of(it) == Some(true)) {
                return self.take_back(failed);
            }
            let (count, now) =
                (changes.iter().filter(|it| of(it).is_some()).count(), self.worker.now());
            let most = self.worker.waits.silence_max;
            match count {
                0 => return Ok(()),
                few if few < fewest => (fewest, since) = (few, now),
                _ if now - since > most => {
                    let (name, seconds) = (self.spec_name(), most.as_secs());
                    return Err(Error::Config(format!(
                        "{count} shards of table {name} lack a copy for {seconds} s: the log of the \
                         servers may say why; a later move goes on from there"
                    )));
                }
                _ => {}
            }
            self.worker.sleep(LOOK)?;
        }
    }

    /// Takes the thread out of a chain again that has joined it, if a copy cannot be made.
    ///
    /// # Errors
    /// In any case: the shard stays.
    fn take_back(&mut self, change: &Rechain) -> Result<()> {
        let Rechain { of, seen: before, wanted: seen } = change.clone();
        if seen.starts_with(&before) {
            self.change(&[Rechain { of, seen, wanted: before }])?;
        }
        Err(Error::Config(format!(
            "the shard from key {} of table {} stays: a copy of it cannot be made; the log of the \
             servers says why",
            of.begin,
            self.spec_name()
        )))
    }
}

/// Records where chains begin that were changed, and redirects what is not answered.
pub(super) fn enter_chains(worker: &mut Worker, entries: &[ChainEntry]) {
    let Worker { recovery, tracker, tables, .. } = worker;
    recovery.is_on = true;
    let is_of = |number: u32| entries.iter().any(|it| it.table == number);
    for known in tables.iter_mut().filter(|known| is_of(known.number)) {
        known.follow_chains(&recovery.view);
    }
    redirect(recovery, tracker, |kept| {
        let known = tables.iter().find(|it| it.number == kept.table && is_of(kept.table))?;
        let at = known.map.find(kept.range.begin())?;
        Some(known.map.shards()[at].server)
    });
}
