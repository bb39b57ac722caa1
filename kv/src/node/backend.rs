//! The only file that names concrete vans, and knows what each needs.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::time::Duration;

use caravan_fallback_tcp::Tcp;
use caravan_numa::{NumaId, device_node, interface_addresses, names_in};
use caravan_van::sim::{self, Network};
use caravan_van::socket::CARRIER;
use caravan_van::{MIXED, RdmaConfig, Sleeper, Transport, VanConfig, Wait};
use serde::{Deserialize, Serialize};

use crate::config::NodeConfig;
use crate::error::{Error, Result, with_sources};

/// A van to select.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Van {
    /// The fastest that works for each pair of nodes.
    Auto,
    /// Shared memory, between processes of one host.
    Shm,
    /// Verbs: InfiniBand and RoCE.
    Rdma,
    /// io_uring over TCP.
    Uring,
    /// Plain sockets.
    Tcp,
    /// The simulated network that the calling thread is a node of.
    Sim,
    /// Several of them, in a cluster where not all pairs of nodes take the same one. Nobody selects
    /// it; [`NodeConfig::vans`] are those of this node.
    Mixed,
}

/// All vans between processes, fastest first.
pub const VANS: [Van; 4] = [Van::Shm, Van::Rdma, Van::Uring, Van::Tcp];

impl fmt::Display for Van {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Van::Auto => "auto",
            Van::Shm => "shm",
            Van::Rdma => "rdma",
            Van::Uring => "uring",
            Van::Tcp => "tcp",
            Van::Sim => "sim",
            Van::Mixed => MIXED,
        })
    }
}

impl FromStr for Van {
    type Err = Error;

    fn from_str(name: &str) -> Result<Van> {
        let van = [Van::Auto].into_iter().chain(VANS).find(|van| van.to_string() == name);
        van.ok_or_else(|| {
            Error::Config(format!(
                "there is no van {name} between processes; there are auto, shm, rdma, uring and tcp"
            ))
        })
    }
}

/// Whether this build has the van.
pub fn is_built(van: Van) -> bool {
    match van {
        Van::Shm => shm::OPENER.is_some(),
        Van::Rdma => rdma::OPENER.is_some(),
        Van::Uring => uring::OPENER.is_some(),
        Van::Tcp | Van::Sim | Van::Auto => true,
        Van::Mixed => mixed::IS_BUILT,
    }
}

/// Opens a transport of the named van, or of the first that opens for [`Van::Auto`].
///
/// # Errors
/// Why the van does not work here; [`Error::VanLeftOut`] if this build does not have it.
pub fn open(van: Van, config: &VanConfig) -> Result<Box<dyn Transport>> {
    Ok(open_one(van, config)?)
}

fn open_one(van: Van, config: &VanConfig) -> Result<Box<dyn Sleeper>> {
    Ok(match van {
        Van::Shm => opener(van, shm::OPENER)?(config)?,
        Van::Rdma => opener(van, rdma::OPENER)?(config)?,
        Van::Uring => opener(van, uring::OPENER)?(config)?,
        Van::Tcp => Box::new(Tcp::new(config)?),
        Van::Sim => Box::new(simulated()?.transport(config)),
        Van::Auto => {
            let opens = VANS.into_iter().find_map(|van| open_one(van, config).ok());
            opens.map_or_else(|| open_one(Van::Tcp, config), Ok)?
        }
        Van::Mixed => {
            let what = "a mixed cluster's nodes learn their vans by joining it";
            return Err(Error::Config(what.to_owned()));
        }
    })
}

/// Opens the transport of a node that has joined: the van of its settings, or all of its vans as
/// one. Of those, one that fails now is left out with a line.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_joined(config: &NodeConfig, van: &VanConfig) -> Result<Box<dyn Transport>> {
    if config.van != Van::Mixed {
        return open(config.van, van);
    }
    let members = config.vans.iter().filter_map(|&member| match open_ports(member, van) {
        Ok(ports) => Some(ports),
        Err(error) => {
            tracing::warn!(why = with_sources(&error), "going on without the {member} van");
            None
        }
    });
    mix(members.flatten().collect(), van.wait)
}

