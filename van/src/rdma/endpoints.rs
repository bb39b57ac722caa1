//! What the two ends of a direct connection tell each other of their ports and queue pairs, and
//! what follows from it: the addresses, the packet size, or why they do not fit. Not on the path.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::connect::NOT_READY_TIMER;
use super::devices::{Gid, PortInfo};
use super::verbs::{Capabilities, Global, Path};
use crate::config::RdmaConfig;

/// Addresses that an end tells at most.
const GIDS_MAX: usize = 16;

/// The bits of a P_Key that two ends must share; the top bit is full membership.
const PARTITION: u16 = 0x7fff;

/// One end's port, as its settings choose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    device: String,
    number: u8,
    is_ethernet: bool,
    lid: u16,
    pkey: u16,
    /// Place of the P_Key in the port's table; only its own end needs it.
    pkey_index: u16,
    mtu: u16,
    /// Whether a setting demands that MTU.
    mtu_is_set: bool,
    service_level: u8,
    gids: Vec<Address>,
    /// Whether a setting demands the only address.
    gid_is_set: bool,
}

/// An entry of the table of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address {
    index: u8,
    address: Ipv6Addr,
    /// Whether it is one of RoCE v2.
    is_v2: bool,
}

/// One end of a connection to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) port: Port,
    /// Its queue pair.
    pub(super) queue: u32,
    /// Number of the first packet that it sends, 24 bits.
    pub(super) first_sent: u32,
}

/// Whether an end called or was called: both must come to the same choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Caller,
    Called,
}

/// [`End`] on the wire.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Told {
    queue: U32,
    first_sent: U32,
    lid: U16,
    pkey: U16,
    mtu: U16,
    flags: u8,
    service_level: u8,
    port: u8,
    gids: u8,
    zero: [u8; 2],
    device: [u8; 32],
    gid: [ToldGid; GIDS_MAX],
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ToldGid {
    address: [u8; 16],
    index: u8,
    is_v2: u8,
    zero: [u8; 6],
}

impl Told {
    const ETHERNET: u8 = 1;
    const MTU_IS_SET: u8 = 2;
    const GID_IS_SET: u8 = 4;
}

impl Port {
    /// The port `info` of a device, by the settings; `pkeys` is its table of partitions.
    ///
    /// # Errors
    /// The setting that the port cannot follow, and what it has.
    pub(super) fn new(
        device: &str,
        info: &PortInfo,
        able: &Capabilities,
        pkeys: &[u16],
        config: &RdmaConfig,
    ) -> Result<Port, String> {
        let named = format!("port {} of {device}", info.number);
        let active = u16::try_from(able.mtu_bytes).unwrap_or(0);
        let mtu = config.mtu.unwrap_or(active);
        if mtu > active {
            let set = format!("CARAVAN_RDMA_MTU is {mtu}");
            return Err(format!("{set}, and {named} has an MTU of {active}"));
        }
        let all: Vec<Address> = info.gids.iter().filter_map(Address::new).collect();
        let mut gids = all.clone();
        if let Some(index) = config.gid {
            gids.retain(|gid| gid.index == index);
            if gids.is_empty() {
                let has = listed(&all);
                return Err(format!("CARAVAN_RDMA_GID is {index}, and {named} has {has}"));
            }
        }
        // Those that another end may share come first.
        gids.sort_by_key(|gid| (!gid.is_v2, gid.address.is_unicast_link_local()));
        gids.truncate(GIDS_MAX);
        let (pkey_index, pkey) = partition(pkeys, config.pkey)
            .map_err(|(wanted, has)| format!("{wanted}, and {named} has {has}"))?;
        Ok(Port {
            device: device.to_owned(),
            number: info.number,
            is_ethernet: info.link_layer == "Ethernet",
            lid: able.lid,
            pkey,
            pkey_index,
            mtu,
            mtu_is_set: config.mtu.is_some(),
            service_level: config.service_level,
            gids,
            gid_is_set: config.gid.is_some(),
        })
    }

    pub(super) fn is_ethernet(&self) -> bool {
        self.is_ethernet
    }

    pub(super) fn number(&self) -> u8 {
        self.number
    }

    pub(super) fn pkey_index(&self) -> u16 {
        self.pkey_index
    }
}

/// The place and the value of the partition `wanted` in a table, else of the first.
///
/// # Errors
/// What is wanted, and what the table has.
fn partition(pkeys: &[u16], wanted: Option<u16>) -> Result<(u16, u16), (String, String)> {
    let fits = |pkey: u16| match wanted {
        Some(wanted) => (pkey ^ wanted) & PARTITION == 0,
        None => pkey & PARTITION != 0,
    };
    let mut places = (0..).zip(pkeys.iter().copied());
    places.find(|&(_, pkey)| fits(pkey)).ok_or_else(|| {
        let wanted = wanted.map_or("a partition is needed".to_owned(), |wanted| {
            format!("CARAVAN_RDMA_PKEY is {wanted:#06x}")
        });
        let has: Vec<_> = pkeys.iter().map(|pkey| format!("{pkey:#06x}")).collect();
        (wanted, format!("the P_Keys {}", has.join(", ")))
    })
}

