//! The driver of DBPG: sets a job up on a cluster, then runs passes until the stop rule ends it.

mod setup;

use std::collections::BTreeMap;
use std::time::Duration;

use caravan_kv::error::with_sources;
use caravan_kv::node::TaskId;
use caravan_kv::{Apps, Cluster, Handles, Table, Target, Worker};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::blocks::{KeyBlock, Order};
use super::filters::{Counted, LOSSLESS_FROM, Lossy};
use super::job::{Job, PRIOR_ROUNDS, Progress, Times, Trained};
use super::newton::{self, Newton, Outer};
use super::orders::{Command, Options, Report};
use super::pace::Pace;
use super::proximal::Proximal;
use super::scaling::{Largest, Scaling};
use super::schedule::{self, FILTER_OFF, Stop, StopRule};
use super::screen;
use super::shard::{self, HANDLE};
use super::worker::{self, APP, Dbpg, Passed};
use crate::model::Model;
use crate::numeric::Whole;
use crate::sketch;

/// A λ at which no weight leaves 0, and whose sum with a gradient is below [`FILTER_OFF`].
const LAMBDA_HUGE: f64 = 1e18;

/// ε of the search for the largest useful λ, if an intercept must be fitted first.
const LAMBDA_MAX_EPSILON: f64 = 1e-9;

/// How far F may be below its lower bound, as a share of it, by rounding.
const LEAST_ROUNDING: f64 = 1e-9;

/// Most passes of that search.
const LAMBDA_MAX_PASSES: u64 = 50;

/// Update rules that servers need for training.
pub fn handles(handles: Handles) -> Handles {
    let handles = sketch::handle(handles)
        .with(screen::HANDLE, |_, _, memory| Ok(Box::new(screen::Sums::new(memory))))
        .with(newton::SCORES, |spec, _, memory| {
            Ok(Box::new(newton::Scores::new(&spec.options, memory)?))
        })
        .with(newton::BLOCKS, |spec, _, memory| {
            Ok(Box::new(newton::Blocks::new(&spec.options, memory)?))
        });
    handles.with(HANDLE, |spec, _range, memory| {
        caravan_numa::return_freed_blocks();
        let options: Options = serde_json::from_value(spec.options.clone())?;
        Ok(Box::new(shard::Shard::new(&options, memory)?))
    })
}

/// Apps that workers need for training.
pub fn apps(apps: Apps) -> Apps {
    apps.with(APP, || Box::new(Dbpg::default()))
}

/// Trains on a cluster whose servers have [`handles`] and whose workers have [`apps`]. Calls
/// `progress` after each pass.
///
/// # Errors
/// [`crate::Error::Train`] names the node or the file, and the reason.
pub fn train(
    cluster: &mut Cluster,
    job: &Job,
    progress: impl FnMut(&Progress),
) -> crate::Result<Trained> {
    let mut driver = Driver::load(cluster, job)?;
    let trained = driver.solve(job.proximal.lambda, progress)?;
    driver.end()?;
    Ok(trained)
}

/// A job with its data loaded and its weights at 0, or at [`Job::warm_start`].
pub struct Driver<'a> {
    cluster: &'a mut Cluster,
    job: &'a Job,
    /// The rule with the current λ.
    rule: Proximal,
    /// How columns are divided, and that with the largest value.
    scaling: Scaling,
    largest: Option<Largest>,
    servers: Worker,
    table: Table,
    newton: Option<Newton>,
    blocks: Vec<KeyBlock>,
    /// Gain of each block in the last pass if requested, else 0: `[blocks]`.
    gains: Vec<f64>,
    rows: u64,
    load_seconds: f64,
    /// By the servers' clock, like all times of training.
    began: Duration,
    pace: Pace,
    task: u64,
    /// Whether passes are exact, which they are from some pass on.
    lossless: bool,
    counted: Counted,
    /// Columns of all workers, and those of them that were dropped as rare.
    columns: [u64; 2],
    left_out: usize,
    rss: BTreeMap<u32, f64>,
    /// The most that a worker's data took of memory, as counted.
    data_bytes: Option<u64>,
    /// The weights when the second-order method began.
    before_newton: Vec<(u64, f64)>,
}

