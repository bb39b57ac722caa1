//! Convergence as a picture (SVG): how far the objective of a run is above its lowest, and how many weights there are, against
//! passes and against seconds. What is drawn is numbers; where they come from is not known here.

use std::fmt::Write;

/// One run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curve {
    /// What tells it from the others.
    pub(crate) name: String,
    /// One a pass.
    pub(crate) points: Vec<Point>,
}

/// A pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// Passes made.
    pub(crate) pass: f64,
    pub(crate) seconds: f64,
    pub(crate) objective: f64,
    pub(crate) nnz: f64,
    pub(crate) active: f64,
}

impl Curve {
    /// Each point's objective over the lowest, less 1.
    fn gaps(&self) -> Vec<f64> {
        let lowest = self.points.iter().map(|point| point.objective).fold(f64::INFINITY, f64::min);
        self.points.iter().map(|point| point.objective / lowest - 1.0).collect()
    }
}

/// Colours that most people can tell apart (Okabe and Ito), darkest first.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

// In units of the picture.
const PANEL: (f64, f64) = (400.0, 240.0);
const MARGIN: (f64, f64) = (76.0, 64.0);
const LEGEND: f64 = 52.0;
const FONT: &str = "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\"";

/// Names beside each other in a line of the legend.
const LEGEND_COLUMNS: usize = 6;

/// The whole picture.
pub(crate) fn svg(curves: &[Curve]) -> String {
    let lines = curves.len().div_ceil(LEGEND_COLUMNS).max(1) as f64;
    let head = LEGEND + 18.0 * lines;
    let size = (2.0 * (PANEL.0 + MARGIN.0) + 24.0, head + 2.0 * (PANEL.1 + MARGIN.1));
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        size.0, size.1
    );
    legend(&mut out, curves);
    for (column, (x_name, x_of)) in X_AXES.into_iter().enumerate() {
        let x = Axis::linear(curves.iter().flat_map(|curve| curve.points.iter().map(x_of)));
        let left = MARGIN.0 + column as f64 * (PANEL.0 + MARGIN.0);
        let gaps: Vec<Vec<f64>> = curves.iter().map(Curve::gaps).collect();
        let panel = Panel {
            place: (left, head),
            x,
            y: Axis::log(gaps.iter().flatten().copied()),
            names: (x_name, "objective / lowest - 1"),
        };
        panel.frame(&mut out);
        for (at, (curve, gaps)) in curves.iter().zip(&gaps).enumerate() {
            let points = curve.points.iter().map(x_of).zip(gaps.iter().copied());
            panel.line(&mut out, "gap", at, points);
        }
        let counts = curves.iter().flat_map(|curve| &curve.points);
        let counts = counts.flat_map(|point| [point.nnz, point.active]);
        let panel = Panel {
            place: (left, head + PANEL.1 + MARGIN.1),
            x,
            y: Axis::log(counts),
            names: (x_name, "weights: not 0, and (dashed) active"),
        };
        panel.frame(&mut out);
        for (at, curve) in curves.iter().enumerate() {
            let points = || curve.points.iter();
            panel.line(&mut out, "nnz", at, points().map(|point| (x_of(point), point.nnz)));
            panel.line(&mut out, "active", at, points().map(|point| (x_of(point), point.active)));
        }
    }
    out.push_str("</svg>\n");
    out
}

/// A horizontal axis: its name, and where a point lies on it.
type XAxis = (&'static str, fn(&Point) -> f64);

const X_AXES: [XAxis; 2] = [("passes", |point| point.pass), ("seconds", |point| point.seconds)];

fn legend(out: &mut String, curves: &[Curve]) {
    text(out, (MARGIN.0, 20.0), "start", "convergence of the training run");
    for (at, curve) in curves.iter().enumerate() {
        let x = MARGIN.0 + (at % LEGEND_COLUMNS) as f64 * 140.0;
        let y = 40.0 + 18.0 * (at / LEGEND_COLUMNS) as f64;
        let (colour, line) = (COLOURS[at % COLOURS.len()], y - 4.0);
        let end = x + 20.0;
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"{line}\" x2=\"{end}\" y2=\"{line}\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        text(out, (x + 26.0, y), "start", &curve.name);
    }
}

/// Words at a place; `anchor` says which part of them: start, middle or end.
fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {FONT}>{words}</text>"
    );
}

