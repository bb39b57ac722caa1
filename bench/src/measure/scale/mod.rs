//! `caravan bench scale`: training by DBPG on clusters of hundreds of workers, simulated on this
//! machine. It shows what the figures of Li et al. show (OSDI'14 section 5.1, NIPS'14 section 5):
//! time and idle share against the delay, bytes filter by filter, speed-up with workers.
//!
//! Workers, servers and scheduler are the real code on the simulated van. Time is simulated:
//! the network charges for messages ([`simulated`](super::simulated)), and counts charge for
//! computing (`kv/learn/src/numeric/cost.rs`). So a row follows from the flags and the seed alone.
//! `--calibrate` compares the counts with real time instead.

mod rows;

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use caravan_kv::{Cluster, ClusterConfig, Launch, NodeConfig, Van};
use caravan_learn::data::clicks::{self, Clicks, Format};
use caravan_learn::dbpg::gradient::Curvature;
use caravan_learn::dbpg::{self, FilterTraffic, Filters, Job, Progress as Pass, blocks};
use caravan_van::sim::{Faults, Network, Stragglers};

use crate::apps::{apps, handles};
use crate::cli::ending::Usage;
use crate::cli::interrupt::tidily;
use crate::cli::values::FilterList;
use crate::cli::{Common, ScaleArgs, SimulatedNetwork};
use crate::doctor::machine::Machine;
use crate::measure::simulated::{micros, network, patient};
use rows::{Calibration, Model, Scale};

/// Server threads if no flag names their number.
const SERVERS: usize = 32;
/// The most of them.
const SERVERS_MAX: u32 = 1024;

/// Rows of data with `--smoke`.
const SMOKE_ROWS: u64 = 2000;

/// Runs `caravan bench scale`.
pub(crate) fn run(common: &Common, args: &ScaleArgs) -> Result<()> {
    Bench::new(common, args)?.run(common)
}

/// One combination of what the flags list.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case<'a> {
    workers: usize,
    delay: u32,
    filters: &'a FilterList,
}

/// The data and the settings of all runs.
struct Bench<'a> {
    args: &'a ScaleArgs,
    servers: usize,
    passes: u64,
    rows: u64,
    data: Data,
    cases: Vec<Case<'a>>,
}

impl<'a> Bench<'a> {
    fn new(common: &Common, args: &'a ScaleArgs) -> Result<Self> {
        let refuse = |what: &str| Err(anyhow!(Usage(what.to_owned())));
        if common.workers.is_some() {
            return refuse("bench scale takes its numbers of workers from --nodes");
        }
        if common.threads.is_some_and(|threads| threads > 1) {
            return refuse("simulated servers have one thread each: take more --servers");
        }
        if common.servers.is_some_and(|servers| servers > SERVERS_MAX) {
            return refuse("bench scale simulates at most 1024 servers, each by a thread");
        }
        if common.van.is_some() {
            return refuse("bench scale runs on the sim van: leave --van out");
        }
        let rows = if common.smoke { args.rows.min(SMOKE_ROWS) } else { args.rows };
        let cases = args.nodes.iter().flat_map(|&workers| {
            args.delay.iter().flat_map(move |&delay| {
                let case = move |filters| Case { workers: workers as usize, delay, filters };
                args.filters.iter().map(case)
            })
        });
        Ok(Bench {
            args,
            servers: common.servers.map_or(SERVERS, |servers| servers as usize),
            passes: if common.smoke { 3 } else { args.passes },
            rows,
            data: Data::generate(rows, args.seed)?,
            cases: cases.collect(),
        })
    }

