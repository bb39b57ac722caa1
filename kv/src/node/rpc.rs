//! A node's requests to other nodes, and its answers to theirs.
//!
//! They go over the node's lane to the scheduler, whose thread hands them on
//! (`node/scheduler/exchange.rs`). An RPC endpoint is a node's book of them: it has no lane itself.
//! The thread that owns the lane brings what arrived and takes what is to be sent.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::barriers::{NAME_BYTES_MAX, Party};
use super::control::{Acknowledged, Body, CREDITS, Envelope, Post};
use super::group::{Group, NodeName, Recipients};
use super::lane::SchedulerLane;
use crate::error::{Error, Result};

/// Longest body of a request or an answer, in bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Most requests of a node that are not answered, or that it has not waited for.
const REQUESTS_MAX: usize = 10_000;

/// Most messages of an RPC endpoint that the scheduler has not acknowledged. Half of the lane's
/// credits are for others.
const POSTS_MAX: usize = CREDITS as usize / 2;

/// Longest sleep while waiting.
const BACKOFF: Duration = Duration::from_millis(100);

/// How long the scheduler may take to name the nodes missing at a barrier.
const SAY_WHO: Duration = Duration::from_secs(2);

/// Number of a request that a node has made to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The right to answer a request, once, at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);

/// A request of another node, or of this one.
#[derive(Debug)]
pub struct Asked {
    /// The node that asks.
    pub from: NodeName,
    /// What it asks for; the handler defines it.
    pub command: i32,
    /// The rest of what it asks for.
    pub body: Vec<u8>,
    /// By this [`Rpc::answer`] knows the request.
    pub token: Token,
}

/// The answer of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The node.
    pub node: NodeName,
    /// Its answer, or why there is none.
    pub outcome: Result<Vec<u8>, String>,
}

/// Answers requests of other nodes: at once, later by its [`Token`], or when others have answered
/// requests of its own. Closures `FnMut(&mut Rpc, Asked)` are handlers.
///
/// It runs on the thread that has the node's lane to the scheduler, while that waits or polls. It
/// must not block.
pub trait Handler {
    /// Takes a request.
    fn respond(&mut self, rpc: &mut Rpc, asked: Asked);
}

impl<F: FnMut(&mut Rpc, Asked)> Handler for F {
    fn respond(&mut self, rpc: &mut Rpc, asked: Asked) {
        self(rpc, asked);
    }
}

type MakeHandler = dyn Fn() -> Box<dyn Handler> + Send + Sync;

/// The handlers that nodes begin with, by name.
#[derive(Clone, Default)]
pub(crate) struct Handlers(HashMap<String, Arc<MakeHandler>>);

impl Handlers {
    pub(crate) fn insert(
        &mut self,
        name: &str,
        make: impl Fn() -> Box<dyn Handler> + Send + Sync + 'static,
    ) {
        self.0.insert(name.to_owned(), Arc::new(make));
    }

    /// An RPC endpoint with these handlers.
    pub(crate) fn rpc(&self) -> Rpc {
        let mut rpc = Rpc::default();
        for (name, make) in &self.0 {
            rpc.handlers.insert(name.clone(), make());
        }
        rpc
    }
}

/// Runs when a request is complete.
type Then = Box<dyn FnOnce(&mut Rpc, Result<Vec<Answered>>)>;

/// A request that this node has made.
struct Open {
    what: String,
    /// The nodes that have not answered, once it is known which were asked.
    missing: Option<BTreeSet<NodeName>>,
    answers: BTreeMap<NodeName, Result<Vec<u8>, String>>,
    refused: Option<String>,
    then: Option<Then>,
}

impl Open {
    fn is_done(&self) -> bool {
        self.refused.is_some() || self.missing.as_ref().is_some_and(BTreeSet::is_empty)
    }

    fn into_outcome(self) -> Result<Vec<Answered>> {
        let answered = |(node, outcome)| Answered { node, outcome };
        match self.refused {
            Some(why) => Err(Error::Config(why)),
            None => Ok(self.answers.into_iter().map(answered).collect()),
        }
    }
}