impl<'a> Driver<'a> {
    /// Minimises at `lambda`, from the current weights. Calls `progress` after each pass. For a
    /// path of several λ, call it again, with the largest first.
    ///
    /// # Errors
    /// As [`train`]; also for a λ below the job's, for which too many columns may have been
    /// dropped.
    pub fn solve(
        &mut self,
        lambda: f64,
        progress: impl FnMut(&Progress),
    ) -> crate::Result<Trained> {
        self.solve_saving(lambda, progress, |_, _| ())
    }

    /// As [`Driver::solve`]; calls `save` with the weights after every [`Job::save_every`] passes.
    /// Training that begins with them comes to the same optimum.
    ///
    /// # Errors
    /// As [`Driver::solve`].
    pub fn solve_saving(
        &mut self,
        lambda: f64,
        progress: impl FnMut(&Progress),
        save: impl FnMut(&Progress, Model),
    ) -> crate::Result<Trained> {
        self.run(lambda, Listener { progress, save }).map_err(failed)
    }

    /// Ends the training: its tables are dropped, and the workers forget their data. The next one
    /// on this cluster does that, too.
    ///
    /// # Errors
    /// As [`train`].
    pub fn end(self) -> crate::Result<()> {
        self.cluster.end().map_err(failed)
    }

    fn run(
        &mut self,
        lambda: f64,
        mut listener: Listener<impl FnMut(&Progress), impl FnMut(&Progress, Model)>,
    ) -> caravan_kv::Result<Trained> {
        let smallest = self.job.proximal.lambda;
        if lambda.is_nan() || lambda < smallest {
            return Err(caravan_kv::Error::Config(format!(
                "lambda {lambda} is below {smallest}, for which the data was screened"
            )));
        }
        let mut reset = self.set_lambda(lambda)?;
        self.lossless = false;
        self.visit_prior()?;
        let mut rule = StopRule::new(self.job.epsilon).reset_every(self.job.reset_every);
        self.pace = Pace::new(self.job.delay, self.job.adapt_delay);
        let mut last: Option<Progress> = None;
        let mut stopped = false;
        let mut first_order = self.begins_with_passes();
        // Passes go on where second-order steps gain nothing, and those are not taken again then.
        let mut can_step = self.newton.is_some();
        if !first_order {
            self.begin_newton()?;
        }
        for pass in 0..self.job.passes_max {
            if !first_order {
                let (report, stalled) = self.outer(pass, last.as_ref())?;
                self.tell(&mut listener, &report, first_order)?;
                last = Some(report);
                stopped = self.job.is_to_stop() && report.stop != Stop::Done;
                if stopped || report.stop == Stop::Done {
                    break;
                }
                if stalled {
                    if self.job.memory.is_some() {
                        break; // rows on disk have no passes
                    }
                    self.end_newton()?;
                    (first_order, can_step, reset, self.lossless) = (true, false, true, true);
                }
                continue;
            }
            let (mut report, _) = self.pass(pass, last.as_ref(), reset, &mut rule)?;
            if self.pace.after_pass(report.objective) {
                let delay = self.pace.delay();
                tracing::warn!(pass, delay, "the objective rose: the delay is reduced");
            }
            let was_exact = self.lossless || !self.job.filters.is_lossy();
            if report.stop == Stop::Done && !(self.pace.may_end() && was_exact) {
                report.stop = rule.request_reset();
                self.lossless = true;
            }
            let found = report.stop == Stop::Done || report.relative <= LOSSLESS_FROM;
            if can_step && found {
                report.stop = Stop::Continue;
                first_order = false;
                self.begin_newton()?;
            }
            self.tell(&mut listener, &report, first_order)?;
            last = Some(report);
            reset = report.stop == Stop::Reset;
            stopped = self.job.is_to_stop() && report.stop != Stop::Done;
            if stopped || report.stop == Stop::Done {
                break;
            }
        }
        if !first_order {
            self.end_newton()?;
        }
        self.end_run(lambda, last, stopped)
    }

