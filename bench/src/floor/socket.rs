//! The floor of vans over sockets: one TCP connection, set up as the vans set up theirs, and no batching: each message costs one
//! write call where it is sent and at least one read call where it is received, which takes nothing of the next.
//!
//! With a window of requests in flight each has memory of its own, as it has in any program: to be sent from where this side has
//! what goes, and to be received into at both ends. The answering side replies from one place, as a server does with what it stores.
//!
//! A request starts with its number, which the reply brings back. [`CHANGE`] in its place means: the three words behind it are
//! the lengths and the window from now on. That is the whole protocol.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use caravan_van::wait::{Idle, Next};
use caravan_van::{Wait, socket};
use socket2::SockRef;

use crate::floor::{
    Answerer, HEADER_BYTES, Lengths, PATIENCE, Process, answers, end_with_input, patterned,
    say_address, word,
};
use crate::subject::{Shape, Subject};

/// The number of a request that changes the lengths.
const CHANGE: u64 = u64::MAX;

/// The asking side.
#[derive(Debug)]
pub(crate) struct Floor {
    lane: Lane,
    /// What is sent, in turn.
    requests: Vec<Vec<u8>>,
    replies: Incoming,
    expected: Vec<u8>,
    number: u64,
    pulls: bool,
    _process: Option<Process>,
}

impl Floor {
    /// Starts the answering side at `host`; it ends with this value.
    ///
    /// # Errors
    /// When the program cannot be started or does not say where it listens.
    pub(crate) fn spawn(host: IpAddr, wait: Wait) -> Result<Self> {
        let (process, address) = Process::start(Answerer::Socket, host, wait)?;
        let mut floor = Floor::connect(address, wait)?;
        floor._process = Some(process);
        Ok(floor)
    }

    fn connect(address: SocketAddr, wait: Wait) -> Result<Self> {
        let stream =
            TcpStream::connect(address).context("cannot reach the floor's other process")?;
        Ok(Floor {
            lane: Lane::new(stream, wait)?,
            requests: vec![vec![0; HEADER_BYTES]],
            replies: Incoming::new(HEADER_BYTES, 1),
            expected: vec![0; HEADER_BYTES],
            number: 0,
            pulls: false,
            _process: None,
        })
    }

