//! Lanes between peers: each keeps its order, breaks with all that is under way, and is made again.

use crate::entry::{Entry, Epoch, ServerId};
use crate::log::{Log, Records, RequestId, RequestSet};
use crate::workload::{ClientId, Row};

/// An end of a lane.
#[derive(Clone, Copy, Hash, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// A server.
    Server(ServerId),
    /// A client.
    Client(ClientId),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Server(server) => write!(f, "server {server}"),
            Peer::Client(client) => write!(f, "client {client}"),
        }
    }
}

/// What travels. Messages of the scheduler are steps of their own: they come at any time.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub enum Message {
    /// A client asks the head, under the version that it has announced on this lane.
    Request {
        /// Which request.
        request: RequestId,
        /// The announced version.
        version: Epoch,
    },
    /// The head answers: the tail has the record.
    Answer {
        /// Which request.
        request: RequestId,
        /// What a read sees.
        seen: RequestSet,
        /// Whether the rule of the shard refused it.
        is_refused: bool,
    },
    /// The server is not the head that the request was meant for.
    Moved {
        /// The version that the request came under.
        version: Epoch,
    },
    /// A predecessor asks its successor under a new entry what it has.
    Sync {
        /// The entry, which the successor takes as well.
        entry: Entry,
    },
    /// The successor says what it has.
    Synced {
        /// Under which entry.
        epoch: Epoch,
        /// The length of its log.
        last: Records,
        /// Its acknowledged prefix.
        acked: Records,
    },
    /// A record goes to the successor.
    Record {
        /// How many records are before it.
        at: Records,
        /// The request that it is of.
        request: RequestId,
    },
    /// An acknowledgement goes to the predecessor.
    Ack {
        /// Under which entry.
        epoch: Epoch,
        /// The acknowledged prefix.
        acked: Records,
        /// The sender's own log; zero but for the mutant that looks at it.
        own: Records,
    },
    /// A source begins to fill a joiner.
    Start {
        /// The entry with the join.
        entry: Entry,
        /// The sessions: what a server keeps of its acknowledged prefix.
        base: Log,
    },
    /// The joiner says where to go on: at the beginning, or where a lane broke.
    Started {
        /// Which transfer.
        transfer: Epoch,
        /// The length of its log.
        last: Records,
        /// How many rows it has.
        rows: u8,
    },
    /// A row goes to the joiner as it is now.
    Piece {
        /// Which transfer.
        transfer: Epoch,
        /// Which row.
        at: u8,
        /// The row.
        row: Row,
    },
    /// A record goes to the joiner.
    Copied {
        /// Which transfer.
        transfer: Epoch,
        /// How many records are before it.
        at: Records,
        /// The request that it is of.
        request: RequestId,
    },
    /// The joiner confirms what it has.
    Have {
        /// Which transfer.
        transfer: Epoch,
        /// The length of its log.
        last: Records,
        /// How many rows it has.
        rows: u8,
    },
}

impl Message {
    /// Whether a later message of one poll says all that this one says: these go as one.
    fn is_superseded_by(&self, later: &Message) -> bool {
        match (self, later) {
            (Message::Ack { epoch: old, .. }, Message::Ack { epoch: new, .. }) => old == new,
            (Message::Have { transfer: old, .. }, Message::Have { transfer: new, .. }) => {
                old == new
            }
            (Message::Moved { version: old }, Message::Moved { version: new }) => old == new,
            _ => false,
        }
    }
}

/// A message on its lane.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Flight {
    /// Who sent it.
    pub from: Peer,
    /// Who gets it.
    pub to: Peer,
    /// What it is.
    pub message: Message,
}

/// All messages under way.
#[derive(Clone, Hash, PartialEq, Eq, Default, Debug)]
pub struct Lanes {
    /// Sorted by lane, and within a lane in the order in which they were sent.
    flights: Vec<Flight>,
}

