//! Goal: neither Ctrl-C nor SIGTERM costs work: the model is saved and the run can go on from it; a
//! second Ctrl-C ends it at once. A node that is killed ends the run, and nothing is left behind.
//! Method: real processes and real signals.

#![cfg(target_os = "linux")]

use crate::support;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{PATIENCE, caravan, ended, folder, signal};

fn run(line: &str) -> Output {
    caravan(line).output().unwrap()
}

fn start(line: &str) -> Child {
    caravan(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A folder with a click set that first-order steps take long for, and the words that train on it.
fn training(test: &str) -> (PathBuf, String) {
    let folder = folder(test);
    let clicks = folder.join("clicks");
    let made = run(&format!("generate clicks {} --rows 4000 --test-rows 10", clicks.display()));
    assert!(made.status.success(), "{made:?}");
    let data = format!("{}.train", clicks.display());
    (folder, format!("train dbpg --data {data} --lambda 0.5 --workers 2 --json"))
}

/// Reads rows until one of that kind.
fn row(output: &mut impl BufRead, kind: &str) -> Value {
    for line in output.lines() {
        let row: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if row["row"] == kind {
            return row;
        }
    }
    panic!("no {kind} row");
}

/// Processes that `parent` has started.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| *line == format!("PPid:\t{parent}"))
    };
    pids.filter(is_child).collect()
}

/// Those of them with `role` in their command line.
fn children_as(role: &str, parent: u32) -> Vec<u32> {
    let words = |pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut found = children(parent);
    found.retain(|pid| words(*pid).split('\0').any(|word| word == role));
    found
}

fn assert_gone(pids: &[u32]) {
    let began = Instant::now();
    let left = || pids.iter().filter(|pid| Path::new(&format!("/proc/{pid}/exe")).exists()).count();
    while left() > 0 {
        assert!(began.elapsed() < PATIENCE, "{} nodes are left behind", left());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interrupted_run_goes_on_from_its_model() {
    let (folder, train) = training("interrupted");
    let whole = run(&format!("{train} --epsilon 1e-10"));
    let whole = row(&mut &whole.stdout[..], "result");

    let model = folder.join("saved.model");
    let _ = std::fs::remove_file(&model);
    // Only first-order steps, and never content: it would go on for long.
    let mut slow = start(&format!(
        "{train} --no-newton --epsilon 0 --passes 1000000 --resume {}",
        model.display()
    ));
    let mut stdout = BufReader::new(slow.stdout.take().unwrap());
    row(&mut stdout, "progress");
    row(&mut stdout, "progress");
    let nodes = children(slow.id());
    assert_eq!(nodes.len(), 3);
    assert!(!model.exists(), "nothing is written before");
    signal("TERM", slow.id());
    let interrupted = row(&mut stdout, "result");
    let status = ended(&mut slow, PATIENCE);
    let mut said = String::new();
    slow.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(143), "{said}");
    assert!(said.contains("saved.model") && said.contains("--resume"), "{said}");
    assert_eq!(interrupted["converged"], false);
    assert_gone(&nodes);
    let text = std::fs::read_to_string(&model).unwrap();
    assert!(text.contains("interrupted after") && text.lines().count() > 10, "{text}");

    let resumed = run(&format!("{train} --epsilon 1e-10 --resume {}", model.display()));
    assert!(resumed.status.success(), "{resumed:?}");
    let first = row(&mut &resumed.stdout[..], "progress");
    let last = row(&mut &resumed.stdout[..], "result");
    let objective = |row: &Value| row["objective"].as_f64().unwrap();
    assert!(objective(&first) <= objective(&interrupted), "{first} after {interrupted}");
    let off = objective(&last) / objective(&whole) - 1.0;
    assert!(off.abs() < 1e-8, "{off:e}");
    assert!(std::fs::read_to_string(&model).unwrap().contains("converged after"));
}

/// A server and a worker are killed, one after the other; new clusters go on to the same optimum.
#[test]
fn a_run_goes_on_without_nodes_that_are_killed() {
    let (_, train) = training("restarted");
    let whole = run(&format!("{train} --epsilon 1e-9"));
    assert!(whole.status.success(), "{whole:?}");
    let whole = row(&mut &whole.stdout[..], "result");
    // A pass takes long enough for a kill to come within the next one.
    let slow = "--delay 1 --blocks 10 --straggle 1:50";
    let mut going = start(&format!("{train} --epsilon 1e-9 {slow} --restarts 2"));
    let mut stdout = BufReader::new(going.stdout.take().unwrap());
    for role in ["server", "worker"] {
        // Each cluster counts its passes from 0.
        while row(&mut stdout, "progress")["pass"] != 0 {}
        let [killed, ..] = children_as(role, going.id())[..] else { panic!("no {role}") };
        signal("KILL", killed);
        assert_gone(&[killed]);
    }
    let last = row(&mut stdout, "result");
    let status = ended(&mut going, PATIENCE);
    let mut said = String::new();
    going.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success() && said.matches("a new cluster goes on").count() == 2, "{said}");
    let objective = |row: &Value| row["objective"].as_f64().unwrap();
    let off = objective(&last) / objective(&whole) - 1.0;
    assert!(off.abs() < 2e-9, "{off:e}");
}

