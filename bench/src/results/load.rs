//! Rows of `bench load` as curves: latency against the rate of an open loop.

use std::collections::BTreeMap;

use super::Results;
use super::chart::{Chart, charts};
use crate::cli::values::size;
use crate::plot::axis::Span;
use crate::plot::diagram::{Diagram, Dimension, Line, Mark};
use crate::report::{Fields, figure};

/// The curves of a chart, with the fields they are from.
const QUANTILES: [(&str, &str); 3] = [("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us")];

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
                    let marks = marks(&rows, quantile, field);
                    let colour = lines.len();
                    lines.push(Line { name, colour, class: "measured", is_dashed: false, marks });
                }
            }
        }
    }
    charts(by_title.into_iter().map(|(title, lines)| chart(title, lines)))
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
fn marks(rows: &[&Fields], quantile: &str, field: &str) -> Vec<Mark> {
    let mark = |row: &&Fields| {
        let x = row.number("per_s").filter(|rate| *rate >= 0.0)?;
        let y = row.number(field)?;
        let note = format!("{} a second: {quantile} {} µs", figure(&x), figure(&y));
        Some(Mark { x, y, note })
    };
    let mut marks: Vec<Mark> = rows.iter().filter_map(mark).collect();
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    marks
}

fn chart(title: String, mut lines: Vec<Line>) -> Chart {
    lines.retain(|line| !line.marks.is_empty());
    let x = Dimension::new("requests a second", Span::FromZero);
    let y = Dimension::new("µs", Span::Logarithmic);
    Chart { title, diagram: Diagram { x, y, lines, has_marks: true } }
}