impl Lanes {
    /// Puts a message at the end of its lane.
    pub fn post(&mut self, from: Peer, to: Peer, message: Message) {
        let behind = self.flights.partition_point(|flight| (flight.from, flight.to) <= (from, to));
        let last = behind.checked_sub(1).and_then(|at| self.flights.get_mut(at));
        if let Some(last) = last.filter(|last| (last.from, last.to) == (from, to))
            && last.message.is_superseded_by(&message)
        {
            last.message = message;
            return;
        }
        self.flights.insert(behind, Flight { from, to, message });
    }

    /// Takes the next message of a lane.
    pub fn take(&mut self, from: Peer, to: Peer) -> Option<Message> {
        let at = self.flights.iter().position(|flight| (flight.from, flight.to) == (from, to))?;
        Some(self.flights.remove(at).message)
    }

    /// The next message of each lane.
    pub fn next_of_each(&self) -> impl Iterator<Item = &Flight> {
        let lanes = self.flights.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to));
        lanes.map(|lane| &lane[0])
    }

    /// A lane to a client on which nothing but answers is under way.
    pub fn answers_alone(&self) -> Option<&Flight> {
        let mut lanes = self.flights.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to));
        let is_answer = |flight: &Flight| matches!(flight.message, Message::Answer { .. });
        lanes.find(|lane| lane.iter().all(is_answer)).map(|lane| &lane[0])
    }

    /// Loses all that is under way between two peers.
    pub fn cut(&mut self, one: Peer, other: Peer) {
        self.flights.retain(|flight| {
            let ends = (flight.from, flight.to);
            ends != (one, other) && ends != (other, one)
        });
    }

    /// Loses all that is under way to a peer.
    pub fn lose_to(&mut self, peer: Peer) {
        self.flights.retain(|flight| flight.to != peer);
    }

    /// The pairs of peers between which something is under way.
    pub fn pairs(&self) -> impl Iterator<Item = [Peer; 2]> {
        self.next_of_each().map(|flight| [flight.from.min(flight.to), flight.from.max(flight.to)])
    }
}

/// What a peer wants sent, in this order.
#[derive(Default, Debug)]
pub struct Outbox {
    messages: Vec<(Peer, Message)>,
}

impl Outbox {
    /// Adds a message to a server.
    pub fn to_server(&mut self, to: ServerId, message: Message) {
        self.messages.push((Peer::Server(to), message));
    }

    /// Adds a message to a client.
    pub fn to_client(&mut self, to: ClientId, message: Message) {
        self.messages.push((Peer::Client(to), message));
    }

    /// Takes all messages out.
    pub fn into_messages(self) -> impl Iterator<Item = (Peer, Message)> {
        self.messages.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Peer = Peer::Server(0);
    const B: Peer = Peer::Server(1);
    const C: Peer = Peer::Client(0);

    #[test]
    fn a_lane_keeps_its_order_and_others_do_not_mind() {
        let mut lanes = Lanes::default();
        let record = |at| Message::Record { at, request: at };
        lanes.post(A, B, record(0));
        lanes.post(B, A, record(7));
        lanes.post(A, B, record(1));
        assert_eq!(lanes.take(A, B), Some(record(0)));
        assert_eq!(lanes.take(A, B), Some(record(1)));
        assert_eq!(lanes.take(A, B), None);
        lanes.post(A, C, record(2));
        lanes.cut(B, A);
        assert_eq!(lanes.take(B, A), None);
        assert_eq!(lanes.take(A, C), Some(record(2)));
    }

    #[test]
    fn acknowledgements_of_one_epoch_go_as_one() {
        let mut lanes = Lanes::default();
        let ack = |epoch, acked| Message::Ack { epoch, acked, own: 0 };
        lanes.post(B, A, ack(1, 1));
        lanes.post(B, A, ack(1, 2));
        lanes.post(B, A, ack(2, 2));
        assert_eq!(lanes.take(B, A), Some(ack(1, 2)));
        assert_eq!(lanes.take(B, A), Some(ack(2, 2)));
    }
}
