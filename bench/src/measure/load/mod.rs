//! `caravan bench load`: all workers make requests for keys drawn by popularity, at a rate that the
//! answers do not change (an open loop), or as fast as the answers come (a closed one).

mod drive;
pub(crate) mod rates;
mod rows;
mod schedule;
pub(crate) mod worker;

use anyhow::Result;
use caravan_kv::Target;

use self::rates::{Rate, Skew};
use self::rows::{About, Merged};
pub(crate) use self::schedule::Arrivals;
use self::worker::{Loads, Task};
use crate::cli::ending::Usage;
use crate::cli::values::size;
use crate::cli::{Common, LoadArgs};
use crate::cluster;
use crate::doctor::machine::Machine;

/// Seconds of a run with `--smoke`.
const SMOKE_SECONDS: f64 = 0.2;

/// Runs `caravan bench load`.
///
/// # Errors
/// [`Usage`] for sizes that keys cannot share evenly, and for tables with fewer keys than a
/// request.
pub(crate) fn run(common: &Common, args: &LoadArgs) -> Result<()> {
    let rates = Rate::in_order(&args.rate);
    let tables = tables(args, common.smoke)?;
    let config = cluster::config(common)?;
    let mut report = Machine::first(common, rates.len() * tables.len())?;
    let mut cluster = cluster::launch(&config, common)?;
    let mut number = 0;
    for table in tables {
        let mut pushed = 0;
        let mut capacity = None;
        for rate in &rates {
            let what = format!("load {} {rate} {}", config.node.van, size(&table.bytes));
            report.doing(what.clone());
            let mut task = Task { number, rate: rate.per_second(capacity), ..table };
            if task.zipf.is_none() {
                // A table of its own, since those of other runs have rows for these keys.
                task.table = number as u32 + 1;
                pushed = 0;
            }
            let body = serde_json::to_value(task)?;
            let id = cluster.submit(Target::Workers, Loads::NAME, &body)?;
            let merged = Merged::of(cluster.wait(id)?, &task, &mut pushed)?;
            if *rate == Rate::Closed {
                capacity = Some(merged.per_second());
            }
            let about = About { rate: *rate, skew: args.skew, task: &task, config: &config };
            for row in merged.rows(&about) {
                report.row(&row)?;
            }
            for doubt in merged.doubts(&task).into_iter().filter(|_| !common.smoke) {
                report.say(format_args!("{what}: {doubt}"));
            }
            report.step();
            number += 1;
        }
    }
    cluster.shutdown()?;
    report.end("answers")
}

/// A table, and requests to it, for each size.
fn tables(args: &LoadArgs, smoke: bool) -> Result<Vec<Task>> {
    let keys = args.keys as usize;
    let unit = size_of::<i32>() * keys;
    let task = |(number, bytes): (usize, &usize)| {
        let bytes = *bytes;
        if !bytes.is_multiple_of(unit) {
            return Err(Usage(format!(
                "{} cannot be shared out among {keys} keys of whole 4-byte values; take a \
                 multiple of {unit}",
                size(&bytes)
            ))
            .into());
        }
        let row_bytes = (bytes / keys) as u64;
        let fits = (TABLE_BYTES / row_bytes).min(TABLE_KEYS).max(keys as u64);
        let zipf = match args.skew {
            Skew::Zipf(exponent) => Some(exponent),
            Skew::New => None,
        };
        let table_keys = args.table_keys.unwrap_or(if zipf.is_some() { fits } else { NEW_KEYS });
        if table_keys < keys as u64 {
            return Err(Usage(format!(
                "a request of {keys} keys needs a table of as many; --table-keys has {table_keys}"
            ))
            .into());
        }
        Ok(Task {
            number: 0,
            table: number as u32 + 1,
            table_keys,
            zipf,
            keys,
            bytes,
            pushes: if zipf.is_some() { args.pushes } else { 1.0 },
            rate: None,
            arrivals: args.arrivals,
            window: args.window as usize,
            seconds: if smoke { SMOKE_SECONDS } else { args.duration },
            seed: args.seed,
        })
    };
    args.sizes.iter().enumerate().map(task).collect()
}

/// Keys of a table, and its bytes, unless a flag names the keys.
const TABLE_KEYS: u64 = 1 << 16;
const TABLE_BYTES: u64 = 256 << 20;
/// Keys of a table for requests that name new ones, few of which ever get a row.
const NEW_KEYS: u64 = 1 << 40;