    fn run(&self, common: &Common) -> Result<()> {
        let mut report = Machine::first(common, self.cases.len())?;
        if self.args.calibrate {
            return self.calibrate()?.iter().try_for_each(|row| report.row(row));
        }
        report.doing("the optimum".to_owned());
        let optimum = self.optimum()?;
        report.row(&self.model(optimum))?;
        let mut rows: Vec<Scale> = Vec::new();
        for case in &self.cases {
            let Case { workers, delay, filters } = case;
            report.doing(format!("{workers} workers, delay {delay}, filters {}", filters.name));
            let began = Instant::now();
            let row = self.case(case, optimum, &rows)?;
            report.row(&row)?;
            report.say(format_args!(
                "{workers} workers, {:.3} s, simulated in {:.1} s",
                row.seconds,
                began.elapsed().as_secs_f64()
            ));
            rows.push(row);
            report.step();
        }
        ensure!(
            common.smoke || report.wrong() == 0,
            "{} runs ended before the target; see --passes",
            report.wrong()
        );
        Ok(())
    }

    fn model(&self, optimum: f64) -> Model {
        let args = self.args;
        let latency_us = args.network.latency_us;
        Model {
            seed: args.seed,
            rows: self.rows,
            lambda: args.lambda,
            blocks: args.blocks as usize,
            optimum,
            target: args.target,
            gbit: args.network.gbit,
            latency_us: [latency_us, latency_us * (1.0 + args.network.jitter)],
            overhead_us: args.network.overhead_us,
            overhead_ns_per_byte: args.network.overhead_ns_per_byte,
            stands_for: args.stands_for,
        }
    }

    /// The published method: blocks in a new random order each pass, no Newton steps, and no
    /// screening unless a flag asks for it. With `--newton` the second-order one.
    fn job(&self) -> Job {
        let newton = Job {
            epsilon: 0.0,
            passes_max: self.passes,
            filters: Filters { kkt: true, ..Filters::NONE },
            ..Job::new(vec![self.data.train.clone()], self.args.lambda)
        };
        if self.args.newton {
            return newton;
        }
        Job {
            blocks: Some(self.args.blocks as usize),
            order: blocks::Order::Shuffled { seed: self.args.seed },
            curvature: Curvature::Published,
            newton: None,
            ..newton
        }
    }

    /// By the full method, on a network that takes no time.
    fn optimum(&self) -> Result<f64> {
        let job = Job::new(vec![self.data.train.clone()], self.args.lambda);
        let network = Network::new(self.args.seed, Faults::none());
        let shape = ClusterConfig::default();
        let Run { passes, .. } = simulate(&network, shape, job, 0.0)?;
        Ok(passes.last().map_or(f64::NAN, |last| last.objective))
    }

    fn network(&self) -> Network {
        let [factor, every, spell] = self.args.straggle;
        let stragglers = Stragglers {
            factor,
            always: self.args.always_slow,
            every: micros(every * 1e3),
            spell: micros(spell * 1e3),
        };
        network(self.args.seed, &self.args.network, self.args.stands_for, stragglers)
    }

    /// Seconds of one worker that waits for no message, in the same steps.
    fn alone(&self, filters: &FilterList, target: f64) -> Result<f64> {
        let free = SimulatedNetwork {
            gbit: 0.0,
            latency_us: 0.0,
            jitter: 0.0,
            overhead_us: 0.0,
            overhead_ns_per_byte: 0.0,
        };
        let steady = Stragglers::default();
        let network = network(self.args.seed, &free, self.args.stands_for, steady);
        let job = Job { filters: filters.filters, ..self.job() };
        let Run { passes, .. } = simulate(&network, ClusterConfig::default(), job, target)?;
        passes.last().map(|last| last.seconds).context("a run makes a pass at least")
    }

