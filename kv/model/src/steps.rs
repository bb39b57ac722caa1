//! What can happen next: messages that arrive, peers that act, and faults.

use crate::entry::{SERVERS_MAX, ServerId};
use crate::lanes::{Message, Peer};
use crate::model::{Model, State};
use crate::mutants::Mutant;
use crate::scheduler::VERSIONS_MAX;
use crate::workload::{CLIENTS, ClientId};

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The next message of a lane arrives.
    Deliver(Peer, Peer),
    /// A client sends its next request.
    Send(ClientId),
    /// A client hears the newest entry.
    ClientLearns(ClientId),
    /// A client hears of another shard, in the newest version.
    ClientLearnsOther(ClientId),
    /// A server hears the next entry.
    ServerLearns(ServerId),
    /// A source sends a row.
    SendRow(ServerId),
    /// A source makes its feed joint.
    TurnJoint(ServerId),
    /// A source reports its transfer.
    Report(ServerId),
    /// The scheduler takes the report of a source.
    TakeReport(ServerId),
    /// The scheduler finds that a server is gone.
    Detect(ServerId),
    /// The scheduler fills the chain up with a spare server.
    Fill(ServerId),
    /// The scheduler saves.
    Save,
    /// The scheduler sends.
    Publish,
    /// The scheduler comes back.
    SchedulerRestart,
    /// A server dies.
    Crash(ServerId),
    /// The scheduler declares a server lost that lives.
    Declare(ServerId),
    /// A lane breaks.
    Break(Peer, Peer),
    /// The scheduler moves a member to a spare server.
    Move(ServerId),
    /// The scheduler takes a member out of a chain that is too long.
    Retire,
    /// The scheduler takes a join back.
    Cancel,
    /// The entry of another shard changes.
    ChangeOther,
    /// The scheduler dies.
    SchedulerCrash,
}

impl Step {
    /// Whether it may never happen. Everything else happens sooner or later.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Step::Crash(_)
                | Step::Declare(_)
                | Step::Break(..)
                | Step::Move(_)
                | Step::Cancel
                | Step::ChangeOther
                | Step::ClientLearnsOther(_)
                | Step::SchedulerCrash
        )
    }
}

/// All events that can happen in a state.
pub fn steps(model: &Model, state: &State) -> Vec<Step> {
    // Only a lane that breaks loses an answer. Where none can, an answer arrives at once.
    if model.setup.faults.breaks == 0
        && let Some(answer) = state.lanes.answers_alone()
    {
        return vec![Step::Deliver(answer.from, answer.to)];
    }
    let mut steps = Vec::with_capacity(16);
    deliveries(model, state, &mut steps);
    for client in 0..CLIENTS as ClientId {
        client_steps(model, state, client, &mut steps);
    }
    for server in state.live_servers() {
        server_steps(model, state, server, &mut steps);
    }
    scheduler_steps(model, state, &mut steps);
    faults(state, &mut steps);
    steps
}

/// A request waits at a server that has not heard the version that it came under.
fn deliveries(model: &Model, state: &State, steps: &mut Vec<Step>) {
    let waits_for_news = !model.rules.breaks(Mutant::RequestAheadOfMap);
    for flight in state.lanes.next_of_each() {
        let waits = match (flight.to, flight.message) {
            (Peer::Server(server), Message::Request { version, .. }) => {
                let news = state.news(server);
                waits_for_news && news.is_some_and(|entry| entry.epoch <= version)
            }
            _ => false,
        };
        if !waits {
            steps.push(Step::Deliver(flight.from, flight.to));
        }
    }
}

fn client_steps(model: &Model, state: &State, id: ClientId, steps: &mut Vec<Step>) {
    let client = &state.clients[usize::from(id)];
    let has_more = usize::from(client.sent) < model.setup.programs[usize::from(id)].len();
    let outstanding = client.outstanding(&model.rules).count();
    if has_more && outstanding < model.setup.window && client.target.is_some() {
        steps.push(Step::Send(id));
    }
    if client.waits_for(&model.rules, state.scheduler.sent_entry()) {
        steps.push(Step::ClientLearns(id));
    }
    let has_others = model.setup.faults.others > 0;
    if has_others && client.target.is_some() && client.newest < state.scheduler.sent() {
        steps.push(Step::ClientLearnsOther(id));
    }
}

fn server_steps(model: &Model, state: &State, id: ServerId, steps: &mut Vec<Step>) {
    if state.news(id).is_some() {
        steps.push(Step::ServerLearns(id));
    }
    let Some(feed) = state.servers[usize::from(id)].feed else { return };
    if feed.has_row_to_send() {
        steps.push(Step::SendRow(id));
    }
    if feed.can_turn_joint() {
        steps.push(Step::TurnJoint(id));
    }
    let is_early = model.rules.breaks(Mutant::WholeBeforeSuffix) && feed.has_all_rows();
    if (feed.is_in_sync() || is_early) && may_report(model, state, id) {
        steps.push(Step::Report(id));
    }
}

