//! Stands in for `caravan bench verbs` in a build without RDMA.

#[path = "kinds.rs"]
pub(crate) mod kinds;

use std::net::IpAddr;

use anyhow::Result;
use caravan_kv::{Error, Van};
use caravan_van::Wait;

use crate::cli::{Common, VerbsArgs};

pub(crate) fn run(_: &Common, _: &VerbsArgs) -> Result<()> {
    Err(Error::VanLeftOut { van: Van::Rdma }.into())
}

pub(crate) fn answer(_: IpAddr, _: Wait) -> Result<()> {
    Err(Error::VanLeftOut { van: Van::Rdma }.into())
}
