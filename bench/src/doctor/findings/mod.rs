//! What hurts on this machine: settings that cost speed or keep a van from working, each with a
//! remedy and the command for it.
//!
//! A check reads files of the kernel below a root and answers what it has found. Where a file is
//! missing nothing is found: doctor never guesses.

mod check;
mod devices;
mod host;
mod network;
mod root;

use std::path::PathBuf;

use caravan_kv::ClusterConfig;
use serde::Serialize;

use self::check::Seen;
use self::root::Root;
use crate::report::Row;

/// Something that hurts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// The check, for scripts.
    pub(crate) check: String,
    pub(crate) what: String,
    pub(crate) remedy: String,
    /// To be run as root where it changes something; words in capitals are the reader's to fill.
    pub(crate) command: String,
}

impl Row for Finding {
    const KIND: &'static str = "finding";

    fn heading(&self) -> Option<String> {
        Some("\n# what may hurt, and what to do".to_owned())
    }

    fn text(&self) -> String {
        let Finding { check, what, remedy, command } = self;
        format!("{check}: {what}\n           → {remedy}\n           $ {command}")
    }
}

/// What hurts on this machine.
pub(crate) fn find(config: &ClusterConfig, uring_is_refused: bool) -> Vec<Finding> {
    let threads = config.servers.saturating_mul(config.threads).saturating_add(config.workers);
    let memory_bytes = config.node.memory_bytes;
    all(&Seen { root: Root(PathBuf::from("/")), threads, memory_bytes, uring_is_refused })
}

fn all(seen: &Seen) -> Vec<Finding> {
    let checks = [host::CHECKS, network::CHECKS, devices::CHECKS].into_iter().flatten();
    let findings = checks.flat_map(|check| {
        (check.find)(seen).into_iter().map(|place| Finding {
            check: check.name.to_owned(),
            what: place.what,
            remedy: check.remedy.to_owned(),
            command: check.command.replace("{}", &place.name),
        })
    });
    findings.collect()
}

#[cfg(test)]
mod tests;
