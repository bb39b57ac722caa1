//! Goal: stages of tasks run on the workers that the queue gives them, as many at once as fit, with
//! ranks, barriers and tables as they should be; the failure of a task is its own.
//! Method: the engine on simulated clusters, with apps that say where and when they ran.

use std::collections::BTreeSet;
use std::time::Duration;

use caravan_kv::{
    App, Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, Target, ValueType, WorkerNode,
};
use caravan_learn::task::schedule::{Greedy, Sequential};
use caravan_learn::task::{Climb, Ended, Engine, Part, Stage, Task, Trigger, Wants};
use caravan_van::sim::{Faults, Network, for_each_seed};
use serde_json::{Value, json};

const WORKERS: usize = 4;

/// Works for the milliseconds of its input, shared by the workers of its stage, which then meet.
struct Works;

impl App for Works {
    fn run(&mut self, node: &mut WorkerNode, input: Value) -> Result<Value, String> {
        let text = |error: caravan_kv::Error| error.to_string();
        let (part, rank) = Part::of(node, input)?;
        if part.body["fails"] == true || part.body["fails_at"] == rank {
            return Err("it was told to".to_owned());
        }
        let began = node.worker.now().as_millis() as u64;
        let workers = part.workers.len() as u64;
        let each = part.body["each"].as_u64().unwrap_or(0);
        let work = part.body["ms"].as_u64().unwrap_or(0);
        Network::here().unwrap().sleep(Duration::from_millis(work / workers + each * workers));
        if part.body["adds"] == true {
            let table = node.worker.admin().create_table(&table()).map_err(text)?;
            let pushed = node.worker.push(table, &KEYS, &[1.0_f32, 1.0]).map_err(text)?;
            node.worker.wait(pushed).map_err(text)?;
        }
        node.barrier("met").map_err(text)?;
        let mut seen: Vec<f32> = Vec::new();
        if part.body["reads"] == true {
            let table = node.worker.admin().create_table(&table()).map_err(text)?;
            let pulled = node.worker.pull(table, &KEYS).map_err(text)?;
            seen.extend(node.worker.wait(pulled).map_err(text)?.values::<f32>());
        }
        let ended = node.worker.now().as_millis() as u64;
        Ok(json!([rank, part.stage, part.threads, began, ended, seen]))
    }
}

const KEYS: [u64; 2] = [1, u64::MAX];

fn table() -> TableSpec {
    TableSpec::new(1, "sums", ValueType::F32, 1)
}

/// Runs `drive` as the driver of a simulated cluster.
fn on_cluster<R: Send + 'static>(
    seed: u64,
    workers: usize,
    drive: impl Fn(&mut Cluster) -> R + Send + 'static,
) -> R {
    let network = Network::new(seed, Faults::jittery());
    let driver = network.spawn("driver", move |_| {
        let apps = Apps::default().with("works", || Box::new(Works));
        let config = ClusterConfig { workers, servers: 2, ..ClusterConfig::default() };
        let launch = Launch::Simulated(Handles::default(), apps);
        let mut cluster = Cluster::launch(&config, launch).unwrap();
        let done = drive(&mut cluster);
        cluster.shutdown().unwrap();
        done
    });
    driver.join().unwrap_or_else(|stopped| panic!("seed {seed}: {stopped}"))
}

fn stage(wants: Wants, body: Value) -> Stage {
    Stage::new("works", body, wants)
}

/// When each stage of the last of these began and ended, in milliseconds.
fn span(ended: &Ended) -> (u64, u64) {
    let number = |result: &Value, at: usize| result[at].as_u64().unwrap();
    let begins = ended.results.iter().map(|result| number(result, 3)).min().unwrap();
    let ends = ended.results.iter().map(|result| number(result, 4)).max().unwrap();
    (begins, ends)
}

