//! Goal: jobs run by real ssh, Slurm, OpenMPI and MPICH, and one killed process ends them.
//! Method: an ssh server of the test's own, and a Slurm of three nodes on this machine. What is not
//! installed is skipped with a line; `ci/suites/launchers setup` installs all of it.

use crate::support;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use support::{PATIENCE, ended, folder, long, pids_with, rows_in, text};

const CARAVAN: &str = env!("CARGO_BIN_EXE_caravan");

/// Whether a program is there; otherwise says that the test is skipped.
fn has(program: &str) -> bool {
    let folders = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let found = folders.split(':').any(|folder| Path::new(folder).join(program).exists());
    if !found {
        eprintln!("skipped: needs {program}; ci/suites/launchers setup installs it");
    }
    found
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs a command that must succeed.
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Rows of a run that must succeed.
fn rows(command: &mut Command) -> Vec<Value> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    rows_in(&output)
}

/// Starts a job of which each process prints its id and sleeps for `seconds`, kills the first
/// worker, and expects its status and that nothing is left.
fn one_killed_ends_all(mut job: Command, seconds: &str, status: i32) {
    let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(job.stdout.as_mut().unwrap()).lines();
    let mut lines = lines.take(3).map(Result::unwrap).collect::<Vec<String>>();
    let mut said = String::new();
    if lines.len() < 3 {
        std::io::Read::read_to_string(job.stderr.as_mut().unwrap(), &mut said).unwrap();
    }
    assert_eq!(lines.len(), 3, "{lines:?}: {said}");
    lines.retain(|line| line.contains("worker"));
    support::signal("KILL", lines[0].rsplit(' ').next().unwrap().parse().unwrap());
    assert_eq!(ended(&mut job, PATIENCE).code(), Some(status));
    let began = Instant::now();
    while !pids_with(seconds).is_empty() {
        assert!(began.elapsed() < PATIENCE, "left: {:?}", pids_with(seconds));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn sleeping(seconds: &str) -> [String; 3] {
    ["sh".to_owned(), "-c".to_owned(), format!("echo $CARAVAN_ROLE $$; sleep {seconds}; :")]
}

/// An ssh server on this machine, and the configuration that names it A and B.
struct Ssh {
    server: Child,
    config: PathBuf,
}

impl Ssh {
    fn start(test: &str) -> Option<Ssh> {
        if !has("sshd") || !has("ssh") {
            return None;
        }
        let folder = folder(test);
        let at = |name: &str| folder.join(name).display().to_string();
        let port = free_port();
        let listens = "ListenAddress 127.0.0.1\nListenAddress 127.0.0.2\n";
        fs::write(at("sshd_config"), server_settings(&folder, port, listens)).unwrap();
        let config = folder.join("ssh_config");
        let hosts = [("A", "127.0.0.1"), ("B", "127.0.0.2")];
        let hosts = hosts.map(|(alias, at)| client_settings(&folder, alias, at, port));
        fs::write(&config, hosts.concat()).unwrap();
        let server = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f", &at("sshd_config")])
            .stderr(fs::File::create(at("log")).unwrap())
            .spawn()
            .unwrap();
        let ssh = Ssh { server, config };
        let began = Instant::now();
        while !ssh.command("A").arg("true").output().unwrap().status.success() {
            assert!(began.elapsed() < PATIENCE, "{}", fs::read_to_string(at("log")).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Some(ssh)
    }

    fn command(&self, host: &str) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(&self.config).arg(host);
        ssh
    }

    /// `caravan` with words, and this server's hosts as remote ones.
    fn caravan(&self, line: &str) -> Command {
        let mut command = support::caravan(line);
        command.arg("--ssh").arg(format!("ssh -F {}", self.config.display()));
        command
    }
}

/// Makes keys, and returns the settings of a server that takes them.
fn server_settings(folder: &Path, port: u16, listens: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    for key in ["host", "user"] {
        let made = ["-q", "-t", "ed25519", "-N", "", "-f"];
        done(Command::new("ssh-keygen").args(made).arg(at(key)));
    }
    fs::copy(at("user.pub"), at("authorized")).unwrap();
    if is_root() {
        fs::create_dir_all("/run/sshd").unwrap();
    }
    format!(
        "Port {port}\n{listens}HostKey {}\nPidFile none\nAuthorizedKeysFile {}\nStrictModes no\n\
         UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n",
        at("host"),
        at("authorized")
    )
}

fn client_settings(folder: &Path, alias: &str, address: &str, port: u16) -> String {
    format!(
        "Host {alias}\nHostName {address}\nPort {port}\nIdentityFile {}\nBatchMode yes\n\
         StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n",
        folder.join("user").display()
    )
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn a_bench_between_two_hosts_is_one_command() {
    let Some(ssh) = Ssh::start("ssh-bench") else { return };
    let rows = rows(&mut ssh.caravan("bench latency --smoke --van tcp --json --hosts A,B"));
    let kinds: Vec<&str> = rows.iter().map(|row| row["row"].as_str().unwrap()).collect();
    assert_eq!(kinds, [&["machine"][..], &["latency"; 6]].concat());
    assert!(rows[1..].iter().all(|row| row["wrong"] == 0 && row["van"] == "tcp"), "{rows:?}");
}

#[test]
fn training_runs_on_hosts() {
    let Some(ssh) = Ssh::start("ssh-train") else { return };
    let folder = folder("ssh-train-data");
    let clicks = folder.join("clicks").display().to_string();
    done(&mut support::caravan(&format!("generate clicks {clicks} --smoke")));
    let hosts = folder.join("hosts");
    fs::write(&hosts, "A slots=2\nB slots=2 # the other\n").unwrap();
    let line = format!(
        "train dbpg --data {clicks}.train --lambda 5 --workers 2 --servers 2 --van tcp --json \
         --model {clicks}.model --hostfile {}",
        hosts.display()
    );
    let rows = rows(&mut ssh.caravan(&line));
    assert_eq!(rows.last().unwrap()["row"], "result");
    assert!(Path::new(&format!("{clicks}.model")).exists(), "the driver runs here");
}

#[test]
fn one_killed_process_ends_a_job_on_hosts() {
    let Some(ssh) = Ssh::start("ssh-killed") else { return };
    let mut job = ssh.caravan("launch --hosts A,B");
    job.arg("--").args(sleeping(&long(5)));
    one_killed_ends_all(job, &long(5), 137);
}

#[test]
fn a_host_whose_connection_breaks_ends_the_job() {
    let Some(ssh) = Ssh::start("ssh-broken") else { return };
    let mut job = ssh.caravan("launch --hosts A,B");
    job.arg("--").args(sleeping(&long(6)));
    let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(job.stdout.as_mut().unwrap()).lines().take(3);
    assert_eq!(lines.count(), 3);
    let config = ssh.config.display().to_string();
    let is_to_b = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"B")
    };
    let shell = pids_with(&config).into_iter().find(is_to_b).unwrap();
    support::signal("KILL", shell);
    assert_eq!(ended(&mut job, PATIENCE).code(), Some(255));
    let mut said = String::new();
    std::io::Read::read_to_string(job.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("B was lost"), "{said}");
    let began = Instant::now();
    while !pids_with(&long(6)).is_empty() {
        assert!(began.elapsed() < PATIENCE, "left: {:?}", pids_with(&long(6)));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn hosts_that_cannot_be_reached_are_named_with_the_reason() {
    let Some(ssh) = Ssh::start("ssh-unreachable") else { return };
    let output = ssh.caravan("bench latency --smoke --hosts A,nowhere.invalid").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("cannot reach nowhere.invalid") && said.contains("resolve"), "{said}");
}

/// Network namespaces of one machine on a switch, and an ssh server in all but the first. Host n
/// has the alias `hostN`.
struct Hosts {
    names: Vec<String>,
    servers: Vec<Child>,
    config: PathBuf,
}

impl Hosts {
    fn start(test: &str, count: usize) -> Option<Hosts> {
        if !["sshd", "ssh", "ip"].into_iter().all(has) {
            return None;
        }
        let ip = |words: &str| {
            let output = Command::new("ip").args(words.split(' ')).output().unwrap();
            output.status.success()
        };
        let id = std::process::id();
        let switch = format!("caravan-{test}-{id}");
        if !is_root() || !ip(&format!("netns add {switch}")) {
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        let folder = folder(test);
        let at = |name: &str| folder.join(name).display().to_string();
        let config = folder.join("ssh_config");
        let mut hosts = Hosts { names: vec![switch.clone()], servers: Vec::new(), config };
        assert!(ip(&format!("-n {switch} link add br0 type bridge")));
        assert!(ip(&format!("-n {switch} link set br0 up")));
        let mut clients = String::new();
        for n in 0..count {
            let name = format!("{switch}-{n}");
            for words in [
                format!("netns add {name}"),
                format!("link add eth0 netns {name} type veth peer name p{n} netns {switch}"),
                format!("-n {switch} link set p{n} master br0 up"),
                format!("-n {name} addr add 192.0.2.{}/24 dev eth0", n + 1),
                format!("-n {name} link set eth0 up"),
                format!("-n {name} link set lo up"),
            ] {
                assert!(ip(&words), "ip {words}");
            }
            hosts.names.push(name.clone());
            if n == 0 {
                continue;
            }
            let address = format!("192.0.2.{}", n + 1);
            if n == 1 {
                let settings = server_settings(&folder, 22, "");
                fs::write(at("sshd_config"), settings).unwrap();
            }
            clients += &client_settings(&folder, &format!("host{n}"), &address, 22);
            let mut server = Command::new("ip");
            server.args(["netns", "exec", &name, "/usr/sbin/sshd", "-D", "-e", "-f"]);
            server.arg(at("sshd_config")).stderr(fs::File::create(at("log")).unwrap());
            hosts.servers.push(server.spawn().unwrap());
        }
        fs::write(&hosts.config, clients).unwrap();
        Some(hosts)
    }

    /// `caravan` with words on the first host. The ssh servers may still be starting, so a run that
    /// fails is made again for a while.
    fn caravan(&self, line: &str) -> std::process::Output {
        let began = Instant::now();
        loop {
            let mut command = support::without_variables("ip");
            command.args(["netns", "exec", &self.names[1], CARAVAN]).args(line.split(' '));
            command.arg("--ssh").arg(format!("ssh -F {}", self.config.display()));
            let output = command.output().unwrap();
            if output.status.success() || began.elapsed() > PATIENCE {
                return output;
            }
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Goal: between two hosts the floor is measured between the same two.
#[test]
fn the_floor_runs_between_the_hosts() {
    let Some(hosts) = Hosts::start("floor", 2) else { return };
    let output = hosts.caravan("bench latency --smoke --van tcp --json --hosts localhost,host1");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(rows_in(&output).len(), 7);
    assert!(!said.contains("this host alone"), "{said}");
}

/// Goal: one command measures every link between hosts, and loads them all.
#[test]
fn every_link_between_hosts_is_measured() {
    let Some(hosts) = Hosts::start("fabric", 8) else { return };
    let names = "localhost,host1,host2,host3,host4,host5,host6,host7";
    let run = format!("bench fabric --smoke --van tcp --json --rounds 1 --hosts {names}");
    let output = hosts.caravan(&run);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = rows_in(&output);
    let links = rows.iter().filter(|row| row["row"] == "link");
    let apart: BTreeSet<_> = links.map(|row| [&row["from"], &row["to"]].map(text_of)).collect();
    assert_eq!(apart.len(), 8 * 7, "{apart:?}");
    let run = "bench load --smoke --van tcp --json --rate 500 --workers 2 --hosts localhost,host1";
    let output = hosts.caravan(run);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(rows_in(&output).last().unwrap()["workers"], 2);
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// A Slurm of three nodes on this machine; without munge, as root.
struct Slurm {
    daemons: Vec<Child>,
    folder: PathBuf,
}

impl Slurm {
    fn start(test: &str) -> Option<Slurm> {
        if !["slurmctld", "slurmd", "srun", "sbatch"].into_iter().all(has) {
            return None;
        }
        if !is_root() {
            eprintln!("skipped: a Slurm of one's own needs root");
            return None;
        }
        let folder = folder(test);
        for part in ["state", "spool/n1", "spool/n2", "spool/n3"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
        let shown = folder.display();
        let mut config = format!(
            "ClusterName=caravan\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={}\n\
             SlurmUser=root\nSlurmdUser=root\nAuthType=auth/none\nCredType=cred/none\n\
             StateSaveLocation={shown}/state\nSlurmdSpoolDir={shown}/spool/%n\n\
             SlurmctldPidFile={shown}/slurmctld.pid\nSlurmdPidFile={shown}/%n.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSwitchType=switch/none\n\
             JobAcctGatherType=jobacct_gather/none\nReturnToService=2\nMpiDefault=none\n\
             SlurmdParameters=config_overrides\nKillWait=2\n\
             PartitionName=debug Nodes=ALL Default=YES State=UP OverSubscribe=YES\n",
            ports[0]
        );
        for (node, port) in ports.iter().enumerate().skip(1) {
            config += &format!(
                "NodeName=n{node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 \
                 RealMemory=500\n"
            );
        }
        fs::write(folder.join("slurm.conf"), config).unwrap();
        let mut slurm = Slurm { daemons: Vec::new(), folder };
        slurm.daemon("slurmctld", &["-D"], "slurmctld");
        for node in ["n1", "n2", "n3"] {
            slurm.daemon("slurmd", &["-D", "-N", node], node);
        }
        let began = Instant::now();
        while !text(&slurm.command("sinfo").output().unwrap().stdout).contains("idle n[1-3]") {
            let log = fs::read_to_string(slurm.folder.join("slurmctld.log")).unwrap();
            assert!(began.elapsed() < PATIENCE, "{log}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Some(slurm)
    }

    fn daemon(&mut self, program: &str, arguments: &[&str], name: &str) {
        let log = fs::File::create(self.folder.join(format!("{name}.log"))).unwrap();
        let mut command = self.command(&format!("/usr/sbin/{program}"));
        command.args(arguments).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    /// A command of this Slurm.
    fn command(&self, program: &str) -> Command {
        let mut command = support::without_variables(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf")).current_dir(&self.folder);
        command
    }

    /// A batch job of so many nodes that runs one line.
    fn batch(&self, nodes: &str, line: &str) -> Command {
        let script = self.folder.join("job.sh");
        fs::write(&script, format!("#!/bin/sh\nexec {line}\n")).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = self.command("sbatch");
        command.args(["--wait", "--output=out", "--error=err", "--cpus-per-task=4", nodes]);
        command.arg(script);
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn tasks_of_srun_take_their_roles() {
    let Some(slurm) = Slurm::start("slurm-tasks") else { return };
    let bench =
        ["launch", "--", "caravan", "bench", "latency", "--smoke", "--van", "tcp", "--json"];
    let of_one_node = ["--nodes=1", "--ntasks=3", "--kill-on-bad-exit", CARAVAN];
    assert_eq!(rows(slurm.command("srun").args(of_one_node).args(bench)).len(), 7);
    // The nodes' names mean nothing here outside Slurm.
    let scheduler = support::free_address();
    let of_three = ["--nodes=3", "--ntasks=3", "--kill-on-bad-exit", CARAVAN];
    let mut job = slurm.command("srun");
    job.args(of_three).args(bench).env("CARAVAN_SCHEDULER", scheduler);
    assert_eq!(rows(&mut job).len(), 7);
    let output = slurm.command("srun").args(["--ntasks=4", CARAVAN]).args(bench).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.contains("Slurm (SLURM_PROCID) has started 4 processes") && said.contains("are 3"),
        "{said}"
    );
}

#[test]
fn a_batch_script_launches_on_all_nodes_of_its_job() {
    let Some(slurm) = Slurm::start("slurm-batch") else { return };
    let bench = "launch --workers 2 --servers 1 -- caravan bench rate --smoke --van tcp --json";
    let output = slurm.batch("--nodes=3", &format!("{CARAVAN} {bench}")).output().unwrap();
    let (out, err) = (slurm.read("out"), slurm.read("err"));
    assert!(output.status.success(), "{out}{err}");
    let rows: Vec<Value> = out.lines().map(|row| serde_json::from_str(row).expect(row)).collect();
    assert_eq!(rows.len(), 3, "{out}{err}");
    assert_eq!(rows[1]["workers"], 2);
    let script = "launch --workers 2 -- sh -c 'echo $CARAVAN_ROLE $SLURMD_NODENAME'";
    let output = slurm.batch("--nodes=3", &format!("{CARAVAN} {script}")).output().unwrap();
    let mut lines: Vec<String> = slurm.read("out").lines().map(str::to_owned).collect();
    lines.sort();
    assert!(output.status.success(), "{lines:?}{}", slurm.read("err"));
    let nodes = [
        "scheduler n1",
        "server 0 on n1: server n1",
        "worker 0 on n2: worker n2",
        "worker 1 on n3: worker n3",
    ];
    assert_eq!(lines, nodes);
}

#[test]
fn one_killed_process_ends_a_job_of_slurm() {
    let Some(slurm) = Slurm::start("slurm-killed") else { return };
    let mut job = slurm.command("salloc");
    job.args(["--nodes=2", "--quiet", CARAVAN, "launch", "--"]).args(sleeping(&long(7)));
    one_killed_ends_all(job, &long(7), 137);
}

/// `mpirun` and `mpiexec` of both implementations, three processes each.
#[test]
fn processes_of_mpi_take_their_roles() {
    let as_root = ["--allow-run-as-root", "--oversubscribe"];
    for (program, options) in [("mpirun.openmpi", &as_root[..]), ("mpiexec.hydra", &[])] {
        if !has(program) {
            continue;
        }
        let mut job = support::without_variables(program);
        job.args(options).args(["-n", "3", CARAVAN, "launch", "--", "caravan", "bench", "latency"]);
        job.args(["--smoke", "--van", "tcp", "--json"]);
        assert_eq!(rows(&mut job).len(), 7, "{program}");
        let mut job = support::without_variables(program);
        // mpirun ends its processes; what they have started is theirs to end.
        let script = format!("echo $CARAVAN_ROLE $$; exec sleep {}", long(8));
        job.args(options).args(["-n", "3", CARAVAN, "launch", "--", "sh", "-c", &script]);
        let mut job = job.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(job.stdout.as_mut().unwrap()).lines().take(3);
        let lines: Vec<String> = lines.map(Result::unwrap).collect();
        let worker = lines.iter().find(|line| line.starts_with("worker")).unwrap();
        support::signal("KILL", worker.rsplit(' ').next().unwrap().parse().unwrap());
        assert!(!ended(&mut job, PATIENCE).success(), "{program}");
        let began = Instant::now();
        while !pids_with(&long(8)).is_empty() {
            assert!(began.elapsed() < PATIENCE, "left: {:?}", pids_with(&long(8)));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
