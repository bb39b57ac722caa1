//! Callers: who is accepted, who still has to prove that it belongs here, and who was turned away.
//! Not on the path.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use super::engine::{Engine, Socket};
use crate::handshake::Refusals;
use crate::metrics::Counters;
use crate::transport::Clock;

/// Callers that have not proved themselves, at most: the oldest goes when one more comes.
pub(super) const STRANGERS_MAX: usize = 1024;

/// How long accepting pauses after it failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a peer that is turned away may take to hear why.
const FAREWELL: Duration = Duration::from_secs(1);

/// Reads of what a leaving peer still sends, before others have their turn.
const SCRAPS_MAX: usize = 64;

/// Somebody who has connected.
pub(super) struct Caller<S> {
    pub(super) socket: S,
    pub(super) from: SocketAddr,
}

/// Those who have called, by number where they are in the table of peers.
pub(super) struct Callers<S> {
    /// Whether somebody may be waiting to be accepted.
    pub(super) may_accept: bool,
    /// Nobody is accepted before.
    pub(super) accept_at: Instant,
    /// Those that have not proved themselves, the oldest first. Only the engine tells when there is
    /// something to do for them, so that they cost the lanes of peers nothing.
    pub(super) strangers: VecDeque<u32>,
    /// Those of them for which there is something to do.
    pub(super) stirring: Vec<u32>,
    /// Connections whose peers have been told to go.
    leaving: Vec<Leaving<S>>,
    clock: Clock,
    refusals: Refusals,
}

impl<S: Socket> Callers<S> {
    /// Nobody so far.
    pub(super) fn new(clock: Clock, accepts: bool) -> Callers<S> {
        Callers {
            may_accept: accepts,
            accept_at: Instant::now(),
            strangers: VecDeque::new(),
            stirring: Vec::new(),
            leaving: Vec::new(),
            clock,
            refusals: Refusals::default(),
        }
    }

    /// The next caller, or one that is gone already; none if nobody waits or accepting has to
    /// pause.
    pub(super) fn next<E: Engine<Socket = S>>(
        &mut self,
        engine: &mut E,
        now: Instant,
        counters: &mut Counters,
    ) -> Option<io::Result<Caller<S>>> {
        if !self.may_accept || now < self.accept_at {
            return None;
        }
        counters.system_calls += 1;
        let called = engine.accept();
        match called.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::WouldBlock) => {
                self.may_accept = false;
                None
            }
            Ok(_)
            | Err(
                io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::NotConnected,
            ) => Some(called.map(|(socket, from)| Caller { socket, from })),
            Err(_) => {
                let error = called.err()?;
                self.log("a caller", &format!("it cannot be accepted: {error}"));
                self.accept_at = now + ACCEPT_PAUSE;
                None
            }
        }
    }

    /// Whether nobody calls, is on the way in or on the way out.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        !self.have_work() && self.leaving.is_empty()
    }

    /// Whether there is something to do for them.
    #[inline]
    pub(super) fn have_work(&self) -> bool {
        self.may_accept || !self.stirring.is_empty()
    }

    /// Logs why a caller from `address` was turned away.
    pub(super) fn log(&mut self, address: &str, reason: &str) {
        self.refusals.log(self.clock.now(), address, reason);
    }

    /// Forgets a caller that is gone or has proved itself.
    pub(super) fn forget(&mut self, number: u32) {
        self.strangers.retain(|&stranger| stranger != number);
        self.stirring.retain(|&stranger| stranger != number);
    }

    /// Keeps the socket of a peer that was told why it must go, until it has heard; returns it if
    /// there is nothing to wait for.
    pub(super) fn let_go(&mut self, socket: S) -> Option<S> {
        let is_full = self.leaving.len() >= STRANGERS_MAX;
        if is_full || socket.options().shutdown(Shutdown::Write).is_err() {
            return Some(socket);
        }
        self.leaving.push(Leaving { socket, until: Instant::now() + FAREWELL });
        None
    }

    /// Closes connections whose peers have heard why, or had time enough.
    pub(super) fn close_leaving<E: Engine<Socket = S>>(
        &mut self,
        engine: &mut E,
        now: Instant,
        counters: &mut Counters,
    ) {
        let mut at = 0;
        while let Some(leaving) = self.leaving.get_mut(at) {
            if leaving.is_waiting(now, counters) {
                at += 1;
            } else {
                engine.close(self.leaving.swap_remove(at).socket);
            }
        }
    }

    /// When to look after callers although nothing happens, those among the peers aside.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let leaving = self.leaving.iter().map(|leaving| leaving.until);
        leaving.chain(self.may_accept.then_some(self.accept_at)).min()
    }
}

/// A connection whose peer has been told to go. Closing it while bytes come in would take the
/// reason back, so what still comes is read and thrown away until the peer has closed its side.
struct Leaving<S> {
    socket: S,
    /// When to close it all the same.
    until: Instant,
}

impl<S: Socket> Leaving<S> {
    /// Whether the peer may not have heard yet.
    fn is_waiting(&mut self, now: Instant, counters: &mut Counters) -> bool {
        let mut scrap = [0; 4096];
        for _ in 0..SCRAPS_MAX {
            counters.system_calls += 1;
            match self.socket.receive(&mut [IoSliceMut::new(&mut scrap)]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        now < self.until
    }
}
