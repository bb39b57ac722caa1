//! Skeleton.
#![allow(missing_docs, unused_variables)]
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    pub numa_node: Option<u32>,
    pub ports: Vec<PortInfo>,
}
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    pub number: u8,
    pub state: String,
    pub link_layer: String,
    pub rate: String,
    pub gids: Vec<Gid>,
}
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    pub index: u32,
    pub address: Ipv6Addr,
    pub kind: String,
    pub interface: Option<String>,
}
pub fn devices(root: &Path) -> Vec<DeviceInfo> {
    todo!()
}
impl PortInfo {
    pub fn is_active(&self) -> bool {
        todo!()
    }
    pub fn address(&self) -> Option<IpAddr> {
        todo!()
    }
}
