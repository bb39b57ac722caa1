//! Goal: columns as people have them give right numbers, or an error that names the feature.
//! Method: random small problems whose columns have sizes from 1e-12 to 1e12, are shifted, sparse
//! or equal to others, with row weights from 1e-6 to 1e9. A plain coordinate descent on columns
//! that were scaled by hand is the reference. What a run reports must be F of its model, no lower
//! bound may be above F of any weights, and what calls itself converged must be as good as the
//! reference. Least squares, whose passes are given, must report no less than F of the model, which
//! goes down from pass to pass, or end with an error.

use crate::vans;
use std::fmt::Write as _;
use std::path::PathBuf;

use caravan_kv::{Apps, Cluster, ClusterConfig, Handles, Launch};
use caravan_learn::data;
use caravan_learn::dbpg::{self, Job, Trained};
use caravan_learn::linreg;
use caravan_learn::trainer::{self, serial};
use caravan_van::draws::{Random, unit};

/// What sets are drawn by.
struct Draws(Random);

impl Draws {
    fn bits(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, count: u64) -> u64 {
        self.bits() % count
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        unit(self.bits())
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A problem: `values[row][column]`, 0 where there is no entry.
struct Problem {
    labels: Vec<f64>,
    values: Vec<Vec<f64>>,
    lambda: f64,
    l2: f64,
    positive_weight: f64,
}

impl Problem {
    fn draw(seed: u64) -> Problem {
        let mut random = Draws(Random::new(seed));
        let rows = 4 + random.below(30) as usize;
        let columns = 1 + random.below(6) as usize;
        let mut values = vec![vec![0.0; columns]; rows];
        for column in 0..columns {
            let size = 10_f64.powf(24.0 * random.share() - 12.0);
            let shift = if random.one_in(4) { 50.0 } else { 0.0 };
            let sparse = random.one_in(3);
            let twin = (column > 0 && random.one_in(6)).then(|| random.below(column as u64));
            for row in &mut values {
                let value = size * (random.share() - 0.5 + shift);
                let is_there = !sparse || random.one_in(3);
                row[column] = match twin {
                    Some(twin) => row[twin as usize],
                    None if is_there => value,
                    None => 0.0,
                };
            }
        }
        if values.iter().flatten().all(|value| *value == 0.0) {
            values[0][0] = 1.0; // there is nothing to train on otherwise
        }
        let mut labels: Vec<f64> =
            (0..rows).map(|_| if random.one_in(2) { 1.0 } else { -1.0 }).collect();
        (labels[0], labels[1]) = (1.0, -1.0);
        let positive_weight = match random.one_in(3) {
            true => 10_f64.powf(15.0 * random.share() - 6.0),
            false => 1.0,
        };
        Problem {
            labels,
            values,
            lambda: 10_f64.powf(3.0 * random.share() - 2.0),
            l2: if random.one_in(4) { random.share() } else { 0.0 },
            positive_weight,
        }
    }

    fn libsvm(&self) -> String {
        let mut text = String::new();
        for (label, row) in self.labels.iter().zip(&self.values) {
            write!(text, "{label}").unwrap();
            for (column, value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                write!(text, " {}:{value:e}", column + 1).unwrap();
            }
            text.push('\n');
        }
        text
    }

    fn row_weight(&self, row: usize) -> f64 {
        if self.labels[row] > 0.0 { self.positive_weight } else { 1.0 }
    }

    /// F, from the rows alone.
    fn objective(&self, weights: &[f64]) -> f64 {
        let loss = |row: usize| {
            let terms = self.values[row].iter().zip(weights).map(|(x, w)| x * w);
            let margin = self.labels[row] * terms.sum::<f64>();
            self.row_weight(row) * ((-margin).max(0.0) + (-margin.abs()).exp().ln_1p())
        };
        let penalty = |w: &f64| self.lambda * w.abs() + 0.5 * self.l2 * w * w;
        (0..self.labels.len()).map(loss).sum::<f64>() + weights.iter().map(penalty).sum::<f64>()
    }

    /// The least F that coordinate descent finds from these weights.
    fn descend(&self, mut weights: Vec<f64>) -> f64 {
        let largest = |column: usize| {
            let largest = self.values.iter().map(|row| row[column].abs()).fold(0.0, f64::max);
            if largest > 0.0 { largest } else { 1.0 }
        };
        let sizes: Vec<f64> = (0..weights.len()).map(largest).collect();
        let mut margins: Vec<f64> = self
            .values
            .iter()
            .zip(&self.labels)
            .map(|(row, y)| y * row.iter().zip(&weights).map(|(x, w)| x * w).sum::<f64>())
            .collect();
        for _ in 0..2000 {
            let mut moved = 0.0_f64;
            for column in 0..weights.len() {
                let size = sizes[column];
                let (lambda, l2) = (self.lambda / size, self.l2 / size / size);
                let at = weights[column] * size;
                let (mut g, mut h) = (l2 * at, l2 + 1e-12);
                for (row, margin) in margins.iter().enumerate() {
                    let x = self.labels[row] * self.values[row][column] / size;
                    let wrong = 1.0 / (1.0 + margin.exp());
                    g -= self.row_weight(row) * x * wrong;
                    h += self.row_weight(row) * x * x * 0.25;
                }
                let free = at - g / h;
                let to = free.signum() * (free.abs() - lambda / h).max(0.0);
                moved = moved.max((to - at).abs() * h.sqrt());
                weights[column] = to / size;
                for (row, margin) in margins.iter_mut().enumerate() {
                    *margin += self.labels[row] * self.values[row][column] / size * (to - at);
                }
            }
            if moved < 1e-9 {
                break;
            }
        }
        self.objective(&weights)
    }
}

/// Trains on a problem; `None` if it is refused, with a reason that names a feature.
fn train(cluster: &mut Cluster, seed: u64, problem: &Problem, newton: bool) -> Option<Trained> {
    let name = format!("caravan-unscaled-{}-{seed}.train", std::process::id());
    let file: PathBuf = std::env::temp_dir().join(name);
    std::fs::write(&file, problem.libsvm()).unwrap();
    let mut job = Job::new(vec![file.clone()], problem.lambda);
    job.proximal.l2 = problem.l2;
    job.positive_weight = problem.positive_weight;
    job.passes_max = 300;
    job.newton = job.newton.filter(|_| newton);
    let trained = dbpg::train(cluster, &job, |_| {});
    std::fs::remove_file(&file).unwrap();
    match trained {
        Ok(trained) => Some(trained),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("feature") && text.contains("divide"), "seed {seed}: {text}");
            None
        }
    }
}

