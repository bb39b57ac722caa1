//! Credits: chains that run around a ring of servers share its lanes, and a lane has a bounded
//! number of messages that are not answered.
//!
//! Each server is head of a chain over all servers, in the order of the ring. A record spends a
//! credit of its lane until the next server has confirmed it; that one confirms when all behind it
//! have. So credits of one lane wait for credits of the next, around the ring, unless records leave
//! some for those that have a shorter way left.

use crate::explore::Machine;
use crate::mutants::Mutant;
use crate::violation::Violation;

/// Most servers of a ring.
pub const RING_MAX: usize = 3;

/// A ring of servers.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many servers and chains there are, and how many members each chain has.
    pub servers: usize,
    /// How many messages of a lane may be unanswered.
    pub credits: u8,
    /// How many records each head makes.
    pub records: u8,
    /// Whether a confirmation spends a credit of its lane until it arrives. Then records leave one.
    pub confirmations_spend: bool,
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Setup { servers, credits, records, confirmations_spend } = self;
        write!(f, "ring of {servers} servers, {credits} credits, {records} records each")?;
        if *confirmations_spend { write!(f, ", confirmations spend credits") } else { Ok(()) }
    }
}

/// The two kinds of messages, each of the chain of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A record goes to the next server.
    Record,
    /// The confirmation of a record goes back.
    Confirmation,
}

/// One event. A server is named by its place in a chain: the head is at zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A client asks the head of a chain.
    Ask(usize),
    /// A member sends on.
    Send {
        /// What it sends.
        kind: Kind,
        /// The head of the chain.
        chain: usize,
        /// The place of the sender in it.
        place: usize,
    },
    /// What a member sent arrives.
    Arrive {
        /// What was sent.
        kind: Kind,
        /// The head of the chain.
        chain: usize,
        /// The place of the sender in it.
        place: usize,
    },
}

/// How far a member of a chain is, in records.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default, Debug)]
pub struct Member {
    /// It has so many.
    has: u8,
    /// It has sent so many to the next.
    sent: u8,
    /// It knows of so many that all behind it have them.
    acked: u8,
    /// It has confirmed so many to the one before.
    confirmed: u8,
}

/// All members of all chains, by head and place.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default, Debug)]
pub struct State {
    chains: [[Member; RING_MAX]; RING_MAX],
}

/// A ring under the rules, or under all but one.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// The ring.
    pub setup: Setup,
    /// The rule that is broken, if one is.
    pub mutant: Option<Mutant>,
}

impl Ring {
    /// The server at a place of a chain.
    fn server(&self, chain: usize, place: usize) -> usize {
        (chain + place) % self.setup.servers
    }

    fn members(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let servers = self.setup.servers;
        (0..servers).flat_map(move |chain| (0..servers).map(move |place| [chain, place]))
    }

    /// Credits that are spent on the lane from one server to another.
    fn spent(&self, state: &State, from: usize, to: usize) -> u8 {
        let mut spent = 0;
        for [chain, place] in self.members() {
            let of = &state.chains[chain];
            let here = self.server(chain, place);
            let next = self.server(chain, place + 1);
            if place + 1 == self.setup.servers {
                continue;
            }
            if [here, next] == [from, to] {
                spent += of[place].sent - of[place].acked;
            }
            if self.setup.confirmations_spend && [next, here] == [from, to] {
                spent += of[place + 1].confirmed - of[place].acked;
            }
        }
        spent
    }

    /// Whether a member may send its next record to the next server, which has to leave credits for
    /// confirmations, and for records that have fewer servers before them.
    fn may_send_record(&self, state: &State, chain: usize, place: usize) -> bool {
        let member = state.chains[chain][place];
        let behind = (self.setup.servers - 1).saturating_sub(place) as u8;
        if behind == 0 || member.sent == member.has {
            return false;
        }
        let room = if self.mutant == Some(Mutant::NoRoomBehind) { 1 } else { behind };
        let spends = self.setup.confirmations_spend && self.mutant != Some(Mutant::NoCreditKept);
        let lane = [self.server(chain, place), self.server(chain, place + 1)];
        let free = self.setup.credits - self.spent(state, lane[0], lane[1]);
        free >= room + u8::from(spends)
    }

    /// Whether a member may confirm its next record to the server before.
    fn may_confirm(&self, state: &State, chain: usize, place: usize) -> bool {
        let member = state.chains[chain][place];
        if place == 0 || member.confirmed == member.acked {
            return false;
        }
        let lane = [self.server(chain, place), self.server(chain, place - 1)];
        let free = self.setup.credits - self.spent(state, lane[0], lane[1]);
        !self.setup.confirmations_spend || free > 0
    }
}

impl Machine for Ring {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State::default()
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for [chain, place] in self.members() {
            let of = &state.chains[chain];
            if place == 0 && of[0].has < self.setup.records {
                steps.push(Step::Ask(chain));
            }
            if self.may_send_record(state, chain, place) {
                steps.push(Step::Send { kind: Kind::Record, chain, place });
            }
            if self.may_confirm(state, chain, place) {
                steps.push(Step::Send { kind: Kind::Confirmation, chain, place });
            }
            if place + 1 < self.setup.servers && of[place].sent > of[place + 1].has {
                steps.push(Step::Arrive { kind: Kind::Record, chain, place });
            }
            if place > 0 && of[place].confirmed > of[place - 1].acked {
                steps.push(Step::Arrive { kind: Kind::Confirmation, chain, place });
            }
        }
        steps
    }

    fn is_optional(&self, _: Step) -> bool {
        false
    }

    fn apply(&self, state: &mut State, step: Step) -> Result<(), Violation> {
        let tail = self.setup.servers - 1;
        match step {
            Step::Ask(chain) => state.chains[chain][0].has += 1,
            Step::Send { kind: Kind::Record, chain, place } => {
                state.chains[chain][place].sent += 1;
            }
            Step::Send { kind: Kind::Confirmation, chain, place } => {
                state.chains[chain][place].confirmed += 1;
            }
            Step::Arrive { kind: Kind::Record, chain, place } => {
                let next = &mut state.chains[chain][place + 1];
                next.has += 1;
                next.acked += u8::from(place + 1 == tail);
            }
            Step::Arrive { kind: Kind::Confirmation, chain, place } => {
                state.chains[chain][place - 1].acked += 1;
            }
        }
        Ok(())
    }

    /// Whether every head may answer all its requests.
    fn is_finished(&self, state: &State) -> bool {
        let heads = state.chains.iter().take(self.setup.servers).map(|chain| chain[0]);
        heads.into_iter().all(|head| head.acked == self.setup.records)
    }

    fn describe(&self, _: &State, step: Step) -> String {
        format!("{step:?}")
    }
}