    fn case(&self, case: &Case<'_>, optimum: f64, before: &[Scale]) -> Result<Scale> {
        let Case { workers, delay, filters } = *case;
        let mut job = self.job();
        job.delay = u64::from(delay);
        job.filters = filters.filters;
        let target = optimum * (1.0 + self.args.target);
        let shape = ClusterConfig { servers: self.servers, workers, ..ClusterConfig::default() };
        let Run { passes, traffic } = simulate(&self.network(), shape, job, target)?;
        let last = passes.last().context("a run makes a pass at least")?;
        let first = before.iter().find(|row| row.delay == delay && row.filters == filters.name);
        let relative = last.objective / optimum - 1.0;
        let alone = before.iter().find(|row| row.filters == filters.name);
        let alone = alone.map_or_else(|| self.alone(filters, target), |row| Ok(row.alone))?;
        let [factor, every, spell] = self.args.straggle;
        Ok(Scale {
            workers,
            servers: self.servers,
            delay,
            filters: filters.name.clone(),
            straggle: [factor, self.args.always_slow, every, spell],
            passes: last.pass + 1,
            rounds: last.rounds,
            seconds: last.seconds,
            speedup: first.map_or(1.0, |first| first.seconds / last.seconds),
            alone,
            of_perfect: last.seconds * workers as f64 / alone,
            idle: 1.0 - busy(&passes).iter().sum::<f64>() / last.seconds,
            objective: last.objective,
            relative,
            nnz: last.nnz,
            worker_bytes_sent: last.worker_bytes_sent,
            server_bytes_sent: last.server_bytes_sent,
            traffic,
            wrong: u64::from(relative > self.args.target),
        })
    }

    /// The first passes of one worker, charged and measured. Only time in which it computes counts,
    /// not the network's.
    fn calibrate(&self) -> Result<Vec<Calibration>> {
        let job = Job { passes_max: self.passes.min(5), ..self.job() };
        let network = Network::new(self.args.seed, Faults::none());
        let shape = ClusterConfig::default();
        let charged = busy(&simulate(&network, shape, job.clone(), 0.0)?.passes);
        let node = NodeConfig { van: Van::Tcp, ..NodeConfig::default() };
        let config = ClusterConfig { node, ..ClusterConfig::default() };
        let Run { passes, .. } = train(&config, Launch::Threads(handles(), apps()), &job, 0.0)?;
        let mut sent_before = 0;
        let row = |((pass, charged), measured): ((&Pass, f64), f64)| {
            let sent = pass.worker_bytes_sent;
            let bytes = sent - std::mem::replace(&mut sent_before, sent);
            Calibration {
                pass: pass.pass,
                charged_ms: charged * 1e3,
                measured_ms: measured * 1e3,
                ratio: charged / measured,
                worker_bytes_sent: bytes,
                server_ns_per_byte: pass.times.server * 1e9 / bytes as f64,
            }
        };
        Ok(passes.iter().zip(charged).zip(busy(&passes)).map(row).collect())
    }
}

/// Seconds of each pass in which workers computed, on average.
fn busy(passes: &[Pass]) -> Vec<f64> {
    let mut began = 0.0;
    let of = |pass: &Pass| {
        let took = pass.seconds - std::mem::replace(&mut began, pass.seconds);
        took * pass.worker_busy
    };
    passes.iter().map(of).collect()
}

/// The outcome of a training run.
struct Run {
    passes: Vec<Pass>,
    traffic: Vec<FilterTraffic>,
}

/// Trains on a simulated cluster with `shape`'s numbers of servers and workers until the objective
/// is `target`.
fn simulate(network: &Network, shape: ClusterConfig, job: Job, target: f64) -> Result<Run> {
    let config = patient(shape);
    let launch = Launch::Simulated(handles(), apps());
    let scheduler = network.spawn("scheduler", move |_| train(&config, launch, &job, target));
    scheduler.join()?
}

fn train(config: &ClusterConfig, launch: Launch, job: &Job, target: f64) -> Result<Run> {
    let mut cluster = Cluster::launch(config, launch)?;
    let mut passes = Vec::new();
    let trained = dbpg::train(&mut cluster, job, |pass| {
        passes.push(*pass);
        if pass.objective <= target {
            job.stop.store(true, Ordering::Relaxed);
        }
    })?;
    cluster.shutdown()?;
    Ok(Run { passes, traffic: trained.traffic })
}

/// Generated clicks in a file without a name, which goes when this process ends in any way.
struct Data {
    train: PathBuf,
    /// Keeps the file.
    _file: File,
}