#[test]
fn stages_have_workers_ranks_and_threads_of_their_own() {
    for_each_seed(5, |seed| {
        on_cluster(seed, WORKERS, |cluster| {
            let named = Wants::These(BTreeSet::from([1, 3]));
            let last = Stage { threads: 3, ..stage(named, json!({ "ms": 10 })) };
            let stages = vec![stage(Wants::Any(1), json!({})), stage(Wants::All, json!({})), last];
            let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
            engine.submit(stages.into_iter());
            let ended = engine.run().unwrap().remove(0).unwrap().unwrap();
            assert_eq!(ended.workers, [1, 3]);
            for (rank, result) in ended.results.iter().enumerate() {
                assert_eq!(result.as_array().unwrap()[..3], [json!(rank), json!(2), json!(3)]);
            }
            assert!(ended.took >= Duration::from_millis(5));
        });
    });
}

#[test]
fn stages_of_several_tasks_run_at_once_where_they_fit() {
    for_each_seed(5, |seed| {
        on_cluster(seed, WORKERS, move |cluster| {
            let two = || vec![stage(Wants::Any(2), json!({ "ms": 2000 }))].into_iter();
            let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
            engine.submit(two());
            engine.submit(vec![stage(Wants::Any(1), json!({ "fails": true }))].into_iter());
            engine.submit(vec![stage(Wants::Any(9), json!({}))].into_iter());
            engine.submit(two());
            let outcomes = engine.run().unwrap();
            let [first, fails, large, last] = &outcomes[..] else { panic!("{outcomes:?}") };
            let spans = [first, last].map(|it| span(it.as_ref().unwrap().as_ref().unwrap()));
            assert!(spans[1].0 < spans[0].1, "seed {seed}: both at once: {spans:?}");
            let why = fails.as_ref().unwrap_err();
            assert!(why.contains("stage 0 of task 1") && why.contains("told to"), "{why}");
            assert!(large.as_ref().unwrap_err().contains("wants 9 workers, and there are 4"));

            let mut engine = Engine::new(cluster, Sequential, Trigger::AT_ONCE);
            engine.submit(two());
            engine.submit(two());
            let outcomes = engine.run().unwrap();
            let spans = [0, 1].map(|at| span(outcomes[at].as_ref().unwrap().as_ref().unwrap()));
            assert!(spans[1].0 >= spans[0].1, "seed {seed}: one after another: {spans:?}");
        });
    });
}

/// The others wait for it at the barrier.
#[test]
fn a_worker_that_fails_in_a_later_stage_ends_its_task_and_no_other() {
    for_each_seed(5, |seed| {
        on_cluster(seed, WORKERS, move |cluster| {
            let bad = stage(Wants::Any(3), json!({ "fails_at": 1 }));
            let first = stage(Wants::Any(1), json!({}));
            let began = cluster.now();
            let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
            engine.submit(vec![first.clone(), bad, first].into_iter());
            engine.submit(vec![stage(Wants::Any(1), json!({ "ms": 2000 })); 2].into_iter());
            let outcomes = engine.run().unwrap();
            let why = outcomes[0].as_ref().unwrap_err();
            assert!(why.contains("stage 1 of task 0: worker "), "{why}");
            assert!(why.ends_with("failed at works: it was told to"), "{why}");
            outcomes[1].as_ref().unwrap().as_ref().unwrap();
            let took = cluster.now() - began;
            assert!(
                took < Duration::from_secs(10),
                "seed {seed}: it waits for a timeout: {took:?}"
            );
        });
    });
}

#[test]
fn stages_of_jobs_at_once_are_beside_each_other() {
    on_cluster(1, WORKERS, |cluster| {
        let mut other = Cluster::attach(&cluster.config().node, "other").unwrap();
        let body = json!({ "ms": 10_000 });
        let input = json!({ "stage": 0, "workers": [0, 2], "threads": 1, "body": body });
        let busy = other.submit(Target::Some(vec![0, 2]), "works", &input).unwrap();
        let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
        engine.submit(vec![stage(Wants::Any(2), json!({}))].into_iter());
        let ended = engine.run().unwrap().remove(0).unwrap().unwrap();
        assert_eq!(ended.workers, [1, 3]);
        other.wait(busy).unwrap();
        other.shutdown().unwrap();
    });
}