/// From values to shares of its length.
#[derive(Debug, Clone, Copy)]
struct Axis {
    /// In decades where it is logarithmic.
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    /// From 0 to the largest value.
    fn linear(values: impl Iterator<Item = f64>) -> Self {
        let to = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        Axis { from: 0.0, to: if to > 0.0 { to } else { 1.0 }, log: false }
    }

    /// Over whole decades, from the smallest value above 0 to the largest.
    fn log(values: impl Iterator<Item = f64>) -> Self {
        let decades = values.filter(|value| value.is_finite() && *value > 0.0).map(f64::log10);
        let (low, high) = decades
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), decade| {
                (low.min(decade), high.max(decade))
            });
        if low > high {
            return Axis { from: 0.0, to: 1.0, log: true };
        }
        let (from, to) = (low.floor(), high.ceil());
        Axis { from, to: to.max(from + 1.0), log: true }
    }

    /// Where a value lies, 0 to 1; None for one that has no place.
    fn share(&self, value: f64) -> Option<f64> {
        let value = if self.log { value.log10() } else { value };
        let share = (value - self.from) / (self.to - self.from);
        share.is_finite().then_some(share)
    }

    /// Some round values on it, and how they are written.
    fn ticks(&self) -> Vec<(f64, String)> {
        let span = self.to - self.from;
        let step = if self.log { (span / 8.0).ceil().max(1.0) } else { round_step(span / 5.0) };
        let first = (self.from / step).ceil();
        let last = (self.to / step + 1e-9).floor();
        let at = |k: i64| k as f64 * step;
        let name = |at: f64| {
            if self.log { format!("1e{at}") } else { format!("{}", (at * 1e9).round() / 1e9) }
        };
        (first as i64..=last as i64).map(|k| ((at(k) - self.from) / span, name(at(k)))).collect()
    }
}

