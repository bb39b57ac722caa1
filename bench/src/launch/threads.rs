//! Threads beside the processes of a job.

use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::ending::NO_THREAD;

/// Runs something on a thread of its own, which nobody waits for.
pub(super) fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().spawn(run).map(drop).context(NO_THREAD)
}

/// Calls `heard` with the number of each signal that asks this program to end.
pub(super) fn on_signals(heard: impl Fn(i32) + Send + 'static) -> Result<()> {
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let mut signals = signals.context("cannot watch for signals")?;
    spawn(move || signals.forever().for_each(heard))
}
