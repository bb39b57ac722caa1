//! Signs of life: a small thread beside the main one, with a control lane of its own; and one that sees to it that a node which was
//! launched does not outlive its launcher.

use std::io;
use std::time::{Duration, Instant};

use caravan_van::Arrival;

use super::control::{self, Ask, Pulse, Role};
use super::member::reach;
use super::members::HEARTBEATS;
use crate::config::NodeConfig;
use crate::error::{Error, Result};

/// The main thread normally notices the end by itself, and ends the process before this does.
const GRACE: Duration = Duration::from_secs(1);

/// Sends signs of life from now on. When the cluster ends without this node having noticed, or the scheduler is gone, the
/// whole process ends: its main thread may be computing, or waiting for a peer that will never answer.
///
/// # Errors
/// [`Error::Spawn`] when the system has no thread to give.
pub(crate) fn start(config: NodeConfig, role: Role, rank: usize) -> Result<()> {
    spawn("signs of life", move || {
        let why = beat(&config).unwrap_or_else(|error| error.to_string());
        end_process(&format!("{role} {rank}"), &why);
    })
}

/// Ends this process when its launcher is gone, which holds the other end of standard input open as long as it lives.
///
/// # Errors
/// [`Error::Spawn`] when the system has no thread to give.
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

/// Beats until the cluster has ended; returns why it has.
fn beat(config: &NodeConfig) -> Result<String> {
    let (mut endpoint, scheduler) = reach(config)?;
    let (mut answered, mut said) = (Instant::now(), false);
    for count in 1.. {
        // A scheduler that is busy with something else, or stopped for a while, answers later; as long as its lane stands it is
        // not gone.
        if endpoint.credits(scheduler) > 0 {
            control::ask(&mut endpoint, scheduler, count, &Ask::Alive)?;
        }
        let until = Instant::now() + config.heartbeat;
        while Instant::now() < until {
            endpoint.poll()?;
            while let Some(arrival) = endpoint.take() {
                match arrival {
                    // Nothing is offered here, and every answer says something.
                    Arrival::Connected { .. }
                    | Arrival::Placed { .. }
                    | Arrival::Answered { .. } => {}
                    Arrival::Lost { error, .. } => return Ok(error.to_string()),
                    Arrival::Message { message, .. } => {
                        if let Some(why) = control::read::<Pulse>(&message)?.ended {
                            return Ok(why);
                        }
                        (answered, said) = (Instant::now(), false);
                    }
                }
            }
            endpoint.wait(until.saturating_duration_since(Instant::now()))?;
        }
        if !said && answered.elapsed() > config.heartbeat * HEARTBEATS {
            said = true;
            let seconds = answered.elapsed().as_secs_f64();
            tracing::warn!(
                scheduler = config.scheduler,
                seconds,
                "the scheduler does not answer: it computes, or was stopped; this node goes on when it does"
            );
        }
    }
    Ok("counted to the end".to_owned())
}