/// Opens a transport of the van on each port that the thread uses.
fn open_ports(van: Van, config: &VanConfig) -> Result<Ports> {
    match (van, rdma::PORTS) {
        (Van::Rdma, Some(open)) => Ok(open(config)?),
        _ => Ok(vec![open_one(van, config)?]),
    }
}

/// Makes one transport of several, fastest first.
///
/// # Errors
/// If there are none, or this build has only one.
pub(crate) fn mix(members: Vec<Box<dyn Sleeper>>, wait: Wait) -> Result<Box<dyn Transport>> {
    mixed::make(members, wait)
}

/// The address of a node with these vans, each with its host if it does not leave it, and with the
/// [addresses of its ports](address_of_ports).
pub(crate) fn joined_address<'a>(
    vans: impl Iterator<Item = (Van, Option<&'a str>, &'a str)>,
) -> String {
    mixed::join(vans.flat_map(|(van, host, address)| {
        ports_of(address).map(move |port| (carrier(van), host, port))
    }))
}

/// The addresses of the ports of a van as one.
pub(crate) fn address_of_ports(ports: &[Box<dyn Sleeper>]) -> String {
    let addresses = ports.iter().map(|port| port.about().address.as_str());
    addresses.collect::<Vec<_>>().join(PORT)
}

/// The parts of [`address_of_ports`].
pub(crate) fn ports_of(address: &str) -> impl Iterator<Item = &str> {
    address.split(PORT)
}

/// Stands between the addresses of two ports.
const PORT: &str = ";";

/// The part of a server's address that this van connects to: all of it, unless the server has
/// several vans.
pub fn address_over<'a>(address: &'a str, van: &str) -> &'a str {
    let carrier = van.parse().map_or("", carrier);
    let found = address.split('|').find_map(|way| {
        let (named, at) = way.split_once('=')?;
        (named.split('@').next() == Some(carrier)).then_some(at)
    });
    found.unwrap_or(address)
}

/// What carries a van's bytes: vans of one carrier connect to each other.
pub(crate) fn carrier(van: Van) -> &'static str {
    match van {
        Van::Shm => "shm",
        Van::Rdma => "rdma",
        Van::Uring | Van::Tcp => CARRIER,
        Van::Sim => "sim",
        Van::Auto | Van::Mixed => "",
    }
}

/// A van's transports of one thread: one for each port that it uses.
pub(crate) type Ports = Vec<Box<dyn Sleeper>>;

type Opener = fn(&VanConfig) -> caravan_van::Result<Box<dyn Sleeper>>;

fn opener(van: Van, opener: Option<Opener>) -> Result<Opener> {
    opener.ok_or(Error::VanLeftOut { van })
}

#[cfg(all(target_os = "linux", feature = "shm"))]
mod shm {
    use caravan_van::shm::Shm;

    pub(super) const OPENER: Option<super::Opener> = Some(|config| Ok(Box::new(Shm::new(config)?)));
}

#[cfg(not(all(target_os = "linux", feature = "shm")))]
mod shm {
    pub(super) const OPENER: Option<super::Opener> = None;
}

#[cfg(all(target_os = "linux", any(feature = "rdma", feature = "shm")))]
mod mixed {
    use caravan_van::mixed::Mixed;
    pub(super) use caravan_van::mixed::address as join;

    use super::*;

    pub(super) const IS_BUILT: bool = true;

    pub(super) fn make(members: Vec<Box<dyn Sleeper>>, wait: Wait) -> Result<Box<dyn Transport>> {
        Ok(Box::new(Mixed::new(members, wait)?))
    }
}

#[cfg(not(all(target_os = "linux", any(feature = "rdma", feature = "shm"))))]
mod mixed {
    use super::*;

    pub(super) const IS_BUILT: bool = false;

