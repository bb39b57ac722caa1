//! Set-up: connections without the connection manager. Over a [wire](super::side channels) both
//! ends prove themselves as everywhere, then each tells the other of its port and its queue pair,
//! sealed, and brings its own up. The first message over the queue pair is sealed with the same
//! keys, so that it is the peer of the wire that is at the other end. From there on nothing
//! differs. Not on the path.
//!
//! ```text
//! caller                                    called
//! handshake                      <->        handshake
//! its end                         ->        makes a queue pair and joins it
//! joins its own                  <-         [0] its end, or [1] why not
//! first message, by RDMA          ->        the lane is up
//! ```

use std::io;
use std::time::Instant;

use super::Rdma;
use super::connect::{Asked, Awaited, Peer, Stage};
use super::endpoints::{Agreed, End, PACKET_NUMBERS, Port, Side, agree};
use super::listen::{Direct, no_address};
use super::queue_pair::QueuePairState;
use super::side_channels::{CLOSED, Heard, SideChannelId};
use crate::error::{Error, Result};
use crate::handshake::{Reason, TAG};
use crate::wire::Beside;

/// Begins the answer of a side that takes part.
const JOINED: u8 = 0;

/// Begins the reason of a side that does not.
const REFUSED: u8 = 1;

impl Rdma {
    /// Starts to connect to the TCP address `to`.
    pub(super) fn dial_directly(
        &mut self,
        to: &str,
        beside: Option<Beside>,
        now: Instant,
    ) -> io::Result<SideChannelId> {
        let direct = self.nic.direct.as_mut().ok_or_else(no_address)?;
        direct.side_channels.dial(to, beside, now)
    }

    /// Notes for whose lane a wire stands.
    pub(super) fn claim(&mut self, wire: Option<SideChannelId>, id: u32) {
        if let (Some(direct), Some(wire)) = (&mut self.nic.direct, wire) {
            direct.side_channels.claim(wire, id);
        }
    }

    /// Closes the wire of a lane that ended.
    pub(super) fn hang_up(&mut self, wire: Option<SideChannelId>) {
        if let (Some(direct), Some(wire)) = (&mut self.nic.direct, wire) {
            direct.side_channels.close(wire);
        }
    }

    /// Hears what has come over side channels.
    pub(super) fn look_after_side_channels(&mut self, now: Instant) -> Result<()> {
        let Some(direct) = &mut self.nic.direct else { return Ok(()) };
        let mut heard = Vec::new();
        let failed = |source| Error::Os { call: "looking after TCP connections", source };
        direct.side_channels.look(now, &mut heard).map_err(failed)?;
        for (wire, peer, what) in heard {
            match peer {
                Some(id) => self.hear_peer(id, wire, what, now)?,
                None => self.hear_stranger(wire, what, now),
            }
        }
        Ok(())
    }

    fn hear_peer(&mut self, id: u32, wire: SideChannelId, what: Heard, now: Instant) -> Result<()> {
        let Some(peer) = self.peers.get(id).filter(|peer| peer.wire == Some(wire)) else {
            return Ok(()); // closed meanwhile
        };
        let is_dialling = matches!(peer.stage, Stage::Dialling);
        let done = match what {
            Heard::Proved => self.propose(id, wire, now),
            Heard::Said(answer) => self.answered(id, wire, &answer),
            Heard::Failed(error) if is_dialling => {
                self.fail(id, error);
                Ok(())
            }
            Heard::Failed(_) => {
                // Completions of what it had sent come first.
                self.take_completions()?;
                Err(CLOSED.into())
            }
            Heard::Refused(reason) => Err(reason),
        };
        if let Err(reason) = done {
            self.lose(id, reason);
        }
        Ok(())
    }

    /// Tells the called side of this end.
    ///
    /// # Errors
    /// Why there is none.
    fn propose(&mut self, id: u32, wire: SideChannelId, now: Instant) -> Result<(), Reason> {
        let (lane, end) = self.started(now).map_err(|error| error.to_string())?;
        let Some(peer) = self.peers.take(id) else { return Ok(()) };
        let told = end.encode();
        let stage = Stage::Calling(lane, Some(Asked::Direct(Box::new(end))));
        self.peers.put(id, Peer { stage, ..peer });
        self.say(wire, &told).map_err(|error| Reason::Other(error.to_string()))
    }

    fn say(&mut self, wire: SideChannelId, message: &[u8]) -> io::Result<()> {
        let direct = self.nic.direct.as_mut().ok_or_else(no_address)?;
        direct.side_channels.say(wire, message)
    }

