//! The driver: looks after the lanes that have something to do, asks the engine about all others,
//! and decides who becomes a peer and who is lost.
//!
//! Lanes on which something has just come are *direct*: they are read at every look. All others are
//! watched by the engine whenever they are not on the list of those with something to do.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (socket, **driver**).

use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{io, mem};

use super::callers::{Caller, Callers, STRANGERS_MAX};
use super::connect::{Dial, is_connected};
use super::engine::{Engine, Report, Socket};
use super::peers::{Peer, Peers, Stage};
use super::state::{Hub, SocketState};
use super::{CARRIER, Receiver, Sender, set_up};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::handshake::{Credentials, Greeter, PROVES_WITHIN, Reason};
use crate::metrics::Counters;
use crate::offers::Offers;
use crate::transport::{About, Event, PeerId};
use crate::wait::Wait;
use crate::wire::Beside;

/// Lanes that are read at every look, at most, so that a look stays short.
const DIRECT_LANES_MAX: usize = 4;

/// How often a busy transport looks after its callers and its deadlines.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// Looks after which the clock is read, to find out whether it is time for that.
const LOOKS_PER_CLOCK: u32 = 16;

/// Connections accepted in one look around, so that a flood of them leaves time for everybody else.
const ACCEPTS_MAX: usize = 16;

/// Callers looked at in one look around; of a flood most are gone already.
const CALLERS_MAX: usize = 256;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum Fault {
    /// It could not be made.
    Connect(io::Error),
    /// The socket is closed or broken, or the peer is silent.
    Gone(String),
    /// The peer did what it must not; it deserves to hear of it.
    Misdeed(Reason),
}

/// All sockets of a transport, and what they share.
pub(super) struct Driver<E: Engine> {
    pub(super) hub: Hub,
    pub(super) peers: Peers<E::Socket>,
    callers: Callers<E::Socket>,
    engine: E,
    credentials: Rc<Credentials>,
    frame_bytes: usize,
    /// See [`VanConfig::silence_max`].
    silence_max: Duration,
    reports: Vec<Report>,
    look_around_at: Instant,
    /// Looks since the clock was read.
    looks: u32,
    /// The engine has been asked since the last look.
    asked: bool,
    /// The thread has slept since it last looked around.
    slept: bool,
}

impl<E: Engine> Driver<E> {
    pub(super) fn new(engine: E, config: &VanConfig, about: &About) -> Driver<E> {
        Driver {
            hub: Hub {
                pool: about.memory.clone(),
                offers: Offers::default(),
                events: Vec::new(),
                counters: Counters::default(),
                queue_depth: config.queue_depth,
                direct: 0,
                direct_max: if config.wait == Wait::Block { 0 } else { DIRECT_LANES_MAX },
            },
            peers: Peers::new(),
            callers: Callers::new(about.clock.clone(), config.accepts),
            engine,
            credentials: Rc::new(Credentials::new(config, CARRIER)),
            frame_bytes: config.frame_bytes,
            silence_max: config.silence_max,
            reports: Vec::new(),
            look_around_at: Instant::now(),
            looks: 0,
            asked: false,
            slept: false,
        }
    }

    pub(super) fn counters(&self) -> Counters {
        let mut counters = self.hub.counters;
        counters.system_calls += self.engine.system_calls();
        counters
    }

    /// Begins to connect to `address`, with a lane of its own or beside another one.
    ///
    /// # Errors
    /// [`Error::Connect`] when it is clear at once that this fails.
    pub(super) fn connect(&mut self, address: &str, beside: Option<Beside>) -> Result<PeerId> {
        self.hub.counters.system_calls += 1;
        let failed = |source| Error::Connect { address: address.to_owned(), source };
        let (dial, socket) = Dial::start(&mut self.engine, address).map_err(failed)?;
        let id = PeerId(self.peers.numbers.unused());
        let (greeter, call) = Greeter::calling(Rc::new(self.credentials.of_lane(beside)));
        let mut sender = Sender::new(id);
        sender.greet(call);
        let receiver = Receiver::new(id, greeter, self.frame_bytes);
        self.peers.enter(Peer {
            id,
            address: address.to_owned(),
            is_dialled: true,
            stage: Stage::Dialling(dial),
            frame_bytes: self.frame_bytes,
            lane: SocketState::new(socket, sender, receiver, false),
            is_due: false,
        });
        self.peers.list(id.0);
        Ok(id)
    }

