//! What all runs of training share: the cluster, the rows, and how they end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use caravan_kv::{Cluster, ClusterConfig};
use caravan_learn::replace_file;

use crate::cli::Common;
use crate::cli::ending::Interrupted;
use crate::cli::interrupt::Interrupt;
use crate::cluster;
use crate::report::{Report, Row, say};

/// A cluster that trains, and where the model goes.
pub(super) struct Run<'a> {
    pub(super) cluster: Cluster,
    /// Ends training early, with the model so far.
    pub(super) stop: Arc<AtomicBool>,
    model: Option<&'a Path>,
    interrupt: Interrupt,
}

impl<'a> Run<'a> {
    /// A run on a new cluster. With a model the first signal only sets the flag.
    pub(super) fn begin(
        common: &Common,
        config: &ClusterConfig,
        model: Option<&'a Path>,
    ) -> Result<Self> {
        let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
        model.map_or(Ok(()), replace_file::check)?;
        let cluster = cluster::launch(config, common)?;
        let mut stop = Arc::default();
        if model.is_some() {
            stop = interrupt.flag();
            interrupt.defer();
        }
        Ok(Run { cluster, stop, model, interrupt })
    }

    /// The rows of this run, which has so many steps.
    pub(super) fn rows(&self, common: &Common, steps: usize) -> Rows {
        let rows = Rows::new(common, steps, self.model.is_none().then(|| self.stop.clone()));
        rows.report.doing("loading".to_owned());
        rows
    }

    /// Ends the cluster, and tells where the model is.
    pub(super) fn end(self, rows: Rows, stopped: bool) -> Result<()> {
        let ended = rows.outcome.and(self.cluster.shutdown().map_err(Into::into));
        let saved = self.model.map(Path::to_path_buf);
        finish(ended, saved, stopped, &self.interrupt, |_| String::new())
    }
}

/// The rows of a run. A run with other outputs goes on if a row cannot be written, and reports the
/// error at its end.
pub(super) struct Rows {
    pub(super) report: Report,
    pub(super) outcome: Result<()>,
    /// Ends a run without other outputs.
    stop: Option<Arc<AtomicBool>>,
}

impl Rows {
    pub(super) fn new(common: &Common, steps: usize, stop: Option<Arc<AtomicBool>>) -> Self {
        Rows { report: Report::new(common.format(), steps), outcome: Ok(()), stop }
    }

    pub(super) fn row(&mut self, row: &impl Row) {
        if self.outcome.is_err() {
            return;
        }
        self.outcome = self.report.row(row);
        if let (Err(_), Some(stop)) = (&self.outcome, &self.stop) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// A row that ends a step.
    pub(super) fn step(&mut self, row: &impl Row) {
        self.report.step();
        self.row(row);
    }
}

/// Lets a cluster go on without as many servers as there are replicas.
pub(super) fn spare(config: &mut ClusterConfig, replicas: u32) {
    let losses = &mut config.node.server_losses_max;
    *losses = (*losses).max(replicas as usize);
}

/// Tells where the model is, whatever else failed.
pub(super) fn finish(
    outcome: Result<()>,
    saved: Option<PathBuf>,
    stopped: bool,
    interrupt: &Interrupt,
    remedy: impl FnOnce(&std::path::Display<'_>) -> String,
) -> Result<()> {
    let Some(file) = saved.as_ref().map(|file| file.display()) else { return outcome };
    if let Err(error) = outcome {
        say(format_args!("the model is in {file} all the same"));
        return Err(error);
    }
    if stopped {
        let saved = format!("the model so far is in {file}{}", remedy(&file));
        return Err(Interrupted { status: interrupt.status(), saved }.into());
    }
    Ok(())
}
