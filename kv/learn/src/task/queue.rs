//! The queue of stages: who waits, who runs where, and what starts now. It does nothing by itself
//! and reads no clock: whoever has it tells it the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::place::Wants;
use super::schedule::{Schedule, Waiting, Workers};
use super::trigger::{Armed, Trigger};

/// A stage that starts now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Number of its task.
    pub task: usize,
    /// The workers that run it.
    pub workers: BTreeSet<usize>,
}

/// The stages of all tasks on a cluster. A task has one stage at a time, waiting or running.
pub struct Queue {
    workers: Workers,
    schedule: Box<dyn Schedule>,
    trigger: Armed,
    waiting: Vec<Waiting>,
    /// The workers of each task's stage that runs.
    running: BTreeMap<usize, BTreeSet<usize>>,
    /// How many stages of a task each worker has run.
    visits: BTreeMap<usize, BTreeMap<usize, u64>>,
    /// Workers that others use as well.
    shared: BTreeSet<usize>,
}

/// Counts more than any number of stages that a worker has run, and less than its running one now.
const SHARED: u64 = 1 << 31;

impl Queue {
    /// A queue for workers of the ranks below `workers`, all of them free.
    pub fn new(workers: usize, schedule: impl Schedule + 'static, trigger: Trigger) -> Self {
        Queue {
            workers: Workers { all: workers, free: (0..workers).collect() },
            schedule: Box::new(schedule),
            trigger: Armed::new(trigger),
            waiting: Vec::new(),
            running: BTreeMap::new(),
            visits: BTreeMap::new(),
            shared: BTreeSet::new(),
        }
    }

    /// Says which workers run stages of others now. Stages that may run anywhere get them last.
    pub fn share(&mut self, workers: BTreeSet<usize>) {
        self.shared = workers;
    }

    /// Whether any stage waits.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds the next stage of a task. Tasks are numbered in the order in which they came.
    ///
    /// # Errors
    /// If the cluster can never give what it wants.
    ///
    /// # Panics
    /// If the task has a stage already.
    pub fn wait(&mut self, task: usize, wants: Wants, now: Duration) -> Result<(), String> {
        wants.check(self.workers.all)?;
        let has_one = self.running.contains_key(&task);
        assert!(!has_one && self.waiting.iter().all(|it| it.task != task), "one stage at a time");
        let visits = self.visits.get(&task).cloned().unwrap_or_default();
        self.waiting.push(Waiting { task, wants, visits });
        self.trigger.change(now);
        Ok(())
    }

    /// Records that all workers of a task's stage have reported; returns them.
    ///
    /// # Panics
    /// If the task has no stage that runs.
    pub fn ended(&mut self, task: usize, now: Duration) -> BTreeSet<usize> {
        let workers = self.running.remove(&task).expect("the task has a stage that runs");
        self.workers.free.extend(&workers);
        self.trigger.change(now);
        workers
    }

    /// Records that a task has ended: it has no stage that waits or runs, and its history is
    /// forgotten.
    pub fn forget(&mut self, task: usize) {
        self.waiting.retain(|stage| stage.task != task);
        self.visits.remove(&task);
    }

    /// What starts now. Call it after every change, and when [`Queue::due`] has come.
    pub fn start(&mut self, now: Duration) -> Vec<Start> {
        let Workers { all, free } = &self.workers;
        if !self.trigger.fires(free.len(), *all, now) {
            return Vec::new();
        }
        let mut waiting = self.waiting.clone();
        for stage in &mut waiting {
            for worker in &self.shared {
                *stage.visits.entry(*worker).or_insert(0) += SHARED;
            }
        }
        let chosen = self.schedule.choose(&waiting, self.workers.clone());
        let started = chosen.into_iter().map(|(task, workers)| {
            assert!(workers.is_subset(&self.workers.free), "workers run one stage at a time");
            self.workers.free = &self.workers.free - &workers;
            self.waiting.retain(|stage| stage.task != task);
            let visits = self.visits.entry(task).or_default();
            workers.iter().for_each(|worker| *visits.entry(*worker).or_insert(0) += 1);
            self.running.insert(task, workers.clone());
            Start { task, workers }
        });
        started.collect()
    }

    /// When [`Queue::start`] is to be called without another change.
    pub fn due(&self) -> Option<Duration> {
        if self.waiting.is_empty() { None } else { self.trigger.due() }
    }

    /// Number of stages that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what the strategies promise over time. Method: tasks on a clock that only the test
    //! moves, from one event to the next.
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::schedule::{Greedy, Priority, Sequential};
    use super::*;

    const SMALL: u64 = 10;

    /// A task of the test: when it comes, and its stages as numbers of workers and seconds.
    struct Coming {
        at: u64,
        stages: Vec<(usize, u64)>,
    }

    /// Runs tasks; returns when each stage began, by task and stage.
    fn run(mut queue: Queue, tasks: &[Coming]) -> BTreeMap<(usize, usize), u64> {
        let mut begun = BTreeMap::new();
        let mut next = vec![0; tasks.len()];
        let mut ends: BTreeMap<(u64, usize), ()> = BTreeMap::new();
        let mut came = 0;
        loop {
            let coming = tasks.get(came).map(|task| task.at);
            let end = ends.keys().next().map(|(at, _)| *at);
            let due = queue.due().map(|due| due.as_secs());
            let Some(now) = coming.into_iter().chain(end).chain(due).min() else { return begun };
            let at = Duration::from_secs(now);
            while tasks.get(came).is_some_and(|task| task.at <= now) {
                queue.wait(came, Wants::Any(tasks[came].stages[0].0), at).unwrap();
                came += 1;
            }
            while let Some(entry) = ends.first_entry().filter(|entry| entry.key().0 <= now) {
                let (_, task) = *entry.key();
                entry.remove();
                queue.ended(task, at);
                match tasks[task].stages.get(next[task]) {
                    Some((count, _)) => queue.wait(task, Wants::Any(*count), at).unwrap(),
                    None => queue.forget(task),
                }
            }
            for Start { task, workers } in queue.start(at) {
                let (count, seconds) = tasks[task].stages[next[task]];
                assert_eq!(workers.len(), count);
                begun.insert((task, next[task]), now);
                next[task] += 1;
                ends.insert((now + seconds, task), ());
            }
        }
    }