/// Servers with copies are killed, one after the other, in the middle of passes: the same cluster
/// goes on, though no two servers are left that had copies of the same at the beginning.
#[test]
fn a_run_with_replicas_outlives_servers() {
    let (_, train) = training("replicas");
    let train = format!("{train} --servers 3 --epsilon 1e-9");
    let whole = run(&train);
    assert!(whole.status.success(), "{whole:?}");
    let whole = row(&mut &whole.stdout[..], "result");
    // A pass takes long enough for a kill to come within the next one, and for copies to be whole
    // at its end.
    let slow = "--delay 1 --blocks 10 --straggle 1:50";
    let mut command = caravan(&format!("{train} {slow} --replicas 1"));
    let command = command.env("CARAVAN_SERVER_LOSSES_MAX", "2");
    let mut going = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(going.stdout.take().unwrap());
    for pass in [0, 2] {
        assert_eq!(row(&mut stdout, "progress")["pass"], pass);
        let [killed, ..] = children_as("server", going.id())[..] else { panic!("no server") };
        signal("KILL", killed);
        assert_eq!(row(&mut stdout, "progress")["pass"], pass + 1, "it goes on");
        assert_gone(&[killed]);
    }
    let last = row(&mut stdout, "result");
    let status = ended(&mut going, PATIENCE);
    let mut said = String::new();
    going.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success(), "{said}");
    let objective = |row: &Value| row["objective"].as_f64().unwrap();
    let off = objective(&last) / objective(&whole) - 1.0;
    assert!(off.abs() < 2e-9, "{off:e}");
}

/// The same of what trains in steps, under a model whose tables have copies.
#[test]
fn a_run_in_steps_with_replicas_outlives_servers() {
    let folder = folder("steps-replicas");
    let data = folder.join("examples");
    // Keys all over the key space, so that each server has some.
    let example = |at: u64| {
        let label = if at * at % 7 < 3 { "+1" } else { "-1" };
        let keys = [(at % 7) << 61, (at % 11) << 60 | 1, (at % 13) << 58 | 2];
        format!("{label} {}:1 {}:1 {}:1\n", keys[0], keys[1], keys[2])
    };
    std::fs::write(&data, (0..2000).map(example).collect::<String>()).unwrap();
    let train = format!(
        "train sgd --data {} --workers 2 --servers 3 --consistency ssp:1 --batch 32 --json",
        data.display()
    );
    let whole = run(&format!("{train} --passes 100"));
    assert!(whole.status.success(), "{whole:?}");
    let whole = row(&mut &whole.stdout[..], "trained");
    // The model is written when the run is told to end, as soon as it has outlived enough.
    let model = folder.join("model");
    let endless = format!("{train} --passes 1000000 --replicas 1 --model {}", model.display());
    let mut command = caravan(&endless);
    let command = command.env("CARAVAN_SERVER_LOSSES_MAX", "2");
    let mut going = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(going.stdout.take().unwrap());
    for _ in 0..2 {
        // Copies are whole by then, the second time of what the first one had.
        (0..30).for_each(|_| drop(row(&mut stdout, "pass")));
        let [killed, ..] = children_as("server", going.id())[..] else { panic!("no server") };
        signal("KILL", killed);
        assert_gone(&[killed]);
    }
    let passed = (0..100).map(|_| row(&mut stdout, "pass")).last().unwrap();
    assert_eq!(passed["examples"], 2000);
    signal("INT", going.id());
    let last = row(&mut stdout, "trained");
    let status = ended(&mut going, PATIENCE);
    let mut said = String::new();
    going.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert_eq!(last["rows"], whole["rows"]);
    // It has trained for longer.
    let ratio = last["objective"].as_f64().unwrap() / whole["objective"].as_f64().unwrap();
    assert!(ratio < 1.05, "{ratio}");
    assert!(model.exists());
}

