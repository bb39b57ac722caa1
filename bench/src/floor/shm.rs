//! The floor of the van in shared memory: a count in memory that the other process reads, and the bytes that it speaks of.
//!
//! A request lies in the asking side's segment, one place for each in the window, and its first word is its number; the answering
//! side copies it out, writes a reply with the number into its own segment and says so, and the asking side copies that out. Short
//! messages are copied in as well, every time. The bytes of long ones lie there from the beginning, as values do that a van sends
//! from where they lie: each is copied once.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caravan_van::Wait;
use caravan_van::shm::bare::{Bare, Channel, Listener};

use crate::floor::{
    Answerer, Lengths, PATIENCE, Process, answers, end_with_input, patterned, say_address,
};
use crate::subject::{Shape, Subject};

/// Messages up to this long are copied in, too.
const SHORT_BYTES_MAX: usize = 32 << 10;
/// Places begin at a multiple of this: two lines of the cache.
const ALIGN: usize = 128;
/// Most requests in flight either side agrees to.
const WINDOW_MAX: u64 = 1 << 16;
/// Most bytes of one side's segment.
const SEGMENT_BYTES_MAX: usize = 8 << 30;

/// The asking side.
#[derive(Debug)]
pub(crate) struct Floor {
    channel: Channel,
    wait: Wait,
    lane: Option<Lane>,
    /// Requests so far, of this shape.
    number: u64,
    reply: Vec<u8>,
    expected: Vec<u8>,
    pulls: bool,
    _process: Option<Process>,
}

impl Floor {
    /// Starts the answering side; it ends with this value.
    ///
    /// # Errors
    /// When the program cannot be started or does not say where it listens.
    pub(crate) fn spawn(wait: Wait) -> Result<Self> {
        let here = Ipv4Addr::LOCALHOST.into();
        let (process, address) = Process::start_anywhere(Answerer::Memory, here, wait)?;
        let mut floor = Floor::connect(&address, wait)?;
        floor._process = Some(process);
        Ok(floor)
    }

    fn connect(address: &str, wait: Wait) -> Result<Self> {
        let channel =
            Channel::connect(address).context("cannot reach the floor's other process")?;
        let (reply, expected) = (Vec::new(), Vec::new());
        let (lane, pulls) = (None, false);
        Ok(Floor { channel, wait, lane, number: 0, reply, expected, pulls, _process: None })
    }

    /// Sends requests up to `until`, and takes the replies that are there once there are more than `done`; how many are.
    fn ask(&mut self, sent: u64, until: u64, done: u64) -> Result<u64> {
        let lane = self.lane.as_mut().context("the floor was not prepared")?;
        for number in sent..until {
            lane.send(number);
        }
        if until > sent {
            lane.bare.publish(until);
        }
        let there =
            lane.more_than(done, PATIENCE)?.context("the floor's other process went away")?;
        for number in done..there {
            lane.receive(number, &mut self.reply);
            answers(&self.reply, number)?;
        }
        Ok(there)
    }
}

impl Subject for Floor {
    fn prepare(&mut self, shape: Shape) -> Result<()> {
        let lengths = Lengths::of(shape);
        let window = (shape.window.max(1) as u64).min(WINDOW_MAX);
        let places = Places { window };
        let numbers = [lengths.request as u64, lengths.reply as u64, window, 0];
        self.lane = None;
        let mine = self.channel.share(numbers, places.bytes(lengths.request)?)?;
        let answered = self.channel.numbers().context("the floor waits for its other process")?;
        let (_, theirs) = answered.context("the floor's other process went away")?;
        let bytes = places.bytes(lengths.reply)?;
        let bare = self.channel.bare(mine, &theirs, bytes, self.wait)?;
        let sent = patterned(lengths.request);
        self.lane = Some(Lane::new(bare, places, &sent, lengths.reply));
        self.expected = patterned(lengths.reply);
        (self.reply, self.number) = (vec![0; lengths.reply], 0);
        self.pulls = shape.op.pulls();
        Ok(())
    }

    fn once(&mut self) -> Result<()> {
        self.number = self.ask(self.number, self.number + 1, self.number)?;
        Ok(())
    }

    fn check(&mut self) -> Result<u64> {
        Ok(u64::from(self.pulls && self.reply[8..] != self.expected[8..]))
    }

    fn stream(&mut self, count: u64) -> Result<()> {
        let window = self.lane.as_ref().map_or(1, |lane| lane.places.window);
        let (mut sent, mut done) = (self.number, self.number);
        let last = self.number + count;
        while done < last {
            let until = last.min(done + window);
            done = self.ask(sent, until, done)?;
            sent = until;
        }
        self.number = last;
        Ok(())
    }

