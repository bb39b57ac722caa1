//! The receiving half of a stream: says where the next bytes go, and cuts frames out of what came.

use super::sealed::Opener;
use super::{ALIGN, FRAME, REFUSAL, WRITE, padding, prefix};
use crate::config::VanConfig;
use crate::error::{Error, Result};
use crate::handshake::{Cipher, Greeted, Greeter, Proved, Reason};
use crate::memory::{Buffer, Pool};
use crate::offers::Offers;
use crate::transport::{Event, FRAME_PREFIX, PeerId};
use crate::wire::VERSION;

/// Size of a staging buffer, in bytes: many small frames share one.
const STAGING: usize = 64 << 10;
const _: () = assert!(*VanConfig::FRAME_BYTES.end() <= STAGING / 2);

/// Smallest room worth a call; with less than that the staging buffer is replaced.
const ROOM_MIN: usize = 2 << 10;

/// Units behind a write of which nothing is read beyond the prefix of the next: that may be a write
/// again, and then none of its payload has passed through staging. More than one, since a frame
/// between two writes does not end a series of them.
const ONE_BY_ONE: u8 = 2;

/// Longest write that is expected, in bytes: whatever else comes in its place has to be copied, and
/// longer writes gain nothing (`van/docs/decisions/0003-long-pushes-over-sockets.md`).
const EXPECTED_MAX: usize = 256 << 10;

/// Where the next bytes of the stream go: first into `head`, then into `place`, what is more into
/// `staging`.
#[derive(Debug)]
pub struct Spaces<'a> {
    /// For the prefix of a write that is expected; empty when none is, and so where `place` is.
    pub head: &'a mut [u8],
    /// The rest of a write that is under way, or all of one that is expected; empty when there is
    /// none.
    pub place: &'a mut [u8],
    /// For what follows.
    pub staging: &'a mut [u8],
}

/// The state of one incoming stream.
///
/// Invariant: byte `n` of the stream is put at an address that equals `n` modulo 8, so that frames
/// are aligned where they lie.
#[derive(Debug)]
pub struct Receiver {
    peer: PeerId,
    frame_bytes_max: usize,
    /// What comes first, where that is not units: a handshake, or sealed messages.
    veil: Option<Box<Veil>>,
    /// What the handshake has this side say.
    reply: Option<Reply>,
    /// Unparsed bytes, then free room.
    staging: Buffer,
    /// How many unparsed bytes there are.
    filled: usize,
    writing: Option<Write>,
    /// How many of the units to come are read one by one.
    one_by_one: u8,
    /// How much shall be read into staging at most before the next look at it; 0: as much as there
    /// is.
    wanted: usize,
    /// Where in its memory the last write began, and how long it was.
    last: (usize, usize),
    /// What there is place for in the spaces given out last, if a write is expected.
    expected: Option<Expected>,
    frames_received: u64,
    payload_bytes_copied: u64,
}

/// What bytes pass before they are units.
#[derive(Debug)]
enum Veil {
    Handshake(Greeter),
    Sealed(Opener),
}

impl Veil {
    fn space(&mut self) -> &mut [u8] {
        match self {
            Veil::Handshake(greeter) => greeter.space(),
            Veil::Sealed(opener) => opener.space(),
        }
    }
}

/// What the handshake has this side say; see [`Sender::reply`](super::Sender::reply).
#[derive(Debug)]
pub struct Reply {
    pub(super) message: Option<Box<[u8]>>,
    /// The peer has proved itself.
    pub(super) is_proved: bool,
    /// What seals everything behind the message.
    pub(super) cipher: Option<Cipher>,
}

/// A write under way.
#[derive(Debug)]
struct Write {
    key: u64,
    into: Buffer,
    begin: usize,
    /// What is left to fill: `[at, end)`.
    at: usize,
    end: usize,
    padding: usize,
}

/// A write that may come next.
#[derive(Debug, Clone, Copy)]
struct Expected {
    key: u64,
    begin: usize,
    len: usize,
}

impl Receiver {
    /// The receiving half of a new connection with `peer`, for frames of up to `frame_bytes_max`
    /// bytes. It takes no memory of a pool until the peer has proved itself.
    pub fn new(peer: PeerId, greeter: Greeter, frame_bytes_max: usize) -> Self {
        Receiver {
            peer,
            frame_bytes_max,
            veil: Some(Box::new(Veil::Handshake(greeter))),
            reply: None,
            staging: Buffer::adopt(Vec::<u8>::new()),
            filled: 0,
            writing: None,
            one_by_one: 0,
            wanted: 0,
            last: (0, 0),
            expected: None,
            frames_received: 0,
            payload_bytes_copied: 0,
        }
    }

