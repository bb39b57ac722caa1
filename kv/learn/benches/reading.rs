//! Time of a first pass that trains while its rows are read, beside that of reading and that of
//! training alone: `cargo bench -p caravan-learn --bench reading`.
//!
//! One worker and one server train `sgd` on a cluster of threads, in turn with `--read first`,
//! which has the time of both apart, and with `--read ahead`. Rows come from a file, whose reading
//! is parsing; from a packed one; and from a pipe, where reading is mostly a wait, as for a slow
//! disk. A figure is the median of all rounds; the last column is the time of both together as a
//! multiple of the longer of the two.
//!
//! Batches are made by the thread that trains. With `--read first` that is before the time of
//! training, and so within that of reading.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::sgd::{Settings, Sgd};
use caravan_learn::trainer::{self, Job, Reading, Trained};
use flate2::Compression;
use flate2::write::GzEncoder;

const ROUNDS: usize = 7;
const ROWS: u64 = 100_000;
const ROW_KEYS: u64 = 60;

/// Bytes that the pipe is fed at a time.
const CHUNK: usize = 64 << 10;

/// Bytes that the pipe is fed in a second.
const RATE: f64 = 40e6;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Times of one run.
struct Times {
    reading: f64,
    training: f64,
    together: f64,
}

fn main() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let text = text()?;
    let [file, packed, pipe] = ["file", "packed.gz", "pipe"].map(|name| folder.path().join(name));
    fs::write(&file, &text)?;
    let mut packs = GzEncoder::new(fs::File::create(&packed)?, Compression::fast());
    packs.write_all(text.as_bytes())?;
    packs.finish()?;
    if !Command::new("mkfifo").arg(&pipe).status()?.success() {
        return Err("mkfifo has failed".into());
    }
    let apps = trainer::app::<Sgd>(Apps::default());
    let config = ClusterConfig { servers: 1, workers: 1, ..ClusterConfig::default() };
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps))?;
    println!("{ROWS} rows, {} bytes, {ROUNDS} rounds; load {}", text.len(), load()?);
    println!(
        "{:8} {:>6} {:>9} {:>9} {:>9} {:>6}",
        "rows of", "batch", "reading", "training", "both", "ratio"
    );
    for batch in [250, 2000] {
        for (name, path) in [("file", &file), ("packed", &packed), ("pipe", &pipe)] {
            let rounds: Vec<Times> = (0..ROUNDS)
                .map(|_| round(&mut cluster, path, batch, (name == "pipe").then_some(&text)))
                .collect::<Outcome<_>>()?;
            let [reading, training, together] = [
                median(rounds.iter().map(|it| it.reading)),
                median(rounds.iter().map(|it| it.training)),
                median(rounds.iter().map(|it| it.together)),
            ];
            let ratio = median(rounds.iter().map(|it| it.together / it.reading.max(it.training)));
            println!(
                "{name:8} {batch:6} {reading:8.3}s {training:8.3}s {together:8.3}s {ratio:6.2}"
            );
        }
    }
    Ok(cluster.shutdown()?)
}

/// Trains with rows that are read first, and with rows that are read meanwhile.
fn round(
    cluster: &mut Cluster,
    path: &Path,
    batch: usize,
    feed: Option<&String>,
) -> Outcome<Times> {
    let first = train(cluster, path, batch, feed, Reading::First)?;
    let ahead = train(cluster, path, batch, feed, Reading::Ahead)?;
    assert!(first.rows == ahead.rows, "both train the same model");
    let (reading, training) = (first.load_seconds, first.seconds);
    Ok(Times { reading, training, together: ahead.load_seconds + ahead.seconds })
}

fn train(
    cluster: &mut Cluster,
    path: &Path,
    batch: usize,
    feed: Option<&String>,
    reading: Reading,
) -> Outcome<Trained<f64>> {
    let mut settings = Settings::new(vec![path.to_owned()]);
    settings.descent.batch = batch;
    let job = Job { passes: 1, reading, ..Job::new(settings) };
    thread::scope(|scope| {
        let fed = feed.map(|text| scope.spawn(|| write_slowly(path.to_owned(), text)));
        let trained = trainer::train::<Sgd>(cluster, &job, |_| {})?;
        if let Some(fed) = fed {
            fed.join().map_err(|_| "the pipe's writer has panicked")??;
        }
        Ok(trained)
    })
}

/// Writes text to a pipe, no faster than [`RATE`].
fn write_slowly(pipe: PathBuf, text: &str) -> io::Result<()> {
    let mut pipe = OpenOptions::new().write(true).open(pipe)?;
    let began = Instant::now();
    for (at, chunk) in text.as_bytes().chunks(CHUNK).enumerate() {
        let due = Duration::from_secs_f64((at * CHUNK) as f64 / RATE);
        thread::sleep(due.saturating_sub(began.elapsed()));
        pipe.write_all(chunk)?;
    }
    Ok(())
}

/// LIBSVM text of ones.
fn text() -> Result<String, std::fmt::Error> {
    let mut state = 1_u64;
    let mut draw = move |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut text = String::new();
    for _ in 0..ROWS {
        write!(text, "{}", if draw(2) == 0 { "-1" } else { "+1" })?;
        let mut key = 0;
        for _ in 0..ROW_KEYS {
            key += 1 + draw(2000);
            write!(text, " {key}:1")?;
        }
        text.push('\n');
    }
    Ok(text)
}

fn load() -> io::Result<String> {
    let load = fs::read_to_string("/proc/loadavg")?;
    Ok(load.split(' ').next().unwrap_or_default().to_owned())
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
