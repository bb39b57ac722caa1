//! What servers of a simulated cluster say of their shards that move, for all nodes to see.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::server::{MoveCounters, ShardStep};
use caravan_kv::{Handles, ServerAddress, ServerThread};
use caravan_van::sim::{Network, Node};

use super::simulated::{server_endpoint, start_nodes};

pub(crate) const SERVERS: usize = 3;

/// How often a server looks for work, and how old what [`Board`] says can be.
pub(crate) const LOOK: Duration = Duration::from_micros(20);

/// The shards at each server, what a test notes besides, and how many workers are done.
#[derive(Clone, Default)]
pub(crate) struct Board<T> {
    pub(crate) shards: Arc<Mutex<[Vec<ShardStep>; SERVERS]>>,
    pub(crate) notes: Arc<Mutex<T>>,
    pub(crate) done: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl<T: Clone + Send + 'static> Board<T> {
    /// Starts servers with these handles, which move rows in pieces of so many bytes.
    pub(crate) fn start(
        &self,
        network: &Network,
        handles: &Handles,
        piece_bytes: usize,
    ) -> (Vec<ServerAddress>, Vec<Node<MoveCounters>>) {
        let (board, handles) = (self.clone(), handles.clone());
        start_nodes(network, SERVERS, move |network, index| {
            let endpoint = server_endpoint(network, index as u32);
            let server = ServerThread::new(endpoint, index, SERVERS, handles.clone());
            let mut server = server.move_by(piece_bytes);
            while !board.stop.load(Ordering::Relaxed) {
                let is_busy = server.step().unwrap();
                board.shards.lock().unwrap()[index] = server.shards();
                if !is_busy {
                    network.sleep(LOOK);
                }
            }
            server.moves()
        })
    }

    /// Stops the servers.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether so many workers are done.
    pub(crate) fn is_over(&self, workers: usize) -> bool {
        self.done.load(Ordering::Relaxed) == workers
    }
}

/// All moves of servers that have stopped.
pub(crate) fn moves_of(servers: Vec<Node<MoveCounters>>) -> MoveCounters {
    let mut moves = MoveCounters::default();
    for server in servers {
        moves += server.join().unwrap_or_else(|stopped| panic!("{stopped}"));
    }
    moves
}