    /// What a training has come to, with the model that its last pass has left.
    fn end_run(
        &mut self,
        lambda: f64,
        mut last: Option<Progress>,
        stopped: bool,
    ) -> caravan_kv::Result<Trained> {
        let seconds = self.seconds();
        let weights = self.weights()?;
        if let Some(last) = &mut last {
            self.settle(last, &weights)?;
        }
        let model = self.model_of(weights)?;
        self.began = self.servers.now();
        self.rss.insert(std::process::id(), crate::memory::peak_rss_mib());
        Ok(Trained {
            model,
            lambda,
            objective: last.map_or(f64::NAN, |last| last.objective),
            bound: last.and_then(|last| last.bound),
            passes: last.map_or(0, |last| last.pass + 1),
            converged: last.is_some_and(|last| last.stop == Stop::Done && self.is_proven(&last)),
            stopped,
            seconds,
            load_seconds: self.load_seconds,
            peak_rss_mib: self.rss.values().sum(),
            data_bytes: self.data_bytes,
            rows: self.rows,
            blocks: self.blocks.len(),
            traffic: self.traffic()?.rows(&self.job.filters),
            columns: self.columns,
            left_out: self.left_out,
        })
    }

    /// Computes F, and its bound, of the weights that the model has.
    ///
    /// # Errors
    /// If F is no number that it can be.
    fn settle(&mut self, last: &mut Progress, weights: &[(u64, f64)]) -> caravan_kv::Result<()> {
        let penalties =
            weights.iter().map(|&(key, weight)| self.rule.penalties(key, &self.scaling).of(weight));
        last.objective = derive(self.cluster)? + penalties.sum::<f64>();
        if last.bound.is_some() {
            last.bound = self.newton.as_ref().and_then(|newton| newton.bound(last.objective));
        }
        self.check(last.pass, last.objective)?;
        let least = self.newton.as_ref().map_or(0.0, Newton::least);
        if least > last.objective * (1.0 + LEAST_ROUNDING) {
            return Err(caravan_kv::Error::Config(format!(
                "the objective {} is below its lower bound {least}, so one of them is wrong{}",
                last.objective,
                self.remedy()
            )));
        }
        Ok(())
    }

    /// Whether F is as near to its minimum as asked for, as far as that is known.
    fn is_proven(&self, last: &Progress) -> bool {
        let asked = self.job.epsilon.max(newton::ASKED_MIN);
        last.bound.is_none_or(|bound| bound <= asked * last.objective)
    }

    /// Refuses what is no objective.
    fn check(&self, pass: u64, objective: f64) -> caravan_kv::Result<()> {
        if objective.is_finite() && objective >= 0.0 {
            return Ok(());
        }
        Err(caravan_kv::Error::Config(format!(
            "training diverged in pass {}: the objective is {objective}{}",
            pass + 1,
            self.remedy()
        )))
    }

    /// What a user can do about numbers that are too large.
    fn remedy(&self) -> String {
        self.largest.map_or(String::new(), |Largest { key, value }| {
            format!(
                "; feature {key} has values up to {value:e}: divide them so that they are about 1"
            )
        })
    }

