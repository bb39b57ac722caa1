//! `caravan sketch`: counts of many keys in little memory, on the servers of a running cluster.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use caravan_kv::{Table, TableSpec, ValueType, Worker};
use caravan_learn::sketch::{self, HANDLE, Inserts, Options};
use caravan_van::KeyRange;
use serde::Serialize;

use crate::cli::{
    Common, CountType, CreateSketch, InsertIntoSketch, MergeSketches, QuerySketch, SketchCommand,
    SketchTable,
};
use crate::cluster;
use crate::report::{Report, Row};

/// What a run of `caravan sketch insert` has counted.
#[derive(Debug, Serialize)]
struct Counted {
    table: u32,
    lines: u64,
    /// Pairs of key and count that were sent.
    pairs: u64,
    bytes_sent: u64,
    bits_per_pair: f64,
    seconds: f64,
}

impl Row for Counted {
    const KIND: &'static str = "counted";

    fn text(&self) -> String {
        let Counted { table, lines, pairs, bits_per_pair, seconds, .. } = self;
        format!(
            "table {table}: {lines} lines counted, {pairs} pairs of {bits_per_pair:.1} bits, \
             {seconds:.3} s"
        )
    }
}

/// The count of a key, or more.
#[derive(Debug, Serialize)]
struct Estimate {
    key: u64,
    count: u64,
}

impl Row for Estimate {
    const KIND: &'static str = "estimate";

    fn text(&self) -> String {
        format!("{} {}", self.key, self.count)
    }
}

/// Runs `caravan sketch`.
///
/// # Errors
/// If the cluster cannot be reached, or has no such sketch; names the line that is no key. What
/// stands before it may have been counted.
pub(crate) fn run(common: &Common, command: &SketchCommand) -> Result<()> {
    let node = cluster::config(common)?.node;
    let mut report = Report::new(common.format(), 0);
    cluster::with_client(&node, &cluster::name_of_one("sketch"), |client| match command {
        SketchCommand::Create(args) => create(client, args),
        SketchCommand::Insert(args) => insert(client, args, &mut report),
        SketchCommand::Query(args) => query(client, args, &mut report),
        SketchCommand::Merge(args) => merge(client, args),
        SketchCommand::Halve(args) => {
            let table = find(client, args)?;
            Ok(sketch::halve(client, table)?)
        }
        SketchCommand::Drop(args) => {
            let table = find(client, args)?;
            Ok(client.admin().drop_table(table)?)
        }
    })
}

/// Joins the table of a sketch.
fn find(client: &mut Worker, args: &SketchTable) -> Result<Table> {
    let tables = client.admin().list_tables(&args.namespace)?;
    let is_it = |spec: &&TableSpec| spec.id == args.table && spec.namespace == args.namespace;
    let spec = tables.iter().find(is_it).with_context(|| {
        let SketchTable { table, namespace } = args;
        format!(
            "there is no table {table} in namespace {namespace:?}: caravan sketch create makes one"
        )
    })?;
    ensure!(
        spec.handle == HANDLE,
        "table {} is no sketch: its handle is {}",
        spec.name,
        spec.handle
    );
    Ok(client.admin().create_table(spec)?)
}

fn create(client: &mut Worker, args: &CreateSketch) -> Result<()> {
    let CreateSketch { table, cells, hashes, value, keys, replicas } = args;
    let value = match value {
        CountType::U8 => ValueType::U8,
        CountType::U32 => ValueType::U32,
        CountType::U64 => ValueType::U64,
    };
    let keys = KeyRange::new(0, keys.unwrap_or(0)).unwrap_or(KeyRange::ALL);
    let options = Options { cells: *cells, hashes: *hashes as u8 };
    let spec = sketch::spec(table.table, &format!("sketch {}", table.table), value, keys, options);
    client.admin().create_table(&spec.namespace(&table.namespace).replicas(*replicas))?;
    Ok(())
}

fn insert(client: &mut Worker, args: &InsertIntoSketch, report: &mut Report) -> Result<()> {
    let table = find(client, &args.table)?;
    let (began, sent) = (client.now(), client.info().counters().bytes_sent);
    let mut inserts = Inserts::new(client, table, args.batch as usize)?;
    let mut lines = 0;
    let mut count = |name: &str, input: &mut dyn BufRead| {
        each_line(name, input, |words| {
            let (key, count) = match *words {
                [key] => (number(key)?, 1),
                [key, count] => (number(key)?, number(count)?),
                _ => bail!("take a key, and a count behind it if that is not 1"),
            };
            lines += 1;
            Ok(inserts.add(client, key, count)?)
        })
    };
    match &args.files[..] {
        [] => count("standard input", &mut io::stdin().lock())?,
        files => files.iter().try_for_each(|file| count(&named(file), &mut open(file)?))?,
    }
    inserts.finish(client)?;
    let (pairs, bytes_sent) = (inserts.pairs(), client.info().counters().bytes_sent - sent);
    report.row(&Counted {
        table: args.table.table,
        lines,
        pairs,
        bytes_sent,
        bits_per_pair: 8.0 * bytes_sent as f64 / pairs.max(1) as f64,
        seconds: (client.now() - began).as_secs_f64(),
    })
}

fn query(client: &mut Worker, args: &QuerySketch, report: &mut Report) -> Result<()> {
    let table = find(client, &args.table)?;
    let mut asked = args.keys.clone();
    if asked.is_empty() {
        each_line("standard input", &mut io::stdin().lock(), |words| match *words {
            [key] => {
                asked.push(number(key)?);
                Ok(())
            }
            _ => bail!("take one key"),
        })?;
    }
    let counts = sketch::estimates(client, table, &asked)?;
    let rows = asked.into_iter().zip(counts).map(|(key, count)| Estimate { key, count });
    rows.into_iter().try_for_each(|row| report.row(&row))
}

fn merge(client: &mut Worker, args: &MergeSketches) -> Result<()> {
    let from = find(client, &args.table)?;
    let into = find(client, &SketchTable { table: args.into, ..args.table.clone() })?;
    Ok(sketch::merge(client, from, into)?)
}

fn named(file: &Path) -> String {
    file.display().to_string()
}

fn open(file: &Path) -> Result<BufReader<File>> {
    let opened = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    Ok(BufReader::new(opened))
}

/// Most bytes of a line.
const LINE_BYTES_MAX: u64 = 1 << 10;

/// Calls `with` with the words of each line that has any; its errors get the line's place.
fn each_line(
    name: &str,
    input: &mut dyn BufRead,
    mut with: impl FnMut(&[&str]) -> Result<()>,
) -> Result<()> {
    let mut line = String::new();
    for at in 1_u64.. {
        line.clear();
        let place = || format!("{name}, line {at}");
        let read = io::Read::take(&mut *input, LINE_BYTES_MAX).read_line(&mut line);
        let bytes = read.with_context(place)? as u64;
        if bytes == 0 {
            break;
        }
        let is_whole = bytes < LINE_BYTES_MAX || line.ends_with('\n');
        ensure!(is_whole, "{} is longer than {LINE_BYTES_MAX} bytes", place());
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words.is_empty() {
            with(&words).with_context(place)?;
        }
    }
    Ok(())
}

fn number(word: &str) -> Result<u64> {
    word.parse().with_context(|| format!("{word:?} is no number from 0 to {}", u64::MAX))
}
