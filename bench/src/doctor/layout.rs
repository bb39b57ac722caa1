//! The layout that `caravan doctor` draws: NUMA nodes, their cores, the server threads on them, the
//! network devices beside them, and huge pages. It is of this machine, of a file that
//! `lstopo --of xml` wrote, or of a synthetic description.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context, Result};
use caravan_kv::ClusterConfig;
use caravan_kv::node::{Nic, Seating, nic};
use caravan_numa::{Cache, CacheKind, Core, DeviceKind, NumaId, PuId, Topology};
use serde::{Deserialize, Serialize};

use super::machine;
use super::rdma::{Memlock, memlock_text};
use crate::cli::ending::{NO_THREAD, Usage};
use crate::report::{self, Row};

/// A machine, and the placement of server threads on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// This machine, a file, a description.
    pub(crate) origin: String,
    /// What it was read by: /sys or libhwloc.
    pub(crate) source: String,
    pub(crate) this_machine: bool,
    /// The setting: near-nic, any, or a number.
    pub(crate) wish: String,
    /// The device that messages will use, as far as it is known beforehand.
    pub(crate) nic: Option<String>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) devices_elsewhere: Vec<String>,
    pub(crate) threads: Vec<Thread>,
    /// The kernel's setting of transparent huge pages, for a process's own memory and for shared
    /// memory.
    pub(crate) transparent: Option<String>,
    pub(crate) transparent_shared: Option<String>,
    /// Bytes this process may lock; none for no limit.
    pub(crate) memlock_bytes: Option<u64>,
    /// Wishes that the machine cannot grant.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) node: usize,
    pub(crate) memory_bytes: Option<u64>,
    /// Reserved pages of 2 MiB, and how many of them are free.
    pub(crate) huge_pages: Option<u64>,
    pub(crate) huge_pages_free: Option<u64>,
    /// To each node in order, 10 for its own memory; empty if the machine does not tell.
    pub(crate) distances: Vec<u64>,
    /// Packages that its cores are in, as the machine numbers them.
    pub(crate) packages: Vec<usize>,
    pub(crate) cores: Vec<Vec<usize>>,
    /// Caches of data that several of its cores share.
    pub(crate) caches: Vec<SharedCache>,
    pub(crate) devices: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SharedCache {
    pub(crate) level: u8,
    pub(crate) bytes: Option<u64>,
    pub(crate) pus: Vec<usize>,
}

/// A server thread of the cluster that the settings describe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Thread {
    pub(crate) server: usize,
    pub(crate) thread: usize,
    /// None if it is not pinned.
    pub(crate) pu: Option<usize>,
    /// None if memory lies where it is first touched.
    pub(crate) memory_node: Option<usize>,
}

impl Layout {
    /// Of `topology`, a file or a description, or of this machine.
    ///
    /// # Errors
    /// [`Usage`] for what is no topology, and for a wish for a node that it does not have.
    pub(crate) fn read(config: &ClusterConfig, topology: Option<&str>) -> Result<Layout> {
        let usage = |error: &dyn std::error::Error| Usage(error.to_string());
        let topology = match topology {
            None => Topology::this_machine()?,
            Some(file) if Path::new(file).exists() || file.ends_with(".xml") => {
                Topology::from_xml_file(file).map_err(|error| usage(&error))?
            }
            Some(words) => Topology::from_synthetic(words).map_err(|error| usage(&error))?,
        };
        let sysfs = topology.is_this_machine().then_some(Path::new("/sys"));
        let nic = match sysfs {
            Some(sysfs) => nic(&config.node, sysfs),
            None => first_device(config, &topology),
        };
        // All servers of a cluster are started on one machine unless they are started elsewhere.
        let seating = Seating::new(&config.node, &topology, nic, 0..config.shards());
        let seating = seating.map_err(|error| usage(&error))?;
        Ok(Layout::of(config, &topology, &seating, sysfs))
    }

