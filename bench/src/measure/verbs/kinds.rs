//! What the command line of `caravan bench verbs` names, also in a build without RDMA.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Most messages in flight.
pub(crate) const WINDOW_MAX: u32 = 4096;

/// How a message is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// SEND into a posted receive
    Send,
    /// RDMA WRITE; the other side watches its memory
    Write,
    /// RDMA WRITE with immediate data, which completes a receive
    WriteImm,
    /// RDMA READ; the other side has no part in it
    Read,
}

impl Op {
    /// Whether a message uses up a receive of the other side.
    pub(crate) fn is_received(self) -> bool {
        matches!(self, Op::Send | Op::WriteImm)
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    /// One message at a time, to and fro
    Latency,
    /// A window of messages under way, one direction
    Bandwidth,
}
