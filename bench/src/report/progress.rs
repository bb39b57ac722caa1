//! A progress bar, if a person can see it: standard error is a terminal and rows are not JSON.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar, or nothing.
#[derive(Debug)]
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    /// A bar of `steps`; nothing if there are none or nobody would see it.
    pub(super) fn new(steps: usize, json: bool) -> Self {
        let is_seen = steps > 0 && !json && std::io::stderr().is_terminal();
        Progress(is_seen.then(|| {
            let style = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {msg}")
                .expect("the template is well formed");
            let bar = ProgressBar::new(steps as u64).with_style(style.progress_chars("=> "));
            tick(bar.clone());
            bar
        }))
    }

    /// Shows what is being done.
    pub(super) fn doing(&self, what: String) {
        self.0.iter().for_each(|bar| bar.set_message(what.clone()));
    }

    /// Counts from 0 again.
    pub(super) fn restart(&self) {
        self.0.iter().for_each(ProgressBar::reset);
    }

    /// One step is done.
    pub(super) fn step(&self) {
        self.0.iter().for_each(|bar| bar.inc(1));
    }

    /// Runs `print` with the bar out of the way.
    pub(super) fn hidden<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// Redraws the bar's clock. indicatif's own ticker panics where the system gives no thread; this
/// bar then stands still.
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
        self.0.iter().for_each(ProgressBar::finish_and_clear);
    }
}
