//! Goal: trainers train while their rows are read, to the same bit as after it; blocks that the
//! driver gives out reach workers that have their files, each row once, also in jobs from outside.
//! Method: files of several blocks of text on clusters of threads, against `trainer::serial`; a
//! pipe whose writer waits for training; workers with folders of their own.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_kv::node::{run_server, run_worker};
use caravan_kv::{
    Apps, Cluster, ClusterConfig, Handles, Launch, NodeConfig, TableSpec, ValueType, Van,
};
use caravan_learn::data::{Examples, Labels, ReadAhead, Shard};
use caravan_learn::sgd::{self, Sgd};
use caravan_learn::trainer::{
    self, Job, Part, Progress, Reading, RowsOf, Step, Trained, Trainer, serial, train,
};
use caravan_learn::{fm, linreg};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Keys of a row: so many that a few hundred rows are several blocks of text.
const KEYS: u64 = 200;

/// Rows `rows` of a file; each has its number among its keys.
fn text(rows: std::ops::Range<u64>) -> String {
    let row = |row: u64| {
        let label = if (row * 7).is_multiple_of(3) { "+1" } else { "-1" };
        let keys = (0..KEYS).map(|at| format!(" {}:{}", at * 40 + row % 37, (row + at) % 5 + 1));
        format!("{label}{} {}:1\n", keys.collect::<String>(), 100_000 + row)
    };
    rows.map(row).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn apps() -> Apps {
    let apps = trainer::app::<Sgd>(Apps::default());
    let apps = trainer::app::<Counts>(trainer::app::<linreg::LinReg>(apps));
    trainer::app::<Writes>(trainer::app::<fm::Fm>(apps))
}

fn on_threads(workers: usize) -> Cluster {
    let config = ClusterConfig { servers: 2, workers, ..ClusterConfig::default() };
    Cluster::launch(&config, Launch::Threads(Handles::default(), apps())).unwrap()
}

fn settings(files: &[PathBuf]) -> sgd::Settings {
    let mut settings = sgd::Settings::new(files.to_vec());
    settings.descent.handle = "adagrad".to_owned();
    settings.descent.options = json!({"rate": 0.1});
    settings.descent.batch = 7;
    settings
}

/// The run of one thread, and that of a cluster.
fn equals_serial<T: Trainer>(job: &Job<T::Settings>, workers: usize, readings: &[Reading]) {
    let alone = serial::<T>(job, &Handles::default(), |_| {}).unwrap();
    let mut cluster = on_threads(workers);
    for &reading in readings {
        let job = Job { reading, ..job.clone() };
        let found = train::<T>(&mut cluster, &job, |_| {}).unwrap();
        assert!(found.rows == alone.rows, "{} on {workers} workers, {reading}", T::NAME);
    }
    cluster.shutdown().unwrap();
}

#[test]
fn what_is_read_ahead_trains_as_what_is_read_first_to_the_bit() {
    let folder = folder();
    // Blocks of text end within batches and parts.
    let files =
        [write(folder.path(), "a", &text(0..230)), write(folder.path(), "b", &text(230..400))];
    let job = Job { passes: 2, parts: Some(5), ..Job::new(settings(&files)) };
    equals_serial::<Sgd>(&job, 1, &[Reading::Ahead, Reading::First]);
    equals_serial::<Sgd>(&job, 3, &[Reading::Ahead]);
    // Batches longer than a part.
    let mut long = Job { parts: None, ..job.clone() };
    long.settings.descent.batch = 1000;
    equals_serial::<Sgd>(&long, 1, &[Reading::Ahead]);
    let mut settings = fm::Settings::new(files.to_vec());
    settings.descent.batch = 16;
    let job = Job { parts: Some(3), ..Job::new(settings) };
    equals_serial::<fm::Fm>(&job, 2, &[Reading::Ahead]);
    // Keys are announced ahead of the steps.
    let consistency = "sparse-ssp:0:3".parse().unwrap();
    let job = Job { consistency, ..Job::new(self::settings(&files)) };
    equals_serial::<Sgd>(&Job { parts: Some(1), ..job }, 1, &[Reading::Ahead]);
}

/// Adds up how often it has seen each row, and counts its steps.
struct Counts {
    rows: Vec<u64>,
}

static STEPS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Files(Vec<PathBuf>);

impl Trainer for Counts {
    const NAME: &'static str = "counts";
    type Settings = Files;
    type Value = i64;

    fn table(_: &Files) -> TableSpec {
        TableSpec::new(1, "counts", ValueType::I64, 1)
    }

    fn load(_: &Files, _: &Part) -> Result<Self, String> {
        Ok(Counts { rows: Vec::new() })
    }

    fn rows_of(settings: &Files) -> Option<RowsOf<'_>> {
        Some(RowsOf { files: &settings.0, labels: Labels::Classes, step: 1 })
    }

    fn add_rows(&mut self, rows: &Examples) -> Result<(), String> {
        self.rows.extend(rows.iter().map(|row| row.keys[row.keys.len() - 1]));
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.rows.len() as u64
    }

    fn keys(&self, _pass: u64, step: u64) -> Vec<u64> {
        vec![self.rows[step as usize]]
    }

    fn step(&mut self, step: &mut Step<'_, i64>) {
        STEPS.fetch_add(1, Ordering::Relaxed);
        step.update[0] = 1;
        step.sums.examples += 1;
    }
}

