//! Each check finds what a small tree of files has wrong, alone, and nothing in one that is well.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

const PORT: &str = "/sys/class/infiniband/mlx5_0/ports/1";
const ETH: &str = "/sys/class/net/eth0";
const CPU0: &str = "/sys/devices/system/cpu/cpu0";

/// A machine that is well: two sockets, a fast card, an RDMA device on Ethernet.
const WELL: &[(&str, &str)] = &[
    ("{cpu0}/cpufreq/scaling_governor", "performance"),
    ("{cpu0}/cpufreq/scaling_max_freq", "3500000"),
    ("{cpu0}/cpufreq/cpuinfo_max_freq", "3500000"),
    ("{cpu0}/cpuidle/state0/latency", "2"),
    ("{cpu0}/cpuidle/state1/latency", "133"),
    ("{cpu0}/cpuidle/state1/disable", "1"),
    ("/sys/devices/system/cpu/online", "0-15"),
    ("/sys/devices/system/cpu/intel_pstate/no_turbo", "0"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
    ("/sys/devices/system/node/online", "0-1"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
    ("/sys/fs/cgroup/job/one/cpu.max", "max 100000"),
    ("/sys/fs/cgroup/job/one/memory.max", "max"),
    ("/sys/fs/cgroup/job/one/pids.max", "max"),
    ("/proc/self/cgroup", "5:pids:/\n4:memory:/job\n3:cpu,cpuacct:/job/one\n0::/job/one"),
    // Version 1, beside it: no quota, and no limit of memory.
    ("/sys/fs/cgroup/cpu,cpuacct/job/one/cpu.cfs_quota_us", "-1"),
    ("/sys/fs/cgroup/cpu,cpuacct/job/one/cpu.cfs_period_us", "100000"),
    ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712"),
    ("/sys/fs/cgroup/pids/pids.max", "max"),
    (
        "/proc/self/status",
        "Name:\tcaravan\nSeccomp:\t0\nCapEff:\t0\nCpus_allowed_list:\t0-15\n\
         Mems_allowed_list:\t0-1",
    ),
    (
        "/proc/self/limits",
        "Max processes  127236  127236  processes\nMax open files  1024  1048576  files\n\
         Max locked memory  unlimited  unlimited  bytes",
    ),
    ("/proc/loadavg", "0.10 0.2 0.3 1/200 4000"),
    ("/proc/stat", "cpu  1000 0 100 9000 0 0 0 10 0 0"),
    (
        "/proc/meminfo",
        "MemTotal: 99 kB\nMemAvailable: 9000000 kB\nSwapTotal: 500000 kB\nSwapFree: 500000 kB",
    ),
    ("/proc/cmdline", "ro quiet iommu=pt"),
    ("/proc/sys/kernel/numa_balancing", "0"),
    ("/proc/sys/kernel/io_uring_disabled", "0"),
    ("/proc/sys/vm/zone_reclaim_mode", "0"),
    ("/proc/sys/vm/nr_hugepages", "0"),
    ("/proc/sys/vm/overcommit_memory", "0"),
    ("/proc/sys/net/ipv4/tcp_window_scaling", "1"),
    ("/proc/sys/net/ipv4/tcp_sack", "1"),
    ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456"),
    ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304"),
    ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999"),
    ("/proc/sys/net/core/somaxconn", "4096"),
    ("/proc/sys/net/netfilter/nf_conntrack_count", "100"),
    ("/proc/sys/net/netfilter/nf_conntrack_max", "262144"),
    ("/sys/class/net/lo/flags", "0x9"),
    ("{eth}/flags", "0x1003"),
    ("{eth}/operstate", "up"),
    ("{eth}/speed", "100000"),
    ("{eth}/duplex", "full"),
    ("{eth}/mtu", "9000"),
    ("{eth}/queues/rx-0/rps_cpus", "0"),
    ("{eth}/queues/rx-1/rps_cpus", "0"),
    ("{eth}/statistics/rx_packets", "1000000"),
    ("{eth}/statistics/rx_errors", "0"),
    ("{eth}/device/current_link_width", "16"),
    ("{eth}/device/max_link_width", "16"),
    ("/sys/class/iommu/dmar0/name", ""),
    ("/dev/infiniband/uverbs0", ""),
    ("/dev/infiniband/rdma_cm", ""),
    ("/sys/class/infiniband/mlx5_0/device/numa_node", "1"),
    ("/sys/class/infiniband/mlx5_0/device/current_link_speed", "16.0 GT/s PCIe"),
    ("/sys/class/infiniband/mlx5_0/device/max_link_speed", "16.0 GT/s PCIe"),
    ("{port}/state", "4: ACTIVE"),
    ("{port}/link_layer", "Ethernet"),
    ("{port}/rate", "100 Gb/sec (4X EDR)"),
    ("{port}/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001"),
    ("{port}/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0207"),
    ("{port}/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
    ("{port}/gid_attrs/types/0", "IB/RoCE v1"),
    ("{port}/gid_attrs/types/1", "RoCE v2"),
    ("{port}/pkeys/0", "0xffff"),
    ("{port}/pkeys/1", "0x0000"),
    ("{port}/counters/symbol_error", "0"),
    ("{port}/hw_counters/packet_seq_err", "2"),
];

/// What is wrong, and with which files; an empty text stands for a file that is not there.
const WRONG: &[(&str, &[(&str, &str)])] = &[
    ("governor", &[("{cpu0}/cpufreq/scaling_governor", "powersave")]),
    ("frequency-limit", &[("{cpu0}/cpufreq/scaling_max_freq", "1200000")]),
    ("turbo", &[("/sys/devices/system/cpu/intel_pstate/no_turbo", "1")]),
    ("turbo", &[("/sys/devices/system/cpu/cpufreq/boost", "0")]),
    ("idle-states", &[("{cpu0}/cpuidle/state1/disable", "0")]),
    ("clock", &[("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")]),
    ("cores", &[("/proc/self/status", "Cpus_allowed_list:\t0,2\n")]),
    ("cpu-limit", &[("/sys/fs/cgroup/job/one/cpu.max", "150000 100000")]),
    // A limit of the group above holds, too.
    ("cpu-limit", &[("/sys/fs/cgroup/job/cpu.max", "50000 100000")]),
    ("cpu-limit", &[("/sys/fs/cgroup/cpu,cpuacct/job/one/cpu.cfs_quota_us", "50000")]),
    (
        "cpu-limit",
        &[
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ],
    ),
    ("busy", &[("/proc/loadavg", "12.5 3.0 1.0 14/200 4000")]),
    ("steal", &[("/proc/stat", "cpu  1000 0 100 8000 0 0 0 900 0 0")]),
    ("numa-balancing", &[("/proc/sys/kernel/numa_balancing", "1")]),
    ("zone-reclaim", &[("/proc/sys/vm/zone_reclaim_mode", "1")]),
    ("huge-pages", &[("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")]),
    ("overcommit", &[("/proc/sys/vm/overcommit_memory", "2")]),
    (
        "swap",
        &[("/proc/meminfo", "MemAvailable: 9000000 kB\nSwapTotal: 500000 kB\nSwapFree: 9 kB")],
    ),
    ("memory", &[("/proc/meminfo", "MemAvailable: 90000 kB")]),
    ("memory-limit", &[("/sys/fs/cgroup/job/memory.max", "536870912")]),
    ("memory-limit", &[("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912")]),
    ("open-files", &[("/proc/self/limits", "Max open files  1024  1024  files")]),
    ("processes", &[("/proc/self/limits", "Max processes  100  100  processes")]),
    ("pids-limit", &[("/sys/fs/cgroup/job/one/pids.max", "64")]),
    ("pids-limit", &[("/sys/fs/cgroup/pids/pids.max", "64")]),
    ("io-uring", &[("/proc/sys/kernel/io_uring_disabled", "2")]),
    ("seccomp", &[("/proc/self/status", "Seccomp:\t2\nCpus_allowed_list:\t0-15")]),
    ("loopback", &[("/sys/class/net/lo/flags", "0x8")]),
    ("link-down", &[("{eth}/operstate", "down")]),
    ("link-slow", &[("{eth}/speed", "100")]),
    ("half-duplex", &[("{eth}/duplex", "half")]),
    ("mtu", &[("{eth}/mtu", "1500")]),
    ("queues", &[("{eth}/queues/rx-1", "")]),
    ("discards", &[("{eth}/statistics/rx_errors", "5000")]),
    ("window-scaling", &[("/proc/sys/net/ipv4/tcp_window_scaling", "0")]),
    ("selective-acknowledgement", &[("/proc/sys/net/ipv4/tcp_sack", "0")]),
    ("socket-buffers", &[("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 212992")]),
    ("backlog", &[("/proc/sys/net/core/somaxconn", "128")]),
    ("ports", &[("/proc/sys/net/ipv4/ip_local_port_range", "60000 60999")]),
    ("firewall-table", &[("/proc/sys/net/netfilter/nf_conntrack_count", "262000")]),
    ("rdma-files", &[("/dev/infiniband", "")]),
    ("rdma-manager", &[("/dev/infiniband/rdma_cm", "")]),
    ("rdma-port", &[("{port}/state", "1: DOWN")]),
    ("subnet-manager", &[("{port}/state", "2: INIT"), ("{port}/link_layer", "InfiniBand")]),
    ("rdma-address", &[("{port}/gids/1", "")]),
    ("roce-version", &[("{port}/gid_attrs/types/1", "IB/RoCE v1")]),
    ("partition", &[("{port}/pkeys/0", "0x7fff")]),
    ("rdma-width", &[("{port}/link_layer", "InfiniBand"), ("{port}/rate", "25 Gb/sec (1X EDR)")]),
    ("rdma-errors", &[("{port}/counters/symbol_error", "4000")]),
    ("flow-control", &[("{port}/hw_counters/packet_seq_err", "9000")]),
    ("memlock", &[("/proc/self/limits", "Max locked memory  8388608  8388608  bytes")]),
    ("rdma-node", &[("/proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0")]),
    ("pcie", &[("{eth}/device/current_link_width", "8")]),
    ("pcie", &[("/sys/class/infiniband/mlx5_0/device/current_link_speed", "8.0 GT/s PCIe")]),
    ("iommu", &[("/proc/cmdline", "ro quiet intel_iommu=on")]),
];

/// What a cluster sees that has 4 threads and uses 8 GiB.
fn seen(root: &Path) -> Seen {
    let root = Root(root.to_owned());
    Seen { root, threads: 4, memory_bytes: 8 << 30, uring_is_refused: true }
}

/// The machine that is well, as a tree of files.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Tree(tempfile::tempdir().unwrap());
        WELL.iter().for_each(|(path, text)| tree.write(path, text));
        tree
    }

    fn at(&self, path: &str) -> PathBuf {
        let path = path.replace("{port}", PORT).replace("{eth}", ETH).replace("{cpu0}", CPU0);
        self.0.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), format!("{text}\n")).unwrap();
    }

    fn remove(&self, path: &str) {
        match self.at(path) {
            folder if folder.is_dir() => fs::remove_dir_all(folder).unwrap(),
            file => fs::remove_file(file).unwrap(),
        }
    }

    /// What is found while some files are wrong.
    fn found(&self, wrong: &[(&str, &str)]) -> Vec<Finding> {
        for (path, text) in wrong {
            match text.is_empty() {
                true => self.remove(path),
                false => self.write(path, text),
            }
        }
        let found = all(&seen(self.0.path()));
        wrong.iter().filter(|(_, text)| !text.is_empty()).for_each(|(path, _)| self.remove(path));
        let is_wrong = |well: &str| wrong.iter().any(|(path, _)| well.starts_with(path));
        WELL.iter().filter(|(path, _)| is_wrong(path)).for_each(|(path, text)| {
            self.write(path, text);
        });
        found
    }
}