    /// A lane that is not connected, and its end.
    fn started(&mut self, now: Instant) -> io::Result<(QueuePairState, End)> {
        let lane = self.lane_over(None, now)?;
        let port = self.nic.direct.as_ref().map(|direct| direct.port.clone());
        let random = getrandom::u32().map_err(io::Error::other);
        let started = port.ok_or_else(no_address).and_then(|port| {
            lane.queue_pair.start(port.number(), port.pkey_index())?;
            let (queue, first_sent) = (lane.queue_pair.number(), random? & PACKET_NUMBERS);
            Ok(End { port, queue, first_sent })
        });
        match started {
            Ok(end) => Ok((lane, end)),
            Err(error) => {
                self.stop(lane);
                Err(error)
            }
        }
    }

    /// Connects to the end that the called side tells of.
    ///
    /// # Errors
    /// Why it cannot.
    fn answered(&mut self, id: u32, wire: SideChannelId, answer: &[u8]) -> Result<(), Reason> {
        let theirs = match answer.split_first() {
            Some((&JOINED, end)) => End::decode(end)?,
            Some((&REFUSED, why)) => {
                let why = String::from_utf8_lossy(why);
                return Err(format!("it refused this node: {}", printable(&why)).into());
            }
            _ => return Err("its answer is malformed".into()),
        };
        let Some(Peer { stage: Stage::Calling(lane, asked), ends, address, .. }) =
            self.peers.get_mut(id)
        else {
            return Ok(());
        };
        let Some(Asked::Direct(own)) = asked.take() else {
            return Err("it answered twice".into());
        };
        let agreed = agree(&own.port, &theirs.port, Side::Caller)?;
        let named = named(&own.port, &theirs.port, &agreed);
        let path = own.path(&theirs, &agreed, &self.config.rdma);
        lane.queue_pair.join(&path).map_err(|error| format!("{error}; {named}"))?;
        tracing::debug!(%address, gid = agreed.reason, mtu = path.mtu_bytes, "connected directly");
        *ends = Some(named.into());
        let Some(Direct { side_channels, .. }) = &mut self.nic.direct else { return Ok(()) };
        let mut proved = side_channels.finish(wire).ok_or("it has not proved itself")?;
        let (seals, _) = proved.ciphers.as_mut().ok_or("it has no keys")?;
        let mut first = [0; TAG];
        seals.seal(&[], &mut first);
        self.rise(id, &proved.hello)?;
        Ok(self.send_proof(id, &first)?)
    }

    fn hear_stranger(&mut self, wire: SideChannelId, what: Heard, now: Instant) {
        let address = match &self.nic.direct {
            Some(direct) => direct.side_channels.address(wire).unwrap_or_default().to_owned(),
            None => return,
        };
        let reason = match what {
            Heard::Proved => return,
            Heard::Failed(_) => return self.hang_up(Some(wire)),
            Heard::Refused(reason) => reason.to_string(),
            Heard::Said(end) => match self.asked(wire, &end, &address, now) {
                Ok(()) => return,
                Err(reason) => {
                    let told = [&[REFUSED], cut(&reason).as_bytes()].concat();
                    // A caller that cannot be told finds out by the end of the wire.
                    let _ = self.say(wire, &told);
                    reason
                }
            },
        };
        self.hang_up(Some(wire));
        self.refusals.log(self.about.clock.now(), &address, &reason);
    }

    /// Connects to the end that a caller tells of, and tells it of this one.
    ///
    /// # Errors
    /// Why not.
    fn asked(
        &mut self,
        wire: SideChannelId,
        end: &[u8],
        address: &str,
        now: Instant,
    ) -> Result<(), String> {
        let theirs = End::decode(end)?;
        let Some(direct) = &self.nic.direct else { return Ok(()) };
        let agreed = agree(&direct.port, &theirs.port, Side::Called)?;
        let named = named(&direct.port, &theirs.port, &agreed);
        self.make_room().map_err(|error| format!("it has no room: {error}"))?;
        let (lane, own) = self.started(now).map_err(|error| error.to_string())?;
        let path = own.path(&theirs, &agreed, &self.config.rdma);
        let told = [&[JOINED], &own.encode()[..]].concat();
        let joined = lane.queue_pair.join(&path).and_then(|()| self.say(wire, &told));
        if let Err(error) = joined {
            self.stop(lane);
            return Err(format!("{error}; {named}"));
        }
        tracing::debug!(%address, gid = agreed.reason, mtu = path.mtu_bytes, "connected directly");
        let Some(direct) = &mut self.nic.direct else { return Ok(()) };
        let awaited = direct.side_channels.finish(wire).map(Awaited::Seal);
        let peer = Peer::who_called(address.to_owned(), Stage::Answering(lane, awaited), now);
        let peer = Peer { wire: Some(wire), ends: Some(named.into()), ..peer };
        let id = self.peers.enter(peer);
        self.claim(Some(wire), id);
        Ok(())
    }
}

/// Both ends, for the reason of a failure.
fn named(own: &Port, theirs: &Port, agreed: &Agreed) -> String {
    format!("here {own}; there {theirs}; chosen: {}", agreed.reason)
}

/// Longest reason that is told.
const REASON_BYTES_MAX: usize = 1500;

fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}

/// What a peer says, without what would change a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
