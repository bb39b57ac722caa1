//! The working set of an outer step, and what of it lies at servers.

use caravan_kv::{Cluster, Worker};

use super::scores::Column;
use super::task::{self, NOW, Order, of_rows, rows};
use super::{Kind, Open};
use crate::dbpg::proximal::Penalties;
use crate::dbpg::train::ask;
use crate::numeric::Scale;

/// The working set of an outer step.
pub(super) struct Plan {
    /// Block after block.
    pub(super) columns: Vec<Column>,
    /// Where each block's end.
    pub(super) ends: Vec<usize>,
    pub(super) scale: Scale,
    pub(super) largest: f64,
    /// λ and λ₂ of each column.
    pub(super) penalties: Vec<Penalties>,
    pub(super) free: Option<u64>,
}

impl Plan {
    /// λ and λ₂ of a column.
    pub(super) fn penalties(&self, k: usize) -> Penalties {
        self.penalties[k]
    }

    pub(super) fn is_free(&self, k: usize) -> bool {
        self.free == Some(self.columns[k].key)
    }

    pub(super) fn block(&self, block: usize) -> std::ops::Range<usize> {
        let begin = block.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[block]
    }

    /// v, from the servers.
    pub(super) fn iterate(&self, servers: &mut Worker, open: Open) -> caravan_kv::Result<Vec<f64>> {
        let rows = rows(Kind::Iterate, servers.info().servers(), 0..self.ends.len());
        let iterates = task::pull(servers, open.blocks, NOW, &rows)?;
        let mut all = vec![0.0; self.columns.len()];
        for ((_, block), iterate) in rows.iter().zip(iterates) {
            for (v, bits) in all[self.block(*block)].iter_mut().zip(iterate) {
                *v = f64::from_bits(bits as u64);
            }
        }
        Ok(all)
    }

    /// Moves v at servers and workers; returns the last task.
    pub(super) fn move_to(
        &self,
        cluster: &mut Cluster,
        servers: &mut Worker,
        open: Open,
        clock: u64,
        to: &[f64],
    ) -> caravan_kv::Result<u64> {
        let clock = clock + 1;
        let bits: Vec<i64> = to.iter().map(|number| number.to_bits() as i64).collect();
        for kind in [Kind::Direction, Kind::Iterate] {
            self.push(servers, open, clock, kind, 1, &bits)?;
        }
        ask(cluster, &Order::Move { clock })?;
        Ok(clock)
    }

    /// Pushes a row of a kind for each block: `width` numbers a column.
    pub(super) fn push(
        &self,
        servers: &mut Worker,
        open: Open,
        clock: u64,
        kind: Kind,
        width: usize,
        numbers: &[i64],
    ) -> caravan_kv::Result<()> {
        let rows = rows(kind, servers.info().servers(), 0..self.ends.len());
        let (keys, lengths) = of_rows(&rows, |block| self.block(block).len() * width);
        let own = rows.iter().flat_map(|(_, block)| {
            let columns = self.block(*block);
            &numbers[columns.start * width..columns.end * width]
        });
        let values: Vec<i64> = own.copied().collect();
        servers.set_clock(clock);
        let pushed = servers.push_varying(open.blocks, &keys, &lengths, &values)?;
        servers.wait(pushed).map(drop)
    }
}
