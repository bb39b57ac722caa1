//! Ctrl-C: ends the program at once, or, while a run could save its work, only asks it to. The second one ends it at once.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs, io, process, thread};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Status of a program that SIGINT has ended, as shells have it: 128 + 2.
pub(crate) const STATUS: i32 = 130;

/// Does `work`. Ctrl-C, or a plea to end, removes `folder` meanwhile, which nobody needs afterwards, and ends the program.
///
/// # Errors
/// When the system takes no handler; those of `work`.
pub(crate) fn removing<T>(folder: PathBuf, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for Ctrl-C")?;
    let ending = Arc::new(Mutex::new(()));
    let held = ending.clone();
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _held = held.lock();
            let _ = fs::remove_dir_all(&folder); // it ends in any case
            process::exit(128 + signal);
        }
    });
    let outcome = work();
    // Work that fails for want of the folder does not get any further than here.
    let _not_ending = ending.lock();
    outcome
}

/// What Ctrl-C does, and whether it has come.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The next one ends the program. Set by the first, so that it says as well that there was one.
    at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// Ctrl-C ends the program at once until [`defer`](Self::defer).
    ///
    /// # Errors
    /// When the system takes no handler.
    pub(crate) fn watch() -> io::Result<Self> {
        let at_once = Arc::new(AtomicBool::new(true));
        // In this order: the one that ends the program is to see what was set before.
        flag::register_conditional_shutdown(SIGINT, STATUS, at_once.clone())?;
        flag::register(SIGINT, at_once.clone())?;
        Ok(Interrupt { at_once })
    }

    /// From now on the first Ctrl-C only sets the flag.
    pub(crate) fn defer(&self) {
        self.at_once.store(false, Ordering::Relaxed);
    }

    /// What Ctrl-C sets. It means that only after [`defer`](Self::defer): before, it is set as well.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.at_once.clone()
    }
}
