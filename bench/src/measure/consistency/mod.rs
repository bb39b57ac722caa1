//! `caravan bench consistency`: what consistency models cost and save among stragglers.
//!
//! Three set-ups: sparse requests under BSP, SSP, SparseSSP and ASP (FlexPS's report, section 9.2),
//! and linear regression under BSP and data-centric constraints, by the number of workers and of
//! features (the parameter database's paper, section 6). Each row stands beside the schedule of the
//! same work without messages (`oracle.rs`).
//!
//! Clusters are simulated, as in `caravan bench scale`; the rows follow from the flags and the
//! seed. With `--van` they are real, and workers sleep in place of computing.

mod oracle;
mod program;
pub(crate) mod rows;
pub(crate) mod worker;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use caravan_kv::consistency::Model;
use caravan_kv::{Cluster, ClusterConfig, Launch, Target};
use caravan_learn::dbpg::Straggle;
use caravan_learn::replace_file::{self, replace};
use caravan_van::sim::Stragglers;

use self::program::{Pauses, Program, Task};
use self::rows::{Consistency, End, SetUp};
use self::worker::{Iterates, Part};
use crate::apps::{apps, handles};
use crate::cli::ending::Usage;
use crate::cli::{Common, ConsistencyArgs, VanChoice};
use crate::cluster;
use crate::doctor::machine::Machine;
use crate::measure::simulated::{network, patient};

/// Server threads if no flag names their number: FlexPS had one for ten workers.
const SERVERS: usize = 4;
/// The most of them.
const SERVERS_MAX: u32 = 1024;

/// Features and examples of the parameter database's first experiment, and examples of its second.
const FEATURES: u64 = 960;
const EXAMPLES: u64 = 5000;
const FEW_EXAMPLES: u64 = 500;

/// Workers of its second experiment.
const WORKER_COUNTS: [usize; 3] = [16, 24, 40];

/// Runs `caravan bench consistency`.
///
/// # Errors
/// [`Usage`]; what keeps a cluster from coming up; any wrong read or result.
pub(crate) fn run(common: &Common, args: &ConsistencyArgs) -> Result<()> {
    let bench = Bench::new(common, args)?;
    args.plot.as_deref().map_or(Ok(()), replace_file::check)?;
    let cases = bench.cases()?;
    let mut report = Machine::first(common, cases.len())?;
    let mut rows: Vec<Consistency> = Vec::new();
    for case in &cases {
        let Case { set_up, model, workers, .. } = case;
        report.doing(format!("{}, {model}, {workers} workers", set_up.name()));
        let began = Instant::now();
        let row = bench.row(case, &rows)?;
        report.row(&row)?;
        if bench.is_simulated() {
            let took = began.elapsed().as_secs_f64();
            report.say(format_args!("{:.3} s, simulated in {took:.1} s", row.seconds));
        }
        rows.push(row);
        report.step();
    }
    let plot = args.plot.as_deref();
    plot.map_or(Ok(()), |path| replace(path, rows::svg(&rows).as_bytes()))?;
    report.end("reads and results")
}

/// One combination of what the flags list.
#[derive(Debug, Clone, Copy)]
struct Case {
    set_up: SetUp,
    model: Model,
    workers: usize,
    program: Program,
    /// Where it stands in the list of features.
    end: Option<End>,
}

impl Case {
    /// Whether another case differs in the model only.
    fn is_beside(&self, row: &Consistency) -> bool {
        self.set_up.name() == row.set_up
            && self.workers == row.workers
            && self.keys() == row.keys
            && self.sparsity() == row.sparsity
    }

    fn keys(&self) -> u64 {
        match self.program {
            Program::Sparse { dimensions, .. } => dimensions,
            Program::Regression { chunk, .. } => chunk * self.workers as u64,
        }
    }

    fn sparsity(&self) -> f64 {
        match self.program {
            Program::Sparse { dimensions, nonzeros, .. } => nonzeros as f64 / dimensions as f64,
            Program::Regression { .. } => 1.0,
        }
    }
}

struct Bench<'a> {
    common: &'a Common,
    args: &'a ConsistencyArgs,
    servers: usize,
    iterations: u64,
}

