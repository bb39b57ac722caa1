//! Ctrl-C, and the plea to end that schedulers of clusters send: it ends the program at once, or, while a run could save its work,
//! only asks it to. The second one ends it at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::usage::Interrupted;

/// What asks a program to end.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// The status of a program that a signal has ended, as shells have it.
pub(crate) fn status(signal: i32) -> i32 {
    128 + signal
}

/// Does `work` that is to remove what it has half done when the flag is set, as Ctrl-C and the plea
/// to end do: then the program ends, afterwards.
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

/// What such a signal does, and whether one has come.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The next one ends the program. Set by the first, so that it says as well that there was one.
    at_once: Arc<AtomicBool>,
    /// The last one that has come, or 0.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Each ends the program at once until [`defer`](Self::defer).
    ///
    /// # Errors
    /// When the system takes no handler.
    pub(crate) fn watch() -> io::Result<Self> {
        let (at_once, last) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        for signal in SIGNALS {
            // In this order: the one that ends the program is to see what was set before.
            flag::register_conditional_shutdown(signal, status(signal), at_once.clone())?;
            flag::register_usize(signal, last.clone(), signal as usize)?;
            flag::register(signal, at_once.clone())?;
        }
        Ok(Interrupt { at_once, signal: last })
    }

    /// From now on the first one only sets the flag.
    pub(crate) fn defer(&self) {
        self.at_once.store(false, Ordering::Relaxed);
    }

    /// What a signal sets. It means that only after [`defer`](Self::defer): before, it is set as well.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.at_once.clone()
    }

    /// The status of a program that the last one has ended.
    pub(crate) fn status(&self) -> i32 {
        status(self.signal.load(Ordering::Relaxed) as i32)
    }
}
