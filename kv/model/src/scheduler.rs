//! The scheduler: it owns the map, saves each version, and then sends it.

use crate::entry::{Chain, Entry, Epoch, Join, SERVERS_MAX, ServerId};
use crate::mutants::Mutant;
use crate::rules::Rules;

/// Most versions of the map in one run, with the first.
pub const VERSIONS_MAX: usize = 12;

/// The scheduler and what it has saved.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Debug)]
pub struct Scheduler {
    /// The shard's entry in each version.
    map: [Entry; VERSIONS_MAX],
    /// The newest version.
    newest: Epoch,
    /// The newest version that was saved.
    saved: Epoch,
    /// The newest version that was sent. Each peer hears of it when it likes.
    sent: Epoch,
    /// Whether it runs.
    pub is_up: bool,
    /// The servers that count as lost, and those that the saved version counts as lost.
    lost: [bool; SERVERS_MAX],
    lost_saved: [bool; SERVERS_MAX],
    /// The transfers that sources have reported, by source.
    reports: [Option<Epoch>; SERVERS_MAX],
}

impl Scheduler {
    /// A scheduler whose first version everybody has.
    pub fn new(entry: Entry) -> Scheduler {
        let mut map = [Entry::default(); VERSIONS_MAX];
        map[0] = entry;
        Scheduler {
            map,
            newest: 0,
            saved: 0,
            sent: 0,
            is_up: true,
            lost: [false; SERVERS_MAX],
            lost_saved: [false; SERVERS_MAX],
            reports: [None; SERVERS_MAX],
        }
    }

    /// The entry in the newest version.
    pub fn entry(&self) -> Entry {
        self.map[usize::from(self.newest)]
    }

    /// The entry in the saved version, which is what holds.
    pub fn saved_entry(&self) -> Entry {
        self.map[usize::from(self.saved)]
    }

    /// The newest version that was sent.
    pub fn sent(&self) -> Epoch {
        self.sent
    }

    /// The entry in the newest version that was sent.
    pub fn sent_entry(&self) -> Entry {
        self.map[usize::from(self.sent)]
    }

    /// The next entry that a server hears: members hear of each change, others of those that name
    /// them.
    pub fn news(&self, server: ServerId, heard: Entry) -> Option<Entry> {
        let is_member = heard.chain.has(server);
        let sent = self.map[..=usize::from(self.sent)].iter();
        let mut newer = sent.filter(|entry| entry.epoch > heard.epoch);
        newer.find(|entry| is_member || entry.chain.has(server)).copied()
    }

    /// Whether a server counts as lost.
    pub fn has_lost(&self, server: ServerId) -> bool {
        self.lost[usize::from(server)]
    }

    /// The transfer that a source has reported.
    pub fn report_of(&self, source: ServerId) -> Option<Epoch> {
        self.reports[usize::from(source)]
    }

    /// A source reports that its joiner is in sync.
    pub fn report(&mut self, source: ServerId, transfer: Epoch) {
        self.reports[usize::from(source)] = Some(transfer);
    }

    /// Whether it may make the next change: the last one was saved and sent.
    pub fn is_idle(&self) -> bool {
        self.is_up && self.newest == self.saved && self.saved == self.sent
    }

    /// Whether a version waits to be saved.
    pub fn can_save(&self) -> bool {
        self.is_up && self.saved < self.newest
    }

    /// Whether a version waits to be sent.
    pub fn can_send(&self, rules: &Rules) -> bool {
        self.is_up && self.sent < self.sendable(rules)
    }

    fn sendable(&self, rules: &Rules) -> Epoch {
        if rules.breaks(Mutant::SendBeforeSave) { self.newest } else { self.saved }
    }

    /// Saves the newest version.
    pub fn save(&mut self) {
        self.saved = self.newest;
        self.lost_saved = self.lost;
    }

    /// Sends what was saved.
    pub fn send(&mut self, rules: &Rules) {
        self.sent = self.sendable(rules);
    }

    /// Makes a new version in which the shard has another chain or join.
    fn change(&mut self, chain: Chain, join: Option<Join>) {
        self.newest += 1;
        self.map[usize::from(self.newest)] = Entry { epoch: self.newest, chain, join };
    }

    /// Makes a new version in which other shards changed, and this one did not.
    pub fn change_another_shard(&mut self) {
        let entry = self.entry();
        self.newest += 1;
        self.map[usize::from(self.newest)] = entry;
    }

    /// Takes a server out that counts as lost. A join that needed it is taken back.
    pub fn lose(&mut self, rules: &Rules, server: ServerId) {
        let Entry { chain, join, .. } = self.entry();
        let mut rest = chain.without(server);
        let broken = join.filter(|join| join.joiner == server || join.source == server);
        if let Some(join) = broken.filter(|join| join.joiner != server)
            && rules.breaks(Mutant::PromoteUnsynced)
        {
            rest = rest.extended(join.joiner);
        }
        self.lost[usize::from(server)] = true;
        self.change(rest, join.filter(|_| broken.is_none()));
    }

    /// Lets a server join behind the tail, which fills it.
    pub fn fill(&mut self, joiner: ServerId) {
        if let Some(source) = self.entry().chain.tail() {
            self.begin(joiner, source, false);
        }
    }

    /// Lets a server take the place of a member, which fills it.
    pub fn move_member(&mut self, rules: &Rules, member: ServerId, to: ServerId) {
        let chain = self.entry().chain;
        if rules.breaks(Mutant::MovedBeforeInSync) {
            self.change(chain.replacing(member, to), None);
            return;
        }
        let by_tail = chain.tail().filter(|_| rules.breaks(Mutant::TargetLastThenHead));
        self.begin(to, by_tail.unwrap_or(member), true);
    }

    /// Takes a member out that lives. It may join again, with nothing.
    pub fn retire(&mut self, member: ServerId) {
        self.change(self.entry().chain.without(member), None);
    }

    fn begin(&mut self, joiner: ServerId, source: ServerId, replaces: bool) {
        let join = Join { joiner, source, replaces, transfer: self.newest + 1 };
        self.change(self.entry().chain, Some(join));
    }

    /// Takes a join back.
    pub fn cancel(&mut self) {
        self.change(self.entry().chain, None);
    }

    /// Takes the joiner into the chain, if the report is of the current transfer.
    pub fn take_report(&mut self, rules: &Rules, source: ServerId) {
        let Some(transfer) = self.reports[usize::from(source)].take() else { return };
        let Entry { chain, join, .. } = self.entry();
        let is_current =
            |join: &Join| join.transfer == transfer || rules.breaks(Mutant::ReportOfAnyTransfer);
        let Some(join) = join.filter(is_current).filter(|join| chain.has(join.source)) else {
            return;
        };
        let replaced = match chain.head() {
            Some(head) if rules.breaks(Mutant::TargetLastThenHead) => head,
            _ => join.source,
        };
        let grown = if join.replaces {
            chain.replacing(replaced, join.joiner)
        } else {
            chain.extended(join.joiner)
        };
        self.change(grown, None);
    }

    /// Dies, with all that was not saved.
    pub fn crash(&mut self) {
        self.is_up = false;
        self.newest = self.saved;
        self.map[usize::from(self.saved) + 1..].fill(Entry::default());
        self.lost = self.lost_saved;
        self.reports = [None; SERVERS_MAX];
    }
}
