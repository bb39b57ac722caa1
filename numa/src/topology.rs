//! The layout of a machine: NUMA nodes, cores, processing units (PUs), caches and network devices.
//!
//! [`Topology`] is a plain snapshot, cheap to clone and to send. It describes this machine, by what
//! Linux shows in `/sys` (`topology/sysfs.rs`). With the feature `hwloc` libhwloc reads this
//! machine instead (`topology/libhwloc.rs`), and also an XML file written by `lstopo --of xml`
//! (possibly of another machine, with NICs), or a synthetic description (which never has devices).
//! Both find the same layout: `topology/agreement.rs` tests it. A topology pins nothing: see
//! `affinity.rs`.

#[cfg(all(test, target_os = "linux"))]
mod agreement;
#[cfg(not(feature = "hwloc"))]
#[path = "topology/left_out.rs"]
mod discover;
#[cfg(feature = "hwloc")]
#[path = "topology/libhwloc.rs"]
mod discover;
#[cfg(any(not(feature = "hwloc"), test))]
mod sysfs;
#[cfg(test)]
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};

use crate::files::read_text;
use crate::ids::{NumaId, PuId};
use crate::sys;

/// Memory with the same distance from the PUs beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: NumaId,
    /// PUs this memory is local to, ascending. Memory without processors is local to the PUs of the
    /// nodes that the firmware names, or to those of the nearest; empty if neither is known.
    pub pus: Vec<PuId>,
    /// Local memory as the kernel reports it. Memory added at run time may be missing, so the
    /// nodes' sum is not the machine's memory.
    pub memory_bytes: Option<u64>,
}

/// A physical core and the PUs that share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// PUs of this core, ascending, never empty.
    pub pus: Vec<PuId>,
    /// The node whose memory is local; the lowest if there are several (HBM beside DRAM).
    pub node: Option<NumaId>,
    /// The kernel's number of its package, the chip in a socket, if the machine reports it.
    pub package: Option<usize>,
}

/// A cache and the PUs that share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// 1 for the one closest to the core.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Its size, if the machine reports it.
    pub bytes: Option<u64>,
    /// PUs that share it, ascending.
    pub pus: Vec<PuId>,
}

/// What a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// Kind of a network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A network interface, such as `eth0`.
    Network,
    /// An RDMA device, such as `mlx5_0`.
    OpenFabrics,
}

/// A network device and where it is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name.
    pub name: String,
    /// RDMA device or network interface.
    pub kind: DeviceKind,
    /// The nearest node; `None` if the device is equally far from several.
    pub node: Option<NumaId>,
}

/// Why a topology could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libhwloc could not read this machine.
    #[error("cannot read this machine's topology ({reason}); is /sys mounted?")]
    Discover {
        /// libhwloc's reason.
        reason: String,
    },
    /// A file of this machine says what Linux never writes.
    #[error(
        "cannot read this machine's topology: {} {reason}; is something mounted over it \
         (`findmnt --target {}`)?",
        path.display(), path.display()
    )]
    SysFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The XML file could not be read.
    #[error("cannot read the topology file {}", path.display())]
    XmlFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The XML file is not a topology, or is implausibly large.
    #[error(
        "{} is no hwloc topology ({reason}); write one with `lstopo --of xml FILE`",
        path.display()
    )]
    Xml {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The synthetic description is invalid.
    #[error(
        "{description:?} is no synthetic topology ({reason}); an example: \
         \"pack:2 [numa(memory=8GB)] core:4 pu:2\""
    )]
    Synthetic {
        /// The description, cut to a readable length.
        description: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This build has no libhwloc, which reads files and descriptions.
    #[error(
        "this build cannot read {what}: libhwloc was left out of it (build with `--features hwloc`)"
    )]
    LeftOut {
        /// The file or description.
        what: String,
    },
}

/// The layout of a machine at the time of its creation.
#[derive(Debug, Clone)]
pub struct Topology {
    origin: String,
    source: &'static str,
    is_this_machine: bool,
    nodes: Vec<NumaNode>,
    cores: Vec<Core>,
    caches: Vec<Cache>,
    devices: Vec<Device>,
    /// Distance from the first node's PUs to the second node's memory, if the machine reports it.
    distances: BTreeMap<(NumaId, NumaId), u64>,
    usable: BTreeSet<PuId>,
    pus_present: usize,
}