impl Address {
    /// `None` if a connection cannot name it, by one byte.
    fn new(gid: &Gid) -> Option<Address> {
        let index = u8::try_from(gid.index).ok()?;
        Some(Address { index, address: gid.address, is_v2: gid.kind == "RoCE v2" })
    }

    /// Number of leading bits that two addresses share.
    fn shared_bits(&self, other: &Address) -> u32 {
        (self.address.to_bits() ^ other.address.to_bits()).leading_zeros()
    }

    fn family(&self) -> &'static str {
        match self.address.to_canonical() {
            IpAddr::V4(_) => "IPv4",
            IpAddr::V6(ip) if ip.is_unicast_link_local() => "link-local IPv6",
            IpAddr::V6(_) => "IPv6",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_v2 { "RoCE v2" } else { "v1" };
        write!(f, "GID {} ({}, {kind})", self.index, self.address.to_canonical())
    }
}

fn listed(gids: &[Address]) -> String {
    let all: Vec<_> = gids.iter().map(Address::to_string).collect();
    if all.is_empty() { "no GID".to_owned() } else { all.join(", ") }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Port { device, number, lid, pkey, mtu, service_level, gids, .. } = self;
        write!(f, "{device} port {number}: ")?;
        if !self.is_ethernet {
            write!(f, "LID {lid}, ")?;
        }
        write!(f, "P_Key {pkey:#06x}, service level {service_level}, MTU {mtu}, {}", listed(gids))
    }
}

/// What two ends have agreed on, seen from one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Both addresses, its own first; none where the LID is enough.
    gids: Option<(Address, Address)>,
    mtu: u16,
    /// Why this address was chosen.
    pub(super) reason: String,
}

impl End {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Port { is_ethernet, mtu_is_set, gid_is_set, .. } = self.port;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let mut told = Told {
            queue: self.queue.into(),
            first_sent: self.first_sent.into(),
            lid: self.port.lid.into(),
            pkey: self.port.pkey.into(),
            mtu: self.port.mtu.into(),
            flags: flag(is_ethernet, Told::ETHERNET)
                | flag(mtu_is_set, Told::MTU_IS_SET)
                | flag(gid_is_set, Told::GID_IS_SET),
            service_level: self.port.service_level,
            port: self.port.number,
            gids: self.port.gids.len() as u8,
            zero: [0; 2],
            device: [0; 32],
            gid: [ToldGid { address: [0; 16], index: 0, is_v2: 0, zero: [0; 6] }; GIDS_MAX],
        };
        for (to, byte) in told.device.iter_mut().zip(self.port.device.bytes()) {
            *to = byte;
        }
        for (to, gid) in told.gid.iter_mut().zip(&self.port.gids) {
            to.address = gid.address.octets();
            (to.index, to.is_v2) = (gid.index, u8::from(gid.is_v2));
        }
        told.as_bytes().to_vec()
    }

    /// # Errors
    /// The reason that it is malformed.
    pub(super) fn decode(bytes: &[u8]) -> Result<End, String> {
        let told = Told::ref_from_bytes(bytes)
            .map_err(|_| format!("it tells of its queue pair in {} bytes", bytes.len()))?;
        let mtu = told.mtu.get();
        if !RdmaConfig::MTUS.contains(&mtu) || usize::from(told.gids) > GIDS_MAX {
            return Err(format!("it tells of an MTU of {mtu} and {} GIDs", told.gids));
        }
        let name = told.device.split(|&byte| byte == 0).next().unwrap_or_default();
        let gids = told.gid.iter().take(told.gids.into()).map(|gid| Address {
            index: gid.index,
            address: gid.address.into(),
            is_v2: gid.is_v2 != 0,
        });
        let has = |flag: u8| told.flags & flag != 0;
        Ok(End {
            port: Port {
                device: String::from_utf8_lossy(name).escape_debug().to_string(),
                number: told.port,
                is_ethernet: has(Told::ETHERNET),
                lid: told.lid.get(),
                pkey: told.pkey.get(),
                pkey_index: 0,
                mtu,
                mtu_is_set: has(Told::MTU_IS_SET),
                service_level: told.service_level,
                gids: gids.collect(),
                gid_is_set: has(Told::GID_IS_SET),
            },
            queue: told.queue.get() & PACKET_NUMBERS,
            first_sent: told.first_sent.get() & PACKET_NUMBERS,
        })
    }

    /// The way from this end to the other.
    pub(super) fn path(&self, other: &End, agreed: &Agreed, config: &RdmaConfig) -> Path {
        Path {
            queue: other.queue,
            first_sent: self.first_sent,
            first_received: other.first_sent,
            mtu_bytes: agreed.mtu,
            lid: other.port.lid,
            global: agreed.gids.map(|(own, theirs)| Global {
                gid: theirs.address.octets(),
                own: own.index,
                traffic_class: config.traffic_class,
            }),
            service_level: self.port.service_level,
            port: self.port.number,
            ack_timeout: config.ack_timeout,
            retries: config.retries,
            not_ready_timer: NOT_READY_TIMER,
        }
    }
}

