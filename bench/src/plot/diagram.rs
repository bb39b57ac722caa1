//! One diagram in SVG: a grid with numbers, the names of both axes, and lines. What it looks like
//! is said by styles: those of a page, or those of a picture.

use std::fmt::Write;

use super::axis::{Axis, Span};
use super::text::escaped;

/// Colours that most people can tell apart (Okabe and Ito), on a light and on a dark page.
pub(crate) const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#2fd3a5"),
    ("#cc79a7", "#e79ac6"),
    ("#b07d00", "#f0c808"),
    ("#56606b", "#aab4be"),
    ("#7a3fb5", "#b48ae0"),
];

/// A diagram.
#[derive(Debug, Clone)]
pub(crate) struct Diagram {
    pub(crate) x: Dimension,
    pub(crate) y: Dimension,
    pub(crate) lines: Vec<Line>,
    /// Whether points are marked; many of them are a line.
    pub(crate) has_marks: bool,
}

/// One direction of a diagram.
#[derive(Debug, Clone)]
pub(crate) struct Dimension {
    pub(crate) name: String,
    pub(crate) span: Span,
}

/// A line of a diagram.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Number of its colour.
    pub(crate) colour: usize,
    /// What it shows, for readers of the SVG.
    pub(crate) class: &'static str,
    pub(crate) is_dashed: bool,
    /// In order of x.
    pub(crate) marks: Vec<Mark>,
}

/// A point of a line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mark {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Shown when the point is pointed at.
    pub(crate) note: String,
}

/// The part of a picture that the grid of a diagram takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Dimension {
    pub(crate) fn new(name: impl Into<String>, span: Span) -> Dimension {
        Dimension { name: name.into(), span }
    }
}

impl Mark {
    /// A point without a note.
    pub(crate) fn new(x: f64, y: f64) -> Mark {
        Mark { x, y, note: String::new() }
    }
}

impl Line {
    /// The classes that give it its colour.
    pub(crate) fn classes(&self) -> String {
        format!("c{}{}", self.colour % COLOURS.len(), if self.is_dashed { " dashed" } else { "" })
    }
}

impl Diagram {
    /// The points that have a place.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &Mark> {
        let all = self.lines.iter().flat_map(|line| &line.marks);
        all.filter(|mark| self.x.span.has(mark.x) && self.y.span.has(mark.y))
    }

    /// Adds the diagram to a picture.
    pub(crate) fn draw(&self, picture: &mut String, area: Area) {
        let x = Axis::new(&self.x.span, self.marks().map(|mark| mark.x));
        let y = Axis::new(&self.y.span, self.marks().map(|mark| mark.y));
        let grid = Grid { area, x, y };
        grid.draw(picture, self);
        for line in &self.lines {
            grid.draw_line(picture, line, self.has_marks);
        }
    }
}

struct Grid<'a> {
    area: Area,
    x: Axis<'a>,
    y: Axis<'a>,
}

impl Grid<'_> {
    fn across(&self, x: f64) -> Option<f64> {
        Some(self.area.left + self.x.share(x)? * self.area.width)
    }

    fn down(&self, y: f64) -> Option<f64> {
        Some(self.area.top + (1.0 - self.y.share(y)?) * self.area.height)
    }

    /// The grid with its numbers, and the names of both axes.
    fn draw(&self, picture: &mut String, diagram: &Diagram) {
        let Area { left, top, width, height } = self.area;
        let (right, bottom) = (left + width, top + height);
        let ticks = self.y.ticks().into_iter();
        for (at, name) in ticks.filter_map(|(value, name)| Some((self.down(value)?, name))) {
            let _ = writeln!(
                picture,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                at + 4.0,
                escaped(&name)
            );
        }
        let ticks = self.x.ticks().into_iter();
        for (at, name) in ticks.filter_map(|(value, name)| Some((self.across(value)?, name))) {
            let _ = writeln!(
                picture,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 15.0,
                escaped(&name)
            );
        }
        let _ = writeln!(
            picture,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate({:.1} {:.1}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>",
            left + width / 2.0,
            bottom + 34.0,
            escaped(&diagram.x.name),
            left - 45.0,
            top + height / 2.0,
            escaped(&diagram.y.name)
        );
    }

    /// A line through the points that have a place. A line of one point shows by its mark alone.
    fn draw_line(&self, picture: &mut String, line: &Line, has_marks: bool) {
        let place = |mark: &'_ Mark| Some([self.across(mark.x)?, self.down(mark.y)?]);
        let places = line.marks.iter().filter_map(|mark| Some((place(mark)?, &mark.note)));
        let places: Vec<([f64; 2], &String)> = places.collect();
        let points = places.iter().map(|([x, y], _)| format!("{x:.1},{y:.1}"));
        let points = Vec::from_iter(points).join(" ");
        let classes = line.classes();
        let class = line.class;
        let _ = writeln!(picture, "<polyline class=\"{class} {classes}\" points=\"{points}\"/>");
        for ([x, y], note) in places.iter().filter(|_| has_marks || places.len() == 1) {
            let circle = format!("<circle class=\"{classes}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"");
            let _ = writeln!(picture, "{circle}><title>{}</title></circle>", escaped(note));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const AREA: Area = Area { left: 50.0, top: 10.0, width: 400.0, height: 200.0 };

    fn drawn(ys: &[f64]) -> String {
        let mark = |(x, y): (usize, &f64)| Mark { x: x as f64, y: *y, note: "<b>".to_owned() };
        let marks = ys.iter().enumerate().map(mark).collect();
        let name = "one & \"two\"".to_owned();
        let line = Line { name, colour: 9, class: "floor", is_dashed: true, marks };
        let diagram = Diagram {
            x: Dimension::new("size", Span::Named(vec![(0.0, "8 B".to_owned())])),
            y: Dimension::new("a < b", Span::Logarithmic),
            lines: vec![line],
            has_marks: true,
        };
        let mut picture = "<svg>".to_owned();
        diagram.draw(&mut picture, AREA);
        picture + "</svg>"
    }

    #[test]
    fn a_diagram_is_well_formed_and_keeps_inside() {
        let text = drawn(&[1.0, f64::NAN, 20.0, 0.0, 3000.0]);
        let document = roxmltree::Document::parse(&text).unwrap();
        let circles = document.descendants().filter(|node| node.has_tag_name("circle"));
        let places: Vec<[f64; 2]> = circles
            .map(|node| ["cx", "cy"].map(|name| node.attribute(name).unwrap().parse().unwrap()))
            .collect();
        assert_eq!(places.len(), 3);
        let Area { left, top, width, height } = AREA;
        let is_inside = |[x, y]: &[f64; 2]| {
            (left..=left + width).contains(x) && (top..=top + height).contains(y)
        };
        assert!(places.iter().all(is_inside), "{places:?}");
        assert!(places.is_sorted_by(|a, b| a[1] > b[1]), "larger is higher: {places:?}");
    }

    #[test]
    fn one_point_shows() {
        let text = drawn(&[5.0]);
        assert!(text.contains("<circle") && !text.contains("NaN") && !text.contains("inf"));
    }
}