/// Goal: steps are taken while the file has not been read to its end. Method: a pipe whose writer
/// writes its second half when steps have been taken.
#[test]
fn steps_are_taken_before_the_file_has_ended() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let to = pipe.clone();
    let before = STEPS.load(Ordering::Relaxed);
    let writer = std::thread::spawn(move || {
        let mut to = std::fs::OpenOptions::new().write(true).open(to).unwrap();
        to.write_all(text(0..300).as_bytes()).unwrap();
        let began = Instant::now();
        while STEPS.load(Ordering::Relaxed) < before + 100 {
            assert!(began.elapsed() < Duration::from_secs(60), "it waits for the end of the file");
            std::thread::sleep(Duration::from_millis(1));
        }
        to.write_all(text(300..400).as_bytes()).unwrap();
    });
    let mut cluster = on_threads(1);
    let mut examples = Vec::new();
    let job = Job { passes: 2, ..Job::new(Files(vec![pipe])) };
    let trained = train::<Counts>(&mut cluster, &job, |it| examples.push(it.sums.examples));
    writer.join().unwrap();
    assert_eq!(examples, [400, 400]);
    each_row_once_a_pass(&trained.unwrap(), 400, 2);
    cluster.shutdown().unwrap();
}

/// Pushes a row in each step, and reads none.
struct Pushes {
    rows: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Wide {
    files: Vec<PathBuf>,
    width: u32,
}

/// What [`Pushes`] has pushed and servers have applied.
static APPLIED: AtomicU64 = AtomicU64::new(0);

impl Trainer for Pushes {
    const NAME: &'static str = "pushes";
    const READS: bool = false;
    type Settings = Wide;
    type Value = i64;

    fn table(settings: &Wide) -> TableSpec {
        TableSpec::new(1, "pushes", ValueType::I64, settings.width).handle("applied")
    }

    fn load(_: &Wide, _: &Part) -> Result<Self, String> {
        Ok(Pushes { rows: 0 })
    }

    fn rows_of(settings: &Wide) -> Option<RowsOf<'_>> {
        Some(RowsOf { files: &settings.files, labels: Labels::Classes, step: 1 })
    }

    fn add_rows(&mut self, rows: &Examples) -> Result<(), String> {
        self.rows += rows.rows() as u64;
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.rows
    }

    fn keys(&self, _pass: u64, _step: u64) -> Vec<u64> {
        vec![0]
    }

    fn step(&mut self, step: &mut Step<'_, i64>) {
        step.update.fill(1);
    }
}

