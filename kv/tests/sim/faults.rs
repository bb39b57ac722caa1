//! Faults that a run can have, by name, and when they come.

use std::time::Duration;

use caravan_kv::server::{Copies, MoveStep};
use caravan_van::sim::{Faults, Network};

use super::oracle::{LOOK, Oracle, wait_until};
use crate::support::simulated::Draws;

/// A fault that a run can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Nothing,
    /// Servers die, as many as there are copies.
    Crash,
    /// Servers die, each when the copies of those before were made good, until one is left.
    Again,
    /// A server stops and wakes when it counts as lost.
    Pause,
    /// The lane of a worker to a server breaks, in one direction or both.
    CutWorker,
    /// The lane between two servers breaks.
    CutServers,
}

pub(crate) const FAULTS: [Fault; 6] =
    [Fault::Nothing, Fault::Crash, Fault::Again, Fault::Pause, Fault::CutWorker, Fault::CutServers];

impl Fault {
    /// That of a seed; all come in turn.
    pub(crate) fn of(seed: u64) -> Fault {
        FAULTS[(seed % FAULTS.len() as u64) as usize]
    }
}

/// Time until a peer that died or was cut off is seen to be lost.
pub(crate) const DETECTION: Duration = Duration::from_millis(4);

/// A network on which a broken lane is soon noticed.
pub(crate) fn quick() -> Faults {
    Faults { detection: DETECTION, ..Faults::jittery() }
}

/// As [`quick`], with messages that stall, but for less than it takes to notice a broken lane: what
/// was sent on that lane has arrived by then, or never does.
pub(crate) fn stalling() -> Faults {
    let stall = Duration::from_millis(1)..=Duration::from_millis(3);
    Faults { stall_probability: 0.1, stall, ..quick() }
}

/// What a server was at when it died or stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum At {
    /// Its copies were whole.
    Rest,
    /// The next thread had no whole copy.
    Gives,
    /// A copy was coming to it.
    Takes,
}

impl At {
    fn of(copies: Copies) -> At {
        match copies {
            Copies { coming: 1.., .. } => At::Takes,
            Copies { missing: 1.., .. } => At::Gives,
            Copies { .. } => At::Rest,
        }
    }
}

/// The faults of a run.
pub(crate) struct Fate {
    pub(crate) fault: Fault,
    pub(crate) servers: u64,
    pub(crate) workers: u64,
    /// Servers that may be lost at once.
    pub(crate) losses: u64,
    /// The longest time before a fault, in microseconds.
    pub(crate) pause_us: u64,
}

impl Fate {
    /// Brings the faults about when all workers have begun. Returns what the servers that were lost
    /// were at.
    pub(crate) fn act(&self, network: &Network, oracle: &Oracle, draws: &mut Draws) -> Vec<At> {
        oracle.wait_for_workers(network, self.workers);
        if draws.below(2) == 0 {
            network.skew(&format!("server {}", draws.below(self.servers)), 1.05);
        }
        let times = match self.fault {
            Fault::Crash | Fault::Pause => self.losses,
            Fault::Again => self.servers - 1,
            Fault::Nothing | Fault::CutWorker | Fault::CutServers => 4,
        };
        let mut lost = Vec::new();
        let mut at = Vec::new();
        for _ in 0..times {
            network.sleep(Duration::from_micros(draws.below(self.pause_us)));
            if self.fault == Fault::Again && !oracle.wait_for_copies(network, self.workers) {
                break;
            }
            let server = self.choose(network, oracle, draws, &lost);
            let name = format!("server {server}");
            match self.fault {
                Fault::Nothing => {}
                Fault::CutWorker => {
                    let worker = format!("worker {}", draws.below(self.workers));
                    cut(network, draws, [&worker, &name]);
                }
                Fault::CutServers => {
                    let other = format!("server {}", (server + 1) % self.servers);
                    cut(network, draws, [&other, &name]);
                }
                Fault::Crash | Fault::Pause | Fault::Again if lost.contains(&server) => {}
                Fault::Crash | Fault::Pause | Fault::Again => {
                    lost.push(server);
                    at.push(At::of(oracle.copies(server)));
                    self.end(network, oracle, draws, server);
                }
            }
        }
        oracle.calm_down();
        at
    }

    /// The server that is next; that may be either end of a copy.
    fn choose(&self, network: &Network, oracle: &Oracle, draws: &mut Draws, lost: &[u64]) -> u64 {
        let server = draws.below(self.servers);
        if self.fault == Fault::Again {
            return oracle.living(server, self.servers);
        }
        if lost.is_empty() || draws.below(4) == 0 {
            return server;
        }
        let takes = draws.below(2) == 0;
        let is_end = |it: &Copies| if takes { it.coming > 0 } else { it.missing > 0 };
        wait_until(network, || oracle.server(is_end).is_some());
        oracle.server(is_end).unwrap_or(server)
    }

    /// Crashes or stops a server, and has it count as lost a little later.
    fn end(&self, network: &Network, oracle: &Oracle, draws: &mut Draws, server: u64) {
        let name = format!("server {server}");
        let detected = Duration::from_micros(500 + draws.below(8000));
        match self.fault {
            Fault::Pause => {
                network.freeze(&name, detected + Duration::from_micros(draws.below(6000)));
            }
            _ => network.crash(&name),
        }
        network.sleep(detected);
        oracle.lose(server);
    }
}

/// Cuts two nodes off from each other, or one of them from the other.
fn cut(network: &Network, draws: &mut Draws, [one, other]: [&str; 2]) {
    let lasts = Duration::from_millis(5 + draws.below(10));
    match draws.below(4) {
        0 => network.cut_one_way(one, other, lasts),
        1 => network.cut_one_way(other, one, lasts),
        _ => network.cut(one, other, lasts),
    }
}

/// Cuts servers off from each other between which a shard moves, until so many workers are done;
/// returns how often, while it was handed over.
pub(crate) fn cut_moves(network: &Network, oracle: &Oracle, workers: u64, seed: u64) -> u64 {
    let mut draws = Draws(seed ^ 99);
    let mut handed_over = 0;
    while !oracle.is_over(workers) {
        let step = [MoveStep::Copying, MoveStep::Closing, MoveStep::Closing, MoveStep::Closing];
        let step = step[draws.below(4) as usize];
        let found = (0..100).find_map(|_| {
            network.sleep(LOOK / 5);
            oracle.moving(step)
        });
        let Some([owner, newcomer]) = found else { continue };
        network.sleep(Duration::from_micros(draws.below(1000)));
        let duration = DETECTION + Duration::from_micros(1 + draws.below(8000));
        network.cut(&format!("server {owner}"), &format!("server {newcomer}"), duration);
        handed_over += u64::from(step == MoveStep::Closing);
        network.sleep(Duration::from_micros(draws.below(20_000)));
    }
    handed_over
}
