//! How a row was measured, and how rows say it.

use anyhow::Result;
use serde::Serialize;

use super::kinds::Op;
use super::side::Side;
use crate::cli::values::{self, name};

/// How a row was measured. It has to be the same on both sides of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct How {
    /// Messages posted at one doorbell.
    pub(crate) list: usize,
    /// Whether messages of this length went inside the work request.
    pub(crate) inline: bool,
    /// Messages for one completion.
    pub(crate) signal_every: usize,
    pub(crate) mtu: usize,
    pub(crate) wait: String,
}

impl How {
    /// The part that is the same in all rows of a run, for a heading.
    pub(super) fn text(&self) -> String {
        format!("MTU {}, wait {}", self.mtu, self.wait)
    }

    pub(super) fn of(side: &mut Side, list: usize, signal_every: usize) -> Result<Self> {
        let Side { test, link, .. } = side;
        Ok(How {
            list,
            inline: test.op != Op::Read && test.bytes <= link.queue().inline_bytes(),
            signal_every,
            mtu: link.device().capabilities()?.mtu_bytes,
            wait: values::wait(link.wait_policy()).to_owned(),
        })
    }
}

pub(super) fn yes(it_is: bool) -> String {
    if it_is { "yes" } else { "no" }.to_owned()
}

pub(super) fn padded(op: &Op) -> String {
    format!("{:<10}", name(op))
}
