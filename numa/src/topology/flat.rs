//! Replaces `discover.rs` in a build without libhwloc: this machine is one NUMA node, each PU of
//! the affinity mask is a core, and no devices are known. Threads can still be pinned.
//!
//! Files and descriptions of other machines are refused, because only libhwloc reads them.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Core, Error, Found, NumaNode, thread_mask};
use crate::ids::{NumaId, PuId};

pub(super) fn this_machine() -> Result<Found, Error> {
    let Some(allowed) = thread_mask() else {
        let reason = "the system does not show the affinity mask".to_owned();
        return Err(Error::Discover { reason });
    };
    let node = NumaId(0);
    let pus: Vec<PuId> = allowed.iter().copied().collect();
    let cores = pus.iter().map(|&pu| Core { pus: vec![pu], node: Some(node) });
    Ok(Found {
        is_this_machine: true,
        cores: cores.collect(),
        devices: Vec::new(),
        distances: BTreeMap::new(),
        pus_present: pus.len(),
        nodes: vec![NumaNode { id: node, pus, memory_bytes: None }],
        allowed,
    })
}

pub(super) fn xml(path: &Path, _: &str) -> Result<Found, Error> {
    Err(Error::LeftOut { what: format!("the topology file {}", path.display()) })
}

pub(super) fn synthetic(description: &str) -> Result<Found, Error> {
    let description: String = description.chars().take(80).collect();
    Err(Error::LeftOut { what: format!("the synthetic topology {description:?}") })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::{Error, Near, Plan, Topology};

    #[test]
    fn this_machine_is_one_node_whose_pus_are_those_of_the_mask() {
        let topology = Topology::this_machine().unwrap();
        let mask = super::thread_mask().unwrap();
        assert_eq!((topology.nodes().len(), topology.usable_pus()), (1, &mask));
        let plan = Plan::new(&topology, Near::Anywhere, 0..1);
        std::thread::spawn(move || {
            let placement = plan.pin_current_thread(0);
            assert!(placement.is_pinned(), "{placement}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn topologies_of_other_machines_are_refused_with_the_feature_that_reads_them() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/two_ib.xml");
        for error in [Topology::from_xml_file(file), Topology::from_synthetic("pu:2")] {
            let error = error.unwrap_err();
            assert!(matches!(error, Error::LeftOut { .. }), "{error}");
            assert!(error.to_string().contains("--features hwloc"), "{error}");
        }
    }
}
