//! Goal: scripts find the rows that bench/docs/rows.md promises.
//! Method: the program prints rows of each kind; their fields, in order, are those of the page.

use crate::support;
use std::collections::{BTreeMap, BTreeSet};

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, Placement, TableSpec, ValueType};
use caravan_van::KeyRange;
use serde_json::Value;
use support::text;

/// The rows of the page, by kind: their fields in order.
fn documented() -> BTreeMap<String, Vec<String>> {
    let page = include_str!("../docs/rows.md");
    let rows = page.lines().filter(|line| line.starts_with('{'));
    rows.map(|row| (kind(row), fields(row))).collect()
}

/// What a row says of itself, which must be JSON.
fn kind(row: &str) -> String {
    let row: Value = serde_json::from_str(row).expect(row);
    row["row"].as_str().unwrap().to_owned()
}

/// The names of an object's own fields, in the order they are written in.
fn fields(row: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut parts = row.split('"');
    // Every other part stands between quotes; no row has an escaped quote.
    while let Some(outside) = parts.next() {
        depth += outside.matches(['{', '[']).count();
        depth -= outside.matches(['}', ']']).count();
        let Some(quoted) = parts.next() else { break };
        let is_name = parts.clone().next().is_some_and(|rest| rest.starts_with(':'));
        if depth == 1 && is_name {
            names.push(quoted.to_owned());
        }
    }
    names
}

/// Runs `caravan` and holds every row against the page; returns the kinds that came.
fn held(line: &str) -> BTreeSet<String> {
    let documented = documented();
    let output = support::caravan(line).output().unwrap();
    assert!(output.status.code() == Some(0), "{line}: {}", text(&output.stderr));
    let stdout = text(&output.stdout);
    for row in stdout.lines() {
        assert_eq!(Some(&fields(row)), documented.get(&kind(row)), "bench/docs/rows.md: {row}");
    }
    stdout.lines().map(kind).collect()
}

fn set(kinds: &str) -> BTreeSet<String> {
    kinds.split(' ').map(str::to_owned).collect()
}

#[test]
fn the_names_of_fields_are_read_in_order() {
    let row = r#"{"row":"a","b":[{"c":1,"d":"e"}],"f":{"g":[1,2]},"h":"i: j"}"#;
    assert_eq!(fields(row), ["row", "b", "f", "h"]);
}

#[test]
fn the_page_has_every_kind_of_row_once() {
    let page = include_str!("../docs/rows.md");
    let rows = page.lines().filter(|line| line.starts_with('{')).count();
    let kinds = "bandwidth calibration checkpoint clustered comparison consistency counted distances estimate fabric failover file finding history inserts job latency layout link load \
                 machine model move node pass paused perplexity placement predict progress rate rdma-device result \
                 rmse scale stage table traffic trained van verbs-bandwidth verbs-latency verdict wait";
    assert_eq!(documented().into_keys().collect::<BTreeSet<_>>(), set(kinds));
    assert_eq!(rows, documented().len());
}

#[test]
fn benches_and_doctor_print_the_rows_of_the_page() {
    let bench = held("bench all --smoke --van tcp --op push,pull --json");
    assert_eq!(bench, set("machine latency bandwidth rate"));
    let placement = held("bench placement --smoke --van tcp --json");
    assert_eq!(placement, set("machine placement"));
    // More workers than any machine has cores: one thing at least is wrong.
    let doctor = held("doctor --workers 10000 --json");
    assert!(doctor.is_superset(&set("machine layout van finding")), "{doctor:?}");
}

/// The fields of many workers, which the page names below the rows of one.
#[test]
fn many_workers_have_four_more_fields() {
    for bench in ["bandwidth", "rate"] {
        let line = format!(
            "bench {bench} --smoke --van tcp --workers 2 --servers 2 --op push,pull,push-pull \
             --sizes 64,128KiB --keys 4 --json"
        );
        let output = support::caravan(&line).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let stdout = text(&output.stdout);
        let more = ["workers", "servers", "threads", "slowest_over_mean"];
        for row in stdout.lines().skip(1) {
            let one: Vec<String> =
                fields(row).into_iter().filter(|name| !more.contains(&name.as_str())).collect();
            assert_eq!(Some(&one), documented().get(bench), "{row}");
            assert_eq!(fields(row).len(), one.len() + more.len(), "{row}");
        }
        assert_eq!(stdout.lines().count(), 1 + 3 * 2);
    }
}