/// Stages with copies go on without a server that is killed, to the bit.
#[test]
fn stages_with_replicas_outlive_a_server() {
    let folder = folder("stages-replicas");
    let data = folder.join("points");
    let point = |at: u32| format!("+1 0:{} 1:{} 2:{}\n", at * 7 % 31, at * 5 % 43, at * 3 % 17);
    std::fs::write(&data, (0..1000).map(point).collect::<String>()).unwrap();
    let stages = vec!["1:50:40,2:200:40"; 30].join(",");
    let train = format!(
        "train kmeans --data {} --clusters 9 --stages {stages} --workers 2 --servers 3 --json",
        data.display()
    );
    let [whole, model] = ["whole", "model"].map(|name| folder.join(name));
    let output = run(&format!("{train} --model {}", whole.display()));
    assert!(output.status.success(), "{output:?}");
    let mut going = start(&format!("{train} --replicas 1 --model {}", model.display()));
    let mut stdout = BufReader::new(going.stdout.take().unwrap());
    (0..5).for_each(|_| drop(row(&mut stdout, "stage")));
    let [killed, ..] = children_as("server", going.id())[..] else { panic!("no server") };
    signal("KILL", killed);
    let last = row(&mut stdout, "clustered");
    let status = ended(&mut going, PATIENCE);
    let mut said = String::new();
    going.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success(), "{said}");
    assert_eq!(last["stages"], 60);
    let [whole, model] = [whole, model].map(|path| std::fs::read(path).unwrap());
    assert!(whole == model, "another model");
}

/// Where the model has no copies, nothing is started.
#[test]
fn a_run_that_can_have_no_replicas_is_refused_before_it_starts() {
    let data = folder("no-replicas").join("examples");
    std::fs::write(&data, "+1 0:1\n-1 1:1\n").unwrap();
    for (flags, says) in [
        ("--consistency ssp:1 --servers 1", "take 2 servers"),
        ("--consistency ssp:1 --hint spmt", "take the hint ps"),
    ] {
        let refused = run(&format!("train sgd --data {} --replicas 1 {flags}", data.display()));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(says) && said.contains("--replicas"), "{said}");
    }
}

/// All processes of a job are killed; the same command goes on from the weights that it saved.
#[test]
fn a_job_that_is_killed_whole_goes_on_from_what_it_saved() {
    let (folder, train) = training("killed-whole");
    let whole = run(&format!("{train} --epsilon 1e-9"));
    assert!(whole.status.success(), "{whole:?}");
    let whole = row(&mut &whole.stdout[..], "result");
    let model = folder.join("saved.model");
    let resume = format!("{train} --save-every 2 --resume {}", model.display());
    let mut slow = start(&format!("{resume} --no-newton --epsilon 0 --passes 1000000"));
    let mut stdout = BufReader::new(slow.stdout.take().unwrap());
    let saved = loop {
        let pass = row(&mut stdout, "progress");
        if model.exists() {
            break pass;
        }
    };
    let nodes = children(slow.id());
    let all = nodes.iter().copied().chain([slow.id()]).map(|pid| pid.to_string());
    Command::new("kill").arg("-KILL").args(all).status().unwrap();
    ended(&mut slow, PATIENCE);
    assert_gone(&nodes);
    let text = std::fs::read_to_string(&model).unwrap();
    assert!(text.contains("going on after") && text.lines().count() > 10, "{text}");
    let resumed = run(&format!("{resume} --epsilon 1e-9"));
    assert!(resumed.status.success(), "{resumed:?}");
    let first = row(&mut &resumed.stdout[..], "progress");
    let last = row(&mut &resumed.stdout[..], "result");
    let objective = |row: &Value| row["objective"].as_f64().unwrap();
    assert!(saved["pass"].as_u64() >= Some(1) && objective(&first) <= objective(&saved), "{first}");
    let off = objective(&last) / objective(&whole) - 1.0;
    assert!(off.abs() < 2e-9, "{off:e}");
}

