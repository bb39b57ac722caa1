//! The worker's side: pushes, and the times without an answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use caravan_kv::{App, TableSpec, ValueType, WorkerNode};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measure::answers::answered;

/// Keys of the table.
pub(super) const KEYS: u64 = 600;

/// Shorter pauses are not noted.
const PAUSE_MIN: Duration = Duration::from_micros(200);

/// How long after the fall an answer may come that had left before.
const ON_THE_WAY: Duration = Duration::from_millis(1);

/// The table.
pub(super) fn spec() -> Result<TableSpec> {
    let keys = KeyRange::new(0, KEYS).context("it has keys")?;
    Ok(TableSpec::new(1, "failover", ValueType::I64, 1).keys(keys).replicas(1))
}

/// Time on the clock that all processes of this host share.
pub(super) fn clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What workers do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Task {
    /// The keys to which each worker pushes.
    pub(super) keys: [Vec<u64>; 2],
    /// How long they push.
    pub(super) time: Duration,
}

/// A time in which a worker had no push acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pause {
    pub(super) from: Duration,
    pub(super) until: Duration,
}

impl Pause {
    pub(super) fn length(self) -> Duration {
        self.until - self.from
    }
}

/// What a worker has done.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Pushed {
    /// What was acknowledged, by key.
    pub(super) sums: Vec<(u64, i64)>,
    pub(super) pauses: Vec<Pause>,
    pub(super) began: Duration,
    pub(super) ended: Duration,
}

impl Pushed {
    /// The longest pause that was not over at this time.
    pub(super) fn longest_after(&self, time: Duration) -> Option<Pause> {
        let pauses = self.pauses.iter().filter(|pause| pause.until > time);
        pauses.max_by_key(|pause| pause.length()).copied()
    }

    /// The same, of those that had begun by then or when the last answers were on their way.
    pub(super) fn longest_at(&self, time: Duration) -> Option<Pause> {
        let had_begun = |pause: &&Pause| pause.until > time && pause.from < time + ON_THE_WAY;
        self.pauses.iter().filter(had_begun).max_by_key(|pause| pause.length()).copied()
    }
}

/// The worker's side.
pub(crate) struct Pushes;

impl Pushes {
    pub(crate) const NAME: &str = "bench-failover";

    /// Pushes to the ranges of the server that falls, or as another worker to those of all others.
    fn push(node: &mut WorkerNode, task: &Task) -> Result<Pushed> {
        let worker = &mut node.worker;
        let table = worker.admin().create_table(&spec()?)?;
        let mine = task.keys.get(node.rank).context("two workers push")?;
        let mut sums: Vec<(u64, i64)> = mine.iter().map(|key| (*key, 0)).collect();
        let mut pauses = Vec::new();
        let began = clock();
        let mut from = began;
        let until = began + task.time;
        while from < until {
            for (key, sum) in &mut sums {
                let pushed = worker.push(table, &[*key], &[1_i64])?;
                worker.wait(pushed)?;
                *sum += 1;
                let pause = Pause { from, until: clock() };
                if pause.length() >= PAUSE_MIN {
                    pauses.push(pause);
                }
                from = pause.until;
            }
        }
        Ok(Pushed { sums, pauses, began, ended: from })
    }
}

impl App for Pushes {
    fn run(&mut self, node: &mut WorkerNode, body: Value) -> Result<Value, String> {
        answered(body, |task| Pushes::push(node, &task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: [(u64, u64); 4] = [(0, 90), (95, 120), (120, 121), (400, 500)];

    fn pushed() -> Pushed {
        let ms = Duration::from_millis;
        let pauses = PAUSES.map(|(from, until)| Pause { from: ms(from), until: ms(until) });
        Pushed { pauses: pauses.to_vec(), ..Pushed::default() }
    }

    /// A long pause before the fall does not count, nor a short one after it.
    #[test]
    fn the_longest_pause_after_the_fall_counts() {
        let ms = Duration::from_millis;
        let pushed = pushed();
        assert_eq!(pushed.longest_after(ms(100)), Some(pushed.pauses[3]));
        assert_eq!(pushed.longest_after(ms(501)), None);
    }

    /// The first acknowledged push ends the gap, however long a later pause is.
    #[test]
    fn a_pause_long_after_the_fall_is_not_its_gap() {
        let ms = Duration::from_millis;
        let pushed = pushed();
        assert_eq!(pushed.longest_at(ms(100)), Some(pushed.pauses[1]));
        assert_eq!(pushed.longest_at(ms(94) + ms(1) / 2), Some(pushed.pauses[1]), "on the way");
        assert_eq!(pushed.longest_at(ms(120)), Some(pushed.pauses[2]));
        assert_eq!(pushed.longest_at(ms(200)), None);
    }
}
