//! Whatever fits starts. A stage that wants many workers may wait for ever under a stream of small
//! ones.

use std::collections::BTreeSet;

use super::{Schedule, Waiting, Workers};

/// Starts, in the order in which they came, all stages for which there are workers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl Schedule for Greedy {
    fn choose(
        &mut self,
        waiting: &[Waiting],
        mut workers: Workers,
    ) -> Vec<(usize, BTreeSet<usize>)> {
        let nothing = BTreeSet::new();
        let start = |stage: &Waiting| Some((stage.task, workers.take(stage, &nothing)?));
        waiting.iter().filter_map(start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Wants;
    use super::super::testing::{chosen, stages, workers};
    use super::*;

    #[test]
    fn whatever_fits_starts() {
        let waiting = stages(&[3, 2, 1, 1]);
        let starts = Greedy.choose(&waiting, workers(6, [1, 2, 4, 5]));
        assert_eq!(chosen(&starts), [(0, vec![1, 2, 4]), (2, vec![5])]);
        assert!(Greedy.choose(&waiting, workers(6, [])).is_empty());
    }

    #[test]
    fn a_stage_gets_the_workers_that_it_names() {
        let mut waiting = stages(&[1, 1]);
        waiting[1].wants = Wants::These(BTreeSet::from([0]));
        let starts = Greedy.choose(&waiting, workers(2, [0, 1]));
        assert_eq!(chosen(&starts), [(0, vec![0])], "worker 0 is taken by the first");
        let starts = Greedy.choose(&waiting[1..], workers(2, [0, 1]));
        assert_eq!(chosen(&starts), [(1, vec![0])]);
    }
}
