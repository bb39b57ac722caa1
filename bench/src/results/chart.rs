//! Diagrams as figures of a page, each with a title and a legend.

use std::fmt::Write;

use crate::plot::diagram::{Area, Diagram};
use crate::plot::text::escaped;

/// A diagram with its title.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) diagram: Diagram,
}

/// Charts side by side; nothing if none has a point. Those that are too many for a reader are left
/// out, with a line that says so.
pub(super) fn charts(all: impl Iterator<Item = Chart>) -> String {
    let mut figures = all.map(|chart| chart.figure()).filter(|figure| !figure.is_empty());
    let shown: String = figures.by_ref().take(CHARTS_MAX).collect();
    let mut text = String::new();
    if !shown.is_empty() {
        text = format!("<div class=\"charts\">\n{shown}</div>\n");
    }
    match figures.count() {
        0 => text,
        left => text + &format!("<p>{left} more charts are left out: all rows are below.</p>\n"),
    }
}

/// Most charts of a section.
const CHARTS_MAX: usize = 200;

// In units of the picture.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 260.0;
const AREA: Area = Area { left: 58.0, top: 14.0, width: WIDTH - 84.0, height: HEIGHT - 58.0 };

impl Chart {
    /// The chart with its title and legend; nothing if it has no point.
    fn figure(&self) -> String {
        let Chart { title, diagram } = self;
        if diagram.marks().next().is_none() {
            return String::new();
        }
        let title = escaped(title);
        let mut text = format!(
            "<figure>\n<figcaption>{title}</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n"
        );
        diagram.draw(&mut text, AREA);
        text += "</svg>\n<ul class=\"legend\">\n";
        for line in &diagram.lines {
            let (class, name) = (line.classes(), escaped(&line.name));
            let _ = writeln!(text, "<li><i class=\"{class}\"></i>{name}</li>");
        }
        text + "</ul>\n</figure>\n"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::plot::axis::Span;
    use crate::plot::diagram::{Dimension, Line, Mark};

    fn chart(y: f64) -> Chart {
        let marks = vec![Mark::new(0.0, y)];
        let name = "one & \"two\"".to_owned();
        let line = Line { name, colour: 9, class: "floor", is_dashed: true, marks };
        Chart {
            title: "a < b".to_owned(),
            diagram: Diagram {
                x: Dimension::new("size", Span::Named(Vec::new())),
                y: Dimension::new("µs", Span::Logarithmic),
                lines: vec![line],
                has_marks: true,
            },
        }
    }

    #[test]
    fn a_figure_has_its_title_and_legend() {
        let text = chart(5.0).figure();
        let document = roxmltree::Document::parse(&text).unwrap();
        let words: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(words.contains(&"a < b") && words.contains(&"one & \"two\""), "{words:?}");
    }

    #[test]
    fn nothing_to_draw_is_no_trouble() {
        for y in [0.0, f64::NAN, -1.0, f64::INFINITY] {
            assert_eq!(chart(y).figure(), "");
        }
    }

    #[test]
    fn too_many_charts_are_said() {
        let text = charts((0..CHARTS_MAX + 2).map(|_| chart(5.0)));
        assert!(text.contains("2 more charts are left out"));
    }
}