/// Checks what a run reports; returns whether it is converged.
fn check(seed: u64, problem: &Problem, trained: &Trained) -> bool {
    let columns = problem.values[0].len() as u64;
    let weights: Vec<f64> = (1..=columns).map(|key| trained.model.weight(key)).collect();
    let objective = problem.objective(&weights);
    let off = (trained.objective - objective).abs();
    // Sums of losses are multiples of 2^-62.
    let rounding = problem.labels.len() as f64 * 2_f64.powi(-62);
    assert!(
        off <= 1e-9 * objective + rounding,
        "seed {seed}: F is {objective:e}, it says {:e}",
        trained.objective
    );
    let reference = problem.descend(vec![0.0; weights.len()]).min(problem.descend(weights.clone()));
    if let Some(bound) = trained.bound {
        let least = trained.objective - bound;
        assert!(
            least <= reference * (1.0 + 1e-9) + rounding,
            "seed {seed}: {least:e} above {reference:e}"
        );
    }
    if trained.converged && trained.bound.is_some() {
        let above = objective / reference - 1.0;
        assert!(above < 1e-6, "seed {seed}: {above:e} above the reference");
    }
    trained.converged
}

fn draw(seeds: std::ops::Range<u64>) {
    let launch = || Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    let node = || vans::node(vans::any());
    let config = ClusterConfig { servers: 2, workers: 2, threads: 1, node: node() };
    let mut cluster = Cluster::launch(&config, launch()).unwrap();
    let count = seeds.end - seeds.start;
    let (mut refused, mut converged) = (0, 0);
    for seed in seeds {
        let problem = Problem::draw(seed);
        for newton in [true, false] {
            match train(&mut cluster, seed, &problem, newton) {
                None => refused += 1,
                Some(trained) => converged += u64::from(check(seed, &problem, &trained)),
            }
        }
    }
    println!("{count} problems, twice each: {converged} converged, {refused} refused");
    assert!(converged > count, "most converge");
    cluster.shutdown().unwrap();
}

#[test]
fn any_columns_give_right_numbers_or_an_error() {
    draw(0..100);
}

#[test]
#[ignore = "takes minutes"]
fn any_columns_give_right_numbers_or_an_error_at_length() {
    draw(100..2100);
}

/// Half the sum of squares of a model's errors.
fn squares(problem: &Problem, weights: &[f64]) -> f64 {
    let rows = problem.values.iter().zip(&problem.labels);
    let error = |row: &[f64]| row.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>();
    rows.map(|(row, target)| 0.5 * (error(row) - target).powi(2)).sum()
}

