//! The handshake over a byte stream: splits incoming bytes into messages and answers them.

use std::rc::Rc;

use super::{
    Answering, CALL_BYTES, Calling, Credentials, PROOF_BYTES, Proved, REFUSAL_BYTES, Reason,
    WELCOME_BYTES, deserves_answer, is_refusal, refusal,
};

/// Longest message of a handshake.
const MESSAGE_MAX: usize = WELCOME_BYTES;

/// One side of a handshake in progress. It reads exactly its own messages, and nothing behind them.
#[derive(Debug)]
pub struct Greeter {
    credentials: Rc<Credentials>,
    stage: Stage,
    /// The incoming message.
    message: [u8; MESSAGE_MAX],
    /// Bytes of it received so far.
    filled: usize,
}

#[derive(Debug)]
enum Stage {
    /// This side connected, and waits for a welcome.
    Calling(Calling),
    /// This side was called, and waits for the call.
    Called,
    /// It has welcomed the caller, and waits for the proof.
    Answering(Answering),
    /// It is over.
    Over,
}

/// Result of received bytes.
#[derive(Debug)]
pub enum Greeted {
    /// More bytes are needed.
    NotYet,
    /// Send this; more bytes will come.
    Reply(Box<[u8]>),
    /// The peer has proved itself; send this first, if anything.
    Proved(Box<Proved>, Option<Box<[u8]>>),
    /// Refuse the peer; send this to tell it, if anything.
    Refused(Reason, Option<Box<[u8]>>),
}

impl Greeter {
    /// The connecting side, and its first message.
    pub fn calling(credentials: Rc<Credentials>) -> (Greeter, Box<[u8]>) {
        let (calling, call) = credentials.call();
        (Greeter::at(credentials, Stage::Calling(calling)), call.into())
    }

    /// The called side.
    pub fn called(credentials: Rc<Credentials>) -> Greeter {
        Greeter::at(credentials, Stage::Called)
    }

    fn at(credentials: Rc<Credentials>, stage: Stage) -> Greeter {
        Greeter { credentials, stage, message: [0; MESSAGE_MAX], filled: 0 }
    }

    /// Where the next bytes go; never empty while the handshake is in progress.
    pub fn space(&mut self) -> &mut [u8] {
        let len = match self.stage {
            // A refusal is shorter than a welcome, and nothing follows it.
            Stage::Calling(_) if self.filled < REFUSAL_BYTES => REFUSAL_BYTES,
            Stage::Calling(_) => WELCOME_BYTES,
            Stage::Called => CALL_BYTES,
            Stage::Answering(_) => PROOF_BYTES,
            Stage::Over => self.filled,
        };
        &mut self.message[self.filled..len]
    }

    /// Handles `bytes` more bytes in [`Greeter::space`].
    pub fn received(&mut self, bytes: usize) -> Greeted {
        self.filled += bytes;
        let message = &self.message[..self.filled];
        let is_refused = matches!(self.stage, Stage::Calling(_)) && is_refusal(message);
        let is_stranger =
            matches!(self.stage, Stage::Called) && self.filled >= 4 && !deserves_answer(message);
        if !self.space().is_empty() && !is_refused && !is_stranger {
            return Greeted::NotYet;
        }
        let message = &self.message[..std::mem::take(&mut self.filled)];
        let credentials = &self.credentials;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Calling(calling) => match credentials.prove(calling, message) {
                Ok((proved, proof)) => Greeted::Proved(Box::new(proved), Some(proof.into())),
                Err(reason) => Greeted::Refused(reason, None),
            },
            Stage::Called => match credentials.welcome(message) {
                Ok((answering, welcome)) => {
                    self.stage = Stage::Answering(answering);
                    Greeted::Reply(welcome.into())
                }
                Err(reason) => {
                    let told = deserves_answer(message).then(|| refusal().into());
                    Greeted::Refused(reason, told)
                }
            },
            Stage::Answering(answering) => match credentials.check(answering, message) {
                Ok(proved) => Greeted::Proved(Box::new(proved), None),
                Err(reason) => Greeted::Refused(reason, None),
            },
            Stage::Over => Greeted::NotYet,
        }
    }
}
