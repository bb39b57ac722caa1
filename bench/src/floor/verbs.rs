//! The floor of the van over RDMA: one queue pair, and as little code around it as possible.
//!
//! A message up to the van's eager limit goes by SEND, inside the work request if the device can. A
//! longer one goes by one RDMA WRITE with immediate data into memory that the other side exposed
//! when the connection was made; it has a place for each message in the window. One short message
//! in sixteen asks for its completion, and every long one. Up to sixteen requests of a window leave
//! at one doorbell, and so do the replies to requests that arrived together.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use caravan_kv::NodeConfig;
use caravan_van::Wait;
use caravan_van::rdma::verbs::{Exposed, Slot, Work};

use super::address::address_of;
use super::asking::{Floor, Lane};
use super::lengths::{HEADER_BYTES, Lengths, MEMORY_BYTES_MAX, answers, patterned, word};
use super::link::{Arrival, Asked, Link, Listener, Remote, Room};
use super::outbox::Outbox;
use super::process::{Answerer, Process, say_address};
use super::words::{pack, unpack};
use crate::measure::subject::Subject;

/// The kind of the words that the two sides exchange.
const AGREEMENT: u64 = u64::from_le_bytes(*b"cvfloor1");
/// Places in exposed memory begin at multiples of so many bytes.
const PLACE_ALIGN: usize = 4096;
/// Most messages that leave at one doorbell.
const LIST_MAX: usize = 16;
/// Short messages for one completion.
const SIGNAL_EVERY: usize = 16;
/// Most bytes inside a work request: a ConnectX takes so many without a shorter queue.
const INLINE_BYTES: usize = 220;
const WINDOW_MAX: u64 = 4096;

/// What both sides agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Agreement {
    lengths: Lengths,
    window: usize,
    /// Longer messages go by RDMA WRITE.
    eager: usize,
}

impl Agreement {
    /// The agreement that the asking side proposes, and its memory for long replies.
    fn read(said: &[u8]) -> Result<(Self, Option<Remote>)> {
        let [request, reply, eager, window_key, address] = unpack(AGREEMENT, said)?;
        let window = window_key >> 32;
        let remote = Remote::at(address, window_key);
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
            agreement.is_written(lengths.reply) == remote.is_some(),
            "a long reply needs a place, and no other does"
        );
        Ok((agreement, remote))
    }

    fn is_written(&self, bytes: usize) -> bool {
        bytes > self.eager
    }

    /// The room of a queue pair that receives messages of `receives` bytes.
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

/// Bytes from one place to the next, for messages of so many bytes.
fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(PLACE_ALIGN)
}

/// One side: what it sends, and where it receives.
struct Side {
    link: Link,
    outbox: Outbox,
    /// Messages for one completion.
    signal_every: usize,
    /// Messages since the last one that asked for its completion.
    unsignalled: usize,
    /// Memory for long messages of the other side.
    places: Option<Exposed>,
    /// The other side's memory for long messages of this side.
    remote: Option<Remote>,
    window: usize,
    received_bytes: usize,
    /// The last short message that came.
    last: Option<Slot>,
    arrivals: Vec<Arrival>,
}

impl Side {
    fn new(link: Link, agreement: &Agreement, sends: usize, receives: usize) -> Result<Self> {
        let places = agreement
            .is_written(receives)
            .then(|| link.expose(stride(receives) * agreement.window, &[]));
        let signal_every = if agreement.is_written(sends) { 1 } else { SIGNAL_EVERY };
        let count = agreement.window + 2 * signal_every;
        Ok(Side {
            outbox: Outbox::new(link.memory(), &patterned(sends), count)?,
            link,
            signal_every,
            unsignalled: 0,
            places: places.transpose()?,
            remote: None,
            window: agreement.window,
            received_bytes: receives,
            last: None,
            arrivals: Vec::new(),
        })
    }

    /// Address and key of this side's memory; zeros for none.
    fn place_words(&self) -> [u64; 2] {
        let places = self.places.as_ref();
        places.map_or([0; 2], |places| [places.address(), u64::from(places.remote_key())])
    }

