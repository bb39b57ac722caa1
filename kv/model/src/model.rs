//! One shard under a map: all peers together, and what each event does to them.

use crate::client::Client;
use crate::entry::{Chain, Entry, ServerId};
use crate::explore::Machine;
use crate::invariants;
use crate::lanes::{Lanes, Message, Outbox, Peer};
use crate::log::RequestSet;
use crate::mutants::Mutant;
use crate::rules::Rules;
use crate::scheduler::Scheduler;
use crate::server::Server;
use crate::steps::{self, Step};
use crate::violation::Violation;
use crate::workload::{CLIENTS, ClientId, Workload};

/// How often each fault may happen, and each change that is none.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// Servers that die.
    pub crashes: u8,
    /// Servers that are declared lost and live: they act on their old entry for as long as they
    /// like, as one does that was paused.
    pub declared: u8,
    /// Lanes that break.
    pub breaks: u8,
    /// Moves of a member to a spare server.
    pub moves: u8,
    /// Deaths of the scheduler.
    pub scheduler_crashes: u8,
    /// Versions of the map in which other shards change.
    pub others: u8,
}

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = [
            (self.crashes, "crash"),
            (self.declared, "declared lost"),
            (self.breaks, "break"),
            (self.moves, "move"),
            (self.scheduler_crashes, "scheduler's crash"),
            (self.others, "another shard"),
        ];
        let named = named.iter().filter(|(times, _)| *times > 0);
        let words = named.map(|(times, name)| match times {
            1 => (*name).to_owned(),
            2 => format!("{name} twice"),
            _ => format!("{name} {times} times"),
        });
        write!(f, "{}", Vec::from_iter(words).join(", "))
    }
}

/// Who is there, and what may happen.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many servers there are.
    pub servers: u8,
    /// How many followers a head has. Without any, log and sessions serve moves alone.
    pub copies: usize,
    /// What each client does: `i` is an increment, `r` a read.
    pub programs: [&'static str; CLIENTS],
    /// How many requests of a client may be outstanding.
    pub window: usize,
    /// What may happen.
    pub faults: Faults,
    /// The place in the chain of the member that is moved; the head is at zero.
    pub moved: usize,
    /// Whether whoever is moved to joins behind the tail, and the moved member leaves then.
    pub is_queue: bool,
    /// Whether chains that lost a member are filled up from spare servers.
    pub fills: bool,
    /// Whether a scheduler that died stays away.
    pub is_scheduler_gone: bool,
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Setup { servers, copies, programs, faults, .. } = self;
        let plural = if *copies == 1 { "" } else { "s" };
        let programs = programs.join(" ");
        write!(f, "{servers} servers, {copies} follower{plural}, {}", programs.trim_end())?;
        let rest = [
            (*faults != Faults::default(), faults.to_string()),
            (self.moved > 0, format!("of place {}", self.moved)),
            (self.is_queue, "at the end".to_owned()),
            (!self.fills, "not filled up".to_owned()),
            (self.is_scheduler_gone, "for ever".to_owned()),
        ];
        let rest = rest.into_iter().filter(|(is_said, _)| *is_said);
        rest.into_iter().try_for_each(|(_, words)| write!(f, ", {words}"))
    }
}

/// All peers, and what is under way between them.
#[derive(Clone, Hash, PartialEq, Eq, Debug)]
pub struct State {
    /// The servers, by number.
    pub servers: Vec<Server>,
    /// The clients, by number.
    pub clients: [Client; CLIENTS],
    /// The scheduler.
    pub scheduler: Scheduler,
    /// What may still happen.
    pub faults: Faults,
    /// What is under way.
    pub lanes: Lanes,
}

impl State {
    /// The servers that have not died.
    pub fn live_servers(&self) -> impl Iterator<Item = ServerId> {
        self.servers.iter().filter(|server| !server.is_crashed).map(|server| server.id)
    }

    /// Whether a peer has not died.
    pub fn is_live(&self, peer: Peer) -> bool {
        match peer {
            Peer::Server(id) => !self.servers[usize::from(id)].is_crashed,
            Peer::Client(_) => true,
        }
    }

    /// The next entry that a server hears.
    pub fn news(&self, server: ServerId) -> Option<Entry> {
        self.scheduler.news(server, self.servers[usize::from(server)].entry)
    }

