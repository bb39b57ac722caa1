//! Ctrl-C: ends the program at once, or, while a run could save its work, only asks it to. The second one ends it at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// Status of a program that SIGINT has ended, as shells have it: 128 + 2.
pub(crate) const STATUS: i32 = 130;

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
