//! Convergence as a picture (SVG): how far the objective of a run is above its lowest, and how many
//! weights there are, against passes and against seconds.

use crate::plot;
use crate::plot::axis::Span;
use crate::plot::diagram::{Diagram, Dimension, Line, Mark};

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

/// The whole picture.
pub(crate) fn svg(curves: &[Curve]) -> String {
    let diagrams =
        [gaps, weights].into_iter().flat_map(|diagram| X_AXES.map(|x| diagram(x, curves)));
    plot::svg("convergence of the training run", &diagrams.collect::<Vec<_>>())
}

/// A horizontal axis: its name, and where a point lies on it.
type XAxis = (&'static str, fn(&Point) -> f64);

const X_AXES: [XAxis; 2] = [("passes", |point| point.pass), ("seconds", |point| point.seconds)];

fn gaps((x, x_of): XAxis, curves: &[Curve]) -> Diagram {
    let line = |(colour, curve): (usize, &Curve)| {
        let points = curve.points.iter().zip(curve.gaps());
        let marks = points.map(|(point, y)| Mark::new(x_of(point), y)).collect();
        Line { name: curve.name.clone(), colour, class: "gap", is_dashed: false, marks }
    };
    diagram(x, "objective / lowest - 1", curves.iter().enumerate().map(line).collect())
}

fn weights((x, x_of): XAxis, curves: &[Curve]) -> Diagram {
    let lines = curves.iter().enumerate().flat_map(|(colour, curve)| {
        let line = |class, is_dashed, y_of: fn(&Point) -> f64| {
            let marks = curve.points.iter().map(|point| Mark::new(x_of(point), y_of(point)));
            let name = curve.name.clone();
            Line { name, colour, class, is_dashed, marks: marks.collect() }
        };
        [line("nnz", false, |point| point.nnz), line("active", true, |point| point.active)]
    });
    diagram(x, "weights: not 0, and (dashed) active", lines.collect())
}

fn diagram(x: &'static str, y: &'static str, lines: Vec<Line>) -> Diagram {
    let x = Dimension::new(x, Span::FromZero);
    Diagram { x, y: Dimension::new(y, Span::Logarithmic), lines, has_marks: false }
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
        let is_line = |node: &roxmltree::Node<'_, '_>| {
            let classes = node.attribute("class").unwrap_or_default();
            classes.split(' ').next() == Some(class)
        };
        let lines = document.descendants().filter(is_line);
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
}
