//! Rows of `bench load` as curves: latency against the rate of an open loop.

use std::collections::BTreeMap;

use super::Results;
use super::chart::{Chart, Line, Point, plain};
use crate::cli::values::size;
use crate::report::{Fields, figure};

/// The curves of a chart, with the fields they are from.
const QUANTILES: [(&str, &str); 3] = [("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us")];

/// Most names on the axis of rates.
const TICKS_MAX: f64 = 6.0;

/// A chart for each kind of request.
pub(super) fn curves(files: &[Results]) -> String {
    let mut by_title: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    for file in files {
        let mut of_file: BTreeMap<String, BTreeMap<&str, Vec<&Fields>>> = BTreeMap::new();
        let is_open = |row: &&Fields| row.kind() == "load" && row.number("asked_per_s").is_some();
        for row in file.rows.iter().filter(is_open) {
            let vans = of_file.entry(title(row)).or_default();
            vans.entry(row.text("van")).or_default().push(row);
        }
        for (title, vans) in of_file {
            let lines = by_title.entry(title).or_default();
            for (van, rows) in vans {
                for (quantile, field) in QUANTILES {
                    let name = match files.len() {
                        1 => format!("{van}, {quantile}"),
                        _ => format!("{van}, {quantile}, {}", file.name),
                    };
                    let points = points(&rows, quantile, field);
                    lines.push(Line { name, colour: lines.len(), is_floor: false, points });
                }
            }
        }
    }
    super::chart::charts(by_title.into_iter().map(|(title, lines)| chart(title, lines)))
}

/// What a chart is about: all that is alike in its rows but the van.
fn title(row: &Fields) -> String {
    let count = |name: &str| row.number(name).unwrap_or(1.0);
    let mut title = format!("{}, {}", row.text("op"), size(&(count("bytes") as usize)));
    for (name, what) in [("keys", "keys"), ("workers", "workers"), ("servers", "servers")] {
        if count(name) > 1.0 {
            title += &format!(", {} {what}", count(name));
        }
    }
    for name in ["skew", "arrivals"] {
        if !row.text(name).is_empty() {
            title += &format!(", {}", row.text(name));
        }
    }
    title
}

/// One curve, in order of the rates that were reached.
fn points(rows: &[&Fields], quantile: &str, field: &str) -> Vec<Point> {
    let point = |row: &&Fields| {
        let x = row.number("per_s").filter(|rate| *rate >= 0.0)?;
        let y = row.number(field)?;
        let note = format!("{} a second: {quantile} {} µs", figure(&x), figure(&y));
        Some(Point { x, y, note })
    };
    let mut points: Vec<Point> = rows.iter().filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

fn chart(title: String, mut lines: Vec<Line>) -> Chart {
    lines.retain(|line| !line.points.is_empty());
    let rates = lines.iter().flat_map(|line| &line.points).map(|point| point.x);
    let most = rates.fold(0.0, f64::max);
    let x_ticks = ticks(most).into_iter().map(|rate| (rate, plain(rate))).collect();
    let y_name = "µs".to_owned();
    Chart { title, x_name: "requests a second", y_name, x_ticks, lines, marks: true }
}

/// Round numbers from 0 to about `most`.
fn ticks(most: f64) -> Vec<f64> {
    if !(most > 0.0 && most.is_finite()) {
        return vec![0.0];
    }
    let power = 10_f64.powf((most / TICKS_MAX).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| most / step <= TICKS_MAX).unwrap_or(most);
    (0..=(most / step) as u32).map(|at| f64::from(at) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (most, expected) in [
            (285_000.0, &[0.0, 50e3, 100e3, 150e3, 200e3, 250e3][..]),
            (1000.0, &[0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]),
            (0.0, &[0.0]),
            (f64::INFINITY, &[0.0]),
        ] {
            assert_eq!(ticks(most), expected, "{most}");
        }
    }
}
