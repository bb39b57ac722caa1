//! The workers that a stage wants, and the choice of those.

use std::collections::{BTreeMap, BTreeSet};

/// The workers that a stage wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wants {
    /// So many, wherever there is room; first those that no other job uses, and of these those that
    /// the task has used least.
    Any(usize),
    /// Those of these ranks.
    These(BTreeSet<usize>),
    /// All of the cluster.
    All,
}

impl Wants {
    /// Chooses among `from`; `None` if they are too few. `visits` counts the stages of the task
    /// that each worker has run.
    pub(super) fn choose(
        &self,
        from: &BTreeSet<usize>,
        all: usize,
        visits: &BTreeMap<usize, u64>,
    ) -> Option<BTreeSet<usize>> {
        let count = match self {
            Wants::These(ranks) => return ranks.is_subset(from).then(|| ranks.clone()),
            Wants::Any(count) => *count,
            Wants::All => all,
        };
        let mut by_visits: Vec<usize> = from.iter().copied().collect();
        by_visits.sort_by_key(|worker| visits.get(worker));
        let chosen = by_visits.get(..count)?;
        Some(chosen.iter().copied().collect())
    }

    /// Refuses what a cluster of `all` workers can never give.
    pub(super) fn check(&self, all: usize) -> Result<(), String> {
        match self {
            Wants::Any(count) if *count == 0 || *count > all => {
                Err(format!("a stage wants {count} workers, and there are {all}"))
            }
            Wants::These(ranks) => match ranks.last() {
                None => Err("a stage wants none of the workers".to_owned()),
                Some(last) if *last >= all => {
                    Err(format!("a stage wants worker {last}, and there are {all}"))
                }
                Some(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_a_task_has_used_least_come_first() {
        let from = BTreeSet::from([0, 1, 2, 3]);
        let visits = BTreeMap::from([(0, 2), (1, 1), (3, 1)]);
        let choose = |wants: Wants| wants.choose(&from, 4, &visits);
        assert_eq!(choose(Wants::Any(1)), Some(BTreeSet::from([2])));
        assert_eq!(choose(Wants::Any(3)), Some(BTreeSet::from([1, 2, 3])));
        assert_eq!(choose(Wants::Any(5)), None);
        assert_eq!(choose(Wants::All), Some(from.clone()));
        assert_eq!(choose(Wants::These(BTreeSet::from([0, 3]))), Some(BTreeSet::from([0, 3])));
        assert_eq!(choose(Wants::These(BTreeSet::from([0, 4]))), None);
        assert_eq!(Wants::All.choose(&BTreeSet::from([0, 1]), 4, &visits), None);
    }

    #[test]
    fn what_a_cluster_can_never_give_is_refused() {
        for (wants, why) in [
            (Wants::Any(0), "wants 0 workers"),
            (Wants::Any(5), "wants 5 workers, and there are 4"),
            (Wants::These(BTreeSet::from([4])), "wants worker 4"),
            (Wants::These(BTreeSet::new()), "none"),
        ] {
            let refused = wants.check(4).expect_err(why);
            assert!(refused.contains(why), "{refused}");
        }
        assert!(Wants::Any(4).check(4).is_ok() && Wants::All.check(4).is_ok());
    }
}
