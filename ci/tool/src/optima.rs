//! `optima`: the arithmetic of `ci/suites/optima`, by rows and models of trainings.
//!
//! * `lambdas TEXT`: 0.1, 0.01 and 0.001 of the least lambda at which all weights are 0, which is
//!   half the largest sum of signed values.
//! * `row SET LAMBDA OPTIMUM NNZ ROWS MODEL`: the row of a training. An empty optimum is its last
//!   objective; an empty number of weights is unknown.
//! * `judge ROWS`: the last row as a line of the table. Fails when it misses the optimum, or when
//!   the number of weights that are not 0 is off by more than 2 % (by 1 where 2 % is less).
//! * `weights MODEL`: a model of LIBLINEAR as one of ours.
//! * `liblinear SET LAMBDA OPTIMUM E SECONDS MODEL PREDICTED`: the row of one.
//! * `beside OURS THEIRS`: the last row of ours beside LIBLINEAR's of the same set. Fails where
//!   ours is at 1e-4 or 1e-6 later and LIBLINEAR takes 0.3 s or more.
//! * `mean OURS THEIRS`: the geometric mean of ours / LIBLINEAR's, where it takes so long.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{files, rows};

const GAP_MAX: f64 = 1e-6;
/// What is smaller is no weight.
const WEIGHT_MIN: f64 = 1e-9;
/// LIBLINEAR's time below which its clock says little.
const SECONDS_MIN: f64 = 0.3;

/// Where columns equal each other or depend on each other, many optima have the same F: their
/// numbers of weights run from the rank of the columns that may have one to all of these columns.
const RANGES: [(&str, f64, [f64; 2]); 4] = [
    ("a9a", 1.0, [92.0, 99.0]),
    ("agaricus", 0.1, [22.0, 26.0]),
    ("agaricus", 1.0, [22.0, 24.0]),
    ("criteo_tiny", 0.1, [1500.0, 1778.0]),
];

/// Runs the command.
///
/// # Errors
/// Says what is missed, or which row or number is missing.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let read = |file: &str| files::read(Path::new("."), file);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["lambdas", text] => lambdas(&read(text)?).iter().for_each(|lambda| println!("{lambda}")),
        ["row", set, lambda, optimum, nnz, progress, model] => {
            let known = Known { set, lambda: number(lambda)?, optimum, nnz };
            println!("{}", row(&known, &rows::read(progress)?, weights(&read(model)?))?);
        }
        ["judge", file] => {
            let rows = rows::read(file)?;
            return judge(rows.last().ok_or("no row to judge")?);
        }
        ["weights", model] => print!("{}", ours(&read(model)?)),
        ["liblinear", set, lambda, optimum, tolerance, seconds, model, predicted] => {
            let known = Known { set, lambda: number(lambda)?, optimum, nnz: "" };
            let took = [number(tolerance)?, number(seconds)?];
            println!("{}", liblinear(&known, took, &read(model)?, &rows::read(predicted)?)?);
        }
        ["beside", ours, theirs] => {
            let rows = rows::read(ours)?;
            return beside(rows.last().ok_or("no row of ours")?, &rows::read(theirs)?);
        }
        ["mean", ours, theirs] => print!("{}", mean(&rows::read(ours)?, &rows::read(theirs)?)),
        _ => return Err("usage: see ci/tool/src/optima.rs".to_owned()),
    }
    Ok(())
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

/// A number as JSON has it, without a point if it needs none.
fn plain(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// A number with so many digits behind the first.
fn rounded(number: f64, digits: usize) -> f64 {
    format!("{number:.digits$e}").parse().unwrap_or(number)
}

/// A number with so many decimals.
fn fixed(number: f64, decimals: usize) -> f64 {
    format!("{number:.decimals$}").parse().unwrap_or(number)
}

/// The lambdas for LIBSVM text.
fn lambdas(text: &str) -> [f64; 3] {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let label: f64 = words.next().and_then(|label| label.parse().ok()).unwrap_or(0.0);
        for (key, value) in words.filter_map(|word| word.split_once(':')) {
            let value: f64 = value.parse().unwrap_or(0.0);
            *sums.entry(key).or_default() += if label > 0.0 { value } else { -value };
        }
    }
    let most = sums.values().fold(0.0, |most: f64, sum| most.max(sum.abs()));
    [0.1, 0.01, 0.001].map(|ratio| rounded(ratio * most / 2.0, 5))
}