#[test]
fn an_interrupted_run_in_stages_keeps_the_model_of_the_last() {
    let folder = folder("stages");
    let [data, model] = ["points", "saved.model"].map(|name| folder.join(name));
    let point = |at: u32| format!("+1 0:{} 1:{}\n", at % 2 * 50 + at % 7, at % 11);
    std::fs::write(&data, (0..300).map(point).collect::<String>()).unwrap();
    // It would go on for long.
    let stages = ["2:50:3"; 5000].join(",");
    let train = format!(
        "train kmeans --data {} --clusters 2 --workers 2 --stages {stages} --json",
        data.display()
    );
    let mut training = start(&format!("{train} --model {}", model.display()));
    let mut stdout = BufReader::new(training.stdout.take().unwrap());
    row(&mut stdout, "stage");
    let nodes = children(training.id());
    assert_eq!(nodes.len(), 3);
    assert!(!model.exists(), "nothing is written before");
    signal("INT", training.id());
    let last = row(&mut stdout, "clustered");
    let status = ended(&mut training, PATIENCE);
    let mut said = String::new();
    training.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("the model so far is in") && said.contains("saved.model"), "{said}");
    assert!((1..5000).contains(&last["stages"].as_u64().unwrap()), "{last}");
    assert_gone(&nodes);
    let line = format!("predict --model {} --data {} --json", model.display(), data.display());
    let predicted = run(&line);
    let predicted = row(&mut &predicted.stdout[..], "distances");
    // The workers' sums are added in another order.
    let [found, trained] = [&predicted, &last].map(|row| row["objective"].as_f64().unwrap());
    assert!((found / trained - 1.0).abs() < 1e-9, "{predicted} of {last}");

    // Without a model there is nothing to keep.
    let mut training = start(&train);
    row(&mut BufReader::new(training.stdout.take().unwrap()), "stage");
    let nodes = children(training.id());
    signal("INT", training.id());
    assert_eq!(ended(&mut training, Duration::from_secs(3)).code(), Some(130));
    assert_gone(&nodes);
}

#[test]
fn a_second_one_ends_it_at_once() {
    let (folder, train) = training("twice");
    let model = folder.join("saved.bin");
    let _ = std::fs::remove_file(&model);
    let line =
        format!("{train} --no-newton --epsilon 0 --passes 1000000 --model {}", model.display());
    let mut run = start(&line);
    row(&mut BufReader::new(run.stdout.take().unwrap()), "progress");
    let nodes = children(run.id());
    // A node that stands still keeps the pass from ending.
    signal("STOP", *nodes.last().unwrap());
    signal("INT", run.id());
    std::thread::sleep(Duration::from_millis(300));
    assert!(run.try_wait().unwrap().is_none(), "it waits for the pass");
    signal("INT", run.id());
    let status = ended(&mut run, Duration::from_secs(3));
    signal("CONT", *nodes.last().unwrap());
    assert_eq!(status.code(), Some(130));
    assert!(!model.exists());
    assert_gone(&nodes);
}

#[test]
fn without_a_file_to_save_to_it_ends_at_once() {
    let (_, train) = training("nowhere");
    let mut run = start(&format!("{train} --no-newton --epsilon 0 --passes 1000000"));
    row(&mut BufReader::new(run.stdout.take().unwrap()), "progress");
    let nodes = children(run.id());
    signal("INT", run.id());
    assert_eq!(ended(&mut run, Duration::from_secs(3)).code(), Some(130));
    assert_gone(&nodes);
}

