//! The floor of the van over RDMA: one queue pair, and as little around it as can be.
//!
//! Messages up to the van's eager limit go by SEND, inside the work request where the device can; a longer one by one RDMA WRITE
//! with immediate data into memory that the other side named when the connection was made, as many places of it as the window has.
//! One completion in sixteen is asked for, and every one of long messages. Requests with a window leave together, up to
//! sixteen at one doorbell, and so do the replies to those that were found together.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use caravan_kv::NodeConfig;
use caravan_van::rdma::verbs::{Exposed, Slot, Work};
use caravan_van::{Pool, Shared, Wait};

use crate::floor::{
    Answerer, HEADER_BYTES, Lengths, MEMORY_BYTES_MAX, Process, end_with_input, patterned,
    say_address, word,
};
use crate::subject::{Shape, Subject};
use crate::verbs::address::address_of;
use crate::verbs::link::{Arrival, Asked, Link, Listener, Room};
use crate::verbs::words::{pack, unpack};

/// The kind of what the asking side says, and of what it is told.
const REQUEST: u64 = u64::from_le_bytes(*b"cvfloor1");
/// Places in exposed memory begin at multiples of so many bytes.
const PLACE_ALIGN: usize = 4096;
/// Most messages that leave at one doorbell.
const LIST_MAX: usize = 16;
/// Short messages for one completion.
const SIGNAL_EVERY: usize = 16;
/// Most bytes inside a work request: what a ConnectX gives without giving up depth.
const INLINE_BYTES: usize = 220;
/// Most requests in flight.
const WINDOW_MAX: u64 = 4096;

/// What both sides agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Agreement {
    lengths: Lengths,
    window: usize,
    /// Longer messages are written.
    eager: usize,
}

impl Agreement {
    /// What the asking side says, with where its replies may be written.
    fn read(said: &[u8]) -> Result<(Self, [u64; 2])> {
        let [request, reply, eager, window_key, address] = unpack(REQUEST, said)?;
        let (window, key) = (window_key >> 32, window_key & u64::from(u32::MAX));
        ensure!((1..=WINDOW_MAX).contains(&window), "the floor has no window of {window}");
        let lengths = Lengths::checked(request, reply)?;
        for bytes in [lengths.request, lengths.reply] {
            let all = stride(bytes) as u64 * window;
            ensure!(all <= MEMORY_BYTES_MAX, "{window} messages of {bytes} bytes are too much");
        }
        let agreement = Agreement {
            lengths,
            window: window as usize,
            eager: usize::try_from(eager).unwrap_or(usize::MAX),
        };
        ensure!(
            agreement.is_written(lengths.reply) == (address != 0),
            "a long reply needs a place, and no other does"
        );
        Ok((agreement, [address, key]))
    }

    fn is_written(&self, bytes: usize) -> bool {
        bytes > self.eager
    }

    /// What a queue pair needs that sends messages of `sends` bytes and gets some of `receives`.
    fn room(&self, receives: usize) -> Room {
        let receive_bytes = if self.is_written(receives) { HEADER_BYTES } else { receives };
        Room {
            sends: self.window + 2 * SIGNAL_EVERY,
            receives: self.window,
            receive_bytes,
            inline_bytes: INLINE_BYTES,
        }
    }
}

/// Memory of the other side: as many places as the window has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Remote {
    address: u64,
    key: u32,
}

/// Bytes from one place to the next, for messages of so many bytes.
fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(PLACE_ALIGN)
}

/// One side: what it sends, and where it receives.
struct Side {
    link: Link,
    outbox: Outbox,
    /// Where the other side writes, when what it sends is long.
    places: Option<Exposed>,
    /// Where this side writes, when what it sends is long.
    remote: Option<Remote>,
    window: usize,
    received_bytes: usize,
    /// The short message that came last.
    last: Option<Slot>,
    arrivals: Vec<Arrival>,
}

