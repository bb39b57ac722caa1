//! What a source knows of the joiner that it fills.

use crate::entry::{Entry, Epoch, Join, ServerId};
use crate::lanes::{Message, Outbox};
use crate::log::{Log, Records};
use crate::replica::Replica;
use crate::workload::{ROWS, Row};

/// The source's end of a transfer.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Feed {
    /// Who is filled.
    pub joiner: ServerId,
    /// Which transfer this is.
    pub transfer: Epoch,
    /// Whether the joiner has said where to go on, since the lane is there.
    pub is_linked: bool,
    /// How many records were sent.
    pub sent: Records,
    /// How many records the joiner has confirmed.
    pub has: Records,
    /// How many rows were sent.
    pub rows_sent: u8,
    /// How many rows the joiner has confirmed.
    pub rows: u8,
    /// Whether nobody behind the source gets what the joiner has not.
    pub is_joint: bool,
    /// What the old successor was sent before the feed was joint. The joiner needs as much.
    pub floor: Records,
    /// Whether the scheduler was told that the joiner is in sync.
    pub is_reported: bool,
}

impl Feed {
    /// The feed of a join, before the joiner has answered.
    pub fn new(join: Join) -> Feed {
        Feed {
            joiner: join.joiner,
            transfer: join.transfer,
            is_linked: false,
            sent: 0,
            has: 0,
            rows_sent: 0,
            rows: 0,
            is_joint: false,
            floor: 0,
            is_reported: false,
        }
    }

    /// Asks the joiner where to go on, and brings it the sessions.
    pub fn start(&self, entry: Entry, replica: &Replica, out: &mut Outbox) {
        let base = replica.log.prefix(replica.acked);
        out.to_server(self.joiner, Message::Start { entry, base });
    }

    /// The joiner says where to go on.
    pub fn link(&mut self, last: Records, rows: u8) {
        self.is_linked = true;
        self.sent = last;
        self.rows_sent = rows;
        self.confirm(last, rows);
    }

    /// The joiner says what it has.
    pub fn confirm(&mut self, last: Records, rows: u8) {
        self.has = self.has.max(last);
        self.rows = self.rows.max(rows);
    }

    /// The lane to the joiner broke.
    pub fn unlink(&mut self) {
        self.is_linked = false;
        self.sent = 0;
    }

    /// Sends all records that the joiner was not sent.
    pub fn send_copies(&mut self, log: Log, out: &mut Outbox) {
        while self.is_linked && self.sent < log.len() {
            let (transfer, at) = (self.transfer, self.sent);
            out.to_server(self.joiner, Message::Copied { transfer, at, request: log.get(at) });
            self.sent += 1;
        }
    }

    /// Whether a row can go.
    pub fn has_row_to_send(&self) -> bool {
        self.is_linked && usize::from(self.rows_sent) < ROWS
    }

    /// Sends the next row, as it is now.
    pub fn send_row(&mut self, rows: &[Row; ROWS], out: &mut Outbox) {
        let at = self.rows_sent;
        self.rows_sent += 1;
        let row = rows[usize::from(at)];
        out.to_server(self.joiner, Message::Piece { transfer: self.transfer, at, row });
    }

    /// Whether the joiner has confirmed all rows.
    pub fn has_all_rows(&self) -> bool {
        usize::from(self.rows) == ROWS
    }

    /// Whether the feed may turn joint.
    pub fn can_turn_joint(&self) -> bool {
        !self.is_joint && self.is_linked && self.has_all_rows()
    }

    /// From now on nobody behind the source gets what the joiner has not.
    pub fn turn_joint(&mut self, floor: Records) {
        self.is_joint = true;
        self.floor = floor;
    }

    /// Whether the joiner may take its place in the chain.
    pub fn is_in_sync(&self) -> bool {
        self.is_joint && self.has >= self.floor
    }
}