#[test]
fn least_squares_of_any_columns_go_down_or_end_with_an_error() {
    let name = format!("caravan-unscaled-squares-{}.train", std::process::id());
    let file: PathBuf = std::env::temp_dir().join(name);
    let (mut ended, mut refused) = (0, 0);
    for seed in 0..500 {
        let mut problem = Problem::draw(seed);
        let mut random = Draws(Random::new(!seed));
        problem.labels.iter_mut().for_each(|label| *label = 10.0 * random.share() - 5.0);
        if random.one_in(8) {
            let beyond = 10_f64.powf(200.0 * random.share());
            problem.values.iter_mut().for_each(|row| row[0] *= beyond);
        }
        std::fs::write(&file, problem.libsvm()).unwrap();
        let features = problem.values[0].len() as u64 + 1;
        let settings =
            linreg::Settings { files: vec![file.clone()], features, rate: 1.0, steps: 10 };
        let job = trainer::Job { passes: 5, ..trainer::Job::new(settings) };
        let mut last = squares(&problem, &vec![0.0; features as usize]);
        let trained = serial::<linreg::LinReg>(&job, &Handles::default(), |pass| {
            let loss = pass.sums.loss;
            assert!(
                (0.0..=last * (1.0 + 1e-9)).contains(&loss),
                "seed {seed}: {loss} after {last}"
            );
            last = loss;
        });
        match trained {
            Ok(trained) => {
                let weights: Vec<f64> = (1..features)
                    .map(|key| trained.rows.row(key).map_or(0.0, |row| row[0]))
                    .collect();
                let reached = squares(&problem, &weights);
                assert!(reached <= last * (1.0 + 1e-9), "seed {seed}: {reached}, it says {last}");
                ended += 1;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("scale them") || text.contains("--rate"),
                    "seed {seed}: {text}"
                );
                refused += 1;
            }
        }
    }
    println!("{ended} ended, {refused} refused");
    assert!(ended > 400 && refused > 0);
    std::fs::remove_file(&file).unwrap();
}

/// The sums of these were beyond their integers, and F was said to be below 0.
#[test]
fn whole_numbers_of_millions_have_their_optimum() {
    for (name, text, optimum) in [
        (
            "millions",
            "-1 1:17196645 2:1\n1 1:14297231\n-1 1:12238511 2:1\n-1 1:16271387 2:2\n",
            0.735257,
        ),
        (
            "times",
            "1 1:1700000000 2:1\n-1 1:1700000100 3:1\n1 1:1700000200 2:1\n-1 1:1700000300 3:1\n",
            0.794061,
        ),
    ] {
        let file = std::env::temp_dir().join(format!("caravan-{name}-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        for (workers, servers, newton) in [(1, 1, true), (2, 2, true), (2, 1, false)] {
            let node = vans::node(vans::any());
            let config = ClusterConfig { servers, workers, threads: 1, node };
            let launch =
                Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
            let mut cluster = Cluster::launch(&config, launch).unwrap();
            let mut job = Job::new(vec![file.clone()], 0.1);
            job.newton = job.newton.filter(|_| newton);
            let trained = dbpg::train(&mut cluster, &job, |_| {}).unwrap();
            cluster.shutdown().unwrap();
            let off = trained.objective - optimum;
            assert!(off.abs() < 1e-6, "{name} {workers} {servers}: {}", trained.objective);
        }
        std::fs::remove_file(&file).unwrap();
    }
}

/// Two workers, of which one alone has the value: the other one hears of it as well.
#[test]
fn a_value_beside_which_the_penalty_is_lost_is_named() {
    let file = std::env::temp_dir().join(format!("caravan-huge-{}", std::process::id()));
    std::fs::write(&file, "1 1:1e100\n-1 2:1\n").unwrap();
    let config =
        ClusterConfig { servers: 1, workers: 2, threads: 1, node: vans::node(vans::any()) };
    let launch = Launch::Threads(dbpg::handles(Handles::default()), dbpg::apps(Apps::default()));
    let mut cluster = Cluster::launch(&config, launch).unwrap();
    let job = Job::new(vec![file.clone()], 0.1);
    let error = dbpg::train(&mut cluster, &job, |_| {}).unwrap_err().to_string();
    assert!(error.contains("feature 1 has values up to 1e100"), "{error}");
    assert!(error.contains("divide"), "{error}");
    // Without a penalty there is nothing to lose, and no bound.
    let job = Job { epsilon: 1e-6, ..Job::new(vec![file.clone()], 0.0) };
    let trained = dbpg::train(&mut cluster, &job, |_| {}).unwrap();
    assert!(trained.bound.is_none() && trained.objective >= 0.0 && trained.objective < 1e-3);
    let all =
        data::read(std::slice::from_ref(&file), data::Shard::ALL, 1.try_into().unwrap()).unwrap();
    let mut margins = all.iter().map(|row| trained.model.margin(row) * row.label);
    assert!(margins.all(|margin| margin.is_finite() && margin > 1.0));
    cluster.shutdown().unwrap();
    std::fs::remove_file(&file).unwrap();
}