#[test]
fn compared_runs_print_the_rows_of_the_page() {
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/records/compare/base.jsonl");
    let compared = held(&format!("compare {record} {record} --json"));
    assert_eq!(compared, set("comparison verdict"));
}

#[test]
fn the_bench_under_load_prints_the_rows_of_the_page() {
    let line = "bench load --smoke --van tcp --workers 2 --rate closed,20%,500 --keys 3 \
                --sizes 12,120KiB --table-keys 50 --json";
    assert_eq!(held(line), set("machine load"));
    let new = "bench load --smoke --van tcp --workers 2 --servers 2 --skew new --rate closed,500 \
               --keys 3 --sizes 12 --json";
    assert_eq!(held(new), set("machine load"));
}

#[test]
fn the_bench_of_links_prints_the_rows_of_the_page() {
    let line = "bench fabric --smoke --van tcp --workers 3 --servers 3 --rounds 2 --json";
    assert_eq!(held(line), set("machine link fabric"));
}

#[test]
fn the_bench_of_failover_prints_the_rows_of_the_page() {
    assert_eq!(held("bench failover --smoke --van tcp --json"), set("machine failover"));
}

#[test]
fn the_bench_of_sketches_prints_the_rows_of_the_page() {
    let line = "bench sketch --smoke --van tcp --workers 2 --servers 2 --batch 1000 --json";
    assert_eq!(held(line), set("machine inserts"));
}

#[test]
fn the_bench_of_waiting_prints_the_rows_of_the_page() {
    assert_eq!(held("bench wait --smoke --van tcp --rounds 1 --json"), set("machine wait"));
}

#[test]
fn simulated_clusters_print_the_rows_of_the_page() {
    // So few rows do not come near the optimum, and need not.
    let scale = "bench scale --smoke --nodes 4 --target 1 --json";
    assert_eq!(held(scale), set("machine model scale"));
    let calibration = held("bench scale --smoke --nodes 4 --calibrate --json");
    assert!(calibration.contains("calibration"), "{calibration:?}");
}

#[test]
fn the_bench_of_models_prints_the_rows_of_the_page() {
    let line = "bench consistency --smoke --servers 1 --nodes 2 --sparse-nodes 3 --dimensions 1000 \
                --sparsity 0.01 --set-up sparsity,workers --straggle 0.5:2 --json";
    assert_eq!(held(line), set("machine consistency"));
    // Of real processes, too.
    assert_eq!(held(&format!("{line} --van tcp --in-process")), set("machine consistency"));
}

#[test]
fn training_and_predicting_print_the_rows_of_the_page() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let clicks = folder.join("rows-of-the-page").display().to_string();
    assert_eq!(held(&format!("generate clicks {clicks} --smoke --json")), set("file"));
    let data = format!("--data {clicks}.train --test {clicks}.test");
    let train = format!("train dbpg {data} --lambda 1 --model {clicks}.model --json");
    assert_eq!(held(&train), set("progress traffic result"));
    let predict = format!("predict --model {clicks}.model --data {clicks}.test --json");
    assert_eq!(held(&predict), set("predict"));
    let steps = "--consistency ssp:2 --workers 2 --option rate=0.3,l1=1";
    for algorithm in ["sgd", "fm --passes 1"] {
        let line = format!("train {algorithm} {data} {steps} --model {clicks}.model --json");
        let line = line.replace(if algorithm == "sgd" { "none" } else { ",l1=1" }, "");
        assert_eq!(held(&line), set("pass trained"));
        assert_eq!(held(&predict), set("predict"));
    }
}

#[test]
fn ratings_and_chunks_print_the_rows_of_the_page() {
    let folder = support::folder("rows-of-ratings");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let rating = |at: usize| format!("{} {} {}\n", at % 7, at % 5, at % 3);
    let ratings = write("ratings", (0..100).map(rating).collect());
    let model = folder.join("model").display().to_string();
    let data = format!("--data {ratings} --test {ratings} --workers 2 --model {model} --json");
    assert_eq!(held(&format!("train mf {data}")), set("pass trained"));
    assert_eq!(held(&format!("predict --model {model} --data {ratings} --json")), set("rmse"));
    let example = |at: usize| format!("{} 0:1 1:{} 2:{}\n", at % 2, at % 3, at % 5);
    let examples = write("examples", (0..50).map(example).collect());
    let flags = "--consistency data:1 --workers 2 --rate 0.2 --passes 2 --json";
    let linreg = format!("train linreg --data {examples} --model {model} {flags}");
    assert_eq!(held(&linreg), set("pass trained"));
    assert_eq!(held(&format!("predict --model {model} --data {examples} --json")), set("predict"));
}