    /// Posts message `number`; it leaves at the next doorbell.
    fn push(&mut self, number: u64) -> Result<()> {
        let number_bytes = number.to_le_bytes();
        let message = self.outbox.next(|bytes| bytes[..8].copy_from_slice(&number_bytes))?;
        self.unsignalled += 1;
        let queue = self.link.queue();
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

    /// Rings the doorbell for the posted messages.
    fn ring(&mut self) -> Result<()> {
        let signal = self.unsignalled >= self.signal_every;
        if signal {
            self.unsignalled = 0;
        }
        Ok(self.link.queue().ring(signal)?)
    }

    /// Waits until messages have come and passes the number of each to `each`; `false` when the
    /// other side hung up.
    fn receive(&mut self, busy: bool, mut each: impl FnMut(u64) -> Result<()>) -> Result<bool> {
        let stands = self.link.wait(&mut self.arrivals, busy)?;
        for arrival in self.arrivals.drain(..) {
            match arrival {
                Arrival::Message { slot, bytes, .. } => {
                    ensure!(bytes as usize == self.received_bytes, "a message of {bytes}");
                    each(word(&self.link.message(&slot, bytes)?, 0))?;
                    // The last one stays, to be compared in full.
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

    /// Whether message `number`, the last that came, is the expected one after its number.
    fn last_is(&self, number: u64, expected: &[u8]) -> bool {
        let Some(places) = &self.places else {
            let last = self.last.as_ref();
            let last = last.and_then(|slot| self.link.message(slot, u32::MAX).ok());
            return last.is_some_and(|last| last[8..] == expected[8..]);
        };
        let at = (number % self.window as u64) as usize * stride(expected.len());
        // Other bytes of the place fill up the last word.
        let mut words = expected.chunks(8).enumerate().skip(1);
        words.all(|(word, bytes)| {
            u64::from_le(places.word(at + 8 * word)).to_le_bytes()[..bytes.len()] == *bytes
        })
    }
}

/// Starts the answering side on the device that carries this node's lanes.
pub(super) fn spawn(config: &NodeConfig) -> Result<Box<dyn Subject>> {
    let host = address_of(&config.host, config.rdma.device.as_deref())?;
    let process = Process::start(Answerer::Verbs, (host, 0).into(), config.wait)?;
    let listener = process.address.parse().context("the other process named no address")?;
    let lane = Asking::new(host, listener, config.wait, config.eager_bytes);
    Ok(Box::new(Floor::new(lane, Some(process))))
}

/// The floor whose answering side is there already.
pub(super) fn reach(config: &NodeConfig, at: SocketAddr) -> Result<Box<dyn Subject>> {
    let host = address_of(&config.host, config.rdma.device.as_deref())?;
    Ok(Box::new(Floor::new(Asking::new(host, at, config.wait, config.eager_bytes), None)))
}

pub(super) struct Asking {
    host: IpAddr,
    wait: Wait,
    eager: usize,
    listener: SocketAddr,
    side: Option<Side>,
    list: usize,
}

impl Asking {
    fn new(host: IpAddr, listener: SocketAddr, wait: Wait, eager: usize) -> Self {
        Asking { host, wait, eager, listener, side: None, list: 1 }
    }

    fn side(&mut self) -> Result<&mut Side> {
        self.side.as_mut().context("prepare comes first")
    }
}

impl Lane for Asking {
    fn agree(&mut self, lengths: Lengths, window: usize) -> Result<()> {
        self.side = None; // the old connection hangs up first
        let Lengths { request, reply } = lengths;
        let agreement = Agreement { lengths, window, eager: self.eager };
        let link = Link::dial(Some(self.host), self.listener, agreement.room(reply), self.wait)?;
        let mut side = Side::new(link, &agreement, request, reply)?;
        let [address, key] = side.place_words();
        let window_key = (window as u64) << 32 | key;
        let words = [request as u64, reply as u64, self.eager as u64, window_key, address];
        let said = side.link.connect(&pack(AGREEMENT, words))?;
        let [address, key] = unpack(AGREEMENT, &said)?;
        side.remote = Remote::at(address, key);
        self.side = Some(side);
        let is_long = agreement.is_written(request) || agreement.is_written(reply);
        self.list = if is_long { 1 } else { (window / 4).clamp(1, LIST_MAX) };
        Ok(())
    }

    fn send(&mut self, mut sent: u64, done: u64, until: u64) -> Result<u64> {
        let most = self.list;
        let side = self.side()?;
        loop {
            let list = most.min((until - sent) as usize);
            let fits = (sent - done) as usize + list <= side.window;
            if list == 0 || !fits || side.link.queue().room() < list {
                return Ok(sent);
            }
            for number in sent..sent + list as u64 {
                side.push(number)?;
            }
            side.ring()?;
            sent += list as u64;
        }
    }

    fn receive(&mut self, mut done: u64) -> Result<u64> {
        let stands = self.side()?.receive(true, |number| {
            answers(number, done)?;
            done += 1;
            Ok(())
        })?;
        ensure!(stands, "the floor's other process went away");
        Ok(done)
    }

    fn last_is(&self, number: u64, expected: &[u8]) -> bool {
        self.side.as_ref().is_some_and(|side| side.last_is(number, expected))
    }
}

/// The answering process: prints its address, and answers one connection after the other until its
/// input ends.
pub(super) fn run(at: SocketAddr, wait: Wait) -> Result<()> {
    let listener = Listener::bind(at)?;
    say_address(listener.address()?)?;
    loop {
        serve(listener.next()?, wait)?;
    }
}

fn serve(asked: Asked, wait: Wait) -> Result<()> {
    let (agreement, remote) = match Agreement::read(&asked.said) {
        Ok(read) => read,
        Err(error) => return asked.reject(&error.to_string()),
    };
    let Lengths { request, reply } = agreement.lengths;
    let link = asked.link(agreement.room(request), wait)?;
    let mut side = Side::new(link, &agreement, reply, request)?;
    side.remote = remote;
    side.link.accept(&pack(AGREEMENT, side.place_words()))?;
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
                side.ring()?; // each long message asks for its completion
            }
        }
        side.ring()?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::floor::address::usable_named;
    use crate::floor::tests::answers_every_shape;

    fn said(request: u64, reply: u64, eager: u64, window: u64, address: u64) -> Vec<u8> {
        pack(AGREEMENT, [request, reply, eager, window << 32 | 9, address])
    }

    #[test]
    fn what_is_agreed_comes_across() {
        let (agreement, remote) = Agreement::read(&said(64, 5000, 4096, 16, 1 << 40)).unwrap();
        let lengths = Lengths { request: 64, reply: 5000 };
        assert_eq!(agreement, Agreement { lengths, window: 16, eager: 4096 });
        assert_eq!(remote, Some(Remote { address: 1 << 40, key: 9 }));
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
            let lane = Asking::new(host, address_from.recv().unwrap(), wait, 4096);
            let mut floor = Floor::new(lane, None);
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
