//! Which vans tests run over.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::sync::Once;

use caravan_kv::node::{VANS, is_built};
use caravan_kv::{NodeConfig, Van};

/// The RDMA device to test on, if there is one.
pub(crate) fn device() -> Option<String> {
    std::env::var("CARAVAN_TEST_DEVICE").ok().filter(|device| !device.is_empty())
}

/// All vans of this build, fastest first; those that do without a device when there is none to test on, which is said once. Only the one that
/// `CARAVAN_TEST_VAN` names, if it names one.
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

fn named() -> Option<Van> {
    std::env::var("CARAVAN_TEST_VAN").ok().map(|name| name.parse().unwrap())
}

/// For tests that need one van, whichever it is: the one that `CARAVAN_TEST_VAN` names, else what a cluster takes by itself.
pub(crate) fn any() -> Van {
    named().unwrap_or(Van::Auto)
}

/// Whether a cluster on one host may take `van` by itself: shared memory goes before all that can be named.
pub(crate) fn auto_may_take(van: Van) -> bool {
    van == Van::Shm || vans().contains(&van)
}

/// Settings of a node that takes `van`.
pub(crate) fn node(van: Van) -> NodeConfig {
    NodeConfig { van, rdma_device: device(), ..NodeConfig::default() }
}