#[test]
fn points_print_the_rows_of_the_page() {
    let folder = support::folder("rows-of-points");
    let path = |name: &str| folder.join(name).display().to_string();
    let [points, wider, model, out] = ["points", "wider", "model", "out"].map(path);
    std::fs::write(&points, "1 0:1\n1 0:2\n1 0:3\n1 1:11\n1 1:12\n1 1:13\n").unwrap();
    let stages = "--clusters 2 --workers 2 --stages 1:6:4,2:6:2";
    let train = format!("train kmeans --data {points} {stages} --model {model} --json");
    assert_eq!(held(&train), set("stage clustered"));
    let predict = |data: &str| format!("predict --model {model} --data {data} --out {out} --json");
    assert_eq!(held(&predict(&points)), set("distances"));
    let found = |at: usize| {
        let lines = std::fs::read_to_string(&out).unwrap();
        let line = lines.lines().nth(at).unwrap().split_once('\t').unwrap();
        (line.0.to_owned(), line.1.parse::<f64>().unwrap())
    };
    let [first, last] = [0, 5].map(found);
    assert!(first.0 != last.0 && first.1 == 1.0 && last.1 == 1.0, "{first:?} {last:?}");
    // A coordinate that no centre has.
    std::fs::write(&wider, "1 0:2 7:3\n").unwrap();
    assert_eq!(held(&predict(&wider)), set("distances"));
    assert_eq!(found(0), (first.0, 9.0));
    for (stages, status, why) in [
        ("2:6", 2, "is not like 4:1000:20"),
        ("1:6:0", 2, "is not like 4:1000:20"),
        ("1:6:1,3:6:1", 1, "stage 1 wants 3 workers, and there are 2"),
    ] {
        let line =
            format!("train kmeans --data {points} --workers 2 --clusters 2 --stages {stages}");
        let output = support::caravan(&line).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(status) && said.contains(why), "{said}");
    }
}

#[test]
fn topics_print_the_rows_of_the_page() {
    let folder = support::folder("rows-of-topics");
    let documents = folder.join("documents").display().to_string();
    let text = ["3 0:4 1:2 2:1\n", "2 3:3 4:2\n", "2 0:1 2:5\n"].concat().repeat(20);
    std::fs::write(&documents, text).unwrap();
    let model = folder.join("model").display().to_string();
    let flags = "--topics 2 --consistency ssp:1 --workers 2 --passes 5 --json";
    let train = format!("train lda --data {documents} --test {documents} --model {model} {flags}");
    assert_eq!(held(&train), set("pass trained"));
    let predict = format!("predict --model {model} --data {documents} --json");
    assert_eq!(held(&predict), set("perplexity"));
}

#[test]
fn a_checked_history_prints_the_row_of_the_page() {
    let folder = support::folder("checked-histories");
    let write = |name: &str, events: &str| {
        let head = r#"caravan-history 1 {"model":{"ssp":{"staleness":0}},"workers":2}"#;
        let path = folder.join(name);
        std::fs::write(&path, format!("{head}\nj 1 1 0 -\nj 2 1 0 -\n{events}\n")).unwrap();
        path.display().to_string()
    };
    let good = write("good", "w 1 1 0 -\nw 2 1 1 -\nr 1 2 2 -");
    assert_eq!(held(&format!("check-history {good} {good} --json")), set("history"));
    let bad = write("bad", "w 1 1 0 -\nr 1 2 1 -\nw 2 1 1 -");
    let output = support::caravan(&format!("check-history {good} {bad} --json")).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{said}");
    assert!(said.contains("bad, line 6 (w 2 1 1 -), after"), "{said}");
    assert!(said.contains("bad, line 5"), "{said}");
}

