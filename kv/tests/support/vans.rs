//! Which vans tests run over.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::sync::Once;

use caravan_kv::node::VANS;
use caravan_kv::{NodeConfig, Van};

/// The RDMA device to test on, if there is one.
pub(crate) fn device() -> Option<String> {
    std::env::var("CARAVAN_TEST_DEVICE").ok().filter(|device| !device.is_empty())
}

/// All vans, fastest first; those that do without a device when there is none to test on, which is said once. Only the one that
/// `CARAVAN_TEST_VAN` names, if it names one.
pub(crate) fn vans() -> Vec<Van> {
    static SAID: Once = Once::new();
    let only = std::env::var("CARAVAN_TEST_VAN").ok().map(|name| name.parse().unwrap());
    let device = device();
    if device.is_none() {
        SAID.call_once(|| eprintln!("skipped: the rdma van (set CARAVAN_TEST_DEVICE to a device)"));
    }
    let here = VANS.into_iter().filter(|van| *van != Van::Rdma || device.is_some());
    here.filter(|van| only.is_none_or(|only: Van| only == *van)).collect()
}

/// Settings of a node that takes `van`.
pub(crate) fn node(van: Van) -> NodeConfig {
    NodeConfig { van, rdma_device: device(), ..NodeConfig::default() }
}
