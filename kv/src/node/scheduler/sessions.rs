//! All sessions of the control plane, seen from its middle: who has which, what is to be said in
//! it, and the lane that carries it now.
//!
//! What is said here is sent by [`Sessions::send`], once the state that follows from it is saved.
//! So nobody ever hears what a scheduler that comes back does not know.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use caravan_van::wire::Hello;
use caravan_van::{Endpoint, Message, PeerId};
use serde::{Deserialize, Serialize, Serializer};

use super::super::session::{self, Incoming, Misheard, Said, Session, SessionId, Speech, Stamp};

/// Most messages that a node may leave without an acknowledgement.
const UNACKNOWLEDGED_MAX: usize = 10_000;

/// A session and whose it is.
#[derive(Serialize, Deserialize)]
struct Held {
    role: u8,
    incarnation: u64,
    /// Whether it outlasts the scheduler.
    is_kept: bool,
    /// Whether its node was told that there is no such session: what it says is not heard.
    #[serde(skip)]
    is_gone: bool,
    session: Session,
    /// Its lane; none while its node has not come back to a scheduler that has.
    #[serde(skip)]
    lane: Option<PeerId>,
    /// Numbers of messages that are to be acknowledged.
    #[serde(skip)]
    heard: Vec<u64>,
}

/// All sessions.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Sessions {
    count: u64,
    #[serde(serialize_with = "kept")]
    held: BTreeMap<SessionId, Held>,
    #[serde(skip)]
    at: HashMap<PeerId, SessionId>,
    /// Sessions with something to send.
    #[serde(skip)]
    due: BTreeSet<SessionId>,
    /// Lanes that are to be closed.
    #[serde(skip)]
    closing: Vec<PeerId>,
    /// Whether anything has happened in a session that outlasts the scheduler.
    #[serde(skip)]
    has_news: bool,
}

/// Writes only what outlasts the scheduler.
fn kept<S: Serializer>(held: &BTreeMap<SessionId, Held>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(held.iter().filter(|(_, held)| held.is_kept))
}

impl Sessions {
    /// Begins a session on a lane that has proved who it is.
    pub(super) fn begin(&mut self, lane: PeerId, hello: &Hello) -> SessionId {
        self.count += 1;
        let id = SessionId(self.count);
        let held = Held {
            role: hello.role,
            incarnation: hello.incarnation.get(),
            is_kept: false,
            is_gone: false,
            session: Session::default(),
            lane: Some(lane),
            heard: Vec::new(),
        };
        self.held.insert(id, held);
        self.at.insert(lane, id);
        id
    }

    /// The session that a lane carries.
    pub(super) fn at(&self, lane: PeerId) -> Option<SessionId> {
        self.at.get(&lane).copied()
    }

    /// Whether nothing was heard in it so far.
    pub(super) fn is_new(&self, id: SessionId) -> bool {
        self.held.get(&id).is_some_and(|held| held.session.is_new())
    }

    /// Whether all whose sessions outlast the scheduler have a lane here.
    pub(super) fn all_are_back(&self) -> bool {
        self.held.values().all(|held| !held.is_kept || held.lane.is_some())
    }

