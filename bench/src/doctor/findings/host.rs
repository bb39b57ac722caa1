//! Cores, memory and the limits of this process.

use super::check::{Check, Seen, here, short_of};
use super::root::{Root, list_len};

const CPU: &str = "/sys/devices/system/cpu";
const MIB: f64 = (1 << 20) as f64;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "governor",
        find: |seen| {
            let path = format!("{CPU}/cpu0/cpufreq/scaling_governor");
            let governor = seen.root.text(&path).filter(|governor| governor != "performance");
            here(governor.map(|it| format!("the governor of the cores' frequency is {it}")))
        },
        remedy: "let the cores keep their highest frequency",
        command: "cpupower frequency-set -g performance",
    },
    Check {
        name: "frequency-limit",
        find: |seen| {
            let of = |file| seen.root.number(&format!("{CPU}/cpu0/cpufreq/{file}"));
            let limits = of("scaling_max_freq").zip(of("cpuinfo_max_freq"));
            let low = limits.filter(|(limit, most)| *limit < 0.95 * most);
            here(low.map(|(limit, most)| {
                format!("cores are held to {} of {} MHz", limit / 1e3, most / 1e3)
            }))
        },
        remedy: "lift the limit, or look for a limit on power or heat",
        command: "cpupower frequency-set -u \
                  $(cat /sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq)",
    },
    Check {
        name: "turbo",
        find: |seen| {
            let is = |file: &str, value| seen.root.number(&format!("{CPU}/{file}")) == Some(value);
            let is_off = is("intel_pstate/no_turbo", 1.0) || is("cpufreq/boost", 0.0);
            here(is_off.then(|| "turbo frequencies are turned off".to_owned()))
        },
        remedy: "allow them",
        command: "echo 0 >/sys/devices/system/cpu/intel_pstate/no_turbo || \
                  echo 1 >/sys/devices/system/cpu/cpufreq/boost",
    },
    Check {
        name: "idle-states",
        find: |seen| here(deep_idle(&seen.root)),
        remedy: "keep the cores from sleeping that deep",
        command: "cpupower idle-set -D 20",
    },
    Check {
        name: "clock",
        find: |seen| {
            let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            let slow = seen
                .root
                .text(path)
                .filter(|it| ["hpet", "acpi_pm", "jiffies"].contains(&it.as_str()));
            here(slow.map(|it| format!("the clock is {it}: each look at it is a slow system call")))
        },
        remedy: "use the processor's clock; see in dmesg why the kernel has left it",
        command: "echo tsc >/sys/devices/system/clocksource/clocksource0/current_clocksource",
    },
    Check {
        name: "cores",
        find: |seen| {
            let list = seen.root.entry("/proc/self/status", "Cpus_allowed_list:");
            let few = list.map(|list| list_len(&list)).filter(|cores| *cores < seen.threads);
            here(few.map(|cores| {
                format!("{} threads of servers and workers have {cores} cores", seen.threads)
            }))
        },
        remedy: "take fewer --threads, --servers or --workers, another host, or a wider cpuset",
        command: "taskset -pc $$; nproc --all",
    },
    Check {
        name: "cpu-limit",
        find: |seen| {
            let groups = seen.root.groups("cpu").into_iter();
            let least = groups.filter_map(|group| quota(&seen.root, &group)).reduce(f64::min);
            let least = least.filter(|cpus| *cpus < seen.threads as f64);
            short_of(
                seen.threads,
                least.map(|cpus| {
                    format!("the control group allows {cpus:.1} CPUs to {} threads", seen.threads)
                }),
            )
        },
        remedy: "raise the container's limit on CPU, or take fewer threads",
        command: "docker update --cpus {} CONTAINER",
    },
    Check {
        name: "busy",
        find: |seen| {
            let cores = seen.root.entry("/proc/self/status", "Cpus_allowed_list:");
            let load = seen.root.number("/proc/loadavg").zip(cores.map(|list| list_len(&list)));
            let much = load.filter(|(load, cores)| *load > 0.5 * *cores as f64 + 0.5);
            here(
                much.map(|(load, cores)| {
                    format!("{load} threads run here already, on {cores} cores")
                }),
            )
        },
        remedy: "measure on an idle machine",
        command: "top -b -n 1 -o %CPU",
    },
    Check {
        name: "steal",
        find: |seen| here(stolen(&seen.root)),
        remedy: "ask for cores of its own, as figures follow the neighbours",
        command: "vmstat 1 5",
    },
    Check {
        name: "numa-balancing",
        find: |seen| {
            let nodes = seen.root.text("/sys/devices/system/node/online");
            let many = nodes.is_some_and(|list| list_len(&list) > 1);
            let is_on =
                seen.root.number("/proc/sys/kernel/numa_balancing").is_some_and(|it| it > 0.0);
            here((many && is_on).then(|| {
                "the kernel moves pages between NUMA nodes, which Caravan has placed".to_owned()
            }))
        },
        remedy: "turn it off",
        command: "sysctl -w kernel.numa_balancing=0",
    },
    Check {
        name: "zone-reclaim",
        find: |seen| {
            let is_on =
                seen.root.number("/proc/sys/vm/zone_reclaim_mode").is_some_and(|it| it > 0.0);
            here(
                is_on.then(|| "a full NUMA node stalls, though others have free memory".to_owned()),
            )
        },
        remedy: "turn it off",
        command: "sysctl -w vm.zone_reclaim_mode=0",
    },
    Check {
        name: "huge-pages",
        find: |seen| {
            let path = "/sys/kernel/mm/transparent_hugepage/enabled";
            let is_off = seen.root.text(path).is_some_and(|it| it.contains("[never]"));
            let none = seen.root.number("/proc/sys/vm/nr_hugepages").is_none_or(|it| it == 0.0);
            here((is_off && none).then(|| "no memory can have huge pages".to_owned()))
        },
        remedy: "allow transparent ones, or reserve some",
        command: "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
    },
    Check {
        name: "overcommit",
        find: |seen| {
            let is_strict = seen.root.number("/proc/sys/vm/overcommit_memory") == Some(2.0);
            here(is_strict.then(|| "memory that is reserved counts as used".to_owned()))
        },
        remedy: "let the kernel count what is touched, or set CARAVAN_MEMORY low",
        command: "sysctl -w vm.overcommit_memory=0",
    },
    Check {
        name: "swap",
        find: |seen| {
            let of = |key| seen.root.counted("/proc/meminfo", key);
            let used = of("SwapTotal:").zip(of("SwapFree:")).map(|(total, free)| total - free);
            let much = used.map(|kib| kib / 1024.0).filter(|mib| *mib > 64.0);
            here(much.map(|mib| format!("{mib:.0} MiB of memory lie in swap")))
        },
        remedy: "free memory, and turn swap off",
        command: "swapoff -a",
    },
    Check {
        name: "memory",
        find: |seen| {
            let free = seen.root.counted("/proc/meminfo", "MemAvailable:").map(|kib| kib / 1024.0);
            here(
                free.filter(|mib| *mib < 512.0)
                    .map(|mib| format!("{mib:.0} MiB of memory are free")),
            )
        },
        remedy: "end what takes it, or set CARAVAN_MEMORY low",
        command: "ps aux --sort -rss | head",
    },
    Check {
        name: "memory-limit",
        find: |seen| {
            let files = ["memory.max", "memory.limit_in_bytes"];
            let least = seen.root.least_of_groups("memory", &files);
            let low = least.filter(|bytes| *bytes < seen.memory_bytes as f64);
            let asked = seen.memory_bytes as f64 / MIB;
            short_of(asked.ceil(), low.map(|bytes| {
                format!(
                    "the control group is ended beyond {:.0} MiB, CARAVAN_MEMORY allows {asked:.0}",
                    bytes / MIB
                )
            }))
        },
        remedy: "raise the container's limit, or set CARAVAN_MEMORY below it",
        command: "docker update --memory {}m --memory-swap -1 CONTAINER",
    },
    Check {
        name: "open-files",
        find: |seen| here(limit(seen, "Max open files", 4096.0, "files open")),
        remedy: "raise the hard limit: each peer takes one or two",
        command: "ulimit -Hn 1048576",
    },
    Check {
        name: "processes",
        find: |seen| here(limit(seen, "Max processes", 1024.0, "threads of this user")),
        remedy: "raise the limit",
        command: "ulimit -Hu unlimited",
    },
    Check {
        name: "pids-limit",
        find: |seen| {
            let least = seen.root.least_of_groups("pids", &["pids.max"]);
            let needed = 128.0_f64.max(4.0 * seen.threads as f64);
            let low = least.filter(|pids| *pids < needed);
            short_of(needed, low.map(|pids| format!("the control group allows {pids} threads")))
        },
        remedy: "raise the container's limit on processes",
        command: "docker update --pids-limit {} CONTAINER",
    },
    Check {
        name: "io-uring",
        find: |seen| {
            let off = seen.root.number("/proc/sys/kernel/io_uring_disabled").filter(|it| *it > 0.0);
            here(off.map(|it| format!("kernel.io_uring_disabled is {it}")))
        },
        remedy: "allow io_uring, or take --van tcp",
        command: "sysctl -w kernel.io_uring_disabled=0",
    },
    Check {
        name: "seccomp",
        find: |seen| {
            let is_filtered =
                seen.root.entry("/proc/self/status", "Seccomp:").as_deref() == Some("2");
            here((is_filtered && seen.uring_is_refused).then(|| {
                "io_uring is refused, and a filter of system calls (seccomp) is in force".to_owned()
            }))
        },
        remedy: "use a profile that allows io_uring, or --van tcp",
        command: "docker run --security-opt seccomp=unconfined IMAGE",
    },
];

