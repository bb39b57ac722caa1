//! A lane: one connection's socket, its two half streams, and what is known of the socket's
//! readiness.
//!
//! Path: worker > slicer > filter > message > codec > endpoint > transport (socket, **lane**).

use std::io::{self, IoSlice, IoSliceMut};

use super::driver::Fault;
use super::engine::{Engine, Interest, Socket};
use super::{Receiver, Sender, Spaces};
use crate::memory::Pool;
use crate::metrics::Counters;
use crate::offers::Offers;
use crate::transport::Event;

/// Bytes taken from one lane before the others have their turn.
const READ_BYTES_MAX: usize = 1 << 20;

/// After this many reads in a row that find nothing a lane is no longer direct.
const MISSES_MAX: u32 = 1024;

/// What the lanes of a transport share.
pub(super) struct Hub {
    pub(super) pool: Pool,
    pub(super) offers: Offers,
    /// What has happened since the last poll.
    pub(super) events: Vec<Event>,
    pub(super) counters: Counters,
    /// Units that a lane holds once its peer has proved itself.
    pub(super) queue_depth: usize,
    /// How many lanes are direct.
    pub(super) direct: usize,
    /// How many may be.
    pub(super) direct_max: usize,
}

/// One connection.
pub(super) struct SocketState<S> {
    pub(super) socket: S,
    pub(super) sender: Sender,
    receiver: Receiver,
    /// What the engine has been asked to report and has not reported.
    watched: Interest,
    /// Whether a read may find something, for all that is known.
    readable: bool,
    /// Whether a write may find room.
    writable: bool,
    /// Of a direct lane, the reads in a row that found nothing. A direct lane is read at every
    /// look: that is as cheap as asking the engine, and saves the question when something has come.
    misses: Option<u32>,
    /// Whether the last look wrote without reading.
    wrote_only: bool,
}

impl<S: Socket> SocketState<S> {
    /// A lane whose socket is worth trying at once if it `is_connected`.
    pub(super) fn new(
        socket: S,
        sender: Sender,
        receiver: Receiver,
        is_connected: bool,
    ) -> SocketState<S> {
        SocketState {
            socket,
            sender,
            receiver,
            watched: Interest::default(),
            readable: is_connected,
            writable: is_connected,
            misses: None,
            wrote_only: false,
        }
    }

    /// Takes another socket, which connects; returns the one before.
    pub(super) fn replace(&mut self, socket: S) -> S {
        self.watched = Interest::default();
        (self.readable, self.writable) = (false, false);
        std::mem::replace(&mut self.socket, socket)
    }

    /// Notes what the engine reports.
    pub(super) fn reported(&mut self, ready: Interest) {
        self.watched = self.watched.without(ready);
        self.readable |= ready.reads;
        self.writable |= ready.writes;
    }

    /// Whether the socket was reported writable since this was asked last.
    pub(super) fn take_writable(&mut self) -> bool {
        std::mem::take(&mut self.writable)
    }

    /// Notes that the socket is connected.
    pub(super) fn connected(&mut self) {
        (self.readable, self.writable) = (true, true);
    }

    /// Whether a call may move bytes, for all that is known.
    pub(super) fn has_work(&self) -> bool {
        self.readable || (self.writable && !self.sender.is_empty())
    }

    pub(super) fn is_direct(&self) -> bool {
        self.misses.is_some()
    }

    /// Leaves the lane to the engine.
    pub(super) fn end_direct(&mut self, hub: &mut Hub) {
        hub.direct -= usize::from(self.misses.take().is_some());
    }

    /// Makes the engine report when there is something to do.
    pub(super) fn watch<E: Engine<Socket = S>>(
        &mut self,
        number: u32,
        is_dialling: bool,
        engine: &mut E,
    ) -> Result<(), Fault> {
        let writes = is_dialling || !self.sender.is_empty();
        let wanted = Interest { reads: true, writes: writes || self.watched.writes };
        if wanted != self.watched {
            engine
                .watch(number, &mut self.socket, self.watched, wanted)
                .map_err(|error| Fault::Gone(format!("it cannot be watched: {error}")))?;
            self.watched = wanted;
        }
        Ok(())
    }

    /// Ends the watch of a lane that is looked at anyway, if that saves anything.
    pub(super) fn ignore<E: Engine<Socket = S>>(&mut self, engine: &mut E) -> io::Result<()> {
        if engine.ignore(&mut self.socket)? {
            self.watched = Interest::default();
        }
        Ok(())
    }

    /// Tells the peer why it is turned away, in place of all that was posted; returns whether the
    /// socket took it.
    pub(super) fn farewell(&mut self, reason: &str, counters: &mut Counters) -> bool {
        self.sender.refuse(reason);
        self.flush(counters).is_ok() && self.sender.is_empty()
    }

    /// Sends what is queued and, if `reading`, takes what has come: a call for each where it may
    /// succeed.
    pub(super) fn serve(&mut self, hub: &mut Hub, reading: bool) -> Result<(), Fault> {
        let direct = self.is_direct();
        let writing = !self.sender.is_empty() && (direct || self.writable);
        let written = if writing { self.flush(&mut hub.counters) } else { Ok(()) };
        // Right behind a write it is too early for the answer: the next look reads.
        self.wrote_only = direct && writing && !self.wrote_only;
        let may_read = reading && (direct || self.readable) && !self.wrote_only;
        // A peer that cannot be written to any more may have said why.
        if may_read || written.is_err() {
            self.read(hub)?;
        }
        written
    }

