//! Reads a machine's layout from the files that Linux shows below `/sys`, without a library.
//!
//! What the system does not show counts as not there, since a container may hide any file: a
//! processing unit without siblings is a core, and a machine without NUMA nodes is one node. A
//! system without such files has the processing units of the thread's affinity mask.
//!
//! A file that is there and says what Linux never writes is an error that names it. Half a layout
//! would pin threads to the wrong places unseen, while a server that has none logs why and leaves
//! its threads to the kernel. What a device says of its node is no such file: its node is unknown.

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;

use self::files::{List, list, number, numbered, text};
use super::{Cache, CacheKind, Core, Device, DeviceKind, Error, Found, NumaNode, thread_mask};
use crate::files::{device_node, names_in};
use crate::ids::{NumaId, PuId};

/// Reads the machine that this process runs on.
pub(super) fn this_machine() -> Result<Found, Error> {
    let found = read(Path::new("/"), &thread_mask().unwrap_or_default())?;
    Ok(Found { is_this_machine: true, ..found })
}

/// Reads the machine whose files are below `root`, as this one's are below `/`. The processing
/// units of `mask` are there whatever the files say, because the kernel runs threads on them.
pub(super) fn read(root: &Path, mask: &BTreeSet<PuId>) -> Result<Found, Error> {
    let system = root.join("sys/devices/system");
    let cpus = system.join("cpu");
    let present: BTreeSet<PuId> = numbered(&cpus, "cpu").map(PuId).collect();
    let mut online = mask.clone();
    for &pu in &present {
        if number(&cpus.join(format!("cpu{pu}/online")))? != Some(0_u32) {
            online.insert(pu);
        }
    }
    if online.is_empty() {
        online.extend((0..thread::available_parallelism().map_or(1, usize::from)).map(PuId));
    }
    let cgroup = Cgroup::of(root)?;
    let is_allowed = |pu: &PuId| mask.contains(pu) || cgroup.allows_pu(*pu);
    let allowed = online.iter().copied().filter(is_allowed).collect();

    let all_nodes = read_nodes(root, &system.join("node"), &online)?;
    let distances = read_distances(&all_nodes)?;
    let mut pus = Vec::new();
    for &pu in &allowed {
        pus.push(Pu::read(&cpus.join(format!("cpu{pu}")), pu, &all_nodes)?);
    }
    pus.sort_by_cached_key(Pu::place);
    let nodes = local_pus(&all_nodes, &distances, &allowed);
    let nodes: Vec<NumaNode> =
        nodes.into_iter().filter(|node| cgroup.allows_node(node.id)).collect();
    let is_known = |id: NumaId| nodes.iter().any(|node| node.id == id);
    let only = if let [only] = all_nodes.as_slice() { Some(only.id) } else { None };
    let near = |device: &Path| only.or_else(|| device_node(device)).filter(|id| is_known(*id));
    Ok(Found {
        source: "/sys",
        is_this_machine: false,
        cores: cores(&pus, is_known),
        caches: caches(&pus, &allowed),
        devices: devices(&root.join("sys/class"), near),
        distances: distances
            .into_iter()
            .filter(|((a, b), _)| nodes.len() > 1 && is_known(*a) && is_known(*b))
            .collect(),
        pus_present: present.union(&online).count(),
        allowed,
        nodes,
    })
}

/// What the control group of this process leaves it; nothing for what it does not restrict.
#[derive(Default)]
struct Cgroup {
    pus: Option<List>,
    nodes: Option<List>,
}

impl Cgroup {
    fn of(root: &Path) -> Result<Cgroup, Error> {
        let memberships = text(&root.join("proc/self/cgroup"))?.unwrap_or_default();
        // `3:cpuset:/job` in version 1 and `0::/job` in version 2; a host may have both.
        let group = |is_it: fn(&str) -> bool| {
            memberships.lines().find_map(|line| {
                let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
                is_it(controllers).then(|| Path::new(group.trim_start_matches('/')).to_owned())
            })
        };
        let first = group(|controllers| controllers.split(',').any(|name| name == "cpuset"));
        let (mount, group, suffix) = match (first, group(str::is_empty)) {
            (Some(group), _) => (root.join("sys/fs/cgroup/cpuset"), group, ""),
            (None, Some(group)) => (root.join("sys/fs/cgroup"), group, ".effective"),
            (None, None) => return Ok(Cgroup::default()),
        };
        let nearest = |name: &str| {
            // A group without the file has what the group above it has. A container may see its
            // own group as the root, under which its path on the host is not there.
            let folders = group.ancestors().map(|group| mount.join(group));
            let mut files = folders.map(|folder| folder.join(format!("cpuset.{name}{suffix}")));
            files.find_map(|file| list(&file).transpose()).transpose()
        };
        Ok(Cgroup { pus: nearest("cpus")?, nodes: nearest("mems")? })
    }

    fn allows_pu(&self, pu: PuId) -> bool {
        self.pus.as_ref().is_none_or(|pus| pus.contains(pu.0))
    }

