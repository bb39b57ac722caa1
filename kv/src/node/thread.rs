//! Threads beside a node's main one: of the operating system, or of the simulated machine.

use std::thread::JoinHandle;

use super::backend::{SimulatedNode, is_simulated};
use crate::error::{Error, Result, panicked};

/// A thread beside the main one. Dropping this does not stop it.
pub(crate) enum NodeThread {
    /// One of this process.
    System(String, JoinHandle<Result<()>>),
    /// One of a simulated machine, in simulated time.
    Simulated(SimulatedNode),
}

impl NodeThread {
    /// Starts `run` in a thread called `name`, on the calling thread's machine.
    ///
    /// # Errors
    /// [`Error::Spawn`] if the system has no thread.
    pub(crate) fn start<F>(name: &str, run: F) -> Result<NodeThread>
    where
        F: FnOnce() -> Result<()> + Send + 'static,
    {
        if is_simulated() {
            return SimulatedNode::start_thread(name, run).map(NodeThread::Simulated);
        }
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let failed = |source| Error::Spawn { what: format!("the thread for {name}"), source };
        spawned.map(|thread| NodeThread::System(name.to_owned(), thread)).map_err(failed)
    }

    /// Whether it has ended.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            NodeThread::System(_, thread) => thread.is_finished(),
            NodeThread::Simulated(node) => node.is_finished(),
        }
    }

    /// Waits for its end and returns its result.
    ///
    /// # Errors
    /// The thread's, or [`Error::NodeLost`] if it panicked or was stopped.
    pub(crate) fn join(self) -> Result<()> {
        match self {
            NodeThread::System(name, thread) => {
                let name = format!("the thread for {name}");
                thread.join().unwrap_or_else(|panic| Err(panicked(&name, panic.as_ref())))
            }
            NodeThread::Simulated(node) => node.join(),
        }
    }
}
