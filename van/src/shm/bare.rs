//! Two processes with a segment each and nothing else: the floor that a benchmark compares the van
//! with.
//!
//! Each side writes a count and bytes in its own segment and reads the other's. There are no
//! records, no flow control and no peers. Waiting works as in the van.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::connect;
use super::segment::{Foreign, Own};
use super::socket::{Epoll, Socket};
use crate::wait::{Idle, Next, Wait};

const COUNT: usize = 0;
const ASLEEP: usize = 128;
const BYTES_AT: usize = 4096;

/// Limit on the time until the other process sends something on the socket.
const PATIENCE: Duration = Duration::from_secs(30);

/// A listener for the other process.
#[derive(Debug)]
pub struct Listener(Socket, String);

impl Listener {
    /// Listens under a name of its own.
    ///
    /// # Errors
    /// What the system said.
    pub fn new() -> io::Result<Listener> {
        connect::listen().map(|(socket, address)| Listener(socket, address))
    }

    /// The address for [`Channel::connect`].
    pub fn address(&self) -> &str {
        &self.1
    }

    /// Waits for the other process.
    ///
    /// # Errors
    /// What the system said; [`io::ErrorKind::TimedOut`] after half a minute.
    pub fn accept(&self) -> io::Result<Channel> {
        until_ready(&self.0)?;
        self.0.accept().map(Rc::new).map(Channel)
    }
}

/// A connection over which two sides agree on what to share.
#[derive(Debug)]
pub struct Channel(Rc<Socket>);

impl Channel {
    /// Connects to a [`Listener`].
    ///
    /// # Errors
    /// What the system said.
    pub fn connect(address: &str) -> io::Result<Channel> {
        Socket::connect(connect::name_in(address)?).map(Rc::new).map(Channel)
    }

    /// Sends numbers and a segment of `bytes` bytes, which they describe.
    ///
    /// # Errors
    /// What the system said.
    pub fn share(&self, numbers: [u64; 4], bytes: usize) -> io::Result<Mine> {
        let own = Own::new(BYTES_AT + bytes)?;
        let packet = numbers.map(u64::to_le_bytes);
        self.0.send(packet.as_flattened(), Some(own.file()))?;
        Ok(Mine(own))
    }

    /// Waits for the numbers that the other side sends with its segment; `None` once it is gone.
    ///
    /// # Errors
    /// What the system said, or what is wrong with the segment.
    pub fn numbers(&self) -> io::Result<Option<([u64; 4], Theirs)>> {
        let mut packet = [0; 32];
        let (len, file) = loop {
            until_ready(&self.0)?;
            match self.0.receive(&mut packet)? {
                (1, None) => {} // a wake-up, and this side is awake
                received => break received,
            }
        };
        let Some(file) = file.filter(|_| len == packet.len()) else { return Ok(None) };
        let mut numbers = [0; 4];
        for (number, bytes) in numbers.iter_mut().zip(packet.as_chunks().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        Ok(Some((numbers, Theirs(file))))
    }

    /// Maps both segments.
    ///
    /// # Errors
    /// If the other side's segment is not `bytes` long or cannot be mapped.
    pub fn bare(&self, mine: Mine, theirs: &Theirs, bytes: usize, wait: Wait) -> io::Result<Bare> {
        let foreign = Foreign::map(theirs.0.as_fd(), BYTES_AT + bytes).map_err(io::Error::other)?;
        let epoll = Epoll::new()?;
        epoll.watch(&self.0, 0)?;
        Ok(Bare {
            own: mine.0,
            foreign,
            socket: self.0.clone(),
            epoll,
            wait,
            idle: Idle::new(wait),
            sleeps: 0,
            woken: 0,
        })
    }
}

/// This side's segment, not in use yet.
#[derive(Debug)]
pub struct Mine(Own);

/// The other side's, not mapped yet.
#[derive(Debug)]
pub struct Theirs(OwnedFd);

/// A segment of each side.
#[derive(Debug)]
pub struct Bare {
    own: Own,
    foreign: Foreign,
    socket: Rc<Socket>,
    epoll: Epoll,
    wait: Wait,
    idle: Idle,
    sleeps: u64,
    woken: u64,
}

impl Bare {
    /// Copies bytes into this side's segment.
    ///
    /// # Panics
    /// If they reach past its end.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.own.write(BYTES_AT + offset, bytes);
    }

    /// Copies bytes out of the other side's.
    ///
    /// # Panics
    /// If they reach past its end.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        if into.len() <= SMALL {
            self.foreign.read_words(BYTES_AT + offset, into);
        } else {
            self.foreign.read(BYTES_AT + offset, into);
        }
    }

    /// Publishes the number of messages, which is larger than before.
    pub fn publish(&mut self, count: u64) {
        self.own.store(COUNT, count, Ordering::Release);
        if matches!(self.wait, Wait::Spin | Wait::Yield) {
            return;
        }
        fence(Ordering::SeqCst);
        let asleep = self.foreign.load(ASLEEP, Ordering::Relaxed);
        if asleep != 0 && asleep != self.woken {
            self.woken = asleep;
            let _ = self.socket.send(&[0], None); // a process that is gone need not be woken
        }
    }

    /// The number of messages that the other side has published.
    pub fn published(&self) -> u64 {
        self.foreign.load(COUNT, Ordering::Acquire)
    }

    /// Waits until the other side has published more than `count` messages; returns their number.
    /// Returns `None` if the other side is gone, shares a new segment, or publishes nothing for
    /// `patience`.
    ///
    /// # Errors
    /// What the system said.
    pub fn more_than(&mut self, count: u64, patience: Duration) -> io::Result<Option<u64>> {
        self.idle.begin(patience);
        let mut looks = 0u32;
        loop {
            let found = self.published();
            if found > count {
                return Ok(Some(found));
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && self.is_spoken_to(Duration::ZERO)? {
                return Ok(None);
            }
            match self.idle.after_empty_look() {
                Next::Look => {}
                Next::Return => return Ok(None),
                Next::Sleep(left) => {
                    self.sleeps += 1;
                    self.own.store(ASLEEP, self.sleeps, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    let ended = self.published() <= count && self.is_spoken_to(left)?;
                    self.own.store(ASLEEP, 0, Ordering::Relaxed);
                    if ended && self.published() <= count {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits for the socket and takes a wake-up; returns whether there is anything else.
    fn is_spoken_to(&self, timeout: Duration) -> io::Result<bool> {
        let mut ready = Vec::new();
        self.epoll.wait(timeout, &mut ready)?;
        if ready.is_empty() {
            return Ok(false);
        }
        Ok(!self.socket.take_if_one_byte()?)
    }
}

/// Up to this length reads go as the van's of its ring.
const SMALL: usize = 2 << 10;

/// Empty looks between two at the socket.
const LOOKS: u32 = 1 << 14;

fn until_ready(socket: &Socket) -> io::Result<()> {
    let epoll = Epoll::new()?;
    epoll.watch(socket, 0)?;
    let (began, mut ready) = (Instant::now(), Vec::new());
    while ready.is_empty() {
        let left = PATIENCE.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        epoll.wait(left, &mut ready)?;
    }
    Ok(())
}