    pub(super) fn make(_: Vec<Box<dyn Sleeper>>, _: Wait) -> Result<Box<dyn Transport>> {
        Err(Error::VanLeftOut { van: Van::Mixed })
    }

    pub(super) fn join<'a>(
        vans: impl Iterator<Item = (&'a str, Option<&'a str>, &'a str)>,
    ) -> String {
        vans.map(|(_, _, address)| address).next().unwrap_or_default().to_owned()
    }
}

#[cfg(all(target_os = "linux", feature = "uring"))]
mod uring {
    use caravan_van::uring::Uring;

    pub(super) const OPENER: Option<super::Opener> =
        Some(|config| Ok(Box::new(Uring::new(config)?)));
}

#[cfg(not(all(target_os = "linux", feature = "uring")))]
mod uring {
    pub(super) const OPENER: Option<super::Opener> = None;
}

#[cfg(not(all(target_os = "linux", feature = "rdma")))]
mod rdma {
    use super::*;

    pub(super) const OPENER: Option<Opener> = None;

    pub(super) const PORTS: Option<fn(&VanConfig) -> Result<Ports>> = None;

    pub(super) fn reaches(_: &VanConfig, _: &str) -> caravan_van::Result<()> {
        Ok(())
    }

    pub(super) fn nic(_: &NodeConfig, _: &[IpAddr], _: &Path) -> Option<Nic> {
        None
    }
}

#[cfg(all(target_os = "linux", feature = "rdma"))]
mod rdma {
    use caravan_numa::Topology;
    use caravan_van::rdma::Rdma;
    use caravan_van::rdma::devices::{DeviceInfo, devices};
    pub(super) use caravan_van::rdma::reaches;
    use caravan_van::rdma::{equal_ports, port_name};

    use super::*;

    pub(super) const OPENER: Option<Opener> = Some(|config| Ok(Box::new(Rdma::new(config)?)));

    pub(super) const PORTS: Option<fn(&VanConfig) -> Result<Ports>> = Some(open_ports);

    fn open_ports(config: &VanConfig) -> Result<Ports> {
        let has_several = ports(Path::new("/sys")) > 1;
        let near = config.near.or_else(|| has_several.then(bound_node).flatten());
        let opened = Rdma::on_ports(&VanConfig { near, ..config.clone() })?;
        Ok(opened.into_iter().map(|van| Box::new(van) as Box<dyn Sleeper>).collect())
    }

