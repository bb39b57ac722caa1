//! Rows of `caravan bench consistency`, and the figures of the papers beside them.

use clap::ValueEnum;
use serde::Serialize;

use crate::measure::figures::{four, three};
use crate::plot;
use crate::plot::axis::Span;
use crate::plot::diagram::{Diagram, Dimension, Line, Mark};
use crate::report::row;

/// What a set of rows varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SetUp {
    /// How many keys an iteration touches: FlexPS, figure 9
    Sparsity,
    /// Workers of a linear regression of 960 features and 5000 examples: Parameter Database, 6.1
    Workers,
    /// Features of a linear regression of 500 examples: Parameter Database, 6.2
    Features,
}

impl SetUp {
    pub(super) fn name(self) -> &'static str {
        match self {
            SetUp::Sparsity => "sparsity",
            SetUp::Workers => "workers",
            SetUp::Features => "features",
        }
    }
}

row! {
    /// One run of all workers.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct Consistency is "consistency" {
        /// Whether time was simulated: sim or real.
        van: &'static str => "van",
        /// What is varied: sparsity, workers or features.
        set_up: &'static str => "varied",
        model: String; "                  model" |row| format!(" {:>22}", row.model),
        workers: usize => "workers",
        servers: usize,
        iterations: u64,
        /// Keys of the table.
        keys: u64 => "keys",
        /// Share of them that an iteration touches.
        sparsity: f64 => "sparsity" as exponent,
        /// Share of slow iterations, and how much longer they take at most, in ms.
        straggle: [f64; 2],
        /// How many times as long the last worker computes.
        slowest: f64,
        /// Until the last worker has ended.
        seconds: f64 => "seconds" as four,
        /// The same if messages took no time.
        oracle_seconds: f64 => "oracle" as four,
        over_oracle_percent: f64 => "over %" as one,
        /// How much less than under BSP.
        under_bsp_percent: f64 => "< BSP %" as one,
        /// What the paper reports of that.
        paper_percent: Option<f64> => "paper" as known,
        /// Probability that two workers' iterations touch a common key, and the paper's.
        conflict: Option<f64> => "conflict" as known,
        paper_conflict: Option<f64> => "paper" as known,
        /// Share of the time that workers did not compute, on average.
        idle: f64 => "idle" as three,
        worker_bytes_sent: u64,
        /// Reads of versions that the model forbids, and results that are not the serial run's.
        wrong: u64 => "wrong",
    }
    title |row| format!(
        "consistency: until the last of {} iterations, in {} seconds; oracle = without messages",
        row.iterations,
        if row.van == "sim" { "simulated" } else { "real" }
    );
    counts wrong;
}

fn exponent(value: &f64) -> String {
    format!("{value:.0e}")
}

fn one(value: &f64) -> String {
    format!("{value:.1}")
}

fn known(value: &Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{}", (value * 1e6).round() / 1e6))
}

/// Probability that two draws of `drawn` of `all` keys have one in common: 1 - C(n - m, m) / C(n,
/// m).
pub(super) fn conflict(all: u64, drawn: u64) -> f64 {
    if 2 * drawn > all {
        return 1.0;
    }
    let none = |of: u64| ((all - drawn - of) as f64 / (all - of) as f64).ln();
    -(0..drawn).map(none).sum::<f64>().exp_m1()
}

/// The same in Table 3 of FlexPS's report, as it is printed there: two of its four numbers are
/// wrong.
pub(super) fn paper_conflict(all: u64, drawn: u64) -> Option<f64> {
    let of_table = [(10, 1e-5), (100, 1e-4), (1000, 9.5e-2), (10_000, 0.9955)];
    let printed = of_table.into_iter().find(|(nonzeros, _)| *nonzeros == drawn);
    printed.filter(|_| all == 10_000_000).map(|(_, conflict)| conflict)
}

/// How much less time data-centric synchronization takes than BSP in section 6 of the parameter
/// database's paper, in percent: the ends of the curves of figures 2a and 2c as its text has them.
pub(super) fn paper_percent(set_up: &str, workers: usize, place: Option<End>) -> Option<f64> {
    match (set_up, workers, place) {
        ("workers", 6, _) => Some(20.0),
        ("workers", 40, _) => Some(55.0),
        ("features", 16, Some(End::First)) => Some(75.0),
        ("features", 16, Some(End::Last)) => Some(25.0),
        ("features", 40, Some(End::Last)) => Some(50.0),
        _ => None,
    }
}

/// An end of a list of numbers of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    First,
    Last,
}

/// Seconds, and the share saved against BSP, by what each set-up varies.
pub(super) fn svg(rows: &[Consistency]) -> String {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        let name = line_name(row);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut diagrams = Vec::new();
    for set_up in ["sparsity", "workers", "features"] {
        let own: Vec<&Consistency> = rows.iter().filter(|row| row.set_up == set_up).collect();
        if own.is_empty() {
            continue;
        }
        diagrams.push(diagram(set_up, "seconds", &names, &own, |row| row.seconds));
        diagrams.push(diagram(set_up, "% under BSP", &names, &own, |row| row.under_bsp_percent));
    }
    plot::svg("consistency models among stragglers", &diagrams)
}

fn diagram(
    set_up: &'static str,
    y: &'static str,
    names: &[String],
    rows: &[&Consistency],
    y_of: fn(&Consistency) -> f64,
) -> Diagram {
    let line = |(colour, name): (usize, &String)| {
        let own = rows.iter().filter(|row| line_name(row) == *name);
        let marks = own.map(|row| Mark::new(x_of(row), y_of(row))).collect();
        Line { name: name.clone(), colour, class: set_up, is_dashed: false, marks }
    };
    let lines = names.iter().enumerate().map(line).filter(|line| !line.marks.is_empty());
    let span = if set_up == "workers" { Span::FromZero } else { Span::Logarithmic };
    let (x, y) = (Dimension::new(set_up, span), Dimension::new(y, Span::FromZero));
    Diagram { x, y, lines: lines.collect(), has_marks: false }
}

fn line_name(row: &Consistency) -> String {
    match row.set_up {
        "features" => format!("{}, {} workers", row.model, row.workers),
        _ => row.model.clone(),
    }
}

fn x_of(row: &Consistency) -> f64 {
    match row.set_up {
        "sparsity" => row.sparsity,
        "workers" => row.workers as f64,
        _ => row.keys as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_those_of_the_formula() {
        for (drawn, exact) in [(10, 1.0e-5), (100, 9.995e-4), (1000, 0.09517), (10_000, 0.999955)] {
            let conflict = conflict(10_000_000, drawn);
            assert!((conflict / exact - 1.0).abs() < 1e-3, "{drawn}: {conflict}");
            assert!(paper_conflict(10_000_000, drawn).is_some());
        }
        assert_eq!(conflict(10, 6), 1.0);
        assert_eq!(paper_conflict(1000, 10), None);
    }
}
