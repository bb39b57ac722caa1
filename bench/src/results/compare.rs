//! `caravan compare`: what is slower in the second of two files of rows, beyond noise.
//!
//! Each round of a row has measured the van and its floor one after the other, so their ratio
//! leaves out what slows down both. A row's slowness is the median of the logarithms of these
//! ratios. Its noise has two parts: how far the rounds swing, and how far runs of one build differ
//! because memory and threads lie elsewhere. The second part follows from the runs themselves where
//! a file has several; otherwise it is what runs of one build have shown (`bench/records/compare`).
//!
//! A row differs if its change is beyond noise even though many rows are looked at (Holm, 1979),
//! and is at least a percent. The run as a whole differs if the mean of all rows does.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use super::{Measured, Results, Subject};
use crate::cli::ending::{Failed, Usage};
use crate::cli::values::size;
use crate::cli::{Common, CompareArgs};
use crate::report::{Report, Row, figure, row};

/// How far runs of one build differ in one row, as a standard deviation of logarithms.
const RUN_NOISE: f64 = 0.02;
/// How far all rows of a run move together.
const COMMON_NOISE: f64 = 0.004;
/// Changes that are smaller are never called a difference.
const CHANGE_MIN: f64 = 0.01;
/// Chance of a false alarm, of all rows together and of the mean.
const ALARM: f64 = 0.02;

/// Status where something is slower.
const SLOWER: i32 = 1;

/// Runs `caravan compare`.
///
/// # Errors
/// [`Failed`] with status 1 if something is slower; [`Usage`] if nothing can be compared.
pub(crate) fn run(common: &Common, args: &CompareArgs) -> Result<()> {
    let before = Results::read(&args.before)?;
    let after = Results::read(&args.after)?;
    let comparison = Comparison::of(&before, &after);
    if comparison.rows.is_empty() {
        let why = format!("{} and {} have no row in common", before.name, after.name);
        return Err(Usage(why).into());
    }
    let mut report = Report::new(common.format(), 0);
    for row in &comparison.rows {
        report.row(&row.shown())?;
    }
    report.row(&comparison.shown())?;
    for doubt in comparison.doubts(&before, &after) {
        report.say(doubt);
    }
    match comparison.verdict {
        Verdict::Slower => {
            let why = format!("{} is slower beyond noise", after.name);
            Err(Failed { status: SLOWER, why }.into())
        }
        _ => Ok(()),
    }
}

/// Whether something has changed beyond noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Slower,
    Faster,
    Equal,
    /// There is nothing to tell it by.
    Unknown,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::Equal => "equal",
            Verdict::Unknown => "unknown",
        }
    }

    /// From a change and its noise, in logarithms.
    fn of(change: f64, differs: bool) -> Verdict {
        match change {
            c if !differs || c.abs() < CHANGE_MIN => Verdict::Equal,
            c if c > 0.0 => Verdict::Slower,
            _ => Verdict::Faster,
        }
    }
}

/// All rows that both files have.
#[derive(Debug, Clone)]
pub(crate) struct Comparison {
    pub(crate) rows: Vec<Changed>,
    pub(crate) verdict: Verdict,
    /// Mean of all rows, in logarithms.
    change: f64,
    noise: f64,
    /// Rows of only one file.
    missing: usize,
    names: [String; 2],
}

/// One row of both.
#[derive(Debug, Clone)]
pub(crate) struct Changed {
    pub(crate) subject: Subject,
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// Above 0 if it is slower, in logarithms; with its standard error.
    change: f64,
    error: f64,
    pub(crate) verdict: Verdict,
}

impl Changed {
    pub(crate) fn change_percent(&self) -> f64 {
        percent(self.change)
    }

    /// Half of the range in which the change lies nineteen times of twenty.
    pub(crate) fn noise_percent(&self) -> f64 {
        percent(1.96 * self.error)
    }

