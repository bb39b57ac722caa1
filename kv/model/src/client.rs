//! A client: its entry, what it has announced to the head, and what it waits for.

use crate::entry::{Entry, Epoch, ServerId};
use crate::lanes::{Message, Outbox};
use crate::log::{RequestId, RequestSet};
use crate::mutants::Mutant;
use crate::rules::Rules;
use crate::violation::Violation;
use crate::workload::ClientId;

/// One client.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its number.
    pub id: ClientId,
    /// The newest entry that it has heard.
    pub entry: Entry,
    /// The newest version that it has heard of any shard.
    pub newest: Epoch,
    /// The version that it has announced to the head.
    pub announced: Epoch,
    /// The head that it asks; nobody once it is done.
    pub target: Option<ServerId>,
    /// How many requests it has sent.
    pub sent: u8,
    /// What was answered to it.
    pub answered: RequestSet,
    /// What was answered to it and refused.
    pub refused: RequestSet,
    /// What its reads have seen.
    pub seen: RequestSet,
    /// What its last read has to see.
    pub must_see: RequestSet,
    /// Whether it waits for a newer entry, since its head said that it is none.
    pub is_moved: bool,
}

impl Client {
    /// A client that has sent nothing.
    pub fn new(id: ClientId, entry: Entry) -> Client {
        Client {
            id,
            entry,
            newest: entry.epoch,
            announced: entry.epoch,
            target: entry.chain.head(),
            sent: 0,
            answered: RequestSet::default(),
            refused: RequestSet::default(),
            seen: RequestSet::default(),
            must_see: RequestSet::default(),
            is_moved: false,
        }
    }

    /// The requests that are not answered, in order.
    pub fn outstanding(&self, rules: &Rules) -> impl Iterator<Item = RequestId> + use<> {
        let answered = self.answered;
        rules.workload.of(self.id, self.sent).filter(move |request| !answered.has(*request))
    }

    /// Sends its next request. `known` is what was answered to anybody by now: a read sees it.
    pub fn send(&mut self, rules: &Rules, known: RequestSet, out: &mut Outbox) {
        self.sent += 1;
        let next = rules.workload.of(self.id, self.sent).last();
        let (Some(target), Some(request)) = (self.target, next) else { return };
        if rules.workload.is_read(request) {
            self.must_see = known;
        }
        let same_head = self.entry.chain.head() == self.target;
        if rules.breaks(Mutant::AnnounceWithoutResend) && same_head {
            self.announced = self.entry.epoch;
        }
        if rules.breaks(Mutant::VersionOfAnotherShard) {
            self.announced = self.announced.max(self.newest);
        }
        out.to_server(target, Message::Request { request, version: self.announced });
    }

    /// Whether a newer entry matters: the head is another, or the old one said that it is none.
    pub fn waits_for(&self, rules: &Rules, entry: Entry) -> bool {
        let matters = entry.chain.head() != self.target
            || self.is_moved
            || rules.breaks(Mutant::AnnounceWithoutResend);
        self.target.is_some() && entry.epoch > self.entry.epoch && matters
    }

    /// Hears a newer entry.
    pub fn learn(&mut self, rules: &Rules, entry: Entry, out: &mut Outbox) {
        self.entry = entry;
        self.newest = self.newest.max(entry.epoch);
        if entry.chain.head() != self.target || self.is_moved {
            self.ask_again(rules, out);
        }
    }

    /// Sends all that is outstanding again, in order, and announces its version with it.
    pub fn ask_again(&mut self, rules: &Rules, out: &mut Outbox) {
        self.target = self.entry.chain.head();
        self.announced = self.entry.epoch;
        self.is_moved = false;
        let Some(target) = self.target else { return };
        let mut outstanding = Vec::from_iter(self.outstanding(rules));
        if rules.breaks(Mutant::ResendOutOfOrder) {
            outstanding.reverse();
        }
        for request in outstanding {
            out.to_server(target, Message::Request { request, version: self.announced });
        }
    }

    /// Takes a message of a server.
    ///
    /// # Errors
    /// Says what a read did not see.
    pub fn receive(
        &mut self,
        rules: &Rules,
        from: ServerId,
        message: Message,
        out: &mut Outbox,
    ) -> Result<(), Violation> {
        match message {
            Message::Answer { request, seen, is_refused } if !self.answered.has(request) => {
                self.take_answer(rules, request, seen, is_refused)
            }
            Message::Moved { version } if self.is_refused_by(from, version) => {
                if self.entry.epoch > self.announced {
                    self.ask_again(rules, out);
                } else {
                    self.is_moved = true;
                }
                Ok(())
            }
            _ => Ok(()), // answered before, or of a head that it asks no more
        }
    }

    fn is_refused_by(&self, from: ServerId, version: Epoch) -> bool {
        self.target == Some(from) && version == self.announced
    }

    fn take_answer(
        &mut self,
        rules: &Rules,
        request: RequestId,
        seen: RequestSet,
        is_refused: bool,
    ) -> Result<(), Violation> {
        self.answered.insert(request);
        if is_refused {
            self.refused.insert(request);
        }
        if !rules.workload.is_read(request) {
            return Ok(());
        }
        let unseen = self.must_see.without(seen);
        if !unseen.is_empty() {
            return Err(Violation::StaleRead { request, client: self.id, unseen });
        }
        self.seen = self.seen.with(seen);
        Ok(())
    }

    /// Whether all that it will ever ask for is answered.
    pub fn is_done(&self, rules: &Rules) -> bool {
        let requests = rules.workload.requests();
        let mut mine = requests.filter(|request| rules.workload.client(*request) == self.id);
        mine.all(|request| self.answered.has(request))
    }

    /// Forgets what no longer matters: a client that is done takes no part in anything.
    pub fn rest(&mut self) {
        let Client { id, sent, answered, refused, seen, .. } = *self;
        *self = Client { sent, answered, refused, seen, ..Client::new(id, Entry::default()) };
    }
}