    /// Tells of a pass, and hands the weights over if it is time.
    fn tell(
        &mut self,
        listener: &mut Listener<impl FnMut(&Progress), impl FnMut(&Progress, Model)>,
        report: &Progress,
        first_order: bool,
    ) -> caravan_kv::Result<()> {
        (listener.progress)(report);
        let every = self.job.save_every;
        if every > 0 && (report.pass + 1).is_multiple_of(every) {
            let newton = self.newton.as_ref().filter(|_| !first_order);
            let model = match newton {
                Some(newton) => self.model_of(newton.weights().clone())?,
                None => {
                    let weights = self.weights()?;
                    self.model_of(weights)?
                }
            };
            (listener.save)(report, model);
        }
        Ok(())
    }

    /// Traffic of all workers, and of servers to the driver.
    fn traffic(&self) -> caravan_kv::Result<Counted> {
        let mut counted = self.counted;
        for table in self.newton.iter().flat_map(Newton::tables) {
            let own = self.servers.info().traffic(table)?;
            counted.tables.received = counted.tables.plus(&own).received;
        }
        counted.frames.pulled += self.servers.info().counters().bytes_received;
        Ok(counted)
    }

    /// The smallest λ at which all weights are 0: the largest |g_j| there, with the intercept
    /// fitted.
    ///
    /// # Errors
    /// As [`train`].
    pub fn lambda_max(&mut self) -> crate::Result<f64> {
        let mut find = || {
            self.set_lambda(LAMBDA_HUGE)?;
            self.lossless = true;
            let mut rule = StopRule::new(LAMBDA_MAX_EPSILON);
            let mut steepest = 0.0;
            for pass in 0..LAMBDA_MAX_PASSES {
                let (report, largest) = self.pass(pass, None, true, &mut rule)?;
                steepest = largest;
                if report.stop != Stop::Continue || self.rule.free.is_none() {
                    break;
                }
            }
            Ok(steepest)
        };
        find().map_err(failed)
    }

    /// Changes λ everywhere; returns whether the filter's bits are now those of another λ.
    fn set_lambda(&mut self, lambda: f64) -> caravan_kv::Result<bool> {
        self.rule.lambda = lambda;
        self.command(&Command::Lambda { lambda })?;
        Ok(self.task > 1)
    }

    /// The weights of all servers, sorted by key, as columns are divided.
    fn weights(&mut self) -> caravan_kv::Result<Vec<(u64, f64)>> {
        let weights: Vec<Vec<(u64, f64)>> = self.tell_servers(&Command::Weights)?;
        let mut weights = weights.concat();
        weights.sort_unstable_by_key(|(key, _)| *key);
        Ok(weights)
    }

    fn model_of(&self, weights: impl IntoIterator<Item = (u64, f64)>) -> caravan_kv::Result<Model> {
        let (free, weights): (Vec<_>, Vec<_>) =
            weights.into_iter().partition(|&(key, _)| Some(key) == self.rule.free);
        let intercept = free.first().map_or(0.0, |&(_, weight)| weight);
        let told = |(key, weight): (u64, f64)| (key, weight / self.scaling.factor(key));
        let weights = weights.into_iter().map(told).collect::<Vec<_>>();
        let model = Model::new(weights).and_then(|model| model.with_intercept(intercept));
        model.map_err(|error| caravan_kv::Error::Config(error.to_string()))
    }

    /// Visits the blocks of prior groups, unless a task has run before.
    fn visit_prior(&mut self) -> caravan_kv::Result<()> {
        let job = self.job;
        let overlaps = |block: &KeyBlock| {
            job.prior.iter().any(|&(first, last)| block.first <= last && first <= block.last)
        };
        let prior: Vec<bool> = self.blocks.iter().map(overlaps).collect();
        if self.task > 1 || !prior.contains(&true) {
            return Ok(());
        }
        for round in 0..PRIOR_ROUNDS {
            let mut blocks = job.order.of_pass(round, &self.gains);
            blocks.retain(|&block| prior[block]);
            self.tasks(blocks, FILTER_OFF, Some(Lossy::NONE), 0, false)?;
        }
        Ok(())
    }

