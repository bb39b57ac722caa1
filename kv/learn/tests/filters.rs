//! Goal: filters take most of the bytes of a training run, and nothing of its result.
//! Method: a small click set, trained with none and with all of them on an embedded cluster over sockets, whose transport counts bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../tests/support/vans.rs"]
mod vans;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, Van};
use caravan_learn::data::clicks::{self, Clicks, Format};
use caravan_learn::dbpg::{self, FilterTraffic, Filters, Job, Trained};

fn data() -> PathBuf {
    let out = std::env::temp_dir().join(format!("caravan-filters-{}", std::process::id()));
    let settings = Clicks { rows: 10_000, test_rows: 1, slots: 25, ..Clicks::default() };
    clicks::generate(&settings, &out, Format::Compact, NonZeroUsize::MIN).unwrap();
    std::fs::remove_file(out.with_extension("test")).unwrap();
    out.with_extension("train")
}

/// On sockets, where all that is sent is counted: in shared memory long values are read where they lie.
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
    let file = data();
    let none = train(&file, "none", |_| {});
    let bytes = |trained: &Trained| {
        let all = row(trained, "all");
        (all.worker_bytes_out, all.server_bytes_out)
    };
    let (from_workers, from_servers) = bytes(&none);
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
    // Without a polish passes alone lead there, by gradients that are rounded first; a delay of any kind changes nothing.
    let plain = train(&file, "all,quantize=1", |job| {
        (job.newton, job.delay, job.epsilon) = (None, 2, 1e-8);
    });
    let off = plain.objective / none.objective - 1.0;
    assert!(off.abs() < 1e-5, "{off}");
    std::fs::remove_file(file).unwrap();
}
