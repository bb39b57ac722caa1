//! Connections that have not proved that they belong here: the handshake in packets, and the rings
//! that come with it. Not on the path.
//!
//! ```text
//! call      from the side that connects
//! welcome   from the side that was called, with the descriptor of its ring's segment
//! proof     from the side that connects, with the descriptor of its own
//! ```
//!
//! The kernel names the user of the other side. A process of another user is turned away before
//! anything is read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Shm;
use super::connect::{Link, Packet, Taken, name_in, send, take};
use super::ring::SEGMENT_BYTES;
use super::segment::{Foreign, Own};
use super::socket::{self, Socket};
use crate::error::{Error, Result};
use crate::handshake::{
    Answering, Calling, Credentials, PROVES_WITHIN, Proved, Reason, deserves_answer, refusal,
};
use crate::transport::{Event, PeerId};
use crate::wire::Hello;

/// Pause before connecting again to a listener whose queue is full.
const CONNECT_AGAIN: Duration = Duration::from_millis(1);

/// Pause before accepting again after the system could not, mostly for want of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Most connections that one look accepts.
const ACCEPTS_MAX: usize = 16;

/// Most callers that have not proved themselves. One more replaces the oldest.
const STRANGERS_MAX: usize = 1024;

/// The number under which the listening socket is watched.
pub(super) const LISTENER: u64 = u64::MAX;

/// The first number under which connections are watched that are not peers yet. Smaller numbers are
/// peer numbers.
pub(super) const NOT_YET: u64 = 1 << 32;

/// Connections on which a handshake is under way, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Greetings {
    pub(super) list: VecDeque<Greeting>,
    made: u64,
    /// When to accept again after a failure.
    pub(super) accept_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Greeting {
    /// The number under which it is watched.
    number: u64,
    socket: Socket,
    address: String,
    /// Its peer number if this side connected: the layer above knows it.
    known_as: Option<PeerId>,
    pub(super) until: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// This side connected and waits for a welcome.
    Calling(Own, Calling),
    /// This side accepted and waits for a call.
    Called,
    /// This side has welcomed the caller and waits for its proof.
    Answering(Own, Answering),
}

/// The outcome of one message of a handshake.
enum Step {
    /// Another message must follow.
    Wait(Stage),
    /// The other side has proved itself.
    Up { own: Own, foreign: Foreign, proved: Proved },
}

impl Greetings {
    fn position(&self, is_it: impl Fn(&Greeting) -> bool) -> Option<usize> {
        self.list.iter().position(is_it)
    }
}