/// A source reports once, and again to a scheduler that came back, while its entry is the newest.
fn may_report(model: &Model, state: &State, id: ServerId) -> bool {
    let server = &state.servers[usize::from(id)];
    let Some(feed) = server.feed else { return false };
    let scheduler = &state.scheduler;
    let has_died = state.faults.scheduler_crashes < model.setup.faults.scheduler_crashes;
    let is_newest = scheduler.entry().epoch == server.entry.epoch;
    let may = !feed.is_reported || has_died && is_newest;
    scheduler.is_up && may && scheduler.report_of(id) != Some(feed.transfer)
}

fn scheduler_steps(model: &Model, state: &State, steps: &mut Vec<Step>) {
    let scheduler = &state.scheduler;
    if scheduler.can_save() {
        steps.push(Step::Save);
    }
    if scheduler.can_send(&model.rules) {
        steps.push(Step::Publish);
    }
    if !scheduler.is_up && !model.setup.is_scheduler_gone {
        steps.push(Step::SchedulerRestart);
    }
    if scheduler.is_idle() {
        changes(model, state, steps);
    }
}

/// The changes that the scheduler may make when the last one was sent.
fn changes(model: &Model, state: &State, steps: &mut Vec<Step>) {
    let entry = state.scheduler.entry();
    for id in 0..SERVERS_MAX as ServerId {
        if state.scheduler.report_of(id).is_some() {
            steps.push(Step::TakeReport(id));
        }
    }
    for server in state.servers.iter().filter(|server| entry.names(server.id)) {
        let can_be_spared = entry.chain.members() != [server.id];
        if state.scheduler.has_lost(server.id) {
            continue;
        }
        if server.is_crashed {
            steps.push(Step::Detect(server.id));
        } else if can_be_spared && state.faults.declared > 0 {
            steps.push(Step::Declare(server.id));
        }
    }
    let length = entry.chain.members().len();
    // Spare servers are alike, so the first stands for all.
    if let Some(spare) = first_spare(state).filter(|_| entry.join.is_none() && length > 0) {
        if model.setup.fills && length <= model.setup.copies {
            steps.push(Step::Fill(spare));
        }
        if state.faults.moves > 0 && length == model.setup.copies + 1 {
            steps.push(Step::Move(spare));
        }
    }
    if model.setup.is_queue && length > model.setup.copies + 1 && entry.join.is_none() {
        steps.push(Step::Retire);
    }
    if model.setup.faults.moves > 1 && state.faults.moves > 0 && entry.join.is_some() {
        steps.push(Step::Cancel);
    }
    if state.faults.others > 0 {
        steps.push(Step::ChangeOther);
    }
    let is_change = |step: &Step| !matches!(step, Step::TakeReport(_));
    assert!(
        state.scheduler.sent() as usize + 1 < VERSIONS_MAX || !steps.iter().any(is_change),
        "a run has more than {VERSIONS_MAX} versions of the map; raise VERSIONS_MAX"
    );
}

fn first_spare(state: &State) -> Option<ServerId> {
    let entry = state.scheduler.entry();
    state.live_servers().find(|id| !state.scheduler.has_lost(*id) && !entry.chain.has(*id))
}

fn faults(state: &State, steps: &mut Vec<Step>) {
    if state.faults.crashes > 0 {
        let entry = state.scheduler.saved_entry();
        let members = entry.chain.members();
        let live = members.iter().filter(|id| !state.servers[usize::from(**id)].is_crashed).count();
        for id in state.live_servers().filter(|id| entry.names(*id)) {
            if !entry.chain.has(id) || live > 1 {
                steps.push(Step::Crash(id));
            }
        }
    }
    if state.faults.breaks > 0 {
        steps.extend(lanes_in_use(state).into_iter().map(|[one, other]| Step::Break(one, other)));
    }
    if state.faults.scheduler_crashes > 0 && state.scheduler.is_up {
        steps.push(Step::SchedulerCrash);
    }
}

/// Lanes that carry something, or a link: nobody sees that others break.
fn lanes_in_use(state: &State) -> Vec<[Peer; 2]> {
    let mut lanes: Vec<[Peer; 2]> = state.lanes.pairs().collect();
    for id in state.live_servers() {
        let server = &state.servers[usize::from(id)];
        let successor = server.successor.map(|link| link.server);
        let joiner = server.feed.map(|feed| feed.joiner);
        let linked = successor.into_iter().chain(joiner);
        lanes.extend(linked.map(|to| [Peer::Server(id.min(to)), Peer::Server(id.max(to))]));
        let clients = state.clients.iter().filter(|client| client.target == Some(id));
        lanes.extend(clients.map(|client| [Peer::Server(id), Peer::Client(client.id)]));
    }
    lanes.sort_unstable();
    lanes.dedup();
    lanes.retain(|ends| ends.iter().all(|end| state.is_live(*end)));
    lanes
}