    fn allows_node(&self, node: NumaId) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node.0))
    }
}

/// A NUMA node as its folder has it.
struct NodeFiles {
    id: NumaId,
    pus: List,
    memory_bytes: Option<u64>,
    folder: PathBuf,
}

fn read_nodes(
    root: &Path,
    folder: &Path,
    online: &BTreeSet<PuId>,
) -> Result<Vec<NodeFiles>, Error> {
    let mut nodes = Vec::new();
    for id in numbered(folder, "node").collect::<BTreeSet<_>>() {
        let folder = folder.join(format!("node{id}"));
        let pus = list(&folder.join("cpulist"))?.unwrap_or_default();
        let memory_bytes = memory_bytes(&folder.join("meminfo"))?;
        nodes.push(NodeFiles { id: NumaId(id), pus, memory_bytes, folder });
    }
    if nodes.is_empty() {
        let memory_bytes = memory_bytes(&root.join("proc/meminfo"))?;
        let pus = List::of(online.iter().map(|pu| pu.0));
        nodes.push(NodeFiles { id: NumaId(0), pus, memory_bytes, folder: folder.join("node0") });
    }
    Ok(nodes)
}

/// The line `MemTotal`, which the files of nodes begin with `Node N `.
fn memory_bytes(meminfo: &Path) -> Result<Option<u64>, Error> {
    let Some(text) = text(meminfo)? else { return Ok(None) };
    let total = text.lines().find_map(|line| Some(line.split_once("MemTotal:")?.1));
    let kib = total.and_then(|total| total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    match kib.and_then(|kib| kib.checked_mul(1024)) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(files::garbage(meminfo, "has no line MemTotal in kB")),
    }
}

/// Distances between nodes; none on a machine of one node, and for a row that is not whole.
fn read_distances(nodes: &[NodeFiles]) -> Result<BTreeMap<(NumaId, NumaId), u64>, Error> {
    let mut distances = BTreeMap::new();
    for from in nodes.iter().filter(|_| nodes.len() > 1) {
        let file = from.folder.join("distance");
        let Some(text) = text(&file)? else { continue };
        let row: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        let row = row.map_err(|_| files::garbage(&file, "has more than numbers"))?;
        if row.len() == nodes.len() {
            distances.extend(nodes.iter().zip(row).map(|(to, far)| ((from.id, to.id), far)));
        }
    }
    Ok(distances)
}

/// The nodes with the allowed processing units that are local to them.
fn local_pus(
    nodes: &[NodeFiles],
    distances: &BTreeMap<(NumaId, NumaId), u64>,
    allowed: &BTreeSet<PuId>,
) -> Vec<NumaNode> {
    let local = |node: &NodeFiles| {
        let near = with_pus(node, nodes, distances);
        let is_local = |pu: &PuId| near.iter().any(|at| at.pus.contains(pu.0));
        NumaNode {
            id: node.id,
            pus: allowed.iter().copied().filter(is_local).collect(),
            memory_bytes: node.memory_bytes,
        }
    };
    nodes.iter().map(local).collect()
}

/// The node itself; for memory without processors those with them that the firmware names, or else
/// the nearest ones.
fn with_pus<'a>(
    node: &'a NodeFiles,
    nodes: &'a [NodeFiles],
    distances: &BTreeMap<(NumaId, NumaId), u64>,
) -> Vec<&'a NodeFiles> {
    if !node.pus.is_empty() {
        return vec![node];
    }
    let named: BTreeSet<usize> =
        numbered(&node.folder.join("access0/initiators"), "node").collect();
    let others = nodes.iter().filter(|at| !at.pus.is_empty());
    if !named.is_empty() {
        return others.filter(|at| named.contains(&at.id.0)).collect();
    }
    let far = |at: &NodeFiles| distances.get(&(node.id, at.id)).copied();
    let Some(least) = others.clone().filter_map(far).min() else { return Vec::new() };
    others.filter(|at| far(at) == Some(least)).collect()
}

/// A processing unit and the sets that it belongs to.
struct Pu {
    id: PuId,
    core: List,
    package: Option<usize>,
    node: Option<NumaId>,
    caches: Vec<CacheFiles>,
    /// All of them: core, die, package, node, caches.
    sets: Vec<List>,
}

struct CacheFiles {
    level: u8,
    kind: CacheKind,
    bytes: Option<u64>,
    pus: List,
}

impl Pu {
    fn read(folder: &Path, id: PuId, nodes: &[NodeFiles]) -> Result<Pu, Error> {
        let topology = folder.join("topology");
        // The newer name, then what kernels before 5.3 call it.
        let siblings = |names: [&str; 2]| {
            let mut files = names.iter().map(|name| topology.join(name));
            let found = files.find_map(|file| siblings(&file, id).transpose());
            found.transpose()
        };
        let core = siblings(["core_cpus_list", "thread_siblings_list"])?
            .unwrap_or_else(|| List::of([id.0]));
        let die = siblings(["die_cpus_list"; 2])?;
        let package_pus = siblings(["package_cpus_list", "core_siblings_list"])?;
        // -1 where the firmware numbers none.
        let package = number::<i64>(&topology.join("physical_package_id"))?;
        let node = nodes.iter().find(|node| node.pus.contains(id.0));
        let caches = read_caches(&folder.join("cache"), id)?;
        let sets = [Some(core.clone()), die, package_pus, node.map(|node| node.pus.clone())];
        let sets = sets.into_iter().flatten().chain(caches.iter().map(|cache| cache.pus.clone()));
        Ok(Pu {
            id,
            package: package.and_then(|package| usize::try_from(package).ok()),
            node: node.map(|node| node.id),
            sets: sets.collect(),
            core,
            caches,
        })
    }