impl Topology {
    /// Reads this machine and the calling thread's affinity mask.
    ///
    /// Call it before any pinning: a pinned thread finds one usable PU. With the feature `hwloc`
    /// the variables of libhwloc (`HWLOC_XMLFILE`, `HWLOC_SYNTHETIC`) apply and make it a dry run,
    /// unless `HWLOC_THISSYSTEM=1` vouches that they describe this machine.
    ///
    /// # Errors
    ///
    /// [`Error::SysFile`] if a file of the system has garbage in it; [`Error::Discover`] if
    /// libhwloc cannot read the machine.
    pub fn this_machine() -> Result<Self, Error> {
        let found = discover::this_machine()?;
        Ok(Self::snapshot(found, "this machine".to_owned()))
    }

    /// Reads a topology from a file written by `lstopo --of xml`.
    ///
    /// # Errors
    ///
    /// [`Error::XmlFile`] if the file cannot be read, [`Error::Xml`] if it is not a topology or is
    /// larger than 64 MiB, [`Error::LeftOut`] in a build without libhwloc.
    pub fn from_xml_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let xml_error = |reason: String| Error::Xml { path: path.to_owned(), reason };
        // Read here and not by libhwloc, whose binding panics if the file does not exist.
        let text = read_text(path, XML_BYTES_MAX)
            .map_err(|source| Error::XmlFile { path: path.to_owned(), source })?
            .ok_or_else(|| xml_error(format!("larger than {XML_BYTES_MAX} bytes")))?;
        let found = discover::xml(path, &text)?;
        Ok(Self::snapshot(found, path.display().to_string()))
    }

    /// Creates a machine from hwloc's synthetic notation, outermost level first, such as `"pack:2
    /// [numa(memory=8GB)] l3:1 core:4 pu:2"`: 2 packages with a node each, 8 cores, 16 PUs. It has
    /// no devices.
    ///
    /// # Errors
    ///
    /// [`Error::Synthetic`] if hwloc does not understand it, or for more than 8192 PUs;
    /// [`Error::LeftOut`] in a build without libhwloc.
    pub fn from_synthetic(description: &str) -> Result<Self, Error> {
        let found = discover::synthetic(description)?;
        Ok(Self::snapshot(found, format!("synthetic \"{description}\"")))
    }

    /// Whether this is the machine the program runs on. If not, pinning is a dry run.
    pub fn is_this_machine(&self) -> bool {
        self.is_this_machine
    }

    /// NUMA nodes by number. At least one, even if the machine has no NUMA.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// Cores with a PU this process may use under its cgroup; close ones are adjacent. If the
    /// machine does not report cores, every PU counts as one.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Caches of these cores: lower levels first, then by what they hold and their first PU.
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// PUs a thread may be pinned to: those that the cgroup allows and, on this machine, those in
    /// the affinity mask of the thread that created this topology.
    pub fn usable_pus(&self) -> &BTreeSet<PuId> {
        &self.usable
    }

    /// PUs the machine has, usable or not.
    pub fn pus_present(&self) -> usize {
        self.pus_present
    }

    /// RDMA devices and network interfaces, RDMA first.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device of this name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// The node whose memory is local to `pu`.
    pub fn node_of(&self, pu: PuId) -> Option<NumaId> {
        self.cores.iter().find(|core| core.pus.contains(&pu))?.node
    }

    /// Distance from the PUs of `from` to the memory of `to`, in tenths of the local distance (10
    /// is local, 21 about twice as far); `None` if the machine does not report it.
    pub fn distance(&self, from: NumaId, to: NumaId) -> Option<u64> {
        self.distances.get(&(from, to)).copied()
    }

    /// What it describes: this machine, a file, a description.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// What it was read by: libhwloc, or the files of `/sys`.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// A few lines for people: counts, each node with its memory and PUs, each device.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "{}: {}, {}, {} ({})",
            self.origin,
            count(self.nodes.len(), "NUMA node"),
            count(self.cores.len(), "core"),
            count(self.pus_present, "PU"),
            self.usable_in_words(),
        );
        for node in &self.nodes {
            let memory = match node.memory_bytes {
                Some(bytes) => format!("{:.1} GiB", bytes as f64 / GIB),
                None => "memory unknown".to_owned(),
            };
            let pus = match node.pus.as_slice() {
                [] => "no PUs".to_owned(),
                pus => format!("PUs {}", ranges(pus)),
            };
            write!(text, "\n  node {}: {memory}, {pus}", node.id).expect(STRING_WRITE);
        }
        for device in &self.devices {
            let place = match device.node {
                Some(node) => format!("node {node}"),
                None => "no node of its own".to_owned(),
            };
            write!(text, "\n  {} ({}): {place}", device.name, device.kind).expect(STRING_WRITE);
        }
        text
    }

    fn usable_in_words(&self) -> String {
        if !self.is_this_machine {
            "not this machine: a dry run, nothing is pinned".to_owned()
        } else if self.usable.len() == self.pus_present {
            "all usable".to_owned()
        } else {
            let usable: Vec<PuId> = self.usable.iter().copied().collect();
            format!("usable under this cgroup and affinity mask: {}", ranges(&usable))
        }
    }

    fn snapshot(found: Found, origin: String) -> Self {
        let mut usable = found.allowed;
        // What is allowed heeds cgroups, not `taskset`. A mask that cannot be read hides nothing.
        if found.is_this_machine
            && let Some(mask) = thread_mask()
        {
            usable.retain(|pu| mask.contains(pu));
        }
        // A file may allow PUs that it does not list.
        usable.retain(|pu| found.cores.iter().any(|core| core.pus.contains(pu)));
        Self {
            origin,
            source: found.source,
            is_this_machine: found.is_this_machine,
            nodes: found.nodes,
            cores: found.cores,
            caches: found.caches,
            devices: found.devices,
            distances: found.distances,
            usable,
            pus_present: found.pus_present,
        }
    }
}