/// What is known of a training before it.
struct Known<'a> {
    set: &'a str,
    lambda: f64,
    /// Empty where it is not known.
    optimum: &'a str,
    /// How many weights are not 0 at the optimum; empty where that is not known.
    nnz: &'a str,
}

/// How many weights of a model of ours are not 0.
fn weights(model: &str) -> usize {
    let lines = model.lines().filter(|line| !line.starts_with('#'));
    let weights = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    weights.filter(|weight| weight.abs() > WEIGHT_MIN).count()
}

fn row(known: &Known<'_>, progress: &[Value], nnz: usize) -> Result<Value, String> {
    let result = rows::of(progress, "result").last();
    let result = result.ok_or("no row `result`: the training did not end")?;
    let of = |name| rows::number(result, name).ok_or(format!("no {name} in row `result`"));
    let objective = of("objective")?;
    let optimum = if known.optimum.is_empty() { objective } else { number(known.optimum)? };
    let expected = known.nnz.parse::<u64>().map_or(Value::Null, Value::from);
    let mut row = Map::new();
    let mut add = |name: &str, value: Value| row.insert(name.to_owned(), value);
    add("set", known.set.into());
    add("lambda", plain(known.lambda));
    add("objective", objective.into());
    add("bound", rounded(of("bound").unwrap_or(0.0), 2).into());
    let gap = |row: &Value| rows::number(row, "objective").map(|at| at / optimum - 1.0);
    let last = rows::of(progress, "progress").last().and_then(gap);
    add("gap", rounded(last.unwrap_or(objective / optimum - 1.0), 2).into());
    add("nnz", nnz.into());
    add("nnz_optimum", expected);
    for near in [2, 4, 6] {
        let is_near = |row: &&Value| gap(row).is_some_and(|gap| gap <= 10_f64.powi(-near));
        let first = rows::of(progress, "progress").find(is_near);
        let passes = first.and_then(|row| rows::number(row, "pass")).map(|pass| pass as u64 + 1);
        let seconds = first.and_then(|row| rows::number(row, "seconds"));
        add(&format!("passes_1e-{near}"), json!(passes));
        add(&format!("seconds_1e-{near}"), json!(seconds.map(|seconds| fixed(seconds, 4))));
    }
    add("passes", json!(of("passes")? as u64));
    add("seconds", fixed(of("seconds")?, 4).into());
    add("load_seconds", fixed(of("load_seconds")?, 3).into());
    add("peak_rss_mib", fixed(of("peak_rss_mib")?, 1).into());
    Ok(Value::Object(row))
}