    fn shown(&self) -> ComparisonRow {
        ComparisonRow {
            van: self.subject.van.clone(),
            op: self.subject.op.clone(),
            bench: self.subject.bench.name().to_owned(),
            bytes: self.subject.bytes,
            keys: self.subject.keys,
            window: self.subject.window,
            workers: self.subject.workers,
            before: self.before,
            after: self.after,
            unit: self.subject.bench.unit().to_owned(),
            slower_percent: hundredth(self.change_percent()),
            noise_percent: hundredth(self.noise_percent()),
            verdict: self.verdict.name().to_owned(),
        }
    }
}

fn percent(change: f64) -> f64 {
    100.0 * change.exp_m1()
}

fn hundredth(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

row! {
    /// One row of `caravan compare`.
    #[derive(Debug, Clone, Serialize)]
    pub(crate) struct ComparisonRow is "comparison" {
        van: String => "van",
        op: String => "op",
        bench: String => "bench",
        bytes: usize => "size" as size,
        keys: u64,
        window: u64,
        workers: u64,
        before: f64 => "before" as figure,
        after: f64 => "after" as figure,
        unit: String => "unit",
        /// Of the van against its floor; below 0 if it is faster.
        slower_percent: f64 => "slower" as signed,
        /// Nineteen of twenty times the change lies so close.
        noise_percent: f64 => "noise" as signed_noise,
        verdict: String => "verdict",
    }
    title |_| "comparison of the second file with the first: against the floor, in percent";
}

/// The last row of `caravan compare`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct VerdictRow {
    verdict: String,
    slower: usize,
    faster: usize,
    equal: usize,
    missing: usize,
    slower_percent: f64,
    noise_percent: f64,
    words: String,
}

impl Row for VerdictRow {
    const KIND: &'static str = "verdict";

    fn text(&self) -> String {
        format!("\n{}", self.words)
    }
}

fn signed(percent: &f64) -> String {
    format!("{percent:+.1} %")
}

fn signed_noise(percent: &f64) -> String {
    format!("± {percent:.1}")
}

/// The slowness of a row in one file, from all its runs.
struct Slowness {
    value: f64,
    /// In logarithms, with its variance.
    ratio: f64,
    variance: f64,
}

impl Slowness {
    /// # Panics
    /// If there are no runs.
    fn of(runs: &[&Measured]) -> Slowness {
        let each: Vec<(f64, f64)> = runs.iter().map(|run| of_run(run)).collect();
        let count = each.len() as f64;
        let ratio = each.iter().map(|(ratio, _)| ratio).sum::<f64>() / count;
        let within = each.iter().map(|(_, variance)| variance).sum::<f64>() / count;
        let spread = each.iter().map(|(one, _)| (one - ratio).powi(2)).sum::<f64>();
        // Few runs tell little of how far they differ: they are weighed as so many more that have
        // the usual noise.
        let between =
            (spread + PRIOR_RUNS * (RUN_NOISE.powi(2) + within)) / (count - 1.0 + PRIOR_RUNS);
        let mut values: Vec<f64> = runs.iter().map(|run| run.value).collect();
        values.sort_by(f64::total_cmp);
        Slowness { value: values[values.len() / 2], ratio, variance: between / count }
    }
}

const PRIOR_RUNS: f64 = 8.0;

/// The median of the rounds' logarithms, and its variance.
fn of_run(run: &Measured) -> (f64, f64) {
    let slowness = |(own, floor): (&f64, &f64)| run.subject.bench.slowness(*own, *floor).ln();
    let rounds = run.rounds.iter().zip(&run.floor_rounds).map(slowness);
    let mut rounds: Vec<f64> = rounds.filter(|round| round.is_finite()).collect();
    if rounds.len() < ROUNDS_MIN {
        // Rows of other programs, or without a floor, have their figure only.
        let floor = run.floor.unwrap_or(1.0);
        let one = run.subject.bench.slowness(run.value, floor).ln();
        return (one, ALONE_NOISE.powi(2));
    }
    let middle = median(&mut rounds);
    let mut apart: Vec<f64> = rounds.iter().map(|round| (round - middle).abs()).collect();
    // Of normal noise these factors make a standard deviation, and that of a median.
    let deviation = 1.4826 * median(&mut apart);
    let error = 1.2533 * deviation / (rounds.len() as f64).sqrt();
    (middle, error.powi(2))
}