    /// Runs a task for each of `blocks` on workers and servers.
    fn tasks(
        &mut self,
        blocks: Vec<usize>,
        threshold: f64,
        lossy: Option<Lossy>,
        delay: u64,
        reset: bool,
    ) -> caravan_kv::Result<Vec<Passed>> {
        let first = self.task;
        let exact = self.job.exact_delay;
        self.task += blocks.len() as u64;
        let all = exact || self.job.filters.table.key_cache;
        let blocks_too = blocks.clone();
        self.command(&Command::Pass { first, blocks: blocks_too, threshold, reset, all, lossy })?;
        let order = worker::Order::Pass { first, blocks, delay, exact, reset, lossy };
        let passed: Vec<Passed> = ask_workers(self.cluster, &order)?;
        let counted = passed.iter().map(|passed| &passed.counted);
        self.counted = counted.fold(Counted::default(), |sum, counted| sum.plus(counted));
        Ok(passed)
    }

    /// Runs one first-order pass. Also returns the largest gradient at a zero weight.
    fn pass(
        &mut self,
        pass: u64,
        last: Option<&Progress>,
        reset: bool,
        rule: &mut StopRule,
    ) -> caravan_kv::Result<(Progress, f64)> {
        let job = self.job;
        let delay = self.pace.delay();
        let began = self.servers.now();
        let violation = last.map(|last| last.violation);
        let ratio = if job.filters.kkt { job.kkt_ratio } else { f64::INFINITY };
        let threshold = schedule::kkt_threshold(violation, self.rows, ratio);
        self.lossless |= last.is_some_and(|last| last.relative <= LOSSLESS_FROM.max(job.epsilon));
        let blocks = job.order.of_pass(pass, &self.gains);
        let lossy = (!self.lossless).then(|| job.filters.lossy(pass));
        let passed = self.tasks(blocks, threshold, lossy, delay, reset)?;
        let took = self.servers.now() - began;
        let reports = self.reports()?;
        let seen = passed.iter().map(|passed| (passed.process, passed.peak_rss_mib));
        self.rss
            .extend(seen.chain(reports.iter().map(|report| (report.process, report.peak_rss_mib))));
        let loss: f64 = passed.iter().map(|passed| passed.loss).sum();
        let penalty: f64 = reports.iter().map(|report| report.penalty).sum();
        let objective = loss + penalty;
        self.check(pass, objective)?;
        let (relative, stop) = rule.after_pass(objective);
        let steepest = reports.iter().map(|report| report.steepest).fold(0.0, f64::max);
        let report = Progress {
            pass,
            seconds: self.seconds(),
            objective,
            relative,
            nnz: reports.iter().map(|report| report.nonzeros).sum(),
            active: reports.iter().map(|report| report.active).sum(),
            violation: (steepest - self.rule.lambda).max(0.0),
            worker_busy: busy(&passed, took),
            worker_bytes_sent: self.counted.frames.pushed,
            server_bytes_sent: self.counted.frames.pulled,
            threshold,
            lambda: self.rule.lambda,
            delay,
            times: times(&passed, server_busy(&reports), 0.0, self.servers.now() - began),
            tail_dropped: self.columns[1],
            bound: self.newton.as_ref().and_then(|newton| newton.bound_of(objective)),
            columns_computed: passed.iter().map(|passed| passed.columns_computed).sum(),
            rounds: self.rounds(&passed),
            stop,
        };
        Ok((report, steepest))
    }

    /// The servers' reports.
    fn reports(&mut self) -> caravan_kv::Result<Vec<Report>> {
        let gains = self.job.order == Order::Importance;
        let reports: Vec<Report> = self.tell_servers(&Command::Report { gains })?;
        if gains {
            self.gains.fill(0.0);
            for report in &reports {
                self.gains.iter_mut().zip(&report.gains).for_each(|(sum, gain)| *sum += gain);
            }
        }
        Ok(reports)
    }