/// A message that waits for room on the lane, and the request that its acknowledgement is for.
struct Unsent {
    post: Post,
    request: Option<RequestId>,
}

/// A node's book of requests.
#[derive(Default)]
pub struct Rpc {
    handlers: HashMap<String, Box<dyn Handler>>,
    count: u64,
    open: BTreeMap<RequestId, Open>,
    /// Requests of others that have not been answered.
    owed: BTreeSet<u64>,
    unsent: VecDeque<Unsent>,
    /// By number on the lane, messages that the scheduler has not acknowledged.
    sent: HashMap<u64, Option<RequestId>>,
}

impl Rpc {
    /// Makes `handler` answer the requests to handlers of this name at this node.
    pub fn set_handler(&mut self, name: &str, handler: impl Handler + 'static) {
        self.handlers.insert(name.to_owned(), Box::new(handler));
    }

    /// Asks the handlers called `handler` of these nodes. The request is complete when all of
    /// them have answered or are lost.
    ///
    /// # Errors
    /// [`Error::Config`] if the body or the name is too long, or too many requests are open.
    pub fn ask(
        &mut self,
        to: impl Into<Recipients>,
        handler: &str,
        command: i32,
        body: &[u8],
    ) -> Result<RequestId> {
        check(handler, body)?;
        let to = to.into();
        let what = format!("command {command} to {handler} of {to}");
        let handler = handler.to_owned();
        let body = Body(body.to_vec());
        self.open(what, |id| Post::Request { id, to, handler, command, body })
    }

    /// Arrives at the barrier called `name` of a group that this node belongs to. The request is
    /// complete when all nodes of the group have arrived. A node waits at one barrier at a time.
    ///
    /// # Errors
    /// As [`Rpc::ask`].
    pub fn barrier(&mut self, group: Group, name: &str) -> Result<RequestId> {
        self.arrive(Party::Group(group), name)
    }

    fn arrive(&mut self, party: Party, name: &str) -> Result<RequestId> {
        check(name, &[])?;
        let name = name.to_owned();
        self.open(format!("the barrier {name}"), |_| Post::Barrier { party, name })
    }

    fn open(&mut self, what: String, post: impl FnOnce(u64) -> Post) -> Result<RequestId> {
        if self.open.len() >= REQUESTS_MAX {
            return Err(Error::Config(format!(
                "{REQUESTS_MAX} requests to other nodes are not complete: wait for some of them"
            )));
        }
        self.count += 1;
        let id = RequestId(self.count);
        let (missing, answers) = (None, BTreeMap::new());
        self.open.insert(id, Open { what, missing, answers, refused: None, then: None });
        self.unsent.push_back(Unsent { post: post(id.0), request: Some(id) });
        Ok(id)
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`Error::Answered`] if it was answered before; [`Error::Config`] if the body is too long.
    pub fn answer(&mut self, token: Token, body: &[u8]) -> Result<()> {
        check("", body)?;
        self.conclude(token, Ok(Body(body.to_vec())))
    }

    /// Answers a request by the reason why it cannot be done.
    ///
    /// # Errors
    /// As [`Rpc::answer`].
    pub fn refuse(&mut self, token: Token, reason: &str) -> Result<()> {
        check("", reason.as_bytes())?;
        self.conclude(token, Err(reason.to_owned()))
    }

    fn conclude(&mut self, token: Token, outcome: Result<Body, String>) -> Result<()> {
        if !self.owed.remove(&token.0) {
            return Err(Error::Answered { number: token.0 });
        }
        let post = Post::Answer { number: token.0, outcome };
        self.unsent.push_back(Unsent { post, request: None });
        Ok(())
    }

    /// Whether a request is complete.
    ///
    /// # Errors
    /// [`Error::UnknownTimestamp`] if there is no such request, or its outcome was taken.
    pub fn is_done(&self, request: RequestId) -> Result<bool> {
        let open = self.open.get(&request);
        open.map(Open::is_done).ok_or(Error::UnknownTimestamp { timestamp: request.0 })
    }

