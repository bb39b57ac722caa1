//! The handshake: both ends of a new lane prove that they know their cluster's secret before they
//! exchange anything else.
//!
//! The proof is a Noise handshake with a pre-shared key, `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`
//! (the Noise Protocol Framework, revision 34), and the first message sealed with its keys. The
//! connecting side speaks first. A stranger cannot make a call, so the called side only refuses it;
//! a replayed call gets a welcome, which nobody without the secret can read or answer.
//!
//! ```text
//! call     [magic u32][version u8][0 × 3][ephemeral key 32, tag 16]
//! welcome  [magic u32][version u8][0 × 3][ephemeral key 32, Hello 32 sealed, tag 16]
//! refusal  [magic u32][version u8][1][0 × 2]                (in place of a welcome)
//! proof    [Hello 32 sealed, tag 16]
//! ```
//!
//! The handshake's prologue binds the cluster, the kind of carrier and whether the lane is
//! encrypted; role, rank and incarnation travel sealed in each side's [`Hello`]. No I/O and no
//! clock: every van carries these messages in its own way.

mod greeter;
mod refusals;
mod secret;

use std::rc::Rc;
use std::time::Duration;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, StatelessTransportState};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::config::VanConfig;
use crate::wire::{Beside, Hello, MAGIC, VERSION};

pub use greeter::{Greeted, Greeter};
pub use refusals::Refusals;
pub use secret::{Secret, SecretError};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Bytes that precede a call, a welcome or a refusal: magic, version, and whether it is a refusal.
const PREFIX: usize = 8;

/// Length of an ephemeral key.
const KEY: usize = 32;

/// Bytes that sealing adds to a message.
pub(crate) const TAG: usize = 16;

/// Length of a call, in bytes.
pub const CALL_BYTES: usize = PREFIX + KEY + TAG;

/// Length of a welcome, in bytes.
pub const WELCOME_BYTES: usize = PREFIX + KEY + size_of::<Hello>() + TAG;

/// Length of a refusal, in bytes.
pub const REFUSAL_BYTES: usize = PREFIX;

/// How long a connected peer may take to prove itself: long enough for an honest one on a machine
/// with much else to do.
pub const PROVES_WITHIN: Duration = Duration::from_secs(15);

/// Length of a proof, in bytes.
pub const PROOF_BYTES: usize = size_of::<Hello>() + TAG;

/// Why a handshake or a lane has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The other side does not accept this node.
    #[error(
        "it refused this node (its log says why: most likely another CARAVAN_SECRET or CARAVAN_JOB, or only one of the two with --encrypt)"
    )]
    Refused,
    /// The other side does not belong to this node's cluster.
    #[error(
        "it could not prove that it belongs here: it has another secret or job, another kind of van, or only one side encrypts"
    )]
    Unproved,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<String> for Reason {
    fn from(reason: String) -> Reason {
        Reason::Other(reason)
    }
}

impl From<&str> for Reason {
    fn from(reason: &str) -> Reason {
        Reason::Other(reason.to_owned())
    }
}

/// A transport's secret and its hello.
#[derive(Debug, Clone)]
pub struct Credentials {
    secret: Secret,
    prologue: Vec<u8>,
    hello: Hello,
    encrypt: bool,
}

impl Credentials {
    /// Credentials of a transport with these settings. Vans that can talk to each other name the
    /// same `carrier`.
    ///
    /// # Panics
    /// If the system has no random numbers; Linux has them from boot on.
    pub fn new(config: &VanConfig, carrier: &str) -> Credentials {
        let mut prologue = format!("caravan {VERSION} {carrier} ").into_bytes();
        prologue.extend_from_slice(&config.cluster.to_le_bytes());
        prologue.push(u8::from(config.encrypt));
        let frame_bytes = u32::try_from(config.frame_bytes).unwrap_or(u32::MAX);
        let hello = Hello {
            credits: U16::new(config.credits),
            receives: U16::new(0),
            frame_bytes: U32::new(frame_bytes),
            node: U32::new(config.node),
            rank: U32::new(config.identity.rank.unwrap_or(Hello::NO_RANK)),
            incarnation: U64::new(config.identity.incarnation),
            transport: U32::new(getrandom::u32().expect("the system has random numbers")),
            role: config.identity.role,
            beside: [0; 3],
        };
        Credentials { secret: config.secret.clone(), prologue, hello, encrypt: config.encrypt }
    }

    /// The same credentials with a changed hello.
    pub fn saying(mut self, change: impl FnOnce(&mut Hello)) -> Credentials {
        change(&mut self.hello);
        self
    }