    /// Whether the peer has proved itself.
    pub fn is_greeted(&self) -> bool {
        !matches!(self.veil.as_deref(), Some(Veil::Handshake(_)))
    }

    /// What the handshake has this side say, once each: to be asked after every
    /// [`Receiver::received`], also where that failed.
    #[inline]
    pub fn take_reply(&mut self) -> Option<Reply> {
        self.reply.take()
    }

    /// Frames cut out so far.
    pub fn frames_received(&self) -> u64 {
        self.frames_received
    }

    /// Bytes of writes that came together with something else, and had to be copied into place.
    pub fn payload_bytes_copied(&self) -> u64 {
        self.payload_bytes_copied
    }

    /// As [`Receiver::spaces`], with place for a write where one is expected: behind a write, if
    /// the peer may write to one place only, another like it. Both it and its prefix are then read
    /// in one call.
    ///
    /// The places are valid until `offers` are changed. Where something else comes, what was
    /// offered is written over.
    pub fn spaces_ahead<'a>(&'a mut self, offers: &'a mut Offers) -> Spaces<'a> {
        let (begin, len) = self.last;
        let is_due = self.one_by_one > 0
            && self.filled == 0
            && self.writing.is_none()
            && self.veil.is_none();
        if !is_due || !(1..=EXPECTED_MAX).contains(&len) {
            return self.spaces();
        }
        let Some((key, memory)) = offers.only(self.peer).filter(|(_, it)| begin + len <= it.len())
        else {
            return self.spaces();
        };
        self.expected = Some(Expected { key, begin, len });
        let (head, staging) = self.staging.split_at_mut(FRAME_PREFIX);
        let staging = behind(padding(len), staging);
        Spaces { head, place: &mut memory[begin..begin + len], staging }
    }

