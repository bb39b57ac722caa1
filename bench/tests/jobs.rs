//! Goal: jobs that are submitted to a running cluster end as alone, also several at once; one that
//! is cancelled, or whose command is interrupted, leaves no table, thread or file.
//! Method: nodes and commands are processes; models are compared byte by byte.

#![cfg(target_os = "linux")]

use crate::support;
use std::fs;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use caravan_kv::{Cluster, ClusterConfig};
use support::{PATIENCE, caravan, ended, folder, of_cluster, points, rows_in, signal, text};

fn launch() -> Cluster {
    let config = ClusterConfig { servers: 2, workers: 2, ..ClusterConfig::default() };
    support::launch(&config)
}

fn start(cluster: &Cluster, line: &str) -> Child {
    let mut command = of_cluster(cluster, line);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// The jobs from outside that a cluster has, with the numbers of their tasks.
fn jobs(cluster: &Cluster) -> Vec<(String, u64)> {
    let listed = of_cluster(cluster, "status --json").output().unwrap();
    succeeds(&listed);
    let rows = rows_in(&listed).into_iter().filter(|row| row["row"] == "job" && row["job"] != "");
    rows.map(|row| (row["job"].as_str().unwrap().into(), row["tasks"].as_u64().unwrap())).collect()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn jobs_at_once_end_as_alone() {
    let folder = folder("jobs-at-once");
    let data = points(&folder).display().to_string();
    let work = [
        format!("kmeans --data {data} --clusters 4 --stages 1:50:20,2:250:20 --seed 1"),
        format!("kmeans --data {data} --clusters 3 --stages 2:100:30 --seed 2"),
        format!("sgd --data {data} --parts 2 --passes 3 --mean"),
    ];
    let model = |way: &str, at: usize| folder.join(format!("{way}-{at}"));
    for (at, work) in work.iter().enumerate() {
        let model = model("alone", at);
        let line = format!("train {work} --in-process --workers 2 --model {}", model.display());
        succeeds(&caravan(&line).output().unwrap());
    }
    let cluster = launch();
    let running: Vec<Child> = work
        .iter()
        .enumerate()
        .map(|(at, work)| {
            let model = model("together", at);
            start(&cluster, &format!("submit job{at} {work} --model {}", model.display()))
        })
        .collect();
    for (at, job) in running.into_iter().enumerate() {
        succeeds(&job.wait_with_output().unwrap());
        let [alone, together] = ["alone", "together"].map(|way| fs::read(model(way, at)).unwrap());
        assert!(alone == together, "job {at} has another model");
    }
    until("jobs end with their commands", || jobs(&cluster).is_empty());
    cluster.shutdown().unwrap();
}

#[test]
fn wrong_submissions_are_refused() {
    let output = caravan("submit ads kmeans --data a").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("set CARAVAN_SCHEDULER"), "{}", text(&output.stderr));
    let output = caravan("submit ads kmeans --data a --workers 2").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("taken as it is"), "{}", text(&output.stderr));
}

/// Numbers of threads and of open files of each node.
fn holds(cluster: &Cluster) -> Vec<(usize, usize)> {
    let entries = |path: String| fs::read_dir(path).unwrap().count();
    let of = |pid: u32| (entries(format!("/proc/{pid}/task")), entries(format!("/proc/{pid}/fd")));
    cluster.processes().into_iter().map(|(_, pid)| of(pid)).collect()
}

/// Tables of jobs.
fn tables(cluster: &Cluster) -> usize {
    let mut client = cluster.client().unwrap();
    client.admin().list_tables("").unwrap().len()
}

#[test]
fn a_job_that_is_cancelled_or_interrupted_leaves_nothing() {
    let folder = folder("jobs-cancelled");
    let data = points(&folder).display().to_string();
    let cluster = launch();
    let short = format!("kmeans --data {data} --clusters 4 --stages 2:100:5");
    let submit_short = || {
        let output = of_cluster(&cluster, &format!("submit short {short}")).output().unwrap();
        succeeds(&output);
    };
    submit_short();
    until("the first job ends", || jobs(&cluster).is_empty());
    let before = holds(&cluster);
    let files = fs::read_dir(&folder).unwrap().count();

    let long = format!("submit long kmeans --data {data} --clusters 4 --stages 2:10:100000000");
    for interrupted in [false, true] {
        let mut job = start(&cluster, &long);
        until("it trains", || tables(&cluster) > 0 && jobs(&cluster)[0].1 == 1);
        assert_eq!(jobs(&cluster), [("long".to_owned(), 1)]);
        match interrupted {
            true => signal("INT", job.id()),
            false => succeeds(&of_cluster(&cluster, "cancel long").output().unwrap()),
        }
        let status = ended(&mut job, PATIENCE);
        assert_eq!(status.code(), Some(if interrupted { 130 } else { 1 }));
        if !interrupted {
            let said = text(&job.wait_with_output().unwrap().stderr);
            assert!(said.contains("the job long was cancelled"), "{said}");
        }
        until("it is forgotten", || jobs(&cluster).is_empty());
        assert_eq!(tables(&cluster), 0);
        // The lanes of the first job may not have been closed when they were counted.
        let is_as_before = || {
            let now = holds(&cluster);
            now.iter().zip(&before).all(|(now, before)| now.0 <= before.0 && now.1 <= before.1)
        };
        until("threads and files are as before", is_as_before);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), files);
        submit_short();
        until("the next job ends", || jobs(&cluster).is_empty());
    }
    let unknown = of_cluster(&cluster, "cancel long").output().unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("there is no job \"long\""), "{unknown:?}");
    cluster.shutdown().unwrap();
}
