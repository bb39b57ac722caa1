//! Goal: each hint of a task gives the result that its definition says, and those of one process
//! send nothing while they train.
//! Method: trainers on clusters of threads against `trainer::serial`, and a trainer that says what
//! its steps see of each other.

use crate::support::example;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch, TableSpec, ValueType};
use caravan_learn::sgd::{Settings, Sgd};
use caravan_learn::trainer::{
    self, Hint, Job, Part, Progress, Step, Trained, Trainer, serial, train,
};
use caravan_learn::{fm, linreg};
use example::Example;
use serde::{Deserialize, Serialize};
use serde_json::json;

fn on_threads(workers: usize) -> Cluster {
    let apps = trainer::app::<Sgd>(trainer::app::<Sees>(Apps::default()));
    let apps = trainer::app::<fm::Fm>(trainer::app::<linreg::LinReg>(apps));
    let config = ClusterConfig { servers: 2, workers, ..ClusterConfig::default() };
    Cluster::launch(&config, Launch::Threads(Handles::default(), apps)).unwrap()
}

fn file(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, Example::new().libsvm()).unwrap();
    (folder, path)
}

fn job(file: &Path, handle: &str, options: serde_json::Value) -> Job<Settings> {
    let mut settings = Settings::new(vec![file.to_owned()]);
    settings.descent.handle = handle.to_owned();
    settings.descent.options = options;
    settings.descent.batch = 7;
    Job { passes: 2, ..Job::new(settings) }
}

/// Trains with a hint; its passes have sent nothing if they are of one process.
fn run<T: Trainer>(cluster: &mut Cluster, job: &Job<T::Settings>) -> Trained<T::Value> {
    let mut passes: Vec<Progress> = Vec::new();
    let trained = train::<T>(cluster, job, |pass| passes.push(pass.clone())).unwrap();
    assert_eq!(passes.len() as u64, job.passes);
    for pass in &passes {
        let sent = (pass.worker_bytes_sent, pass.server_bytes_sent);
        assert_eq!(sent == (0, 0), job.hint != Hint::Ps, "{}: {sent:?}", job.hint);
    }
    trained
}

fn alone<T: Trainer>(job: &Job<T::Settings>, parts: usize) -> Trained<T::Value> {
    let job = Job { parts: Some(parts), ..job.clone() };
    serial::<T>(&job, &Handles::default(), |_| {}).unwrap()
}

#[test]
fn seq_is_the_serial_run_and_spmt_under_bsp_that_of_its_parts_to_the_bit() {
    let (_folder, file) = file("bits");
    let mut cluster = on_threads(2);
    for (rule, options) in [
        ("sgd", json!({"rate": 0.05, "decay": 0.01})),
        ("adam", json!({"rate": 0.02})),
        ("ftrl", json!({"rate": 0.3, "l1": 0.5})),
    ] {
        let job = job(&file, rule, options);
        let seq = run::<Sgd>(&mut cluster, &Job { hint: Hint::Seq, ..job.clone() });
        assert!(seq.rows == alone::<Sgd>(&job, 1).rows, "{rule}");
        let spmt = Job { hint: Hint::Spmt, parts: Some(5), ..job.clone() };
        let spmt = run::<Sgd>(&mut cluster, &spmt);
        assert!(spmt.rows == alone::<Sgd>(&job, 5).rows, "{rule}");
        let ps = run::<Sgd>(&mut cluster, &Job { parts: Some(5), ..job.clone() });
        assert!(spmt.rows == ps.rows, "{rule}");
    }
    // Rows of several values, a dense table, and a task that reads all data whole.
    let mut settings = fm::Settings::new(vec![file.clone()]);
    settings.descent.batch = 7;
    let job = Job { hint: Hint::Spmt, parts: Some(3), ..Job::new(settings) };
    assert!(run::<fm::Fm>(&mut cluster, &job).rows == alone::<fm::Fm>(&job, 3).rows);
    let examples = caravan_learn::data::parse("t".as_ref(), b"+1 0:1\n-1 1:2 2:1\n").unwrap();
    let features = linreg::features(&examples).unwrap();
    let small = file.with_file_name("small");
    std::fs::write(&small, "+1 0:1\n-1 1:2 2:1\n").unwrap();
    let settings = linreg::Settings { files: vec![small], features, rate: 1.0, steps: 9 };
    let job = Job { hint: Hint::Seq, ..Job::new(settings) };
    assert!(
        run::<linreg::LinReg>(&mut cluster, &job).rows == alone::<linreg::LinReg>(&job, 1).rows
    );
    cluster.shutdown().unwrap();
}

#[test]
fn hogwild_of_one_thread_is_the_serial_run_and_of_several_trains_as_well() {
    let (_folder, file) = file("hogwild");
    let mut cluster = on_threads(1);
    let job = job(&file, "sgd", json!({"rate": 0.05, "decay": 0.01}));
    let hogwild = |parts| Job { hint: Hint::Hogwild, parts: Some(parts), ..job.clone() };
    let one = alone::<Sgd>(&job, 1);
    assert!(run::<Sgd>(&mut cluster, &hogwild(1)).rows == one.rows);
    let several = run::<Sgd>(&mut cluster, &hogwild(4));
    assert_eq!(several.rows.keys, one.rows.keys);
    let ratio = several.objective / one.objective;
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
    let mut settings = fm::Settings::new(vec![file.clone()]);
    settings.descent.handle = "sgd".to_owned();
    let job = Job { hint: Hint::Hogwild, parts: Some(1), ..Job::new(settings) };
    assert!(run::<fm::Fm>(&mut cluster, &job).rows == alone::<fm::Fm>(&job, 1).rows);
    cluster.shutdown().unwrap();
}

