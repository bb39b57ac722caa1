//! One pass on a worker: pushes gradients and applies weights, block after block.
//!
//! One task per block: gradient, push, pull. The push and the pull are sent together; the pull is
//! answered when the server has every worker's push. A task begins when the pulls of all tasks more
//! than τ before it have been applied.

use std::ops::Range;
use std::time::Duration;

use caravan_kv::{Timestamp, WorkerNode};
use serde::{Deserialize, Serialize};

use super::Training;
use crate::data::Columns;
use crate::dbpg::filters::{Bytes, Counted, Lossy};
use crate::dbpg::load::Data;
use crate::dbpg::{newton, proximal, schedule};
use crate::numeric::{cost, json};

/// A worker's report after a pass.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Passed {
    #[serde(deserialize_with = "json::number")]
    pub(crate) loss: f64,
    pub(crate) busy_seconds: f64,
    pub(crate) columns_computed: usize,
    /// Rounds of the second-order method since the start.
    pub(crate) rounds: u64,
    /// Since the start.
    pub(crate) counted: Counted,
    pub(crate) peak_rss_mib: f64,
    pub(crate) process: u32,
    /// The most that data on disk has taken of memory, as counted.
    pub(crate) data_bytes: Option<u64>,
}

pub(super) struct Pending {
    task: u64,
    lossy: Lossy,
    /// Columns of the request.
    asked: Vec<u32>,
    push: Timestamp,
    pull: Timestamp,
    /// Weight and filter bit of each.
    answer: Option<Vec<(f64, bool)>>,
}

impl Pending {
    /// The answered columns, each with its weight and filter bit.
    fn updates(&self) -> impl Iterator<Item = (usize, (f64, bool))> {
        let answer = self.answer.iter().flatten().copied();
        self.asked.iter().map(|&j| j as usize).zip(answer)
    }
}

impl Training {
    /// Puts the push of task `task` for the columns `own` into `keys`, `lengths` and `values`, and
    /// returns its columns: those that filters leave in, or `all`, with no values for the others.
    fn gradient(
        &mut self,
        columns: &Columns,
        task: u64,
        own: Range<usize>,
        all: bool,
        lossy: &Lossy,
    ) -> Vec<u32> {
        let Training { state, gradient, curvatures, keys, lengths, values, rounds, sent, .. } =
            self;
        gradient.resize(own.len(), 0.0);
        curvatures.resize(own.len(), 0.0);
        self.columns_computed +=
            state.gradient(columns, own.clone(), self.curvature, gradient, curvatures);
        keys.clear();
        lengths.clear();
        values.clear();
        let mut asked = Vec::new();
        let mut count = [own.len(), 0, 0, 0];
        let skips = lossy.skips(task);
        for ((j, &g), &u) in own.zip(&*gradient).zip(&*curvatures) {
            let key = columns.keys().get(j);
            let active = state.active()[j];
            let takes_part = active && !skips(key);
            let numbers = match takes_part {
                true if lossy.sends_changes() => sent.change(lossy, j, columns.columns(), [g, u]),
                true => Some([g, if *rounds { proximal::logarithm(u) } else { u }]),
                false => None,
            };
            if takes_part || all {
                asked.push(j as u32);
                keys.push(key);
                lengths.push(if numbers.is_some() { 2 } else { 0 });
            }
            values.extend(numbers.into_iter().flatten());
            let stages = [active, takes_part, numbers.is_some()];
            count[1..].iter_mut().zip(stages).for_each(|(count, is)| *count += usize::from(is));
        }
        self.counted.block(all, count);
        asked
    }
}

/// A pass in progress.
pub(super) struct Pass<'a> {
    pub(super) node: &'a mut WorkerNode,
    pub(super) data: &'a Data,
    pub(super) training: &'a mut Training,
    pub(super) delay: u64,
    pub(super) exact: bool,
    pub(super) lossy: Lossy,
}