/// Starts what writes into `folder`, and sends it `name` when there are so many entries.
fn interrupt_at(count: usize, folder: &Path, line: &str, name: &str) -> Option<i32> {
    let mut command = caravan(line);
    command.env("TMPDIR", folder).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    while entries(folder) < count {
        assert!(child.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE, "{line}");
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(name, child.id());
    ended(&mut child, PATIENCE).code()
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Nobody needs half a file. The rows are so many that it is not whole when the signal comes.
#[test]
fn files_that_are_not_whole_go_with_the_run() {
    let folder = folder("half");
    let line = "bench scale --nodes 2 --rows 100000000";
    assert_eq!(interrupt_at(1, &folder, line, "TERM"), Some(143));
    assert_eq!(entries(&folder), 0);
    let line = format!("generate clicks {}/c --rows 1 --test-rows 100000000", folder.display());
    assert_eq!(interrupt_at(2, &folder, &line, "INT"), Some(130));
    assert_eq!(entries(&folder), 1, "only the training file is whole");
    assert!(folder.join("c.train").exists());
}

/// What `bench scale` trains on has no name any more when it trains: however it ends, nothing is
/// left.
#[test]
fn generated_data_goes_with_the_run() {
    let folder = folder("scale");
    let mut command = caravan("bench scale --nodes 64 --rows 20000 --target 0 --json");
    let mut child = command
        .env("TMPDIR", &folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut rows = BufReader::new(child.stdout.take().unwrap());
    row(&mut rows, "machine");
    assert_eq!(entries(&folder), 0);
    row(&mut rows, "model");
    signal("KILL", child.id());
    ended(&mut child, PATIENCE);
    assert_eq!(entries(&folder), 0);
}

#[test]
fn a_killed_node_ends_the_run_and_is_named() {
    for role in ["server", "worker"] {
        let mut run = start("bench latency --sizes 64 --iterations 1000000000 --json");
        let began = Instant::now();
        let nodes = loop {
            let [servers, workers] = ["server", "worker"].map(|role| children_as(role, run.id()));
            let floors = workers.iter().flat_map(|worker| children_as("floor", *worker));
            let nodes = [&servers[..], &workers, &floors.collect::<Vec<_>>()].concat();
            if nodes.len() == 3 {
                break nodes;
            }
            if began.elapsed() > PATIENCE || run.try_wait().unwrap().is_some() {
                run.kill().unwrap();
                panic!("the nodes do not come up: {nodes:?}, {:?}", run.wait_with_output());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        signal("KILL", nodes[usize::from(role == "worker")]);
        let status = ended(&mut run, Duration::from_secs(5));
        let mut said = String::new();
        run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(1));
        assert!(said.contains(&format!("{role} 0")), "{said}");
        assert_gone(&nodes);
    }
}

/// Nobody waits for ever for a server that stands still, whatever the driver is at.
#[test]
fn a_stopped_server_ends_the_training_and_is_named() {
    let (_, train) = training("stopped");
    let endless = format!("{train} --no-newton --epsilon 0 --passes 1000000 --servers 2");
    // As soon as its nodes are there, when they join or load their data, and in the middle of
    // passes.
    for passes in [0, 2] {
        let mut command = caravan(&endless);
        let command =
            command.env("CARAVAN_HEARTBEAT_MS", "200").env("CARAVAN_JOIN_TIMEOUT_S", "10");
        let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(run.stdout.take().unwrap());
        (0..passes).for_each(|_| drop(row(&mut stdout, "progress")));
        let (nodes, second) = nodes_of(&run);
        signal("STOP", second);
        let status = ended(&mut run, PATIENCE);
        let mut said = String::new();
        run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("server 1"), "{said}");
        assert_gone(&nodes);
    }
}

/// The nodes of a run with two servers and two workers, once they are there, and the second server
/// among them.
fn nodes_of(run: &Child) -> (Vec<u32>, u32) {
    let words = |pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let began = Instant::now();
    loop {
        let (nodes, servers) = (children(run.id()), children_as("server", run.id()));
        let second = servers.into_iter().find(|pid| words(*pid).contains("--rank\u{0}1\u{0}"));
        if let Some(second) = second.filter(|_| nodes.len() == 4) {
            return (nodes, second);
        }
        assert!(began.elapsed() < PATIENCE, "the nodes do not come up: {nodes:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
