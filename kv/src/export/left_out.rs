//! What stands for Arrow in a build without it.

use std::io::BufRead;

use crate::error::{Error, Result};
use crate::table::TableSpec;

/// Nobody can make one.
pub(super) enum Reader {}

/// Nobody can make one.
pub(super) enum Writer {}

impl Reader {
    pub(super) fn new(_: &TableSpec) -> Result<Self> {
        Err(left_out())
    }

    pub(super) fn next<V>(
        &mut self,
        _: &mut impl BufRead,
        _: &mut Vec<V>,
    ) -> std::result::Result<Option<u64>, String> {
        match *self {}
    }
}

impl Writer {
    pub(super) fn new(_: &TableSpec) -> Result<Self> {
        Err(left_out())
    }

    pub(super) fn append(
        &mut self,
        _: u64,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        match *self {}
    }

    pub(super) fn end(self, _: &mut Vec<u8>) -> std::result::Result<(), String> {
        match self {}
    }
}

fn left_out() -> Error {
    let why = "this build has no Arrow: build it with --features arrow, or take text or binary \
               records";
    Error::Config(why.to_owned())
}
