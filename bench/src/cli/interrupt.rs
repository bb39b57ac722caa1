//! Ctrl-C, and the SIGTERM that schedulers of clusters send. Either ends the program at once, or,
//! while a run can save its work, sets a flag the first time and ends the program the second time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::ending::Interrupted;

/// The signals that ask a program to end.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// The exit status of a program that a signal ended, as shells report it.
pub(crate) fn status(signal: i32) -> i32 {
    128 + signal
}

/// Does `work`, which has to remove unfinished files when the flag is set, as the signals do. The
/// program ends afterwards.
///
/// # Errors
/// [`Interrupted`]; when the system takes no handler.
pub(crate) fn tidily<T>(work: impl FnOnce(&AtomicBool) -> T) -> Result<T> {
    let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
    interrupt.defer();
    let outcome = work(&interrupt.at_once);
    if interrupt.at_once.swap(true, Ordering::Relaxed) {
        let saved = "files that were not whole are gone".to_owned();
        return Err(Interrupted { status: interrupt.status(), saved }.into());
    }
    Ok(outcome)
}

/// The handlers of the signals.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The next signal ends the program. The first one sets this, so it also tells that one came.
    at_once: Arc<AtomicBool>,
    /// The last signal, or 0.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Every signal ends the program at once until [`defer`](Self::defer).
    pub(crate) fn watch() -> io::Result<Self> {
        let at_once = Arc::new(AtomicBool::new(true));
        let last = Arc::new(AtomicUsize::new(0));
        for signal in SIGNALS {
            // The handler that ends the program reads the flag before the last handler sets it.
            flag::register_conditional_shutdown(signal, status(signal), at_once.clone())?;
            flag::register_usize(signal, last.clone(), signal as usize)?;
            flag::register(signal, at_once.clone())?;
        }
        Ok(Interrupt { at_once, signal: last })
    }

    /// From now on the first signal only sets the flag.
    pub(crate) fn defer(&self) {
        self.at_once.store(false, Ordering::Relaxed);
    }

    /// Whether a signal came. The flag is also set before [`defer`](Self::defer).
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.at_once.clone()
    }

    /// The exit status of a program that the last signal ended.
    pub(crate) fn status(&self) -> i32 {
        status(self.signal.load(Ordering::Relaxed) as i32)
    }
}
