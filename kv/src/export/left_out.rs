//! What stands for Arrow in a build without it.

use std::io::{BufRead, Write};

use super::{Next, Sink};
use crate::error::{Error, Result};
use crate::table::TableSpec;

pub(super) fn sink<'a>(
    _spec: &'a TableSpec,
    _out: &'a mut impl Write,
) -> Result<Box<dyn Sink + 'a>> {
    Err(left_out())
}

pub(super) fn rows<'a, V>(
    _spec: &'a TableSpec,
    _input: &'a mut impl BufRead,
) -> Result<Box<Next<'a, V>>> {
    Err(left_out())
}

fn left_out() -> Error {
    let why = "Arrow was left out of this build: build it with `--features arrow`, or take text or \
               binary records";
    Error::Config(why.to_owned())
}
