//! The floor of the vans over sockets: one TCP connection, set up as the vans set up theirs,
//! without batches. Each message costs one call to write where it is sent and at least one to read
//! where it is received.
//!
//! Each request in flight has memory of its own, as in any program: to be sent from, and to be
//! received into at both ends. The answering side replies from one place, as a server does with
//! what it stores.
//!
//! A request starts with its number, which the reply returns. The number [`CHANGE`] means: the next
//! three words are the lengths and the window from now on. That is the whole protocol.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use caravan_van::wait::{Idle, Next};
use caravan_van::{VanConfig, Wait, socket};
use socket2::SockRef;

use super::asking::{Floor, Lane, PATIENCE};
use super::lengths::{HEADER_BYTES, Lengths, answers, patterned, word};
use super::process::{Answerer, Process, say_address};
use crate::measure::subject::Subject;

/// The number of a request that changes the lengths.
const CHANGE: u64 = u64::MAX;

/// Starts the answering side, which ends with the floor.
pub(super) fn spawn(wait: Wait) -> Result<Box<dyn Subject>> {
    let process = Process::start_here(Answerer::Socket, wait)?;
    let lane = Asking::connect(&process.address, wait)?;
    Ok(Box::new(Floor::new(lane, Some(process))))
}

/// The floor whose answering side is there already.
pub(super) fn reach(at: SocketAddr, wait: Wait) -> Result<Box<dyn Subject>> {
    let stream = TcpStream::connect_timeout(&at, REACH).context("cannot connect")?;
    Ok(Box::new(Floor::new(Asking::over(stream, wait)?, None)))
}

/// How long a connection to another host may take.
const REACH: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Asking {
    socket: Socket,
    /// One for each place in the window.
    requests: Vec<Vec<u8>>,
    replies: Incoming,
    /// Bytes of the next request that are sent.
    partly: usize,
    /// Whether the last `send` sent anything.
    moved: bool,
}

impl Asking {
    fn connect(address: impl ToSocketAddrs, wait: Wait) -> Result<Self> {
        let stream =
            TcpStream::connect(address).context("cannot reach the floor's other process")?;
        Asking::over(stream, wait)
    }

    fn over(stream: TcpStream, wait: Wait) -> Result<Self> {
        Ok(Asking {
            socket: Socket::new(stream, wait)?,
            requests: vec![vec![0; HEADER_BYTES]],
            replies: Incoming::new(HEADER_BYTES, 1),
            partly: 0,
            moved: false,
        })
    }

    /// Numbers a request; returns its place.
    fn stamp(&mut self, number: u64) -> usize {
        let at = (number % self.requests.len() as u64) as usize;
        self.requests[at][..8].copy_from_slice(&number.to_le_bytes());
        at
    }

    /// Waits for the reply to request `number`, the only one in flight.
    fn await_reply(&mut self, number: u64) -> Result<()> {
        loop {
            if let Some(reply) = self.replies.take() {
                return answers(word(reply, 0), number);
            }
            let count = self.socket.read(self.replies.space())?;
            self.replies.filled(count);
        }
    }
}