    /// The same for one lane, which may carry stripes of another one.
    pub(crate) fn of_lane(&self, beside: Option<Beside>) -> Credentials {
        self.clone().saying(|hello| hello.beside = beside.map_or([0; 3], Beside::to_bytes))
    }

    /// This side's hello.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Begins a handshake: the first message of the connecting side.
    pub fn call(&self) -> (Calling, [u8; CALL_BYTES]) {
        let mut noise = self.builder().build_initiator().expect("the key and prologue are set");
        let mut call = [0; CALL_BYTES];
        let (prefix, message) = call.split_at_mut(PREFIX);
        prefix.copy_from_slice(&prefix_of(0));
        noise.write_message(&[], message).expect("a call has room for a key and a tag");
        (Calling(Box::new(noise)), call)
    }

    /// Answers a call with a welcome.
    ///
    /// # Errors
    /// Why the call is not from a node of this cluster. The caller gets a [`refusal`] if it spoke
    /// this protocol.
    pub fn welcome(&self, call: &[u8]) -> Result<(Answering, [u8; WELCOME_BYTES]), Reason> {
        let message = behind_prefix(call)?;
        let mut noise = self.builder().build_responder().expect("the key and prologue are set");
        noise.read_message(message, &mut []).map_err(unproved)?;
        let mut welcome = [0; WELCOME_BYTES];
        let (prefix, message) = welcome.split_at_mut(PREFIX);
        prefix.copy_from_slice(&prefix_of(0));
        noise.write_message(self.hello.as_bytes(), message).expect("a welcome has room for it");
        let keys = noise.into_stateless_transport_mode().expect("both messages are exchanged");
        Ok((Answering(Box::new(keys)), welcome))
    }

    /// Reads a welcome and creates the proof that answers it. The result may be used at once,
    /// because the other side reads the proof before anything else.
    ///
    /// # Errors
    /// Why the other side is not accepted: it refused, or could not prove itself.
    pub fn prove(
        &self,
        calling: Calling,
        welcome: &[u8],
    ) -> Result<(Proved, [u8; PROOF_BYTES]), Reason> {
        let message = behind_prefix(welcome)?;
        let mut noise = calling.0;
        let mut hello = [0; size_of::<Hello>()];
        noise.read_message(message, &mut hello).map_err(unproved)?;
        let keys = noise.into_stateless_transport_mode().expect("both messages are exchanged");
        let mut proof = [0; PROOF_BYTES];
        keys.write_message(0, self.hello.as_bytes(), &mut proof).expect("a proof has room for it");
        Ok((self.proved(&hello, keys, 1, 0)?, proof))
    }

    /// Checks the proof of a welcomed side.
    ///
    /// # Errors
    /// Why it is not valid.
    pub fn check(&self, answering: Answering, proof: &[u8]) -> Result<Proved, Reason> {
        let mut hello = [0; size_of::<Hello>()];
        answering.0.read_message(0, proof, &mut hello).map_err(unproved)?;
        self.proved(&hello, *answering.0, 0, 1)
    }

    fn proved(
        &self,
        hello: &[u8],
        keys: StatelessTransportState,
        sealed: u64,
        opened: u64,
    ) -> Result<Proved, Reason> {
        let hello = Hello::read(hello)?;
        self.is_other(&hello)?;
        let ciphers = self.encrypt.then(|| {
            let keys = Rc::new(keys);
            (Cipher { keys: keys.clone(), next: sealed }, Cipher { keys, next: opened })
        });
        Ok(Proved { hello, ciphers })
    }

    /// Checks that a hello is another transport's.
    ///
    /// # Errors
    /// If it is this transport's own, sent back by somebody.
    pub(crate) fn is_other(&self, hello: &Hello) -> Result<(), Reason> {
        match hello.transport == self.hello.transport {
            true => Err("it is this node itself".into()),
            false => Ok(()),
        }
    }

    /// Whether the two accept each other's credentials, for a simulated network, where nothing can
    /// be read on the way.
    pub(crate) fn agrees_with(&self, other: &Credentials) -> bool {
        self.secret == other.secret && self.prologue == other.prologue
    }

    fn builder(&self) -> Builder<'_> {
        let pattern: NoiseParams =
            PATTERN.parse().expect("snow has this pattern and these primitives");
        let builder = Builder::new(pattern).psk(0, self.secret.bytes());
        let builder = builder.and_then(|builder| builder.prologue(&self.prologue));
        builder.expect("neither was set before")
    }
}

/// The connecting side's state until it is welcomed.
#[derive(Debug)]
pub struct Calling(Box<HandshakeState>);

/// The called side's state until it has the caller's proof.
#[derive(Debug)]
pub struct Answering(Box<StatelessTransportState>);