impl<'a> Bench<'a> {
    fn new(common: &'a Common, args: &'a ConsistencyArgs) -> Result<Self> {
        let refuse = |what: &str| Err(anyhow!(Usage(what.to_owned())));
        if common.workers.is_some() {
            return refuse(
                "bench consistency takes its numbers of workers from --nodes and --sparse-nodes",
            );
        }
        if common.external {
            return refuse("bench consistency starts a cluster for each row: leave --external out");
        }
        let servers = common.servers.map_or(SERVERS, |servers| servers as usize);
        let iterations = if common.smoke { 5 } else { u64::from(args.iterations) };
        let bench = Bench { common, args, servers, iterations };
        if bench.is_simulated() && common.threads.is_some_and(|threads| threads > 1) {
            return refuse("simulated servers have one thread each: take more --servers");
        }
        if bench.is_simulated() && common.servers.is_some_and(|servers| servers > SERVERS_MAX) {
            return refuse("bench consistency simulates at most 1024 servers, each by a thread");
        }
        Ok(bench)
    }

    fn is_simulated(&self) -> bool {
        matches!(self.common.van, None | Some(VanChoice::Sim))
    }

    fn cases(&self) -> Result<Vec<Case>> {
        let mut cases = Vec::new();
        for set_up in &self.args.set_up {
            match set_up {
                SetUp::Sparsity => cases.extend(self.sparse()),
                SetUp::Workers => {
                    for workers in &self.args.nodes {
                        cases.extend(regression(*set_up, *workers as usize, FEATURES, EXAMPLES)?);
                    }
                }
                SetUp::Features => cases.extend(self.features()?),
            }
        }
        Ok(cases)
    }

    fn sparse(&self) -> Vec<Case> {
        let ConsistencyArgs { dimensions, sparse_nodes, compute_ms, .. } = *self.args;
        let staleness = u64::from(self.args.staleness);
        let speculation = u64::from(self.args.speculation);
        let mut models = vec![Model::Bsp, Model::Ssp { staleness }];
        if speculation > 0 {
            models.push(Model::SparseSsp { staleness, speculation });
            models.push(Model::Ssp { staleness: staleness + speculation });
        }
        models.push(Model::Asp);
        let case = |sparsity: f64, model| {
            let nonzeros = ((dimensions as f64 * sparsity).round() as u64).max(1);
            let compute = Duration::from_nanos((compute_ms * 1e6) as u64);
            Case {
                set_up: SetUp::Sparsity,
                model,
                workers: sparse_nodes as usize,
                program: Program::Sparse { dimensions, nonzeros, compute },
                end: None,
            }
        };
        let each = |&sparsity: &f64| models.iter().map(move |&model| case(sparsity, model));
        self.args.sparsity.iter().flat_map(each).collect()
    }

    fn features(&self) -> Result<Vec<Case>> {
        let features = &self.args.features;
        let mut cases = Vec::new();
        for workers in WORKER_COUNTS {
            for (at, &count) in features.iter().enumerate() {
                let some = regression(SetUp::Features, workers, u64::from(count), FEW_EXAMPLES)?;
                let end = match at {
                    0 => Some(End::First),
                    _ if at + 1 == features.len() => Some(End::Last),
                    _ => None,
                };
                cases.extend(some.into_iter().map(|case| Case { end, ..case }));
            }
        }
        Ok(cases)
    }