    fn settle(&mut self) -> Result<u64> {
        self.check()
    }
}

/// How many places there are for messages.
#[derive(Debug, Clone, Copy)]
struct Places {
    window: u64,
}

impl Places {
    /// Bytes of a segment for messages of `len` bytes.
    fn bytes(self, len: usize) -> Result<usize> {
        let bytes = stride(len).saturating_mul(self.window as usize);
        ensure!(
            bytes <= SEGMENT_BYTES_MAX,
            "the floor has no room for {} messages of {len} bytes at a time",
            self.window
        );
        Ok(bytes)
    }
}

/// One side's segment and the other's.
#[derive(Debug)]
struct Lane {
    bare: Bare,
    places: Places,
    /// What is sent, but for its number.
    sent: Vec<u8>,
    /// Bytes from one message to the next, in this side's segment and in the other's.
    strides: [usize; 2],
}

impl Lane {
    /// `sent` is what all that this side sends looks like; what it receives is `received` bytes long.
    fn new(mut bare: Bare, places: Places, sent: &[u8], received: usize) -> Lane {
        let strides = [stride(sent.len()), stride(received)];
        for place in 0..places.window as usize {
            bare.write(place * strides[0], sent);
        }
        Lane { bare, places, sent: sent.to_vec(), strides }
    }

    fn place(&self, number: u64, stride: usize) -> usize {
        (number % self.places.window) as usize * stride
    }

    fn send(&mut self, number: u64) {
        let place = self.place(number, self.strides[0]);
        self.sent[..8].copy_from_slice(&number.to_le_bytes());
        let fresh = if self.sent.len() <= SHORT_BYTES_MAX { self.sent.len() } else { 8 };
        self.bare.write(place, &self.sent[..fresh]);
    }

    fn receive(&self, number: u64, into: &mut [u8]) {
        self.bare.read(self.place(number, self.strides[1]), into);
    }

    fn more_than(&mut self, count: u64, patience: Duration) -> Result<Option<u64>> {
        self.bare.more_than(count, patience).context("the floor cannot wait")
    }
}

fn stride(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// The answering process: says its address, answers one connection, ends with it or with its own input.
///
/// # Errors
/// When it cannot listen, or is asked for lengths out of range.
pub(crate) fn run(wait: Wait) -> Result<()> {
    let listener = Listener::new().context("the floor cannot listen")?;
    say_address(listener.address())?;
    end_with_input()?;
    serve(&listener.accept().context("the floor cannot accept")?, wait)
}

/// Answers requests until the other side hangs up.
fn serve(channel: &Channel, wait: Wait) -> Result<()> {
    while let Some(([request, reply, window, _], theirs)) =
        channel.numbers().context("the floor waits for its other process")?
    {
        let lengths = Lengths::checked(request, reply)?;
        ensure!((1..=WINDOW_MAX).contains(&window), "the floor has no window of {window}");
        let places = Places { window };
        let mine = channel.share([0; 4], places.bytes(lengths.reply)?)?;
        let bare = channel.bare(mine, &theirs, places.bytes(lengths.request)?, wait)?;
        let mut lane = Lane::new(bare, places, &patterned(lengths.reply), lengths.request);
        let mut request = vec![0; lengths.request];
        let mut done = 0;
        while let Some(there) = lane.more_than(done, Duration::MAX)? {
            ensure!(there - done <= window, "the floor was sent more than its window");
            for number in done..there {
                lane.receive(number, &mut request);
                answers(&request, number)?;
                lane.send(number);
            }
            done = there;
            lane.bare.publish(done);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::floor::tests::answers_every_shape;

    /// A floor whose other side is a thread.
    fn floor(wait: Wait) -> (Floor, std::thread::JoinHandle<Result<()>>) {
        let (say, address) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let listener = Listener::new().unwrap();
            say.send(listener.address().to_owned()).unwrap();
            serve(&listener.accept().unwrap(), wait)
        });
        (Floor::connect(&address.recv().unwrap(), wait).unwrap(), server)
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
        for numbers in [[0, 64, 1, 0], [64, 63, 1, 0], [1 << 62, 64, 1, 0], [64, 64, 0, 0]] {
            let (floor, server) = floor(Wait::Block);
            let _mine = floor.channel.share(numbers, 64).unwrap();
            assert!(server.join().unwrap().is_err());
        }
    }
}
