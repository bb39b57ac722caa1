//! What nodes want of each other: requests, answers, and barriers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::super::barriers::{Barriers, NAME_BYTES_MAX, Party, Waiting};
use super::super::control::{Acknowledged, Envelope, Order, Post};
use super::super::group::{NodeName, Recipients};
use super::super::members::{Members, Violation};
use super::super::rpc::BODY_BYTES_MAX;
use super::super::session::SessionId;
use super::control_state::ControlState;
use super::exchange::{Batch, Exchange, Question};
use super::jobs::Jobs;
use super::tasks::{Tasks, Unheard};

/// An answer to the message of a node.
struct Reply {
    session: SessionId,
    timestamp: u64,
    /// The answer, or why there is none.
    outcome: Result<Acknowledged, String>,
}

impl Reply {
    fn to(
        Waiting { session, timestamp, .. }: Waiting,
        outcome: Result<Acknowledged, String>,
    ) -> Reply {
        Reply { session, timestamp, outcome }
    }

    /// Tells a node that all have come to its barrier.
    fn met(waiting: Waiting) -> Reply {
        Reply::to(waiting, Ok(Acknowledged::Asked(BTreeSet::new())))
    }
}

/// All envelopes under way, and all barriers.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Posts {
    exchange: Exchange,
    barriers: Barriers,
}

impl Posts {
    /// Takes in what a node wants of others.
    ///
    /// # Errors
    /// If it breaks the rules.
    pub(super) fn ingest(
        &mut self,
        control: &mut ControlState,
        jobs: &Jobs,
        sender: Waiting,
        post: Post,
    ) -> Result<(), Violation> {
        let replies = self.enter(control, jobs, sender, post)?;
        self.reply(control, replies);
        Ok(())
    }

    /// Records what a node wants; returns what is to be answered now.
    fn enter(
        &mut self,
        control: &ControlState,
        jobs: &Jobs,
        sender: Waiting,
        post: Post,
    ) -> Result<Vec<Reply>, Violation> {
        let from = sender.node;
        let outcome = match post {
            Post::Request { id, to, handler, command, body } => {
                check(handler.len(), NAME_BYTES_MAX)?;
                check(body.0.len(), BODY_BYTES_MAX)?;
                let question = Question { asker: from, id, handler, command, body };
                let nodes = recipients(control, jobs, from, to);
                let asked =
                    nodes.and_then(|nodes| self.exchange.ask(&question, &nodes).map(|()| nodes));
                asked.map(Acknowledged::Asked)
            }
            Post::Answer { number, outcome } => {
                let bytes = outcome.as_ref().map_or_else(String::len, |body| body.0.len());
                check(bytes, BODY_BYTES_MAX)?;
                let answered = self.exchange.answer(from, number, outcome);
                answered.map(|()| Acknowledged::Asked(BTreeSet::new()))
            }
            Post::Barrier { party, name } => {
                check(name.len(), NAME_BYTES_MAX)?;
                match nodes_of(&control.members, &jobs.tasks, from, party) {
                    Ok(nodes) => return Ok(self.arrive(sender, party, name, nodes)),
                    Err(why) => Err(why),
                }
            }
            Post::Missing { party, name } => {
                check(name.len(), NAME_BYTES_MAX)?;
                let missing = self.barriers.missing(party, name, from);
                let given_up = missing.is_some().then(|| self.give_up(from)).flatten();
                let why = "it does not wait at a barrier of that name";
                let outcome = missing.map(Acknowledged::Missing).ok_or_else(|| why.to_owned());
                let said = Reply::to(sender, outcome);
                return Ok([said].into_iter().chain(given_up).collect());
            }
        };
        Ok(vec![Reply::to(sender, outcome)])
    }

    fn arrive(
        &mut self,
        sender: Waiting,
        party: Party,
        name: String,
        nodes: BTreeSet<NodeName>,
    ) -> Vec<Reply> {
        let given_up = self.give_up(sender.node);
        let met = self.barriers.arrive(party, name, sender, nodes);
        given_up.into_iter().chain(met.into_iter().map(Reply::met)).collect()
    }