    /// The increments that were answered to anybody, refused or not, or seen by a read.
    fn known(&self, rules: &Rules) -> RequestSet {
        let heard = self.clients.iter().map(|client| client.answered.with(client.seen));
        let all = heard.fold(RequestSet::default(), RequestSet::with);
        rules.workload.increments().filter(|request| all.has(*request)).collect()
    }
}

/// One configuration under the rules, or under all but one.
#[derive(Clone, Debug)]
pub struct Model {
    /// Who is there, and what may happen.
    pub setup: Setup,
    /// The rules.
    pub rules: Rules,
}

impl Model {
    /// The model of a configuration.
    pub fn new(setup: Setup, mutant: Option<Mutant>) -> Model {
        Model { setup, rules: Rules { workload: Workload::new(setup.programs), mutant } }
    }

    /// Lets a server act, and sends what it wants sent.
    fn server(&self, state: &mut State, id: ServerId, act: impl FnOnce(&mut Server, &mut Outbox)) {
        let mut out = Outbox::default();
        act(&mut state.servers[usize::from(id)], &mut out);
        send(state, Peer::Server(id), out);
    }

    fn client(&self, state: &mut State, id: ClientId, act: impl FnOnce(&mut Client, &mut Outbox)) {
        let mut out = Outbox::default();
        act(&mut state.clients[usize::from(id)], &mut out);
        send(state, Peer::Client(id), out);
    }

    /// The next message of a lane arrives.
    fn deliver(&self, state: &mut State, from: Peer, to: Peer) -> Result<(), Violation> {
        let message = state.lanes.take(from, to).expect("a step names a lane that has a message");
        let mut out = Outbox::default();
        let rules = &self.rules;
        let result = match (from, to) {
            (Peer::Client(_), Peer::Server(id)) => {
                let Message::Request { request, version } = message else {
                    unreachable!("clients send requests alone")
                };
                state.servers[usize::from(id)].request(rules, request, version, &mut out);
                Ok(())
            }
            (Peer::Server(from), Peer::Server(id)) => {
                state.servers[usize::from(id)].receive(rules, from, message, &mut out)
            }
            (Peer::Server(from), Peer::Client(id)) => {
                state.clients[usize::from(id)].receive(rules, from, message, &mut out)
            }
            (Peer::Client(_), Peer::Client(_)) => unreachable!("clients have no lanes to clients"),
        };
        send(state, to, out);
        result
    }

    /// Both ends of a lane see that it broke, and what was under way is gone.
    fn break_lane(&self, state: &mut State, one: Peer, other: Peer) {
        state.lanes.cut(one, other);
        for (here, there) in [(one, other), (other, one)] {
            match (here, there) {
                (Peer::Server(id), Peer::Server(to)) => {
                    self.server(state, id, |server, out| server.lose_lane(to, out));
                }
                (Peer::Server(id), Peer::Client(client)) => {
                    state.servers[usize::from(id)].lose_client(&self.rules, client);
                }
                (Peer::Client(id), Peer::Server(to)) => self.client(state, id, |client, out| {
                    if client.target == Some(to) {
                        client.ask_again(&self.rules, out);
                    }
                }),
                (Peer::Client(_), Peer::Client(_)) => {}
            }
        }
    }

    fn crash(&self, state: &mut State, id: ServerId) {
        let gone = Server { is_crashed: true, ..Server::new(id, Entry::default()) };
        state.servers[usize::from(id)] = gone;
        state.lanes.lose_to(Peer::Server(id));
    }

    fn report(&self, state: &mut State, source: ServerId) {
        if let Some(feed) = &mut state.servers[usize::from(source)].feed {
            feed.is_reported = true;
            state.scheduler.report(source, feed.transfer);
        }
    }

    fn move_member(&self, state: &mut State, to: ServerId) {
        if self.setup.is_queue {
            return state.scheduler.fill(to);
        }
        let member = state.scheduler.entry().chain.members()[self.setup.moved];
        state.scheduler.move_member(&self.rules, member, to);
    }

