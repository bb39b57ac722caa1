//! Diagrams as a picture (SVG): lines over linear or logarithmic axes, two diagrams in a row.

use std::fmt::Write;

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

/// A scale of a diagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) name: &'static str,
    /// Whether it is logarithmic; else it begins with 0.
    pub(crate) is_log: bool,
}

/// A line of a diagram.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Number of its name, which chooses its colour.
    pub(crate) name: usize,
    /// What it shows, for readers of the SVG.
    pub(crate) class: &'static str,
    pub(crate) is_dashed: bool,
    pub(crate) points: Vec<Place>,
}

/// One diagram of a picture.
#[derive(Debug, Clone)]
pub(crate) struct Diagram {
    pub(crate) x: Scale,
    pub(crate) y: Scale,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A picture of diagrams, two in a row, below a legend with the names of their lines.
pub(crate) fn svg(title: &str, names: &[String], diagrams: &[Diagram]) -> String {
    let lines = names.len().div_ceil(LEGEND_COLUMNS).max(1) as f64;
    let head = LEGEND + 18.0 * lines;
    let width = 2.0 * (PANEL.x + MARGIN.x) + 24.0;
    let height = head + diagrams.len().div_ceil(2) as f64 * (PANEL.y + MARGIN.y);
    let mut picture = Picture(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    ));
    picture.legend(title, names);
    for (at, diagram) in diagrams.iter().enumerate() {
        let points = || diagram.lines.iter().flat_map(|line| &line.points);
        let panel = Panel {
            left: MARGIN.x + (at % 2) as f64 * (PANEL.x + MARGIN.x),
            top: head + (at / 2) as f64 * (PANEL.y + MARGIN.y),
            x: Axis::new(diagram.x, points().map(|point| point.x)),
            y: Axis::new(diagram.y, points().map(|point| point.y)),
        };
        picture.frame(&panel, diagram.x.name, diagram.y.name);
        diagram.lines.iter().for_each(|line| picture.curve(&panel, line));
    }
    picture.0 + "</svg>\n"
}

/// From values to shares of its length.
#[derive(Debug, Clone, Copy)]
struct Axis {
    /// In decades if it is logarithmic.
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        if scale.is_log { Axis::log(values) } else { Axis::linear(values) }
    }

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

impl Panel {
    /// From shares of both axes.
    fn at(&self, x: f64, y: f64) -> Place {
        Place { x: self.left + x * WIDTH, y: self.top + (1.0 - y) * PANEL.y }
    }
}

struct Picture(String);

impl Picture {
    fn legend(&mut self, title: &str, names: &[String]) {
        self.text(Place { x: MARGIN.x, y: 20.0 }, "start", title);
        for (at, name) in names.iter().enumerate() {
            let x = MARGIN.x + (at % LEGEND_COLUMNS) as f64 * 140.0;
            let y = 40.0 + 18.0 * (at / LEGEND_COLUMNS) as f64;
            let colour = COLOURS[at % COLOURS.len()];
            let style = format!("stroke=\"{colour}\" stroke-width=\"2\"");
            self.line(Place { x, y: y - 4.0 }, Place { x: x + 20.0, y: y - 4.0 }, &style);
            self.text(Place { x: x + 26.0, y }, "start", name);
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

    /// A line through the points that have a place, in the colour of its name.
    fn curve(&mut self, panel: &Panel, line: &Line) {
        let place = |at: &Place| Some(panel.at(panel.x.share(at.x)?, panel.y.share(at.y)?));
        let places: Vec<Place> = line.points.iter().filter_map(place).collect();
        let colour = COLOURS[line.name % COLOURS.len()];
        let dashed = if line.is_dashed { " stroke-dasharray=\"5 3\"" } else { "" };
        let class = line.class;
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
    use super::*;

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