/// Counts the steps of each part in a row of its own, and in one that all share; says how far from
/// its own step it has seen the others, and whether it has missed one of its own.
struct Sees {
    part: u64,
    parts: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Steps(u64);

/// The most that a step has missed of another part, and seen ahead of its own.
static SEEN: Mutex<[f64; 2]> = Mutex::new([0.0; 2]);
static STEPS: Mutex<u64> = Mutex::new(0);

impl Trainer for Sees {
    const NAME: &'static str = "sees";
    type Settings = Steps;
    type Value = f64;

    fn table(_: &Steps) -> TableSpec {
        TableSpec::new(1, "steps", ValueType::F64, 1)
    }

    fn load(settings: &Steps, part: &Part) -> Result<Self, String> {
        *STEPS.lock().unwrap() = settings.0;
        Ok(Sees { part: part.number as u64, parts: part.parts as u64 })
    }

    fn steps(&self) -> u64 {
        *STEPS.lock().unwrap()
    }

    fn keys(&self, _pass: u64, _step: u64) -> Vec<u64> {
        (0..=self.parts).collect()
    }

    fn step(&mut self, step: &mut Step<'_, f64>) {
        let now = (step.pass * self.steps() + step.step) as f64;
        let (all, shared) = step.rows.split_at(self.parts as usize);
        assert!(all[self.part as usize] == now, "a part sees its own steps");
        assert!(shared[0] >= now, "each part adds to the row of all");
        let mut seen = SEEN.lock().unwrap();
        for other in all {
            seen[0] = seen[0].max(now - other);
            seen[1] = seen[1].max(other - now);
        }
        step.update[self.part as usize] = 1.0;
        step.update[self.parts as usize] = 1.0;
    }
}

#[test]
fn threads_see_of_each_other_what_their_model_says_and_no_step_is_lost() {
    let mut cluster = on_threads(1);
    const STEPS: u64 = 200;
    for (hint, model, behind, ahead) in [
        (Hint::Seq, "bsp", 0.0, 0.0),
        (Hint::Spmt, "bsp", 0.0, 0.0),
        (Hint::Spmt, "ssp:3", 3.0, 4.0),
        (Hint::Spmt, "asp", f64::INFINITY, f64::INFINITY),
        (Hint::Hogwild, "asp", f64::INFINITY, f64::INFINITY),
    ] {
        *SEEN.lock().unwrap() = [0.0; 2];
        let parts = if hint == Hint::Seq { 1 } else { 4 };
        let consistency = model.parse().unwrap();
        let job = Job { hint, parts: Some(parts), consistency, ..Job::new(Steps(STEPS)) };
        let trained = run::<Sees>(&mut cluster, &Job { passes: 2, ..job });
        let seen = *SEEN.lock().unwrap();
        assert!(seen[0] <= behind && seen[1] <= ahead, "{hint} {model}: {seen:?}");
        let counts: Vec<f64> = trained.rows.values.clone();
        let each = 2.0 * STEPS as f64;
        assert_eq!(counts[..parts], vec![each; parts][..], "{hint} {model}");
        assert_eq!(counts[parts..], [each * parts as f64], "{hint} {model}: no step is lost");
    }
    cluster.shutdown().unwrap();
}

#[test]
fn what_a_hint_has_no_meaning_for_is_refused_with_the_reason() {
    let (_folder, file) = file("refused");
    let mut cluster = on_threads(1);
    let good = job(&file, "adagrad", json!({"rate": 0.1}));
    for (hint, parts, model, why) in [
        (Hint::Seq, Some(2), "bsp", "leave --parts out"),
        (Hint::Hogwild, None, "bsp", "take --handle sgd"),
        (Hint::Spmt, None, "delay:1", "bsp, ssp:S or asp"),
    ] {
        let consistency = model.parse().unwrap();
        let job = Job { hint, parts, consistency, ..good.clone() };
        let error = train::<Sgd>(&mut cluster, &job, |_| {}).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut missing = Job { hint: Hint::Spmt, ..good.clone() };
    missing.settings.files = vec!["/no/such".into()];
    let error = train::<Sgd>(&mut cluster, &missing, |_| {}).unwrap_err().to_string();
    assert!(error.contains("/no/such"), "{error}");
    run::<Sgd>(&mut cluster, &Job { hint: Hint::Spmt, ..good });
    for (name, hint) in
        [("ps", Hint::Ps), ("seq", Hint::Seq), ("hogwild", Hint::Hogwild), ("spmt", Hint::Spmt)]
    {
        assert_eq!((name.parse(), hint.to_string().as_str()), (Ok(hint), name));
    }
    "bsp".parse::<Hint>().unwrap_err();
    cluster.shutdown().unwrap();
}