    /// Where the next bytes shall go. The places stay valid until [`Receiver::received`] is called.
    pub fn spaces(&mut self) -> Spaces<'_> {
        self.expected = None;
        let head = &mut [];
        if let Some(veil) = &mut self.veil {
            return Spaces { head, place: &mut [], staging: veil.space() };
        }
        let staging = &mut self.staging[self.filled..];
        match &mut self.writing {
            Some(write) if write.at < write.end => {
                // Keeps the alignment invariant: the padding lies before the next multiple of 8.
                debug_assert_eq!(
                    self.filled, 0,
                    "what came before a write under way has been parsed"
                );
                let place = &mut write.into[write.at..write.end];
                Spaces { head, place, staging: behind(write.padding, staging) }
            }
            _ if self.filled < self.wanted => {
                let ahead = self.wanted - self.filled;
                Spaces { head, place: &mut [], staging: &mut staging[..ahead] }
            }
            _ => Spaces { head, place: &mut [], staging },
        }
    }

    /// Takes note of `bytes` more bytes in the [`Receiver::spaces`], and appends what they complete
    /// to `events`.
    ///
    /// # Errors
    /// Says why the peer has to be dropped: it sent what it must not, it refused us, or memory ran
    /// out.
    pub fn received(
        &mut self,
        bytes: usize,
        pool: &Pool,
        offers: &mut Offers,
        events: &mut Vec<Event>,
    ) -> Result<(), Reason> {
        if let Some(veil) = self.veil.take() {
            return self.received_veiled(veil, bytes, pool, offers, events);
        }
        let mut bytes = bytes;
        if let Some(expected) = self.expected.take()
            && bytes > FRAME_PREFIX
        {
            self.filled = FRAME_PREFIX;
            bytes -= FRAME_PREFIX;
            if self.staging[..FRAME_PREFIX] == expected.prefix() {
                let Expected { key, begin, len } = expected;
                self.begin_write(key, begin, len, offers)?;
            } else {
                self.move_back(expected, bytes, pool, offers)?;
            }
        }
        if let Some(write) = &mut self.writing
            && write.at < write.end
        {
            let placed = bytes.min(write.end - write.at);
            write.at += placed;
            bytes -= placed;
            if write.at < write.end {
                return Ok(());
            }
            // What is behind the write starts off the slot's alignment by what the padding lacks;
            // see `spaces`.
            let skew = skew_behind(write.padding, &self.staging);
            self.staging.advance(skew);
        }
        self.filled += bytes;
        while self.parse(pool, offers, events)? {}
        self.renew(pool).map_err(|error| Reason::Other(error.to_string()))
    }

    /// Parses one unit, or as much of it as came; false when more bytes are needed.
    fn parse(
        &mut self,
        pool: &Pool,
        offers: &mut Offers,
        events: &mut Vec<Event>,
    ) -> Result<bool, String> {
        self.wanted = if self.one_by_one > 0 { FRAME_PREFIX } else { 0 };
        if let Some(write) = &mut self.writing {
            if write.at < write.end || self.filled < write.padding {
                self.wanted += write.padding;
                return Ok(false);
            }
            let padding = write.padding;
            self.take(padding);
            events.extend(self.writing.take().map(|write| write.event(self.peer)));
        }
        let Some(head) = self.staging[..self.filled].first_chunk::<FRAME_PREFIX>() else {
            return Ok(false);
        };
        let [kind, zero, at @ .., a, b, c, d] = *head.first_chunk::<8>().expect("8 of 16 bytes");
        let (at, len) = (u16::from_le_bytes(at), u32::from_le_bytes([a, b, c, d]) as usize);
        let word = u64::from_le_bytes(*head.last_chunk::<8>().expect("8 of 16 bytes"));
        match (kind, zero, at, word) {
            (FRAME, 0, 0, 0) if len <= self.frame_bytes_max => self.frame(len, pool, events),
            (FRAME, 0, 0, 0) => Err(format!(
                "it sent a frame of {len} bytes, over the limit of {}",
                self.frame_bytes_max
            )),
            (WRITE, 0, at, key) => self.begin_write(key, at.into(), len, offers),
            (REFUSAL, 0, 0, 0) if len <= 1000 => self.refusal(len),
            _ => Err(format!("it sent bytes {head:02x?} where a frame should begin")),
        }
    }

    /// Takes note of `bytes` more bytes in the space of a handshake, or of sealed messages.
    #[cold]
    fn received_veiled(
        &mut self,
        mut veil: Box<Veil>,
        bytes: usize,
        pool: &Pool,
        offers: &mut Offers,
        events: &mut Vec<Event>,
    ) -> Result<(), Reason> {
        match &mut *veil {
            Veil::Sealed(opener) => {
                opener.received(bytes, |plain| self.opened(plain, pool, offers, events))?;
            }
            Veil::Handshake(greeter) => match greeter.received(bytes) {
                Greeted::NotYet => {}
                Greeted::Reply(message) => self.say(Some(message)),
                Greeted::Proved(proved, message) => {
                    self.say(message);
                    return Ok(self.proved(*proved, pool, events)?);
                }
                Greeted::Refused(reason, message) => {
                    self.say(message);
                    self.veil = Some(veil);
                    return Err(reason);
                }
            },
        }
        self.veil = Some(veil);
        Ok(())
    }

    fn say(&mut self, message: Option<Box<[u8]>>) {
        self.reply = Some(Reply { message, is_proved: false, cipher: None });
    }

    /// The peer has proved itself: from now on units come.
    fn proved(
        &mut self,
        proved: Proved,
        pool: &Pool,
        events: &mut Vec<Event>,
    ) -> Result<(), String> {
        self.staging = pool.allocate(STAGING).map_err(|error| error.to_string())?;
        let (seals, opens) = proved.ciphers.unzip();
        self.veil = opens.map(|cipher| Box::new(Veil::Sealed(Opener::new(cipher))));
        if let Some(reply) = &mut self.reply {
            (reply.is_proved, reply.cipher) = (true, seals);
        }
        events.push(Event::Connected { peer: self.peer, hello: proved.hello });
        Ok(())
    }

    /// Takes in bytes of the stream that lie elsewhere.
    fn opened(
        &mut self,
        plain: &[u8],
        pool: &Pool,
        offers: &mut Offers,
        events: &mut Vec<Event>,
    ) -> Result<(), Reason> {
        let mut rest = plain;
        while !rest.is_empty() {
            let Spaces { place, staging, .. } = self.spaces();
            let mut taken = 0;
            for space in [place, staging] {
                let here;
                (here, rest) = rest.split_at(rest.len().min(space.len()));
                space[..here.len()].copy_from_slice(here);
                taken += here.len();
            }
            self.received(taken, pool, offers, events)?;
        }
        Ok(())
    }

    fn frame(&mut self, len: usize, pool: &Pool, events: &mut Vec<Event>) -> Result<bool, String> {
        let unit = FRAME_PREFIX + len + padding(len);
        if self.filled < unit {
            if self.staging.len() < unit {
                self.replace(unit, pool).map_err(|error| error.to_string())?;
            }
            self.wanted = if self.one_by_one > 0 { unit } else { 0 };
            return Ok(false);
        }
        self.one_by_one = self.one_by_one.saturating_sub(1);
        let mut frame = self.take(unit);
        frame.advance(FRAME_PREFIX);
        frame.truncate(len);
        self.frames_received += 1;
        events.push(Event::Received { peer: self.peer, frame });
        Ok(true)
    }

    fn begin_write(
        &mut self,
        key: u64,
        begin: usize,
        len: usize,
        offers: &mut Offers,
    ) -> Result<bool, String> {
        let mut into = offers
            .take(self.peer, key, begin as u64, len as u64)
            .map_err(|error| error.to_string())?;
        self.take(FRAME_PREFIX);
        let here = self.filled.min(len);
        into[begin..begin + here].copy_from_slice(&self.take(here));
        self.payload_bytes_copied += here as u64;
        let (at, end) = (begin + here, begin + len);
        self.last = (begin, len);
        self.writing = Some(Write { key, into, begin, at, end, padding: padding(len) });
        self.one_by_one = ONE_BY_ONE;
        Ok(true)
    }

    /// Moves `bytes` bytes, which came where a write was expected and are none, or another, behind
    /// the prefix in front of them.
    #[cold]
    fn move_back(
        &mut self,
        expected: Expected,
        bytes: usize,
        pool: &Pool,
        offers: &mut Offers,
    ) -> Result<(), String> {
        let Expected { key, begin, len } = expected;
        let Some((_, memory)) = offers.only(self.peer).filter(|(only, _)| *only == key) else {
            return Err("the memory it wrote to was taken back".to_owned());
        };
        let (here, more) = (bytes.min(len), bytes.saturating_sub(len));
        let mut behind_place = [0; ALIGN + FRAME_PREFIX];
        let staging = behind(padding(len), &mut self.staging[FRAME_PREFIX..]);
        behind_place[..more].copy_from_slice(&staging[..more]);
        let need = FRAME_PREFIX + bytes;
        if self.staging.len() < need {
            self.replace(need, pool).map_err(|error| error.to_string())?;
        }
        let (place, rest) = self.staging[FRAME_PREFIX..need].split_at_mut(here);
        place.copy_from_slice(&memory[begin..begin + here]);
        rest.copy_from_slice(&behind_place[..more]);
        Ok(())
    }

    fn refusal(&mut self, len: usize) -> Result<bool, String> {
        if self.filled < FRAME_PREFIX + len {
            return Ok(false);
        }
        let reason =
            String::from_utf8_lossy(&self.staging[FRAME_PREFIX..FRAME_PREFIX + len]).into_owned();
        Err(format!("it refused this node: {reason}"))
    }

    /// Cuts the first `len` unparsed bytes off.
    fn take(&mut self, len: usize) -> Buffer {
        self.filled -= len;
        self.staging.split_to(len)
    }

    /// Makes sure that there is room for the next call, and for all of the unit that comes next or
    /// is being received: one that meets the end of the buffer takes a second call and is copied.
    fn renew(&mut self, pool: &Pool) -> Result<()> {
        let unit_max = FRAME_PREFIX + self.frame_bytes_max + ALIGN;
        let len = self.staging.len();
        if len < unit_max || len - self.filled < ROOM_MIN {
            self.replace(self.filled, pool)
        } else {
            Ok(())
        }
    }

    /// Takes a new staging buffer with room for a unit of `need` bytes, and moves the unparsed
    /// bytes there.
    fn replace(&mut self, need: usize, pool: &Pool) -> Result<(), Error> {
        let skew = self.staging.as_ptr() as usize % ALIGN;
        let mut staging = pool.allocate((skew + need + ROOM_MIN).max(STAGING))?;
        staging.advance(skew);
        staging[..self.filled].copy_from_slice(&self.staging[..self.filled]);
        self.staging = staging;
        Ok(())
    }
}

impl Expected {
    /// What it begins with.
    fn prefix(&self) -> [u8; FRAME_PREFIX] {
        prefix(WRITE, self.begin as u16, self.len as u32, self.key)
    }
}

impl Write {
    /// It has come whole.
    fn event(self, peer: PeerId) -> Event {
        let Write { key, into: memory, begin: at, end, .. } = self;
        Event::Written { peer, key, memory, at, len: end - at }
    }
}

/// Where in `staging` what follows a write goes: what pads it, and the prefix of the next unit.
fn behind(padding: usize, staging: &mut [u8]) -> &mut [u8] {
    let skew = skew_behind(padding, staging);
    let ahead = (padding + FRAME_PREFIX).min(staging.len() - skew);
    &mut staging[skew..skew + ahead]
}

/// How many bytes of `staging` to skip so that its next byte stands `padding` bytes before a
/// multiple of 8.
fn skew_behind(padding: usize, staging: &[u8]) -> usize {
    (staging.as_ptr() as usize + padding).wrapping_neg() % ALIGN
}

const _: () = assert!(VERSION == 9, "a change of the units above is a new version");