/// PUs in the calling thread's affinity mask, if the system reports it.
pub(crate) fn thread_mask() -> Option<BTreeSet<PuId>> {
    sys::thread_affinity().ok()
}

/// Writes ascending numbers as `0-3,8`.
pub(crate) fn ranges(pus: &[PuId]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &PuId(pu) in pus {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == pu => *end = pu,
            _ => runs.push((pu, pu)),
        }
    }
    let words =
        runs.iter().map(
            |&(begin, end)| {
                if begin == end { begin.to_string() } else { format!("{begin}-{end}") }
            },
        );
    words.collect::<Vec<_>>().join(",")
}

/// `1 core`, `2 cores`.
pub(crate) fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "network",
            Self::OpenFabrics => "RDMA",
        })
    }
}

/// Topologies of the largest machines have a few MiB.
const XML_BYTES_MAX: u64 = 64 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
const STRING_WRITE: &str = "a String takes every write";

/// A machine as its source found it.
struct Found {
    source: &'static str,
    /// Whether this process runs on it.
    is_this_machine: bool,
    nodes: Vec<NumaNode>,
    cores: Vec<Core>,
    caches: Vec<Cache>,
    devices: Vec<Device>,
    distances: BTreeMap<(NumaId, NumaId), u64>,
    /// PUs that the cgroup allows.
    allowed: BTreeSet<PuId>,
    pus_present: usize,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn this_machine_is_readable_and_within_the_threads_mask() {
        let mask = thread_mask();
        let topology = Topology::this_machine().unwrap();
        assert!(!topology.nodes().is_empty());
        if topology.is_this_machine()
            && let Some(mask) = mask
        {
            assert!(!topology.usable_pus().is_empty());
            assert!(topology.usable_pus().is_subset(&mask));
        }
        eprintln!("{}", topology.describe());
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 8, 10, 11].map(PuId)), "0-2,8,10-11");
    }
}

#[cfg(test)]
#[cfg(feature = "hwloc")]
mod tests_of_descriptions {
    use super::*;

    const TWO_NODES: &str = "pack:2 [numa(memory=8GB)] l3:1 core:4 pu:2";