/// A peer that has proved itself.
#[derive(Debug)]
pub struct Proved {
    /// Its hello.
    pub hello: Hello,
    /// For an encrypted lane, the ciphers of what this side sends and of what it receives.
    pub ciphers: Option<(Cipher, Cipher)>,
}

/// One direction of an encrypted lane.
#[derive(Debug)]
pub struct Cipher {
    keys: Rc<StatelessTransportState>,
    /// Number of the next message.
    next: u64,
}

/// Most bytes sealed into one message.
pub(crate) const SEALED_BYTES_MAX: usize = (32 << 10) - TAG;

impl Cipher {
    /// Seals up to [`SEALED_BYTES_MAX`] bytes into `sealed`; returns the sealed length, which is
    /// [`TAG`] more.
    pub(crate) fn seal(&mut self, plain: &[u8], sealed: &mut [u8]) -> usize {
        let len = self.keys.write_message(self.next, plain, sealed);
        self.next += 1;
        len.expect("the caller has room for the tag, and seals no more than the most")
    }

    /// Opens a message that the other side's [`Cipher::seal`] made.
    ///
    /// # Errors
    /// If it was changed on the way, or sealed with other keys.
    pub(crate) fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<usize, String> {
        let len = self.keys.read_message(self.next, sealed, plain);
        self.next += 1;
        len.map_err(|_| "the data was changed on the way, or not encrypted by this peer".to_owned())
    }
}

/// The message to a refused caller.
pub fn refusal() -> [u8; REFUSAL_BYTES] {
    prefix_of(1)
}

/// Whether a message in place of a welcome is a refusal.
fn is_refusal(message: &[u8]) -> bool {
    message.len() >= PREFIX && message[..4] == MAGIC.to_le_bytes() && message[5] == 1
}

/// Whether an invalid call gets a [`refusal`]: it is of this protocol, perhaps of another version.
pub fn deserves_answer(call: &[u8]) -> bool {
    call.starts_with(&MAGIC.to_le_bytes())
}

fn prefix_of(refused: u8) -> [u8; PREFIX] {
    let [a, b, c, d] = MAGIC.to_le_bytes();
    [a, b, c, d, VERSION, refused, 0, 0]
}

/// The bytes after the prefix of a call or a welcome.
fn behind_prefix(message: &[u8]) -> Result<&[u8], Reason> {
    let short = || format!("{} bytes are too few for a handshake", message.len());
    let (magic, rest) = U32::read_from_prefix(message).map_err(|_| short())?;
    if magic.get() != MAGIC {
        return Err("it does not speak this protocol".into());
    }
    match rest {
        [VERSION, 0, 0, 0, message @ ..] => Ok(message),
        [VERSION, 1, ..] => Err(Reason::Refused),
        [VERSION, ..] => Err("its handshake is malformed".into()),
        [version, ..] => Err(Reason::Other(format!(
            "it speaks version {version} of the protocol, this is {VERSION}: run the same build \
             everywhere"
        ))),
        [] => Err(short().into()),
    }
}