    fn of(
        config: &ClusterConfig,
        topology: &Topology,
        seating: &Seating,
        sysfs: Option<&Path>,
    ) -> Layout {
        let folder = sysfs.map(|sysfs| sysfs.join("kernel/mm/transparent_hugepage"));
        let setting = |file| chosen(&fs::read_to_string(folder.as_ref()?.join(file)).ok()?);
        let thread = |n: usize| Thread {
            server: n / config.threads,
            thread: n % config.threads,
            pu: seating.seat(n).map(|seat| seat.pu.0),
            memory_node: seating.memory_node(n).map(|node| node.0),
        };
        let elsewhere = topology.devices().iter().filter(|device| device.node.is_none());
        let note = seating.plan.as_ref().and_then(|plan| plan.note().map(str::to_owned));
        Layout {
            origin: topology.origin().to_owned(),
            source: topology.source().to_owned(),
            this_machine: topology.is_this_machine(),
            wish: config.node.numa.to_string(),
            nic: seating.nic.as_ref().map(|nic| nic.name.clone()),
            nodes: topology
                .nodes()
                .iter()
                .map(|n| node(topology, n.id, n.memory_bytes, sysfs))
                .collect(),
            devices_elsewhere: elsewhere.map(|device| device.name.clone()).collect(),
            threads: (0..config.shards()).map(thread).collect(),
            transparent: setting("enabled"),
            transparent_shared: setting("shmem_enabled"),
            memlock_bytes: Memlock::read().bytes,
            notes: note.into_iter().collect(),
        }
    }

    fn draw_node(&self, node: &Node, lines: &mut Vec<String>) {
        let mut title = match node.memory_bytes {
            Some(bytes) => format!("┌ node {}: {:.1} GiB", node.node, bytes as f64 / GIB),
            None => format!("┌ node {}: memory unknown", node.node),
        };
        if !node.packages.is_empty() {
            title += &format!(", package {}", joined(&node.packages, " "));
        }
        if let Some(pages) = node.huge_pages {
            let free = node.huge_pages_free.unwrap_or(0);
            title += &format!(", {free} of {pages} huge pages free");
        }
        if node.distances.len() > 1 {
            title += &format!(", distances {}", joined(&node.distances, " "));
        }
        lines.push(title);
        for pus in &node.cores {
            let threads = self.threads.iter().filter_map(|thread| {
                let pu = thread.pu.filter(|pu| pus.contains(pu))?;
                Some(format!("{} on PU {pu}", thread.name()))
            });
            let threads: Vec<String> = threads.collect();
            let arrow = if threads.is_empty() { "" } else { "  ◄ " };
            let core = joined(pus, " ");
            lines.push(format!("│ core with PU {core}{arrow}{}", threads.join(", ")));
        }
        for SharedCache { level, bytes, pus } in &node.caches {
            let size = bytes.map_or(String::new(), |bytes| format!(" of {} KiB", bytes >> 10));
            lines.push(format!("│ L{level} cache{size} for PU {}", joined(pus, " ")));
        }
        for device in &node.devices {
            let chosen = if self.nic.as_ref() == Some(device) { "  ◄ messages" } else { "" };
            lines.push(format!("│ {device}{chosen}"));
        }
        lines.push("└".to_owned());
    }
}

