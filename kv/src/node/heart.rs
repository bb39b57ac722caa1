//! Signs of life: a small thread beside the main one, with a control lane of its own.

use std::time::{Duration, Instant};

use caravan_van::Arrival;

use super::control::{self, Ask, Pulse, Role};
use super::member::reach;
use crate::config::NodeConfig;
use crate::error::Result;

/// Sends signs of life from now on. When the cluster ends without this node having noticed, or the scheduler is gone, the
/// whole process ends: its main thread may be computing, or waiting for a peer that will never answer.
pub(crate) fn start(config: NodeConfig, role: Role, rank: usize) {
    std::thread::spawn(move || {
        let why = beat(&config, role, rank).unwrap_or_else(|error| error.to_string());
        // The main thread normally notices the end by itself, and ends the process before this does.
        std::thread::sleep(Duration::from_secs(1));
        tracing::error!(why, "{role} {rank} ends");
        std::process::exit(3);
    });
}

/// Beats until the cluster has ended; returns why it has.
fn beat(config: &NodeConfig, role: Role, rank: usize) -> Result<String> {
    let (mut endpoint, scheduler) = reach(config)?;
    for count in 1.. {
        // A scheduler that is busy with something else answers later; as long as its lane stands it is not gone.
        if endpoint.credits(scheduler) > 0 {
            control::ask(&mut endpoint, scheduler, count, &Ask::Alive { role, rank })?;
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
                    }
                }
            }
            endpoint.wait(until.saturating_duration_since(Instant::now()))?;
        }
    }
    Ok("counted to the end".to_owned())
}