    /// The node of the cores that the calling process may use, if they are of one.
    fn bound_node() -> Option<NumaId> {
        let topology = Topology::this_machine().ok()?;
        let mut nodes = topology.usable_pus().iter().map(|pu| topology.node_of(*pu));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    fn ports(sysfs: &Path) -> usize {
        devices(sysfs).iter().map(|device| device.ports.len()).sum()
    }

    /// Selected like the van does: the device that is named or has the node's address, else the
    /// first with an active port.
    pub(super) fn nic(config: &NodeConfig, own: &[IpAddr], sysfs: &Path) -> Option<Nic> {
        let devices = devices(sysfs);
        let has_address = |device: &&DeviceInfo| {
            let mut addresses = device.ports.iter().filter_map(|port| port.address());
            addresses.any(|address| own.contains(&address))
        };
        let is_active = |device: &&DeviceInfo| device.ports.iter().any(|port| port.is_active());
        let device = match &config.rdma.device {
            Some(name) => devices.iter().find(|device| device.name == *name),
            None => devices.iter().find(has_address).or_else(|| devices.iter().find(is_active)),
        }?;
        // Threads share equal ports, each those at its own node: they belong at all of these.
        let used = equal_ports(&devices, &config.van_config(0));
        let is_used = |device: &&DeviceInfo| {
            let mut names = device.ports.iter().map(|port| port_name(&device.name, port.number));
            names.any(|name| used.contains(&name))
        };
        let node = node_of(device, sysfs);
        let others: Vec<_> = devices.iter().filter(is_used).map(|it| node_of(it, sysfs)).collect();
        let is_one = !others.contains(&node) || others.iter().all(|other| *other == node);
        Some(Nic { name: device.name.clone(), node: node.filter(|_| is_one) })
    }

    /// The node of a device. A software device is attached where its interface is.
    fn node_of(device: &DeviceInfo, sysfs: &Path) -> Option<NumaId> {
        let interfaces = device.ports.iter().flat_map(|port| &port.gids);
        let mut interfaces = interfaces.filter_map(|gid| gid.interface.as_deref());
        let node = device.numa_node.map(|node| NumaId(node as usize));
        node.or_else(|| interfaces.find_map(|name| interface_node(name, sysfs)))
    }
}

/// Whether the calling thread is a node of a simulated network. Such a node has no process of its
/// own, and its messages must not depend on real time.
pub fn is_simulated() -> bool {
    Network::here().is_some()
}

/// A number that differs for each start of a process and each client in it. On a simulated network
/// it is not random, so that runs repeat exactly.
pub(crate) fn incarnation() -> u64 {
    match Network::here() {
        Some(network) => network.number(),
        None => getrandom::u64().expect("the system has random numbers"),
    }
}

/// The simulated network of the calling thread.
///
/// # Errors
/// [`Error::Config`] if the thread is not a node of one.
fn simulated() -> Result<Network> {
    Network::here().ok_or_else(|| {
        let what = "the sim van works on nodes of a simulated network, started by Network::spawn";
        Error::Config(what.to_owned())
    })
}

/// A node on the simulated network of the thread that started it. Dropping this does not stop it.
pub(crate) struct SimulatedNode(sim::Node<Result<()>>);

impl SimulatedNode {
    /// Starts `run` as a node called `name`.
    ///
    /// # Errors
    /// [`Error::Config`] if the calling thread is not a node of a simulated network;
    /// [`Error::Spawn`] if the system has no thread.
    pub(crate) fn start<F>(name: &str, run: F) -> Result<Self>
    where
        F: FnOnce() -> Result<()> + Send + 'static,
    {
        let node = simulated()?.try_spawn(name, move |_| run());
        node.map(SimulatedNode).map_err(|source| Error::Spawn { what: name.to_owned(), source })
    }

    /// As [`SimulatedNode::start`], but as another thread of the calling node: it shares its
    /// machine.
    ///
    /// # Errors
    /// As [`SimulatedNode::start`].
    pub(crate) fn start_thread<F>(name: &str, run: F) -> Result<Self>
    where
        F: FnOnce() -> Result<()> + Send + 'static,
    {
        let node = simulated()?.try_spawn_thread(name, move |_| run());
        node.map(SimulatedNode).map_err(|source| Error::Spawn { what: name.to_owned(), source })
    }