fn joined(items: &[impl ToString], between: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

impl Row for Layout {
    const KIND: &'static str = "layout";

    fn text(&self) -> String {
        let nodes = machine::nodes(self.nodes.len()).replace(' ', " NUMA ");
        let mut lines = vec![format!("{}: {nodes}, by {}", self.origin, self.source)];
        for node in &self.nodes {
            self.draw_node(node, &mut lines);
        }
        if !self.devices_elsewhere.is_empty() {
            lines.push(format!("near no one node: {}", self.devices_elsewhere.join(", ")));
        }
        let nic = match &self.nic {
            Some(nic) => format!("messages go by {nic}"),
            None => "no network device matters".to_owned(),
        };
        lines.push(format!("placement {}: {nic}", self.wish));
        for thread in self.threads.iter().filter(|thread| thread.pu.is_none()) {
            let memory = match thread.memory_node {
                Some(node) => format!("on node {node}"),
                None => "where it is first touched".to_owned(),
            };
            lines.push(format!("  {} is not pinned, its memory {memory}", thread.name()));
        }
        lines.push(format!(
            "huge pages: transparent {}, of shared memory {}; memory that may be locked: {}",
            self.transparent.as_deref().unwrap_or("unknown"),
            self.transparent_shared.as_deref().unwrap_or("unknown"),
            memlock_text(self.memlock_bytes)
        ));
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.iter().map(|line| format!("# {line}")).collect::<Vec<_>>().join("\n")
    }
}

impl Thread {
    fn name(&self) -> String {
        format!("server {} thread {}", self.server, self.thread)
    }
}

/// The device that messages would use on another machine: the named one, or the first, RDMA before
/// others.
fn first_device(config: &ClusterConfig, topology: &Topology) -> Option<Nic> {
    let named = config.node.rdma.device.as_ref();
    let is_nic = |kind| matches!(kind, DeviceKind::OpenFabrics | DeviceKind::Network);
    let mut devices = topology.devices().iter().filter(|device| is_nic(device.kind));
    let device = devices.find(|device| named.is_none_or(|name| *name == device.name))?;
    Some(Nic { name: device.name.clone(), node: device.node })
}

fn node(topology: &Topology, id: NumaId, memory_bytes: Option<u64>, sysfs: Option<&Path>) -> Node {
    let at = sysfs.map(|sysfs| {
        sysfs.join(format!("devices/system/node/node{id}/hugepages/hugepages-2048kB"))
    });
    let count = |file| fs::read_to_string(at.as_ref()?.join(file)).ok()?.trim().parse().ok();
    let cores: Vec<&Core> = topology.cores().iter().filter(|it| it.node == Some(id)).collect();
    let devices = topology.devices().iter().filter(|device| device.node == Some(id));
    let packages: BTreeSet<usize> = cores.iter().filter_map(|core| core.package).collect();
    let is_shared = |cache: &&Cache| {
        let with = cores.iter().filter(|core| core.pus.iter().any(|pu| cache.pus.contains(pu)));
        cache.kind != CacheKind::Instruction && with.count() > 1
    };
    let numbers = |pus: &[PuId]| -> Vec<usize> { pus.iter().map(|pu| pu.0).collect() };
    let cache =
        |it: &Cache| SharedCache { level: it.level, bytes: it.bytes, pus: numbers(&it.pus) };
    Node {
        node: id.0,
        memory_bytes,
        huge_pages: count("nr_hugepages"),
        huge_pages_free: count("free_hugepages"),
        distances: topology.nodes().iter().filter_map(|to| topology.distance(id, to.id)).collect(),
        packages: packages.into_iter().collect(),
        caches: topology.caches().iter().filter(is_shared).map(cache).collect(),
        cores: cores.iter().map(|core| numbers(&core.pus)).collect(),
        devices: devices.map(|device| device.name.clone()).collect(),
    }
}

/// The word in brackets of a kernel setting such as `always [madvise] never`.
fn chosen(setting: &str) -> Option<String> {
    Some(setting.split_once('[')?.1.split_once(']')?.0.to_owned())
}

const GIB: f64 = (1_u64 << 30) as f64;

/// The layout of `topology`, read by a process of its own with the arguments of this one: libhwloc
/// crashes on some damaged files.
///
/// # Errors
/// As [`Layout::read`]; [`Usage`] also if that process crashed or took too long.
pub(crate) fn ask(topology: &str) -> Result<Layout> {
    let program =
        env::current_exe().context("cannot find this program to read the topology with")?;
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1)).arg("--layout-only").stdin(Stdio::null());
    let output = command.output().context("cannot start the process that reads the topology")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(serde_json::from_slice(&output.stdout)?),
        // The error is in the last line, after those that libhwloc itself writes.
        Some(1 | 2) => {
            let last = stderr.lines().last().unwrap_or_default();
            Err(Usage(last.trim_start_matches("caravan: ").to_owned()).into())
        }
        _ => {
            let how = match output.status.code() {
                Some(SLOW) => format!("it takes longer than {} s", PATIENCE.as_secs()),
                _ => format!("libhwloc crashes on it: {}", output.status),
            };
            let reason =
                format!("{topology} is no topology ({how}); write one with `lstopo --of xml FILE`");
            Err(Usage(reason).into())
        }
    }
}