    /// Runs `then` with the outcome of a request, at once if it is complete. Nobody may wait for it
    /// then.
    ///
    /// # Errors
    /// As [`Rpc::is_done`].
    pub fn then(
        &mut self,
        request: RequestId,
        then: impl FnOnce(&mut Rpc, Result<Vec<Answered>>) + 'static,
    ) -> Result<()> {
        match self.claim(request)? {
            Some(outcome) => then(self, outcome),
            None => {
                self.open.entry(request).and_modify(|open| open.then = Some(Box::new(then)));
            }
        }
        Ok(())
    }

    /// Takes the outcome of a complete request.
    fn claim(&mut self, request: RequestId) -> Result<Option<Result<Vec<Answered>>>> {
        match self.is_done(request)? {
            true => Ok(self.open.remove(&request).map(Open::into_outcome)),
            false => Ok(None),
        }
    }

    /// What an incomplete request waits for: itself, and the nodes that have not answered.
    fn awaited(&self, request: RequestId) -> (String, String) {
        let Some(open) = self.open.get(&request) else { return Default::default() };
        let missing = match &open.missing {
            Some(missing) => missing.iter().map(NodeName::to_string).collect::<Vec<_>>().join(", "),
            None => "the scheduler".to_owned(),
        };
        (open.what.clone(), missing)
    }

    /// Runs what waits for a request, if that is complete.
    fn settle(&mut self, request: RequestId) {
        let is_due = |open: &Open| open.is_done() && open.then.is_some();
        if self.open.get(&request).is_some_and(is_due)
            && let Some(mut open) = self.open.remove(&request)
            && let Some(then) = open.then.take()
        {
            then(self, open.into_outcome());
        }
    }

    /// Takes in what the scheduler hands on.
    pub(super) fn deliver(&mut self, envelopes: Vec<Envelope>) {
        for envelope in envelopes {
            match envelope {
                Envelope::Request { number, from, handler, command, body } => {
                    let token = Token(number);
                    self.owed.insert(number);
                    // It may set another of its name, and ask itself only by the scheduler.
                    let Some(mut it) = self.handlers.remove(&handler) else {
                        let why = format!("this node has no handler called {handler}");
                        let _ = self.refuse(token, &why); // it is owed
                        continue;
                    };
                    it.respond(self, Asked { from, command, body: body.0, token });
                    self.handlers.entry(handler).or_insert(it);
                }
                Envelope::Answer { id, from, outcome } => {
                    let id = RequestId(id);
                    let Some(open) = self.open.get_mut(&id) else { continue };
                    let Some(missing) = &mut open.missing else { continue };
                    if missing.remove(&from) {
                        open.answers.insert(from, outcome.map(|body| body.0));
                    }
                    self.settle(id);
                }
                Envelope::Failed(_) => {} // of tasks, of which a rpc knows nothing
            }
        }
    }

    /// Records the scheduler's answer to a message, if it is one of this RPC endpoint.
    ///
    /// # Errors
    /// [`Error::Control`] if it cannot be parsed.
    pub(super) fn acknowledge(&mut self, to: u64, answer: &str) -> Result<()> {
        let Some(Some(request)) = self.sent.remove(&to) else { return Ok(()) };
        let Some(open) = self.open.get_mut(&request) else { return Ok(()) };
        let missing = match serde_json::from_str(answer)? {
            Acknowledged::Asked(nodes) => nodes,
            Acknowledged::Missing(nodes) => {
                open.answers.extend(nodes.into_iter().map(|node| (node, Ok(Vec::new()))));
                BTreeSet::new()
            }
        };
        open.missing = Some(missing);
        self.settle(request);
        Ok(())
    }

    /// Records that the scheduler refuses a message; returns false if it is none of this RPC
    /// endpoint.
    pub(super) fn refused(&mut self, to: u64, why: &str) -> bool {
        let Some(request) = self.sent.remove(&to) else { return false };
        let Some(request) = request else { return true };
        self.open.entry(request).and_modify(|open| open.refused = Some(why.to_owned()));
        self.settle(request);
        true
    }

