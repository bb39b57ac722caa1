//! The handshake of one connection of a byte stream: which bytes go next, and where those go that come.

use std::rc::Rc;

use super::{
    Answering, CALL_BYTES, Calling, Credentials, PROOF_BYTES, Proved, REFUSAL_BYTES, Reason,
    WELCOME_BYTES, deserves_answer, is_refusal, refusal,
};

/// Longest message of a handshake.
const MESSAGE_MAX: usize = WELCOME_BYTES;

/// One side of a handshake that is under way. It reads exactly its messages, and nothing behind them.
#[derive(Debug)]
pub struct Greeter {
    credentials: Rc<Credentials>,
    stage: Stage,
    /// The message that is coming.
    message: [u8; MESSAGE_MAX],
    /// How many bytes of it have come.
    filled: usize,
}

#[derive(Debug)]
enum Stage {
    /// This side connected, and waits for a welcome.
    Calling(Calling),
    /// This side was called, and waits for a call.
    Called,
    /// It has welcomed the caller, and waits for its proof.
    Answering(Answering),
    /// It is over.
    Over,
}

/// What came of a message.
#[derive(Debug)]
pub enum Greeted {
    /// More has to come first.
    NotYet,
    /// This is to be sent, and more will come.
    Reply(Box<[u8]>),
    /// The peer has proved itself; what this side has left to say, if anything, goes before all else.
    Proved(Box<Proved>, Option<Box<[u8]>>),
    /// The peer is to be turned away, and told so by these bytes, if any.
    Refused(Reason, Option<Box<[u8]>>),
}

impl Greeter {
    /// The side that connected, and what it sends first.
    pub fn calling(credentials: Rc<Credentials>) -> (Greeter, Box<[u8]>) {
        let (calling, call) = credentials.call();
        (Greeter::at(credentials, Stage::Calling(calling)), call.into())
    }

    /// The side that was called.
    pub fn called(credentials: Rc<Credentials>) -> Greeter {
        Greeter::at(credentials, Stage::Called)
    }

    fn at(credentials: Rc<Credentials>, stage: Stage) -> Greeter {
        Greeter { credentials, stage, message: [0; MESSAGE_MAX], filled: 0 }
    }

    /// Where the next bytes go; never empty while the handshake is under way.
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

    /// Takes note of `bytes` more bytes in the [`Greeter::space`].
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
