//! A simulated network: a full van in virtual time, bit for bit the same for the same seed.
//!
//! [`Network::transport`] returns a [`Transport`](crate::Transport) like any other. One thread may
//! drive both ends of a connection by hand. [`Network::spawn`] runs the real, blocking code of
//! whole clusters: each node is a thread, but only one runs at any moment, and the turn passes to
//! another only where a node waits (in [`Transport::wait`](crate::Transport::wait),
//! [`Network::sleep`], [`Node::join`]) or ends. A wait takes at least a microsecond of simulated
//! time. Computation takes the time that the node is charged with
//! ([`Clock::charge`](crate::Clock::charge)), and messages take what [`Hosts`] says:
//! nothing by default.
//!
//! A run repeats exactly if the nodes' own code does: it must not read the real clock, use a global
//! random generator, depend on the order of a `HashMap` or send memory addresses. Nodes must wait
//! for each other only through these calls: any other wait never ends, because only one node runs.
//!
//! Connections are in `transport.rs` and `lane.rs`, virtual time in `clock.rs`, faults between
//! machines in `faults.rs`, and the machines' own time in `hosts.rs`.
//!
//! ```
//! use caravan_van::sim::{Faults, Network};
//! use caravan_van::{Event, Transport, VanConfig};
//! use std::time::Duration;
//!
//! let network = Network::new(1, Faults::none());
//! let mut server = network.transport(&VanConfig::default());
//! let address = server.about().address.clone();
//! let worker = network.spawn("worker", move |network| {
//!     let mut van = network.transport(&VanConfig { node: 1, ..VanConfig::default() });
//!     van.connect(&address).unwrap();
//!     let mut events = Vec::new();
//!     while events.is_empty() {
//!         van.wait(Duration::from_secs(1)).unwrap();
//!         van.poll(&mut events).unwrap();
//!     }
//!     assert!(matches!(events[0], Event::Connected { .. }));
//!     van.about().clock.now()
//! });
//! let mut events = Vec::new();
//! while events.is_empty() {
//!     server.wait(Duration::from_secs(1)).unwrap();
//!     server.poll(&mut events).unwrap();
//! }
//! assert_eq!(worker.join().unwrap(), Duration::from_micros(20), "there and back");
//! ```
#![forbid(unsafe_code)]

mod clock;
mod connection;
mod faults;
mod hosts;
mod packet;
#[cfg(test)]
mod tests;
mod transport;

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

pub use faults::Faults;
pub use hosts::{Hosts, Stragglers};
pub use transport::SimTransport;

use crate::config::VanConfig;
use crate::error::Error;
use clock::{Activity, Core, MAIN, WAIT_MIN, World};

/// Selects the only seed that [`for_each_seed`] runs.
const SEED_VARIABLE: &str = "CARAVAN_SEED";

/// A simulated network and its clock.
///
/// Clones are the same network. The one that [`Network::new`] returned belongs to the thread that
/// made it, which is the node "main"; dropping it stops all nodes that still run.
pub struct Network {
    world: Arc<World>,
    ends_it: bool,
}

/// Why a node did not end by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    /// [`Network::crash`] was called for it.
    #[error("{node} was crashed")]
    Crashed {
        /// The node.
        node: String,
    },
    /// This or another node panicked: the first panic stops the whole network.
    #[error("{node} panicked: {message}")]
    Panicked {
        /// The node that panicked.
        node: String,
        /// The panic message.
        message: String,
    },
    /// Nothing can happen any more: every node waits without a timeout.
    #[error("nothing can happen any more at {now:?}: {waiting}")]
    Stuck {
        /// The simulated time.
        now: Duration,
        /// Each waiting node and what it waits for.
        waiting: String,
    },
    /// The network was dropped before the node had ended.
    #[error("the network ended before {node} did")]
    Ended {
        /// The node.
        node: String,
    },
}

/// A node started by [`Network::spawn`]. Dropping this does not stop it.
pub struct Node<T> {
    world: Arc<World>,
    id: usize,
    name: String,
    thread: JoinHandle<Option<T>>,
}

thread_local! {
    /// The network that this thread is a node of.
    static HERE: RefCell<Option<Arc<World>>> = const { RefCell::new(None) };
}

/// The payload that unwinds a stopped node. It is not a panic and prints no message.
struct Unwind;

impl Network {
    /// An empty network, at time zero. The calling thread is its first participant.
    pub fn new(seed: u64, faults: Faults) -> Network {
        Network::of_hosts(seed, faults, Hosts::default())
    }

    /// As [`Network::new`], with machines that take time themselves.
    pub fn of_hosts(seed: u64, faults: Faults, hosts: Hosts) -> Network {
        Network { world: Arc::new(World::new(seed, faults, hosts)), ends_it: true }
    }