impl Shm {
    /// Connects, and begins the handshake.
    pub(super) fn connect_to(&mut self, address: &str) -> Result<PeerId> {
        let failed = |source| Error::Connect { address: address.to_owned(), source };
        let name = name_in(address).map_err(failed)?;
        let began = Instant::now();
        loop {
            match Socket::connect(name) {
                Ok(socket) => return self.call(socket, address.to_owned()).map_err(failed),
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && began.elapsed() < PROVES_WITHIN =>
                {
                    std::thread::sleep(CONNECT_AGAIN);
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn call(&mut self, socket: Socket, address: String) -> io::Result<PeerId> {
        check_user(&socket).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?;
        let own = Own::new(SEGMENT_BYTES)?;
        let (calling, call) = self.credentials.call();
        send(&socket, Packet::Greeting(&call), None)?;
        let id = PeerId(self.table.numbers.unused());
        self.begin(socket, address, Some(id), Stage::Calling(own, calling))?;
        Ok(id)
    }

    fn begin(
        &mut self,
        socket: Socket,
        address: String,
        known_as: Option<PeerId>,
        stage: Stage,
    ) -> io::Result<()> {
        let greetings = &mut self.greetings;
        greetings.made += 1;
        let number = NOT_YET | greetings.made;
        self.sockets.epoll.watch(&socket, number)?;
        let until = Instant::now() + PROVES_WITHIN;
        greetings.list.push_back(Greeting { number, socket, address, known_as, until, stage });
        Ok(())
    }

    /// Accepts callers.
    #[cold]
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) =
                self.sockets.listener.as_ref().filter(|_| self.greetings.accept_at.is_none())
            else {
                return;
            };
            match listener.accept() {
                Ok(socket) => self.accepted(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // A watched listener would be reported all the time.
                    self.sockets.epoll.forget(listener);
                    self.greetings.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
                    return self
                        .turned_away("a caller", &format!("it cannot be accepted: {error}"));
                }
            }
        }
    }

    fn accepted(&mut self, socket: Socket) {
        let address = match socket.peer() {
            Ok((process, _)) => format!("process {process} of this host"),
            Err(_) => return, // it is gone already
        };
        if let Err(why) = check_user(&socket) {
            return self.turned_away(&address, &why);
        }
        if self.greetings.list.len() >= STRANGERS_MAX
            && let Some(oldest) = self.greetings.position(|greeting| greeting.known_as.is_none())
        {
            let reason =
                format!("it was the oldest of {STRANGERS_MAX} that had not proved themselves");
            self.end_greeting(oldest, reason);
        }
        if let Err(error) = self.begin(socket, address, None, Stage::Called) {
            self.turned_away("a caller", &format!("it cannot be watched: {error}"));
        }
    }

    pub(super) fn turned_away(&mut self, address: &str, reason: &str) {
        self.refusals.log(self.about.clock.now(), address, reason);
    }

    /// Goes on with the handshake that is watched under `number`.
    #[cold]
    pub(super) fn greet(&mut self, number: u64) {
        let Some(at) = self.greetings.position(|greeting| greeting.number == number) else {
            return;
        };
        let (message, file) = match take(&self.greetings.list[at].socket) {
            Ok(Taken::Nothing) => return,
            Ok(Taken::Greeting(message, file)) => (message, file),
            Ok(Taken::Ended(reason)) | Err(reason) => return self.end_greeting(at, reason),
            Ok(_) => return self.end_greeting(at, "it sent something else before its proof"),
        };
        let greeting = &mut self.greetings.list[at];
        let stage = std::mem::replace(&mut greeting.stage, Stage::Called);
        match step(&self.credentials, stage, &greeting.socket, &message, file) {
            Ok(Step::Wait(stage)) => greeting.stage = stage,
            Ok(Step::Up { own, foreign, proved }) => self.befriend(at, own, foreign, &proved.hello),
            Err(reason) => self.end_greeting(at, reason),
        }
    }

    /// Makes a peer of a connection whose other side has proved itself.
    fn befriend(&mut self, at: usize, own: Own, foreign: Foreign, hello: &Hello) {
        let Some(greeting) = self.greetings.list.remove(at) else { return };
        let Greeting { socket, address, known_as, .. } = greeting;
        let id = known_as.unwrap_or_else(|| PeerId(self.table.numbers.free()));
        self.sockets.epoll.forget(&socket);
        if let Err(error) = self.sockets.epoll.watch(&socket, id.0.into()) {
            return self.report_lost(known_as, address, error.to_string().into());
        }
        self.enter(id, address, Link { own, foreign, socket: Rc::new(socket) }, hello);
    }

    /// Ends a handshake that failed.
    fn end_greeting(&mut self, at: usize, reason: impl Into<Reason>) {
        let Some(greeting) = self.greetings.list.remove(at) else { return };
        self.report_lost(greeting.known_as, greeting.address, reason.into());
    }

    fn report_lost(&mut self, known_as: Option<PeerId>, address: String, reason: Reason) {
        let Some(peer) = known_as else { return self.turned_away(&address, &reason.to_string()) };
        self.table.numbers.lose(peer.0);
        let error = Error::PeerLost { peer, address, reason };
        self.hub.ready.push(Event::Lost { peer, error });
    }

    /// Ends the handshake with `peer`; returns whether there was one.
    pub(super) fn forget_greeting(&mut self, peer: PeerId) -> bool {
        let at = self.greetings.position(|greeting| greeting.known_as == Some(peer));
        at.and_then(|at| self.greetings.list.remove(at)).is_some()
    }

    /// Ends handshakes whose time is up, and accepts again when it is time.
    #[cold]
    pub(super) fn look_after_greetings(&mut self) {
        let now = Instant::now();
        if self.greetings.accept_at.is_some_and(|at| at <= now)
            && let Some(listener) = &self.sockets.listener
            && self.sockets.epoll.watch(listener, LISTENER).is_ok()
        {
            self.greetings.accept_at = None;
        }
        while self.greetings.list.front().is_some_and(|oldest| oldest.until <= now) {
            self.end_greeting(
                0,
                format!("it did not prove within {PROVES_WITHIN:?} that it belongs here"),
            );
        }
    }
}

/// Answers one message of a handshake.
///
/// # Errors
/// The reason to turn the other side away.
fn step(
    credentials: &Credentials,
    stage: Stage,
    socket: &Socket,
    message: &[u8],
    file: Option<OwnedFd>,
) -> Result<Step, Reason> {
    let say = |message: &[u8], own: &Own| {
        send(socket, Packet::Greeting(message), Some(own.file())).map_err(|error| error.to_string())
    };
    let map = || {
        let file = file.as_ref().ok_or("it sent no descriptor of its ring")?;
        Foreign::map(file.as_fd(), SEGMENT_BYTES)
    };
    match stage {
        Stage::Called => {
            let (answering, welcome) = credentials.welcome(message).inspect_err(|_| {
                if deserves_answer(message) {
                    // A caller that does not take it sees the socket close.
                    let _ = send(socket, Packet::Greeting(&refusal()), None);
                }
            })?;
            let own = Own::new(SEGMENT_BYTES)
                .map_err(|error| format!("there is no room for its ring: {error}"))?;
            say(&welcome, &own)?;
            Ok(Step::Wait(Stage::Answering(own, answering)))
        }
        Stage::Calling(own, calling) => {
            let (proved, proof) = credentials.prove(calling, message)?;
            let foreign = map()?;
            say(&proof, &own)?;
            Ok(Step::Up { own, foreign, proved })
        }
        Stage::Answering(own, answering) => {
            let proved = credentials.check(answering, message)?;
            Ok(Step::Up { own, foreign: map()?, proved })
        }
    }
}

/// Checks that the process at the other end belongs to this process's user.
///
/// # Errors
/// The two users.
fn check_user(socket: &Socket) -> Result<(), String> {
    let (_, user) = socket.peer().map_err(|error| error.to_string())?;
    match user == socket::user() {
        true => Ok(()),
        false => Err(format!("it is a process of user {user}, this is one of {}", socket::user())),
    }
}
