//! Callers: who is let in, who still has to prove that he belongs here, and until when. Not on the path.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use caravan_van::PeerId;
use mio::net::TcpStream;

use crate::peer::{Fault, Peer, Stage};
use crate::{LOOK_AROUND, Tcp};

/// Callers that have not proved themselves, at most: the oldest goes when one more comes.
pub(crate) const STRANGERS_MAX: usize = 1024;

/// How long to let it be after a connection could not be accepted, for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted at a look around, so that a flood of them leaves time for everybody else.
const ACCEPTS_MAX: usize = 16;

/// Callers looked at in one look around; of a flood most are gone already.
const LOOKS_MAX: usize = 256;

impl Tcp {
    /// Goes on with the handshakes of callers for which something has come.
    fn serve_strangers(&mut self) {
        for id in std::mem::take(&mut self.stirring) {
            let serves = |tcp: &Self| tcp.at(id).is_some_and(|peer| peer.is_stranger());
            if !serves(self) {
                continue;
            }
            let served = self.serve_one(id, false, true); // what comes is answered by the second
            match served.and_then(|()| self.serve_one(id, false, true)) {
                Err(fault) => self.lose(id, fault),
                Ok(()) if !serves(self) => self.befriend(id),
                Ok(()) if self.at(id).is_some_and(|peer| !peer.is_blocked()) => {
                    self.stirring.push(id);
                }
                Ok(()) => {}
            }
        }
    }

    /// Enters a caller that has proved itself among the peers.
    fn befriend(&mut self, id: u32) {
        self.strangers.retain(|&stranger| stranger != id);
        self.live.push(id);
    }

    /// Lets new peers in, and those go whose time is up.
    pub(crate) fn look_around(&mut self, now: Instant) {
        self.look_around_at = now + LOOK_AROUND;
        if self.acceptable && now >= self.accept_at {
            self.accept(now);
        }
        self.serve_strangers();
        let counters = &mut self.counters;
        self.leaving.retain_mut(|leaving| leaving.is_waiting(now, counters));
        let is_late = |peer: &&Peer| matches!(peer.stage, Stage::Greeting(until) if now >= until);
        let oldest = self.strangers.iter().copied();
        let late = oldest.take_while(|&id| self.at(id).is_some_and(|peer| is_late(&peer)));
        let late = late
            .chain(self.live.iter().copied().filter(|&id| self.at(id).filter(is_late).is_some()));
        for id in late.collect::<Vec<_>>() {
            let seconds = self.config.proof_timeout.as_secs_f32();
            let reason = format!("it did not prove within {seconds:.1} s that it belongs here");
            self.lose(id, Fault::Gone(reason));
        }
    }

    fn accept(&mut self, now: Instant) {
        let mut admitted = 0;
        for _ in 0..LOOKS_MAX {
            if admitted == ACCEPTS_MAX {
                return;
            }
            let Some(listener) = &self.listener else { return };
            self.counters.system_calls += 1;
            let error = match listener.accept() {
                // A socket that cannot be set up was closed by the other side meanwhile.
                Ok((stream, from)) => {
                    admitted += usize::from(self.admit(stream, from).is_ok());
                    continue;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.acceptable = false;
                        return;
                    }
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::NotConnected => continue,
                    _ => error.to_string(),
                },
            };
            self.refusals.log(
                self.about.clock.now(),
                "a caller",
                &format!("it cannot be accepted: {error}"),
            );
            self.accept_at = now + ACCEPT_PAUSE;
            return;
        }
    }

    fn admit(&mut self, stream: TcpStream, from: SocketAddr) -> io::Result<()> {
        if self.strangers.len() >= STRANGERS_MAX
            && let Some(&oldest) = self.strangers.front()
        {
            let reason =
                format!("it was the oldest of {STRANGERS_MAX} that had not proved themselves");
            self.lose(oldest, Fault::Gone(reason));
        }
        let greeting = Stage::Greeting(Instant::now() + self.config.proof_timeout);
        let number = self.numbers.free();
        let peer = Peer::new(
            PeerId(number),
            greeting,
            stream,
            from.to_string(),
            &self.credentials,
            self.config,
        );
        let watched = peer.and_then(|mut peer| {
            peer.watch(true, self.poll.registry(), &mut self.counters)?;
            Ok(peer)
        });
        match watched {
            Ok(peer) => {
                self.enter(peer);
                self.strangers.push_back(number);
                self.stirring.push(number); // most have called already
                Ok(())
            }
            Err(error) => {
                self.numbers.give_back(number);
                Err(error)
            }
        }
    }
}