    fn row(&self, case: &Case, before: &[Consistency]) -> Result<Consistency> {
        let Case { set_up, model, workers, program, end } = *case;
        let Straggle { share, pause: longest } = self.args.straggle;
        let pauses = Pauses { share, longest, slowest: self.args.slowest };
        let (seed, iterations) = (self.args.seed, self.iterations);
        let task = Task { model, workers, iterations, program, pauses, seed };
        let oracle = oracle::ends(&task).as_secs_f64();
        let Ran { parts, wrong } = self.execute(task)?;
        let seconds = parts.iter().map(|part| part.seconds).fold(0.0, f64::max);
        let busy = parts.iter().map(|part| part.busy_seconds).sum::<f64>() / workers as f64;
        let set_up = set_up.name();
        let bsp = before.iter().find(|row| case.is_beside(row) && row.model == "BSP");
        let saved = bsp.map_or(0.0, |bsp| 100.0 * (1.0 - seconds / bsp.seconds));
        let is_exact = matches!(model, Model::DataCentric { delay: Some(0), .. });
        let paper = rows::paper_percent(set_up, workers, end).filter(|_| is_exact);
        let drawn = match program {
            Program::Sparse { dimensions, nonzeros, .. } => Some((dimensions, nonzeros)),
            Program::Regression { .. } => None,
        };
        Ok(Consistency {
            van: if self.is_simulated() { "sim" } else { "real" },
            set_up,
            model: model.to_string(),
            workers,
            servers: self.servers,
            iterations,
            keys: case.keys(),
            sparsity: case.sparsity(),
            straggle: [share, longest.as_secs_f64() * 1e3],
            slowest: self.args.slowest,
            seconds,
            oracle_seconds: oracle,
            over_oracle_percent: 100.0 * (seconds / oracle - 1.0),
            under_bsp_percent: saved,
            paper_percent: paper,
            conflict: drawn.map(|(all, drawn)| rows::conflict(all, drawn)),
            paper_conflict: drawn.and_then(|(all, drawn)| rows::paper_conflict(all, drawn)),
            idle: 1.0 - busy / seconds,
            worker_bytes_sent: parts.iter().map(|part| part.bytes_sent).sum(),
            wrong: wrong + parts.iter().map(|part| part.wrong).sum::<u64>(),
        })
    }

    /// Runs a task on a cluster of its own.
    fn execute(&self, task: Task) -> Result<Ran> {
        let shape = ClusterConfig {
            servers: self.servers,
            workers: task.workers,
            ..ClusterConfig::default()
        };
        if !self.is_simulated() {
            let config = cluster::config(self.common)?;
            let config = ClusterConfig { servers: shape.servers, workers: shape.workers, ..config };
            return drive(cluster::launch(&config, self.common)?, &task);
        }
        let network = network(self.args.seed, &self.args.network, 1.0, Stragglers::default());
        let scheduler = network.try_spawn("scheduler", move |_| {
            let launch = Launch::Simulated(handles(), apps());
            drive(Cluster::launch(&patient(shape), launch)?, &task)
        })?;
        scheduler.join()?
    }
}

/// Linear regression under BSP, and with data-centric constraints of several delays.
fn regression(set_up: SetUp, workers: usize, features: u64, examples: u64) -> Result<Vec<Case>> {
    let chunk = features / workers as u64;
    ensure!(
        chunk > 0,
        Usage(format!("{workers} workers need {workers} features or more, not {features}"))
    );
    let delays = [Some(0), Some(1), None];
    let data_centric = delays.map(|delay| Model::DataCentric { delay, chunk_keys: chunk });
    let program = Program::Regression { chunk, examples };
    let models = std::iter::once(Model::Bsp).chain(data_centric);
    Ok(models.map(|model| Case { set_up, model, workers, program, end: None }).collect())
}

/// What came of a run.
struct Ran {
    parts: Vec<Part>,
    /// Keys whose sum is not that of all pushes.
    wrong: u64,
}

fn drive(mut cluster: Cluster, task: &Task) -> Result<Ran> {
    let id = cluster.submit(Target::Workers, Iterates::NAME, &serde_json::to_value(task)?)?;
    let parts = cluster.wait(id)?.into_iter().map(serde_json::from_value);
    let parts: Result<Vec<Part>, _> = parts.collect();
    let wrong = match task.program {
        Program::Sparse { .. } => lost(&mut cluster, task)?,
        Program::Regression { .. } => 0,
    };
    cluster.shutdown()?;
    Ok(Ran { parts: parts?, wrong })
}

/// Keys that are checked when a sparse run has ended.
const CHECKED: usize = 16;

