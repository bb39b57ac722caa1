//! Heartbeats: a small thread beside the main one, with a control lane of its own; and a thread
//! that ends a launched node with its launcher.

use std::io;
use std::time::Duration;

use caravan_van::Gauge;

use super::backend::is_simulated;
use super::control::{Ask, Pulse, Role};
use super::lane::{self, Heard, Home, SchedulerLane};
use super::members::HEARTBEATS;
use super::thread::NodeThread;
use super::vitals::Vitals;
use crate::config::NodeConfig;
use crate::error::{Error, Result};

/// The main thread normally notices the end by itself, and ends the process within this time.
const GRACE: Duration = Duration::from_secs(1);

/// The same where the job is over and nobody waits for this node but its launcher, which gives it
/// five seconds.
const GRACE_AT_END: Duration = Duration::from_secs(4);

/// So many lanes for heartbeats may be closed one after the other without an answer.
const REFUSALS_MAX: u32 = 5;

/// Whether a node sends heartbeats: one that has a process or a simulated machine of its own, and
/// so can stop while the scheduler goes on.
pub(super) fn has_own(own_process: bool) -> bool {
    own_process || is_simulated()
}

/// Sends heartbeats from now on, with what the node's threads show by `gauges`. When the cluster
/// has ended or the scheduler is gone and this node has not noticed, the whole process ends: its
/// main thread may be computing, or waiting for a peer that will never answer. A simulated node has
/// no process to end.
///
/// # Errors
/// [`Error::Spawn`] if the system has no thread.
pub(super) fn start(
    config: NodeConfig,
    (role, rank): (Role, usize),
    home: Home,
    gauges: Vec<Gauge>,
) -> Result<()> {
    let beats = move || {
        let (why, grace) = match beat_on(&config, home, &gauges) {
            Ok(why) => (why, GRACE_AT_END),
            Err(error) => (error.to_string(), GRACE),
        };
        if !is_simulated() {
            end_process(&format!("{role} {rank}"), &why, grace);
        }
        Ok(())
    };
    NodeThread::start("heartbeats", beats).map(drop)
}

/// Ends this process when its launcher is gone. The launcher holds the other end of standard input
/// open while it lives.
///
/// # Errors
/// [`Error::Spawn`] if the system has no thread.
pub(crate) fn end_with_launcher(node: String) -> Result<()> {
    let ends = move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        end_process(&node, "the process that launched it is gone", GRACE);
        Ok(())
    };
    NodeThread::start("end with the launcher", ends).map(drop)
}

/// Ends this process after a while of real time, unless its main thread does so itself.
fn end_process(node: &str, why: &str, grace: Duration) {
    std::thread::sleep(grace);
    tracing::error!(why, "{node} ends");
    std::process::exit(3);
}

/// Sends heartbeats until the cluster has ended; returns the reason of the end. A scheduler that
/// stays away is called again, as long as it may.
///
/// # Errors
/// [`Error::NodeLost`] for the scheduler; [`Error::Timeout`] if it does not come back.
fn beat_on(config: &NodeConfig, home: Home, gauges: &[Gauge]) -> Result<String> {
    let Home { cluster, away_max } = home;
    let mut refused = 0;
    let mut config = config.clone();
    loop {
        let mut answered = None;
        let outcome = beat(&config, cluster, gauges, &mut answered);
        refused = if answered.is_some() { 0 } else { refused + 1 };
        let comes_back = !away_max.is_zero() && answered.is_none_or(|pulse| !pulse.is_lost);
        match outcome {
            // One that is there and takes no heartbeats has counted this node as lost.
            Err(Error::NodeLost { .. }) if comes_back && refused < REFUSALS_MAX => {
                config.join_timeout = away_max;
            }
            outcome => return outcome,
        }
    }
}

/// Sends heartbeats over one lane to the scheduler of this cluster; enters the last answer.
fn beat(
    config: &NodeConfig,
    cluster: u64,
    gauges: &[Gauge],
    last: &mut Option<Pulse>,
) -> Result<String> {
    // So little is sent that the kernel of a stopped scheduler acknowledges all of it: only that of
    // a dead host is silent.
    let silence_max = config.heartbeat * HEARTBEATS;
    let endpoint = lane::open(config, silence_max)?;
    let mut lane = SchedulerLane::connect(endpoint, config, Some(cluster))?;
    let mut answered = lane.now();
    let mut warned = false;
    loop {
        // A scheduler that is stopped for a while answers later; it is not gone while its lane
        // stands.
        if lane.has_room() {
            lane.ask(&Ask::Alive(Vitals::of(gauges, lane.now())))?;
            gauges.iter().for_each(Gauge::ask); // for the next heartbeat
        }
        let until = lane.now() + config.heartbeat;
        while lane.now() < until {
            while let Some(heard) = lane.hear()? {
                match heard {
                    Heard::Order { .. } => {} // for the main lane only
                    Heard::Refused { why, .. } | Heard::Closed(why) => {
                        let node = format!("the scheduler at {}", lane.address());
                        return Err(Error::NodeLost { node, reason: why });
                    }
                    Heard::Answer { body, .. } => {
                        let pulse = last.insert(serde_json::from_str(&body)?);
                        if let Some(why) = pulse.ended.take() {
                            return Ok(why);
                        }
                        answered = lane.now();
                        warned = false;
                    }
                }
            }
            lane.wait(until.saturating_sub(lane.now()))?;
        }
        let silent = lane.now() - answered;
        if !warned && silent > silence_max {
            warned = true;
            tracing::warn!(
                scheduler = config.scheduler,
                seconds = silent.as_secs_f64(),
                "the scheduler does not answer: it is busy or stopped; this node waits for it"
            );
        }
    }
}
