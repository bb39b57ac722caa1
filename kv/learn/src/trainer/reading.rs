//! When and by whom the rows of files are read.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::data::Labels;

/// The rows that a trainer gets by [`super::Trainer::add_rows`].
#[derive(Debug, Clone, Copy)]
pub struct RowsOf<'a> {
    /// The files, as [`crate::data::read`] takes them, in this order.
    pub files: &'a [PathBuf],
    /// What labels are.
    pub labels: Labels,
    /// Rows of a step, at least 1; the last of a pass may have fewer.
    pub step: usize,
}

/// How trainers get their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Reading {
    /// A thread of each worker reads while the first pass trains on what is there. Steps are those
    /// of [`Reading::First`], to the bit.
    #[default]
    Ahead,
    /// All rows are read before the first pass.
    First,
    /// As [`Reading::Ahead`], but the driver gives out blocks of files of about this many bytes,
    /// each to a worker that has its file. Who is faster reads more, so runs differ.
    Near(u64),
}

/// Length of a block unless another is asked for.
const BLOCK_BYTES: u64 = 4 << 20;

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reading::Ahead => f.write_str("ahead"),
            Reading::First => f.write_str("first"),
            Reading::Near(bytes) => write!(f, "near:{bytes}"),
        }
    }
}

impl FromStr for Reading {
    type Err = String;

    /// Reads `ahead`, `first`, `near` or `near:BYTES`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is none of ahead, first, near and near:BYTES");
        match text.split_once(':') {
            None if text == "ahead" => Ok(Reading::Ahead),
            None if text == "first" => Ok(Reading::First),
            None if text == "near" => Ok(Reading::Near(BLOCK_BYTES)),
            Some(("near", bytes)) => match bytes.parse() {
                Ok(1..) => bytes.parse().map(Reading::Near).map_err(|_| wrong()),
                _ => Err(format!("a block of {bytes} bytes: take 1 or more, as near:4194304")),
            },
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for reading in [Reading::Ahead, Reading::First, Reading::Near(1), Reading::Near(77)] {
            assert_eq!(reading.to_string().parse::<Reading>().unwrap(), reading);
        }
        assert_eq!("near".parse::<Reading>().unwrap(), Reading::Near(BLOCK_BYTES));
        for wrong in ["", "far", "near:", "near:0", "near:x", "ahead:1"] {
            wrong.parse::<Reading>().unwrap_err();
        }
    }
}