/// Bits of the number of a packet, and of a queue pair.
pub(super) const PACKET_NUMBERS: u32 = 0xff_ffff;

/// What `own`, an end of `side`, and `other` agree on. Both ends come to the same.
///
/// # Errors
/// What does not fit, with the values of both.
pub(super) fn agree(own: &Port, other: &Port, side: Side) -> Result<Agreed, String> {
    let differ = |what: &str| format!("{what}; here {own}; there {other}");
    if own.is_ethernet != other.is_ethernet {
        return Err(differ("one end is on Ethernet, the other on InfiniBand"));
    }
    let is_member = (own.pkey | other.pkey) & !PARTITION != 0;
    if (own.pkey ^ other.pkey) & PARTITION != 0 || !is_member {
        return Err(differ("their partitions (CARAVAN_RDMA_PKEY) do not meet"));
    }
    if own.service_level != other.service_level {
        return Err(differ("their service levels (CARAVAN_RDMA_SERVICE_LEVEL) differ"));
    }
    let mtu = own.mtu.min(other.mtu);
    if [own, other].iter().any(|port| port.mtu_is_set && port.mtu != mtu) {
        return Err(differ("one end cannot take the MTU that the other must (CARAVAN_RDMA_MTU)"));
    }
    let (caller, called) = match side {
        Side::Caller => (own, other),
        Side::Called => (other, own),
    };
    let gids = choose(caller, called);
    let Some((a, b)) = gids else {
        let is_set = own.gid_is_set || other.gid_is_set;
        if own.is_ethernet || is_set {
            return Err(differ("no two of their GIDs are of one kind and family"));
        }
        return Ok(Agreed { gids: None, mtu, reason: "the LID is enough".to_owned() });
    };
    let gids = if side == Side::Caller { (a, b) } else { (b, a) };
    let is_local = !own.is_ethernet && a.shared_bits(&b) >= SUBNET_BITS;
    if is_local && !own.gid_is_set && !other.gid_is_set {
        return Ok(Agreed { gids: None, mtu, reason: "one subnet: the LID is enough".to_owned() });
    }
    let (family, bits) = (gids.0.family(), a.shared_bits(&b));
    let reason = format!("{}: {family} as {}, {bits} bits in common", gids.0, gids.1);
    Ok(Agreed { gids: Some(gids), mtu, reason })
}

/// Bits of the prefix of an InfiniBand subnet.
const SUBNET_BITS: u32 = 64;

