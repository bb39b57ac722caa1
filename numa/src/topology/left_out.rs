//! Replaces `libhwloc.rs` in a build without it: `/sys` has this machine, and files and
//! descriptions of other machines are refused, because only libhwloc reads them.

use std::path::Path;

use super::{Error, Found};

pub(super) use super::sysfs::this_machine;

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
    use crate::{Error, Topology};

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
