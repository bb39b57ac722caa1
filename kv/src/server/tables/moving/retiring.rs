//! A server thread that leaves the cluster. It may once it has no shard, and then takes none any
//! more: whoever asked tells everybody where its shards have gone. Until the last client has closed
//! its lane it goes on sending requests back.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use super::Gone;
use crate::map::Retired;
use crate::server::tables::{Tables, Trouble};
use crate::view::{Handed, View};

impl Tables {
    /// Takes no shard from now on, if none is here.
    ///
    /// # Errors
    /// If tables are placed on this thread.
    pub(in crate::server::tables) fn retire(&mut self) -> Result<Retired, Trouble> {
        if self.index < self.count {
            let (index, last) = (self.index, self.count - 1);
            return Err(format!(
                "tables are placed on server threads 0 to {last}, so thread {index} cannot leave"
            )
            .into());
        }
        let shards = self.entries.len();
        self.moves.is_retired |= shards == 0;
        let handed = |Gone { table, range, to, .. }: &Gone| Handed {
            table: *table,
            begin: range.begin(),
            server: to.server,
            epoch: to.epoch,
        };
        let gone = self.moves.gone.iter().filter(|_| shards == 0).map(handed).collect();
        Ok(Retired { shards, gone })
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
        Err(format!(
            "server thread {index} leaves the cluster and takes no shards: try again when it \
             has left"
        )
        .into())
    }

    /// Whether this thread has left, as a view says.
    pub(in crate::server) fn has_left(&self, view: &View) -> bool {
        view.has_left(self.index)
    }
}
