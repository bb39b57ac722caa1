//! A progress bar, where a person is there to see it: standard error is a terminal and rows are not JSON.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar, or nothing.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar of `steps`, unless nobody would see it.
    pub(crate) fn new(steps: usize, json: bool) -> Self {
        let seen = !json && std::io::stderr().is_terminal();
        let bar = seen.then(|| {
            let style = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {msg}")
                .expect("the template is well formed");
            let bar = ProgressBar::new(steps as u64).with_style(style.progress_chars("=> "));
            tick(bar.clone());
            bar
        });
        Progress { bar }
    }

    /// Says what is being done.
    pub(crate) fn doing(&self, what: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(what);
        }
    }

    /// Counts from 0 again.
    pub(crate) fn restart(&self) {
        if let Some(bar) = &self.bar {
            bar.reset();
        }
    }

    /// One step is done.
    pub(crate) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Runs `print` with the bar out of the way.
    pub(crate) fn hidden<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// Moves its clock on. The bar does without where the system gives no thread for it, where its own
/// would panic.
fn tick(bar: ProgressBar) {
    let run = move || {
        while !bar.is_finished() {
            bar.tick();
            thread::sleep(Duration::from_millis(250));
        }
    };
    let _ = thread::Builder::new().spawn(run);
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
