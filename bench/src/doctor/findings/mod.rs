//! What hurts on this machine: settings that cost speed or keep a van from working, each with a
//! remedy and the command for it.
//!
//! A check reads files of the kernel below a root and answers what it has found. Where a file is
//! missing nothing is found: doctor never guesses.

mod devices;
mod host;
mod network;
mod root;

use std::path::PathBuf;

use caravan_kv::ClusterConfig;
use serde::Serialize;

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

/// What a cluster asks of this machine, and where the machine tells of itself.
struct Seen {
    root: Root,
    /// Threads that run at once.
    threads: usize,
    /// Memory of one thread at most.
    memory_bytes: usize,
    /// Whether the kernel refuses io_uring to this process.
    uring_is_refused: bool,
}

/// One place where a check has found something.
struct Place {
    /// What stands for `{}` in the command: the interface, the device, or how much is needed.
    name: String,
    what: String,
}

/// One kind of thing that hurts.
struct Check {
    name: &'static str,
    find: fn(&Seen) -> Vec<Place>,
    remedy: &'static str,
    command: &'static str,
}

/// A place for the whole machine, if there is something to say.
fn here(what: Option<String>) -> Vec<Place> {
    what.into_iter().map(|what| Place { name: String::new(), what }).collect()
}

/// A place where `needed` is too much, if there is something to say.
fn short_of(needed: impl ToString, what: Option<String>) -> Vec<Place> {
    what.into_iter().map(|what| Place { name: needed.to_string(), what }).collect()
}

/// The places among some names of which there is something to say.
fn among(names: Vec<String>, what: impl Fn(&str) -> Option<String>) -> Vec<Place> {
    let place = |name: String| what(&name).map(|what| Place { name, what });
    names.into_iter().filter_map(place).collect()
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
