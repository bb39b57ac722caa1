//! `caravan generate`: synthetic data as files. caravan-learn draws the data.

use std::num::NonZeroUsize;

use anyhow::Result;
use caravan_learn::Error;
use caravan_learn::data::clicks::{self, Format, Part};
use serde_json::json;

use crate::cli::ending::Usage;
use crate::cli::interrupt::tidily;
use crate::cli::{Clicks, Common, GenerateCommand, KeyFormat};
use crate::report::print;

const SMOKE_ROWS: u64 = 1000;

pub(crate) fn run(common: &Common, command: &GenerateCommand) -> Result<()> {
    let GenerateCommand::Clicks(args) = command;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let settings = settings(args, common.smoke);
    let format = match args.format {
        KeyFormat::Compact => Format::Compact,
        KeyFormat::Keys => Format::Keys,
    };
    let written = tidily(|stop| clicks::generate(&settings, &args.out, format, threads, stop))?;
    let summary = written.map_err(|error| match error {
        Error::Option { .. } => anyhow::Error::new(Usage(error.to_string())),
        other => other.into(),
    })?;
    for (ending, part) in [("train", summary.train), ("test", summary.test)] {
        let Part { rows, positives, nonzeros } = part;
        let file = format!("{}.{ending}", args.out.display());
        let columns = summary.columns;
        // Scripts read these fields in the order of their names, with `row` among them.
        let row = json!({
            "row": "file", "file": file, "rows": rows, "positives": positives,
            "nonzeros": nonzeros, "columns": columns,
        });
        let text = format!(
            "{file}: {rows} rows, {positives} positive, {nonzeros} nonzeros, \
             {columns} columns in training"
        );
        print(&if common.json { row.to_string() } else { text })?;
    }
    Ok(())
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