impl Lane for Asking {
    fn agree(&mut self, lengths: Lengths, window: usize) -> Result<()> {
        let Lengths { request, reply } = lengths;
        let words = [CHANGE, request as u64, reply as u64, window as u64];
        for (word, value) in words.into_iter().enumerate() {
            self.requests[0][word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        self.socket.write_all(&self.requests[0])?;
        self.await_reply(CHANGE)?;
        self.requests = vec![patterned(request); window];
        self.replies = Incoming::new(reply, window);
        Ok(())
    }

    fn send(&mut self, mut sent: u64, done: u64, until: u64) -> Result<u64> {
        let until = until.min(done + self.requests.len() as u64);
        self.moved = false;
        while sent < until {
            let at = self.stamp(sent);
            let request = &self.requests[at];
            let Some(count) = self.socket.try_write(&request[self.partly..])? else { break };
            self.moved = true;
            self.partly += count;
            if self.partly == request.len() {
                sent += 1;
                self.partly = 0;
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, mut done: u64) -> Result<u64> {
        match self.socket.try_read(self.replies.space())? {
            Some(count) => self.replies.filled(count),
            None if !self.moved && self.partly == 0 => {
                let count = self.socket.read(self.replies.space())?;
                self.replies.filled(count);
            }
            // The other side is busy, or the socket would have taken the whole request.
            None => std::thread::yield_now(),
        }
        while let Some(reply) = self.replies.take() {
            answers(word(reply, 0), done)?;
            done += 1;
        }
        Ok(done)
    }

    fn once(&mut self, number: u64) -> Result<()> {
        let at = self.stamp(number);
        self.socket.write_all(&self.requests[at])?;
        self.await_reply(number)
    }

    fn last_is(&self, _number: u64, expected: &[u8]) -> bool {
        self.replies.last()[8..] == expected[8..]
    }
}

/// The answering process: prints its address, and answers one connection after the other until its
/// input ends.
pub(super) fn run(at: SocketAddr, wait: Wait) -> Result<()> {
    let listener = TcpListener::bind(at).context("the floor cannot listen")?;
    say_address(listener.local_addr().context("the floor cannot listen")?)?;
    loop {
        let (stream, peer) = listener.accept().context("the floor cannot accept")?;
        if let Err(error) = serve(stream, wait) {
            tracing::warn!(%peer, "the floor answers no longer: {error:#}");
        }
    }
}

fn serve(stream: TcpStream, wait: Wait) -> Result<()> {
    let mut socket = Socket::new(stream, wait)?;
    let mut requests = Incoming::new(HEADER_BYTES, 1);
    let mut reply = vec![0; HEADER_BYTES];
    loop {
        let count = socket.read_within(requests.space(), Duration::MAX)?;
        if count == 0 {
            return Ok(());
        }
        requests.filled(count);
        let mut lengths = None;
        while let Some(request) = requests.take() {
            reply[..8].copy_from_slice(&request[..8]);
            if word(request, 0) == CHANGE {
                lengths = Some([1, 2, 3].map(|at| word(request, at)));
            }
            socket.write_all(&reply)?;
        }
        if let Some([request_bytes, reply_bytes, window]) = lengths {
            let lengths = Lengths::checked(request_bytes, reply_bytes)?;
            requests = Incoming::new(lengths.request, lengths.window_checked(window)?);
            reply = patterned(lengths.reply);
        }
    }
}

/// Memory for messages of one length that are received one by one.
#[derive(Debug)]
struct Incoming {
    places: Vec<Vec<u8>>,
    /// The place of the next message.
    at: usize,
    /// Bytes of it that have come.
    filled: usize,
}

impl Incoming {
    fn new(message: usize, places: usize) -> Self {
        Incoming { places: vec![vec![0; message]; places], at: 0, filled: 0 }
    }

    /// Memory for the rest of the message; never empty if complete messages were taken.
    fn space(&mut self) -> &mut [u8] {
        &mut self.places[self.at][self.filled..]
    }

    fn filled(&mut self, count: usize) {
        self.filled += count;
    }

    /// The message if it is complete; then the next one may come.
    fn take(&mut self) -> Option<&[u8]> {
        if self.filled < self.places[self.at].len() {
            return None;
        }
        self.filled = 0;
        self.at = (self.at + 1) % self.places.len();
        Some(self.last())
    }

    /// The message taken last, until another comes in its place.
    fn last(&self) -> &[u8] {
        let places = self.places.len();
        &self.places[(self.at + places - 1) % places]
    }
}

/// A socket, and how to wait for it.
#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    wait: Wait,
    idle: Idle,
    blocking: bool,
}

impl Socket {
    fn new(stream: TcpStream, wait: Wait) -> Result<Self> {
        socket::set_up(&SockRef::from(&stream), VanConfig::SILENCE_MAX)
            .context("the floor cannot set its socket up")?;
        // A blocking read has to check the time now and then.
        stream.set_read_timeout(Some(PATIENCE)).context("the floor cannot set a time limit")?;
        Ok(Socket { stream, wait, idle: Idle::new(wait), blocking: true })
    }

    /// Reads at least a byte, waiting by the policy.
    fn read(&mut self, space: &mut [u8]) -> Result<usize> {
        not_ended(self.read_within(space, PATIENCE)?)
    }

    /// As `read`, but waits for up to `patience`, and 0 is the end of the stream.
    fn read_within(&mut self, space: &mut [u8], patience: Duration) -> Result<usize> {
        self.idle.begin(patience);
        let mut blocking = self.wait == Wait::Block;
        loop {
            if let Some(count) = self.receive(space, blocking)? {
                return Ok(count);
            }
            match self.idle.after_empty_look() {
                Next::Look => {}
                Next::Sleep(_) => blocking = true,
                Next::Return => bail!("the floor waited {PATIENCE:?} for its other process"),
            }
        }
    }

    /// Reads without waiting.
    fn try_read(&mut self, space: &mut [u8]) -> Result<Option<usize>> {
        self.receive(space, false)?.map(not_ended).transpose()
    }

    fn receive(&mut self, space: &mut [u8], blocking: bool) -> Result<Option<usize>> {
        self.set_blocking(blocking)?;
        if_ready(self.stream.read(space)).context("the floor cannot receive")
    }

    /// Writes without waiting.
    fn try_write(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        self.set_blocking(false)?;
        if_ready(self.stream.write(bytes)).context("the floor cannot send")
    }

    /// Writes all bytes. While the socket is full the other side is busy, so this does not sleep.
    fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match if_ready(self.stream.write(bytes)).context("the floor cannot send")? {
                Some(count) => bytes = &bytes[count..],
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    fn set_blocking(&mut self, blocking: bool) -> Result<()> {
        if self.blocking != blocking {
            self.stream.set_nonblocking(!blocking).context("the floor cannot change its socket")?;
            self.blocking = blocking;
        }
        Ok(())
    }
}

fn not_ended(count: usize) -> Result<usize> {
    ensure!(count > 0, "the floor's other process went away");
    Ok(count)
}

/// `None` if a socket is not ready.
fn if_ready(result: io::Result<usize>) -> io::Result<Option<usize>> {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    match result {
        Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::floor::tests::answers_under_every_wait_policy;

    /// A floor whose other side is a thread.
    fn floor(wait: Wait) -> (Floor<Asking>, std::thread::JoinHandle<Result<()>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || serve(listener.accept().unwrap().0, wait));
        (Floor::new(Asking::connect(address, wait).unwrap(), None), server)
    }

    #[test]
    fn answers_every_shape_under_every_wait_policy() {
        answers_under_every_wait_policy(floor);
    }

    #[test]
    fn lengths_out_of_range_are_refused_before_memory_is_taken() {
        for (request, reply, window) in [
            (0, 64, 1),
            (64, 63, 1),
            (1 << 62, 64, 1),
            (64, 1 << 62, 1),
            (64, 64, 0),
            (1 << 20, 64, 1 << 40),
        ] {
            let (mut floor, server) = floor(Wait::Block);
            for (at, value) in [CHANGE, request, reply, window].into_iter().enumerate() {
                floor.lane.requests[0][at * 8..][..8].copy_from_slice(&value.to_le_bytes());
            }
            floor.lane.socket.write_all(&floor.lane.requests[0]).unwrap();
            let error = server.join().unwrap().unwrap_err();
            let said = error.to_string();
            assert!(said.contains("bytes, not") || said.contains("a window of"), "{said}");
        }
    }

    #[test]
    fn a_lost_peer_is_an_error() {
        let (mut lost, server) = floor(Wait::default());
        lost.lane.socket.stream.shutdown(std::net::Shutdown::Write).unwrap();
        server.join().unwrap().unwrap();
        assert!(lost.stream(1).is_err() || lost.once().is_err());
    }

    #[test]
    fn messages_are_given_back_whole() {
        let mut incoming = Incoming::new(100, 2);
        assert!(incoming.take().is_none());
        assert_eq!(incoming.space().len(), 100);
        incoming.space()[0] = 7;
        incoming.filled(99);
        assert!(incoming.take().is_none());
        assert_eq!(incoming.space().len(), 1);
        incoming.filled(1);
        assert_eq!(incoming.take().map(<[u8]>::len), Some(100));
        assert!(incoming.take().is_none());
        assert_eq!(incoming.space().len(), 100);
        incoming.space()[0] = 8;
        assert_eq!(incoming.last()[0], 7, "the next one has a place of its own");
    }
}