    /// Sends what waits, as far as there is room; returns whether there was anything.
    ///
    /// # Errors
    /// Those of the lane.
    pub(super) fn flush<T: Serialize>(
        &mut self,
        lane: &mut SchedulerLane,
        wrap: impl Fn(Post) -> T,
    ) -> Result<bool> {
        let mut any = false;
        while self.sent.len() < POSTS_MAX
            && lane.has_room()
            && let Some(Unsent { post, request }) = self.unsent.pop_front()
        {
            self.sent.insert(lane.ask(&wrap(post))?, request);
            any = true;
        }
        Ok(any)
    }
}

fn check(name: &str, body: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        let bytes = name.len();
        return Err(Error::Config(format!(
            "a name has {bytes} bytes; it may have {NAME_BYTES_MAX}"
        )));
    }
    if body.len() > BODY_BYTES_MAX {
        return Err(Error::Config(format!(
            "a message to other nodes has {} bytes; it may have {BODY_BYTES_MAX} (push long values \
             to a table)",
            body.len()
        )));
    }
    Ok(())
}

/// Who has an RPC endpoint, and a lane to the scheduler's thread.
pub(crate) trait AtRpc {
    fn rpc(&mut self) -> &mut Rpc;

    fn lane(&mut self) -> &mut SchedulerLane;

    /// Takes in what came and sends what waits.
    ///
    /// # Errors
    /// If nobody's wait can succeed any more.
    fn look(&mut self) -> Result<()>;

    /// Lets `use_it` use the RPC endpoint, and sends what it has written.
    ///
    /// # Errors
    /// As [`AtRpc::look`].
    fn with_rpc<T>(&mut self, use_it: impl FnOnce(&mut Rpc) -> T) -> Result<T> {
        let used = use_it(self.rpc());
        self.look()?;
        Ok(used)
    }

    /// Waits until a request is complete, and takes its outcome.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the nodes that have not answered, and the caller may wait again;
    /// [`Error::NodeLost`]; [`Error::Config`] if there is no such node.
    fn wait_for(&mut self, request: RequestId, timeout: Duration) -> Result<Vec<Answered>> {
        let began = self.lane().now();
        loop {
            let looked = self.look();
            if let Some(outcome) = self.rpc().claim(request)? {
                return outcome;
            }
            looked?;
            let waited = self.lane().now() - began;
            if waited >= timeout {
                let (what, missing) = self.rpc().awaited(request);
                return Err(Error::Timeout { what, seconds: waited.as_secs_f64(), missing });
            }
            self.lane().wait(BACKOFF.min(timeout - waited))?;
        }
    }

    /// Waits until all nodes of a party have reached its barrier called `name`.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing nodes; as [`AtRpc::wait_for`].
    fn meet(&mut self, party: Party, name: &str, timeout: Duration) -> Result<()> {
        let arrived = self.rpc().arrive(party, name)?;
        let late = match self.wait_for(arrived, timeout) {
            Err(late @ Error::Timeout { .. }) => late,
            met => {
                // Nobody waits for an answer that still comes.
                self.rpc().open.remove(&arrived);
                return met.map(drop);
            }
        };
        let post = |_| Post::Missing { party, name: name.to_owned() };
        let missing = self.rpc().open(format!("who is missing at the barrier {name}"), post)?;
        let missing = self.wait_for(missing, SAY_WHO);
        if let Some(Ok(_)) = self.rpc().claim(arrived)? {
            return Ok(()); // the last ones came just now
        }
        self.rpc().open.remove(&arrived);
        match (missing, late) {
            (Ok(missing), Error::Timeout { what, seconds, .. }) => {
                let names = missing.iter().map(|it| it.node.to_string());
                let missing = names.collect::<Vec<_>>().join(", ");
                Err(Error::Timeout { what, seconds, missing })
            }
            (missing, late) => Err(missing.err().unwrap_or(late)),
        }
    }
}
