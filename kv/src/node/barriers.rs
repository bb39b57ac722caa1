//! Nodes waiting at barriers, of groups and of tasks. A node waits at one at a time, so there are
//! never more barriers than nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::session::SessionId;
use serde::{Deserialize, Serialize};

use super::group::{Group, NodeName};

/// Longest name of a barrier, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// Who meets at a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Party {
    /// All nodes of a group.
    Group(Group),
    /// The workers that run the task of this number.
    Task(u64),
}

/// A node at a barrier, and where to send the answer.
#[derive(Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) node: NodeName,
    pub(crate) session: SessionId,
    pub(crate) timestamp: u64,
}

#[derive(Serialize, Deserialize)]
struct Barrier {
    waiting: Vec<Waiting>,
    /// The other nodes of the party.
    missing: BTreeSet<NodeName>,
}

/// All barriers with waiting nodes, by party and name.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Barriers(#[serde(with = "super::pairs")] BTreeMap<(Party, String), Barrier>);

impl Barriers {
    /// Adds one of these `nodes`, who are the party, to its barrier called `name`. Returns all that
    /// wait there once none is missing. The node must not wait at another.
    pub(crate) fn arrive(
        &mut self,
        party: Party,
        name: String,
        waiting: Waiting,
        nodes: BTreeSet<NodeName>,
    ) -> Vec<Waiting> {
        let new = || Barrier { waiting: Vec::new(), missing: nodes };
        let barrier = self.0.entry((party, name)).or_insert_with(new);
        barrier.missing.remove(&waiting.node);
        barrier.waiting.push(waiting);
        self.full()
    }

    /// The nodes that have not come to a barrier; `None` if this node does not wait there.
    pub(crate) fn missing(
        &self,
        party: Party,
        name: String,
        node: NodeName,
    ) -> Option<BTreeSet<NodeName>> {
        let barrier = self.0.get(&(party, name))?;
        let waits = barrier.waiting.iter().any(|waiting| waiting.node == node);
        waits.then(|| barrier.missing.clone())
    }

    /// Ends the wait of a node, if it waits: it is missing again.
    pub(crate) fn forget(&mut self, node: NodeName) -> Option<Waiting> {
        let mut found = None;
        self.0.retain(|_, Barrier { waiting, missing }| {
            if let Some(at) = waiting.iter().position(|waiting| waiting.node == node) {
                found = Some(waiting.remove(at));
                missing.insert(node);
            }
            !waiting.is_empty()
        });
        found
    }

    /// Makes nobody wait for a node any more. Returns those that have waited for it alone.
    pub(crate) fn lose(&mut self, node: NodeName) -> Vec<Waiting> {
        self.forget(node);
        self.0.values_mut().for_each(|barrier| {
            barrier.missing.remove(&node);
        });
        self.full()
    }

    /// Removes the barriers where nobody is missing.
    fn full(&mut self) -> Vec<Waiting> {
        let is_full = |_: &_, barrier: &mut Barrier| barrier.missing.is_empty();
        self.0.extract_if(.., is_full).flat_map(|(_, barrier)| barrier.waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: [NodeName; 2] = [NodeName::Worker(0), NodeName::Worker(1)];

    fn arrive(barriers: &mut Barriers, party: Party, node: NodeName) -> usize {
        let waiting = Waiting { node, session: SessionId(1), timestamp: 1 };
        barriers.arrive(party, "here".to_owned(), waiting, WORKERS.into()).len()
    }

    #[test]
    fn a_task_and_a_group_meet_apart_at_one_name() {
        let (group, task) = (Party::Group(Group::WORKERS), Party::Task(4));
        let barriers = &mut Barriers::default();
        assert_eq!(arrive(barriers, group, WORKERS[0]), 0);
        assert_eq!(arrive(barriers, task, WORKERS[1]), 0);
        assert_eq!(barriers.missing(group, "here".to_owned(), WORKERS[1]), None);
        // Who is lost does not wait, and is waited for by nobody.
        assert_eq!(barriers.lose(WORKERS[1]).len(), 1);
        assert!(barriers.0.is_empty());
    }

    #[test]
    fn who_gives_up_is_missing_again() {
        let task = Party::Task(4);
        let barriers = &mut Barriers::default();
        assert_eq!(arrive(barriers, task, WORKERS[0]), 0);
        assert!(barriers.forget(WORKERS[0]).is_some() && barriers.forget(WORKERS[0]).is_none());
        assert_eq!(arrive(barriers, task, WORKERS[1]), 0);
        assert_eq!(
            barriers.missing(task, "here".to_owned(), WORKERS[1]),
            Some([WORKERS[0]].into())
        );
        assert_eq!(arrive(barriers, task, WORKERS[0]), 2);
    }
}