/// Goal: while a worker waits for rows, its pushes go on to the servers, where other workers may
/// wait for them. Method: a file, and a pipe whose writer waits until servers have applied a push
/// for each row of the file; with short pushes, which leave at the next poll, and with long ones,
/// which need leave of the server first.
#[test]
fn pushes_arrive_while_their_worker_waits_for_rows() {
    let applied = |_: &TableSpec| {
        |_: u64, _: &mut [i64], _: &[i64]| {
            APPLIED.fetch_add(1, Ordering::Relaxed);
        }
    };
    let handles = Handles::default().with_rule::<i64, _>("applied", applied);
    let node = NodeConfig { van: Van::Tcp, ..NodeConfig::default() };
    let config = ClusterConfig { node, ..ClusterConfig::default() };
    for width in [1, 16 << 10] {
        let apps = trainer::app::<Pushes>(Apps::default());
        let launch = Launch::Threads(handles.clone(), apps);
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        let folder = folder();
        let file = write(folder.path(), "file", &text(0..2));
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let to = pipe.clone();
        APPLIED.store(0, Ordering::Relaxed);
        let writer = std::thread::spawn(move || {
            let mut to = std::fs::OpenOptions::new().write(true).open(to).unwrap();
            let began = Instant::now();
            let mut is_late = false;
            while APPLIED.load(Ordering::Relaxed) < 2 && !is_late {
                is_late = began.elapsed() > Duration::from_secs(20);
                std::thread::sleep(Duration::from_millis(1));
            }
            to.write_all(text(2..9).as_bytes()).unwrap();
            assert!(!is_late, "pushes wait for rows");
        });
        let job = Job::new(Wide { files: vec![file, pipe], width });
        train::<Pushes>(&mut cluster, &job, |_| {}).unwrap();
        assert_eq!(APPLIED.load(Ordering::Relaxed), 9);
        writer.join().unwrap();
        cluster.shutdown().unwrap();
    }
}

fn each_row_once_a_pass(trained: &Trained<i64>, rows: u64, passes: i64) {
    assert_eq!(trained.rows.keys, (100_000..100_000 + rows).collect::<Vec<_>>());
    assert!(trained.rows.values.iter().all(|count| *count == passes), "{:?}", trained.rows.values);
}

