//! `caravan generate`: synthetic data as files. What is drawn is caravan-learn's business.

use std::num::NonZeroUsize;

use anyhow::Result;
use caravan_learn::Error;
use caravan_learn::data::clicks::{self, Format, Part, Summary};

use crate::cli::{Clicks, Common, GenerateCommand, KeyFormat};
use crate::usage::Usage;
use crate::{interrupt, report};

/// Rows with `--smoke`.
const SMOKE_ROWS: u64 = 1000;

/// Runs `caravan generate`.
///
/// # Errors
/// Options out of range, and files that cannot be written.
pub(crate) fn run(common: &Common, command: &GenerateCommand) -> Result<()> {
    let GenerateCommand::Clicks(args) = command;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let settings = settings(args, common.smoke);
    let (out, format) = (&args.out, format(args));
    let written =
        interrupt::tidily(|stop| clicks::generate(&settings, out, format, threads, stop))?;
    let summary = written.map_err(|error| match error {
        Error::Option { .. } => anyhow::Error::new(Usage(error.to_string())),
        other => other.into(),
    })?;
    print(&summary, args, common.json)
}

fn settings(args: &Clicks, smoke: bool) -> clicks::Clicks {
    let rows_max = if smoke { SMOKE_ROWS } else { u64::MAX };
    clicks::Clicks {
        rows: args.rows.min(rows_max),
        test_rows: args.test_rows.min(rows_max / 10),
        seed: args.seed,
        slots: args.slots,
        bag: args.bag,
        k_min: args.kmin,
        k_max: args.kmax,
        k_bag: args.kbag,
        bias: args.bias,
        scale: args.scale,
    }
}

fn format(args: &Clicks) -> Format {
    match args.format {
        KeyFormat::Compact => Format::Compact,
        KeyFormat::Keys => Format::Keys,
    }
}

/// One line for each file, and the number of columns.
fn print(summary: &Summary, args: &Clicks, json: bool) -> Result<()> {
    for (ending, part) in [("train", summary.train), ("test", summary.test)] {
        let Part { rows, positives, nonzeros } = part;
        let file = format!("{}.{ending}", args.out.display());
        let columns = summary.columns;
        let line = if json {
            let row = serde_json::json!({
                "row": "file", "file": file, "rows": rows, "positives": positives,
                "nonzeros": nonzeros, "columns": columns,
            });
            row.to_string()
        } else {
            format!(
                "{file}: {rows} rows, {positives} positive, {nonzeros} nonzeros, {columns} columns in training"
            )
        };
        report::print(&line)?;
    }
    Ok(())
}
