//! Heartbeats: a small thread beside the main one, with a control lane of its own; and a thread
//! that ends a launched node with its launcher.

use std::io;
use std::time::{Duration, Instant};

use caravan_van::Arrival;

use super::control::{self, Ask, Pulse, Role};
use super::member::reach;
use super::members::HEARTBEATS;
use crate::config::NodeConfig;
use crate::error::{Error, Result};

/// The main thread normally notices the end by itself, and ends the process within this time.
const GRACE: Duration = Duration::from_secs(1);

/// Sends heartbeats from now on. When the cluster has ended or the scheduler is gone and this node
/// has not noticed, the whole process ends: its main thread may be computing, or waiting for a peer
/// that will never answer.
///
/// # Errors
/// [`Error::Spawn`] if the system has no thread.
pub(crate) fn start(config: NodeConfig, role: Role, rank: usize) -> Result<()> {
    spawn("heartbeats", move || {
        let why = beat(&config).unwrap_or_else(|error| error.to_string());
        end_process(&format!("{role} {rank}"), &why);
    })
}

/// Ends this process when its launcher is gone. The launcher holds the other end of standard input
/// open while it lives.
///
/// # Errors
/// [`Error::Spawn`] if the system has no thread.
pub(crate) fn end_with_launcher(role: Role) -> Result<()> {
    spawn("end with the launcher", move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        end_process(&role.to_string(), "the process that launched it is gone");
    })
}

fn spawn(what: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(what.to_owned()).spawn(run);
    let failed = |source| Error::Spawn { what: format!("the thread for {what}"), source };
    spawned.map(drop).map_err(failed)
}

fn end_process(node: &str, why: &str) {
    std::thread::sleep(GRACE);
    tracing::error!(why, "{node} ends");
    std::process::exit(3);
}

/// Sends heartbeats until the cluster has ended; returns the reason of the end.
fn beat(config: &NodeConfig) -> Result<String> {
    let (mut endpoint, scheduler) = reach(config)?;
    let mut answered = Instant::now();
    let mut warned = false;
    for count in 1.. {
        // A scheduler that is busy or stopped for a while answers later; it is not gone while its
        // lane stands.
        if endpoint.credits(scheduler) > 0 {
            control::ask(&mut endpoint, scheduler, count, &Ask::Alive)?;
        }
        let until = Instant::now() + config.heartbeat;
        while Instant::now() < until {
            endpoint.poll()?;
            while let Some(arrival) = endpoint.take() {
                match arrival {
                    // This node makes no offers, and every answer has a body.
                    Arrival::Connected { .. }
                    | Arrival::Placed { .. }
                    | Arrival::Answered { .. } => {}
                    Arrival::Lost { error, .. } => return Ok(error.to_string()),
                    Arrival::Message { message, .. } => {
                        if let Some(why) = control::read::<Pulse>(&message)?.ended {
                            return Ok(why);
                        }
                        answered = Instant::now();
                        warned = false;
                    }
                }
            }
            endpoint.wait(until.saturating_duration_since(Instant::now()))?;
        }
        if !warned && answered.elapsed() > config.heartbeat * HEARTBEATS {
            warned = true;
            let seconds = answered.elapsed().as_secs_f64();
            tracing::warn!(
                scheduler = config.scheduler,
                seconds,
                "the scheduler does not answer: it is busy or stopped; this node waits for it"
            );
        }
    }
    Ok("counted to the end".to_owned())
}
