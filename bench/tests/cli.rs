//! The program from outside: status, what goes to which output, and the rows as a script reads them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs `caravan` with a command line, and with only those `CARAVAN_` variables that are given.
fn caravan(line: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caravan"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARAVAN_") {
            command.env_remove(name);
        }
    }
    command.args(line.split_whitespace()).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The rows of a run that must succeed.
fn rows(line: &str) -> Vec<Value> {
    let output = caravan(line, &[]);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|row| serde_json::from_str(row).expect(row)).collect()
}

#[test]
fn wrong_usage_ends_with_2_and_says_why() {
    for (line, part) in [
        ("", "Usage"),
        ("fly", "fly"),
        ("bench latency --van pigeon", "pigeon"),
        ("bench latency --sizes 8,big", "big"),
        ("bench latency --sizes 6", "multiple of 4"),
        ("bench latency --keys 3 --sizes 8", "multiple of 12"),
        ("bench rate --window 0", "--window"),
        ("train dbpg --data x", "--lambda"),
        ("worker", "--scheduler"),
    ] {
        let output = caravan(line, &[]);
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert!(text(&output.stderr).contains(part), "{line:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{line:?}");
    }
    for variable in
        [("CARAVAN_WORKERS", "none"), ("CARAVAN_VAN", "pigeon"), ("CARAVAN_WROKERS", "1")]
    {
        let output = caravan("bench latency --smoke", &[variable]);
        assert_eq!(output.status.code(), Some(2), "{variable:?}");
        assert!(text(&output.stderr).contains(variable.0), "{variable:?}");
    }
}

#[test]
fn vans_of_later_versions_are_known_and_refused() {
    for van in ["rdma", "shm", "sim"] {
        let output = caravan(&format!("bench latency --smoke --van {van}"), &[]);
        assert_eq!(output.status.code(), Some(1), "{van}");
        let said = text(&output.stderr);
        assert!(said.contains(van) && said.contains("doctor"), "{said}");
    }
}

#[test]
fn help_names_every_command_and_hides_the_floor() {
    let output = caravan("--help", &[]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    for command in
        ["bench", "train", "predict", "generate", "scheduler", "server", "worker", "doctor"]
    {
        assert!(help.contains(command), "{command}");
    }
    assert!(!help.lines().any(|line| line.trim_start().starts_with("floor")));
    for line in ["bench latency --help", "train dbpg --help", "--version"] {
        assert!(caravan(line, &[]).status.success(), "{line}");
    }
}

#[test]
fn doctor_names_every_van_and_what_to_do() {
    let rows = rows("doctor --json");
    assert_eq!(rows[0]["row"], "machine");
    let vans: Vec<_> = rows[1..].iter().map(|row| row["van"].as_str().unwrap()).collect();
    assert_eq!(vans, ["rdma", "uring", "shm", "tcp", "sim"]);
    for row in &rows[1..] {
        let remedy = row["remedy"].as_str().unwrap();
        assert_eq!(row["works"].as_bool().unwrap(), remedy.is_empty(), "{row}");
    }
    let output = caravan("doctor", &[]);
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("# cpu"));
}

/// The fields of a row, in order, as design.md §7 has them.
const LATENCY: &str = "row van op keys bytes count min_us p50_us p90_us p99_us p999_us max_us floor_p50_us floor_p99_us ratio_p50 wrong";
const BANDWIDTH: &str = "row van op keys bytes window seconds gb_per_s floor_gb_per_s ratio wrong";
const RATE: &str = "row van op bytes window mmsg_per_s floor_mmsg_per_s ratio wrong";
const MACHINE: &str = "row cpu cores numa_nodes kernel nic commit caravan";

/// The names before each colon of a flat object, in the order they are written in.
fn fields(row: &str) -> String {
    let quoted: Vec<&str> = row.split('"').collect();
    let names = quoted.windows(2).skip(1).step_by(2).filter(|pair| pair[1].starts_with(':'));
    names.map(|pair| pair[0]).collect::<Vec<_>>().join(" ")
}

#[test]
fn benches_print_the_rows_of_the_contract_and_nothing_wrong() {
    let output = caravan("bench all --smoke --van tcp --op push,pull,push-pull --json", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let mut kinds = Vec::new();
    for line in stdout.lines() {
        let row: Value = serde_json::from_str(line).expect(line);
        let kind = row["row"].as_str().unwrap().to_owned();
        let expected = match kind.as_str() {
            "machine" => MACHINE,
            "latency" => LATENCY,
            "bandwidth" => BANDWIDTH,
            "rate" => RATE,
            other => panic!("{other}"),
        };
        assert_eq!(fields(line), expected);
        if kind != "machine" {
            assert_eq!(row["wrong"], 0, "{line}");
            assert_eq!(row["van"], "tcp", "{line}");
        }
        kinds.push(kind);
    }
    assert_eq!(kinds[0], "machine");
    assert_eq!(kinds.iter().filter(|kind| *kind == "latency").count(), 9);
    kinds.dedup();
    assert_eq!(kinds, ["machine", "latency", "bandwidth", "rate"]);
}

#[test]
fn a_bench_runs_on_threads_with_many_keys_and_servers() {
    let line = "bench latency --smoke --json --in-process --van tcp --servers 2 --threads 2 --keys 100 --sizes 400,64000,400KiB --op push,pull,push-pull";
    let rows = rows(line);
    assert_eq!(rows.len(), 1 + 9);
    assert!(rows[1..].iter().all(|row| row["wrong"] == 0 && row["keys"] == 100), "{rows:?}");
}

#[test]
fn people_get_columns() {
    let output = caravan("bench rate --smoke --van tcp --op push", &[]);
    let stdout = text(&output.stdout);
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("# cpu"), "{stdout}");
    let last = lines.last().unwrap();
    assert!(last.starts_with("tcp") && last.ends_with(" 0"), "{stdout}");
}

#[test]
fn generated_clicks_are_the_same_twice() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let files = ["one", "two"].map(|name| {
        let out = folder.join(name);
        let rows = rows(&format!("generate clicks {} --smoke --json", out.display()));
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["rows"], 1000);
        std::fs::read(out.with_extension("train")).unwrap()
    });
    assert_eq!(files[0], files[1]);
    assert_eq!(files[0].iter().filter(|byte| **byte == b'\n').count(), 1000);
    let output = caravan(&format!("generate clicks {}/x --rows 0", folder.display()), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("rows"));
}
