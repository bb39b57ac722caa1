//! Why a server refuses a request: a kind, by which a program decides, and a reason in words.
//!
//! A refusal travels as a failure whose command is the number of its kind and whose values are the
//! reason. What a caller does about each kind is in `docs/errors.md`.

use std::collections::TryReserveError;
use std::fmt;

use caravan_van::Message;
use caravan_van::error::with_sources;

use crate::consistency::Forbidden;
use crate::error::{Advice, Error};

/// Defines [`Refusal`] from the name, the number and the advice of each kind.
macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $number:literal: $advice:ident,)*) => {
        /// Why a server refuses a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Refusal {
            $($(#[$doc])* $name = $number,)*
        }

        impl Refusal {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Refusal] = &[$(Refusal::$name),*];

            /// What to do about it.
            pub fn advice(self) -> Advice {
                match self {
                    $(Refusal::$name => Advice::$advice,)*
                }
            }
        }
    };
}

refusals! {
    /// The server contradicts itself, or a file or a peer has failed it.
    Internal = 0: GiveUp,
    /// A key is not in the table or the shard, or keys are not in their order.
    Key = 1: Mend,
    /// Values, lengths, options or a body are not what the table or the operation takes.
    Shape = 2: Mend,
    /// The server has no memory for it.
    Memory = 3: Retry,
    /// The table cannot do this, as it was created.
    Unsupported = 4: Mend,
    /// Another server thread serves the shard.
    NotHead = 5: AskElsewhere,
    /// The table was dropped.
    Dropped = 6: GiveUp,
    /// The server thread leaves the cluster, or the one that asks counts as lost.
    Draining = 7: AskElsewhere,
    /// The request is not the worker's turn: the table's model forbids it, now and later.
    Order = 8: Mend,
    /// Something else is under way that it cannot go beside.
    Busy = 9: Retry,
    /// All servers that had the shard are lost.
    Lost = 10: GiveUp,
}

impl Refusal {
    /// The kind with this number; an unknown number is [`Refusal::Internal`].
    pub fn from_number(number: i32) -> Refusal {
        let known = Refusal::ALL.iter().find(|kind| kind.number() == number);
        known.copied().unwrap_or(Refusal::Internal)
    }

    /// Its number in messages.
    pub fn number(self) -> i32 {
        i32::from(self as u8)
    }

    /// A refusal of this kind.
    pub fn because(self, reason: impl Into<String>) -> Refused {
        Refused { kind: self, reason: reason.into() }
    }
}

/// A refusal of a request, as a shard or a server returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What a program can tell of it.
    pub kind: Refusal,
    /// The reason, for people.
    pub reason: String,
}

impl Refused {
    /// That of a failure, as its sender has written it.
    pub(crate) fn read(failure: &Message) -> Refused {
        let reason = String::from_utf8_lossy(failure.values()).into_owned();
        Refusal::from_number(failure.command()).because(reason)
    }

    /// The same refusal of a thing, which the reason then begins with.
    #[must_use]
    pub(crate) fn of(self, thing: impl fmt::Display) -> Refused {
        Refused { reason: format!("{thing}: {}", self.reason), ..self }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refused {}

impl From<caravan_van::Error> for Refused {
    fn from(error: caravan_van::Error) -> Refused {
        use caravan_van::Error::*;
        let kind = match error {
            OutOfMemory { .. } | OverBudget { .. } | Register { .. } => Refusal::Memory,
            MessageTooLong { .. } | Decode(_) | Setting { .. } => Refusal::Shape,
            _ => Refusal::Internal,
        };
        kind.because(with_sources(&error))
    }
}

impl From<TryReserveError> for Refused {
    fn from(error: TryReserveError) -> Refused {
        Refusal::Memory.because(error.to_string())
    }
}

impl From<Forbidden> for Refused {
    fn from(forbidden: Forbidden) -> Refused {
        let kind = match forbidden {
            Forbidden::ReadsAndWrites | Forbidden::NoBound => Refusal::Unsupported,
            _ => Refusal::Order,
        };
        kind.because(forbidden.to_string())
    }
}

/// What a message says does not fit its operation.
impl From<serde_json::Error> for Refused {
    fn from(error: serde_json::Error) -> Refused {
        Refusal::Shape.because(error.to_string())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        match error {
            Error::Van(error) => error.into(),
            Error::Refused { kind, reason, .. } => kind.because(reason),
            Error::KeyOutsideTable { .. } | Error::KeysNotAscending { .. } => {
                Refusal::Key.because(error.to_string())
            }
            other => Refusal::Shape.because(with_sources(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_from_their_numbers() {
        for (number, kind) in Refusal::ALL.iter().enumerate() {
            assert_eq!(
                (kind.number() as usize, Refusal::from_number(number as i32)),
                (number, *kind)
            );
        }
        for unknown in [-1, Refusal::ALL.len() as i32, 256, i32::MIN, i32::MAX] {
            assert_eq!(Refusal::from_number(unknown), Refusal::Internal);
        }
    }

    #[test]
    fn the_page_of_errors_lists_each_kind() {
        let page = include_str!("../docs/errors.md");
        for kind in Refusal::ALL {
            let row = format!("| `{kind:?}` | {} | `{:?}` | ", kind.number(), kind.advice());
            assert!(page.contains(&row), "{row}");
        }
        assert_eq!(page.matches("| `GiveUp` | ").count(), 4, "and no others");
    }

    #[test]
    fn errors_of_the_van_are_refusals_of_their_kind() {
        let (wanted, reserved, limit) = (8, 0, 4);
        let short = caravan_van::Error::OutOfMemory { wanted, reserved, limit, source: None };
        assert_eq!(Refused::from(short).kind, Refusal::Memory);
        let gone = caravan_van::Error::NotConnected { peer: caravan_van::PeerId(3) };
        assert_eq!(Refused::from(Error::Van(gone)).kind, Refusal::Internal);
        let key = Error::KeysNotAscending { position: 1, key: 2, previous: 3 };
        assert_eq!(Refused::from(key).kind, Refusal::Key);
    }
}
