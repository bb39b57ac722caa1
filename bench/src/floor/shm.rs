//! The floor of the van over shared memory: a count in memory that the other process reads, and the
//! bytes that it counts.
//!
//! A request lies in the asking side's segment, which has a place for each request in the window;
//! its first word is its number. The answering side copies it out, writes a reply with the number
//! into its own segment and counts it, and the asking side copies the reply out. Short messages are
//! also copied in each time. Long ones lie there from the start, as values do that a van sends from
//! where they lie: each is copied once.
//!
//! `caravan_van::shm::bare` maps the segments: that is unsafe code, which this program has none of.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caravan_van::Wait;
use caravan_van::shm::bare::{Bare, Channel, Listener};

use super::asking::{Floor, Lane, PATIENCE};
use super::lengths::{Lengths, answers, patterned, word};
use super::process::{Answerer, Process, say_address};
use crate::measure::subject::Subject;

/// Messages up to this long are copied in, too.
const SHORT_BYTES_MAX: usize = 32 << 10;
/// Places begin at multiples of this: two cache lines.
const ALIGN: usize = 128;
const WINDOW_MAX: u64 = 1 << 16;
/// Most bytes of one side's segment.
const SEGMENT_BYTES_MAX: usize = 8 << 30;

/// Starts the answering side, which ends with the floor.
pub(super) fn spawn(wait: Wait) -> Result<Box<dyn Subject>> {
    let process = Process::start_here(Answerer::Memory, wait)?;
    let lane = Asking::connect(&process.address, wait)?;
    Ok(Box::new(Floor::new(lane, Some(process))))
}

#[derive(Debug)]
pub(super) struct Asking {
    channel: Channel,
    wait: Wait,
    segments: Option<Segments>,
    reply: Vec<u8>,
}

impl Asking {
    fn connect(address: &str, wait: Wait) -> Result<Self> {
        let channel =
            Channel::connect(address).context("cannot reach the floor's other process")?;
        Ok(Asking { channel, wait, segments: None, reply: Vec::new() })
    }
}

impl Lane for Asking {
    fn agree(&mut self, lengths: Lengths, window: usize) -> Result<()> {
        let Lengths { request, reply } = lengths;
        let window = window as u64;
        self.segments = None;
        let numbers = [request as u64, reply as u64, window, 0];
        let mine = self.channel.share(numbers, segment_bytes(request, window)?)?;
        let answered = self.channel.numbers().context("the floor waits for its other process")?;
        let (_, theirs) = answered.context("the floor's other process went away")?;
        let bare = self.channel.bare(mine, &theirs, segment_bytes(reply, window)?, self.wait)?;
        self.segments = Some(Segments::new(bare, window, &patterned(request), reply));
        self.reply = vec![0; reply];
        Ok(())
    }

    fn send(&mut self, sent: u64, done: u64, until: u64) -> Result<u64> {
        let segments = self.segments.as_mut().context("the floor was not prepared")?;
        let until = until.min(done + segments.window);
        for number in sent..until {
            segments.send(number);
        }
        if until > sent {
            segments.bare.publish(until);
        }
        Ok(until)
    }

    fn receive(&mut self, done: u64) -> Result<u64> {
        let segments = self.segments.as_mut().context("the floor was not prepared")?;
        let found = segments.more_than(done, PATIENCE)?;
        let found = found.context("the floor's other process went away")?;
        for number in done..found {
            segments.receive(number, &mut self.reply);
            answers(word(&self.reply, 0), number)?;
        }
        Ok(found)
    }

    fn last_is(&self, _number: u64, expected: &[u8]) -> bool {
        self.reply[8..] == expected[8..]
    }
}

/// This side's segment and the other's.
#[derive(Debug)]
struct Segments {
    bare: Bare,
    /// Places for messages.
    window: u64,
    /// A message of this side, but for its number.
    sent: Vec<u8>,
    /// Bytes from one message to the next in the other side's segment.
    received_stride: usize,
}

