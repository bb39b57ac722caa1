//! Goal: filters save most of the bytes of a training run, and change nothing in its result.
//! Method: a small click set, trained without filters and with all of them on an embedded cluster
//! over sockets, whose transport counts bytes.

use crate::support::example;
use crate::vans;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, Van};
use caravan_learn::data::clicks::{self, Clicks, Format};
use caravan_learn::dbpg::{self, FilterTraffic, Filters, Job, Tail, Trained};
use example::Example;

fn data(test: &str, rows: u64) -> PathBuf {
    let out = std::env::temp_dir().join(format!("caravan-filters-{test}-{}", std::process::id()));
    let settings = Clicks { rows, test_rows: 1, slots: 25, ..Clicks::default() };
    let stop = Default::default();
    clicks::generate(&settings, &out, Format::Compact, NonZeroUsize::MIN, &stop).unwrap();
    std::fs::remove_file(out.with_extension("test")).unwrap();
    out.with_extension("train")
}

/// On sockets, where all traffic is counted: in shared memory long values are read in place.
fn train(file: &Path, list: &str, change: impl FnOnce(&mut Job)) -> Trained {
    let config = ClusterConfig { servers: 2, workers: 2, threads: 1, node: vans::node(Van::Tcp) };
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let filters = list.parse::<Filters>().unwrap();
    let mut job = Job { filters, ..Job::new(vec![file.to_path_buf()], 10.0) };
    change(&mut job);
    let trained = dbpg::train(&mut cluster, &job, |_| {}).unwrap();
    cluster.shutdown().unwrap();
    assert!(trained.converged, "{list}");
    trained
}

fn row<'a>(trained: &'a Trained, filter: &str) -> &'a FilterTraffic {
    trained.traffic.iter().find(|row| row.filter == filter).unwrap()
}

#[test]
fn all_filters_leave_a_tenth_of_the_bytes_and_all_of_the_objective() {
    let file = data("all", 10_000);
    let none = train(&file, "none", |_| {});
    let bytes = |trained: &Trained| {
        let all = row(trained, "all");
        (all.worker_bytes_out, all.server_bytes_out)
    };
    // First-order passes are what filters were made for; second-order steps have few bytes anyway.
    let (from_workers, from_servers) = bytes(&train(&file, "none", |job| job.newton = None));
    for list in ["all", "all,quantize=3", "screen,kkt", "kkt,quantize=2", "key-cache,zero,snappy"] {
        let some = train(&file, list, |_| {});
        let off = some.objective / none.objective - 1.0;
        assert!(off.abs() < 1e-8, "{list}: {off}");
        let (workers, servers) = bytes(&some);
        assert!(workers < from_workers && servers < from_servers, "{list}");
        if list == "all" {
            assert!(
                10 * workers < from_workers && 10 * servers < from_servers,
                "{:?}",
                some.traffic
            );
            let chain: Vec<_> = some.traffic.iter().filter(|row| row.filter != "all").collect();
            assert!(chain.len() > 6, "{chain:?}");
            for pair in chain.windows(2) {
                assert_eq!(pair[0].worker_bytes_out, pair[1].worker_bytes_in, "{pair:?}");
                assert_eq!(pair[0].server_bytes_out, pair[1].server_bytes_in, "{pair:?}");
            }
        }
    }
    // Without second-order steps, passes alone must reach the optimum, with rounded gradients at
    // first; a delay changes nothing.
    let plain = train(&file, "all,quantize=1", |job| {
        (job.newton, job.delay, job.epsilon) = (None, 2, 1e-8);
    });
    let off = plain.objective / none.objective - 1.0;
    assert!(off.abs() < 1e-5, "{off}");
    std::fs::remove_file(file).unwrap();
}

