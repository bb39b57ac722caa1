//! The machine a number was measured on. Whatever cannot be read is left out of the text, never guessed.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::report::Shown;

/// The first row of every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Model name.
    pub(crate) cpu: String,
    /// Cores this process may use.
    pub(crate) cores: usize,
    /// NUMA nodes that are online.
    pub(crate) numa_nodes: usize,
    /// Name and release.
    pub(crate) kernel: String,
    /// The interface of the default route and any RDMA device, each with driver, rate and MTU where known.
    pub(crate) nic: String,
    /// The commit this program was built from.
    pub(crate) commit: String,
    /// The version of this program.
    pub(crate) caravan: String,
}

impl Machine {
    /// Reads what this machine says of itself.
    pub(crate) fn read() -> Self {
        Machine {
            cpu: cpu_model(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            numa_nodes: line("/sys/devices/system/node/online").map_or(1, |list| count(&list)),
            kernel: kernel(),
            nic: nics(),
            commit: env!("BUILD_COMMIT").to_owned(),
            caravan: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The lines a person reads before the figures, each beginning with `#`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let command: Vec<String> = std::env::args().collect();
        let mut lines = vec![
            format!("# cpu      {} ({} cores usable)", self.cpu, self.cores),
            format!("# numa     {} {}", self.numa_nodes, plural(self.numa_nodes, "node")),
            format!("# nic      {}", self.nic),
            format!("# kernel   {}", self.kernel),
        ];
        if let Some(governor) = line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
            lines.push(format!("# governor {governor}"));
        }
        if let Some(pages) = line("/proc/sys/vm/nr_hugepages") {
            lines.push(format!("# huge     {pages} pages reserved"));
        }
        lines.push(format!(
            "# caravan  {} commit {}, {} build by {}",
            self.caravan,
            self.commit,
            env!("BUILD_PROFILE"),
            env!("BUILD_RUSTC")
        ));
        lines.push(format!("# command  {}", command.join(" ")));
        lines
    }
}

impl Shown for Machine {
    fn text(&self) -> String {
        self.lines().join("\n")
    }
}

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Arm kernels give no model name; the part number is better than nothing.
    ["model name", "Model", "CPU part"]
        .iter()
        .find_map(|key| info.lines().find_map(|l| l.strip_prefix(key)?.trim().strip_prefix(':')))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |model| model.trim().to_owned())
}

fn kernel() -> String {
    let name = line("/proc/sys/kernel/ostype").unwrap_or_else(|| std::env::consts::OS.to_owned());
    match line("/proc/sys/kernel/osrelease") {
        Some(release) => format!("{name} {release}"),
        None => name,
    }
}

fn nics() -> String {
    let mut nics: Vec<String> = default_interface().iter().map(|name| interface(name)).collect();
    nics.extend(rdma_devices());
    if nics.is_empty() { "none".to_owned() } else { nics.join("; ") }
}

/// The RDMA devices the kernel knows, by name, whether or not this program can use them.
pub(crate) fn rdma_devices() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| format!("rdma {}", entry.file_name().to_string_lossy()))
        .collect();
    names.sort();
    names
}

/// The interface packets to strangers leave by.
fn default_interface() -> Option<String> {
    default_route(&fs::read_to_string("/proc/net/route").ok()?)
}

/// Finds destination and mask zero in the kernel's routing table.
fn default_route(table: &str) -> Option<String> {
    table.lines().skip(1).find_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let is_default = *fields.get(1)? == "00000000" && *fields.get(7)? == "00000000";
        is_default.then(|| fields[0].to_owned())
    })
}

fn interface(name: &str) -> String {
    let folder = Path::new("/sys/class/net").join(name);
    let driver = fs::read_link(folder.join("device/driver")).ok();
    let driver =
        driver.as_deref().and_then(Path::file_name).map(|d| d.to_string_lossy().into_owned());
    let rate_mbit = read_number(folder.join("speed")).filter(|rate| *rate > 0);
    let mtu = read_number(folder.join("mtu"));
    let rate = rate_mbit.map(|rate| format!("{} Gbit/s", rate as f64 / 1e3));
    let mtu = mtu.map(|mtu| format!("mtu {mtu}"));
    let parts: Vec<String> =
        [Some(name.to_owned()), driver, rate, mtu].into_iter().flatten().collect();
    parts.join(" ")
}

fn read_number(path: PathBuf) -> Option<i64> {
    line(path)?.parse().ok()
}

/// The first line of a small file, trimmed.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|first| first.trim().to_owned())
}

/// How many numbers a kernel list such as `0-1,4` names; 1 where it cannot be read.
fn count(list: &str) -> usize {
    let of = |part: &str| -> Option<usize> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').map(of).try_fold(0usize, |sum, n| sum.checked_add(n?)).unwrap_or(1)
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_counted_and_nonsense_is_one() {
        assert_eq!(count("0"), 1);
        assert_eq!(count("0-1,4"), 3);
        assert_eq!(count("0-7"), 8);
        for nonsense in ["", "x", "3-1", "0-18446744073709551615"] {
            assert_eq!(count(nonsense), 1, "{nonsense}");
        }
    }

    #[test]
    fn the_default_route_is_found() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth1 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
                     eth0 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0\n";
        assert_eq!(default_route(table).as_deref(), Some("eth0"));
        assert_eq!(default_route("Iface\neth0 00000000\n"), None);
        assert_eq!(default_route(""), None);
    }

    #[test]
    fn this_machine_has_a_core_and_a_kernel() {
        let machine = Machine::read();
        assert!(machine.cores >= 1 && machine.numa_nodes >= 1);
        assert!(!machine.kernel.is_empty() && !machine.cpu.is_empty());
        assert!(machine.lines().iter().all(|line| line.starts_with('#')));
    }
}