/// The CPUs that a control group allows, if it has a quota: of version 2 or of version 1.
fn quota(root: &Root, group: &str) -> Option<f64> {
    let number = |file: &str| root.number(&format!("{group}/{file}"));
    let period_of = |line: String| line.split_once(' ')?.1.parse().ok();
    let [quota, period] = match root.text(&format!("{group}/cpu.max")) {
        Some(line) => [number("cpu.max")?, period_of(line)?],
        None => [number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?],
    };
    (quota > 0.0).then_some(quota / period)
}

/// States that cores sleep in and take 50 µs or more to wake from, if they are allowed.
fn deep_idle(root: &Root) -> Option<String> {
    let folder = format!("{CPU}/cpu0/cpuidle");
    let deep = root.names(&folder).into_iter().filter_map(|state| {
        let of = |file| root.number(&format!("{folder}/{state}/{file}"));
        let us = of("latency").filter(|us| *us >= 50.0)?;
        (of("disable") != Some(1.0)).then_some(us)
    });
    deep.reduce(f64::max).map(|us| format!("cores sleep so deep that waking takes {us} µs"))
}

/// The share of its time that a virtual machine had to wait for cores.
fn stolen(root: &Root) -> Option<String> {
    let line = root.entry("/proc/stat", "cpu ")?;
    let times: Vec<f64> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    let share = times.get(7)? / times.iter().take(8).sum::<f64>();
    (share > 0.02).then(|| format!("the host has taken {:.0} % of the time", share * 100.0))
}

/// A hard limit of this process that is below `least`.
fn limit(seen: &Seen, key: &str, least: f64, of: &str) -> Option<String> {
    let line = seen.root.entry("/proc/self/limits", key)?;
    let hard: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    (hard < least).then(|| format!("at most {hard} {of}"))
}
