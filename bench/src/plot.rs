//! Pictures of diagrams (SVG), two in a row, that need no page around them.

pub(crate) mod axis;
pub(crate) mod diagram;
pub(crate) mod text;

use std::collections::BTreeMap;
use std::fmt::Write;

use self::diagram::{Area, COLOURS, Diagram, Line};
use self::text::escaped;

// In units of the picture.
const WIDTH: f64 = 376.0;
const HEIGHT: f64 = 240.0;
const MARGIN_X: f64 = 76.0;
const MARGIN_Y: f64 = 64.0;
/// From one diagram to the next in a row.
const STEP_X: f64 = WIDTH + MARGIN_X + 24.0;
const STEP_Y: f64 = HEIGHT + MARGIN_Y;
const HEAD: f64 = 34.0;
const LEGEND_LINE: f64 = 18.0;

/// Names in a line of the legend.
const LEGEND_COLUMNS: usize = 6;

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #333 } .grid { stroke: #ddd }
polyline { fill: none; stroke-width: 1.5 } .dashed { stroke-dasharray: 5 3 }
circle { fill: white; stroke-width: 1.5 }
";

/// A picture of diagrams below a legend with the names of their lines, one for each colour.
pub(crate) fn svg(title: &str, diagrams: &[Diagram]) -> String {
    let lines = diagrams.iter().flat_map(|diagram| &diagram.lines);
    let by_colour: BTreeMap<usize, &Line> = lines.map(|line| (line.colour, line)).collect();
    let legend_lines = by_colour.len().div_ceil(LEGEND_COLUMNS).max(1) as f64;
    let head = HEAD + LEGEND_LINE * (1.0 + legend_lines);
    let width = 2.0 * STEP_X + 24.0;
    let height = head + diagrams.len().div_ceil(2) as f64 * STEP_Y;
    let mut picture = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<style>\n{STYLE}"
    );
    for (at, (light, _)) in COLOURS.iter().enumerate() {
        let _ = writeln!(picture, ".c{at} {{ stroke: {light} }}");
    }
    picture += "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    legend(&mut picture, title, by_colour.into_values());
    for (at, diagram) in diagrams.iter().enumerate() {
        let left = MARGIN_X + (at % 2) as f64 * STEP_X;
        let top = head + (at / 2) as f64 * STEP_Y;
        diagram.draw(&mut picture, Area { left, top, width: WIDTH, height: HEIGHT });
    }
    picture + "</svg>\n"
}

fn legend<'a>(picture: &mut String, title: &str, lines: impl Iterator<Item = &'a Line>) {
    let _ = writeln!(picture, "<text x=\"{MARGIN_X}\" y=\"20\">{}</text>", escaped(title));
    for (at, line) in lines.enumerate() {
        let x = MARGIN_X + (at % LEGEND_COLUMNS) as f64 * 140.0;
        let y = HEAD + LEGEND_LINE * (at / LEGEND_COLUMNS) as f64;
        let colour = line.colour % COLOURS.len();
        let _ = writeln!(
            picture,
            "<line class=\"c{colour}\" stroke-width=\"2\" \
             x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            x + 20.0,
            x + 26.0,
            y + 4.0,
            escaped(&line.name)
        );
    }
}