#[test]
fn blocks_of_files_train_each_row_once_a_pass_under_every_model() {
    let folder = folder();
    let packed = folder.path().join("packed.gz");
    let files =
        [write(folder.path(), "a", &text(0..150)), write(folder.path(), "b", &text(150..151))];
    std::fs::write(&packed, gzip(text(151..200).as_bytes())).unwrap();
    let files = [&files[..], &[packed]].concat();
    let mut cluster = on_threads(3);
    for model in ["bsp", "ssp:1", "asp", "delay:2"] {
        let consistency = model.parse().unwrap();
        let reading = Reading::Near(9000);
        let job = Job { passes: 3, consistency, reading, ..Job::new(Files(files.clone())) };
        let mut examples = Vec::new();
        let trained = train::<Counts>(&mut cluster, &job, |it| examples.push(it.sums.examples));
        each_row_once_a_pass(&trained.unwrap(), 200, 3);
        assert_eq!(examples, [200; 3], "{model}");
    }
    // One worker takes the blocks in their order, and so trains as ever.
    cluster.shutdown().unwrap();
    let job = Job { passes: 2, ..Job::new(settings(&files)) };
    equals_serial::<Sgd>(&job, 1, &[Reading::Near(5000)]);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Workers that see other folders, as on other machines, and train for a job from outside.
#[test]
fn blocks_go_to_the_workers_that_have_their_files_also_in_a_job_from_outside() {
    let folders = [folder(), folder()];
    let [first, second] = folders.each_ref().map(|folder| folder.path());
    for folder in [first, second] {
        write(folder, "both", &text(0..40));
    }
    write(first, "first", &text(40..60));
    write(second, "second", &text(60..120));
    let scheduler = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let node = NodeConfig { scheduler, ..NodeConfig::default() };
    let config = ClusterConfig { workers: 2, node: node.clone(), ..ClusterConfig::default() };
    let mut nodes = Vec::new();
    for (rank, folder) in [first, second].into_iter().enumerate() {
        let node = NodeConfig { data_root: Some(folder.to_owned()), ..node.clone() };
        nodes.push(std::thread::spawn(move || run_worker(&node, Some(rank), &apps(), false)));
    }
    let server = node.clone();
    let server = move || run_server(&server, Some(0), 1, &Handles::default(), false);
    nodes.push(std::thread::spawn(server));
    let own = Cluster::launch(&config, Launch::External).unwrap();
    let mut outside = Cluster::attach(&own.config().node, "outside").unwrap();
    let files = |names: &[&str]| Files(names.iter().map(PathBuf::from).collect());
    let job = Job { passes: 2, ..Job::new(files(&["both", "first", "second"])) };
    let near = Job { reading: Reading::Near(3000), ..job.clone() };
    let mut passes: Vec<Progress> = Vec::new();
    let trained = train::<Counts>(&mut outside, &near, |pass| passes.push(pass.clone()));
    each_row_once_a_pass(&trained.unwrap(), 120, 2);
    assert!(passes.iter().all(|pass| pass.sums.examples == 120));
    // Without blocks a worker needs all files.
    let error = train::<Counts>(&mut outside, &job, |_| {}).unwrap_err().to_string();
    assert!(error.contains("cannot open"), "{error}");
    let refused = |outside: &mut Cluster, names: &[&str], why: &str| {
        let job = Job { settings: files(names), ..near.clone() };
        let error = train::<Counts>(outside, &job, |_| {}).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(&mut outside, &["both", "nowhere"], "nowhere");
    write(second, "first", &text(40..50));
    refused(&mut outside, &["both", "first"], "first has");
    write(first, "wrong", &format!("{}+1 x\n", text(0..40)));
    refused(&mut outside, &["wrong", "both"], "found `x`");
    train::<Counts>(&mut outside, &near.clone(), |_| {}).unwrap_err(); // first differs still
    std::fs::remove_file(second.join("first")).unwrap();
    let trained = train::<Counts>(&mut outside, &near, |_| {});
    each_row_once_a_pass(&trained.unwrap(), 120, 2);
    outside.shutdown().unwrap();
    own.shutdown().unwrap();
    nodes.into_iter().for_each(|node| node.join().unwrap().unwrap());
}

/// Goal: blocks of one run write the second class in one way, whoever reads them. Method: as many
/// blocks of each way as there are workers, in one file and in two.
#[test]
fn two_ways_to_write_the_second_class_are_refused_across_readers() {
    let folder = folder();
    let zeros = text(40..80).replace("-1 ", "0 ");
    let (minus, both) = (text(0..40), text(0..40) + &zeros);
    let [minus, zeros, both] = [("minus", &minus), ("zeros", &zeros), ("both", &both)]
        .map(|(name, text)| write(folder.path(), name, text));
    let mut cluster = on_threads(2);
    for files in [vec![minus.clone(), zeros.clone()], vec![both]] {
        let reading = Reading::Near(20_000);
        let job = Job { reading, ..Job::new(settings(&files)) };
        let error = train::<Sgd>(&mut cluster, &job, |_| {}).unwrap_err().to_string();
        assert!(error.contains("a third class beside 1 and"), "{error}");
    }
    for file in [minus, zeros] {
        let job = Job { reading: Reading::Near(20_000), ..Job::new(settings(&[file])) };
        train::<Sgd>(&mut cluster, &job, |_| {}).unwrap();
    }
    cluster.shutdown().unwrap();
}

/// Its first part reads the file, and then writes into it before others read theirs.
struct Writes;

impl Trainer for Writes {
    const NAME: &'static str = "writes";
    type Settings = Files;
    type Value = i64;

    fn table(_: &Files) -> TableSpec {
        TableSpec::new(1, "writes", ValueType::I64, 1)
    }

    fn load(settings: &Files, part: &Part) -> Result<Self, String> {
        if part.number == 0 {
            std::fs::write(&settings.0[0], text(0..2)).unwrap();
        }
        Ok(Writes)
    }

    fn files(settings: &Files) -> &[PathBuf] {
        &settings.0
    }

    fn steps(&self) -> u64 {
        1
    }

    fn keys(&self, _pass: u64, _step: u64) -> Vec<u64> {
        vec![0]
    }

    fn step(&mut self, step: &mut Step<'_, i64>) {
        step.update[0] = 1;
    }
}

#[test]
fn a_file_that_changes_between_readers_ends_the_run() {
    let folder = folder();
    let file = write(folder.path(), "rows", &text(0..1));
    let mut cluster = on_threads(2);
    let job = Job { parts: Some(2), ..Job::new(Files(vec![file])) };
    let error = train::<Writes>(&mut cluster, &job, |_| {}).unwrap_err().to_string();
    assert!(error.contains("rows has changed while it was read"), "{error}");
    cluster.shutdown().unwrap();
}

#[test]
fn a_wrong_row_that_is_read_late_is_named_and_others_go_on() {
    let folder = folder();
    let bad = write(folder.path(), "bad", &format!("{}+1 5:x\n", text(0..400)));
    let good = write(folder.path(), "good", &text(0..50));
    let mut cluster = on_threads(2);
    let job = |file: &PathBuf| Job::new(settings(std::slice::from_ref(file)));
    for _ in 0..2 {
        let error = train::<Sgd>(&mut cluster, &job(&bad), |_| {}).unwrap_err().to_string();
        assert!(error.contains("bad:401:6: found `x`"), "{error}");
        train::<Sgd>(&mut cluster, &job(&good), |_| {}).unwrap();
    }
    let refused = |error: caravan_learn::Error, why: &str| {
        let error = error.to_string();
        assert!(error.contains(why), "{error}");
    };
    let near = Job { reading: Reading::Near(100), ..job(&good) };
    let many = Job { parts: Some(4), ..near.clone() };
    refused(train::<Sgd>(&mut cluster, &many, |_| {}).unwrap_err(), "take 2 parts instead of 4");
    let sparse = Job { consistency: "sparse-ssp:0:1".parse().unwrap(), ..near };
    refused(train::<Sgd>(&mut cluster, &sparse, |_| {}).unwrap_err(), "blocks make them vary");
    let whole = linreg::Settings { files: vec![good], features: 8, rate: 1.0, steps: 1 };
    let whole = Job { reading: Reading::Near(100), ..Job::new(whole) };
    let error = train::<linreg::LinReg>(&mut cluster, &whole, |_| {}).unwrap_err();
    refused(error, "reads its data whole");
    cluster.shutdown().unwrap();
}

/// Goal: reading while training takes at most 1.1 of the longer of the two. Method: rounds in turn
/// of reading alone, training on rows in memory, and both; prints their medians. To train is to
/// make batches and to take steps; batches are what a serial run loads beyond reading. Needs two
/// cores that nobody else uses, and an optimised build.
#[test]
#[ignore = "measures time: run it alone, in an optimised build"]
fn reading_while_training_takes_as_long_as_the_longer() {
    let folder = folder();
    let file = write(folder.path(), "rows", &text(0..20_000));
    let files = [file];
    let mut job = Job::new(settings(&files));
    job.settings.descent.batch = 500;
    let mut cluster = on_threads(1);
    let mut rounds: Vec<[f64; 4]> = Vec::new();
    for _ in 0..9 {
        let began = Instant::now();
        let reader = ReadAhead::start(&files, Shard::ALL, 4).unwrap();
        while let Some(part) = reader.next() {
            part.unwrap();
        }
        let reads = began.elapsed().as_secs_f64();
        let none = Job { passes: 0, ..job.clone() };
        let loads = serial::<Sgd>(&none, &Handles::default(), |_| {}).unwrap().load_seconds;
        let first = Job { reading: Reading::First, ..job.clone() };
        let steps = train::<Sgd>(&mut cluster, &first, |_| {}).unwrap().seconds;
        let both = train::<Sgd>(&mut cluster, &job, |_| {}).unwrap();
        rounds.push([reads, (loads - reads).max(0.0), steps, both.load_seconds + both.seconds]);
    }
    let median = |of: &dyn Fn(&[f64; 4]) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let [reads, batches, steps, both] = [0, 1, 2, 3].map(|at| median(&|round| round[at]));
    let ratio = median(&|[reads, batches, steps, both]| both / reads.max(batches + steps));
    println!(
        "{reads:.3} s of reading, {batches:.3} of batches and {steps:.3} of steps, {both:.3} of \
         both: {ratio:.3}"
    );
    assert!(ratio <= 1.1, "{ratio}");
    cluster.shutdown().unwrap();
}