/// How many of some keys do not hold the number of iterations that have added to them.
fn lost(cluster: &mut Cluster, task: &Task) -> Result<u64> {
    let mut keys = task.keys(0, 1);
    keys.truncate(CHECKED);
    let mut client = cluster.client()?;
    let table = client.admin().create_table(&worker::spec(task)?)?;
    let pulled = client.pull(table, &keys)?;
    let sums = client.wait(pulled)?.values::<f32>().to_vec();
    let checked: HashSet<u64> = keys.iter().copied().collect();
    let mut counts = vec![0u64; keys.len()];
    for rank in 0..task.workers {
        for clock in 1..=task.iterations {
            // A key that is drawn twice is pushed once.
            let own = task.drawn(rank, clock).filter(|key| checked.contains(key));
            for key in own.collect::<HashSet<u64>>() {
                counts[keys.partition_point(|other| *other < key)] += 1;
            }
        }
    }
    let differ = counts.iter().zip(&sums).filter(|(count, sum)| **count as f32 != **sum);
    Ok(differ.count() as u64)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{BenchCommand, Cli, Command};

    fn rows(line: &str) -> Vec<Consistency> {
        let line = format!("caravan bench consistency {line}");
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Bench(BenchCommand::Consistency(args)) = &cli.command else { panic!() };
        let bench = Bench::new(&cli.common, args).unwrap();
        let mut rows = Vec::new();
        for case in bench.cases().unwrap() {
            rows.push(bench.row(&case, &rows).unwrap());
        }
        for row in &rows {
            assert_eq!(row.wrong, 0, "{row:?}");
        }
        rows
    }

    /// The real code on a simulated cluster, twice: the same to the bit.
    #[test]
    fn the_same_seed_is_the_same_row() {
        let line = "--servers 2 --iterations 8 --sparse-nodes 4 --sparsity 1e-4 --dimensions 100000 \
                    --nodes 3 --features 50,100 --set-up sparsity,workers";
        let once = rows(line);
        assert_eq!(once, rows(line));
        assert_eq!(once.len(), 5 + 4);
        assert_ne!(once, rows(&format!("{line} --seed 2")));
    }

    fn seconds(rows: &[Consistency], model: &str, sparsity: f64) -> f64 {
        let row = rows.iter().find(|row| row.model == model && row.sparsity == sparsity);
        row.unwrap_or_else(|| panic!("no {model} at {sparsity}")).seconds
    }

    /// Where hardly any keys are shared SparseSSP takes the time of SSP with the larger staleness;
    /// where all are, that of SSP with its own.
    #[test]
    fn speculation_saves_what_conflicts_leave() {
        let rows = rows(
            "--set-up sparsity --iterations 30 --sparsity 1e-6,1e-5,1e-3 \
                         --dimensions 1000000 --sparse-nodes 40",
        );
        let [sparse, tight, loose] = ["SparseSSP(1, 4)", "SSP(1)", "SSP(5)"];
        let of = |model, sparsity| seconds(&rows, model, sparsity);
        assert!(of(sparse, 1e-6) < 1.05 * of(loose, 1e-6), "{rows:?}");
        assert!(of(sparse, 1e-5) < 0.8 * of(tight, 1e-5), "{rows:?}");
        assert!(of(sparse, 1e-3) < 1.05 * of(tight, 1e-3), "{rows:?}");
        assert!(rows.iter().all(|row| row.over_oracle_percent.abs() < 3.0), "{rows:?}");
    }

    /// A worker that has its chunks need not wait until all have written theirs.
    #[test]
    fn data_centric_synchronization_saves_a_third_of_the_time_of_24_workers() {
        let rows = rows("--set-up workers --nodes 24 --iterations 20");
        assert_eq!(rows[1].model, "data-centric(0)");
        assert!(rows[1].under_bsp_percent > 30.0, "{rows:?}");
        assert!(rows.iter().all(|row| row.over_oracle_percent.abs() < 3.0), "{rows:?}");
    }

    #[test]
    fn a_picture_has_a_line_for_each_model() {
        let rows = rows("--servers 1 --iterations 2 --nodes 2,3 --set-up workers");
        let picture = rows::svg(&rows);
        let document = roxmltree::Document::parse(&picture).unwrap();
        let lines = document.descendants().filter(|node| {
            node.attribute("class").is_some_and(|classes| classes.starts_with("workers "))
        });
        assert_eq!(lines.count(), 2 * 4, "{picture}");
    }
}