/// Lossy filters are off at the end: the same optimum, whatever was omitted before.
#[test]
fn what_is_skipped_or_not_significant_moves_no_optimum() {
    let file = data("lossy", 4_000);
    let none = train(&file, "none", |_| {});
    let lists = [
        ("screen,kkt,skip=0.5", "skip"),
        ("kkt,significant=8", "significant"),
        ("skip=0.7,significant=4,key-cache,snappy", "skip"),
        ("screen,kkt,zero,narrow,quantize=2,key-cache,snappy,skip=0.5", "skip"),
    ];
    for (list, filter) in lists {
        let some = train(&file, list, |_| {});
        let off = some.objective / none.objective - 1.0;
        assert!(off.abs() < 1e-8, "{list}: {off}");
        let row = row(&some, filter);
        assert!(row.worker_bytes_out < row.worker_bytes_in, "{list}: {row:?}");
        let passes = train(&file, list, |job| {
            (job.newton, job.epsilon, job.exact_delay) = (None, 1e-9, filter == "skip");
            job.exact_delay &= !list.contains("significant");
            job.delay = 2;
        });
        let off = passes.objective / none.objective - 1.0;
        assert!(off.abs() < 1e-5, "{list}, by passes alone: {off}");
    }
    std::fs::remove_file(file).unwrap();
}

/// Now and then a pass skips everything, and so changes nothing; that must not end the run.
#[test]
fn no_run_ends_with_a_pass_that_left_something_out() {
    let file = std::env::temp_dir().join(format!("caravan-skips-{}.train", std::process::id()));
    std::fs::write(&file, Example::new().libsvm()).unwrap();
    for seed in 0..4 {
        let some = train(&file, &format!("skip=0.02,seed={seed}"), |job| {
            (job.proximal.lambda, job.newton, job.reset_every) = (1.0, None, Some(1));
        });
        let off = some.objective / Example::OPTIMUM - 1.0;
        assert!(off.abs() < 1e-6, "seed {seed}: {off}");
    }
    std::fs::remove_file(file).unwrap();
}

/// The rows of a file without the features that at most `frequency` of them have.
fn without_tail(file: &Path, frequency: u8) -> PathBuf {
    let text = std::fs::read_to_string(file).unwrap();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    text.lines().flat_map(|row| row.split(' ').skip(1)).for_each(|entry| {
        *counts.entry(entry).or_default() += 1;
    });
    let is_kept = |entry: &&str| counts.get(entry).is_none_or(|n| *n > usize::from(frequency));
    let rows = text.lines().map(|row| row.split(' ').filter(is_kept).collect::<Vec<_>>().join(" "));
    let path = file.with_extension(format!("above-{frequency}"));
    std::fs::write(&path, rows.collect::<Vec<_>>().join("\n")).unwrap();
    path
}

#[test]
fn rare_features_are_dropped_as_if_they_had_never_been() {
    let file = data("tail", 4_000);
    let with = |tail| move |job: &mut Job| job.tail = Some(tail);
    let all = train(&file, "screen,kkt", |_| {});
    assert_eq!(all.columns[1], 0);
    // Features of at most lambda rows are 0 in every solution.
    let rare = train(&file, "screen,kkt", with(Tail::new(9)));
    assert!((rare.objective / all.objective - 1.0).abs() < 1e-8, "{rare:?}");
    assert!(rare.columns[1] > rare.columns[0] / 2, "most are rare: {:?}", rare.columns);
    let row = row(&rare, "tail");
    assert!(row.worker_bytes_in > 2 * row.worker_bytes_out, "{row:?}");
    // With enough cells no count is too large, and the remaining features are exactly those of the
    // reduced file.
    let exactly = Tail { hashes: 4, ratio: 100.0, ..Tail::new(100) };
    let few = train(&file, "all", with(exactly));
    let cut = without_tail(&file, 100);
    let expected = train(&cut, "screen,kkt", |_| {});
    assert!((few.objective / expected.objective - 1.0).abs() < 1e-8, "{few:?}");
    assert_eq!(few.columns[0] - few.columns[1], expected.columns[0]);
    let rise = few.objective / all.objective - 1.0;
    assert!(rise > 1e-6, "features that count are gone as well: {rise}");
    // With very few cells, features are counted too often but never too rarely.
    let rough = train(&file, "all,key-cache", with(Tail { ratio: 1e-6, ..exactly }));
    assert!(rough.columns[1] <= few.columns[1], "{:?} and {:?}", rough.columns, few.columns);
    assert!(rough.objective <= few.objective * (1.0 + 1e-9), "{rough:?}");
    for file in [file, cut] {
        std::fs::remove_file(file).unwrap();
    }
}