    /// Whether there is such a session.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.held.contains_key(&id)
    }

    /// The state that its node has heard of last.
    pub(super) fn stamp(&self, id: SessionId) -> Stamp {
        self.held.get(&id).map_or(Stamp::default(), |held| held.session.stamp())
    }

    /// Lets a session outlast the scheduler.
    pub(super) fn keep(&mut self, id: SessionId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.is_kept = true;
            self.has_news = true;
        }
    }

    /// Says something in a session that there may be no more.
    pub(super) fn say(&mut self, id: SessionId, speech: Speech, of: u64, what: &impl Serialize) {
        let Some(held) = self.held.get_mut(&id) else { return };
        // What the scheduler says can always be written.
        if held.session.say(speech, of, what).is_ok() {
            self.has_news |= held.is_kept;
            self.due.insert(id);
        }
    }

    /// As [`Sessions::say`], why there is no answer.
    pub(super) fn refuse(&mut self, id: SessionId, of: u64, why: &str) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.session.say_text(Speech::Refuse, of, why.to_owned());
        self.has_news |= held.is_kept;
        self.due.insert(id);
    }

    /// Takes in what has arrived; returns what is new.
    ///
    /// # Errors
    /// If no honest node says it.
    pub(super) fn ingest(
        &mut self,
        id: SessionId,
        message: &Message,
    ) -> Result<Option<Said>, Misheard> {
        let held = self.held.get_mut(&id).filter(|held| !held.is_gone);
        let Some(held) = held else { return Ok(None) };
        self.due.insert(id);
        Ok(match held.session.ingest(message)? {
            Incoming::Acknowledged => None,
            Incoming::Known { number } => {
                held.heard.push(number);
                None
            }
            Incoming::New { number, said } => {
                held.heard.push(number);
                self.has_news |= held.is_kept;
                Some(said)
            }
        })
    }

    /// Goes on with the session of an earlier lane on the lane of session `new`, which its node has
    /// begun for that, and which is no more.
    ///
    /// # Errors
    /// If the node has none here: it was lost meanwhile, or belongs to another cluster.
    pub(super) fn resume(&mut self, new: SessionId) -> Result<SessionId, ()> {
        let id = self.earlier(new).ok_or(())?;
        let lane = self.held.get(&new).and_then(|held| held.lane).ok_or(())?;
        let heard = self.held.remove(&new).map(|held| held.heard).unwrap_or_default();
        self.at.insert(lane, id);
        if let Some(held) = self.held.get_mut(&id) {
            held.session.begin_lane();
            held.heard = heard;
            if let Some(old) = held.lane.replace(lane) {
                self.at.remove(&old);
                self.closing.push(old);
            }
        }
        self.due.insert(id);
        Ok(id)
    }

    /// The session that outlasts the scheduler, of the node that has begun session `new`.
    pub(super) fn earlier(&self, new: SessionId) -> Option<SessionId> {
        let asks = self.held.get(&new)?;
        let is_it = |(id, held): &(&SessionId, &Held)| {
            let is_same = (held.role, held.incarnation) == (asks.role, asks.incarnation);
            **id != new && held.is_kept && is_same
        };
        self.held.iter().find(is_it).map(|(id, _)| *id)
    }

    /// Ends the session of a lane that is lost, and returns it.
    pub(super) fn lose(&mut self, lane: PeerId) -> Option<SessionId> {
        let id = self.at.remove(&lane)?;
        self.end(id);
        Some(id)
    }

    /// Ends a session, and has its lane closed.
    pub(super) fn close(&mut self, id: SessionId) {
        if let Some(lane) = self.end(id) {
            self.at.remove(&lane);
            self.closing.push(lane);
        }
    }

    fn end(&mut self, id: SessionId) -> Option<PeerId> {
        let held = self.held.remove(&id)?;
        self.has_news |= held.is_kept;
        held.lane
    }

    /// Whether anything has happened that a scheduler which comes back must know, and that is not
    /// saved.
    pub(super) fn has_news(&self) -> bool {
        self.has_news
    }

    /// Records that everything so far is saved.
    pub(super) fn saved(&mut self) {
        self.has_news = false;
    }

    /// Records something that a scheduler which comes back must know.
    pub(super) fn enter_news(&mut self) {
        self.has_news = true;
    }

    /// Acknowledges what was heard, and sends what was said, which follows from the state `stamp`.
    /// Where there is none to speak of, only sessions go on that do not outlast the scheduler:
    /// those of heartbeats, and of drivers that only look. Returns the sessions of nodes that do
    /// not listen.
    pub(super) fn send(&mut self, endpoint: &mut Endpoint, stamp: Option<Stamp>) -> Vec<SessionId> {
        for lane in self.closing.drain(..) {
            endpoint.disconnect(lane);
        }
        let mut deaf = Vec::new();
        for id in std::mem::take(&mut self.due) {
            let Some(held) = self.held.get_mut(&id) else { continue };
            if stamp.is_none() && held.is_kept {
                self.due.insert(id);
                continue;
            }
            if held.session.unacknowledged() > UNACKNOWLEDGED_MAX {
                deaf.push(id);
            }
            let Some(lane) = held.lane else { continue };
            let stamp = stamp.unwrap_or_default();
            // A lane that breaks now is reported separately.
            for number in held.heard.drain(..) {
                let _ = session::acknowledge(endpoint, lane, stamp, number);
            }
            let _ = held.session.send(endpoint, lane, stamp);
        }
        deaf
    }

    /// Tells a node whose session there is no more, and that nothing else can tell it.
    pub(super) fn say_gone(&mut self, id: SessionId, endpoint: &mut Endpoint, why: &str) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.is_gone = true;
        if let Some(lane) = held.lane {
            let _ = session::post_apart(endpoint, lane, Stamp::default(), Speech::Gone, why);
        }
    }
}