impl Pass<'_> {
    pub(super) fn run(
        &mut self,
        first: u64,
        blocks: &[usize],
        reset: bool,
    ) -> caravan_kv::Result<Passed> {
        if reset {
            self.reset();
        }
        self.training.busy = Duration::ZERO;
        for (task, &block) in (first..).zip(blocks) {
            let waits = schedule::wait_list(task, 0, self.delay);
            self.apply_through(waits.end.saturating_sub(1))?;
            if !self.exact {
                self.apply_what_has_come()?;
            }
            self.compute(task, block)?;
        }
        let loss = self.loss()?;
        let is_whole = blocks.len() == self.training.blocks.len();
        let counted = self.counted(is_whole)?;
        let (process, peak_rss_mib) = crate::memory::process();
        Ok(Passed {
            loss,
            busy_seconds: self.training.busy.as_secs_f64(),
            columns_computed: self.training.columns_computed,
            rounds: self.training.newton.as_ref().map_or(0, |task| task.rounds),
            counted,
            peak_rss_mib,
            process,
            data_bytes: None,
        })
    }

    /// The counters since the start, after a pass over all blocks or some.
    pub(super) fn counted(&mut self, is_whole: bool) -> caravan_kv::Result<Counted> {
        let Training { table, newton, counted, dropped, .. } = &mut *self.training;
        if is_whole {
            counted.dropped([dropped.tail, dropped.screened]);
        }
        let worker = &self.node.worker;
        let of_newton = newton.iter().flat_map(newton::Task::tables);
        let tables = of_newton.chain([*table]).try_fold(counted.tables, |sum, table| {
            worker.info().traffic(table).map(|traffic| sum.plus(&traffic))
        })?;
        let counters = worker.info().counters();
        let frames = Bytes { pushed: counters.bytes_sent, pulled: counters.bytes_received };
        Ok(Counted { tables, frames, ..*counted })
    }

    /// Reactivates every column. The reset overtakes outstanding pulls: their weights are valid,
    /// their filter bits are not.
    fn reset(&mut self) {
        self.training.state.reset_filter();
        for answer in self.training.pending.iter_mut().filter_map(|pending| pending.answer.as_mut())
        {
            answer.iter_mut().for_each(|(_, active)| *active = true);
        }
        if self.training.pending.is_empty() {
            self.training.state.rederive_margins(&self.data.columns);
        }
    }

    /// Computes, pushes and pulls one block.
    fn compute(&mut self, task: u64, block: usize) -> caravan_kv::Result<()> {
        let own = self.training.blocks[block].clone();
        if own.is_empty() {
            return Ok(());
        }
        let began = self.node.worker.now();
        let all = self.exact || self.training.names_all;
        let columns = &self.data.columns;
        let asked = self.training.gradient(columns, task, own.clone(), all, &self.lossy);
        let computed = own.filter(|&j| self.training.state.active()[j]);
        let pause = self.pause(task);
        self.spent(began, cost::gradient(columns, computed) + pause)?;
        if asked.is_empty() {
            return Ok(());
        }
        let Training { table, keys, lengths, values, pending, .. } = &mut *self.training;
        let worker = &mut self.node.worker;
        worker.set_clock(task);
        let push = worker.push_varying(*table, keys, lengths, values)?;
        let pull = worker.pull(*table, &*keys)?;
        let lossy = self.lossy;
        pending.push_back(Pending { task, lossy, asked, push, pull, answer: None });
        Ok(())
    }

    /// Pauses as the job asks of this worker in this task; in simulated time the pause is only
    /// charged.
    fn pause(&self, task: u64) -> Duration {
        let straggle = self.training.straggle;
        let pause = straggle.map_or(Duration::ZERO, |straggle| straggle.of(self.node.rank, task));
        if !pause.is_zero() && !caravan_kv::node::is_simulated() {
            std::thread::sleep(pause);
        }
        pause
    }

    /// Applies the pulls of all tasks up to `task`.
    pub(super) fn apply_through(&mut self, task: u64) -> caravan_kv::Result<()> {
        while let Some(mut pending) =
            self.training.pending.pop_front_if(|pending| pending.task <= task)
        {
            self.receive(&mut pending)?;
            self.apply(&pending)?;
        }
        Ok(())
    }

    /// Applies the pulls that have arrived, in order.
    fn apply_what_has_come(&mut self) -> caravan_kv::Result<()> {
        self.node.worker.poll()?;
        while let Some(first) = self.training.pending.front() {
            if !self.node.worker.is_done(first.pull)? {
                break;
            }
            let task = first.task;
            self.apply_through(task)?;
        }
        Ok(())
    }

    /// Waits for a task's answer.
    fn receive(&mut self, pending: &mut Pending) -> caravan_kv::Result<()> {
        if pending.answer.is_some() {
            return Ok(());
        }
        self.node.worker.wait(pending.push)?;
        let answer = self.node.worker.wait(pending.pull)?;
        let mut pulled = answer.values::<f64>().iter().copied();
        let of = |&length: &u32| match length {
            0 => (0.0, false),
            _ => (pulled.next().unwrap_or(0.0), true),
        };
        let skips = pending.lossy.skips(pending.task);
        let keys = self.data.keys();
        let both = pending.asked.iter().copied().zip(answer.lengths.iter().map(of));
        let kept = both.filter(|&(j, _)| !skips(keys.get(j as usize)));
        let (asked, answer) = kept.unzip();
        pending.asked = asked;
        pending.answer = Some(answer);
        Ok(())
    }

    fn apply(&mut self, pending: &Pending) -> caravan_kv::Result<()> {
        let began = self.node.worker.now();
        let columns = &self.data.columns;
        let held = self.training.state.weights();
        let changes = pending.updates().filter(|&(j, (weight, _))| weight != held[j]);
        let cost = cost::update(columns, changes.map(|(j, _)| j));
        self.training.state.set(columns, pending.updates());
        self.spent(began, cost)
    }

    /// Records computation since `began`, by the van's clock; a simulated van is charged `cost` for
    /// it.
    fn spent(&mut self, began: Duration, cost: Duration) -> caravan_kv::Result<()> {
        let worker = &mut self.node.worker;
        worker.charge(cost)?;
        self.training.busy += worker.now() - began;
        Ok(())
    }

    /// The loss at the servers' weights: all answers of the pass have arrived. With an exact delay
    /// they are not yet applied to the state that the next pass begins with.
    fn loss(&mut self) -> caravan_kv::Result<f64> {
        let mut pending = std::mem::take(&mut self.training.pending);
        for pending in &mut pending {
            self.receive(pending)?;
        }
        self.training.pending = pending;
        if !self.exact {
            self.apply_through(u64::MAX)?;
        }
        let began = self.node.worker.now();
        let mut loss = self.training.state.loss();
        if !self.training.pending.is_empty() {
            let mut ahead = self.training.state.clone();
            for pending in &self.training.pending {
                ahead.set(&self.data.columns, pending.updates());
            }
            loss = ahead.loss();
        }
        self.spent(began, cost::loss(self.training.state.labels().len()))?;
        Ok(loss)
    }
}
