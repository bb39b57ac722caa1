//! Goal: the program finds what hurts where it really is so, within the time that it promises.
//! Method: two network namespaces, each with mounts of its own: one is left as it is made, the
//! other has all misconfigurations at once that limits, settings of the namespace and files mounted
//! over the kernel's can make. What needs cards and firmware has trees of files instead
//! (`doctor/findings/tests.rs`), and the virtual machine.
#![cfg(target_os = "linux")]

use crate::support;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// As long as the doctor may take, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to do to a namespace, and what is found then.
const WRONG: &[(&str, &[&str])] = &[
    ("true", &["loopback"]), // it is down in a new namespace
    ("sysctl -qw net.ipv4.tcp_window_scaling=0", &["window-scaling"]),
    ("sysctl -qw net.ipv4.tcp_sack=0", &["selective-acknowledgement"]),
    ("sysctl -qw 'net.ipv4.tcp_wmem=4096 16384 65536'", &["socket-buffers"]),
    ("sysctl -qw net.core.somaxconn=64", &["backlog"]),
    ("sysctl -qw 'net.ipv4.ip_local_port_range=60000 60500'", &["ports"]),
    ("prlimit --pid $$ --nofile=512:512", &["open-files"]),
    ("prlimit --pid $$ --nproc=500:500", &["processes"]),
    ("taskset -pc 0 $$", &["cores"]),
    ("over /proc/loadavg '12.5 3.0 1.0 14/200 4000'", &["busy"]),
    ("over /proc/stat 'cpu  1000 0 100 8000 0 0 0 900 0 0'", &["steal"]),
    (
        "over /proc/meminfo 'MemTotal: 9900000 kB\nMemAvailable: 90000 kB\nSwapTotal: 500000 kB\n\
         SwapFree: 9 kB'",
        &["memory", "swap"],
    ),
    ("over /proc/sys/vm/overcommit_memory 2", &["overcommit"]),
    ("over /proc/sys/vm/zone_reclaim_mode 1", &["zone-reclaim"]),
    ("over /proc/sys/kernel/io_uring_disabled 2", &["io-uring"]),
    ("over /sys/kernel/mm/transparent_hugepage/enabled 'always madvise [never]'", &["huge-pages"]),
    (
        "over /proc/$$/cgroup 0::/ && mount -t tmpfs none /sys/fs/cgroup && \
         echo 50000 100000 >/sys/fs/cgroup/cpu.max && \
         echo 268435456 >/sys/fs/cgroup/memory.max && echo 32 >/sys/fs/cgroup/pids.max",
        &["cpu-limit", "memory-limit", "pids-limit"],
    ),
];

/// `over FILE TEXT`: the file has this text here.
const OVER: &str = "over() { it=$(mktemp) && printf '%s\\n' \"$2\" >$it && mount --bind $it $1; }";

/// What the doctor finds in a new namespace after these commands.
fn found(name: &str, commands: &str) -> BTreeSet<String> {
    let ip = |words: &[&str]| Command::new("ip").args(words).status().unwrap().success();
    assert!(ip(&["netns", "add", name]));
    let script = format!("{commands}\nexec \"$0\" doctor --json --threads 2 --workers 2");
    let mut command = support::without_variables("ip");
    command.args(["netns", "exec", name, "sh", "-c", &script, env!("CARGO_BIN_EXE_caravan")]);
    let began = Instant::now();
    let output = command.output();
    assert!(ip(&["netns", "del", name]));
    let output = output.unwrap();
    let said = support::text(&output.stderr);
    assert!(began.elapsed() < PATIENCE, "{said}");
    let rows = support::rows_in(&output);
    assert!(!rows.is_empty(), "{said}");
    let findings = rows.iter().filter(|row| row["row"] == "finding");
    findings.map(|row| row["check"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_made_wrong_is_found() {
    let works = |program: &str, word: &str| {
        let mut command = Command::new(program);
        command.arg(word).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let programs = ["sysctl", "prlimit", "taskset", "mount"];
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !works("ip", "netns") || !programs.iter().all(|it| works(it, "--version")) {
        eprintln!("skipped: namespaces need root, iproute2, procps and util-linux");
        return;
    }
    let name = |which: &str| format!("caravan-doctor-{which}-{}", std::process::id());
    let well = found(&name("well"), "ip link set lo up");
    // What this machine has wrong by itself is no finding of ours, and a file that its kernel does
    // not have cannot be mounted over.
    let can_be_made = |command: &str| {
        let path = command.strip_prefix("over ").and_then(|rest| rest.split(' ').next());
        path.is_none_or(|path| path.contains("$$") || std::path::Path::new(path).exists())
    };
    let made: Vec<_> = WRONG.iter().filter(|(command, _)| can_be_made(command)).collect();
    let commands: Vec<String> =
        made.iter().map(|(command, _)| format!("{{ {command}; }} >/dev/null || exit 9")).collect();
    let wrong = found(&name("wrong"), &format!("{OVER}\n{}", commands.join("\n")));
    let of_ours: BTreeSet<&str> =
        made.iter().flat_map(|(_, checks)| checks.iter().copied()).collect();
    println!("{} of them made", of_ours.len());
    for check in of_ours {
        assert!(wrong.contains(check), "{check} is not among {wrong:?}");
    }
    // Those that belong to the namespace are not there where it is well.
    for check in ["loopback", "window-scaling", "selective-acknowledgement", "backlog", "ports"] {
        assert!(!well.contains(check), "{check} is among {well:?}");
    }
}