#[test]
fn nothing_is_found_where_all_is_well_or_nothing_can_be_read() {
    assert_eq!(Tree::new().found(&[]), []);
    assert_eq!(all(&seen(Path::new("/no/such/folder"))), []);
}

#[test]
fn each_thing_that_is_wrong_is_found_alone_with_a_remedy_and_a_command() {
    let tree = Tree::new();
    for (check, files) in WRONG {
        let found = tree.found(files);
        let names: Vec<&str> = found.iter().map(|finding| finding.check.as_str()).collect();
        assert_eq!(names, [*check], "{found:?}");
        let Finding { what, remedy, command, .. } = &found[0];
        assert!(!what.is_empty() && !remedy.is_empty() && !command.is_empty(), "{found:?}");
        assert!(!command.contains("{}"), "{command}");
    }
    assert_eq!(tree.found(&[]), [], "the tree is as it was");
}

#[test]
fn every_check_is_tried_here() {
    let checks = [host::CHECKS, network::CHECKS, devices::CHECKS].into_iter().flatten();
    let names: Vec<&str> = checks.map(|check| check.name).collect();
    let tried: BTreeSet<&str> = WRONG.iter().map(|(check, _)| *check).collect();
    assert_eq!(names.iter().copied().collect::<BTreeSet<_>>(), tried);
    assert!(names.len() == tried.len() && tried.len() >= 30, "each has a name of its own");
}

#[test]
fn commands_name_the_interface_the_device_or_what_is_needed() {
    let tree = Tree::new();
    let command = |wrong| tree.found(&[wrong])[0].command.clone();
    let finding = &tree.found(&[("{eth}/mtu", "1500")])[0];
    assert_eq!(finding.command, "ip link set eth0 mtu 9000");
    assert!(finding.what.contains("eth0") && finding.what.contains("1500"), "{finding:?}");
    assert_eq!(command(("{port}/state", "1: DOWN")), "rdma link | grep mlx5_0");
    let groups = "/sys/fs/cgroup/job/one";
    let cpus = format!("{groups}/cpu.max");
    assert_eq!(command((&cpus, "150000 100000")), "docker update --cpus 4 CONTAINER");
    let memory = format!("{groups}/memory.max");
    let raise = "docker update --memory 8192m --memory-swap -1 CONTAINER";
    assert_eq!(command((&memory, "536870912")), raise);
    let pids = format!("{groups}/pids.max");
    assert_eq!(command((&pids, "64")), "docker update --pids-limit 128 CONTAINER");
}