fn judge(row: &Value) -> Result<(), String> {
    let of = |name: &str| rows::number(row, name);
    let text = |name: &str| of(name).map(|number| number.to_string()).unwrap_or_default();
    let set = row["set"].as_str().unwrap_or_default();
    let lambda = of("lambda").unwrap_or_default();
    let gap = of("gap").unwrap_or(f64::NAN);
    let near = [2, 4, 6].map(|near| {
        let [passes, seconds] = ["passes", "seconds"].map(|of| text(&format!("{of}_1e-{near}")));
        format!("{passes:>3} {seconds:>10}")
    });
    println!(
        "{set:<12} {lambda:>6} | {}   | {gap:>9.1e} {:>6} {:>6} | {:>8.0}",
        near.join("   "),
        text("nnz"),
        text("nnz_optimum"),
        of("peak_rss_mib").unwrap_or_default(),
    );
    let mut faults = Vec::new();
    if gap.is_nan() || gap > GAP_MAX {
        faults.push(format!("ci/suites/optima: {set} lambda {lambda} misses the optimum"));
    }
    if let (Some(nnz), Some(expected)) = (of("nnz"), of("nnz_optimum"))
        && (nnz - expected).abs() > (expected * 0.02).max(1.0)
    {
        let range = RANGES.iter().find(|(of, at, _)| *of == set && *at == lambda);
        if range.is_some_and(|(_, _, [least, most])| (*least..=*most).contains(&nnz)) {
            println!("    many optima: ours has {nnz} weights, the table's {expected}");
        } else {
            faults.push(format!(
                "ci/suites/optima: {set} lambda {lambda} has {nnz} weights, not {expected}"
            ));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// Weights of LIBLINEAR follow the line `w`, by key from 1, for the class that `label` names first.
fn ours(model: &str) -> String {
    let label = model.lines().find_map(|line| line.strip_prefix("label "));
    let first = label.and_then(|label| label.split_whitespace().next()?.parse::<f64>().ok());
    let sign = if first.is_none_or(|first| first > 0.0) { 1.0 } else { -1.0 };
    let weights = model.lines().skip_while(|line| *line != "w").skip(1).enumerate();
    let weights = weights.filter_map(|(at, line)| Some((at + 1, line.trim().parse::<f64>().ok()?)));
    let weights = weights.filter(|(_, weight)| *weight != 0.0);
    weights.map(|(key, weight)| format!("{key}\t{}\n", sign * weight)).collect()
}

fn liblinear(
    known: &Known<'_>,
    [tolerance, seconds]: [f64; 2],
    model: &str,
    predicted: &[Value],
) -> Result<Value, String> {
    let weights = model.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
    let weights: Vec<f64> = weights.collect();
    let last = predicted.last();
    let loss =
        last.and_then(|row| Some(rows::number(row, "rows")? * rows::number(row, "logloss")?));
    let loss = loss.ok_or("the prediction has no rows and logloss")?;
    let norm: f64 = weights.iter().map(|weight| weight.abs()).sum();
    let gap = (loss + known.lambda * norm) / number(known.optimum)? - 1.0;
    Ok(json!({
        "set": known.set, "lambda": plain(known.lambda), "e": tolerance, "seconds": fixed(seconds, 3),
        "gap": rounded(gap, 3), "nnz": weights.len(),
    }))
}

/// LIBLINEAR's least time to a gap, for the set and lambda of a row of ours.
fn best(row: &Value, theirs: &[Value], gap: f64) -> Option<f64> {
    let same = theirs.iter().filter(|other| ["set", "lambda"].iter().all(|k| row[*k] == other[*k]));
    let near = same.filter(|other| rows::number(other, "gap").is_some_and(|at| at <= gap));
    near.filter_map(|other| rows::number(other, "seconds")).min_by(f64::total_cmp)
}

fn beside(row: &Value, theirs: &[Value]) -> Result<(), String> {
    let mut faults = Vec::new();
    for (name, gap) in [("1e-4", 1e-4), ("1e-6", 1e-6)] {
        let own = rows::number(row, &format!("seconds_{name}"));
        let best = best(row, theirs, gap);
        let text = |seconds: Option<f64>| seconds.map_or("null".to_owned(), |s| s.to_string());
        println!("    to {name}: {} s, LIBLINEAR {} s", text(own), text(best));
        if let (Some(own), Some(best)) = (own, best)
            && best >= SECONDS_MIN
            && own > best
        {
            let [set, lambda] = [&row["set"], &row["lambda"]];
            faults.push(format!("ci/suites/optima: LIBLINEAR is sooner on {set} lambda {lambda}"));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn mean(ours: &[Value], theirs: &[Value]) -> String {
    let mut shares = Vec::new();
    for row in ours {
        for (name, gap) in [("1e-4", 1e-4), ("1e-6", 1e-6)] {
            let own = rows::number(row, &format!("seconds_{name}"));
            let best = best(row, theirs, gap).filter(|best| *best >= SECONDS_MIN);
            shares.extend(own.zip(best).map(|(own, best)| own / best));
        }
    }
    if shares.is_empty() {
        return String::new();
    }
    let logarithms: f64 = shares.iter().map(|share: &f64| share.ln()).sum();
    let mean = (logarithms / shares.len() as f64).exp();
    format!("ours / LIBLINEAR, geometric mean of {}: {mean:.2}\n", shares.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS: &str = "\
        {\"row\":\"progress\",\"pass\":0,\"objective\":110,\"seconds\":0.1}\n\
        {\"row\":\"progress\",\"pass\":1,\"objective\":100.5,\"seconds\":0.25}\n\
        {\"row\":\"progress\",\"pass\":2,\"objective\":100.00001,\"seconds\":0.5}\n\
        {\"row\":\"result\",\"objective\":100.00001,\"bound\":1.2345e-7,\"passes\":3,\
        \"seconds\":0.51239,\"load_seconds\":1.23456,\"peak_rss_mib\":12.34}\n";

    fn row_of(set: &str, lambda: f64, optimum: &str, nnz: &str, own: usize) -> Value {
        let known = Known { set, lambda, optimum, nnz };
        row(&known, &rows::parse(PROGRESS, "x").unwrap(), own).unwrap()
    }

    #[test]
    fn lambdas_come_from_the_largest_sum_of_signed_values() {
        let text = "+1 1:2 3:1\n-1 1:1 2:30\n1 2:6\n";
        assert_eq!(lambdas(text), [1.2, 0.12, 0.012]);
    }

    #[test]
    fn a_row_says_when_the_training_came_near() {
        let row = row_of("a9a", 1.0, "100", "7", 7);
        assert_eq!(row["passes_1e-2"], 2);
        assert_eq!(row["seconds_1e-4"], 0.5);
        assert_eq!(row["passes_1e-6"], 3);
        assert_eq!((&row["gap"], &row["bound"]), (&json!(1e-7), &json!(1.23e-7)));
        assert_eq!(row["load_seconds"], 1.235);
        let unknown = row_of("a9a", 1.0, "", "", 7);
        assert_eq!((&unknown["gap"], &unknown["nnz_optimum"]), (&json!(0.0), &Value::Null));
        assert_eq!(row_of("a9a", 1.0, "99", "", 7)["passes_1e-4"], Value::Null);
    }

    #[test]
    fn a_missed_optimum_and_a_wrong_number_of_weights_fail() {
        assert_eq!(judge(&row_of("imdb", 1.0, "100", "200", 204)), Ok(()));
        assert!(judge(&row_of("imdb", 1.0, "100", "200", 205)).unwrap_err().contains("not 200"));
        assert_eq!(judge(&row_of("imdb", 1.0, "100", "10", 11)), Ok(()));
        assert!(judge(&row_of("imdb", 1.0, "99", "", 1)).unwrap_err().contains("misses"));
        assert_eq!(judge(&row_of("a9a", 1.0, "100", "92", 99)), Ok(()));
        assert!(judge(&row_of("a9a", 1.0, "100", "92", 100)).is_err());
    }

    #[test]
    fn a_model_of_liblinear_is_read_with_its_sign() {
        let model = "solver_type L1R_LR\nlabel -1 1\nw\n0.5\n0\n-2\n";
        assert_eq!(ours(model), "1\t-0.5\n3\t2\n");
        assert_eq!(weights("# of ours\n1\t-0.5\n2\t1e-10\n3\t2\n"), 2);
        let known = Known { set: "s", lambda: 2.0, optimum: "10", nnz: "" };
        let predicted = rows::parse("{\"rows\":10,\"logloss\":0.6}", "x").unwrap();
        let row = liblinear(&known, [0.1, 1.23456], "1\t-0.5\n3\t2\n", &predicted).unwrap();
        assert_eq!(
            (&row["gap"], &row["nnz"], &row["seconds"]),
            (&json!(0.1), &json!(2), &json!(1.235))
        );
    }

    #[test]
    fn liblinear_is_beaten_where_its_time_says_something() {
        let ours = row_of("s", 1.0, "100", "", 1);
        let theirs =
            |seconds: f64| vec![json!({"set": "s", "lambda": 1, "gap": 1e-7, "seconds": seconds})];
        assert_eq!(beside(&ours, &theirs(0.5)), Ok(()));
        assert_eq!(beside(&ours, &theirs(0.29)), Ok(()));
        assert!(beside(&ours, &theirs(0.4)).unwrap_err().contains("sooner on \"s\""));
        let said = mean(&[ours], &theirs(1.0));
        assert_eq!(said, "ours / LIBLINEAR, geometric mean of 2: 0.50\n");
    }
}