impl Segments {
    /// `sent` is the pattern of this side's messages; those of the other side have `received`
    /// bytes.
    fn new(mut bare: Bare, window: u64, sent: &[u8], received: usize) -> Self {
        for place in 0..window as usize {
            bare.write(place * stride(sent.len()), sent);
        }
        Segments { bare, window, sent: sent.to_vec(), received_stride: stride(received) }
    }

    fn send(&mut self, number: u64) {
        let place = (number % self.window) as usize * stride(self.sent.len());
        self.sent[..8].copy_from_slice(&number.to_le_bytes());
        let fresh = if self.sent.len() <= SHORT_BYTES_MAX { self.sent.len() } else { 8 };
        self.bare.write(place, &self.sent[..fresh]);
    }

    fn receive(&self, number: u64, into: &mut [u8]) {
        self.bare.read((number % self.window) as usize * self.received_stride, into);
    }

    fn more_than(&mut self, count: u64, patience: Duration) -> Result<Option<u64>> {
        self.bare.more_than(count, patience).context("the floor cannot wait")
    }
}

/// Bytes from one message to the next.
fn stride(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// Bytes of a segment for messages of `len` bytes.
fn segment_bytes(len: usize, window: u64) -> Result<usize> {
    ensure!((1..=WINDOW_MAX).contains(&window), "the floor has no window of {window}");
    let bytes = stride(len).saturating_mul(window as usize);
    ensure!(
        bytes <= SEGMENT_BYTES_MAX,
        "the floor has no room for {window} messages of {len} bytes at a time"
    );
    Ok(bytes)
}

/// The answering process: prints its address, answers one connection, ends with it or with its
/// input.
pub(super) fn run(wait: Wait) -> Result<()> {
    let listener = Listener::new().context("the floor cannot listen")?;
    say_address(listener.address())?;
    serve(&listener.accept().context("the floor cannot accept")?, wait)
}

fn serve(channel: &Channel, wait: Wait) -> Result<()> {
    while let Some(([request, reply, window, _], theirs)) =
        channel.numbers().context("the floor waits for its other process")?
    {
        let lengths = Lengths::checked(request, reply)?;
        let mine = channel.share([0; 4], segment_bytes(lengths.reply, window)?)?;
        let bare = channel.bare(mine, &theirs, segment_bytes(lengths.request, window)?, wait)?;
        let mut segments = Segments::new(bare, window, &patterned(lengths.reply), lengths.request);
        let mut request = vec![0; lengths.request];
        let mut done = 0;
        while let Some(found) = segments.more_than(done, Duration::MAX)? {
            ensure!(found - done <= window, "the floor was sent more than its window");
            for number in done..found {
                segments.receive(number, &mut request);
                answers(word(&request, 0), number)?;
                segments.send(number);
            }
            done = found;
            segments.bare.publish(done);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::floor::tests::answers_under_every_wait_policy;

    /// A floor whose other side is a thread.
    fn floor(wait: Wait) -> (Floor<Asking>, std::thread::JoinHandle<Result<()>>) {
        let (say, address) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let listener = Listener::new().unwrap();
            say.send(listener.address().to_owned()).unwrap();
            serve(&listener.accept().unwrap(), wait)
        });
        (Floor::new(Asking::connect(&address.recv().unwrap(), wait).unwrap(), None), server)
    }

    #[test]
    fn answers_every_shape_under_every_wait_policy() {
        answers_under_every_wait_policy(floor);
    }

    #[test]
    fn lengths_out_of_range_are_refused_before_memory_is_taken() {
        for numbers in [[0, 64, 1, 0], [64, 63, 1, 0], [1 << 62, 64, 1, 0], [64, 64, 0, 0]] {
            let (floor, server) = floor(Wait::Block);
            let _mine = floor.lane.channel.share(numbers, 64).unwrap();
            assert!(server.join().unwrap().is_err());
        }
    }
}