impl Side {
    fn new(link: Link, agreement: &Agreement, sends: usize, receives: usize) -> Result<Self> {
        let places = match agreement.is_written(receives) {
            true => Some(link.expose(stride(receives) * agreement.window, &[])?),
            false => None,
        };
        let every = if agreement.is_written(sends) { 1 } else { SIGNAL_EVERY };
        let outbox = Outbox::new(link.memory(), sends, agreement.window + 2 * every, every)?;
        Ok(Side {
            link,
            outbox,
            places,
            remote: None,
            window: agreement.window,
            received_bytes: receives,
            last: None,
            arrivals: Vec::new(),
        })
    }

    /// Where the other side is to write: address and key, zeros for nowhere.
    fn place_words(&self) -> [u64; 2] {
        self.places
            .as_ref()
            .map_or([0; 2], |places| [places.address(), u64::from(places.remote_key())])
    }

    fn set_remote(&mut self, [address, key]: [u64; 2]) {
        self.remote = (address != 0).then_some(Remote { address, key: key as u32 });
    }

    /// Posts message `number`; it leaves at the next doorbell.
    fn push(&mut self, number: u64) -> Result<()> {
        let (message, queue) = (self.outbox.next(number)?, self.link.queue());
        match self.remote {
            None => queue.push(Work::Send { data: message.into(), imm: None })?,
            Some(Remote { address, key }) => {
                let place = (number % self.window as u64) as usize;
                let address = address + (place * stride(message.len())) as u64;
                let (data, imm) = (message.into(), Some(place as u32));
                queue.push(Work::Write { data, address, key, imm })?;
            }
        }
        Ok(())
    }

    /// Rings for what was pushed.
    fn ring(&mut self) -> Result<()> {
        let report = self.outbox.unreported >= self.outbox.every;
        if report {
            self.outbox.unreported = 0;
        }
        Ok(self.link.queue().ring(report)?)
    }

    /// Waits until messages have come and hands each one's number to `each`; `false` when the other side hung up.
    fn receive(&mut self, busy: bool, mut each: impl FnMut(u64) -> Result<()>) -> Result<bool> {
        let stands = self.link.wait(&mut self.arrivals, busy)?;
        for arrival in self.arrivals.drain(..) {
            match arrival {
                Arrival::Message { slot, bytes, .. } => {
                    ensure!(bytes as usize == self.received_bytes, "a message of {bytes}");
                    each(word(&self.link.message(&slot, bytes)?, 0))?;
                    // One behind, so that the last one can be compared in full.
                    if let Some(before) = self.last.replace(slot) {
                        self.link.give_back(before)?;
                    }
                }
                Arrival::Written { imm } => {
                    let places = self.places.as_ref().context("nothing is to be written here")?;
                    let at = imm as usize * stride(self.received_bytes);
                    ensure!(at < places.len(), "there is no place {imm}");
                    each(u64::from_le(places.word(at)))?;
                }
                Arrival::Read { .. } => bail!("nothing was to be read"),
            }
        }
        Ok(stands)
    }

    /// Whether message `number`, the last that came, is the expected one behind its number.
    fn last_is(&self, number: u64, expected: &[u8]) -> bool {
        let Some(places) = &self.places else {
            let last = self.last.as_ref();
            let last = last.and_then(|slot| self.link.message(slot, u32::MAX).ok());
            return last.is_some_and(|last| last[8..] == expected[8..]);
        };
        let at = (number % self.window as u64) as usize * stride(expected.len());
        // What does not fill a word is followed by what fills the place up.
        let mut words = expected.chunks(8).enumerate().skip(1);
        words.all(|(word, bytes)| {
            u64::from_le(places.word(at + 8 * word)).to_le_bytes()[..bytes.len()] == *bytes
        })
    }
}

/// The messages a side sends, over and over, each time with another number.
struct Outbox {
    messages: Vec<Shared>,
    next: usize,
    every: usize,
    unreported: usize,
    memory: Pool,
}

impl Outbox {
    /// As many messages as can be under way at once, so that one is free again when its turn comes.
    fn new(memory: &Pool, bytes: usize, messages: usize, every: usize) -> Result<Self> {
        let pattern = patterned(bytes);
        let message = |_| {
            let mut message = memory.allocate(bytes)?;
            message.copy_from_slice(&pattern);
            Ok(message.share())
        };
        Ok(Outbox {
            messages: (0..messages).map(message).collect::<Result<_>>()?,
            next: 0,
            every,
            unreported: 0,
            memory: memory.clone(),
        })
    }