#[test]
fn commands_to_a_running_cluster_print_the_rows_of_the_page() {
    let config = ClusterConfig { servers: 2, workers: 1, ..ClusterConfig::default() };
    let handles = caravan_learn::sketch::handle(Handles::default());
    let cluster = Cluster::launch(&config, Launch::Threads(handles, Apps::default())).unwrap();
    let mut client = cluster.client().unwrap();
    let placement = Placement::Cut((0..4).map(|at| (at * 25, 0)).collect());
    let spec = TableSpec::new(3, "weights", ValueType::I64, 1).placement(placement);
    let table = client.admin().create_table(&spec.keys(KeyRange::new(0, 100).unwrap())).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    let pushed = client.push(table, &keys, &vec![7i64; 100]).unwrap();
    client.wait(pushed).unwrap();
    let run = |line: &str| {
        let output = support::of_cluster(&cluster, line).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, rows, said) = run("rebalance --json");
    assert_eq!((status, rows.lines().count()), (Some(0), 2), "{rows}{said}");
    for row in rows.lines() {
        assert_eq!(Some(&fields(row)), documented().get("move"), "{row}");
    }
    let (status, rows, said) = run("status --json");
    assert_eq!((status, rows.lines().count()), (Some(0), 2), "{rows}{said}");
    for (row, kind) in rows.lines().zip(["job", "table"]) {
        assert_eq!(Some(&fields(row)), documented().get(kind), "{row}");
    }
    let checkpoints = support::folder("checkpoint-rows");
    let create = format!("checkpoint create {} --json", checkpoints.display());
    let (status, rows, said) = run(&create);
    assert_eq!((status, rows.lines().count()), (Some(0), 1), "{rows}{said}");
    assert_eq!(Some(&fields(rows.trim_end())), documented().get("checkpoint"), "{rows}");
    let (status, _, said) = run("sketch create --table 7 --cells 1024");
    assert_eq!(status, Some(0), "{said}");
    let file = checkpoints.join("keys");
    std::fs::write(&file, "3 5\n9\n\n3\n").unwrap();
    let (_, rows, said) = run(&format!("sketch insert --table 7 {} --json", file.display()));
    assert_eq!(Some(&fields(rows.trim_end())), documented().get("counted"), "{rows}{said}");
    let (_, rows, said) = run("sketch query --table 7 3 9 3 4 --json");
    let counts: Vec<&str> = rows.lines().collect();
    let row = |key, count| format!(r#"{{"row":"estimate","key":{key},"count":{count}}}"#);
    assert_eq!(counts, [row(3, 6), row(9, 1), row(3, 6), row(4, 0)], "{said}");
    assert_eq!(Some(&fields(counts[0])), documented().get("estimate"));
    let (status, _, said) = run("sketch drop --table 7");
    assert_eq!(status, Some(0), "{said}");
    let (status, rows, said) = run("rebalance --drain 0 --json");
    assert_eq!((status, rows.lines().count()), (Some(0), 2), "{rows}{said}");
    let (status, _, said) = run("rebalance --drain 0,1");
    assert!(status == Some(1) && said.contains("leave one"), "{said}");
    let pulled = client.pull(table, &keys).unwrap();
    assert_eq!(client.wait(pulled).unwrap().values::<i64>(), vec![7; 100]);
    assert!(client.info().shards(table).unwrap().iter().all(|shard| shard.server == 1));
    drop(client);
    cluster.shutdown().unwrap();
}

#[test]
fn a_running_cluster_prints_the_rows_of_the_page() {
    let config = ClusterConfig { servers: 2, workers: 1, ..ClusterConfig::default() };
    let launch = Launch::Processes(env!("CARGO_BIN_EXE_caravan").into());
    let cluster = Cluster::launch(&config, launch).unwrap();
    let began = std::time::Instant::now();
    // Rates need two heartbeats of each node, which come once a second.
    let rows = loop {
        let mut top = support::of_cluster(&cluster, "top --once --interval 1.5 --json");
        let output = top.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        for row in text(&output.stdout).lines() {
            assert_eq!(Some(&fields(row)), documented().get("node"), "{row}");
        }
        let rows = support::rows_in(&output);
        if rows.iter().all(|row| row["seconds"].as_f64() > Some(0.0)) {
            break rows;
        }
        assert!(began.elapsed() < support::PATIENCE, "{rows:?}");
    };
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(row["state"] == "up" && row["memory_mib"].as_f64() > Some(1.0), "{row}");
    }
    cluster.shutdown().unwrap();
}

#[test]
fn a_device_prints_the_rows_of_the_page() {
    let Ok(device) = std::env::var("CARAVAN_TEST_DEVICE") else {
        eprintln!("skipped: needs an RDMA device, named by CARAVAN_TEST_DEVICE");
        return;
    };
    let verbs = held(&format!("bench verbs --device {device} --smoke --json --sizes 8"));
    assert_eq!(verbs, set("machine verbs-latency verbs-bandwidth"));
    assert!(held("doctor --json").contains("rdma-device"));
}