    /// Agrees with the other side on the lengths of request and reply, and on the window.
    fn agree(&mut self, lengths: Lengths, window: usize) -> Result<()> {
        let Lengths { request, reply } = lengths;
        let words = [CHANGE, request as u64, reply as u64, window as u64];
        for (word, value) in words.into_iter().enumerate() {
            self.requests[0][word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        self.lane.write_all(&self.requests[0])?;
        self.receive(CHANGE)?;
        self.requests = vec![patterned(request); window];
        self.expected = patterned(reply);
        self.replies = Incoming::new(reply, window);
        Ok(())
    }

    /// Numbers the request whose turn it is; returns which that is.
    fn stamp(&mut self, number: u64) -> usize {
        let at = (number % self.requests.len() as u64) as usize;
        self.requests[at][..8].copy_from_slice(&number.to_le_bytes());
        at
    }

    /// Waits for the reply to request `number`, when only that one is due.
    fn receive(&mut self, number: u64) -> Result<()> {
        loop {
            if let Some(reply) = self.replies.take() {
                return answers(reply, number);
            }
            let count = self.lane.read(self.replies.space())?;
            self.replies.filled(count);
        }
    }

    /// Writes what the window allows. Returns whether anything moved.
    fn send(&mut self, sent: &mut u64, partly: &mut usize, until: u64) -> Result<bool> {
        let mut moved = false;
        while *sent < until {
            let at = self.stamp(self.number + *sent);
            let request = &self.requests[at];
            let Some(count) = self.lane.try_write(&request[*partly..])? else { break };
            moved = true;
            *partly += count;
            if *partly == request.len() {
                (*sent, *partly) = (*sent + 1, 0);
            }
        }
        Ok(moved)
    }
}

impl Subject for Floor {
    fn prepare(&mut self, shape: Shape) -> Result<()> {
        self.agree(Lengths::of(shape), shape.window.max(1))?;
        self.pulls = shape.op.pulls();
        Ok(())
    }

    fn once(&mut self) -> Result<()> {
        let number = self.number;
        let at = self.stamp(number);
        self.lane.write_all(&self.requests[at])?;
        self.receive(number)?;
        self.number += 1;
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        let reply = self.replies.last();
        Ok(u64::from(self.pulls && reply[8..] != self.expected[8..]))
    }

    fn stream(&mut self, count: u64) -> Result<()> {
        let (mut sent, mut partly, mut done) = (0, 0, 0);
        let window = self.requests.len() as u64;
        while done < count {
            let moved = self.send(&mut sent, &mut partly, count.min(done + window))?;
            match self.lane.try_read(self.replies.space())? {
                Some(received) => self.replies.filled(received),
                None if !moved && partly == 0 => {
                    let received = self.lane.read(self.replies.space())?;
                    self.replies.filled(received);
                }
                // The other side is at work, or the socket would have taken the whole request: let it.
                None => std::thread::yield_now(),
            }
            while let Some(reply) = self.replies.take() {
                answers(reply, self.number + done)?;
                done += 1;
            }
        }
        self.number += count;
        Ok(())
    }

    fn settle(&mut self) -> Result<u64> {
        self.check()
    }
}

/// The answering process: says its address, answers one connection, ends with it or with its own input.
///
/// # Errors
/// When it cannot listen, or is asked for lengths out of range.
pub(crate) fn run(host: IpAddr, wait: Wait) -> Result<()> {
    let listener = TcpListener::bind((host, 0)).context("the floor cannot listen")?;
    say_address(listener.local_addr().context("the floor cannot listen")?)?;
    end_with_input()?;
    let (stream, _) = listener.accept().context("the floor cannot accept")?;
    serve(stream, wait)
}

/// Answers requests until the other side hangs up.
fn serve(stream: TcpStream, wait: Wait) -> Result<()> {
    let mut lane = Lane::new(stream, wait)?;
    let mut requests = Incoming::new(HEADER_BYTES, 1);
    let mut reply = vec![0; HEADER_BYTES];
    loop {
        let count = match lane.look(requests.space(), Duration::MAX)? {
            0 => return Ok(()),
            count => count,
        };
        requests.filled(count);
        let mut lengths = None;
        while let Some(request) = requests.take() {
            reply[..8].copy_from_slice(&request[..8]);
            if word(request, 0) == CHANGE {
                lengths = Some([1, 2, 3].map(|at| word(request, at)));
            }
            lane.write_all(&reply)?;
        }
        if let Some([request_bytes, reply_bytes, window]) = lengths {
            let lengths = Lengths::checked(request_bytes, reply_bytes)?;
            requests = Incoming::new(lengths.request, lengths.window_checked(window)?);
            reply = patterned(lengths.reply);
        }
    }
}

/// Memory that messages of one length are received into, one by one, in turn.
#[derive(Debug)]
struct Incoming {
    places: Vec<Vec<u8>>,
    /// The place of the message that comes next, or is coming,
    at: usize,
    /// and how much of it is there.
    filled: usize,
}

impl Incoming {
    fn new(message: usize, places: usize) -> Self {
        Incoming { places: vec![vec![0; message]; places], at: 0, filled: 0 }
    }

    /// Where the rest of the message goes; never empty once it was taken when it was complete.
    fn space(&mut self) -> &mut [u8] {
        &mut self.places[self.at][self.filled..]
    }

    fn filled(&mut self, count: usize) {
        self.filled += count;
    }

    /// The message, once it is complete; then the next one may come.
    fn take(&mut self) -> Option<&[u8]> {
        if self.filled < self.places[self.at].len() {
            return None;
        }
        self.filled = 0;
        self.at = (self.at + 1) % self.places.len();
        Some(self.last())
    }

    /// The message taken last, while nothing has come in its place.
    fn last(&self) -> &[u8] {
        let places = self.places.len();
        &self.places[(self.at + places - 1) % places]
    }
}

/// A socket, and how to wait at it.
#[derive(Debug)]
struct Lane {
    stream: TcpStream,
    wait: Wait,
    idle: Idle,
    blocking: bool,
}

impl Lane {
    fn new(stream: TcpStream, wait: Wait) -> Result<Self> {
        socket::set_up(&SockRef::from(&stream)).context("the floor cannot set its socket up")?;
        // So that a blocking read looks at the time now and then.
        stream.set_read_timeout(Some(PATIENCE)).context("the floor cannot set a time limit")?;
        Ok(Lane { stream, wait, idle: Idle::new(wait), blocking: true })
    }

    /// Reads at least a byte, waiting by the policy.
    fn read(&mut self, space: &mut [u8]) -> Result<usize> {
        match self.look(space, PATIENCE)? {
            0 => bail!("the floor's other process went away"),
            count => Ok(count),
        }
    }

    /// As `read`, but waits for up to `patience`, and 0 is the end of the stream.
    fn look(&mut self, space: &mut [u8], patience: Duration) -> Result<usize> {
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

    /// Reads what is there, if anything is.
    fn try_read(&mut self, space: &mut [u8]) -> Result<Option<usize>> {
        match self.receive(space, false)? {
            Some(0) => bail!("the floor's other process went away"),
            some => Ok(some),
        }
    }

    fn receive(&mut self, space: &mut [u8], blocking: bool) -> Result<Option<usize>> {
        self.set_blocking(blocking)?;
        if_ready(self.stream.read(space)).context("the floor cannot receive")
    }

    /// Writes what fits, if anything does.
    fn try_write(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        self.set_blocking(false)?;
        if_ready(self.stream.write(bytes)).context("the floor cannot send")
    }

    /// Writes all; the other side is at work while the socket is full, so there is nothing to sleep for.
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

/// `None` where a socket is not ready.
fn if_ready(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::floor::tests::answers_every_shape;

    /// A floor whose other side is a thread.
    fn floor(wait: Wait) -> (Floor, std::thread::JoinHandle<Result<()>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || serve(listener.accept().unwrap().0, wait));
        (Floor::connect(address, wait).unwrap(), server)
    }

    #[test]
    fn answers_every_shape_under_every_wait_policy() {
        let bound = Duration::from_micros(50);
        for wait in [Wait::Yield, Wait::Adaptive(bound), Wait::Block, Wait::default()] {
            let (mut floor, server) = floor(wait);
            answers_every_shape(&mut floor, &[(8, 1), (8, 64), (70_000, 3), (1 << 20, 8)]);
            drop(floor);
            server.join().unwrap().unwrap();
        }
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
                floor.requests[0][at * 8..][..8].copy_from_slice(&value.to_le_bytes());
            }
            floor.lane.write_all(&floor.requests[0]).unwrap();
            let error = server.join().unwrap().unwrap_err();
            let said = error.to_string();
            assert!(said.contains("bytes, not") || said.contains("a window of"), "{said}");
        }
    }

    #[test]
    fn a_lost_peer_is_an_error() {
        let (mut lost, server) = floor(Wait::default());
        lost.lane.stream.shutdown(std::net::Shutdown::Write).unwrap();
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
