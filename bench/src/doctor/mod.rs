//! `caravan doctor`: which vans work on this machine, and for each that does not, the reason and
//! the remedy; and what else hurts here. Changes nothing.

mod findings;
mod layout;
pub(crate) mod machine;
mod rdma;

use anyhow::Result;
use caravan_kv::error::with_sources;
use caravan_kv::{Error, Van};
use serde::Serialize;

use self::layout::Layout;
use self::machine::Machine;
use self::rdma::{Found, Obstacle};
use crate::cli::ending::Usage;
use crate::cli::{Common, DoctorArgs};
use crate::cluster;
use crate::report::Row;
use crate::vans::opens;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VanCheck {
    pub(crate) van: String,
    pub(crate) works: bool,
    /// What carries its messages, or the reason it does not work.
    pub(crate) why: String,
    /// What to do about it; empty if it works.
    pub(crate) remedy: String,
}

impl Row for VanCheck {
    const KIND: &'static str = "van";

    fn text(&self) -> String {
        let works = if self.works { "yes" } else { "no" };
        let mut text = format!("{:<6}{works:<5}{}", self.van, self.why);
        if !self.remedy.is_empty() {
            text.push_str(&format!("\n           → {}", self.remedy));
        }
        text
    }
}

/// Prints the machine, its layout, a row for each van and each port of an RDMA device, and what
/// hurts.
///
/// # Errors
/// [`Usage`] for wrong settings and topologies; when standard output cannot be written.
pub(crate) fn run(common: &Common, args: &DoctorArgs) -> Result<()> {
    let config = cluster::config(common)?;
    let layout = match args.topology.as_deref() {
        Some(topology) if args.layout_only => return layout::tell(&config, topology),
        Some(topology) => layout::ask(topology),
        None => Layout::read(&config, None),
    };
    let mut report = Machine::first(common, 0)?;
    match layout {
        Ok(layout) => report.row(&layout)?,
        // Only this machine's own layout may be missing: a topology of the user is there or wrong.
        Err(error) if error.is::<Usage>() => return Err(error),
        Err(error) => report.say(format_args!("layout unknown: {error}")),
    }
    let rdma = rdma::find(&config.node.van_config(0));
    let checks = checks(&rdma);
    for check in &checks {
        report.row(check)?;
    }
    for port in &rdma.ports {
        report.row(port)?;
    }
    let uring_is_refused = checks.iter().any(|check| check.van == "uring" && !check.works);
    for finding in findings::find(&config, uring_is_refused) {
        report.row(&finding)?;
    }
    Ok(())
}

/// Every van, the best first.
fn checks(rdma: &Found) -> Vec<VanCheck> {
    let mut verbs = check(
        Van::Rdma,
        "verbs over reliable connections",
        "see the devices below; `caravan bench verbs` tries one by itself",
    );
    if let (false, Some(Obstacle { why, remedy })) = (verbs.works, &rdma.obstacle) {
        verbs.why.clone_from(why);
        verbs.remedy.clone_from(remedy);
    }
    vec![
        verbs,
        check(
            Van::Uring,
            "io_uring over TCP; ahead of tcp from 64 lanes a thread on",
            "needs Linux 5.11 or later, `sysctl kernel.io_uring_disabled` 0, and a container that \
             allows io_uring; the tcp van does without",
        ),
        check(
            Van::Shm,
            "shared memory between processes of this host",
            "needs Linux 5.1 or later, a sandbox that allows memfd_create and Unix sockets, free \
             file descriptors (`ulimit -n`) and /proc; the uring and tcp vans do without",
        ),
        check(Van::Tcp, "plain sockets", "bring the loopback interface up: ip link set lo up"),
        VanCheck {
            van: "sim".to_owned(),
            works: true,
            why: "a simulated network in simulated time; for tests, it has no speed to measure"
                .to_owned(),
            remedy: String::new(),
        },
    ]
}

/// Tries a van. `carrier` is what carries its messages, `remedy` what to do if it does not open.
fn check(van: Van, carrier: &str, remedy: &str) -> VanCheck {
    let opened = opens(van);
    let works = opened.is_ok();
    let (why, remedy) = match opened {
        Ok(()) => (carrier.to_owned(), String::new()),
        Err(Error::VanLeftOut { van }) => (
            "it was left out when this program was built".to_owned(),
            format!("build on Linux with `--features {van}`, or without `--no-default-features`"),
        ),
        Err(error) => (with_sources(&error), remedy.to_owned()),
    };
    VanCheck { van: van.to_string(), works, why, remedy }
}

#[cfg(test)]
mod tests {
    use caravan_kv::node::{VANS, is_built};

    use super::*;

    #[test]
    fn every_van_is_checked_and_what_fails_has_a_remedy() {
        let checks = checks(&rdma::find(&caravan_van::VanConfig::default()));
        let vans: Vec<&str> = checks.iter().map(|check| check.van.as_str()).collect();
        assert_eq!(vans, ["rdma", "uring", "shm", "tcp", "sim"]);
        for check in checks {
            assert!(!check.why.is_empty());
            assert_eq!(check.works, check.remedy.is_empty(), "{}", check.van);
            assert!(crate::report::Row::text(&check).starts_with(&check.van));
            if VANS.iter().any(|van| van.to_string() == check.van && !is_built(*van)) {
                let feature = format!("--features {}", check.van);
                assert!(check.remedy.contains(&feature), "{}", check.remedy);
            }
        }
    }
}