#[test]
fn a_second_task_reads_what_the_first_has_trained() {
    for_each_seed(3, |seed| {
        on_cluster(seed, WORKERS, move |cluster| {
            let adds = stage(Wants::Any(2), json!({ "adds": true }));
            let mut engine = Engine::new(cluster, Sequential, Trigger::AT_ONCE);
            engine.submit(vec![adds.clone(), adds].into_iter());
            engine.submit(vec![stage(Wants::Any(3), json!({ "reads": true }))].into_iter());
            let outcomes = engine.run().unwrap();
            let reader = outcomes[1].as_ref().unwrap().as_ref().unwrap();
            assert!(reader.results.iter().all(|it| it[5] == json!([4.0, 4.0])), "{reader:?}");
        });
    });
}

#[test]
fn a_trigger_starts_a_stage_by_time_alone() {
    on_cluster(1, WORKERS, |cluster| {
        let long = vec![stage(Wants::Any(3), json!({ "ms": 60_000 }))].into_iter();
        let short = vec![stage(Wants::Any(1), json!({})); 2].into_iter();
        let trigger = Trigger { free: 2, time: Duration::from_secs(2) };
        let began = cluster.now();
        let mut engine = Engine::new(cluster, Greedy, trigger);
        engine.submit(short);
        engine.submit(long);
        let outcomes = engine.run().unwrap();
        let (begins, _) = span(outcomes[0].as_ref().unwrap().as_ref().unwrap());
        let waited = Duration::from_millis(begins).saturating_sub(began);
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(5), "{waited:?}");
    });
}

/// Ten stages of equally much work, with as many workers as turn out best.
struct Automatic {
    climb: Climb,
    stages: usize,
}

impl Task for Automatic {
    fn next(&mut self, last: Option<&Ended>) -> Option<Stage> {
        if let Some(last) = last {
            self.climb.took(last.took);
        }
        self.stages = self.stages.checked_sub(1)?;
        let body = json!({ "ms": 4000, "each": 250 });
        Some(stage(Wants::Any(self.climb.workers()), body))
    }
}

#[test]
fn automatic_parallelism_finds_the_best_number_of_workers() {
    on_cluster(1, 8, |cluster| {
        let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
        engine.submit(Automatic { climb: Climb::new(1, 8, 1).unwrap(), stages: 10 });
        let ended = engine.run().unwrap().remove(0).unwrap().unwrap();
        assert_eq!(ended.workers.len(), 4, "4000 / n + 250 n has its minimum there");
    });
}

#[test]
fn a_stage_lays_out_the_tables_of_its_job() {
    for_each_seed(3, |seed| {
        on_cluster(seed, WORKERS, |cluster| {
            let adds = || stage(Wants::Any(2), json!({ "adds": true }));
            let moved = Stage { drained: Some(vec![1]), ..adds() };
            let back = Stage { drained: Some(Vec::new()), ..adds() };
            for (last, servers) in [(moved.clone(), vec![0]), (back, vec![0, 1])] {
                let mut engine = Engine::new(cluster, Greedy, Trigger::AT_ONCE);
                engine.submit(vec![adds(), moved.clone(), last].into_iter());
                engine.run().unwrap().remove(0).unwrap();
                let mut client = cluster.client().unwrap();
                let table = client.admin().create_table(&table()).unwrap();
                let pulled = client.pull(table, &KEYS).unwrap();
                assert_eq!(client.wait(pulled).unwrap().values::<f32>(), [6.0, 6.0]);
                // By now the client has heard where the shards are.
                let used: BTreeSet<usize> =
                    client.info().shards(table).unwrap().iter().map(|shard| shard.server).collect();
                assert_eq!(used.into_iter().collect::<Vec<_>>(), servers);
                client.admin().drop_table(table).unwrap();
            }
        });
    });
}

/// The page's program runs, and the page shows it as it is.
#[path = "../examples/staged.rs"]
#[allow(dead_code, reason = "its main is called by a test")]
mod staged;

#[test]
fn the_page_has_the_program_of_a_staged_job_and_it_runs() {
    let program = include_str!("../examples/staged.rs");
    let page = include_str!("../../docs/tasks.md");
    let shown = page.split("```rust,ignore\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(program.ends_with(shown), "kv/docs/tasks.md shows another program");
    assert!(program.lines().count() <= 60);
    staged::main().unwrap();
}