    /// Hands what is queued to the socket, as much as it takes: one call, unless more units wait
    /// than one call can name.
    fn flush(&mut self, counters: &mut Counters) -> Result<(), Fault> {
        while !self.sender.is_empty() {
            counters.system_calls += 1;
            let frames = self.sender.frames_sent();
            let (outcome, len) = self.send();
            match outcome {
                Ok(written) => {
                    self.sender.sent(written);
                    counters.bytes_sent += written as u64;
                    counters.frames_sent += self.sender.frames_sent() - frames;
                    self.writable = true;
                    if written < len {
                        return Ok(()); // it has no more room, and others have their turn
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    counters.frames_sent += self.sender.frames_sent() - frames;
                    self.writable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Gone(format!("it cannot be written to: {error}"))),
            }
        }
        Ok(())
    }

    /// One call to the socket: what it took, and how much it was offered.
    fn send(&mut self) -> (io::Result<usize>, usize) {
        let SocketState { socket, sender, .. } = self;
        if let Some(slice) = sender.only_slice() {
            return (socket.send(&[IoSlice::new(slice)]), slice.len());
        }
        sender.with_slices(|slices| {
            (socket.send(slices), slices.iter().map(|slice| slice.len()).sum())
        })
    }

    /// Takes what has come, until the socket is empty or others should have their turn. A read that
    /// fills less than it was offered has emptied the socket, so it is the last one.
    fn read(&mut self, hub: &mut Hub) -> Result<(), Fault> {
        let mut taken = 0;
        self.readable = true;
        while self.readable && taken < READ_BYTES_MAX {
            hub.counters.system_calls += 1;
            let (outcome, room) = self.receive(&mut hub.offers);
            match outcome {
                Ok(0) => return Err(Fault::Gone("it closed the connection".to_owned())),
                Ok(len) => {
                    taken += len;
                    self.readable = len == room;
                    self.take(len, hub)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Gone(format!("it cannot be read from: {error}"))),
            }
        }
        self.count_misses(taken > 0, hub);
        Ok(())
    }

    /// One call to the socket: how much came, and for how much there was room.
    fn receive(&mut self, offers: &mut Offers) -> (io::Result<usize>, usize) {
        let Spaces { head, place, staging } = self.receiver.spaces_ahead(offers);
        let room = head.len() + place.len() + staging.len();
        if place.is_empty() {
            return (self.socket.receive(&mut [IoSliceMut::new(staging)]), room);
        }
        let without_head = usize::from(head.is_empty());
        let mut slices = [head, place, staging].map(IoSliceMut::new);
        (self.socket.receive(&mut slices[without_head..]), room)
    }

    /// Takes in `len` bytes that were received.
    fn take(&mut self, len: usize, hub: &mut Hub) -> Result<(), Fault> {
        let Hub { pool, offers, events, counters, queue_depth, .. } = hub;
        counters.bytes_received += len as u64;
        let frames = self.receiver.frames_received();
        let copied = self.receiver.payload_bytes_copied();
        let outcome = self.receiver.received(len, pool, offers, events);
        counters.frames_received += self.receiver.frames_received() - frames;
        counters.payload_bytes_copied += self.receiver.payload_bytes_copied() - copied;
        if let Some(reply) = self.receiver.take_reply() {
            self.sender.reply(reply, *queue_depth);
        }
        outcome.map_err(Fault::Misdeed)
    }

    /// Makes a lane direct on which something came, and leaves one to the engine on which nothing
    /// comes.
    fn count_misses(&mut self, found: bool, hub: &mut Hub) {
        match self.misses {
            Some(_) if found => self.misses = Some(0),
            Some(misses) if misses < MISSES_MAX => self.misses = Some(misses + 1),
            Some(_) => self.end_direct(hub),
            None if found && hub.direct < hub.direct_max && self.receiver.is_greeted() => {
                self.misses = Some(0);
                hub.direct += 1;
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Write};
    use std::rc::Rc;

    use socket2::SockRef;

    use super::super::CARRIER;
    use super::*;
    use crate::config::VanConfig;
    use crate::handshake::{Credentials, Greeter};
    use crate::transport::PeerId;

    struct Nowhere(Cursor<Vec<u8>>);

    impl Socket for Nowhere {
        fn stream(&mut self) -> &mut (impl Read + Write) {
            &mut self.0
        }

        fn options(&self) -> SockRef<'_> {
            unreachable!("it has none")
        }
    }

    /// What was reported of an address that failed must not keep the thread from sleeping while it
    /// waits for the next one.
    #[test]
    fn another_socket_has_nothing_to_do_until_it_is_reported() {
        let nowhere = || Nowhere(Cursor::default());
        let credentials = Rc::new(Credentials::new(&VanConfig::default(), CARRIER));
        let (greeter, call) = Greeter::calling(credentials);
        let mut sender = Sender::new(PeerId(0));
        sender.greet(call);
        let receiver = Receiver::new(PeerId(0), greeter, 1 << 10);
        let mut lane = SocketState::new(nowhere(), sender, receiver, false);
        assert!(!lane.has_work(), "it is not connected");
        lane.reported(Interest { reads: true, writes: true });
        assert!(lane.has_work() && lane.take_writable());
        drop(lane.replace(nowhere()));
        assert!(!lane.has_work());
        lane.reported(Interest { reads: false, writes: true });
        assert!(lane.has_work(), "it is connected, or has failed as well");
    }
}