    /// Rounds so far.
    fn rounds(&self, passed: &[Passed]) -> u64 {
        let newton = passed.iter().map(|passed| passed.rounds).max().unwrap_or(0);
        self.task - 1 + newton
    }

    /// Time since training began.
    fn seconds(&self) -> f64 {
        (self.servers.now() - self.began).as_secs_f64()
    }

    /// Whether a run begins with first-order passes: those alone have a delay, and lossy filters.
    fn begins_with_passes(&self) -> bool {
        self.newton.is_none() || self.job.delay > 0 || self.job.filters.is_lossy()
    }

    /// Hands the weights over to the second-order method.
    fn begin_newton(&mut self) -> caravan_kv::Result<()> {
        self.before_newton = self.weights()?;
        let rule = self.rule;
        let weights = self.before_newton.iter().copied();
        let newton = self.newton.as_mut();
        newton.expect("the job has a second-order method").begin(rule, weights);
        Ok(())
    }

    /// Takes the weights back, at servers and workers.
    fn end_newton(&mut self) -> caravan_kv::Result<()> {
        let weights = self.newton.as_ref().map(|newton| newton.weights().clone());
        let weights = weights.unwrap_or_default();
        let before = self.before_newton.iter().filter(|(key, _)| !weights.contains_key(key));
        let mut all: Vec<(u64, f64)> = before.map(|&(key, _)| (key, 0.0)).collect();
        all.extend(weights);
        all.sort_unstable_by_key(|(key, _)| *key);
        let first = self.task;
        let (threshold, lossy) = (FILTER_OFF, None);
        let blocks = Vec::new();
        let reset = Command::Pass { first, blocks, threshold, reset: true, all: false, lossy };
        self.command(&reset)?;
        // The second time both sides derive a column's trust region from the same step, of 0.
        for _ in 0..2 {
            let set = Command::Set { weights: all.clone() };
            let _set: Vec<usize> = self.tell_servers(&set)?;
        }
        let _set: Vec<()> = ask_workers(self.cluster, &worker::Order::Start { weights: all })?;
        Ok(())
    }

    /// Takes an outer step of the second-order method. Also returns whether it cannot go on.
    fn outer(
        &mut self,
        pass: u64,
        last: Option<&Progress>,
    ) -> caravan_kv::Result<(Progress, bool)> {
        let began = self.servers.now();
        let newton = self.newton.as_mut().expect("the job has a second-order method");
        let step: Outer = newton.step(self.cluster, &mut self.servers, self.job.epsilon)?;
        self.check(pass, step.objective)?;
        let passed: Vec<Passed> = ask_workers(self.cluster, &worker::Order::Passed)?;
        let took = self.servers.now() - began;
        let counted = passed.iter().map(|passed| &passed.counted);
        self.counted = counted.fold(Counted::default(), |sum, counted| sum.plus(counted));
        self.rss.extend(passed.iter().map(|passed| (passed.process, passed.peak_rss_mib)));
        let data_bytes = passed.iter().filter_map(|passed| passed.data_bytes);
        self.data_bytes = data_bytes.chain(self.data_bytes).max();
        let report = Progress {
            pass,
            seconds: self.seconds(),
            objective: step.objective,
            relative: last.map_or(1.0, |last| last.objective / step.objective - 1.0),
            nnz: step.nonzeros,
            active: step.columns,
            violation: (step.steepest - self.rule.lambda).max(0.0),
            worker_busy: busy(&passed, took),
            worker_bytes_sent: self.counted.frames.pushed,
            server_bytes_sent: self.counted.frames.pulled,
            threshold: FILTER_OFF,
            lambda: self.rule.lambda,
            delay: 0,
            times: times(&passed, step.server_seconds, step.step_seconds, took),
            tail_dropped: self.columns[1],
            bound: step.bound,
            columns_computed: passed.iter().map(|passed| passed.columns_computed).sum(),
            rounds: self.rounds(&passed),
            stop: if step.done { Stop::Done } else { Stop::Continue },
        };
        Ok((report, step.stalled))
    }

