//! The machine that a figure was measured on. What cannot be read is left out, never guessed.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;
use serde::Serialize;

use crate::cli::Common;
use crate::report::{Report, Row};

/// The first row of every run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) numa_nodes: usize,
    /// Name and release.
    pub(crate) kernel: String,
    /// The interface of the default route and all RDMA devices, with driver, rate and MTU if known.
    pub(crate) nic: String,
    pub(crate) commit: String,
    pub(crate) caravan: String,
    /// How the program was built, and by which compiler.
    pub(crate) build: String,
    pub(crate) command: String,
    /// Of the cores' frequency, if the system tells.
    pub(crate) governor: Option<String>,
    pub(crate) huge_pages: Option<u64>,
    /// When the run began, in seconds since 1970.
    pub(crate) unix_seconds: u64,
}

impl Machine {
    /// Begins the report of a run of `steps` steps: writes this machine as its first row.
    pub(crate) fn first(common: &Common, steps: usize) -> Result<Report> {
        let mut report = Report::new(common.format(), steps);
        report.row(&Machine::read())?;
        Ok(report)
    }

    fn read() -> Self {
        Machine {
            cpu: cpu_model(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            numa_nodes: numa_nodes(),
            kernel: kernel(),
            nic: nics(),
            commit: env!("BUILD_COMMIT").to_owned(),
            caravan: env!("CARGO_PKG_VERSION").to_owned(),
            build: format!("{} by {}", env!("BUILD_PROFILE"), env!("BUILD_RUSTC")),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            huge_pages: line("/proc/sys/vm/nr_hugepages").and_then(|pages| pages.parse().ok()),
            unix_seconds: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }

    /// The lines that people read before the figures. Each begins with `#`.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("# cpu      {} ({} cores usable)", self.cpu, self.cores),
            format!("# numa     {}", nodes(self.numa_nodes)),
            format!("# nic      {}", self.nic),
            format!("# kernel   {}", self.kernel),
        ];
        if let Some(governor) = &self.governor {
            lines.push(format!("# governor {governor}"));
        }
        if let Some(pages) = self.huge_pages {
            lines.push(format!("# huge     {pages} pages reserved"));
        }
        lines.push(format!(
            "# caravan  {} commit {}, build: {}",
            self.caravan, self.commit, self.build
        ));
        lines.push(format!("# command  {}", self.command));
        lines
    }
}

impl Row for Machine {
    const KIND: &'static str = "machine";

    fn text(&self) -> String {
        self.lines().join("\n")
    }
}

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Arm kernels give no model name, only the part number.
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
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let mut nics = rdma_devices();
    nics.splice(0..0, default_route(&routes).map(|name| interface(&name)));
    if nics.is_empty() { "none".to_owned() } else { nics.join("; ") }
}

/// The RDMA devices that the kernel knows, whether or not this program can use them.
fn rdma_devices() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| format!("rdma {}", entry.file_name().to_string_lossy()))
        .collect();
    names.sort();
    names
}

/// The interface whose destination and mask are zero in the kernel's routing table.
fn default_route(table: &str) -> Option<String> {
    table.lines().skip(1).find_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let is_default = *fields.get(1)? == "00000000" && *fields.get(7)? == "00000000";
        is_default.then(|| fields[0].to_owned())
    })
}

fn interface(name: &str) -> String {
    let folder = Path::new("/sys/class/net").join(name);
    let number = |file: &str| line(folder.join(file))?.parse::<i64>().ok();
    let mut text = name.to_owned();
    if let Ok(driver) = fs::read_link(folder.join("device/driver")) {
        let driver = driver.file_name().unwrap_or_default();
        text += &format!(" {}", driver.to_string_lossy());
    }
    if let Some(mbit) = number("speed").filter(|rate| *rate > 0) {
        text += &format!(" {} Gbit/s", mbit as f64 / 1e3);
    }
    if let Some(mtu) = number("mtu") {
        text += &format!(" mtu {mtu}");
    }
    text
}

/// The first line of a small file, trimmed.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|first| first.trim().to_owned())
}

/// NUMA nodes that the kernel has; 1 if it does not tell.
fn numa_nodes() -> usize {
    let entries = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_node =
        |name: &String| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    names.filter(is_node).count().max(1)
}

/// A number of nodes in words.
pub(super) fn nodes(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