    /// Ends the wait of a node at a barrier.
    fn give_up(&mut self, node: NodeName) -> Option<Reply> {
        let waiting = self.barriers.forget(node)?;
        Some(Reply::to(waiting, Err("this node waits no longer at the barrier".to_owned())))
    }

    /// Goes on without a node that is lost for this reason.
    pub(super) fn lose(&mut self, control: &mut ControlState, node: NodeName, reason: &str) {
        self.exchange.lose(node, reason);
        let met = self.barriers.lose(node).into_iter().map(Reply::met).collect();
        self.reply(control, met);
    }

    /// Tells workers that others have failed at tasks that they run.
    pub(super) fn tell_failures(&mut self, control: &mut ControlState, unheard: Vec<Unheard>) {
        if unheard.is_empty() {
            return;
        }
        for Unheard { rank, failure } in unheard {
            let worker = NodeName::Worker(rank);
            if control.session(worker).is_some() {
                self.exchange.tell(worker, Envelope::Failed(failure));
            }
        }
        self.hand_on(control);
    }

    /// Records that a node has taken the envelopes of this batch, and sends it the next ones;
    /// returns false if it has none.
    pub(super) fn taken(
        &mut self,
        control: &mut ControlState,
        node: NodeName,
        number: u64,
    ) -> bool {
        let is_taken = self.exchange.taken(node, number);
        self.hand_on(control);
        is_taken
    }

    /// Answers nodes, and hands on envelopes.
    fn reply(&mut self, control: &mut ControlState, replies: Vec<Reply>) {
        for Reply { session, timestamp, outcome } in replies {
            match outcome {
                Ok(answer) => control.tell(session, timestamp, &answer),
                Err(why) => control.refuse(session, timestamp, &why),
            }
        }
        self.hand_on(control);
    }

    /// Sends the envelopes of nodes that have taken their last ones.
    fn hand_on(&mut self, control: &mut ControlState) {
        while let Some(Batch { number, to, envelopes }) = self.exchange.next() {
            if let Some(session) = control.session(to) {
                control.order(session, number, &Order::Envelopes(envelopes));
            }
        }
    }
}

/// The nodes that a request of this node goes to.
///
/// # Errors
/// The reason why there are none.
fn recipients(
    control: &ControlState,
    jobs: &Jobs,
    from: NodeName,
    to: Recipients,
) -> Result<BTreeSet<NodeName>, String> {
    let driver = match to {
        Recipients::DriverOf(task) => jobs.driver_of(from, task)?,
        Recipients::Node(node @ NodeName::Driver(_)) => node,
        _ => return control.members.named(to),
    };
    control.session(driver).map(|_| [driver].into()).ok_or_else(|| format!("there is no {driver}"))
}

/// The nodes that a barrier of this party is for.
///
/// # Errors
/// The reason why this node is none of them.
fn nodes_of(
    members: &Members,
    tasks: &Tasks,
    node: NodeName,
    party: Party,
) -> Result<BTreeSet<NodeName>, String> {
    match (party, node) {
        (Party::Group(group), _) if group.has(node) => members.named(group.into()),
        (Party::Group(group), _) => {
            Err(format!("{node} is none of {group}, for whom the barrier is"))
        }
        (Party::Task(task), NodeName::Worker(rank)) if tasks.is_run_by(task, rank) => {
            Ok(tasks.ranks(task).into_iter().map(NodeName::Worker).collect())
        }
        (Party::Task(_), _) => Err(format!("{node} does not run the task of that barrier")),
    }
}

fn check(bytes: usize, bytes_max: usize) -> Result<(), Violation> {
    if bytes > bytes_max { Err(Violation::LongPost { bytes, bytes_max }) } else { Ok(()) }
}
