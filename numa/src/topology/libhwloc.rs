//! Converts libhwloc's objects to plain values: nodes, cores, caches, distances and devices of a
//! machine, a file or a description. `topology.rs` makes its snapshots of them.

use std::collections::BTreeMap;
use std::path::Path;

use hwloc::object::TopologyObject;
use hwloc::object::attributes::ObjectAttributes;
use hwloc::object::types::{CacheType, OSDeviceType, ObjectType};
use hwloc::topology::Topology as HwlocTopology;
use hwloc::topology::builder::{TopologyBuilder, TypeFilter};

use super::{Cache, CacheKind, Core, Device, DeviceKind, Error, Found, NumaNode};
use crate::ids::{NumaId, PuId};

/// Linux's largest `NR_CPUS`.
const SYNTHETIC_PUS_MAX: u64 = 8192;

pub(super) fn this_machine() -> Result<Found, Error> {
    let found = load(quiet_builder()).map_err(|reason| Error::Discover { reason })?;
    let is_this_machine = found.is_this_system();
    Ok(Found { is_this_machine, ..take_out(&found) })
}

pub(super) fn xml(path: &Path, text: &str) -> Result<Found, Error> {
    let built = TopologyBuilder::new().from_xml(text).map_err(|error| error.to_string());
    let found = built.and_then(load);
    found
        .map(|found| take_out(&found))
        .map_err(|reason| Error::Xml { path: path.to_owned(), reason })
}

pub(super) fn synthetic(description: &str) -> Result<Found, Error> {
    let build = || {
        check_synthetic(description)?;
        let builder = TopologyBuilder::new().from_synthetic(description);
        load(builder.map_err(|error| error.to_string())?)
    };
    build().map(|found| take_out(&found)).map_err(|reason| Error::Synthetic {
        description: description.chars().take(80).collect(),
        reason,
    })
}

fn take_out(found: &HwlocTopology) -> Found {
    Found {
        source: "libhwloc",
        is_this_machine: false,
        nodes: nodes(found),
        cores: cores(found),
        caches: caches(found),
        devices: devices(found),
        distances: distances(found),
        allowed: found.allowed_cpuset().iter_set().map(|pu| PuId(usize::from(pu))).collect(),
        pus_present: found.complete_cpuset().weight().unwrap_or(0),
    }
}

/// A builder for this machine that starts no GPU runtimes: those take seconds and hold memory, and
/// nothing here concerns GPUs.
fn quiet_builder() -> TopologyBuilder {
    ["opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"].into_iter().fold(
        TopologyBuilder::new(),
        |builder, component| {
            // Refused if the component is not installed, and a refused builder is lost.
            match TopologyBuilder::new().without_component(component) {
                Ok(_) => builder.without_component(component).expect("accepted a line above"),
                Err(_) => builder,
            }
        },
    )
}

/// Runs the discovery. Keeps all I/O objects, because the filter for important ones omits virtual
/// devices, Soft-RoCE among them; and the caches of instructions, which are omitted by default.
fn load(builder: TopologyBuilder) -> Result<HwlocTopology, String> {
    let builder = builder.with_io_type_filter(TypeFilter::KeepAll).map_err(|e| e.to_string())?;
    let builder =
        builder.with_cpu_icache_type_filter(TypeFilter::KeepAll).map_err(|e| e.to_string())?;
    builder.build().map_err(|e| e.to_string())
}

/// Refuses descriptions of more PUs than Linux supports, which libhwloc would try to build.
fn check_synthetic(description: &str) -> Result<(), String> {
    let mut outside = String::new();
    let mut depth = 0_usize;
    for c in description.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '\0' => return Err("it has a NUL in it".to_owned()),
            c if depth == 0 => outside.push(c),
            _ => {}
        }
    }
    let mut pus = 1_u64;
    for level in outside.split_whitespace() {
        let arity = level.rsplit(':').next().unwrap_or(level).trim_end_matches(']');
        if !arity.starts_with(|c: char| c.is_ascii_digit()) {
            continue; // an attached node, such as `[numa(memory=8GB)]`
        }
        let arity: u64 = arity.parse().map_err(|_| format!("{level:?} has no decimal count"))?;
        pus = pus.saturating_mul(arity);
        if pus > SYNTHETIC_PUS_MAX {
            return Err(format!("more than {SYNTHETIC_PUS_MAX} PUs"));
        }
    }
    Ok(())
}

