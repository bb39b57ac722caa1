//! `caravan check-history`: whether recorded histories keep the consistency model of their table.

use std::time::Instant;

use anyhow::Result;
use caravan_kv::history::{self, Summary};
use serde::Serialize;

use crate::cli::{CheckHistory, Common};
use crate::report::{Report, Row};

/// The outcome of a check.
#[derive(Debug, Serialize)]
struct Checked {
    model: String,
    workers: u32,
    files: usize,
    events: u64,
    reads: u64,
    writes: u64,
    seconds: f64,
}

impl Row for Checked {
    const KIND: &'static str = "history";

    fn text(&self) -> String {
        let Checked { model, workers, files, events, reads, writes, seconds } = self;
        format!(
            "accepted: {events} events ({reads} reads, {writes} writes) of {workers} workers in \
             {files} histories under {model}, checked in {seconds:.1} s"
        )
    }
}

pub(crate) fn run(common: &Common, args: &CheckHistory) -> Result<()> {
    let began = Instant::now();
    let name = |file: usize| args.histories[file].display().to_string();
    let summary = history::check_files(&args.histories)
        .map_err(|trouble| anyhow::Error::msg(trouble.describe(name)))?;
    let Summary { consistency, events, reads, writes } = summary;
    let checked = Checked {
        model: consistency.model.to_string(),
        workers: consistency.workers,
        files: args.histories.len(),
        events,
        reads,
        writes,
        seconds: began.elapsed().as_secs_f64(),
    };
    Report::new(common.format(), 0).row(&checked)
}