    /// The network that the calling thread is a node of, if it was started by [`Network::spawn`].
    pub fn here() -> Option<Network> {
        HERE.with_borrow(|world| world.clone().map(|world| Network { world, ends_it: false }))
    }

    /// Creates a transport for the calling node. Addresses are "sim:0", "sim:1", … in the order of
    /// these calls, unless [`VanConfig::listen`] is that of an earlier one: whoever connects to it
    /// from now on meets this one.
    pub fn transport(&self, config: &VanConfig) -> SimTransport {
        SimTransport::new(self.world.clone(), config, true)
    }

    /// As [`Network::transport`], for a control plane beside the data: its few messages take
    /// neither bandwidth nor time of cards and processors, so that their lengths (which vary with
    /// process numbers, for example) make no difference.
    pub fn control_transport(&self, config: &VanConfig) -> SimTransport {
        SimTransport::new(self.world.clone(), config, false)
    }

    /// Starts a node: `body` runs in a thread of its own, from the caller's first wait on. The
    /// order of nodes spawned at the same instant is random.
    ///
    /// The first panic of any node stops all nodes: each is unwound where it waits.
    ///
    /// # Panics
    /// If the system cannot create a thread; see [`Network::try_spawn`].
    pub fn spawn<T, F>(&self, name: &str, body: F) -> Node<T>
    where
        T: Send + 'static,
        F: FnOnce(&Network) -> T + Send + 'static,
    {
        let node = self.try_spawn(name, body);
        node.expect("the system has a thread for each simulated node")
    }

    /// As [`Network::spawn`].
    ///
    /// # Errors
    /// If the system cannot create a thread. Nothing has happened then.
    pub fn try_spawn<T, F>(&self, name: &str, body: F) -> io::Result<Node<T>>
    where
        T: Send + 'static,
        F: FnOnce(&Network) -> T + Send + 'static,
    {
        self.enter(name, Core::add_participant, body)
    }

    /// As [`Network::try_spawn`], but the new node is another thread of the calling one: both are
    /// crashed and cut off together, under the name of the node that was there first.
    ///
    /// # Errors
    /// As [`Network::try_spawn`].
    pub fn try_spawn_thread<T, F>(&self, name: &str, body: F) -> io::Result<Node<T>>
    where
        T: Send + 'static,
        F: FnOnce(&Network) -> T + Send + 'static,
    {
        self.enter(name, Core::add_thread, body)
    }

    fn enter<T, F>(
        &self,
        name: &str,
        add: fn(&mut Core, &str) -> usize,
        body: F,
    ) -> io::Result<Node<T>>
    where
        T: Send + 'static,
        F: FnOnce(&Network) -> T + Send + 'static,
    {
        let world = self.world.clone();
        let node = name.to_owned();
        let (say_id, id) = mpsc::channel();
        let thread = std::thread::Builder::new().name(node.clone()).spawn(move || {
            let id = id.recv().ok()?; // takes part only once it is registered
            live(world, id, &node, body)
        })?;
        let id = add(&mut self.world.lock(), name);
        // The thread waits for this message.
        let _ = say_id.send(id);
        Ok(Node { world: self.world.clone(), id, name: name.to_owned(), thread })
    }

    /// Kills a node and its threads where they wait, as if its machine lost power: they are unwound
    /// without a last message, and its peers see it lost after [`Faults::detection`]. Messages it
    /// sent before still arrive.
    ///
    /// # Panics
    /// If no node of that name runs; "main" cannot be crashed.
    pub fn crash(&self, name: &str) {
        let mut core = self.world.lock();
        assert!(core.crash(name), "cannot crash {name}: no such node runs");
        let own = core.stop().cloned();
        drop(core);
        if let Some(stopped) = own {
            let _ = self.world.carry_on(Err(stopped)); // an error means that it unwinds already
        }
    }

    /// Stops a node and its threads for `duration`, as SIGSTOP does: they get no turn, but their
    /// connections stay and what is sent to them waits there.
    ///
    /// # Panics
    /// If no node of that name runs; "main" cannot be stopped.
    pub fn freeze(&self, name: &str, duration: Duration) {
        let frozen = self.world.lock().freeze(name, duration);
        assert!(frozen, "cannot stop {name}: no such node runs");
    }

    /// Cuts two nodes off from each other for `duration`. Messages sent meanwhile arrive
    /// afterwards; if they would wait longer than [`Faults::detection`], both nodes see each other
    /// lost instead. Nodes that do not send notice nothing.
    pub fn cut(&self, one: &str, other: &str, duration: Duration) {
        self.cut_one_way(one, other, duration);
        self.cut_one_way(other, one, duration);
    }

    /// As [`Network::cut`], for what one node sends to another; what that one sends arrives.
    pub fn cut_one_way(&self, from: &str, to: &str, duration: Duration) {
        self.world.lock().cut(from, to, duration);
    }