    /// Forgets a peer, whether or not its connection is there.
    pub(super) fn disconnect(&mut self, peer: PeerId) {
        match self.remove(peer.0) {
            Some(gone) => {
                self.peers.numbers.give_back(peer.0);
                self.engine.close(gone.lane.socket);
            }
            None => self.peers.numbers.forget(peer.0),
        }
        self.hub.offers.forget(peer);
        self.hub.events.retain(|event| event.peer() != peer);
    }

    /// One turn: sends what is posted and takes what has come.
    ///
    /// # Errors
    /// [`Error::Os`] when the engine is broken.
    pub(super) fn look(&mut self) -> Result<()> {
        let has_asked = mem::take(&mut self.asked);
        let now = self.time_to_look_around();
        if now.is_some() || (!has_asked && self.peers.need_engine(self.hub.direct)) {
            self.ask(Duration::ZERO)?;
        }
        if let Some(now) = now {
            self.ignore_busy_lanes()?;
            self.look_around(now);
        }
        self.serve(true);
        Ok(())
    }

    /// The time, if callers and deadlines are due for a look.
    fn time_to_look_around(&mut self) -> Option<Instant> {
        self.looks += 1;
        if self.looks < LOOKS_PER_CLOCK && !self.callers.have_work() {
            return None;
        }
        self.looks = 0;
        Some(Instant::now()).filter(|&now| now >= self.look_around_at)
    }

    /// Serves the lanes that have something to do: writes, and reads if `reading`.
    pub(super) fn serve(&mut self, reading: bool) {
        let mut due = self.peers.take_due();
        due.retain(|&number| self.serve_one(number, reading));
        self.peers.put_back(due);
    }

    /// Serves one lane; returns whether there is more to do for it.
    fn serve_one(&mut self, number: u32, reading: bool) -> bool {
        let served = self.move_bytes(number, reading).and_then(|()| self.settle(number));
        served.unwrap_or_else(|fault| {
            self.lose(number, fault);
            false
        })
    }

    fn move_bytes(&mut self, number: u32, reading: bool) -> Result<(), Fault> {
        if !self.dial_on(number)? {
            return Ok(());
        }
        let Some(peer) = self.peers.get_mut(number) else { return Ok(()) };
        let before = self.hub.events.len();
        let served = peer.lane.serve(&mut self.hub, reading);
        if !peer.is_up()
            && let Some(Event::Connected { hello, .. }) = self.hub.events.get(before)
        {
            let frame_bytes = hello.frame_bytes.get() as usize;
            self.callers.forget(number);
            self.peers.proved(number, frame_bytes);
        }
        served
    }

    /// Whether there is more to do for a lane; if not, the engine watches it.
    fn settle(&mut self, number: u32) -> Result<bool, Fault> {
        let Some(peer) = self.peers.get_mut(number) else { return Ok(false) };
        if peer.lane.is_direct() || peer.lane.has_work() {
            return Ok(true);
        }
        peer.is_due = false;
        self.watch(number)?;
        Ok(false)
    }

    /// Makes the engine watch a lane.
    fn watch(&mut self, number: u32) -> Result<(), Fault> {
        let Some(peer) = self.peers.get_mut(number) else { return Ok(()) };
        let is_dialling = peer.is_dialling();
        peer.lane.watch(number, is_dialling, &mut self.engine)
    }

    /// Asks the engine what is ready, for at most `timeout`; returns whether anything is.
    fn ask(&mut self, timeout: Duration) -> Result<bool> {
        self.engine
            .wait(timeout, &mut self.reports)
            .map_err(|source| Error::Os { call: "waiting for sockets", source })?;
        let any = !self.reports.is_empty();
        for report in self.reports.drain(..) {
            let Report::Socket { number, ready } = report else {
                self.callers.may_accept = true;
                continue;
            };
            let Some(peer) = self.peers.get_mut(number) else { continue };
            peer.lane.reported(ready);
            if peer.is_stranger() {
                self.callers.stirring.push(number);
            } else {
                self.peers.list(number);
            }
        }
        Ok(any)
    }

    /// Sleeps for at most `limit` if there is nothing left to try.
    ///
    /// # Errors
    /// [`Error::Os`] when the engine is broken.
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<()> {
        match self.park(limit) {
            Some(limit) => self.ask(limit).map(drop),
            None => Ok(()),
        }
    }

    /// As [`Sleeper::park`](crate::Sleeper::park), for a thread that sleeps elsewhere.
    ///
    /// # Errors
    /// [`Error::Os`] when the engine is broken.
    pub(super) fn park_beside(&mut self, limit: Duration) -> Result<Duration> {
        let Some(limit) = self.park(limit) else { return Ok(Duration::ZERO) };
        // It hands the watches over, and brings what is ready by now.
        let has_reports = self.ask(Duration::ZERO)?;
        Ok(if has_reports { Duration::ZERO } else { limit })
    }