/// That process: prints the layout, and ends in any case.
pub(crate) fn tell(config: &ClusterConfig, topology: &str) -> Result<()> {
    let end = || {
        thread::sleep(PATIENCE);
        process::exit(SLOW)
    };
    thread::Builder::new().spawn(end).context(NO_THREAD)?;
    report::print(&serde_json::to_string(&Layout::read(config, Some(topology))?)?)
}

/// How long reading a topology may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The exit status of a process that took longer.
const SLOW: i32 = 3;

#[cfg(test)]
mod tests {
    #[cfg(feature = "hwloc")]
    use caravan_kv::node::Numa;

    use super::*;

    #[cfg(feature = "hwloc")]
    const TWO_IB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../numa/tests/two_ib.xml");

    #[test]
    #[cfg(feature = "hwloc")]
    fn threads_are_drawn_beside_the_device() {
        let mut config = ClusterConfig { servers: 2, ..ClusterConfig::default() };
        config.node.rdma.device = Some("mlx5_1".to_owned());
        let layout = Layout::read(&config, Some(TWO_IB)).unwrap();
        assert_eq!((layout.this_machine, layout.nic.as_deref()), (false, Some("mlx5_1")));
        assert_eq!(layout.nodes[1].distances, [21, 10]);
        let places: Vec<_> =
            layout.threads.iter().map(|t| (t.server, t.pu, t.memory_node)).collect();
        assert_eq!(places, [(0, Some(4), Some(1)), (1, Some(6), Some(1))]);
        let text = layout.text();
        for line in [
            "# ┌ node 1: 7.5 GiB, package 1, distances 21 10",
            "# │ core with PU 4 5  ◄ server 0 thread 0 on PU 4",
            "# │ core with PU 6 7  ◄ server 1 thread 0 on PU 6",
            "# │ mlx5_1  ◄ messages",
            "# placement near-nic: messages go by mlx5_1",
        ] {
            assert!(text.lines().any(|drawn| drawn == line), "{line}\n{text}");
        }
    }

    #[test]
    #[cfg(feature = "hwloc")]
    fn a_synthetic_machine_is_drawn() {
        let mut config = ClusterConfig { threads: 2, ..ClusterConfig::default() };
        (config.node.pin, config.node.numa) = (false, Numa::Node(NumaId(1)));
        let words = "pack:2 [numa(memory=8GB)] l3:1(size=4194304) core:2 pu:1";
        let text = Layout::read(&config, Some(words)).unwrap().text();
        for part in [
            "server 0 thread 1 is not pinned, its memory on node 1",
            ": 2 NUMA nodes, by libhwloc\n",
            "# │ L3 cache of 4096 KiB for PU 2 3\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn this_machine_is_drawn_with_what_it_was_read_by() {
        let here = Layout::read(&ClusterConfig::default(), None).unwrap();
        let text = here.text();
        assert!(!here.nodes.is_empty() && text.lines().all(|line| line.starts_with('#')));
        let source = if cfg!(feature = "hwloc") { "libhwloc" } else { "/sys" };
        let title = text.lines().next().unwrap();
        assert!(title.starts_with("# this machine: ") && title.ends_with(source), "{title}");
        let row = serde_json::to_string(&here).unwrap();
        assert_eq!(serde_json::from_str::<Layout>(&row).unwrap(), here);
    }

    #[test]
    #[cfg(feature = "hwloc")]
    fn what_is_no_topology_or_has_no_such_node_is_wrong_usage() {
        let mut config = ClusterConfig::default();
        for wrong in ["nonsense", "/nowhere/two.xml", "pu:0"] {
            assert!(Layout::read(&config, Some(wrong)).unwrap_err().is::<Usage>(), "{wrong}");
        }
        config.node.numa = Numa::Node(NumaId(9));
        let error = Layout::read(&config, Some(TWO_IB)).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("only 0, 1"), "{error}");
    }

    #[test]
    fn settings_of_the_kernel_are_the_words_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("never"), None);
    }
}