    /// Whether it has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the node and returns its result.
    ///
    /// # Errors
    /// The node's, or [`Error::NodeLost`] if it was stopped or panicked.
    pub(crate) fn join(self) -> Result<()> {
        let node = self.0.name().to_owned();
        let lost = |stopped: sim::Stopped| Error::NodeLost { node, reason: stopped.to_string() };
        self.0.join().unwrap_or_else(|stopped| Err(lost(stopped)))
    }
}

/// Receives what another thread of this node sends.
///
/// # Errors
/// If it never will.
pub(crate) fn receive<T>(from: &Receiver<T>) -> Result<T, RecvError> {
    // A simulated thread that waited outside the network would stop all others.
    let Some(network) = sim::Network::here() else { return from.recv() };
    loop {
        match from.try_recv() {
            Ok(received) => return Ok(received),
            Err(TryRecvError::Disconnected) => return Err(RecvError),
            Err(TryRecvError::Empty) => network.sleep(LOOK),
        }
    }
}

/// Simulated time between two looks at what another thread has sent.
const LOOK: Duration = Duration::from_millis(1);

/// A van opened before the cluster has chosen, or why it could not be opened.
pub(crate) type Opened = (Van, Result<Ports>);

/// Opens every van that this node's settings allow, in order; all nodes choose one together. A van
/// that fails is listed with its error. `accepts` tells whether peers may connect to this node.
///
/// # Errors
/// If a van was named and does not work here.
pub(crate) fn open_all(config: &NodeConfig, accepts: bool) -> Result<Vec<Opened>> {
    let van_config = VanConfig { accepts, ..config.van_config(0) };
    if config.van != Van::Auto {
        return Ok(vec![(config.van, Ok(open_ports(config.van, &van_config)?))]);
    }
    let try_out = |van| {
        reaches(van, &van_config, &config.scheduler)?;
        open_ports(van, &van_config)
    };
    let opened: Vec<Opened> = VANS.into_iter().map(|van| (van, try_out(van))).collect();
    if config.rdma != RdmaConfig::default()
        && let Some((_, Err(why))) = opened.iter().find(|(van, _)| *van == Van::Rdma)
        && !WITHOUT_RDMA.swap(true, Ordering::Relaxed)
    {
        let why = with_sources(why);
        tracing::warn!(why, "CARAVAN_RDMA_* settings have no effect: rdma does not work here");
    }
    Ok(opened)
}

/// Whether this process has said that its settings of rdma have no effect.
static WITHOUT_RDMA: AtomicBool = AtomicBool::new(false);

/// Checks that this van reaches the scheduler's host; the other nodes are assumed to be there.
fn reaches(van: Van, config: &VanConfig, scheduler: &str) -> Result<()> {
    if van == Van::Rdma && !is_local(scheduler) {
        rdma::reaches(config, scheduler)?;
    }
    Ok(())
}

/// Whether only this machine can reach this address, so that the whole cluster is here.
fn is_local(address: &str) -> bool {
    let local = |ip: std::net::IpAddr| ip.is_loopback() || ip.is_unspecified();
    address.to_socket_addrs().is_ok_and(|mut found| found.all(|address| local(address.ip())))
}

/// A network device that carries this node's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// The kernel's name, for example `mlx5_0` or `eth0`.
    pub name: String,
    /// The NUMA node it is attached to, if the machine has several and reports it.
    pub node: Option<NumaId>,
}

/// The device that this node's messages use, as far as it is known before any van is open: the RDMA
/// device that the van would select, else the network interface with the node's address. `sysfs` is
/// `/sys`. `None` if only its own machine reaches the node.
pub fn nic(config: &NodeConfig, sysfs: &Path) -> Option<Nic> {
    let own = (config.host.as_str(), 0).to_socket_addrs().into_iter().flatten();
    let own: Vec<IpAddr> = own.map(|address| address.ip()).collect();
    let device =
        matches!(config.van, Van::Rdma | Van::Auto).then(|| rdma::nic(config, &own, sysfs));
    device.flatten().or_else(|| interface_nic(&own, sysfs))
}

fn interface_nic(own: &[IpAddr], sysfs: &Path) -> Option<Nic> {
    let own: Vec<&IpAddr> =
        own.iter().filter(|ip| !ip.is_loopback() && !ip.is_unspecified()).collect();
    if own.is_empty() {
        return None;
    }
    let names = names_in(&sysfs.join("class/net")).into_iter();
    let name = names.into_iter().find(|name| {
        let addresses = interface_addresses(name).unwrap_or_default();
        addresses.iter().any(|address| own.contains(&address))
    })?;
    Some(Nic { node: interface_node(&name, sysfs), name })
}

/// The node of a network interface, or of the first below it that has one: a bond or a VLAN is
/// attached where its members are.
fn interface_node(name: &str, sysfs: &Path) -> Option<NumaId> {
    let mut level = vec![name.to_owned()];
    for _ in 0..STACKED_MAX {
        let at = |name: &String| sysfs.join("class/net").join(name);
        if let Some(node) = level.iter().find_map(|name| device_node(&at(name).join("device"))) {
            return Some(node);
        }
        let files = level.iter().flat_map(|name| names_in(&at(name)));
        level = files.filter_map(|file| Some(file.strip_prefix("lower_")?.to_owned())).collect();
    }
    None
}

