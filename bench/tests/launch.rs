//! Goal: `caravan launch` starts a program in every role, ends all of it together, and returns the
//! status of the first failure; a process that something else has started finds its role.
//! Method: shells and `caravan` itself as the program of a job on this machine. `launchers.rs` does
//! the same by real ssh, Slurm, OpenMPI and MPICH.

use crate::support;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{PATIENCE, ended, free_address, long, pids_with, rows_in, text};

/// `caravan launch` of a shell, with flags.
fn launch(flags: &str, script: &str) -> Command {
    let mut command = support::caravan(&format!("launch {flags} --"));
    command.args(["sh", "-c", script]);
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

/// The lines of a job, in order.
fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Starts a job whose processes print their ids and then sleep for `seconds`, a number that finds
/// them; returns it with the ids.
fn sleeping(flags: &str, seconds: &str) -> (Child, Vec<u32>) {
    let mut command = launch(flags, &format!("echo pid=$$; trap '' TERM; sleep {seconds}; :"));
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(job.stdout.as_mut().unwrap()).lines().take(3);
    let pid = |line: String| line.rsplit('=').next().unwrap().parse().unwrap();
    let pids = lines.map(|line| pid(line.unwrap())).collect();
    (job, pids)
}

fn all_gone(seconds: &str, within: Duration) {
    let began = Instant::now();
    while !pids_with(seconds).is_empty() {
        assert!(began.elapsed() < within, "left: {:?}", pids_with(seconds));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_process_finds_its_role_and_its_lines_are_named() {
    let script = "echo $CARAVAN_ROLE $CARAVAN_RANK of $CARAVAN_WORKERS, $DMLC_ROLE; echo late >&2";
    let output = output(launch("--workers 2 --servers 2", script));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = [
        "scheduler of 2, scheduler",
        "server 0: server 0 of 2, server",
        "server 1: server 1 of 2, server",
        "worker 0: worker 0 of 2, worker",
        "worker 1: worker 1 of 2, worker",
    ];
    assert_eq!(sorted(&output.stdout), lines);
    let said = sorted(&output.stderr);
    assert_eq!(
        said,
        ["late", "server 0: late", "server 1: late", "worker 0: late", "worker 1: late"]
    );
}

#[test]
fn the_first_failure_ends_all_with_its_status() {
    let seconds = long(1);
    for (script, status, who) in [
        (
            r#"[ "$CARAVAN_ROLE" != server ] || exit 7; sleep LONG"#,
            7,
            "server 0 ended with status 7",
        ),
        (r#"[ "$CARAVAN_ROLE" != scheduler ] || exit 2; sleep LONG"#, 2, "the scheduler ended"),
        (
            r#"[ "$CARAVAN_RANK" != 1 ] || kill -9 $$; sleep LONG"#,
            137,
            "worker 1 was ended by signal 9 (SIGKILL)",
        ),
        // The scheduler misses the worker before anybody has heard of it.
        (
            r#"case $CARAVAN_ROLE$CARAVAN_RANK in scheduler) exit 1;; worker1) sleep 0.1; kill -9 $$;; esac; sleep LONG"#,
            137,
            "worker 1 was ended by signal 9 (SIGKILL)",
        ),
    ] {
        let output = output(launch("--workers 2", &script.replace("LONG", &seconds)));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{script}: {said}");
        assert!(said.contains(who), "{script}: {said}");
        all_gone(&seconds, PATIENCE);
    }
}

#[test]
fn a_killed_process_ends_all_others_and_what_they_have_started() {
    let seconds = long(2);
    let (mut job, pids) = sleeping("--workers 1 --servers 1", &seconds);
    support::signal("KILL", pids[1]);
    assert_eq!(ended(&mut job, PATIENCE).code(), Some(137));
    assert!(pids_with(&seconds).is_empty(), "the launcher ends last");
}

#[test]
fn what_has_a_session_of_its_own_ends_with_the_job() {
    let seconds = long(5);
    // They fail once what they have started is out of their session.
    let script = r#"setsid sleep LONG & until read -r _ _ _ _ _ session _ </proc/$!/stat &&
        [ "$session" = $! ]; do :; done; [ $CARAVAN_ROLE = WHO ] && exit 7; sleep LONG"#;
    for who in ["worker", "scheduler"] {
        let script = script.replace("LONG", &seconds).replace("WHO", who);
        let output = output(launch("--workers 2", &script));
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        assert!(pids_with(&seconds).is_empty(), "the launcher ends last");
    }
}

/// Its nodes never join, so that only the end of the launcher can end it.
#[test]
fn a_scheduler_that_waits_for_nodes_ends_with_its_launcher() {
    let seconds = long(6);
    let caravan = env!("CARGO_BIN_EXE_caravan");
    let script = format!(
        "[ $CARAVAN_ROLE = scheduler ] || exec sleep {seconds}; echo $$; \
         exec {caravan} bench latency --smoke --van tcp"
    );
    let mut job = launch("", &script);
    job.env("CARAVAN_JOIN_TIMEOUT_S", "86400").stdout(Stdio::piped());
    let mut job = job.spawn().unwrap();
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    let scheduler: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    job.kill().unwrap();
    job.wait().unwrap();
    let began = Instant::now();
    while support::variable(scheduler, "CARAVAN_ROLE").is_some() {
        assert!(began.elapsed() < PATIENCE, "the scheduler is left");
        std::thread::sleep(Duration::from_millis(20));
    }
    all_gone(&seconds, PATIENCE);
}

#[test]
fn no_node_outlives_a_launcher_that_is_killed() {
    let seconds = long(3);
    let (mut job, _) = sleeping("--workers 1 --servers 1", &seconds);
    // The scheduler of a real job ends because its nodes are lost; this one only sleeps.
    while pids_with(&seconds).len() < 3 {
        std::thread::sleep(Duration::from_millis(20));
    }
    job.kill().unwrap();
    job.wait().unwrap();
    let is_node =
        |pid: &u32| support::variable(*pid, "CARAVAN_ROLE") != Some("scheduler".to_owned());
    let began = Instant::now();
    while pids_with(&seconds).iter().any(is_node) {
        assert!(began.elapsed() < PATIENCE, "{:?}", pids_with(&seconds));
        std::thread::sleep(Duration::from_millis(20));
    }
    for pid in pids_with(&seconds) {
        support::signal("KILL", pid);
    }
}

#[test]
fn the_first_ctrl_c_is_the_schedulers_and_the_second_ends_all() {
    let seconds = long(4);
    let script = "trap 'echo saved; exit 5' INT; [ $CARAVAN_ROLE = scheduler ] || exec sleep LONG; \
                  echo ready; while :; do sleep 0.05; done";
    let mut job =
        launch("", &script.replace("LONG", &seconds)).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    support::signal("INT", job.id());
    assert_eq!(ended(&mut job, PATIENCE).code(), Some(5));
    assert_eq!(lines.next().unwrap().unwrap(), "saved");
    all_gone(&seconds, PATIENCE);

    let script = "trap '' INT; echo ready; sleep LONG";
    let mut job =
        launch("", &script.replace("LONG", &seconds)).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    (0..3).for_each(|_| assert!(lines.next().unwrap().unwrap().ends_with("ready")));
    support::signal("INT", job.id());
    std::thread::sleep(Duration::from_millis(100));
    support::signal("INT", job.id());
    assert_eq!(ended(&mut job, PATIENCE).code(), Some(130));
    all_gone(&seconds, PATIENCE);
}

/// Secrets go over standard input: neither command lines nor variables have 64 digits in a row.
#[test]
fn the_secret_of_a_job_is_not_to_be_seen() {
    let script = r#"read -r secret; echo "secret $secret"; tr '\0' ' ' </proc/$$/environ;
        tr '\0' ' ' </proc/$$/cmdline; tr '\0' ' ' </proc/$PPID/cmdline"#;
    let output = output(launch("", script));
    let said = text(&output.stdout);
    let digits = |line: &&str| line.len() == 64 && line.chars().all(|c| c.is_ascii_hexdigit());
    let after = said.lines().filter_map(|line| Some(line.split_once("secret ")?.1));
    let secrets: Vec<&str> = after.filter(digits).collect();
    assert_eq!(secrets.len(), 3);
    assert!(secrets.iter().all(|it| *it == secrets[0]));
    assert_eq!(said.matches(secrets[0]).count(), 3, "only what was read");
    assert_eq!(said.matches("CARAVAN_SECRET=- ").count(), 3);
}

#[test]
fn benches_and_training_run_in_a_job() {
    let run = "launch --workers 2 --servers 2 -- caravan bench rate --smoke --van tcp --json";
    let output = support::caravan(run).output().unwrap();
    let rows = rows_in(&output);
    assert_eq!(rows.len(), 3, "{}", text(&output.stderr));
    assert_eq!((&rows[1]["workers"], &rows[1]["wrong"]), (&Value::from(2), &Value::from(0)));
    // A flag of a bench that runs no cluster of its own.
    let output = support::caravan("bench placement --hosts A,B").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--hosts"), "{}", text(&output.stderr));
}

#[test]
fn programs_and_hosts_that_are_not_there_are_named() {
    let output = support::caravan("launch -- /no/such/program").output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("/no/such/program"), "{}", text(&output.stderr));
    let unreachable =
        support::caravan("bench latency --smoke --ssh false --hosts A,B").output().unwrap();
    assert_eq!(unreachable.status.code(), Some(1));
    let said = text(&unreachable.stderr);
    assert!(said.contains("cannot reach"), "{said}");
    let other = support::caravan("bench latency --smoke --hosts A --ssh echo").output().unwrap();
    let said = text(&other.stderr);
    assert!(said.contains("cannot reach A: echo ended with status 0: A exec sh"), "{said}");
}

/// A remote shell of this host, which does `first` before it runs the command.
fn remote_shell(test: &str, first: &str) -> String {
    let path = support::folder(test).join("ssh");
    let script = format!("#!/bin/sh\n{first}\nshift\nexec sh -c \"$*\"\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_remote_shells_print_is_shown_with_the_host() {
    let first = "echo welcome to $1; export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 2'";
    let ssh = remote_shell("banner", first);
    let welcomed = output(launch(&format!("--hosts nodeA,nodeB --ssh {ssh}"), "echo up"));
    let said = text(&welcomed.stderr);
    assert!(welcomed.status.success(), "{said}");
    assert!(said.contains("nodeA: welcome to nodeA"), "{said}");
    assert!(said.contains("nodeB: welcome to nodeB"), "{said}");
    let lines = ["server 0 on nodeA: up", "up", "worker 0 on nodeB: up"];
    assert_eq!(sorted(&welcomed.stdout), lines);

    let ssh = remote_shell("denied", "echo welcome; echo 'Permission denied' >&2; exit 255");
    let denied = output(launch(&format!("--hosts nodeA --ssh {ssh}"), "true"));
    let said = text(&denied.stderr);
    assert_eq!(denied.status.code(), Some(1), "{said}");
    assert!(said.contains("nodeA: welcome") && said.contains("nodeA: Permission denied"), "{said}");
    assert!(
        said.contains("cannot reach nodeA") && said.contains("ended with status 255"),
        "{said}"
    );

    let ssh = remote_shell("killed", "kill -9 $$");
    let killed = output(launch(&format!("--hosts nodeA --ssh {ssh}"), "true"));
    let said = text(&killed.stderr);
    assert!(said.contains("was ended by signal 9 (SIGKILL)"), "{said}");
}

/// Of a step of Slurm or a run of MPI with one process, whose variables a shell hands down.
#[test]
fn inherited_variables_do_not_outweigh_the_command_line() {
    for variables in [
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_NODES=1 \
         SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=n1",
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
        "PMI_RANK=0 PMI_SIZE=1",
        "CARAVAN_RANK=7",
    ] {
        let pairs = variables.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        let mut job = launch("", "echo $CARAVAN_ROLE");
        job.envs(pairs.clone());
        let output = output(job);
        assert!(output.status.success(), "{variables}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().count(), 3, "{variables}");
    }
    // A rank among several, but for --hosts, and one that is wrong.
    for variables in [("OMPI_COMM_WORLD_SIZE", "9"), ("OMPI_COMM_WORLD_SIZE", "x")] {
        let mut job = launch("--hosts localhost", "true");
        job.env("OMPI_COMM_WORLD_RANK", "0").envs([variables]);
        let output = output(job);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    for line in ["launch -- true", "bench latency --smoke", "bench latency --smoke --hosts A"] {
        for role in ["scheduler", "server", "worker"] {
            let output = support::caravan(line).env("CARAVAN_ROLE", role).output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{line}: {said}");
            assert!(said.contains(&format!("CARAVAN_ROLE={role}")), "{line}: {said}");
            assert!(said.contains("unset CARAVAN_ROLE"), "{line}: {said}");
        }
    }
}

/// The variables of a process, by its place and the scheduler's port.
type Variables = dyn Fn(usize, &str) -> Vec<(&'static str, String)>;

/// Three processes as ps-lite's tracker starts them, and as an indexed Job of Kubernetes does.
#[test]
fn processes_that_others_have_started_find_their_role() {
    let of_tracker = |at: usize, port: &str| {
        let role = ["scheduler", "server", "worker"][at].to_owned();
        let port = port.to_owned();
        let root = "127.0.0.1".to_owned();
        let one = || "1".to_owned();
        vec![
            ("DMLC_ROLE", role),
            ("DMLC_NUM_WORKER", one()),
            ("DMLC_NUM_SERVER", one()),
            ("DMLC_PS_ROOT_URI", root),
            ("DMLC_PS_ROOT_PORT", port),
        ]
    };
    let of_job = |at: usize, port: &str| {
        let scheduler = format!("127.0.0.1:{port}");
        vec![("JOB_COMPLETION_INDEX", at.to_string()), ("CARAVAN_SCHEDULER", scheduler)]
    };
    let ways: [&Variables; 2] = [&of_tracker, &of_job];
    for variables in ways {
        let address = free_address();
        let port = address.rsplit(':').next().unwrap();
        let start = |at: usize| {
            let line = "launch -- caravan bench latency --smoke --van tcp --json";
            let mut command = support::caravan(line);
            command.envs(variables(at, port)).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let processes: Vec<Child> = (0..3).map(start).collect();
        for (at, process) in processes.into_iter().enumerate() {
            let output = process.wait_with_output().unwrap();
            assert!(output.status.success(), "{at}: {}", text(&output.stderr));
            assert_eq!(rows_in(&output).len(), if at == 0 { 7 } else { 0 });
        }
    }
    let output = support::caravan("launch -- caravan bench latency --smoke")
        .env("DMLC_ROLE", "master")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("DMLC_ROLE=master"));
}