/// The smallest of 1, 2, 5, 10, … times a power of 10 that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let rounds = [1.0, 2.0, 5.0].map(|factor| factor * power);
    rounds.into_iter().find(|round| *round >= step * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// One diagram.
struct Panel {
    /// Its upper left corner.
    place: (f64, f64),
    x: Axis,
    y: Axis,
    names: (&'static str, &'static str),
}

impl Panel {
    /// Box, grid, numbers, names.
    fn frame(&self, out: &mut String) {
        let ((left, top), (width, height)) = (self.place, (PANEL.0 - 24.0, PANEL.1));
        let (right, bottom) = (left + width, top + height);
        let _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#888\"/>"
        );
        let mut grid = |(x1, y1): (f64, f64), (x2, y2): (f64, f64)| {
            let _ = writeln!(
                out,
                "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
            );
        };
        for (share, _) in self.x.ticks() {
            grid((left + share * width, top), (left + share * width, bottom));
        }
        for (share, _) in self.y.ticks() {
            grid((left, bottom - share * height), (right, bottom - share * height));
        }
        for (share, name) in self.x.ticks() {
            text(out, (left + share * width, bottom + 16.0), "middle", &name);
        }
        for (share, name) in self.y.ticks() {
            text(out, (left - 6.0, bottom - share * height + 4.0), "end", &name);
        }
        text(out, (left + width / 2.0, bottom + 32.0), "middle", self.names.0);
        text(out, (left, top - 6.0), "start", self.names.1);
    }

    /// A line through the points that have a place, in the colour of curve `at`.
    fn line(
        &self,
        out: &mut String,
        class: &str,
        at: usize,
        points: impl Iterator<Item = (f64, f64)>,
    ) {
        let ((left, top), (width, height)) = (self.place, (PANEL.0 - 24.0, PANEL.1));
        let place = |(x, y)| {
            let (x, y) = (self.x.share(x)?, self.y.share(y)?);
            Some((left + x * width, top + (1.0 - y) * height))
        };
        let places: Vec<(f64, f64)> = points.filter_map(place).collect();
        let colour = COLOURS[at % COLOURS.len()];
        let dashed = if class == "active" { " stroke-dasharray=\"5 3\"" } else { "" };
        let line = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>();
        let _ = writeln!(
            out,
            "<polyline class=\"{class}\" points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dashed}/>",
            line.join(" ")
        );
        if let [(x, y)] = places[..] {
            // A line of one point does not show.
            let _ =
                writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{colour}\"/>");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn curve(name: &str, passes: usize) -> Curve {
        let point = |pass: usize| Point {
            pass: pass as f64 + 1.0,
            seconds: 0.25 * pass as f64,
            objective: 100.0 * (1.0 + 0.1_f64.powi(pass as i32)),
            nnz: 10.0 + pass as f64,
            active: 1000.0 / (pass as f64 + 1.0),
        };
        Curve { name: name.to_owned(), points: (0..passes).map(point).collect() }
    }

    /// Points of all lines of a class, in order.
    fn lines(document: &roxmltree::Document<'_>, class: &str) -> Vec<Vec<(f64, f64)>> {
        let lines = document.descendants().filter(|node| node.attribute("class") == Some(class));
        let points = |node: roxmltree::Node<'_, '_>| {
            let pairs = node.attribute("points").unwrap().split_whitespace();
            let pair = |pair: &str| {
                let (x, y) = pair.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            };
            pairs.map(pair).collect()
        };
        lines.map(points).collect()
    }

    #[test]
    fn the_picture_is_well_formed_and_has_every_point() {
        let picture = svg(&[curve("lambda <10 & more", 6), curve("lambda 1", 9)]);
        let document = roxmltree::Document::parse(&picture).unwrap();
        let counts = |class| lines(&document, class).iter().map(Vec::len).collect::<Vec<_>>();
        // The lowest of each has no place on a logarithmic axis.
        assert_eq!(counts("gap"), [5, 8, 5, 8]);
        assert_eq!(counts("nnz"), [6, 9, 6, 9]);
        assert_eq!(counts("active"), [6, 9, 6, 9]);
        for gap in lines(&document, "gap") {
            assert!(gap.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "down to the right: {gap:?}");
        }
        let size = |name| document.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
        let inside =
            |(x, y): (f64, f64)| x >= 0.0 && y >= 0.0 && x <= size("width") && y <= size("height");
        assert!(lines(&document, "active").into_iter().flatten().all(inside));
        let words: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(words.contains(&"lambda <10 & more") && words.contains(&"seconds"), "{words:?}");
    }

    /// Decades apart are the same distance apart.
    #[test]
    fn gaps_lie_where_their_logarithm_is() {
        let picture = svg(&[curve("one", 5)]);
        let document = roxmltree::Document::parse(&picture).unwrap();
        let gaps = &lines(&document, "gap")[0];
        let steps: Vec<f64> = gaps.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
        // Of 1, 0.1, 0.01 and 0.001 over the lowest, which is 0.0001 above the limit: 0.3 % more at the end.
        assert!(steps.iter().all(|step| (step / steps[0] - 1.0).abs() < 0.06), "{steps:?}");
    }

    #[test]
    fn little_or_nothing_to_draw_is_no_trouble() {
        let mut odd = curve("odd", 3);
        odd.points[1].objective = f64::NAN;
        odd.points[2].seconds = f64::INFINITY;
        for curves in [vec![], vec![Curve::default()], vec![curve("one pass", 1)], vec![odd]] {
            let picture = svg(&curves);
            roxmltree::Document::parse(&picture).unwrap();
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn ticks_are_round() {
        let names = |axis: Axis| axis.ticks().into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(names(Axis::linear([0.0, 0.9].into_iter())), ["0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(names(Axis::linear([37.0].into_iter())), ["0", "10", "20", "30"]);
        assert_eq!(
            names(Axis::log([2e-3, 0.0, 5.0].into_iter())),
            ["1e-3", "1e-2", "1e-1", "1e0", "1e1"]
        );
        assert!(names(Axis::log([1e-16, 1.0].into_iter())).len() <= 10);
    }
}