impl Data {
    fn generate(rows: u64, seed: u64) -> Result<Data> {
        let clicks = Clicks { rows, test_rows: 1, seed, ..Clicks::default() };
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        // A signal finds the handlers there before there is a folder.
        let (folder, out) = tidily(|stop| {
            let folder = tempfile::Builder::new().prefix("caravan-scale-").tempdir();
            let folder =
                folder.context("cannot make a folder for data; set TMPDIR to another place")?;
            let out = folder.path().join("clicks");
            clicks::generate(&clicks, &out, Format::Compact, threads, stop)?;
            anyhow::Ok((folder, out))
        })??;
        let file = File::open(out.with_extension("train")).context("cannot read generated data")?;
        folder.close().context("cannot remove a folder for data")?;
        let train = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Data { train, _file: file })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{BenchCommand, Cli, Command};

    fn rows(line: &str) -> Vec<Scale> {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Bench(BenchCommand::Scale(args)) = &cli.command else { panic!("{line}") };
        let bench = Bench::new(&cli.common, args).unwrap();
        let optimum = bench.optimum().unwrap();
        let mut rows = Vec::new();
        for case in &bench.cases {
            rows.push(bench.case(case, optimum, &rows).unwrap());
        }
        rows
    }

    /// The real code on a simulated cluster, twice: the same to the bit.
    #[test]
    fn the_same_seed_is_the_same_row() {
        let line = "caravan bench scale --smoke --rows 1000 --servers 3 --nodes 4,6 --delay 0,2 \
                    --blocks 20 --straggle 4:2:1 --always-slow 0.2 --filters none,all";
        let once = rows(line);
        assert_eq!(once, rows(line));
        assert_eq!(once.len(), 8);
        assert_ne!(once, rows(&format!("{line} --seed 2")));
        for row in &once {
            assert!(row.seconds > 0.0 && (0.0..1.0).contains(&row.idle), "{row:?}");
            assert!(row.worker_bytes_sent > 0 && row.server_bytes_sent > 0, "{row:?}");
            let ends = |row: &FilterTraffic| (row.worker_bytes_out, row.server_bytes_out);
            let all = row.traffic.iter().find(|stage| stage.filter == "all").map(ends);
            let saved = all.is_some_and(|(workers, _)| workers < row.traffic[0].worker_bytes_in);
            assert_eq!(saved, row.filters == "all", "{row:?}");
        }
        assert_eq!(once[0].speedup, 1.0);
    }

    /// It takes the same steps on any number of workers, so perfect speed-up is a bound.
    #[test]
    fn the_second_order_method_counts_its_rounds_and_bytes() {
        let rows = rows(
            "caravan bench scale --newton --rows 2000 --lambda 2 --servers 2 --nodes 1,4 --delay 0 \
             --filters screen+kkt --target 1e-6",
        );
        let [one, four] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((one.wrong, four.wrong), (0, 0), "{rows:?}");
        assert_eq!((one.objective, one.rounds), (four.objective, four.rounds));
        assert!(one.rounds > one.passes && one.alone == four.alone, "{rows:?}");
        assert!(one.of_perfect >= 1.0 && four.of_perfect > one.of_perfect, "{rows:?}");
        assert!(four.worker_bytes_sent > one.worker_bytes_sent, "{rows:?}");
    }

    /// What a delay is for: nobody waits for whoever is slow just now.
    #[test]
    fn with_stragglers_a_delay_saves_a_third_of_the_time() {
        let rows = rows(
            "caravan bench scale --rows 4000 --lambda 1 --servers 4 --nodes 12 \
                         --delay 0,4 --blocks 60 --target 3e-2 --straggle 5:20:5",
        );
        assert!(rows.iter().all(|row| row.wrong == 0), "{rows:?}");
        assert!(rows[0].seconds > 1.5 * rows[1].seconds, "{rows:?}");
        assert!(rows[0].idle > rows[1].idle, "{rows:?}");
    }
}
