//! Goal: `caravan table` writes rows of a running cluster, and pushes them to another one.
//! Method: servers and commands are processes.

#![cfg(target_os = "linux")]

use crate::support;
use caravan_kv::{Cluster, ClusterConfig, TableSpec, ValueType};
use support::{folder, of_cluster, text};

fn launch(servers: usize) -> Cluster {
    let config = ClusterConfig { servers, workers: 1, ..ClusterConfig::default() };
    support::launch(&config)
}

/// Runs a command; returns its status and what it printed and said.
fn run(cluster: &Cluster, line: &str) -> (bool, String, String) {
    let output = of_cluster(cluster, line).output().unwrap();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn rows_go_to_another_number_of_servers() {
    let folder = folder("tables");
    let keys: Vec<u64> = (0..1000).map(|key| key * (u64::MAX / 1000)).collect();
    let spec = TableSpec::new(3, "weights", ValueType::F64, 2);
    let lines = |range: std::ops::Range<usize>| -> String {
        range.map(|at| format!("{} {} -0.5\n", keys[at], at as f64 / 3.0)).collect()
    };
    let cluster = launch(2);
    let mut client = cluster.client().unwrap();
    let table = client.admin().create_table(&spec).unwrap();
    let values: Vec<f64> = (0..1000).flat_map(|at| [f64::from(at) / 3.0, -0.5]).collect();
    let pushed = client.push(table, &keys, &values).unwrap();
    client.wait(pushed).unwrap();
    let (_, all, said) = run(&cluster, "table export --table 3");
    assert!(all == lines(0..1000), "{said}");
    let part = format!("table export --table 3 --from {} --to {}", keys[10], keys[19]);
    assert_eq!(run(&cluster, &part).1, lines(10..20));
    let file = folder.join("rows");
    let export = format!("table export --table 3 --binary {}", file.display());
    assert_eq!(run(&cluster, &export), (true, String::new(), "1000 rows\n".to_owned()));
    let arrow = folder.join("rows.arrow");
    let export = format!("table export --table 3 --arrow {}", arrow.display());
    let (is_done, _, said) = run(&cluster, &export);
    if cfg!(feature = "arrow") {
        assert!(is_done && said == "1000 rows\n", "{said}");
    } else {
        assert!(!is_done && !arrow.exists() && said.contains("--features arrow"), "{said}");
    }
    let (is_done, _, said) = run(&cluster, "table export --table 4");
    assert!(!is_done && said.contains("there is no table 4"), "{said}");
    let (is_done, _, said) = run(&cluster, "table export --table 3 --from 5 --to 4");
    assert!(!is_done && said.contains("no keys from 5 to 4"), "{said}");
    drop(client);
    cluster.shutdown().unwrap();
    let cluster = launch(3);
    let mut client = cluster.client().unwrap();
    client.admin().create_table(&spec).unwrap();
    let import = format!("table import --table 3 --binary {}", file.display());
    assert_eq!(run(&cluster, &import), (true, String::new(), "1000 rows\n".to_owned()));
    assert!(run(&cluster, "table export --table 3").1 == all);
    if cfg!(feature = "arrow") {
        // What was there is added to.
        let import = format!("table import --table 3 --arrow {}", arrow.display());
        assert_eq!(run(&cluster, &import).2, "1000 rows\n");
        let lines = run(&cluster, "table export --table 3").1;
        assert!(lines.lines().zip(all.lines()).all(|(twice, once)| {
            let values = |line: &str| -> Vec<f64> {
                line.split(' ').skip(1).map(|value| value.parse().unwrap()).collect()
            };
            values(twice).iter().zip(values(once)).all(|(twice, once)| *twice == 2.0 * once)
        }));
    }
    let (is_done, _, said) = run(&cluster, &format!("table import --table 3 {}", file.display()));
    assert!(!is_done && said.contains("row 1"), "{said}");
    drop(client);
    cluster.shutdown().unwrap();
}