    fn command(&mut self, command: &Command) -> caravan_kv::Result<()> {
        let timestamp = self.servers.command(self.table, &serde_json::to_vec(command)?)?;
        self.servers.wait(timestamp).map(drop)
    }

    fn tell_servers<T: DeserializeOwned>(
        &mut self,
        command: &Command,
    ) -> caravan_kv::Result<Vec<T>> {
        tell_servers(&mut self.servers, self.table, command)
    }
}

/// Who hears of passes, and who keeps weights.
struct Listener<P, S> {
    progress: P,
    save: S,
}

fn failed(error: caravan_kv::Error) -> crate::Error {
    crate::Error::Train { reason: with_sources(&error) }
}

/// Sends a command to all servers and returns their answers.
pub(super) fn tell_servers<T: DeserializeOwned>(
    servers: &mut Worker,
    table: Table,
    command: &impl Serialize,
) -> caravan_kv::Result<Vec<T>> {
    let timestamp = servers.command(table, &serde_json::to_vec(command)?)?;
    let replies = servers.wait(timestamp)?.replies;
    Ok(replies.iter().map(|reply| serde_json::from_slice(reply)).collect::<Result<_, _>>()?)
}

/// Sends an order to all workers and returns their answers.
pub(super) fn ask_workers<T: DeserializeOwned>(
    cluster: &mut Cluster,
    order: &worker::Order,
) -> caravan_kv::Result<Vec<T>> {
    let task = cluster.submit(Target::Workers, APP, &serde_json::to_value(order)?)?;
    let answers = cluster.wait(task)?;
    Ok(answers.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

/// Makes all workers compute their scores from the weights; returns the loss.
pub(super) fn derive(cluster: &mut Cluster) -> caravan_kv::Result<f64> {
    let losses: Vec<Whole> = ask_workers(cluster, &worker::Order::Derive)?;
    Ok(losses.into_iter().sum::<Whole>().number())
}

/// Sends an order of the second-order method to all workers; returns their sums.
pub(super) fn ask(
    cluster: &mut Cluster,
    order: &newton::Order,
) -> caravan_kv::Result<Vec<Vec<Whole>>> {
    ask_workers(cluster, &worker::Order::Newton(order.clone()))
}

/// An order that workers carry out meanwhile.
pub(super) struct Submitted(TaskId);

/// Sends an order of the second-order method to all workers.
pub(super) fn submit(
    cluster: &mut Cluster,
    order: &newton::Order,
) -> caravan_kv::Result<Submitted> {
    let order = serde_json::to_value(worker::Order::Newton(order.clone()))?;
    cluster.submit(Target::Workers, APP, &order).map(Submitted)
}

impl Submitted {
    /// Waits until it is carried out.
    pub(super) fn wait(self, cluster: &mut Cluster) -> caravan_kv::Result<()> {
        cluster.wait(self.0).map(drop)
    }
}

/// Time of the busiest server thread.
fn server_busy(reports: &[Report]) -> f64 {
    reports.iter().map(|report| report.busy_seconds).fold(0.0, f64::max)
}

fn times(passed: &[Passed], server: f64, polish: f64, total: Duration) -> Times {
    let busy = || passed.iter().map(|passed| passed.busy_seconds);
    let worker_max = busy().fold(0.0, f64::max);
    let total = total.as_secs_f64();
    Times {
        worker_min: busy().reduce(f64::min).unwrap_or(0.0),
        worker_max,
        server,
        polish,
        other: (total - worker_max - server - polish).max(0.0),
        total,
    }
}

/// Share of the time that workers computed, on average.
fn busy(passed: &[Passed], took: Duration) -> f64 {
    let total: f64 = passed.iter().map(|passed| passed.busy_seconds).sum();
    total / passed.len().max(1) as f64 / took.as_secs_f64().max(1e-9)
}