    /// Makes the engine watch everything; returns how long to sleep, `None` if there is something
    /// to do now.
    fn park(&mut self, limit: Duration) -> Option<Duration> {
        let now = Instant::now();
        self.look_around(now);
        let have_work = self.peers.due().any(|peer| peer.lane.has_work());
        if have_work || !self.callers.stirring.is_empty() {
            return None;
        }
        self.leave_to_engine();
        if !self.hub.events.is_empty() {
            return None;
        }
        let deadline = |number: &u32| self.peers.get(*number)?.deadline();
        let strangers = self.callers.strangers.front().and_then(deadline);
        let handshaking = self.peers.handshaking.iter().filter_map(deadline);
        let mut until = handshaking.chain(strangers).min();
        if !self.callers.is_idle() {
            until = until.into_iter().chain(self.callers.deadline()).min();
        }
        let limit = until.map_or(limit, |until| limit.min(until.saturating_duration_since(now)));
        self.hub.counters.sleeps += 1;
        (self.slept, self.asked) = (true, true);
        Some(limit)
    }

    /// The engine is asked at the next look: the thread has slept elsewhere.
    pub(super) fn unpark(&mut self) {
        self.engine.quiet();
        self.asked = false;
    }

    /// As [`Engine::descriptor`].
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(super) fn descriptor(&mut self) -> Result<Option<i32>> {
        let failed = |source| Error::Os { call: "making a descriptor to sleep on", source };
        self.engine.descriptor().map_err(failed)
    }

    /// Makes the engine watch the direct lanes as well.
    fn leave_to_engine(&mut self) {
        let mut due = self.peers.take_due();
        for number in due.drain(..) {
            let Some(peer) = self.peers.get_mut(number) else { continue };
            peer.is_due = false;
            peer.lane.end_direct(&mut self.hub);
            if let Err(fault) = self.watch(number) {
                self.lose(number, fault);
            }
        }
        self.peers.put_back(due);
    }

    /// Ends the watch over direct lanes of a thread that does not sleep.
    fn ignore_busy_lanes(&mut self) -> Result<()> {
        if mem::take(&mut self.slept) {
            return Ok(());
        }
        let due = self.peers.take_due();
        for &number in &due {
            if let Some(peer) = self.peers.get_mut(number).filter(|peer| peer.lane.is_direct()) {
                peer.lane
                    .ignore(&mut self.engine)
                    .map_err(|source| Error::Os { call: "leaving a socket unwatched", source })?;
            }
        }
        self.peers.put_back(due);
        Ok(())
    }

    /// Lets new callers in, and those go whose time is up.
    fn look_around(&mut self, now: Instant) {
        self.look_around_at = now + LOOK_AROUND;
        if !self.callers.is_idle() {
            self.accept(now);
            self.serve_strangers();
            self.callers.close_leaving(&mut self.engine, now, &mut self.hub.counters);
        }
        self.end_late(now);
    }

    fn accept(&mut self, now: Instant) {
        let mut accepted = 0;
        for _ in 0..CALLERS_MAX {
            if accepted == ACCEPTS_MAX {
                return;
            }
            let caller = self.callers.next(&mut self.engine, now, &mut self.hub.counters);
            let Some(caller) = caller else { return };
            // A socket that cannot be set up was closed by the other side meanwhile.
            accepted += usize::from(caller.and_then(|caller| self.admit(caller, now)).is_ok());
        }
    }

    fn admit(&mut self, caller: Caller<E::Socket>, now: Instant) -> io::Result<()> {
        let Caller { socket, from } = caller;
        set_up(&socket.options(), self.silence_max)?;
        if self.callers.strangers.len() >= STRANGERS_MAX
            && let Some(&oldest) = self.callers.strangers.front()
        {
            let reason =
                format!("it was the oldest of {STRANGERS_MAX} that had not proved themselves");
            self.lose(oldest, Fault::Gone(reason));
        }
        let number = self.peers.numbers.free();
        let id = PeerId(number);
        let greeter = Greeter::called(self.credentials.clone());
        let receiver = Receiver::new(id, greeter, self.frame_bytes);
        self.peers.enter(Peer {
            id,
            address: from.to_string(),
            is_dialled: false,
            stage: Stage::Handshaking(now + PROVES_WITHIN),
            frame_bytes: self.frame_bytes,
            lane: SocketState::new(socket, Sender::new(id), receiver, true),
            is_due: false,
        });
        self.callers.strangers.push_back(number);
        self.callers.stirring.push(number); // most have called already
        Ok(())
    }

