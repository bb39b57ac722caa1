//! `caravan doctor`: which vans work on this machine and, for each that doesn't, why and what to do. Changes nothing.

use anyhow::Result;
use caravan_kv::Van;
use caravan_kv::node::open;
use caravan_van::VanConfig;
use serde::{Deserialize, Serialize};

use crate::cli::{Common, DoctorArgs, VanChoice};
use crate::cluster;
use crate::layout::{self, Layout};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{Report, Row, Shown};
use crate::terminal::say;
use crate::usage::Usage;
use crate::verbs::doctor::{Found, Obstacle, find};

/// What was found out about one van.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct VanCheck {
    pub(crate) van: String,
    pub(crate) works: bool,
    /// What it carries messages by, or what keeps it from working.
    pub(crate) why: String,
    /// What to do about it; empty when it works.
    pub(crate) remedy: String,
}

impl VanCheck {
    fn works(van: VanChoice, why: &str) -> Self {
        VanCheck {
            van: van.name().to_owned(),
            works: true,
            why: why.to_owned(),
            remedy: String::new(),
        }
    }

    fn fails(van: VanChoice, why: String, remedy: &str) -> Self {
        VanCheck { van: van.name().to_owned(), works: false, why, remedy: remedy.to_owned() }
    }
}

impl Shown for VanCheck {
    fn text(&self) -> String {
        let works = if self.works { "yes" } else { "no" };
        let mut text = format!("{:<6}{works:<5}{}", self.van, self.why);
        if !self.remedy.is_empty() {
            text.push_str(&format!("\n           → {}", self.remedy));
        }
        text
    }
}

/// Prints the machine, its layout, a row a van, and a row a port of an RDMA device.
///
/// # Errors
/// [`Usage`] for settings and topologies that are none; when standard output cannot be written to.
pub(crate) fn run(common: &Common, args: &DoctorArgs) -> Result<()> {
    let config = cluster::config(common)?;
    let layout = match args.topology.as_deref() {
        Some(topology) if args.layout_only => return layout::tell(&config, topology),
        Some(topology) => layout::ask(topology),
        None => Layout::read(&config, None),
    };
    let mut report = Report::new(common.json);
    let quiet = Progress::new(0, true);
    report.row(&Row::Machine(Machine::read()), &quiet)?;
    match layout {
        Ok(layout) => report.row(&Row::Layout(layout), &quiet)?,
        // Only this machine's own layout may be missing: what was asked for is there, or wrong.
        Err(error) if error.is::<Usage>() => return Err(error),
        Err(error) => say(format_args!("layout unknown: {error}")),
    }
    let rdma = find();
    for check in checks(&rdma) {
        report.row(&Row::Van(check), &quiet)?;
    }
    for port in rdma.ports {
        report.row(&Row::RdmaDevice(port), &quiet)?;
    }
    Ok(())
}

/// Every van, best first.
fn checks(rdma_found: &Found) -> Vec<VanCheck> {
    vec![rdma(rdma_found), uring(), shm(), tcp(), sim()]
}

/// Why a van that the design has cannot carry messages between processes in this version; `None` for those that can.
pub(crate) fn missing(van: VanChoice) -> Option<&'static str> {
    match van {
        VanChoice::Sim => Some(
            "the sim van has simulated time and no processes: it is for tests and `caravan bench scale`",
        ),
        VanChoice::Auto | VanChoice::Rdma | VanChoice::Uring | VanChoice::Shm | VanChoice::Tcp => {
            None
        }
    }
}

/// Whether a van can be opened here.
///
/// # Errors
/// Why it cannot.
pub(crate) fn opens(van: Van) -> caravan_kv::Result<()> {
    open(van, &VanConfig::default()).map(drop)
}

fn rdma(found: &Found) -> VanCheck {
    match (&found.obstacle, opens(Van::Rdma)) {
        (_, Ok(())) => VanCheck::works(VanChoice::Rdma, "verbs over reliable connections"),
        (Some(Obstacle { why, remedy }), Err(_)) => {
            VanCheck::fails(VanChoice::Rdma, why.clone(), remedy)
        }
        (None, Err(error)) => VanCheck::fails(
            VanChoice::Rdma,
            chain(&error),
            "see the devices below; `caravan bench verbs` tries one by itself",
        ),
    }
}

fn shm() -> VanCheck {
    match opens(Van::Shm) {
        Ok(()) => VanCheck::works(VanChoice::Shm, "shared memory between processes of this host"),
        Err(error) => VanCheck::fails(
            VanChoice::Shm,
            chain(&error),
            "needs Linux 5.1 or later, a sandbox that allows memfd_create and Unix sockets, free file descriptors \
             (`ulimit -n`) and /proc; the uring and tcp vans do without",
        ),
    }
}

fn uring() -> VanCheck {
    match opens(Van::Uring) {
        Ok(()) => VanCheck::works(VanChoice::Uring, "io_uring over TCP"),
        Err(error) => VanCheck::fails(
            VanChoice::Uring,
            chain(&error),
            "needs Linux 6.0 or later, `sysctl kernel.io_uring_disabled` 0, and a container that allows io_uring; \
             the tcp van does without",
        ),
    }
}

fn tcp() -> VanCheck {
    match opens(Van::Tcp) {
        Ok(()) => VanCheck::works(VanChoice::Tcp, "plain sockets"),
        Err(error) => VanCheck::fails(
            VanChoice::Tcp,
            chain(&error),
            "bring the loopback interface up: ip link set lo up",
        ),
    }
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

fn sim() -> VanCheck {
    VanCheck::works(
        VanChoice::Sim,
        "a simulated network in simulated time; for tests, it has no speed to measure",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_van_is_checked_and_what_fails_has_a_remedy() {
        let checks = checks(&find());
        let vans: Vec<&str> = checks.iter().map(|check| check.van.as_str()).collect();
        assert_eq!(vans, ["rdma", "uring", "shm", "tcp", "sim"]);
        for check in checks {
            assert!(!check.why.is_empty());
            assert_eq!(check.works, check.remedy.is_empty(), "{}", check.van);
            assert!(check.text().starts_with(&check.van));
        }
    }
}
