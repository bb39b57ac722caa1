//! Options of handles, read from a table's specification and checked.

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::number::Real;
use crate::refusal::{Refusal, Refused};
use crate::table::TableSpec;

/// Reads a handle's options; those that the table does not name have their default.
///
/// # Errors
/// A text with the option, its value, and what is allowed.
pub(super) fn read<O: DeserializeOwned + Default>(spec: &TableSpec) -> Result<O, Refused> {
    let options = match &spec.options {
        Json::Null => return Ok(O::default()),
        Json::Object(options) => options,
        other => return Err(refuse(spec, &format!("options are {other}, and must be an object"))),
    };
    if let Some((name, value)) = options.iter().find(|(_, value)| !value.is_number()) {
        return Err(refuse(spec, &format!("option {name} is {value}, and must be a number")));
    }
    serde_json::from_value(spec.options.clone()).map_err(|error| refuse(spec, &error.to_string()))
}

/// Checks that a table whose handle takes no options has none.
///
/// # Errors
/// A text with the options.
pub(super) fn take_none(spec: &TableSpec) -> Result<(), Refused> {
    match &spec.options {
        Json::Null => Ok(()),
        Json::Object(options) if options.is_empty() => Ok(()),
        other => Err(refuse(spec, &format!("options are {other}, and it takes none"))),
    }
}

/// An error, with the handle and the table. A long reason loses its middle, since it may repeat
/// what a worker sent.
pub(super) fn refuse(spec: &TableSpec, why: &str) -> Refused {
    let start: String = why.chars().take(REASON_CHARS / 2).collect();
    let end_at = why.char_indices().rev().nth(REASON_CHARS / 2 - 1).map_or(0, |(at, _)| at);
    let (gap, end) =
        if end_at > start.len() { (" … ", &why[end_at..]) } else { ("", &why[start.len()..]) };
    Refusal::Shape
        .because(format!("handle {} of table {}: {start}{gap}{end}", spec.handle, spec.name))
}

/// Longest reason that is told whole, in characters.
const REASON_CHARS: usize = 300;

/// What the number of an option may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Allowed {
    Positive,
    NotNegative,
    /// 0 or more, and below 1.
    Share,
}

/// The option `name` as a number to compute with.
///
/// # Errors
/// A text with the option, its value, and what is allowed. The number must be so as an `R`, too.
pub(super) fn number<R: Real>(name: &str, value: f64, allowed: Allowed) -> Result<R, Refused> {
    let number = R::from_f64(value);
    let fits = match allowed {
        Allowed::Positive => number > R::ZERO,
        Allowed::NotNegative => number >= R::ZERO,
        Allowed::Share => number >= R::ZERO && number < R::ONE,
    };
    if number.is_finite() && fits {
        return Ok(number);
    }
    let allowed = match allowed {
        Allowed::Positive => "above 0",
        Allowed::NotNegative => "0 or more",
        Allowed::Share => "0 or more and below 1",
    };
    Err(Refusal::Shape.because(format!(
        "option {name} is {value:?}, and must be a number {allowed} as {}",
        R::NAME
    )))
}
