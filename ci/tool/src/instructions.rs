//! `instructions MEASURED RECORD`: compares counts of instructions with the recorded ones, each a
//! file of rows `{"figure":…,"instructions":…}`, and prints both.
//!
//! Fails when a figure costs over 5 % more than is recorded, one of a table with a consistency
//! model over 25 more than without, one beside parked requests over 5 % more, or a push to a handle
//! over 25 % more than one to `add`: a rate of 0.8 times that of `add`. A push of many with a copy
//! costs at most 2.5 times the one without, of all nodes together. Under BSP a push is kept
//! until its iteration ends, so only a pull is held to the limit.

use serde_json::Value;

use crate::rows;

const PERCENT_MAX: f64 = 5.0;
const FOR_MODEL_MAX: f64 = 25.0;
const FOR_HANDLE_PERCENT_MAX: f64 = 25.0;
const FOR_COPY_PERCENT_MAX: f64 = 150.0;

/// Runs the command.
///
/// # Errors
/// Names the figures that cost too much.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let [measured, record] = arguments else {
        return Err("usage: instructions MEASURED RECORD".to_owned());
    };
    let figures = |file: &str| figures(&rows::read(file)?, file);
    let (table, faults) = compare(&figures(measured)?, &figures(record)?);
    print!("{table}");
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!(
        "FAILED ci/suites/instructions: {} (by more than {PERCENT_MAX} %, {FOR_MODEL_MAX} for a model, \
         {FOR_HANDLE_PERCENT_MAX} % for a handle, {FOR_COPY_PERCENT_MAX} % for a copy; if that is meant: ci/suites/instructions --record)",
        faults.join(", ")
    ))
}

/// A figure and its instructions.
type Row = (String, f64);

fn figures(rows: &[Value], file: &str) -> Result<Vec<Row>, String> {
    let parsed = rows.iter().map(|row| {
        let figure = row["figure"].as_str().map(str::to_owned);
        let pair = figure.zip(rows::number(row, "instructions"));
        pair.ok_or_else(|| format!("{file}: not a row of a figure and its instructions: {row}"))
    });
    parsed.collect()
}

fn find(rows: &[Row], figure: &str) -> Option<f64> {
    rows.iter().find(|(name, _)| name == figure).map(|(_, count)| *count)
}

/// The table, and what is too much in it.
fn compare(measured: &[Row], recorded: &[Row]) -> (String, Vec<String>) {
    let mut table =
        format!("{:<18} {:>12} {:>12} {:>8}\n", "figure", "instructions", "recorded", "change");
    let mut faults = Vec::new();
    for (figure, count) in measured {
        let (plain, last) = figure.rsplit_once(' ').unwrap_or((figure, ""));
        let plain_count = find(measured, plain).unwrap_or_default();
        if let Some(room) = room(figure, last, plain_count)
            && *count > plain_count + room
        {
            faults.push(format!("{figure}: {} over {plain}", count - plain_count));
        }
        let Some(before) = find(recorded, figure) else {
            faults.push(format!("{figure}: not recorded"));
            table += &format!("{figure:<18} {count:>12} {:>12} {:>8}  not recorded\n", "-", "-");
            continue;
        };
        let change = 100.0 * (count / before - 1.0);
        let is_worse = change > PERCENT_MAX;
        if is_worse {
            faults.push(format!("{figure}: {count} over {before}"));
        }
        let mark = if is_worse { "  WORSE" } else { "" };
        table += &format!("{figure:<18} {count:>12} {before:>12} {change:>+7.1}%{mark}\n");
    }
    (table, faults)
}

/// How many instructions a figure may have more than the same one without its last word.
fn room(figure: &str, last: &str, plain_count: f64) -> Option<f64> {
    let is_held = match last {
        "asp" | "ssp" => true,
        "bsp" => figure.starts_with("pull"),
        _ => false,
    };
    let is_model = is_held || last == "bsp";
    if is_held {
        Some(FOR_MODEL_MAX)
    } else if last == "copy" && figure.starts_with("push 200") {
        Some(plain_count * FOR_COPY_PERCENT_MAX / 100.0)
    } else if last == "parked" {
        Some(plain_count * PERCENT_MAX / 100.0)
    } else if figure.starts_with("push 200 ") && !is_model && !figure.contains("shm") {
        Some(plain_count * FOR_HANDLE_PERCENT_MAX / 100.0)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(measured: &[(&str, f64)], recorded: &[(&str, f64)]) -> Vec<String> {
        let owned = |rows: &[(&str, f64)]| -> Vec<Row> {
            rows.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        compare(&owned(measured), &owned(recorded)).1
    }

    /// What is measured is recorded just so: only figures beside each other can be too much.
    fn beside(rows: &[(&str, f64)]) -> Vec<String> {
        faults(rows, rows)
    }

    #[test]
    fn a_figure_keeps_to_its_record() {
        let record = [("push 1", 1000.0)];
        assert_eq!(faults(&[("push 1", 1049.0)], &record), Vec::<String>::new());
        assert_eq!(faults(&[("push 1", 1051.0)], &record), ["push 1: 1051 over 1000"]);
        assert_eq!(faults(&[("push 2", 1.0)], &record), ["push 2: not recorded"]);
    }

    #[test]
    fn a_model_parked_requests_and_a_handle_cost_so_much_and_no_more() {
        let add = ("push 200", 400.0);
        let shm = ("push 200 shm", 1000.0);
        for (figure, most) in [("push 200 ssp", 425.0), ("push 200 ftrl", 500.0)] {
            assert_eq!(beside(&[add, (figure, most)]), Vec::<String>::new(), "{figure}");
            assert_eq!(beside(&[add, (figure, most + 1.0)]).len(), 1, "{figure}");
        }
        assert_eq!(beside(&[shm, ("push 200 shm parked", 1050.0)]), Vec::<String>::new());
        assert_eq!(beside(&[shm, ("push 200 shm parked", 1051.0)]).len(), 1);
        assert_eq!(beside(&[shm, ("push 200 shm copy", 2500.0)]), Vec::<String>::new());
        assert_eq!(beside(&[shm, ("push 200 shm copy", 2501.0)]).len(), 1);
        assert_eq!(beside(&[add, ("push 200 bsp", 9999.0)]), Vec::<String>::new());
        assert_eq!(
            beside(&[("pull 200", 1.0), ("pull 200 bsp", 27.0)]),
            ["pull 200 bsp: 26 over pull 200"]
        );
    }

    #[test]
    fn a_row_that_is_none_is_named() {
        let of = |text| figures(&rows::parse(text, "x").unwrap(), "x");
        assert!(of("{\"figure\":\"a\"}").unwrap_err().starts_with("x: not a row"));
        let row = "{\"figure\":\"a b\",\"instructions\":7}";
        assert_eq!(of(row).unwrap(), [("a b".to_owned(), 7.0)]);
    }
}
