//! Server threads and workers on a simulated network, without a scheduler; and servers that join a
//! cluster with one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use caravan_kv::node::{Ended, Role, join_server};
use caravan_kv::{Handles, NodeConfig, ServerAddress, ServerThread, Worker};
use caravan_van::sim::{Faults, Network, Node};
use caravan_van::{Endpoint, Identity, VanConfig};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Credits of each lane.
pub(crate) const CREDITS: u16 = 4;

/// An endpoint with few credits and short frames, so that lanes fill up and long messages are
/// common.
pub(crate) fn endpoint(network: &Network, node: u32) -> Endpoint {
    endpoint_of(network, node, Role::Worker.number())
}

/// As `endpoint`, for a server thread.
pub(crate) fn server_endpoint(network: &Network, node: u32) -> Endpoint {
    endpoint_of(network, node, Role::Server.number())
}

/// As `endpoint`, for a node whose role has this number.
pub(crate) fn endpoint_of(network: &Network, node: u32, role: u8) -> Endpoint {
    endpoint_with(network, node, role, CREDITS)
}

/// As `endpoint_of`, with so many credits on each lane.
pub(crate) fn endpoint_with(network: &Network, node: u32, role: u8, credits: u16) -> Endpoint {
    let identity = Identity { role, ..Identity::default() };
    let config = VanConfig {
        node,
        identity,
        credits,
        frame_bytes: 1024,
        queue_depth: 20 * usize::from(credits),
        memory_bytes: 1 << 28,
        ..VanConfig::default()
    };
    Endpoint::new(Box::new(network.transport(&config)), node, credits)
}

/// Makes a server join, and waits until a client has heard of its thread.
pub(crate) fn join(network: &Network, node: &NodeConfig, client: &mut Worker) -> Node<Ended> {
    let known = client.info().addresses().count();
    let node = node.clone();
    let joins = network.spawn(&format!("server {known}"), move |_| {
        join_server(&node, 1, &Handles::default(), false).unwrap()
    });
    while client.info().addresses().count() == known {
        network.sleep(Duration::from_micros(300));
        client.sleep(Duration::ZERO).unwrap();
    }
    joins
}

/// Random numbers of a node, independent of the network's.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Starts nodes "server 0" and so on, the first at "sim:0", each of which serves so by its index.
pub(crate) fn start_nodes<T: Send + 'static>(
    network: &Network,
    count: usize,
    serve: impl Fn(&Network, usize) -> T + Clone + Send + 'static,
) -> (Vec<ServerAddress>, Vec<Node<T>>) {
    let nodes = (0..count).map(|index| {
        let serve = serve.clone();
        let node = network.spawn(&format!("server {index}"), move |network| serve(network, index));
        network.sleep(Duration::from_micros(1)); // keeps addresses in order
        node
    });
    let nodes = nodes.collect();
    (addresses(count), nodes)
}

/// The addresses of so many servers that [`start_nodes`] starts.
pub(crate) fn addresses(count: usize) -> Vec<ServerAddress> {
    let at =
        |index| ServerAddress { name: format!("server {index}"), address: format!("sim:{index}") };
    (0..count).map(at).collect()
}

/// Starts server threads as [`start_nodes`] does, each prepared by `set_up`.
pub(crate) fn start(
    network: &Network,
    count: usize,
    handles: &Handles,
    set_up: impl Fn(ServerThread) -> ServerThread + Clone + Send + 'static,
) -> (Vec<ServerAddress>, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (handles, stopped) = (handles.clone(), stop.clone());
    let (addresses, _) = start_nodes(network, count, move |network, index| {
        let endpoint = server_endpoint(network, index as u32);
        let server = ServerThread::new(endpoint, index, count, handles.clone());
        set_up(server).run(&stopped).unwrap();
    });
    (addresses, stop)
}

/// A worker, which opens lanes as it needs them.
pub(crate) fn connect(network: &Network, node: u32, servers: &[ServerAddress]) -> Worker {
    Worker::new(endpoint(network, node), servers, TIMEOUT).unwrap()
}

/// The faults for a seed, of three kinds.
pub(crate) fn weather(seed: u64) -> Faults {
    match seed % 3 {
        0 => Faults::none(),
        1 => Faults::jittery(),
        _ => Faults::harsh(),
    }
}
