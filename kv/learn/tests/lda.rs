//! Goal: topics on a cluster keep their counts exactly, are the serial ones to the bit under BSP,
//! as good under SSP, and those that were planted. Method: real workers and servers as threads,
//! against `trainer::serial`; documents of bars (Griffiths and Steyvers, 2004), and of Reuters if
//! they are there.

use crate::support;
use crate::vans;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use caravan_kv::consistency::Model;
use caravan_kv::filter::Draws;
use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::data::Shard;
use caravan_learn::lda::{Corpus, Lda, Settings, Topics, vocabulary};
use caravan_learn::model::RowModel;
use caravan_learn::trainer::{self, Job, Rows, Trained, serial, train};

/// Side of the square whose rows and columns are topics.
const SIDE: u32 = 5;

/// Documents of 60 words, each of two bars of ten.
fn bars(name: &str) -> PathBuf {
    let mut draws = Draws::new(3, 0);
    let mut below = |bound: u32| (draws.next_unit() * f64::from(bound)) as u32;
    let mut text = String::new();
    for _ in 0..300 {
        let topics = [below(2 * SIDE), below(2 * SIDE)];
        let mut counts = [0_u32; (SIDE * SIDE) as usize];
        for _ in 0..60 {
            let topic = topics[below(2) as usize];
            let at = below(SIDE);
            let word = if topic < SIDE { topic * SIDE + at } else { at * SIDE + topic - SIDE };
            counts[word as usize] += 1;
        }
        let pairs = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        write!(text, "{}", pairs.clone().count()).unwrap();
        pairs.for_each(|(word, count)| write!(text, " {word}:{count}").unwrap());
        text.push('\n');
    }
    let path = std::env::temp_dir().join(format!("caravan-bars-{name}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

fn on_cluster(workers: usize, job: &Job<Settings>) -> Trained<i32> {
    let node = vans::node(vans::any());
    let config = ClusterConfig { servers: 2, workers, threads: 1, node };
    let apps = trainer::app::<Lda>(Apps::default());
    let mut cluster = Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap();
    let trained = train::<Lda>(&mut cluster, job, |pass| {
        assert_eq!(pass.sums.examples, tokens(&job.settings.files));
    });
    cluster.shutdown().unwrap();
    trained.unwrap()
}

fn tokens(files: &[PathBuf]) -> u64 {
    Corpus::read(files, Shard::ALL).unwrap().words.len() as u64
}

/// Σ_w n_wk = n_k, Σ_k n_k is the number of tokens, and no count is below 0.
fn check_counts(rows: &Rows<i32>, tokens: u64) {
    let (words, totals) = rows.values.split_at(rows.values.len() - rows.width);
    assert_eq!(totals.len(), rows.width);
    for (topic, total) in totals.iter().enumerate() {
        let sum: i32 = words.iter().skip(topic).step_by(rows.width).sum();
        assert_eq!(sum, *total, "topic {topic}");
    }
    assert!(rows.values.iter().all(|count| *count >= 0));
    assert_eq!(totals.iter().map(|&total| total as u64).sum::<u64>(), tokens);
}

fn job(file: &Path, topics: u32, passes: u64) -> Job<Settings> {
    let files = vec![file.to_owned()];
    let words = vocabulary(&files).unwrap();
    let settings = Settings { topics, step_words: 500, ..Settings::new(files, words) };
    Job { passes, ..Job::new(settings) }
}

#[test]
fn runs_under_bsp_are_the_serial_one_to_the_bit() {
    let file = bars("bits");
    let mut job = job(&file, 10, 8);
    job.settings.step_words = 20;
    for (parts, workers) in [(1, 1), (4, 1), (4, 3)] {
        let job = Job { parts: Some(parts), ..job.clone() };
        let alone = serial::<Lda>(&job, &Handles::default(), |_| {}).unwrap();
        let trained = on_cluster(workers, &job);
        check_counts(&trained.rows, 300 * 60);
        assert_eq!(trained.rows, alone.rows, "{parts} parts on {workers} workers");
        let gap = trained.objective / alone.objective - 1.0;
        assert!(gap.abs() < 1e-12, "losses are added in another order: {gap:e}");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn planted_bars_are_recovered_and_foretell_documents() {
    let file = bars("planted");
    let mut job = job(&file, 10, 150);
    job.settings.alpha = 1.0;
    job.settings.step_words = 20;
    // Sampling can end with two bars in one topic, so the draws must not depend on when servers
    // answer.
    job.consistency = Model::Bsp;
    let trained = on_cluster(2, &job);
    check_counts(&trained.rows, 300 * 60);
    let settings = serde_json::json!({"alpha": 1.0, "beta": 0.01});
    let topics = Topics::of(&RowModel::new("lda", settings, &trained)).unwrap();
    let shares: Vec<&[f64]> = (0..SIDE * SIDE).map(|word| topics.shares(word).unwrap()).collect();
    for bar in 0..SIDE {
        let row = |at: u32| bar * SIDE + at;
        let column = |at: u32| at * SIDE + bar;
        for words in [(0..SIDE).map(row).collect::<Vec<_>>(), (0..SIDE).map(column).collect()] {
            let mass = |topic| words.iter().map(|&word| shares[word as usize][topic]).sum::<f64>();
            let most = (0..10).map(mass).fold(0.0, f64::max);
            assert!(most > 0.9, "bar of {words:?}: {most}");
        }
    }
    // Two bars of five words each: a word has 5 to 10 alternatives, not 25.
    let corpus = Corpus::read(&job.settings.files, Shard::ALL).unwrap();
    let foretold = topics.foretell(&corpus);
    assert_eq!((foretold.documents, foretold.tokens), (300, 300 * 30));
    assert!((5.0..12.0).contains(&foretold.perplexity), "{foretold:?}");
    std::fs::remove_file(&file).unwrap();
}

/// Sweeps of four workers under SSP against as many serial ones, on documents of the data folder.
fn stale_counts_are_as_good(documents: &str, topics: u32, sweeps: u64) {
    let Some(folder) = support::data_folder() else { return };
    let file = folder.join(documents);
    let job = job(&file, topics, sweeps);
    let alone = serial::<Lda>(&job, &Handles::default(), |_| {}).unwrap();
    let stale = Job { consistency: Model::Ssp { staleness: 3 }, ..job.clone() };
    let trained = on_cluster(4, &stale);
    check_counts(&trained.rows, tokens(&job.settings.files));
    let gap = trained.objective / alone.objective - 1.0;
    println!("{documents}: {} and alone {}: {gap:e}", trained.objective, alone.objective);
    assert!(gap.abs() < 0.005, "{gap}");
}

#[test]
fn stale_counts_come_to_the_likelihood_of_the_serial_run() {
    stale_counts_are_as_good("lda_reuters395.ldac.xz", 20, 40);
}

/// Slow without optimisation; run it with `--release -- --ignored`.
#[test]
#[ignore = "large"]
fn all_of_reuters_comes_to_the_likelihood_of_the_serial_run() {
    stale_counts_are_as_good("reuters21578.ldac.xz", 100, 30);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let file = bars("refused");
    let good = job(&file, 4, 1);
    let refused = |change: &dyn Fn(&mut Settings), says: &str| {
        let mut job = good.clone();
        change(&mut job.settings);
        let error = serial::<Lda>(&job, &Handles::default(), |_| {}).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(&|it| it.topics = 0, "0 topics");
    refused(&|it| it.topics = 1 << 16, "65536 topics");
    refused(&|it| it.alpha = 0.0, "alpha is 0");
    refused(&|it| it.beta = f64::NAN, "beta is NaN");
    refused(&|it| it.step_words = 0, "at least 1 word");
    refused(&|it| it.words = 24, "word 24 is not below 24");
    refused(&|it| it.files = vec!["/no/such".into()], "/no/such");
    std::fs::remove_file(&file).unwrap();
}