    /// Makes the clock of a node run `rate` times as fast from now on.
    ///
    /// # Panics
    /// If no node of that name runs.
    pub fn skew(&self, name: &str, rate: f64) {
        let is_skewed = self.world.lock().skew(name, rate);
        assert!(is_skewed, "cannot skew the clock of {name}: no such node runs");
    }

    /// Makes the wire between two nodes `factor` times as slow, in both directions: packets take so
    /// much longer to send.
    pub fn slow(&self, one: &str, other: &str, factor: f64) {
        self.world.lock().slow(one, other, factor);
    }

    /// Lets simulated time pass for the calling node.
    pub fn sleep(&self, duration: Duration) {
        let duration = duration.max(WAIT_MIN);
        let _ = self.world.sleep(duration); // an error means that it unwinds already: it has no time
    }

    /// The simulated time.
    pub fn now(&self) -> Duration {
        self.world.lock().now()
    }

    /// A number that nobody on this network has had: what random numbers are elsewhere.
    pub fn number(&self) -> u64 {
        self.world.lock().number()
    }

    /// A fingerprint of everything so far: every arrival with its bytes, and the order of turns.
    /// Equal for equal seeds.
    pub fn trace(&self) -> u64 {
        self.world.lock().trace()
    }
}

impl Clone for Network {
    fn clone(&self) -> Network {
        Network { world: self.world.clone(), ends_it: false }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if self.ends_it {
            self.world.end();
        }
    }
}

impl<T> Node<T> {
    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.world.lock().is_done(self.id)
    }

    /// Waits for the node's end and returns its result.
    ///
    /// # Errors
    /// The reason why it did not end by itself.
    pub fn join(self) -> Result<T, Stopped> {
        loop {
            let core = self.world.lock();
            if core.is_done(self.id) {
                break;
            }
            let joined = self.world.pause(core, Activity::Joining(self.id), Duration::MAX);
            let Err(stopped) = joined else { continue };
            let core = self.world.lock();
            if core.running() != MAIN || !core.is_done(self.id) {
                drop(core);
                self.world.stop_here(stopped)?;
            }
            // Main stops last, for the same reason as the node; the caller wants to know that
            // reason.
        }
        let returned = self.thread.join().ok().flatten();
        let ended = Stopped::Ended { node: self.name };
        returned.ok_or_else(|| self.world.lock().stop_of(self.id).unwrap_or(ended))
    }
}

impl Stopped {
    /// The error of a transport that is used after its node was stopped.
    fn as_error(&self) -> Error {
        Error::Unavailable { van: "sim", reason: self.to_string() }
    }
}

/// Runs a node's thread, from its first turn to its last.
fn live<T>(
    world: Arc<World>,
    id: usize,
    name: &str,
    body: impl FnOnce(&Network) -> T,
) -> Option<T> {
    let network = Network { world: world.clone(), ends_it: false };
    HERE.set(Some(world.clone()));
    let first = world.first_turn(id);
    let run = || match first {
        Ok(()) => body(&network),
        Err(_) => {
            drop(body);
            resume_unwind(Box::new(Unwind))
        }
    };
    let (returned, stopped) = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(returned) => (Some(returned), None),
        Err(payload) if payload.is::<Unwind>() => (None, world.lock().stop_of(id)),
        Err(payload) => {
            let message = message_of(payload.as_ref());
            (None, Some(Stopped::Panicked { node: name.to_owned(), message }))
        }
    };
    world.last_turn(id, stopped);
    returned
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// Runs `body` with the seeds 0 to `count - 1`, or with those in `CARAVAN_SEED`: one, or all from A
/// up to but without B, as `A..B`. Prints the seed of a run that panics.
///
/// # Panics
/// If `body` does, or if `CARAVAN_SEED` names no seeds.
pub fn for_each_seed(count: u64, mut body: impl FnMut(u64)) {
    let only = std::env::var(SEED_VARIABLE).ok();
    for seed in seeds(count, only.as_deref()) {
        let _failing = Failing(seed);
        body(seed);
    }
}

fn seeds(count: u64, only: Option<&str>) -> std::ops::Range<u64> {
    let Some(text) = only else { return 0..count };
    let number = |text: &str| text.parse::<u64>().ok();
    let range = match text.split_once("..") {
        Some((first, end)) => number(first).zip(number(end)),
        None => number(text).and_then(|seed| Some((seed, seed.checked_add(1)?))),
    };
    match range {
        Some((first, end)) if first < end => first..end,
        _ => panic!(
            "{SEED_VARIABLE}={text} is neither a number below 2^64 - 1 nor a range A..B of them"
        ),
    }
}

/// Prints the seed when its run panics.
struct Failing(u64);

impl Drop for Failing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} failed; {SEED_VARIABLE}={0} runs only that one", self.0);
        }
    }
}
