//! The two links of a member in its chain.

use crate::entry::{Entry, Epoch, ServerId};
use crate::lanes::{Message, Outbox};
use crate::log::{Log, Records};
use crate::mutants::Mutant;
use crate::replica::Replica;
use crate::rules::Rules;

/// The link to the predecessor, under the entry that it was made with.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Predecessor {
    /// Who it is.
    pub server: ServerId,
    /// Under which entry the link was made.
    pub epoch: Epoch,
}

impl Predecessor {
    /// Whether records of a server are taken: from the predecessor of the member's own epoch, and
    /// from nobody else.
    pub fn accepts(&self, rules: &Rules, from: ServerId, own: Epoch) -> bool {
        self.server == from && (self.epoch == own || rules.breaks(Mutant::OldLinkAccepted))
    }

    /// Tells the predecessor what is acknowledged.
    pub fn acknowledge(&self, rules: &Rules, replica: &Replica, out: &mut Outbox) {
        let looks_at_own = rules.breaks(Mutant::ReadConfirmedByNext);
        let own = if looks_at_own { replica.log.len() } else { 0 };
        let ack = Message::Ack { epoch: self.epoch, acked: replica.acked, own };
        out.to_server(self.server, ack);
    }
}

/// The link to the successor.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Successor {
    /// Who it is.
    pub server: ServerId,
    /// Whether it has said what it has, under this entry and since the lane is there.
    pub is_synced: bool,
    /// How many records were sent to it.
    pub sent: Records,
    /// How many records it has itself; zero but for the mutant that looks at it.
    pub own: Records,
}

impl Successor {
    /// A link over which nothing was said.
    pub fn new(server: ServerId) -> Successor {
        Successor { server, is_synced: false, sent: 0, own: 0 }
    }

    /// A link whose successor has so many records.
    pub fn synced(server: ServerId, sent: Records) -> Successor {
        Successor { is_synced: true, sent, ..Successor::new(server) }
    }

    /// Asks what the successor has.
    pub fn sync(&mut self, entry: Entry, out: &mut Outbox) {
        self.is_synced = false;
        out.to_server(self.server, Message::Sync { entry });
    }

    /// Sends records, up to a limit.
    pub fn send_records(&mut self, log: Log, limit: Records, out: &mut Outbox) {
        while self.is_synced && self.sent < limit {
            let record = Message::Record { at: self.sent, request: log.get(self.sent) };
            out.to_server(self.server, record);
            self.sent += 1;
        }
    }
}