    /// The scheduler acts. Where it never dies, each change is saved and sent at once.
    fn schedule(&self, state: &mut State, step: Step) {
        let rules = &self.rules;
        match step {
            Step::TakeReport(id) => state.scheduler.take_report(rules, id),
            Step::Detect(id) => state.scheduler.lose(rules, id),
            Step::Declare(id) => {
                state.faults.declared -= 1;
                state.scheduler.lose(rules, id);
            }
            Step::Fill(id) => state.scheduler.fill(id),
            Step::Move(id) => {
                state.faults.moves -= 1;
                self.move_member(state, id);
            }
            Step::Retire => {
                let member = state.scheduler.entry().chain.members()[self.setup.moved];
                state.scheduler.retire(member);
            }
            Step::Cancel => state.scheduler.cancel(),
            Step::ChangeOther => {
                state.faults.others -= 1;
                state.scheduler.change_another_shard();
            }
            Step::Save => state.scheduler.save(),
            Step::Publish => state.scheduler.send(rules),
            Step::SchedulerCrash => {
                state.faults.scheduler_crashes -= 1;
                state.scheduler.crash();
            }
            Step::SchedulerRestart => state.scheduler.is_up = true,
            _ => unreachable!("{step:?} is no step of the scheduler"),
        }
        if self.setup.faults.scheduler_crashes == 0 {
            state.scheduler.save();
            state.scheduler.send(rules);
        }
    }

    /// Clients that are done take no part in anything more.
    fn rest_clients(&self, state: &mut State) {
        for client in &mut state.clients {
            if client.target.is_some() && client.is_done(&self.rules) {
                client.rest();
            }
            if client.target.is_none() {
                state.lanes.lose_to(Peer::Client(client.id));
            }
        }
    }
}

fn send(state: &mut State, from: Peer, out: Outbox) {
    for (to, message) in out.into_messages() {
        if state.is_live(to) {
            state.lanes.post(from, to, message);
        }
    }
}

impl Machine for Model {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let chain = Chain::of(0..=self.setup.copies as ServerId);
        let entry = Entry { epoch: 0, chain, join: None };
        State {
            servers: (0..self.setup.servers).map(|id| Server::initial(id, entry)).collect(),
            clients: std::array::from_fn(|id| Client::new(id as ClientId, entry)),
            scheduler: Scheduler::new(entry),
            faults: self.setup.faults,
            lanes: Lanes::default(),
        }
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        steps::steps(self, state)
    }

    fn is_optional(&self, step: Step) -> bool {
        step.is_optional()
    }

    fn apply(&self, state: &mut State, step: Step) -> Result<(), Violation> {
        let rules = &self.rules;
        match step {
            Step::Deliver(from, to) => self.deliver(state, from, to)?,
            Step::Send(id) => {
                let known = state.known(rules);
                self.client(state, id, |client, out| client.send(rules, known, out));
            }
            Step::ClientLearns(id) => {
                let entry = state.scheduler.sent_entry();
                self.client(state, id, |client, out| client.learn(rules, entry, out));
            }
            Step::ClientLearnsOther(id) => {
                state.clients[usize::from(id)].newest = state.scheduler.sent();
            }
            Step::ServerLearns(id) => {
                let entry = state.news(id).expect("a step names a server that has news");
                self.server(state, id, |server, out| server.adopt(rules, entry, out));
            }
            Step::SendRow(id) => self.server(state, id, Server::send_row),
            Step::TurnJoint(id) => {
                self.server(state, id, |server, out| server.turn_joint(rules, out));
            }
            Step::Report(id) => self.report(state, id),
            Step::Crash(id) => {
                state.faults.crashes -= 1;
                self.crash(state, id);
            }
            Step::Break(one, other) => {
                state.faults.breaks -= 1;
                self.break_lane(state, one, other);
            }
            _ => self.schedule(state, step),
        }
        self.rest_clients(state);
        invariants::check(rules, state)
    }

    /// Whether all clients are done. Where every member of the chain was lost, nobody can be.
    fn is_finished(&self, state: &State) -> bool {
        let is_lost = state.scheduler.entry().chain.members().is_empty();
        is_lost || state.clients.iter().all(|client| client.is_done(&self.rules))
    }

    fn describe(&self, state: &State, step: Step) -> String {
        match step {
            Step::Deliver(from, to) => {
                let message = state.lanes.clone().take(from, to);
                let message = message.map_or(String::new(), |message| format!("{message:?}"));
                format!("{from} to {to}: {message}")
            }
            Step::Break(one, other) => format!("Break between {one} and {other}"),
            _ => format!("{step:?}"),
        }
    }
}