    /// A task for all four workers at 1 s, among small ones for one worker each, two of which come
    /// every five seconds, so that workers are never all free.
    fn stream() -> Vec<Coming> {
        let small = |at| Coming { at, stages: vec![(1, SMALL)] };
        let big = Coming { at: 1, stages: vec![(4, 1)] };
        let mut tasks = vec![small(0), small(0), big];
        tasks.extend((1..60).flat_map(|k| [small(5 * k), small(5 * k)]));
        tasks
    }

    const BIG: (usize, usize) = (2, 0);

    #[test]
    fn a_big_task_starts_within_the_bound_under_a_stream_of_small_ones() {
        let last = 5 * 59;
        let greedy = run(Queue::new(4, Greedy, Trigger::AT_ONCE), &stream());
        assert!(greedy[&BIG] > last, "greedy starves it: {}", greedy[&BIG]);
        for angry_at in [1, 5, 10] {
            let queue = Queue::new(4, Priority::new(angry_at), Trigger::AT_ONCE);
            let begun = run(queue, &stream());
            // A look comes with each event, every five seconds at least; then every stage that runs
            // ends within its length.
            let bound = 1 + 5 * u64::from(angry_at) + SMALL;
            assert!(begun[&BIG] <= bound, "angry at {angry_at}: {} > {bound}", begun[&BIG]);
            assert_eq!(begun.len(), stream().len(), "all others run as well");
        }
    }

    #[test]
    fn big_tasks_start_in_turn_although_each_wants_all() {
        let mut tasks = stream();
        tasks.insert(3, Coming { at: 1, stages: vec![(4, 1)] });
        let begun = run(Queue::new(4, Priority::new(2), Trigger::AT_ONCE), &tasks);
        assert!(begun[&(2, 0)] < begun[&(3, 0)], "{begun:?}");
        assert!(begun[&(3, 0)] <= 1 + 2 * 5 + 2 * SMALL + 1, "{begun:?}");
    }

    #[test]
    fn sequential_runs_all_stages_of_a_task_before_the_next() {
        let tasks = [
            Coming { at: 0, stages: vec![(1, 10), (4, 10)] },
            Coming { at: 1, stages: vec![(1, 10), (2, 10)] },
        ];
        let begun = run(Queue::new(4, Sequential, Trigger::AT_ONCE), &tasks);
        let expected = [((0, 0), 0), ((0, 1), 10), ((1, 0), 20), ((1, 1), 30)];
        assert_eq!(begun, BTreeMap::from(expected));
        let begun = run(Queue::new(4, Greedy, Trigger::AT_ONCE), &tasks);
        assert_eq!(begun[&(1, 0)], 1, "greedy lets stages of both run at once");
    }

    #[test]
    fn the_trigger_gathers_workers() {
        let tasks = [
            Coming { at: 0, stages: vec![(3, 20), (1, 1)] },
            Coming { at: 2, stages: vec![(1, 1)] },
            Coming { at: 3, stages: vec![(1, 1)] },
        ];
        let trigger = Trigger { free: 2, time: Duration::from_secs(7) };
        let begun = run(Queue::new(4, Greedy, trigger), &tasks);
        assert_eq!(begun[&(0, 0)], 0, "four are free");
        assert_eq!(begun[&(1, 0)], 9, "one is free, which is too few: after 7 s");
        assert_eq!(begun[&(2, 0)], 17, "its end is the change, 7 s before");
        assert_eq!(begun[&(0, 1)], 20, "all are free");
    }

    #[test]
    fn workers_that_others_use_come_last() {
        let mut queue = Queue::new(3, Greedy, Trigger::AT_ONCE);
        let mut started = |shared: &[usize], count| {
            queue.share(shared.iter().copied().collect());
            queue.wait(0, Wants::Any(count), Duration::ZERO).unwrap();
            let workers = queue.start(Duration::ZERO).remove(0).workers;
            queue.ended(0, Duration::ZERO);
            workers.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(started(&[0, 1], 1), [2]);
        assert_eq!(started(&[0], 2), [1, 2], "although the task has used it");
        assert_eq!(started(&[0, 1, 2], 3), [0, 1, 2], "they are not refused");
        assert_eq!(started(&[], 1), [0]);
    }

    #[test]
    fn a_task_goes_round_the_cluster() {
        let tasks = [Coming { at: 0, stages: vec![(1, 1); 4] }];
        let mut queue = Queue::new(4, Greedy, Trigger::AT_ONCE);
        let mut places = BTreeSet::new();
        for (second, _) in tasks[0].stages.iter().enumerate() {
            let now = Duration::from_secs(second as u64);
            queue.wait(0, Wants::Any(1), now).unwrap();
            places.extend(queue.start(now).remove(0).workers);
            queue.ended(0, now);
        }
        assert_eq!(places.len(), 4);
        assert!(queue.wait(0, Wants::Any(5), Duration::ZERO).is_err());
    }
}