    /// The next message, with its number in it.
    fn next(&mut self, number: u64) -> Result<Shared> {
        let at = self.next;
        self.next = (at + 1) % self.messages.len();
        let message = &mut self.messages[at];
        message.make_mut(&self.memory)?[..8].copy_from_slice(&number.to_le_bytes());
        self.unreported += 1;
        Ok(message.clone())
    }
}

/// The asking side.
pub(crate) struct Floor {
    host: IpAddr,
    wait: Wait,
    eager: usize,
    listener: SocketAddr,
    side: Option<Side>,
    expected: Vec<u8>,
    list: usize,
    number: u64,
    pulls: bool,
    /// Goes after the connections to it.
    _process: Option<Process>,
}

impl Floor {
    /// Starts the answering side on the device that carries this node's lanes.
    ///
    /// # Errors
    /// When there is no device, or the program cannot be started.
    pub(crate) fn spawn(config: &NodeConfig) -> Result<Self> {
        let host = address_of(&config.host, config.rdma_device.as_deref())?;
        let (process, listener) = Process::start(Answerer::Verbs, host, config.wait)?;
        let mut floor = Floor::new(host, listener, config.wait, config.eager_bytes);
        floor._process = Some(process);
        Ok(floor)
    }

    fn new(host: IpAddr, listener: SocketAddr, wait: Wait, eager: usize) -> Self {
        Floor {
            host,
            wait,
            eager,
            listener,
            side: None,
            expected: Vec::new(),
            list: 1,
            number: 0,
            pulls: false,
            _process: None,
        }
    }

    /// A connection for messages of these lengths.
    fn connect(&mut self, agreement: &Agreement) -> Result<()> {
        self.side = None; // the one before hangs up first
        let Agreement { lengths: Lengths { request, reply }, window, eager } = *agreement;
        let link = Link::dial(Some(self.host), self.listener, agreement.room(reply), self.wait)?;
        let mut side = Side::new(link, agreement, request, reply)?;
        let [address, key] = side.place_words();
        let words =
            [request as u64, reply as u64, eager as u64, (window as u64) << 32 | key, address];
        let said = side.link.connect(&pack(REQUEST, words))?;
        side.set_remote(unpack(REQUEST, &said)?);
        self.side = Some(side);
        self.expected = patterned(reply);
        Ok(())
    }
}

impl Subject for Floor {
    fn prepare(&mut self, shape: Shape) -> Result<()> {
        let (lengths, window) = (Lengths::of(shape), shape.window.max(1));
        self.connect(&Agreement { lengths, window, eager: self.eager })?;
        self.list = match lengths.request > self.eager || lengths.reply > self.eager {
            true => 1,
            false => (window / 4).clamp(1, LIST_MAX),
        };
        (self.number, self.pulls) = (0, shape.op.pulls());
        Ok(())
    }

    fn once(&mut self) -> Result<()> {
        self.stream(1)
    }

    fn check(&mut self) -> Result<u64> {
        let side = self.side.as_ref().context("prepare comes first")?;
        let right = !self.pulls || side.last_is(self.number.wrapping_sub(1), &self.expected);
        Ok(u64::from(!right))
    }

    fn stream(&mut self, count: u64) -> Result<()> {
        let side = self.side.as_mut().context("prepare comes first")?;
        let (mut sent, mut done, until) = (self.number, self.number, self.number + count);
        while done < until {
            loop {
                let list = self.list.min((until - sent) as usize);
                let fits = (sent - done) as usize + list <= side.window;
                if list == 0 || !fits || side.link.queue().room() < list {
                    break;
                }
                for number in sent..sent + list as u64 {
                    side.push(number)?;
                }
                side.ring()?;
                sent += list as u64;
            }
            let stands = side.receive(true, |number| {
                ensure!(number == done, "the floor's reply is to request {number}, not {done}");
                done += 1;
                Ok(())
            })?;
            ensure!(stands, "the floor's other process went away");
        }
        self.number = until;
        Ok(())
    }