/// The kernel's limit of stacked interfaces (`MAX_NEST_DEV`).
const STACKED_MAX: usize = 8;

/// Opens the transport of the control plane beside `van`; it sleeps rather than spins.
pub(crate) fn open_control(van: Van, config: &VanConfig) -> Result<Box<dyn Transport>> {
    Ok(match van {
        Van::Sim => Box::new(simulated()?.control_transport(config)),
        _ => Box::new(Tcp::new(config)?),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    #[test]
    fn vans_have_names() {
        for van in [Van::Auto].into_iter().chain(VANS) {
            assert_eq!(van.to_string().parse::<Van>().unwrap(), van);
            assert_eq!(serde_json::to_string(&van).unwrap(), format!("\"{van}\""));
        }
        assert!("sim".parse::<Van>().is_err(), "it does not join processes");
        let error = "pigeon".parse::<Van>().unwrap_err().to_string();
        assert!(VANS.iter().all(|van| error.contains(&van.to_string())), "{error}");
    }

    #[test]
    fn a_named_van_is_tried_alone_and_auto_tries_all() {
        let named = NodeConfig { van: Van::Tcp, ..NodeConfig::default() };
        let opened = open_all(&named, true).unwrap();
        assert!(matches!(&opened[..], [(Van::Tcp, Ok(_))]));
        let nowhere = NodeConfig { host: "192.0.2.1".to_owned(), ..named };
        assert!(open_all(&nowhere, true).is_err(), "nobody has this address");
        let opened = open_all(&NodeConfig { van: Van::Auto, ..nowhere }, true).unwrap();
        assert_eq!(opened.iter().map(|(van, _)| *van).collect::<Vec<_>>(), VANS);
        assert!(opened.iter().any(|(van, outcome)| *van == Van::Tcp && outcome.is_err()));
    }

    #[test]
    fn a_van_that_was_left_out_says_how_to_get_it() {
        for van in VANS.into_iter().filter(|van| !is_built(*van)) {
            let Err(error) = open(van, &VanConfig::default()) else { panic!("{van} opens") };
            assert!(matches!(error, Error::VanLeftOut { van: left_out } if left_out == van));
            assert!(error.to_string().contains(&format!("--features {van}")), "{error}");
        }
        let all = cfg!(all(feature = "rdma", feature = "shm", feature = "uring"));
        let is_whole = VANS.into_iter().all(is_built);
        assert_eq!(is_whole, all && cfg!(target_os = "linux"));
    }

    /// A folder like `/sys` with these files; text that begins with `->` makes a link.
    fn sysfs(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("caravan-kv-{name}-{}", std::process::id()));
        for (file, text) in files {
            let at = root.join(file);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            match text.strip_prefix("->") {
                Some(target) => std::os::unix::fs::symlink(root.join(target), at).unwrap(),
                None => fs::write(at, text).unwrap(),
            }
        }
        root
    }

    #[test]
    fn an_interface_is_where_its_device_is_or_that_of_one_below() {
        let root = sysfs(
            "interfaces",
            &[
                ("devices/pci1/numa_node", "1\n"),
                ("devices/pci1/virtio4/vendor", "0x1af4\n"),
                ("devices/pci2/numa_node", "-1\n"),
                ("class/net/eth0/device", "->devices/pci1"),
                ("class/net/eth1/device", "->devices/pci1/virtio4"),
                ("class/net/eth2/device", "->devices/pci2"),
                ("class/net/bond0/lower_eth2", "->class/net/eth2"),
                ("class/net/bond0/lower_eth1", "->class/net/eth1"),
                ("class/net/vlan7/lower_bond0", "->class/net/bond0"),
                ("class/net/loop0/lower_loop0", "->class/net/loop0"),
                ("class/net/lo/mtu", "65536\n"),
            ],
        );
        let node = |name| interface_node(name, &root).map(|node| node.0);
        assert_eq!(["eth0", "eth1", "bond0", "vlan7"].map(node), [Some(1); 4]);
        assert_eq!(["eth2", "lo", "loop0", "eth9"].map(node), [None; 4]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    #[cfg(all(target_os = "linux", feature = "rdma"))]
    fn the_nic_is_the_device_that_the_van_takes() {
        let port = |device: &str, state: &str, interface: &str, address: &str, rate: &str| {
            let at = format!("class/infiniband/{device}/ports/1");
            [
                (format!("{at}/link_layer"), "Ethernet\n".to_owned()),
                (format!("{at}/state"), format!("{state}\n")),
                (format!("{at}/rate"), format!("{rate}\n")),
                (format!("{at}/gids/0"), format!("0000:0000:0000:0000:0000:ffff:{address}\n")),
                (format!("{at}/gid_attrs/types/0"), "RoCE v2\n".to_owned()),
                (format!("{at}/gid_attrs/ndevs/0"), format!("{interface}\n")),
            ]
        };
        let mut files = port("mlx5_0", "1: DOWN", "eth0", "c000:0201", "100").to_vec();
        files.extend(port("mlx5_1", "4: ACTIVE", "eth1", "c000:0202", "100"));
        files.extend(port("rxe0", "4: ACTIVE", "eth2", "c000:0203", "2.5"));
        files.push(("class/infiniband/mlx5_0/device/numa_node".to_owned(), "0".to_owned()));
        files.push(("class/infiniband/mlx5_1/device/numa_node".to_owned(), "1".to_owned()));
        files.push(("devices/pci3/numa_node".to_owned(), "3".to_owned()));
        files.push(("class/net/eth2/device".to_owned(), "->devices/pci3".to_owned()));
        let files: Vec<_> = files.iter().map(|(at, text)| (at.as_str(), text.as_str())).collect();
        let root = sysfs("nics", &files);
        let of = |van, host: &str, device: Option<&str>| {
            let device = device.map(str::to_owned);
            let rdma = caravan_van::RdmaConfig { device, ..Default::default() };
            let config = NodeConfig { van, host: host.to_owned(), rdma, ..NodeConfig::default() };
            nic(&config, &root).map(|nic| (nic.name, nic.node.map(|node| node.0)))
        };
        let found = |name: &str, node| Some((name.to_owned(), Some(node)));
        assert_eq!(of(Van::Rdma, "127.0.0.1", None), found("mlx5_1", 1), "the first active one");
        assert_eq!(of(Van::Auto, "192.0.2.3", None), found("rxe0", 3), "where its interface is");
        assert_eq!(of(Van::Auto, "127.0.0.1", Some("mlx5_0")), found("mlx5_0", 0));
        assert_eq!(of(Van::Tcp, "192.0.2.3", None), None, "no interface of this machine has it");
        assert_eq!(of(Van::Tcp, "127.0.0.1", None), None);

        let at = root.join("class/infiniband");
        fs::write(at.join("mlx5_0/ports/1/state"), "4: ACTIVE").unwrap();
        let both = Some(("mlx5_0".to_owned(), None));
        assert_eq!(of(Van::Rdma, "127.0.0.1", None), both, "equal ports at two nodes");
        assert_eq!(of(Van::Rdma, "127.0.0.1", Some("mlx5_1")), found("mlx5_1", 1), "one is named");
        fs::write(at.join("mlx5_1/device/numa_node"), "0").unwrap();
        assert_eq!(of(Van::Rdma, "127.0.0.1", None), found("mlx5_0", 0), "both at one");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_cluster_on_one_machine_needs_no_route() {
        for here in ["127.0.0.1:7000", "[::1]:7000", "0.0.0.0:7000", "localhost:7000"] {
            assert!(is_local(here), "{here}");
        }
        for elsewhere in ["192.0.2.1:7000", "[2001:db8::1]:7000", "no address"] {
            assert!(!is_local(elsewhere), "{elsewhere}");
        }
    }
}