    /// Goes on with the handshakes of callers from which something has come.
    fn serve_strangers(&mut self) {
        for number in mem::take(&mut self.callers.stirring) {
            if !self.peers.get(number).is_some_and(Peer::is_stranger) {
                continue;
            }
            // The second turn answers what came in the first.
            let has_work = self.serve_one(number, true) && self.serve_one(number, true);
            match self.peers.get(number).filter(|_| has_work) {
                Some(peer) if peer.is_stranger() => self.callers.stirring.push(number),
                Some(_) => self.peers.list(number),
                None => {}
            }
        }
    }

    /// Ends what took too long.
    fn end_late(&mut self, now: Instant) {
        let is_late = |number: &u32| {
            self.peers.get(*number).and_then(Peer::deadline).is_some_and(|until| now >= until)
        };
        let strangers = self.callers.strangers.iter().copied().take_while(is_late);
        let handshaking = self.peers.handshaking.iter().copied().filter(is_late);
        for number in strangers.chain(handshaking).collect::<Vec<_>>() {
            let Some(peer) = self.peers.get(number) else { continue };
            let ended = match &peer.stage {
                Stage::Dialling(dial) => self.dial_next(number, dial.timed_out()),
                _ => {
                    let seconds = PROVES_WITHIN.as_secs_f32();
                    let reason =
                        format!("it did not prove within {seconds:.1} s that it belongs here");
                    Err(Fault::Gone(reason))
                }
            };
            if let Err(fault) = ended {
                self.lose(number, fault);
            }
        }
    }

    /// Whether a lane's socket is connected, which is found out once it became writable.
    fn dial_on(&mut self, number: u32) -> Result<bool, Fault> {
        let Some(peer) = self.peers.get_mut(number).filter(|peer| peer.is_dialling()) else {
            return Ok(true);
        };
        if !peer.lane.take_writable() {
            return Ok(false);
        }
        let socket = peer.lane.socket.options();
        let connected = is_connected(&socket);
        let set_up = |()| set_up(&socket, self.silence_max).map(|()| true);
        let connected =
            connected.and_then(|connected| if connected { set_up(()) } else { Ok(false) });
        match connected {
            Ok(false) => Ok(false),
            Ok(true) => {
                peer.stage = Stage::Handshaking(Instant::now() + PROVES_WITHIN);
                peer.lane.connected();
                Ok(true)
            }
            Err(error) => self.dial_next(number, error).map(|()| false),
        }
    }

    /// Goes on to the next address of a lane's name, after the last one has `failed`.
    fn dial_next(&mut self, number: u32, failed: io::Error) -> Result<(), Fault> {
        let Some(peer) = self.peers.get_mut(number) else { return Ok(()) };
        let Stage::Dialling(dial) = &mut peer.stage else { return Ok(()) };
        let socket = dial.next(&mut self.engine, failed).map_err(Fault::Connect)?;
        let failed = peer.lane.replace(socket);
        self.engine.close(failed);
        self.watch(number)
    }

    /// Ends a connection because of `fault`. Nobody above hears of callers that have not proved
    /// themselves.
    fn lose(&mut self, number: u32, fault: Fault) {
        let Some(peer) = self.remove(number) else { return };
        let misdeed = match &fault {
            Fault::Misdeed(reason) => Some(reason.to_string()),
            _ => None,
        };
        let error = peer.error(fault);
        if peer.is_stranger() {
            self.peers.numbers.give_back(number);
            self.callers.log(&peer.address, &error.to_string());
        } else {
            self.peers.numbers.lose(number);
            self.hub.events.push(Event::Lost { peer: peer.id, error });
        }
        let mut lane = peer.lane;
        let is_told = misdeed.is_some_and(|reason| lane.farewell(&reason, &mut self.hub.counters));
        let closing = if is_told { self.callers.let_go(lane.socket) } else { Some(lane.socket) };
        if let Some(socket) = closing {
            self.engine.close(socket);
        }
    }

    fn remove(&mut self, number: u32) -> Option<Box<Peer<E::Socket>>> {
        self.callers.forget(number);
        self.peers.remove(number, &mut self.hub)
    }
}

/// Peers see at once that the transport is gone, whatever the engine still holds of it.
impl<E: Engine> Drop for Driver<E> {
    fn drop(&mut self) {
        for peer in self.peers.drain() {
            self.engine.close(peer.lane.socket);
        }
    }
}
