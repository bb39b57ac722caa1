//! When the queue looks for stages to start: as soon as enough workers are free, or when something
//! has waited for long enough.

use std::time::Duration;

/// When to look. Nothing is looked for while nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trigger {
    /// Look once so many workers are free; more than the cluster has are all of them.
    pub free: usize,
    /// Look so long after the first change in any case.
    pub time: Duration,
}

impl Trigger {
    /// Looks at every change.
    pub const AT_ONCE: Trigger = Trigger { free: 0, time: Duration::ZERO };
}

/// A trigger with what has changed since the last look.
#[derive(Debug)]
pub(super) struct Armed {
    trigger: Trigger,
    /// When the first change came.
    since: Option<Duration>,
}

impl Armed {
    pub(super) fn new(trigger: Trigger) -> Self {
        Armed { trigger, since: None }
    }

    /// Records that a stage has come, or workers have become free.
    pub(super) fn change(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    /// When it fires by itself.
    pub(super) fn due(&self) -> Option<Duration> {
        self.since.map(|since| since.saturating_add(self.trigger.time))
    }

    /// Whether it is time to look; then it is set again.
    pub(super) fn fires(&mut self, free: usize, all: usize, now: Duration) -> bool {
        let Some(due) = self.due() else { return false };
        let fires = free >= self.trigger.free.min(all) || now >= due;
        if fires {
            self.since = None;
        }
        fires
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fires_by_count_and_by_time_and_only_after_a_change() {
        let second = Duration::from_secs;
        let mut armed = Armed::new(Trigger { free: 3, time: second(5) });
        assert!(!armed.fires(4, 4, second(9)), "nothing has changed");
        armed.change(second(10));
        armed.change(second(12));
        assert_eq!(armed.due(), Some(second(15)), "the first change counts");
        assert!(!armed.fires(2, 4, second(14)));
        assert!(armed.fires(3, 4, second(14)), "by count");
        assert!(armed.due().is_none() && !armed.fires(4, 4, second(15)), "the old timer is void");
        armed.change(second(16));
        assert!(!armed.fires(0, 4, second(20)));
        assert!(armed.fires(0, 4, second(21)), "by time");
        armed.change(second(30));
        assert!(armed.fires(2, 2, second(30)), "the cluster has only two");
        let mut armed = Armed::new(Trigger::AT_ONCE);
        armed.change(second(1));
        assert!(armed.fires(0, 4, second(1)));
    }
}