fn unproved(_: snow::Error) -> Reason {
    Reason::Unproved
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Identity;

    fn config(secret: u8) -> VanConfig {
        let identity = Identity { role: 3, rank: Some(5), incarnation: 77 };
        VanConfig {
            secret: Secret::from([secret; 32]),
            cluster: 7,
            node: 9,
            identity,
            ..VanConfig::default()
        }
    }

    /// What each side learns of the other.
    fn outcome(caller: &Credentials, called: &Credentials) -> Result<(Proved, Proved), Reason> {
        let (calling, call) = caller.call();
        let (answering, welcome) = called.welcome(&call)?;
        let (by_caller, proof) = caller.prove(calling, &welcome)?;
        Ok((by_caller, called.check(answering, &proof)?))
    }

    #[test]
    fn both_sides_learn_who_the_other_is() {
        let (a, b) = (config(1), VanConfig { node: 10, ..config(1) });
        let (a, b) = (Credentials::new(&a, "van"), Credentials::new(&b, "van"));
        let (b_says, a_says) = outcome(&a, &b).unwrap();
        assert_eq!((a_says.hello.node.get(), b_says.hello.node.get()), (9, 10));
        assert_eq!((a_says.hello.role, a_says.hello.rank.get()), (3, 5));
        assert_eq!(a_says.hello.incarnation.get(), 77);
        assert!(a_says.ciphers.is_none() && b_says.ciphers.is_none());
    }

    #[test]
    fn who_has_something_else_is_refused_by_either_side() {
        let a = Credentials::new(&config(1), "van");
        for (other, carrier) in [
            (config(2), "van"),
            (VanConfig { cluster: 8, ..config(1) }, "van"),
            (VanConfig { encrypt: true, ..config(1) }, "van"),
            (config(1), "ship"),
        ] {
            let other = Credentials::new(&other, carrier);
            assert!(outcome(&a, &other).is_err() && outcome(&other, &a).is_err());
            // A called side that welcomes everybody is not accepted either.
            let (calling, _) = a.call();
            let (_, welcome) = other.welcome(&other.call().1).unwrap();
            assert_eq!(a.prove(calling, &welcome).unwrap_err(), Reason::Unproved);
        }
    }

    #[test]
    fn what_was_recorded_proves_nothing() {
        let (a, b) = (Credentials::new(&config(1), "van"), Credentials::new(&config(1), "van"));
        let (calling, call) = a.call();
        let (answering, welcome) = b.welcome(&call).unwrap();
        let (_, proof) = a.prove(calling, &welcome).unwrap();
        b.check(answering, &proof).unwrap();
        // The repeated call is answered with other keys, and the old proof does not fit them.
        let (answering, other) = b.welcome(&call).unwrap();
        assert_ne!(other, welcome);
        assert!(b.check(answering, &proof).is_err());
        // An old welcome does not answer a new call.
        let (calling, _) = a.call();
        assert!(a.prove(calling, &welcome).is_err());
    }

    #[test]
    fn nobody_is_made_to_talk_to_itself() {
        let a = Credentials::new(&config(1), "van");
        let why = outcome(&a, &a).map(drop).unwrap_err();
        assert!(why.to_string().contains("this node itself"), "{why}");
        let (calling, call) = a.call();
        assert!(a.prove(calling, &call).is_err(), "a call that is sent back is no welcome");
    }

    #[test]
    fn every_changed_byte_is_found() {
        let (a, b) = (Credentials::new(&config(1), "van"), Credentials::new(&config(1), "van"));
        let turned = |bytes: &[u8], at: usize| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1;
            bytes
        };
        for at in 0..CALL_BYTES {
            assert!(b.welcome(&turned(&a.call().1, at)).is_err(), "call, byte {at}");
        }
        for at in 0..WELCOME_BYTES {
            let (calling, call) = a.call();
            let (_, welcome) = b.welcome(&call).unwrap();
            assert!(a.prove(calling, &turned(&welcome, at)).is_err(), "welcome, byte {at}");
        }
        for at in 0..PROOF_BYTES {
            let (calling, call) = a.call();
            let (answering, welcome) = b.welcome(&call).unwrap();
            let (_, proof) = a.prove(calling, &welcome).unwrap();
            assert!(b.check(answering, &turned(&proof, at)).is_err(), "proof, byte {at}");
        }
    }

    #[test]
    fn messages_cut_short_and_of_others_are_errors() {
        let a = Credentials::new(&config(1), "van");
        let call = a.call().1;
        for len in 0..CALL_BYTES {
            assert!(a.welcome(&call[..len]).is_err(), "{len} bytes");
        }
        let mut older = call;
        older[4] = 6;
        assert!(a.welcome(&older).unwrap_err().to_string().contains("version 6"));
        assert!(deserves_answer(&older) && !deserves_answer(b"GET / HTTP/1.1"));
        assert!(a.welcome(&[0; CALL_BYTES]).unwrap_err().to_string().contains("does not speak"));
        let why = a.prove(a.call().0, &refusal()).unwrap_err();
        assert_eq!(why, Reason::Refused);
    }

    #[test]
    fn ciphers_carry_both_ways_and_notice_changes() {
        let config = VanConfig { encrypt: true, ..config(1) };
        let (a, b) = (Credentials::new(&config, "van"), Credentials::new(&config, "van"));
        let (at_a, at_b) = outcome(&a, &b).unwrap();
        let (mut a_seals, mut a_opens) = at_a.ciphers.unwrap();
        let (mut b_seals, mut b_opens) = at_b.ciphers.unwrap();
        let (mut sealed, mut plain) = ([0; 100], [0; 100]);
        for (seals, opens) in [(&mut a_seals, &mut b_opens), (&mut b_seals, &mut a_opens)] {
            for text in ["one", "two", ""] {
                let len = seals.seal(text.as_bytes(), &mut sealed);
                assert_eq!(len, text.len() + TAG);
                let len = opens.open(&sealed[..len], &mut plain).unwrap();
                assert_eq!(&plain[..len], text.as_bytes());
            }
            let len = seals.seal(b"three", &mut sealed);
            sealed[0] ^= 1;
            assert!(opens.open(&sealed[..len], &mut plain).is_err());
        }
    }
}
