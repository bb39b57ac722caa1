//! The program from outside: status, what goes to which output, and the rows as a script reads
//! them.

use crate::support;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::text;

/// Runs `caravan` with a command line, and with only those `CARAVAN_` variables that are given.
fn caravan(line: &str, variables: &[(&str, &str)]) -> Output {
    support::caravan(line).envs(variables.iter().copied()).output().unwrap()
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
        ("bench verbs --iterations 100000001", "100000000"),
        ("bench rate --iterations 18446744073709551615", "1000000000000"),
        ("bench rate --sizes 1GiB --window 64", "a window of 7 or less"),
        ("bench placement --numa-node 0", "leave --numa-node out"),
        ("bench wait --wait spin", "leave --wait out"),
        ("bench failover --in-process", "leave --in-process"),
        ("bench scale --servers 1025", "1024 servers"),
        ("bench consistency --workers 2", "--sparse-nodes"),
        ("bench consistency --set-up features --features 9", "16 workers need 16 features"),
        ("train dbpg --data x --lambda 1 --learning-rate 2", "learning rate"),
        ("train dbpg --data x --lambda 1 --epsilon 1", "epsilon"),
        ("train dbpg --data x --lambda 1 --filters quantize=9", "1, 2 or 3"),
        ("train dbpg --data x --lambda 1 --filters nope", "screen, kkt"),
        ("generate clicks x --rows 0", "--rows"),
        ("generate clicks x --kmin 9 --kmax 8", "--kmin"),
        ("bench verbs --op push", "push"),
        ("bench verbs --listen here --connect there", "--connect"),
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
fn the_van_for_tests_is_known_and_refused() {
    let output = caravan("bench latency --smoke --van sim", &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("sim") && said.contains("doctor"), "{said}");
}

#[test]
fn help_names_every_command_and_hides_the_floor() {
    let output = caravan("--help", &[]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    for command in [
        "bench",
        "train",
        "predict",
        "generate",
        "launch",
        "scheduler",
        "server",
        "worker",
        "doctor",
    ] {
        assert!(help.contains(command), "{command}");
    }
    let hidden = |line: &str| ["floor", "agent"].iter().any(|it| line.trim_start().starts_with(it));
    assert!(!help.lines().any(hidden), "{help}");
    for line in ["bench latency --help", "train dbpg --help", "--version"] {
        assert!(caravan(line, &[]).status.success(), "{line}");
    }
}

#[test]
fn the_version_has_commit_and_features() {
    let version = text(&caravan("--version", &[]).stdout);
    let machine = &rows("doctor --json")[0];
    let commit = machine["commit"].as_str().unwrap();
    let hash = commit.strip_suffix("-dirty").unwrap_or(commit);
    let is_hash = hash.len() == 12 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{commit}");
    let features = [
        ("arrow", cfg!(feature = "arrow")),
        ("etcd", cfg!(feature = "etcd")),
        ("hwloc", cfg!(feature = "hwloc")),
        ("rdma", cfg!(feature = "rdma")),
        ("shm", cfg!(feature = "shm")),
        ("stores", cfg!(feature = "stores")),
        ("uring", cfg!(feature = "uring")),
    ];
    let built = features.iter().filter(|(_, built)| *built).map(|(name, _)| *name);
    let built = built.collect::<Vec<_>>().join(" ");
    let built = if built.is_empty() { "no features" } else { &built };
    let expected = format!("caravan {} ({commit}, {built})\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(version, expected);
}

#[test]
fn every_training_flag_is_in_the_table_of_the_page() {
    let rows_of = |page: &str| -> Vec<String> {
        let page = format!("{}/../kv/docs/{page}.md", env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(page).unwrap();
        page.lines().filter(|line| line.starts_with("| `--")).map(str::to_owned).collect()
    };
    let help = text(&caravan("train --help", &[]).stdout);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let trainers: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(trainers.contains(&"dbpg") && trainers.contains(&"kmeans"), "{trainers:?}");
    for trainer in trainers {
        let page = match trainer {
            "dbpg" => "training",
            "kmeans" => "tasks",
            _ => "trainers",
        };
        let help = caravan(&format!("train {trainer} --help"), &[]);
        let help = text(&help.stdout);
        let (rows, flags) = (rows_of(page), own_flags(&help));
        assert!(["--data", "--model"].iter().all(|flag| flags.contains(flag)), "{flags:?}");
        for flag in flags {
            let named = rows.iter().any(|row| row.contains(&format!("`{flag}")));
            assert!(named, "{flag} of train {trainer} is not in a table of kv/docs/{page}.md");
        }
    }
}

/// The flags of a `--help`, but for those that every command has.
fn own_flags(help: &str) -> Vec<&str> {
    let mut common = false;
    let mut flags = Vec::new();
    for line in help.lines() {
        if line.ends_with(':') && !line.starts_with(' ') {
            common = line == "Common options:";
        }
        let words = line.trim_start();
        let flag = words.split([' ', '=']).find(|word| word.starts_with("--"));
        if !common && words.starts_with('-') && flag.is_some_and(|flag| flag != "--help") {
            flags.extend(flag);
        }
    }
    flags
}

#[test]
fn doctor_names_every_van_and_what_to_do() {
    let rows = rows("doctor --json");
    assert_eq!(rows[0]["row"], "machine");
    let vans: Vec<_> = rows.iter().filter_map(|row| row["van"].as_str()).collect();
    assert_eq!(vans, ["rdma", "uring", "shm", "tcp", "sim"]);
    assert_eq!(rows[1]["row"], "layout");
    assert_eq!(rows[1]["threads"].as_array().map(Vec::len), Some(1), "{}", rows[1]);
    let (findings, checks): (Vec<&Value>, Vec<&Value>) =
        rows[2..].iter().partition(|row| row["row"] == "finding");
    assert!(checks[5..].iter().all(|row| row["row"] == "rdma-device"), "{rows:?}");
    let is_said = |row: &&Value| !row["command"].as_str().unwrap().is_empty();
    assert!(findings.iter().all(is_said), "{findings:?}");
    for row in checks {
        let remedy = row["remedy"].as_str().unwrap();
        assert_eq!(row["works"].as_bool().unwrap(), remedy.is_empty(), "{row}");
    }
    let output = caravan("doctor", &[]);
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("# cpu"));
    let two = ["doctor", "--threads", "2", "--topology", "numa:2 core:1 pu:1"];
    let output = Command::new(env!("CARGO_BIN_EXE_caravan")).args(two).output().unwrap();
    if cfg!(feature = "hwloc") {
        assert!(text(&output.stdout).contains("◄ server 0 thread 1 on PU 1"), "{output:?}");
    } else {
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("--features hwloc"), "{output:?}");
    }
    assert_eq!(caravan("doctor --numa-node 4000", &[]).status.code(), Some(2));
}

#[test]
fn benches_print_rows_of_each_kind_and_nothing_wrong() {
    let output = caravan("bench all --smoke --van tcp --op push,pull,push-pull --json", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let mut kinds = Vec::new();
    for line in stdout.lines() {
        let row: Value = serde_json::from_str(line).expect(line);
        let kind = row["row"].as_str().unwrap().to_owned();
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

/// The least memory that a thread can have, in the short form of the unit.
#[test]
fn a_bench_runs_with_the_least_memory() {
    for van in ["tcp", "uring", "shm"] {
        let line = format!("bench latency --smoke --van {van} --sizes 8,1K --json");
        let output = caravan(&line, &[("CARAVAN_MEMORY", "2M"), ("CARAVAN_JOB", "0x7")]);
        assert!(output.status.success(), "{van}: {}", text(&output.stderr));
    }
    let output = caravan("bench latency --smoke", &[("CARAVAN_MEMORY", "2047K")]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("2047K") && said.contains("2 MiB or more"), "{said}");
}

/// Counts that no number of equal rounds gives, and requests that take no thousandth of a second.
#[test]
fn rows_have_the_count_that_was_asked_for_and_no_time_is_0() {
    let run = "--van tcp --in-process --op push --json";
    for (line, count) in [
        ("latency --sizes 8 --iterations 1", 1),
        ("latency --sizes 8 --iterations 50", 50),
        ("latency --sizes 8 --iterations 997", 997),
    ] {
        assert_eq!(rows(&format!("bench {line} {run}"))[1]["count"], count, "{line}");
    }
    for line in ["bandwidth --sizes 8 --iterations 1", "rate --sizes 8 --iterations 1"] {
        let row = &rows(&format!("bench {line} {run}"))[1];
        let figures = row.as_object().unwrap().iter();
        let is_0 = |(name, value): &(&String, &Value)| {
            (name.ends_with("seconds") || name.contains("_per_s")) && value.as_f64() == Some(0.0)
        };
        assert_eq!(figures.filter(is_0).collect::<Vec<_>>(), [], "{row}");
    }
}

/// More than the servers can do, and lists of all keys of a table, of more than one has by default.
#[test]
fn a_load_of_any_rate_and_any_keys_has_rows() {
    let run = "--duration 0.1 --van tcp --in-process --pushes 1 --json";
    for load in [
        "--rate 1000M",
        "--rate closed --keys 1000 --sizes 4000 --table-keys 1000",
        "--rate closed --keys 70000 --sizes 280000",
    ] {
        let row = &rows(&format!("bench load {load} {run}"))[1];
        let is_above_0 = |name: &str| row[name].as_f64() > Some(0.0);
        assert!(is_above_0("count") && is_above_0("per_s"), "{load}: {row}");
        assert_eq!(row["wrong"], 0, "{load}: {row}");
    }
}

#[test]
fn a_bench_runs_on_threads_with_many_keys_and_servers() {
    let line = "bench latency --smoke --json --in-process --van tcp --servers 2 --threads 2 --keys 100 --sizes 400,64000,400KiB --op push,pull,push-pull";
    let rows = rows(line);
    assert_eq!(rows.len(), 1 + 9);
    assert!(rows[1..].iter().all(|row| row["wrong"] == 0 && row["keys"] == 100), "{rows:?}");
}

/// Of one worker, and of many at a time.
#[test]
fn benches_run_on_tables_with_replicas() {
    for bench in ["latency", "bandwidth", "rate", "rate --workers 2"] {
        let line = format!("bench {bench} --smoke --json --in-process --van tcp --sizes 64");
        for copies in ["--replicas 1", "--replicas 1 --asynchronous"] {
            let rows = rows(&format!("{line} --servers 3 {copies}"));
            assert!(rows.len() == 3 && rows[1..].iter().all(|row| row["wrong"] == 0), "{rows:?}");
        }
        let output = caravan(&format!("{line} --servers 2 --replicas 2"), &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{bench}: {said}");
        assert!(said.contains("2 replicas") && said.contains("room for 1"), "{bench}: {said}");
    }
}

/// The RDMA device to test on.
fn device() -> Option<String> {
    let device = std::env::var("CARAVAN_TEST_DEVICE").ok();
    if device.is_none() {
        eprintln!("skipped: needs an RDMA device, named by CARAVAN_TEST_DEVICE");
    }
    device
}

#[test]
fn without_an_rdma_device_bench_verbs_says_what_to_do() {
    let output = caravan("bench verbs --device there-is-none --smoke", &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("there-is-none") || said.contains("doctor"), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_device_is_measured_and_nothing_is_wrong() {
    let Some(device) = device() else { return };
    let rows = rows(&format!(
        "bench verbs --device {device} --iterations 39 --json --sizes 1,8,100,70001"
    ));
    assert_eq!(rows[0]["row"], "machine");
    let kinds = |kind: &str| rows.iter().filter(|row| row["row"] == kind).count();
    assert_eq!((kinds("verbs-latency"), kinds("verbs-bandwidth")), (16, 16));
    for row in &rows[1..] {
        assert_eq!(row["count"], 39, "{row}");
        assert_eq!(row["wrong"], 0, "{row}");
        assert_eq!(row["device"], device.as_str(), "{row}");
        let full = row["op"] == "read";
        let figure = if full { "round_trip_us" } else { "half_round_trip_us" };
        assert!(row["row"] == "verbs-bandwidth" || row["figure"] == figure, "{row}");
    }
}

#[test]
fn a_device_is_measured_against_one_that_listens() {
    let Some(device) = device() else { return };
    let doctor = rows("doctor --json");
    let port = doctor.iter().find(|row| row["device"] == device.as_str()).unwrap();
    assert_eq!(port["works"], true, "{port}");
    let address = format!("{}:18611", port["address"].as_str().unwrap());
    let mut listens = Command::new(env!("CARGO_BIN_EXE_caravan"));
    listens.args(["bench", "verbs", "--listen", &address]).stdin(Stdio::null());
    let mut listens = listens.stderr(Stdio::piped()).spawn().unwrap();
    let line = &mut String::new();
    let mut said = std::io::BufReader::new(listens.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut said, line).unwrap();
    let rows = caravan(
        &format!("bench verbs --device {device} --connect {address} --smoke --json --sizes 8"),
        &[],
    );
    listens.kill().unwrap();
    listens.wait().unwrap();
    assert!(line.contains(&address), "{line}");
    assert!(rows.status.success(), "{}", text(&rows.stderr));
    assert_eq!(text(&rows.stdout).lines().count(), 1 + 8);
}

#[test]
fn people_get_columns() {
    let output = caravan("bench rate --smoke --van tcp --op push", &[]);
    let stdout = text(&output.stdout);
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("# cpu"), "{stdout}");
    assert!(stdout.contains("no limit; over sockets it makes one call a message"), "{stdout}");
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

#[test]
fn a_trained_model_predicts() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("trained");
    let (clicks, model) = (out.display(), out.with_extension("model"));
    rows(&format!("generate clicks {clicks} --smoke --json"));
    let line = format!(
        "train dbpg --data {clicks}.train --test {clicks}.test --lambda 5 --workers 2 --servers 2 --model {} --json",
        model.display()
    );
    let output = caravan(&line, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    let (last, lines) = lines.split_last().unwrap();
    let (filters, passes): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.contains("\"traffic\""));
    assert!(passes.len() > 2 && filters.len() > 2, "{passes:?}, {filters:?}");
    let result: Value = serde_json::from_str(last).unwrap();
    let first: Value = serde_json::from_str(passes[0]).unwrap();
    assert!(result["objective"].as_f64() < first["objective"].as_f64(), "{result}");
    assert!(first["worker_seconds_max"].as_f64() > Some(0.0), "{first}");
    assert!(first["server_seconds"].as_f64() > Some(0.0), "{first}");
    let parts = ["worker_seconds_max", "server_seconds", "polish_seconds", "other_seconds"];
    let parts: f64 = parts.iter().map(|part| first[part].as_f64().unwrap()).sum();
    assert!(parts >= first["pass_seconds"].as_f64().unwrap() - 1e-9, "{first}");
    let scored = out.with_extension("scored");
    let line = format!(
        "predict --model {} --data {clicks}.test --out {} --json",
        model.display(),
        scored.display()
    );
    let predicted = &rows(&line)[0];
    for metric in ["logloss", "auc", "accuracy", "pr_auc"] {
        assert!(predicted[metric].is_f64(), "{predicted}");
        assert_eq!(predicted[metric], result[format!("test_{metric}")], "{metric}");
    }
    let scored = std::fs::read_to_string(scored).unwrap();
    assert_eq!(scored.lines().count() as u64, predicted["rows"].as_u64().unwrap());
    for line in scored.lines() {
        let fields: Vec<f64> = line.split('\t').map(|field| field.parse().unwrap()).collect();
        let [label, probability, margin] = fields[..] else { panic!("{line}") };
        assert_eq!(label > 0.0, margin > 0.0, "{line}");
        assert!((probability - 1.0 / (1.0 + (-margin).exp())).abs() < 1e-12, "{line}");
    }
}

/// Features of no more than lambda examples are 0 in every solution, so that to drop them first
/// changes no objective.
#[test]
fn rare_features_are_dropped_and_accounted_for() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tail");
    let clicks = out.display();
    rows(&format!("generate clicks {clicks} --smoke --json"));
    let line =
        format!("train dbpg --data {clicks}.train --lambda 5 --workers 2 --servers 2 --json");
    let all = rows(&line);
    let output = caravan(&format!("{line} --tail-frequency 4 --filters all,skip=0.9"), &[]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("features of 4 examples at most"), "{said}");
    let rare: Vec<Value> =
        text(&output.stdout).lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let dropped = |rows: &[Value]| rows[0]["tail_dropped"].as_u64().unwrap();
    assert!(dropped(&all) == 0 && dropped(&rare) > 100, "{}", rare[0]);
    let objective = |rows: &[Value]| rows.last().unwrap()["objective"].as_f64().unwrap();
    assert!((objective(&rare) / objective(&all) - 1.0).abs() < 1e-6, "{rare:?}");
    for filter in ["tail", "skip"] {
        let row = rare.iter().find(|row| row["filter"] == filter).unwrap();
        assert!(row["worker_bytes_in"].as_u64() > row["worker_bytes_out"].as_u64(), "{row}");
    }
}

/// All of the objective's variants at once, over a path, with a picture and a binary model for each
/// lambda.
#[test]
fn a_path_has_a_result_and_a_model_for_each_lambda() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("path");
    let clicks = out.display();
    rows(&format!("generate clicks {clicks} --smoke --json"));
    let line = format!(
        "train dbpg --data {clicks}.train --test {clicks}.test --lambda 5 --lambda-path 3 --intercept --l2 0.1 --positive-weight 2 --delay 0..4 --order random --model {clicks}.bin --plot {clicks}.svg --json"
    );
    let rows_of_path = rows(&line);
    let results: Vec<&Value> = rows_of_path.iter().filter(|row| row["row"] == "result").collect();
    assert_eq!(results.len(), 3, "{results:?}");
    let lambdas: Vec<f64> = results.iter().map(|row| row["lambda"].as_f64().unwrap()).collect();
    assert!(lambdas.is_sorted_by(|a, b| a > b) && lambdas[2] == 5.0, "{lambdas:?}");
    assert!((lambdas[1] / lambdas[0] - lambdas[2] / lambdas[1]).abs() < 1e-9, "{lambdas:?}");
    // At the limit itself rounding decides.
    assert!(results[0]["nnz"].as_u64() <= Some(1), "{}", results[0]);
    assert!(results[2]["nnz"].as_u64() > results[1]["nnz"].as_u64());
    for (result, lambda) in results.iter().zip(lambdas) {
        assert!(result["converged"] == true && result["intercept"].as_f64() != Some(0.0));
        let of_lambda = rows_of_path.iter().filter(|row| row["lambda"] == lambda);
        assert!(of_lambda.count() > 2, "{lambda}");
        let predict = format!("predict --model {clicks}.{lambda}.bin --data {clicks}.test --json");
        assert_eq!(rows(&predict)[0]["logloss"], result["test_logloss"]);
    }
    let picture = std::fs::read_to_string(out.with_extension("svg")).unwrap();
    let picture = roxmltree::Document::parse(&picture).unwrap();
    let classes = picture.descendants().filter_map(|node| node.attribute("class"));
    let lines = classes.filter(|classes| classes.starts_with("nnz "));
    assert_eq!(lines.count(), 6, "three runs against passes and against seconds");
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    for (line, part) in [
        ("--lambda 3,1 --lambda-path 3", "--lambda-path takes one"),
        ("--lambda 3,1 --resume m", "--resume takes one"),
        ("--lambda 1 --resume m --model n", "--model"),
        ("--lambda 1 --save-every 2", "needs --model or --resume"),
        ("--lambda 1 --restarts 1 --external", "leave --external"),
        ("--lambda 1 --delay 2..4", "begins with 0"),
    ] {
        let output = caravan(&format!("train dbpg --data x {line}"), &[]);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(text(&output.stderr).contains(part), "{line}: {}", text(&output.stderr));
    }
}

#[test]
fn people_see_passes_as_a_table() {
    let clicks = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("table");
    rows(&format!("generate clicks {} --smoke --json", clicks.display()));
    let line = format!("train dbpg --data {0}.train --test {0}.test --lambda 5", clicks.display());
    let output = caravan(&line, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let lines: Vec<&str> =
        stdout.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines[0].starts_with("pass") && lines[0].contains("wrk max"), "{stdout}");
    let bars = |line: &str| line.match_indices('|').map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!(bars(lines[0]), bars(lines[1]), "{stdout}");
    assert_eq!(bars(lines[0]).len(), 3, "{stdout}");
    assert!(lines[1].starts_with("0 ") && lines[2].starts_with("1 "), "{stdout}");
    let last = lines.last().unwrap();
    assert!(last.starts_with("test: logloss") && last.contains("PR-AUC"), "{stdout}");
}

/// Whatever would end a run after its work is found before: not a row is printed, and no cluster
/// starts.
#[test]
fn what_cannot_be_written_or_measured_on_is_found_before_training() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("early");
    let (clicks, empty) = (out.display(), out.with_extension("empty"));
    rows(&format!("generate clicks {clicks} --smoke --json"));
    std::fs::write(&empty, "").unwrap();
    let train = format!("train dbpg --data {clicks}.train --lambda 5");
    for (line, part) in [
        (format!("{train} --model /no/such/folder/m"), "cannot write /no/such/folder/m"),
        (format!("{train} --plot /no/such/folder/p.svg"), "cannot write /no/such/folder/p.svg"),
        (format!("{train} --model {}", env!("CARGO_TARGET_TMPDIR")), "directory"),
        (format!("{train} --test {}", empty.display()), "no examples are in"),
        (format!("predict --model {0} --data {0}", empty.display()), "it is empty"),
    ] {
        let output = caravan(&line, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

/// Before anything is started for it.
#[test]
fn a_numa_node_that_is_not_here_is_refused_at_once() {
    for line in [
        "bench latency --smoke --van tcp --numa-node 999",
        "bench latency --smoke --van tcp --in-process --no-pin --numa-node 999",
        "server --scheduler 127.0.0.1:1 --numa-node 999",
        "worker --scheduler 127.0.0.1:1 --numa-node 999",
    ] {
        let output = caravan(line, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("no NUMA node 999 here, only 0"), "{line}: {said}");
        assert!(said.contains("CARAVAN_NUMA_NODE") && said.lines().count() == 1, "{line}: {said}");
    }
    let output = caravan("bench latency --numa-node -1", &[]);
    assert!(text(&output.stderr).contains(r#""-1" is no NUMA node"#), "{output:?}");
}

/// The log is coloured for people only: this one goes into a file, or a pipe.
#[test]
fn settings_without_effect_say_so() {
    let line = "bench latency --smoke --sizes 8 --van";
    let is_reserved = std::fs::read_to_string("/proc/sys/vm/nr_hugepages");
    if is_reserved.is_ok_and(|pages| pages.trim() == "0") {
        for van in ["shm", "tcp"] {
            let output = caravan(&format!("{line} {van}"), &[("CARAVAN_HUGE_PAGES", "reserved")]);
            let said = text(&output.stderr);
            assert!(output.status.success(), "{said}");
            assert!(said.contains("no 1 huge pages of 2 MiB are left"), "{van}: {said}");
        }
    } else {
        eprintln!("SKIPPED: this machine has reserved huge pages");
    }
    let output = caravan(&format!("{line} auto"), &[("CARAVAN_RDMA_DEVICE", "none_such_0")]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("CARAVAN_RDMA_* settings have no effect"), "{said}");
}

#[test]
fn an_address_that_nobody_can_reach_is_refused_at_once() {
    for host in ["0.0.0.0", "::"] {
        for line in ["bench latency --smoke", "server --scheduler 127.0.0.1:1 --insecure"] {
            let output = caravan(line, &[("CARAVAN_HOST", host)]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(&format!("CARAVAN_HOST={host}")), "{said}");
            assert!(said.contains("set CARAVAN_HOST"), "{said}");
        }
    }
}

#[test]
fn a_log_that_is_no_terminal_has_no_colours() {
    let output = caravan("bench latency --smoke --van tcp", &[("RUST_LOG", "info")]);
    assert!(output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("INFO") && !said.contains('\u{1b}'), "{said}");
}

#[test]
fn the_manual_and_completions_are_for_man_and_shells() {
    let page = caravan("man", &[]);
    assert!(page.status.success() && text(&page.stdout).contains(".SH NAME"), "{page:?}");
    let script = caravan("completions bash", &[]);
    assert!(script.status.success() && text(&script.stdout).contains("complete -F _caravan"));
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("caravan.bash");
    std::fs::write(&file, &script.stdout).unwrap();
    let complete = r#"source "$1"; COMP_WORDS=(caravan ben) COMP_CWORD=1
        _caravan caravan ben caravan; echo "${COMPREPLY[@]}""#;
    let completed = Command::new("bash").args(["-c", complete, "bash"]).arg(file).output().unwrap();
    assert_eq!(text(&completed.stdout), "bench\n", "{completed:?}");
    assert_eq!(caravan("completions sh", &[]).status.code(), Some(2));
    let nowhere = caravan("man --out /proc/nowhere", &[]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("/proc/nowhere"), "{nowhere:?}");
}

#[test]
fn wrong_files_are_named() {
    for line in [
        "train dbpg --data /nowhere.train --lambda 1",
        "predict --model /nowhere.model --data /nowhere.test",
    ] {
        let output = caravan(line, &[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("/nowhere."), "{}", text(&output.stderr));
    }
}

/// The last row has a bound of how far the objective is above the least; `--strict` fails above
/// what was asked for, with the model and the rows written.
#[test]
fn a_run_that_ends_above_what_was_asked_for_says_so() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("strict");
    let clicks = out.display();
    rows(&format!("generate clicks {clicks} --smoke --json"));
    let line = format!("train dbpg --data {clicks}.train --lambda 5 --strict --json");
    let whole = rows(&line).pop().unwrap();
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    assert_eq!(whole["converged"], true);
    assert!(number(&whole, "bound") <= 1e-9 * number(&whole, "objective"), "{whole}");
    let output = caravan(&format!("{line} --passes 3 --model {clicks}.model"), &[]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("after 3 passes"), "{said}");
    assert!(out.with_extension("model").exists() && said.contains("above the least"), "{said}");
    let cut: Value = serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap();
    assert_eq!(cut["converged"], false);
    let gap = number(&cut, "objective") - number(&whole, "objective");
    assert!(gap > 0.0 && number(&cut, "bound") >= gap, "{cut}");
}

/// Without a penalty the least objective may be 0, so all of the objective is no bound.
#[test]
fn a_run_without_a_penalty_has_no_bound_and_says_so() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("penalty");
    let clicks = out.display();
    rows(&format!("generate clicks {clicks} --smoke --json"));
    let line = format!("train dbpg --data {clicks}.train --lambda 0");
    let short = format!("{line} --passes 3");
    let row = rows(&format!("{short} --json")).pop().unwrap();
    assert!(row["row"] == "result" && row["bound"].is_null(), "{row}");
    let output = caravan(&short, &[]);
    let said = [output.stdout, output.stderr].map(|it| text(&it)).concat();
    assert!(said.contains("no bound tells") && !said.contains("of it above"), "{said}");
    let row = rows(&format!("{line} --l2 1 --json")).pop().unwrap();
    assert!(row["bound"].is_number(), "{row}");
}
