//! What a server has of the shard: its log, its sessions and its rows.

use crate::log::{Log, Records, RequestId};
use crate::mutants::Mutant;
use crate::rules::Rules;
use crate::workload::{ROWS, Row};

/// One copy of the shard.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default, Debug)]
pub struct Replica {
    /// All records.
    pub log: Log,
    /// How many records the whole chain has, as far as this server knows.
    pub acked: Records,
    /// The rows that have arrived, and what was applied to them since.
    pub rows: [Row; ROWS],
    /// How many rows have arrived, from the first on.
    pub arrived: u8,
    /// The sessions know records from here on; above zero in one mutant only.
    pub sessions_from: Records,
}

/// The record of a request that came before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The answer waits until so many records are acknowledged.
    pub upto: Records,
    /// Whether the client has no later request in the log.
    pub is_last: bool,
}

impl Replica {
    /// An empty copy with all rows.
    pub fn whole() -> Replica {
        Replica { arrived: ROWS as u8, ..Replica::default() }
    }

    /// The copy of a joiner that has no rows yet: the acknowledged prefix came with the sessions.
    pub fn beginning(base: Log) -> Replica {
        Replica { log: base, acked: base.len(), ..Replica::default() }
    }

    /// Whether all rows have arrived.
    pub fn is_whole(&self) -> bool {
        usize::from(self.arrived) == ROWS
    }

    /// Adds a record, and applies it to the rows that have arrived: those that are still to come
    /// will have it.
    pub fn append(&mut self, rules: &Rules, request: RequestId) {
        let waits = rules.breaks(Mutant::RecordsWaitForRows) && !self.is_whole();
        if !waits && !rules.workload.refuses(self.log, request) {
            for row in &mut self.rows[..usize::from(self.arrived)] {
                *row = rules.workload.apply(*row, request);
            }
        }
        self.log.push(request);
    }

    /// Takes a row as it was when it was sent.
    pub fn arrive(&mut self, rules: &Rules, at: u8, row: Row) {
        self.rows[usize::from(at)] = row;
        self.arrived = at + 1;
        if self.is_whole() && rules.breaks(Mutant::SessionsNotSent) {
            self.sessions_from = self.log.len();
        }
    }

    /// Looks a request up in the session of its client. Requests of a client come in order, so all
    /// before the last one were applied. Reads have no session: they may be read again.
    pub fn find(&self, rules: &Rules, request: RequestId) -> Option<Applied> {
        let workload = &rules.workload;
        if workload.is_read(request) || rules.breaks(Mutant::RepeatAppliedAgain) {
            return None;
        }
        let client = workload.client(request);
        let known = self.log.requests().skip(usize::from(self.sessions_from));
        let of_client =
            known.filter(|known| workload.client(*known) == client && !workload.is_read(*known));
        let last = of_client.max().filter(|last| *last >= request)?;
        let place = self.log.requests().position(|known| known == request);
        let upto = place.map_or(1, |at| at as Records + 1);
        Some(Applied { upto, is_last: last == request })
    }

    /// Forgets what is not acknowledged, as one mutant does.
    pub fn truncate(&mut self, rules: &Rules) {
        self.log = self.log.prefix(self.acked);
        self.rows = [rules.workload.row(self.log); ROWS];
    }
}
