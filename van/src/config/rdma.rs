//! Settings of the rdma van.

use std::str::FromStr;

/// Settings of the rdma van. `None` leaves a choice to the van, which logs it with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaConfig {
    /// The device, as "mlx5_0".
    pub device: Option<String>,
    /// How connections are made.
    pub connect: RdmaConnect,
    /// The port of the device, from 1.
    pub port: Option<u8>,
    /// The entry of the port's table of addresses (GIDs). Needs a direct connection.
    pub gid: Option<u8>,
    /// The partition (P_Key); its top bit, full membership, is the port's. Needs a direct
    /// connection.
    pub pkey: Option<u16>,
    /// The service level, up to [`RdmaConfig::SERVICE_LEVEL_MAX`]. Other than 0 it needs a direct
    /// connection.
    pub service_level: u8,
    /// The traffic class of packets, on RoCE the DSCP times 4.
    pub traffic_class: u8,
    /// The path MTU in bytes, one of [`RdmaConfig::MTUS`]. Needs a direct connection.
    pub mtu: Option<u16>,
    /// The device sends again what is not acknowledged for 4.096 µs times 2 to this power; up to
    /// [`RdmaConfig::ACK_TIMEOUT_MAX`].
    pub ack_timeout: u8,
    /// How often it sends again, up to [`RdmaConfig::RETRIES_MAX`].
    pub retries: u8,
}

/// How the rdma van connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RdmaConnect {
    /// By the connection manager where the port has an IP address, else directly.
    #[default]
    Auto,
    /// By the connection manager, which needs an IP address on the port.
    Manager,
    /// Directly: both ends exchange over TCP what their queue pairs need to know.
    Direct,
}

impl RdmaConfig {
    /// Largest service level.
    pub const SERVICE_LEVEL_MAX: u8 = 15;
    /// The MTUs that there are.
    pub const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];
    /// Largest exponent of the acknowledgement timeout.
    pub const ACK_TIMEOUT_MAX: u8 = 31;
    /// Most retries. (Soft-RoCE takes this for ever.)
    pub const RETRIES_MAX: u8 = 7;

    /// The first variable that is set and that the connection manager would ignore.
    pub fn only_direct(&self) -> Option<&'static str> {
        let set = [
            ("CARAVAN_RDMA_GID", self.gid.is_some()),
            ("CARAVAN_RDMA_PKEY", self.pkey.is_some()),
            ("CARAVAN_RDMA_SERVICE_LEVEL", self.service_level != 0),
            ("CARAVAN_RDMA_MTU", self.mtu.is_some()),
        ];
        set.into_iter().find_map(|(name, is_set)| is_set.then_some(name))
    }
}

impl Default for RdmaConfig {
    fn default() -> Self {
        RdmaConfig {
            device: None,
            connect: RdmaConnect::Auto,
            port: None,
            gid: None,
            pkey: None,
            service_level: 0,
            traffic_class: 0,
            mtu: None,
            // 67 ms, so that six retries take half a second.
            ack_timeout: 14,
            retries: 6,
        }
    }
}

impl RdmaConnect {
    /// As it is named in a setting.
    pub fn name(self) -> &'static str {
        match self {
            RdmaConnect::Auto => "auto",
            RdmaConnect::Manager => "cm",
            RdmaConnect::Direct => "direct",
        }
    }
}

impl FromStr for RdmaConnect {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let all = [RdmaConnect::Auto, RdmaConnect::Manager, RdmaConnect::Direct];
        all.into_iter().find(|way| way.name() == name).ok_or(())
    }
}
