//! The log of refused callers, limited so that a flood of them does not fill it.

use std::time::Duration;

/// Shortest time between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// The limiter of one transport.
#[derive(Debug, Default)]
pub struct Refusals {
    /// When the last line was written, by the transport's clock.
    told: Option<Duration>,
    /// Refused callers since then.
    untold: u64,
}

impl Refusals {
    /// Logs that a caller from `address` was refused, unless another was a moment ago.
    pub fn log(&mut self, now: Duration, address: &str, reason: &str) {
        if let Some(others) = self.due(now) {
            tracing::warn!(address, reason, others, "refused a caller");
        }
    }

    /// Whether a line is due: the number of callers it stands for besides the one it names.
    fn due(&mut self, now: Duration) -> Option<u64> {
        if self.told.is_some_and(|told| now < told + EVERY) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_takes_one_line_a_second() {
        let mut refusals = Refusals::default();
        let times = (0..3000).map(Duration::from_millis);
        let lines: Vec<_> = times.filter_map(|now| refusals.due(now)).collect();
        assert_eq!(lines, [0, 999, 999]);
    }
}
