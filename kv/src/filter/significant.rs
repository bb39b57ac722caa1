//! Significantly modified: a row is sent once the changes since its last push are large enough.
//! Smaller changes stay with the sender and are added to the next push of that key, so they are
//! delayed, not lost.
//!
//! The threshold falls as 1/t, where t is the worker's clock: by NIPS 2014, theorem 2,
//! delay-tolerant methods converge with it.

use std::collections::HashMap;

/// Changes that one worker holds back for one table, for all servers.
pub(super) struct Kept {
    threshold: f64,
    width: usize,
    rows: HashMap<u64, u32>,
    /// `[rows * width]`.
    values: Vec<f64>,
}

impl Kept {
    /// An empty store for rows of `width` values; `threshold` is that of clock 1.
    pub(super) fn new(threshold: f64, width: usize) -> Kept {
        Kept { threshold, width, rows: HashMap::new(), values: Vec::new() }
    }

    /// The threshold at a clock.
    pub(super) fn threshold(&self, clock: u64) -> f64 {
        self.threshold / clock.max(1) as f64
    }

    /// Adds to `row`, a row of `key` to be pushed, what was held back of it, and returns whether to
    /// send it. If not, it is held back.
    pub(super) fn take_or_keep(&mut self, key: u64, row: &mut [f64], threshold: f64) -> bool {
        let place = self.rows.get(&key).map(|&at| at as usize * self.width);
        if let Some(at) = place {
            row.iter_mut().zip(&self.values[at..]).for_each(|(value, kept)| *value += kept);
        }
        let sent = row.iter().any(|value| value.abs() >= threshold);
        match place {
            Some(at) => {
                let kept = &mut self.values[at..at + self.width];
                if sent { kept.fill(0.0) } else { kept.copy_from_slice(row) }
            }
            None if sent || row.iter().all(|value| *value == 0.0) => {}
            None => {
                self.rows.insert(key, (self.values.len() / self.width) as u32);
                self.values.extend_from_slice(row);
            }
        }
        sent
    }

    /// Takes everything held back, sorted by key.
    pub(super) fn drain(&mut self) -> (Vec<u64>, Vec<f64>) {
        let mut rows: Vec<(u64, u32)> = self.rows.drain().collect();
        rows.sort_unstable();
        let all = std::mem::take(&mut self.values);
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for (key, at) in rows {
            let row = &all[at as usize * self.width..][..self.width];
            if row.iter().any(|value| *value != 0.0) {
                keys.push(key);
                values.extend_from_slice(row);
            }
        }
        (keys, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_sent_is_added_next_time() {
        let mut kept = Kept::new(1.0, 2);
        let mut push = |row: [f64; 2], clock| {
            let mut row = row;
            let threshold = kept.threshold(clock);
            kept.take_or_keep(7, &mut row, threshold).then_some(row)
        };
        assert_eq!(push([0.5, 0.0], 1), None);
        assert_eq!(push([0.25, -0.75], 1), None);
        assert_eq!(push([0.25, 0.0], 1), Some([1.0, -0.75]));
        assert_eq!(push([0.25, 0.0], 1), None);
        assert_eq!(push([0.0, 0.0], 4), Some([0.25, 0.0]), "the threshold falls");
        assert_eq!(push([0.0, 0.0], 1), None, "and nothing is left");
        assert!(kept.drain().0.is_empty());
    }

    #[test]
    fn everything_kept_can_be_had_in_order() {
        let mut kept = Kept::new(10.0, 1);
        for key in [9, 2, 5, 2] {
            assert!(!kept.take_or_keep(key, &mut [key as f64 / 4.0], 10.0));
        }
        assert_eq!(kept.drain(), (vec![2, 5, 9], vec![1.0, 1.25, 2.25]));
        assert_eq!(kept.drain(), (vec![], vec![]));
    }
}