/// The pair of addresses to connect: RoCE v2 before v1, link-local ones last, then those with most
/// bits in common, which are of one subnet.
fn choose(caller: &Port, called: &Port) -> Option<(Address, Address)> {
    let all = caller.gids.iter().flat_map(|a| called.gids.iter().map(move |b| (*a, *b)));
    let is_ethernet = caller.is_ethernet;
    let fit = all.filter(|(a, b)| a.is_v2 == b.is_v2 && (!is_ethernet || a.family() == b.family()));
    let rank = |(a, b): &(Address, Address)| {
        (a.is_v2, !a.address.is_unicast_link_local(), a.shared_bits(b))
    };
    fit.rev().max_by_key(rank) // of equals the first
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn gid(index: u8, address: &str) -> Address {
        Address { index, address: address.parse().unwrap(), is_v2: true }
    }

    fn port(gids: &[Address]) -> Port {
        Port {
            device: "mlx5_0".to_owned(),
            number: 1,
            is_ethernet: true,
            lid: 0,
            pkey: 0xffff,
            pkey_index: 0,
            mtu: 4096,
            mtu_is_set: false,
            service_level: 0,
            gids: gids.to_vec(),
            gid_is_set: false,
        }
    }

    /// The indices that both sides choose.
    fn chosen(caller: &Port, called: &Port) -> Option<(u8, u8)> {
        let by_caller = agree(caller, called, Side::Caller).unwrap();
        let by_called = agree(called, caller, Side::Called).unwrap();
        let turned = by_called.gids.map(|(own, theirs)| (theirs, own));
        assert_eq!((by_caller.gids, by_caller.mtu), (turned, by_called.mtu));
        by_caller.gids.map(|(own, theirs)| (own.index, theirs.index))
    }

    #[test]
    fn addresses_of_one_kind_family_and_subnet_are_chosen() {
        let old = |index, address| Address { is_v2: false, ..gid(index, address) };
        let here = [
            old(0, "fe80::1"),
            gid(1, "fe80::1"),
            gid(3, "::ffff:10.1.0.1"),
            gid(5, "::ffff:10.2.0.1"),
            gid(7, "fd77::1"),
        ];
        let there = |gids: &[Address]| chosen(&port(&here), &port(gids));
        assert_eq!(there(&[gid(0, "fe80::2"), gid(4, "::ffff:10.2.0.9")]), Some((5, 4)));
        assert_eq!(there(&[gid(9, "::ffff:10.1.0.2"), gid(2, "fd77::2")]), Some((3, 9)));
        assert_eq!(there(&[gid(2, "fd99::2")]), Some((7, 2)));
        assert_eq!(there(&[old(6, "fe80::2"), gid(2, "fe80::2")]), Some((1, 2)));
        assert_eq!(there(&[old(6, "fe80::2")]), Some((0, 6)));
        let error = agree(&port(&here), &port(&[]), Side::Caller).unwrap_err();
        assert!(error.contains("GID 3 (10.1.0.1, RoCE v2)") && error.contains("no GID"), "{error}");
    }

    #[test]
    fn what_does_not_fit_is_named_with_the_values_of_both() {
        let here = port(&[gid(1, "fe80::1")]);
        let infiniband = Port { is_ethernet: false, lid: 7, ..here.clone() };
        for (there, words) in [
            (Port { pkey: 0x8001, ..here.clone() }, ["P_Key 0xffff", "P_Key 0x8001"]),
            (Port { service_level: 3, ..here.clone() }, ["service level 0", "service level 3"]),
            (infiniband, ["GID 1 (fe80::1, RoCE v2); there", "LID 7"]),
            (
                Port { gids: vec![gid(2, "::ffff:10.0.0.1")], ..here.clone() },
                ["GID 1 (fe80::1", "GID 2 (10.0.0.1"],
            ),
        ] {
            for side in [Side::Caller, Side::Called] {
                let error = agree(&here, &there, side).unwrap_err();
                assert!(words.iter().all(|words| error.contains(words)), "{error}");
            }
        }
        let must = Port { mtu_is_set: true, ..here.clone() };
        let small = Port { mtu: 1024, ..here.clone() };
        let error = agree(&must, &small, Side::Caller).unwrap_err();
        assert!(error.contains("MTU 4096") && error.contains("MTU 1024"), "{error}");
        assert_eq!(agree(&here, &small, Side::Caller).unwrap().mtu, 1024);
        let both_limited = Port { pkey: 0x7fff, ..here };
        assert!(agree(&both_limited, &both_limited, Side::Caller).is_err());
    }

    #[test]
    fn within_an_infiniband_subnet_the_lid_is_enough() {
        let at = |address| Port { is_ethernet: false, ..port(&[gid(0, address)]) };
        let (here, there) = (at("fe80::2:c903:1"), at("fe80::2:c903:2"));
        assert_eq!(chosen(&here, &there), None);
        let set = Port { gid_is_set: true, ..here.clone() };
        assert_eq!(chosen(&set, &there), Some((0, 0)));
        assert_eq!(chosen(&at("fd00::1"), &at("fd01::1")), Some((0, 0)));
    }

    #[test]
    fn ends_survive_the_wire_and_wrong_ones_are_refused() {
        let gids = [gid(1, "fe80::1"), gid(200, "::ffff:10.0.0.1")];
        let end = End { port: port(&gids), queue: 77, first_sent: 0xff_fffe };
        let bytes = end.encode();
        assert_eq!(End::decode(&bytes).unwrap(), end);
        assert!(End::decode(&bytes[1..]).is_err());
        let mut wrong = bytes.clone();
        wrong[12] = 1; // the MTU
        assert!(End::decode(&wrong).unwrap_err().contains("MTU"));
        let mut wrong = bytes;
        wrong[17] = 17; // the number of addresses
        assert!(End::decode(&wrong).unwrap_err().contains("17 GIDs"));
    }

    #[test]
    fn a_partition_is_found_by_its_number() {
        let table = [0, 0x7fff, 0x8001];
        assert_eq!(partition(&table, None), Ok((1, 0x7fff)));
        assert_eq!(partition(&table, Some(1)), Ok((2, 0x8001)));
        let (wanted, has) = partition(&table, Some(0x8002)).unwrap_err();
        assert!(wanted.contains("0x8002") && has.contains("0x8001"), "{wanted} {has}");
    }
}