    /// Its place in the order of processing units, in which those that share more are closer: the
    /// first of each set that it belongs to, from the largest set to itself.
    fn place(&self) -> Vec<usize> {
        let mut sets: Vec<&List> = self.sets.iter().collect();
        sets.sort_by_key(|set| (std::cmp::Reverse(set.len()), set.first()));
        sets.dedup();
        sets.into_iter().filter_map(List::first).chain([self.id.0]).collect()
    }
}

/// A list that names `pu` among others.
fn siblings(file: &Path, pu: PuId) -> Result<Option<List>, Error> {
    let found = list(file)?;
    match &found {
        Some(pus) if !pus.contains(pu.0) => {
            Err(files::garbage(file, &format!("does not name PU {pu} itself")))
        }
        _ => Ok(found),
    }
}

fn read_caches(folder: &Path, pu: PuId) -> Result<Vec<CacheFiles>, Error> {
    let mut caches = Vec::new();
    for index in numbered(folder, "index") {
        let at = folder.join(format!("index{index}"));
        let level = number(&at.join("level"))?;
        let kind = match text(&at.join("type"))?.as_deref() {
            Some("Data") => Some(CacheKind::Data),
            Some("Instruction") => Some(CacheKind::Instruction),
            Some("Unified") => Some(CacheKind::Unified),
            None => None,
            Some(_) => return Err(files::garbage(&at.join("type"), "names no type of cache")),
        };
        let (Some(level), Some(kind)) = (level, kind) else { continue };
        let size = text(&at.join("size"))?;
        let kib = |size: &str| size.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024);
        let bytes = match &size {
            Some(size) => {
                let bytes = kib(size);
                Some(bytes.ok_or_else(|| files::garbage(&at.join("size"), "is no size in K"))?)
            }
            None => None,
        };
        let pus = siblings(&at.join("shared_cpu_list"), pu)?.unwrap_or_else(|| List::of([pu.0]));
        caches.push(CacheFiles { level, kind, bytes: bytes.filter(|&bytes| bytes > 0), pus });
    }
    Ok(caches)
}

/// Cores of `pus`, which are in order. A processing unit belongs to the core that it names itself.
fn cores(pus: &[Pu], is_known: impl Fn(NumaId) -> bool) -> Vec<Core> {
    let same_core = pus.chunk_by(|a, b| a.core == b.core);
    let core = |pus: &[Pu]| {
        let [first, ..] = pus else { unreachable!("no chunk is empty") };
        let mut ids: Vec<PuId> = pus.iter().map(|pu| pu.id).collect();
        ids.sort_unstable();
        Core { pus: ids, node: first.node.filter(|id| is_known(*id)), package: first.package }
    };
    same_core.map(core).collect()
}

/// Each cache once: those of a lower level first, then by their first processing unit.
fn caches(pus: &[Pu], allowed: &BTreeSet<PuId>) -> Vec<Cache> {
    let mut caches = BTreeMap::new();
    for cache in pus.iter().flat_map(|pu| &pu.caches) {
        caches.entry((cache.level, cache.kind, &cache.pus)).or_insert(cache.bytes);
    }
    let cache = |((level, kind, pus), bytes): ((u8, CacheKind, &List), Option<u64>)| Cache {
        level,
        kind,
        bytes,
        pus: allowed.iter().copied().filter(|pu| pus.contains(pu.0)).collect(),
    };
    caches.into_iter().map(cache).collect()
}

/// RDMA devices and network interfaces of hardware; those of software are attached to nothing. A
/// device that names no node of this process is `near` none.
fn devices(class: &Path, near: impl Fn(&Path) -> Option<NumaId>) -> Vec<Device> {
    let kinds = [("infiniband", DeviceKind::OpenFabrics), ("net", DeviceKind::Network)];
    let of_kind = |(folder, kind): (&str, DeviceKind)| {
        let folder = class.join(folder);
        let is_hardware = |name: &String| {
            let entry = folder.join(name).canonicalize();
            entry.is_ok_and(|at| at.is_dir() && at.iter().all(|part| part != "virtual"))
        };
        let names = names_in(&folder).into_iter().filter(is_hardware);
        let device =
            |name: String| Device { node: near(&folder.join(&name).join("device")), kind, name };
        names.map(device).collect::<Vec<_>>()
    };
    kinds.into_iter().flat_map(of_kind).collect()
}
