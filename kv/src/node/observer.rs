//! Looking at a running cluster from outside, without a job of one's own.

use std::time::Duration;

use super::control::{self, Command};
use super::lane::{Heard, SchedulerLane};
use super::vitals::NodeState;
use crate::config::NodeConfig;
use crate::error::{Error, Result};

/// A lane to a cluster's scheduler that only asks how its nodes are.
pub struct Observer {
    lane: SchedulerLane,
    patience: Duration,
}

impl Observer {
    /// Connects to the scheduler at the address in `config`, with its number and secret.
    ///
    /// # Errors
    /// [`Error::Timeout`] if nothing listens there.
    pub fn attach(config: &NodeConfig) -> Result<Observer> {
        let identity = control::identity(control::GUEST, None);
        let node = NodeConfig { identity, launched: false, ..config.secured()? };
        let lane = SchedulerLane::reach(&node)?;
        Ok(Observer { lane, patience: config.join_timeout })
    }

    /// How all nodes are that have joined, servers first, in order of ranks.
    ///
    /// # Errors
    /// [`Error::NodeLost`] if the cluster has ended; [`Error::Timeout`] if the scheduler does not
    /// answer.
    pub fn nodes(&mut self) -> Result<Vec<NodeState>> {
        let asked = self.lane.ask(&Command::Nodes)?;
        let until = self.lane.now() + self.patience;
        while self.lane.now() < until {
            while let Some(heard) = self.lane.hear()? {
                match heard {
                    Heard::Answer { to, body } if to == asked => {
                        return Ok(serde_json::from_str(&body)?);
                    }
                    other => self.check(other)?,
                }
            }
            self.lane.wait(until.saturating_sub(self.lane.now()))?;
        }
        Err(Error::Timeout {
            what: "asking how the nodes are".to_owned(),
            seconds: self.patience.as_secs_f64(),
            missing: format!("the scheduler at {}", self.lane.address()),
        })
    }

    /// Lets this much time pass.
    ///
    /// # Errors
    /// [`Error::NodeLost`] as soon as the cluster has ended.
    pub fn pause(&mut self, time: Duration) -> Result<()> {
        let until = self.lane.now() + time;
        loop {
            while let Some(heard) = self.lane.hear()? {
                self.check(heard)?;
            }
            let left = until.saturating_sub(self.lane.now());
            if left.is_zero() {
                return Ok(());
            }
            self.lane.wait(left)?;
        }
    }

    fn check(&self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Answer { .. } | Heard::Order { .. } => Ok(()), // nobody waits for it
            Heard::Refused { why, .. } => Err(Error::Config(why)),
            Heard::Closed(reason) => {
                let node = format!("the scheduler at {}", self.lane.address());
                Err(Error::NodeLost { node, reason })
            }
        }
    }
}
