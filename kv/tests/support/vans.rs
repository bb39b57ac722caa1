//! The vans that tests run over.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::sync::Once;

use caravan_kv::node::{VANS, is_built};
use caravan_kv::{NodeConfig, Van};
use caravan_van::{RdmaConfig, RdmaConnect};

/// The RDMA device to test on, if there is one.
pub(crate) fn device() -> Option<String> {
    std::env::var("CARAVAN_TEST_DEVICE").ok().filter(|device| !device.is_empty())
}

/// All vans of this build, fastest first, or only the one that `CARAVAN_TEST_VAN` names. Without a
/// device to test on, those that need one are left out, with one message.
pub(crate) fn vans() -> Vec<Van> {
    static SAID: Once = Once::new();
    let only = named();
    let device = device();
    if device.is_none() {
        SAID.call_once(|| eprintln!("skipped: the rdma van (set CARAVAN_TEST_DEVICE to a device)"));
    }
    let built = VANS.into_iter().filter(|van| is_built(*van));
    let here = built.filter(|van| *van != Van::Rdma || device.is_some());
    here.filter(|van| only.is_none_or(|only: Van| only == *van)).collect()
}

/// Whether tests run over `van`; says so if they do not. What somebody has asked for is no test
/// that is skipped.
pub(crate) fn runs_over(van: Van) -> bool {
    let runs = vans().contains(&van);
    match named() {
        _ if runs => {}
        Some(named) => eprintln!("not over {van}: CARAVAN_TEST_VAN is {named}"),
        None => eprintln!("skipped: needs the {van} van, which is left out of this build"),
    }
    runs
}

fn named() -> Option<Van> {
    std::env::var("CARAVAN_TEST_VAN").ok().map(|name| name.parse().unwrap())
}

/// One van, for tests that need any: the one that `CARAVAN_TEST_VAN` names, else the cluster's
/// choice.
pub(crate) fn any() -> Van {
    named().unwrap_or(Van::Auto)
}

/// Whether a cluster on one host may choose `van` itself: shared memory comes before all that can
/// be named.
pub(crate) fn auto_may_take(van: Van) -> bool {
    van == Van::Shm || vans().contains(&van)
}

/// The device to test on, connected to as `CARAVAN_TEST_CONNECT` says.
pub(crate) fn rdma() -> RdmaConfig {
    let connect = std::env::var("CARAVAN_TEST_CONNECT").ok();
    let connect = connect.map_or(RdmaConnect::Auto, |way| way.parse().unwrap());
    RdmaConfig { device: device(), connect, ..RdmaConfig::default() }
}

/// Settings of a node that uses `van`.
pub(crate) fn node(van: Van) -> NodeConfig {
    NodeConfig { van, rdma: rdma(), ..NodeConfig::default() }
}
