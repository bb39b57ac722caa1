//! Convergence as a picture (SVG): how far the objective of a run is above its lowest, and how many
//! weights there are, against passes and against seconds.

use std::fmt::Write;

/// One run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
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
const PANEL: Place = Place { x: 400.0, y: 240.0 };
const MARGIN: Place = Place { x: 76.0, y: 64.0 };
/// Width of a diagram.
const WIDTH: f64 = PANEL.x - 24.0;
const LEGEND: f64 = 52.0;
const FONT: &str = "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\"";

/// Names in a line of the legend.
const LEGEND_COLUMNS: usize = 6;

/// The whole picture.
pub(crate) fn svg(curves: &[Curve]) -> String {
    let lines = curves.len().div_ceil(LEGEND_COLUMNS).max(1) as f64;
    let head = LEGEND + 18.0 * lines;
    let width = 2.0 * (PANEL.x + MARGIN.x) + 24.0;
    let height = head + 2.0 * (PANEL.y + MARGIN.y);
    let mut picture = Picture(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    ));
    picture.legend(curves);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let gaps: Vec<Vec<f64>> = curves.iter().map(Curve::gaps).collect();
    for (column, (name, x_of)) in X_AXES.into_iter().enumerate() {
        let x = Axis::linear(points().map(x_of));
        let left = MARGIN.x + column as f64 * (PANEL.x + MARGIN.x);
        let y = Axis::log(gaps.iter().flatten().copied());
        let panel = Panel { left, top: head, x, y };
        picture.frame(&panel, name, "objective / lowest - 1");
        for (at, (curve, gaps)) in curves.iter().zip(&gaps).enumerate() {
            let values = curve.points.iter().map(x_of).zip(gaps.iter().copied());
            picture.curve(&panel, "gap", at, values);
        }
        let y = Axis::log(points().flat_map(|point| [point.nnz, point.active]));
        let panel = Panel { top: head + PANEL.y + MARGIN.y, y, ..panel };
        picture.frame(&panel, name, "weights: not 0, and (dashed) active");
        for (at, Curve { points, .. }) in curves.iter().enumerate() {
            picture.curve(&panel, "nnz", at, points.iter().map(|p| (x_of(p), p.nnz)));
            picture.curve(&panel, "active", at, points.iter().map(|p| (x_of(p), p.active)));
        }
    }
    picture.0 + "</svg>\n"
}

/// A horizontal axis: its name, and where a point lies on it.
type XAxis = (&'static str, fn(&Point) -> f64);

const X_AXES: [XAxis; 2] = [("passes", |point| point.pass), ("seconds", |point| point.seconds)];

/// From values to shares of its length.
#[derive(Debug, Clone, Copy)]
struct Axis {
    /// In decades if it is logarithmic.
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
        let decades: Vec<f64> = decades.collect();
        let Some(low) = decades.iter().copied().reduce(f64::min) else {
            return Axis { from: 0.0, to: 1.0, log: true };
        };
        let from = low.floor();
        let to = decades.into_iter().fold(low, f64::max).ceil();
        Axis { from, to: to.max(from + 1.0), log: true }
    }

    /// Where a value lies, 0 to 1; None for one that has no place.
    fn share(&self, value: f64) -> Option<f64> {
        let value = if self.log { value.log10() } else { value };
        let share = (value - self.from) / (self.to - self.from);
        share.is_finite().then_some(share)
    }

    /// Round values: their share of the length, and their text.
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

struct Panel {
    left: f64,
    top: f64,
    x: Axis,
    y: Axis,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    x: f64,
    y: f64,
}

impl Panel {
    /// From shares of both axes.
    fn at(&self, x: f64, y: f64) -> Place {
        Place { x: self.left + x * WIDTH, y: self.top + (1.0 - y) * PANEL.y }
    }
}

struct Picture(String);

impl Picture {
    fn legend(&mut self, curves: &[Curve]) {
        self.text(Place { x: MARGIN.x, y: 20.0 }, "start", "convergence of the training run");
        for (at, curve) in curves.iter().enumerate() {
            let x = MARGIN.x + (at % LEGEND_COLUMNS) as f64 * 140.0;
            let y = 40.0 + 18.0 * (at / LEGEND_COLUMNS) as f64;
            let colour = COLOURS[at % COLOURS.len()];
            let style = format!("stroke=\"{colour}\" stroke-width=\"2\"");
            self.line(Place { x, y: y - 4.0 }, Place { x: x + 20.0, y: y - 4.0 }, &style);
            self.text(Place { x: x + 26.0, y }, "start", &curve.name);
        }
    }

    /// Words at a place; `anchor` names the part of them that is there: start, middle or end.
    fn text(&mut self, at: Place, anchor: &str, words: &str) {
        let Place { x, y } = at;
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        let text = format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {FONT}>");
        let _ = writeln!(self.0, "{text}{words}</text>");
    }

    fn line(&mut self, from: Place, to: Place, style: &str) {
        let Place { x, y } = to;
        let start = format!("<line x1=\"{:.1}\" y1=\"{:.1}\"", from.x, from.y);
        let _ = writeln!(self.0, "{start} x2=\"{x:.1}\" y2=\"{y:.1}\" {style}/>");
    }

    /// Box, grid, numbers and names of a diagram.
    fn frame(&mut self, panel: &Panel, x_name: &str, y_name: &str) {
        let Panel { left, top, .. } = panel;
        let _ = writeln!(
            self.0,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{}\" fill=\"none\" \
             stroke=\"#888\"/>",
            PANEL.y
        );
        for (share, name) in panel.x.ticks() {
            let foot = panel.at(share, 0.0);
            self.line(panel.at(share, 1.0), foot, "stroke=\"#ddd\"");
            self.text(Place { y: foot.y + 16.0, ..foot }, "middle", &name);
        }
        for (share, name) in panel.y.ticks() {
            let start = panel.at(0.0, share);
            self.line(start, panel.at(1.0, share), "stroke=\"#ddd\"");
            self.text(Place { x: start.x - 6.0, y: start.y + 4.0 }, "end", &name);
        }
        let middle = panel.at(0.5, 0.0);
        self.text(Place { y: middle.y + 32.0, ..middle }, "middle", x_name);
        self.text(Place { x: *left, y: top - 6.0 }, "start", y_name);
    }

    /// A line through the points that have a place, in the colour of curve `number`.
    fn curve(
        &mut self,
        panel: &Panel,
        class: &str,
        number: usize,
        values: impl Iterator<Item = (f64, f64)>,
    ) {
        let place = |(x, y)| Some(panel.at(panel.x.share(x)?, panel.y.share(y)?));
        let places: Vec<Place> = values.filter_map(place).collect();
        let colour = COLOURS[number % COLOURS.len()];
        let dashed = if class == "active" { " stroke-dasharray=\"5 3\"" } else { "" };
        let points = places.iter().map(|Place { x, y }| format!("{x:.1},{y:.1}"));
        let points = points.collect::<Vec<_>>().join(" ");
        let style = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dashed}");
        let _ = writeln!(self.0, "<polyline class=\"{class}\" points=\"{points}\" {style}/>");
        if let [Place { x, y }] = places[..] {
            // A line of one point does not show.
            let circle = format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"");
            let _ = writeln!(self.0, "{circle} fill=\"{colour}\"/>");
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
        // Of 1, 0.1, 0.01 and 0.001 over the lowest, which is 0.0001 above the limit: 0.3 % more at
        // the end.
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
