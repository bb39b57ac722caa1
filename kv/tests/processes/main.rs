//! Tests of clusters of real processes. This program starts itself again as their nodes, and so has
//! no harness: its arguments are a role, or words in the names of tests.
#![allow(clippy::unwrap_used, reason = "tests")]

mod failover;
#[cfg(target_os = "linux")]
mod frozen;
mod harness;
mod lifetime;
mod pairs;
mod survivors;
#[path = "../support/vans.rs"]
mod vans;

use std::process::ExitCode;

use caravan_kv::node::{run_server, run_worker};
use caravan_kv::{Apps, ClusterConfig, Result};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let role = arguments.first().map_or("", String::as_str);
    let rank = arguments.get(2).and_then(|rank| rank.parse().ok());
    let node = || ClusterConfig::from_env().unwrap();
    let drove = |drive: fn()| {
        drive();
        Ok(())
    };
    let ended: Result<()> = match role {
        "server" => run_server(&node().node, rank, node().threads, &lifetime::handles(), true),
        "worker" => run_worker(&node().node, rank, &apps(), true),
        #[cfg(target_os = "linux")]
        "frozen::drive" => drove(frozen::drive),
        "lifetime::drive" => drove(lifetime::drive),
        "pairs::drive" => drove(pairs::drive),
        _ => return harness::run(&tests(), &arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{role} {rank:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn apps() -> Apps {
    let apps = failover::with_apps(lifetime::with_apps(Apps::default()));
    #[cfg(target_os = "linux")]
    let apps = frozen::with_apps(apps);
    survivors::with_apps(pairs::with_apps(apps))
}

fn tests() -> Vec<harness::Test> {
    let tests = [
        failover::TESTS,
        #[cfg(target_os = "linux")]
        frozen::TESTS,
        lifetime::TESTS,
        pairs::TESTS,
        survivors::TESTS,
    ];
    tests.concat()
}