/// Fewer rounds tell nothing of noise.
const ROUNDS_MIN: usize = 5;
/// Noise of a row without rounds.
const ALONE_NOISE: f64 = 0.03;

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

impl Comparison {
    /// Compares all rows that both files have.
    pub(crate) fn of(before: &Results, after: &Results) -> Comparison {
        let [mut first, second] = [before, after].map(|results| by_subject(results.measured()));
        let all = first.len() + second.len();
        let mut rows = Vec::new();
        for (subject, after) in second {
            let Some(before) = first.remove(&subject) else { continue };
            let [before, after] =
                [&before, &after].map(|runs| Slowness::of(&runs.iter().collect::<Vec<_>>()));
            let change = after.ratio - before.ratio;
            if !change.is_finite() {
                continue;
            }
            rows.push(Changed {
                subject,
                before: before.value,
                after: after.value,
                change,
                error: (before.variance + after.variance).sqrt(),
                verdict: Verdict::Equal,
            });
        }
        judge(&mut rows);
        let count = rows.len().max(1) as f64;
        let change = rows.iter().map(|row| row.change).sum::<f64>() / count;
        let own = rows.iter().map(|row| row.error.powi(2)).sum::<f64>() / count.powi(2);
        let noise = (own + 2.0 * COMMON_NOISE.powi(2)).sqrt();
        let is = |verdict| rows.iter().any(|row: &Changed| row.verdict == verdict);
        let mean = Verdict::of(change, chance(change / noise) < ALARM);
        let verdict = match () {
            () if rows.is_empty() => Verdict::Unknown,
            () if mean == Verdict::Slower || is(Verdict::Slower) => Verdict::Slower,
            () if mean == Verdict::Faster || is(Verdict::Faster) => Verdict::Faster,
            () => Verdict::Equal,
        };
        let missing = all - 2 * rows.len();
        let names = [before.name.clone(), after.name.clone()];
        Comparison { rows, verdict, change, noise, missing, names }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// What has changed, in a sentence.
    pub(crate) fn words(&self) -> String {
        let [before, after] = &self.names;
        let all = self.rows.len();
        let mean = percent(self.change);
        let noise = percent(1.96 * self.noise);
        let by_mean = format!(
            "on average {:.1} % {}, noise {noise:.1} %",
            mean.abs(),
            match mean {
                m if m < 0.0 => "faster",
                _ => "slower",
            }
        );
        let worst = |verdict| {
            let rows = self.rows.iter().filter(|row| row.verdict == verdict);
            rows.max_by(|a, b| a.change.abs().total_cmp(&b.change.abs()))
        };
        let most = |verdict: Verdict| match worst(verdict) {
            Some(row) => format!(
                "in {} of {all} rows; most in {} ({} instead of {} {}, {:+.1} %)",
                self.count(verdict),
                row.subject,
                figure(&row.after),
                figure(&row.before),
                row.subject.bench.unit(),
                row.change_percent()
            ),
            None => format!("over all {all} rows together, in none alone"),
        };
        match self.verdict {
            Verdict::Slower => {
                format!("{after} is slower than {before} {}; {by_mean}", most(Verdict::Slower))
            }
            Verdict::Faster => {
                format!("{after} is faster than {before} {}; {by_mean}", most(Verdict::Faster))
            }
            Verdict::Equal => {
                format!("{after} is as fast as {before} within noise in {all} rows; {by_mean}")
            }
            Verdict::Unknown => format!("{before} and {after} have no row in common"),
        }
    }

    fn shown(&self) -> VerdictRow {
        VerdictRow {
            verdict: self.verdict.name().to_owned(),
            slower: self.count(Verdict::Slower),
            faster: self.count(Verdict::Faster),
            equal: self.count(Verdict::Equal),
            missing: self.missing,
            slower_percent: hundredth(percent(self.change)),
            noise_percent: hundredth(percent(1.96 * self.noise)),
            words: self.words(),
        }
    }

    /// What a reader should know before the verdict is trusted.
    fn doubts(&self, before: &Results, after: &Results) -> Vec<String> {
        let mut doubts = Vec::new();
        for fact in ["cpu", "cores", "kernel", "nic", "admission", "build"] {
            let of = |results: &Results| {
                results.machines().next().and_then(|machine| machine.get(fact).cloned())
            };
            let [first, second] = [of(before), of(after)];
            if first != second {
                let shown = |fact: Option<serde_json::Value>| {
                    fact.map_or_else(|| "nothing".to_owned(), |fact| fact.to_string())
                };
                doubts.push(format!("{fact} differs: {} and {}", shown(first), shown(second)));
            }
        }
        let wrong = |results: &Results| results.measured().iter().map(|one| one.wrong).sum::<u64>();
        for results in [before, after] {
            if wrong(results) > 0 {
                doubts.push(format!("{} has {} wrong answers", results.name, wrong(results)));
            }
        }
        if self.missing > 0 {
            doubts.push(format!("{} rows are in one file only", self.missing));
        }
        doubts
    }
}

fn by_subject(measured: Vec<Measured>) -> BTreeMap<Subject, Vec<Measured>> {
    let mut all: BTreeMap<Subject, Vec<Measured>> = BTreeMap::new();
    for one in measured {
        all.entry(one.subject.clone()).or_default().push(one);
    }
    all
}

/// Says of each row whether it differs. The more rows are looked at, the more each has to differ:
/// the most certain first, each against the number of those that are left.
fn judge(rows: &mut [Changed]) {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let certainty = |row: &Changed| row.change.abs() / row.error;
    order.sort_by(|a, b| certainty(&rows[*b]).total_cmp(&certainty(&rows[*a])));
    for (before, at) in order.iter().enumerate() {
        let left = (rows.len() - before) as f64;
        let row = &mut rows[*at];
        if chance(row.change / row.error) >= ALARM / left {
            break;
        }
        row.verdict = Verdict::of(row.change, true);
    }
}

/// The chance that noise alone is as many standard errors away from 0, in either direction.
fn chance(errors: f64) -> f64 {
    let x = errors.abs() / std::f64::consts::SQRT_2;
    // Abramowitz and Stegun, 7.1.26, to 1.5e-7: two tails of the normal distribution.
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    poly.iter().fold(0.0, |sum, factor| (sum + factor) * t) * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::rows;
    use super::*;
    use crate::report::Fields;

    /// The runs of a record, each from its machine row on.
    fn runs(name: &str, text: &str) -> Vec<Results> {
        let mut runs: Vec<Vec<Fields>> = Vec::new();
        for row in rows(text.as_bytes()).unwrap() {
            if row.kind() == "machine" {
                runs.push(Vec::new());
            }
            runs.last_mut().unwrap().push(row);
        }
        runs.into_iter().map(|rows| Results { name: name.to_owned(), rows }).collect()
    }

    fn recorded() -> [Vec<Results>; 3] {
        let base = runs("base", include_str!("../../records/compare/base.jsonl"));
        let equal = runs("equal", include_str!("../../records/compare/equal.jsonl"));
        let slower = runs("slower", include_str!("../../records/compare/slower.jsonl"));
        [base, equal, slower]
    }

    fn verdicts(before: &[Results], after: &[Results]) -> Vec<Verdict> {
        before.iter().zip(after).map(|(a, b)| Comparison::of(a, b).verdict).collect()
    }

    fn count(verdicts: &[Verdict], verdict: Verdict) -> usize {
        verdicts.iter().filter(|one| **one == verdict).count()
    }

    /// Goal: what users rely on. Method: 20 recorded pairs of runs of one build, and 20 in which
    /// the second was made 5 % slower on purpose (`ci/compare`).
    #[test]
    fn slower_runs_are_found_and_equal_ones_called_equal() {
        let [base, equal, slower] = recorded();
        assert_eq!([base.len(), equal.len(), slower.len()], [20; 3]);
        let found = verdicts(&base, &slower);
        assert!(count(&found, Verdict::Slower) >= 19, "{found:?}");
        let found = verdicts(&slower, &base);
        assert!(count(&found, Verdict::Faster) >= 19, "{found:?}");
        let found = verdicts(&base, &equal);
        assert!(count(&found, Verdict::Equal) >= 19, "{found:?}");
    }

    fn one(rounds: &[f64], floor: f64, runs: usize) -> Results {
        let rounds: Vec<String> = rounds.iter().map(f64::to_string).collect();
        let floors = vec![floor.to_string(); rounds.len()];
        let row = format!(
            "{{\"row\":\"bandwidth\",\"van\":\"tcp\",\"op\":\"pull\",\"keys\":1,\"bytes\":8,\
             \"window\":4,\"gb_per_s\":{0},\"floor_gb_per_s\":{floor},\"rounds\":[{1}],\
             \"floor_rounds\":[{2}]}}\n",
            rounds[0],
            rounds.join(","),
            floors.join(",")
        );
        Results { name: "x".to_owned(), rows: rows(row.repeat(runs).as_bytes()).unwrap() }
    }

    #[test]
    fn more_runs_tell_smaller_changes() {
        let [before, after] = [1, 20].map(|runs| {
            let fast = one(&[5.0, 5.01, 4.99, 5.0, 5.0, 5.02], 5.0, runs);
            let slow = one(&[4.85, 4.86, 4.84, 4.85, 4.85, 4.87], 5.0, runs);
            Comparison::of(&fast, &slow)
        });
        assert_eq!(before.verdict, Verdict::Equal, "3 % of one run and one row may be noise");
        assert_eq!(after.verdict, Verdict::Slower);
        assert!((after.rows[0].change_percent() - 3.1).abs() < 0.1);
        assert!(after.words().contains("bandwidth of pull over tcp, 8 B, 4 in flight"));
        // A slower machine is not a slower van.
        let slow = one(&[2.5, 2.5, 2.5, 2.5, 2.5, 2.5], 2.5, 20);
        let fast = one(&[5.0, 5.0, 5.0, 5.0, 5.0, 5.0], 5.0, 20);
        assert_eq!(Comparison::of(&fast, &slow).verdict, Verdict::Equal);
    }

    #[test]
    fn odd_rows_are_no_trouble() {
        let good = one(&[5.0; 6], 5.0, 1);
        for odd in [one(&[0.0; 6], 5.0, 1), one(&[5.0], 0.0, 1), one(&[5.0, 1e300], 1e-300, 3)] {
            for (a, b) in [(&good, &odd), (&odd, &good), (&odd, &odd)] {
                let words = Comparison::of(a, b).words();
                assert!(!words.contains("NaN"), "{words}");
            }
        }
        let nothing = Comparison::of(&good, &Results::default());
        assert_eq!((nothing.verdict, nothing.missing), (Verdict::Unknown, 1));
    }

    #[test]
    fn chances_are_those_of_the_normal_distribution() {
        for (errors, expected) in [(0.0, 1.0), (1.0, 0.3173), (1.96, 0.05), (-3.0, 0.0027)] {
            assert!((chance(errors) - expected).abs() < 1e-4, "{errors}: {}", chance(errors));
        }
    }
}