    fn settle(&mut self) -> Result<u64> {
        self.check()
    }
}

/// The answering process: says its address, and answers one connection after the other until its input ends.
///
/// # Errors
/// When it cannot listen, or a connection fails.
pub(crate) fn run(host: IpAddr, wait: Wait) -> Result<()> {
    let listener = Listener::bind((host, 0).into())?;
    say_address(listener.address()?)?;
    end_with_input()?;
    loop {
        serve(listener.next()?, wait)?;
    }
}

/// Answers requests until the other side hangs up.
fn serve(asked: Asked, wait: Wait) -> Result<()> {
    let (agreement, remote) = match Agreement::read(&asked.said) {
        Ok(read) => read,
        Err(error) => return asked.reject(&error.to_string()),
    };
    let Lengths { request, reply } = agreement.lengths;
    let link = asked.link(agreement.room(request), wait)?;
    let mut side = Side::new(link, &agreement, reply, request)?;
    side.set_remote(remote);
    side.link.accept(&pack(REQUEST, side.place_words()))?;
    let mut due = VecDeque::new();
    loop {
        let stands = side.receive(false, |number| {
            due.push_back(number);
            Ok(())
        })?;
        if !stands {
            return Ok(());
        }
        while side.link.queue().room() > 0
            && let Some(number) = due.pop_front()
        {
            side.push(number)?;
            if side.remote.is_some() {
                side.ring()?; // a long one, which is to be reported by itself
            }
        }
        side.ring()?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::floor::tests::answers_every_shape;
    use crate::verbs::address::usable_named;

    fn said(request: u64, reply: u64, eager: u64, window: u64, address: u64) -> Vec<u8> {
        pack(REQUEST, [request, reply, eager, window << 32 | 9, address])
    }

    #[test]
    fn what_is_agreed_comes_across() {
        let (agreement, remote) = Agreement::read(&said(64, 5000, 4096, 16, 1 << 40)).unwrap();
        let lengths = Lengths { request: 64, reply: 5000 };
        assert_eq!(agreement, Agreement { lengths, window: 16, eager: 4096 });
        assert_eq!(remote, [1 << 40, 9]);
        assert_eq!(agreement.room(64).receive_bytes, 64);
        assert_eq!(agreement.room(5000).receive_bytes, HEADER_BYTES, "it is written");
    }

    #[test]
    fn answers_every_shape_on_a_device() {
        let Ok(device) = std::env::var("CARAVAN_TEST_DEVICE") else {
            eprintln!("skipped: needs an RDMA device, named by CARAVAN_TEST_DEVICE");
            return;
        };
        let host = usable_named(Some(&device)).unwrap().address;
        for wait in [Wait::default(), Wait::Block] {
            let (address_to, address_from) = std::sync::mpsc::channel();
            let rows = 3 * 4;
            let server = std::thread::spawn(move || {
                let listener = Listener::bind((host, 0).into()).unwrap();
                address_to.send(listener.address().unwrap()).unwrap();
                (0..rows).for_each(|_| serve(listener.next().unwrap(), wait).unwrap());
            });
            let mut floor = Floor::new(host, address_from.recv().unwrap(), wait, 4096);
            answers_every_shape(&mut floor, &[(8, 1), (8, 64), (4000, 16), (70_001, 3)]);
            floor.expected[20] ^= 1;
            assert_eq!(floor.check().unwrap(), 1, "the last op pulls");
            drop(floor);
            server.join().unwrap();
        }
    }

    #[test]
    fn nonsense_is_refused_before_memory_is_taken() {
        for said in [
            said(0, 64, 4096, 1, 0),
            said(64, 1 << 40, 4096, 1, 1),
            said(64, 64, 4096, 0, 0),
            said(64, 64, 4096, 5000, 0),
            said(64, 64, 4096, 1, 8),
            said(64, 5000, 4096, 1, 0),
            said(1 << 30, 64, 4096, 4096, 0),
            Vec::new(),
        ] {
            assert!(Agreement::read(&said).is_err(), "{said:?}");
        }
    }
}