    fn two_ib() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/two_ib.xml")
    }

    #[test]
    fn synthetic_has_the_nodes_cores_and_pus_it_names() {
        let topology = Topology::from_synthetic(TWO_NODES).unwrap();
        assert!(!topology.is_this_machine());
        assert_eq!(topology.pus_present(), 16);
        assert_eq!(topology.usable_pus().len(), 16);
        assert_eq!(topology.cores().len(), 8);
        let expected =
            Core { pus: vec![PuId(10), PuId(11)], node: Some(NumaId(1)), package: Some(1) };
        assert_eq!(topology.cores()[5], expected);
        assert_eq!(topology.nodes().len(), 2);
        assert_eq!(topology.nodes()[1].pus, (8..16).map(PuId).collect::<Vec<_>>());
        assert_eq!(topology.nodes()[1].memory_bytes, Some(8_000_000_000));
        assert_eq!(topology.node_of(PuId(7)), Some(NumaId(0)));
        assert_eq!(topology.node_of(PuId(16)), None);
        assert!(topology.devices().is_empty());
    }

    #[test]
    fn a_pu_without_a_core_counts_as_one() {
        let topology = Topology::from_synthetic("numa:1 pu:3").unwrap();
        assert_eq!(topology.cores().len(), 3);
    }

    #[test]
    fn wrong_descriptions_are_errors() {
        let bad = [
            "",
            "nonsense",
            "pu:0",
            "pack:2 [numa core:4",
            "core:4 pack:2 \0 pu:1",
            "pu:99999999999999999999",
            "pack:4000000000 core:4000000000 pu:2",
            "2 100000",
            "core:0x40000000 pu:1",
            "pack:2 ((((((((",
        ];
        for description in bad {
            let error = Topology::from_synthetic(description).expect_err(description);
            assert!(matches!(error, Error::Synthetic { .. }), "{description:?}: {error}");
        }
        let many = Topology::from_synthetic("pack:64 core:65 pu:2").unwrap_err().to_string();
        assert!(many.contains("more than 8192 PUs"), "{many}");
    }

    #[test]
    fn xml_places_each_nic_on_its_node() {
        let topology = Topology::from_xml_file(two_ib()).unwrap();
        assert!(!topology.is_this_machine());
        let names: Vec<_> = topology.devices().iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1", "ib0"], "RDMA first, no disk");
        assert_eq!(topology.device("mlx5_0").unwrap().node, Some(NumaId(0)));
        assert_eq!(topology.device("mlx5_1").unwrap().node, Some(NumaId(1)));
        assert_eq!(topology.device("mlx5_1").unwrap().kind, DeviceKind::OpenFabrics);
        assert_eq!(topology.device("ib0").unwrap().kind, DeviceKind::Network);
        assert_eq!(topology.device("mlx5_2"), None);
    }

    #[test]
    fn distances_are_those_of_the_file() {
        let topology = Topology::from_xml_file(two_ib()).unwrap();
        let [here, there] = [NumaId(0), NumaId(1)];
        assert_eq!(topology.distance(here, here), Some(10));
        assert_eq!(topology.distance(here, there), Some(21));
        assert_eq!(topology.distance(here, NumaId(2)), None);
    }

    #[test]
    fn wrong_xml_is_an_error() {
        let missing = Topology::from_xml_file("/nonexistent/two.xml").unwrap_err();
        assert!(matches!(missing, Error::XmlFile { .. }), "{missing}");
        let folder = Topology::from_xml_file(env!("CARGO_MANIFEST_DIR")).unwrap_err();
        assert!(matches!(folder, Error::XmlFile { .. }), "{folder}");

        let path = std::env::temp_dir().join(format!("caravan-numa-{}.xml", std::process::id()));
        let whole = std::fs::read_to_string(two_ib()).unwrap();
        for text in ["", "not xml", "<topology version=\"2.0\">", &whole[..whole.len() / 2]] {
            std::fs::write(&path, text).unwrap();
            let error = Topology::from_xml_file(&path).unwrap_err();
            assert!(matches!(error, Error::Xml { .. }), "{text:?}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(read_text(&two_ib(), 10).unwrap().is_none());
    }

    #[test]
    fn describes_itself_in_a_few_lines() {
        let topology = Topology::from_synthetic(TWO_NODES).unwrap();
        let expected = "synthetic \"pack:2 [numa(memory=8GB)] l3:1 core:4 pu:2\": 2 NUMA nodes, \
            8 cores, 16 PUs (not this machine: a dry run, nothing is pinned)\n  \
            node 0: 7.5 GiB, PUs 0-7\n  node 1: 7.5 GiB, PUs 8-15";
        assert_eq!(topology.describe(), expected);
        let text = Topology::from_xml_file(two_ib()).unwrap().describe();
        assert!(text.ends_with("  mlx5_1 (RDMA): node 1\n  ib0 (network): node 0"), "{text}");
    }
}