fn nodes(found: &HwlocTopology) -> Vec<NumaNode> {
    let mut nodes: Vec<NumaNode> = found
        .objects_with_type(ObjectType::NUMANode)
        .filter_map(|object| {
            let pus = object.cpuset().map(|set| set.iter_set().map(|pu| PuId(pu.into())).collect());
            let memory_bytes = match object.attributes() {
                Some(ObjectAttributes::NUMANode(numa)) => numa.local_memory().map(u64::from),
                _ => None,
            };
            Some(NumaNode {
                id: NumaId(object.os_index()?),
                pus: pus.unwrap_or_default(),
                memory_bytes,
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

fn cores(found: &HwlocTopology) -> Vec<Core> {
    let mut cores: Vec<Core> = Vec::new();
    let mut index_of_core: BTreeMap<usize, usize> = BTreeMap::new();
    for object in found.objects_with_type(ObjectType::PU) {
        let Some(pu) = object.os_index().map(PuId) else { continue };
        let node = nearest_node(object);
        let package = object.first_ancestor_with_type(ObjectType::Package);
        let package = package.and_then(TopologyObject::os_index);
        match object.first_ancestor_with_type(ObjectType::Core).map(TopologyObject::logical_index) {
            None => cores.push(Core { pus: vec![pu], node, package }),
            Some(core) => {
                let index = *index_of_core.entry(core).or_insert_with(|| {
                    cores.push(Core { pus: Vec::new(), node, package });
                    cores.len() - 1
                });
                cores[index].pus.push(pu);
            }
        }
    }
    for core in &mut cores {
        core.pus.sort_unstable();
    }
    cores
}

fn caches(found: &HwlocTopology) -> Vec<Cache> {
    let objects = found.objects().filter(|object| object.object_type().is_cpu_cache());
    let cache = |object: &TopologyObject| {
        let Some(ObjectAttributes::Cache(cache)) = object.attributes() else { return None };
        let kind = match cache.cache_type() {
            CacheType::Data => CacheKind::Data,
            CacheType::Instruction => CacheKind::Instruction,
            CacheType::Unified => CacheKind::Unified,
            _ => return None,
        };
        let pus = object.cpuset()?.iter_set().map(|pu| PuId(pu.into())).collect();
        let level = u8::try_from(cache.depth()).ok()?;
        Some(Cache { level, kind, bytes: cache.size().map(u64::from), pus })
    };
    let mut caches: Vec<Cache> = objects.filter_map(cache).collect();
    caches.sort_by_key(|cache| (cache.level, cache.kind, cache.pus.first().copied()));
    caches
}

/// The lowest node local to a PU: if there are several, the first is the plain memory.
fn nearest_node(pu: &TopologyObject) -> Option<NumaId> {
    Some(NumaId(pu.nodeset()?.first_set()?.into()))
}

/// The firmware's latencies between nodes.
fn distances(found: &HwlocTopology) -> BTreeMap<(NumaId, NumaId), u64> {
    let mut known = BTreeMap::new();
    let Ok(matrices) = found.distances_with_name("NUMALatency") else { return known };
    let Some(matrix) = matrices.first() else { return known };
    let nodes: Vec<Option<NumaId>> =
        matrix.objects().map(|node| node?.os_index().map(NumaId)).collect();
    for ((from, to), distance) in matrix.enumerate_distances() {
        if let (Some(from), Some(to)) = (nodes[from], nodes[to]) {
            known.insert((from, to), distance);
        }
    }
    known
}

fn devices(found: &HwlocTopology) -> Vec<Device> {
    let mut devices: Vec<Device> = found
        .objects_with_type(ObjectType::OSDevice)
        .filter_map(|object| {
            let kind = match object.attributes()? {
                ObjectAttributes::OSDevice(os) => match os.device_type() {
                    OSDeviceType::Network => DeviceKind::Network,
                    OSDeviceType::OpenFabrics => DeviceKind::OpenFabrics,
                    _ => return None,
                },
                _ => return None,
            };
            let name = object.name()?.to_string_lossy().into_owned();
            let nodes = object.first_non_io_ancestor().and_then(TopologyObject::nodeset);
            let node = nodes.and_then(|set| match set.weight() {
                Some(1) => Some(NumaId(set.first_set()?.into())),
                _ => None,
            });
            Some(Device { name, kind, node })
        })
        .collect();
    devices.sort_by_key(|device| (device.kind == DeviceKind::Network, device.name.clone()));
    devices
}
