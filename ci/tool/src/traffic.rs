//! `traffic NONE ALL`: what filters save, by the rows of a training without filters and of one with
//! all of them.
//!
//! Prints the bytes by filter, as `kv/docs/filters.md` has them. Fails when all filters together
//! leave more than a tenth of the bytes, from workers or from servers, or change the objective by
//! over 1e-5 of it.

use serde_json::Value;

use crate::rows;

const RATIO_MIN: f64 = 10.0;
const OFF_MAX: f64 = 1e-5;

/// Runs the command.
///
/// # Errors
/// Says what filters do not save, or which row is missing.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let [none, all] = arguments else { return Err("usage: traffic NONE ALL".to_owned()) };
    let saved = saved(&Training::of(&rows::read(none)?)?, &Training::of(&rows::read(all)?)?);
    print!("{}", saved.0);
    if saved.1 {
        return Ok(());
    }
    Err(format!(
        "FAILED ci/suites/traffic: less than {RATIO_MIN} times fewer bytes, or another objective"
    ))
}

/// Bytes before and behind a filter, from workers and from servers.
struct Bytes {
    name: String,
    workers: [f64; 2],
    servers: [f64; 2],
}

/// What the rows of a training say.
struct Training {
    objective: f64,
    passes: f64,
    filters: Vec<Bytes>,
    all: Bytes,
}

impl Training {
    fn of(rows: &[Value]) -> Result<Training, String> {
        let result = rows::of(rows, "result").last();
        let result = result.ok_or("no row `result`: the training did not end")?;
        let field = |name| rows::number(result, name).ok_or(format!("no {name} in row `result`"));
        let filters = rows::of(rows, "traffic").map(bytes).collect::<Result<Vec<_>, _>>()?;
        let (mut all, filters): (Vec<_>, Vec<_>) =
            filters.into_iter().partition(|bytes| bytes.name == "all");
        let all = all.pop().ok_or("no row `traffic` of all filters")?;
        Ok(Training { objective: field("objective")?, passes: field("passes")?, filters, all })
    }
}

fn bytes(row: &Value) -> Result<Bytes, String> {
    let field = |name: &str| rows::number(row, name).ok_or(format!("no {name} in row `traffic`"));
    Ok(Bytes {
        name: row["filter"].as_str().unwrap_or_default().to_owned(),
        workers: [field("worker_bytes_in")?, field("worker_bytes_out")?],
        servers: [field("server_bytes_in")?, field("server_bytes_out")?],
    })
}

/// The table, and whether filters save enough.
fn saved(none: &Training, all: &Training) -> (String, bool) {
    let mut table =
        "| filter     | workers MB |         to |   ratio | servers MB |         to |   \
                     ratio |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    all.filters.iter().for_each(|bytes| table += &line(bytes));
    let together = Bytes {
        name: "none / all".to_owned(),
        workers: [none.all.workers[1], all.all.workers[1]],
        servers: [none.all.servers[1], all.all.servers[1]],
    };
    table += &line(&together);
    let off = all.objective / none.objective - 1.0;
    table += &format!(
        "objective {:.8} with none ({} passes), {:.8} with all ({} passes): {off:.1e} apart\n",
        none.objective, none.passes, all.objective, all.passes
    );
    let ratios = [ratio(together.workers), ratio(together.servers)];
    (table, ratios.into_iter().all(|ratio| ratio >= RATIO_MIN) && off.abs() <= OFF_MAX)
}

fn ratio([before, after]: [f64; 2]) -> f64 {
    if after > 0.0 { before / after } else { 0.0 }
}

fn line(bytes: &Bytes) -> String {
    let side = |[before, after]: [f64; 2]| {
        let ratio = ratio([before, after]);
        format!("{:10.3} | {:10.3} | {ratio:7.2}", before / 1e6, after / 1e6)
    };
    format!("| {:<10} | {} | {} |\n", bytes.name, side(bytes.workers), side(bytes.servers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(objective: f64, workers: f64, servers: f64) -> Training {
        let rows = format!(
            "{{\"row\":\"traffic\",\"filter\":\"zero\",\"worker_bytes_in\":2e6,\
             \"worker_bytes_out\":1e6,\"server_bytes_in\":4e6,\"server_bytes_out\":1e6}}\n\
             {{\"row\":\"traffic\",\"filter\":\"all\",\"worker_bytes_in\":2e6,\
             \"worker_bytes_out\":{workers},\"server_bytes_in\":4e6,\"server_bytes_out\":{servers}}}\n\
             {{\"row\":\"result\",\"objective\":{objective},\"passes\":7}}\n"
        );
        Training::of(&rows::parse(&rows, "x").unwrap()).unwrap()
    }

    #[test]
    fn a_tenth_may_be_left_and_the_objective_must_stay() {
        let none = training(0.5, 1e6, 1e6);
        assert!(saved(&none, &training(0.5, 1e5, 1e5)).1);
        assert!(saved(&none, &training(0.500004, 1e5, 1e5)).1);
        assert!(!saved(&none, &training(0.500006, 1e5, 1e5)).1);
        assert!(!saved(&none, &training(0.5, 1.01e5, 1e5)).1);
        assert!(!saved(&none, &training(0.5, 1e5, 1.01e5)).1);
        assert!(!saved(&none, &training(0.5, 0.0, 1e5)).1);
    }

    #[test]
    fn the_table_has_a_line_for_each_filter() {
        let table = saved(&training(0.5, 1e6, 1e6), &training(0.5, 1e5, 1e5)).0;
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines[0],
            "| zero       |      2.000 |      1.000 |    2.00 |      4.000 |      1.000 |    4.00 |"
        );
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_training_that_did_not_end_is_named() {
        let error = Training::of(&[]).err().unwrap();
        assert!(error.contains("did not end"), "{error}");
    }
}
