//! Line charts as SVG for a page: both axes logarithmic or with named places, a grid with round
//! numbers, a name and a figure for each point.

use std::fmt::Write;

/// One line of a chart.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) name: String,
    /// Number of its colour.
    pub(super) colour: usize,
    /// A floor is dashed.
    pub(super) is_floor: bool,
    /// In order of x.
    pub(super) points: Vec<Point>,
}

#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// Shown when the point is pointed at.
    pub(super) note: String,
}

/// A chart.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x_name: &'static str,
    pub(super) y_name: String,
    /// Places on the x axis with their names.
    pub(super) x_ticks: Vec<(f64, String)>,
    pub(super) lines: Vec<Line>,
    /// Whether points are marked; many of them are a line.
    pub(super) marks: bool,
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
const LEFT: f64 = 58.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

impl Chart {
    /// The chart with its title and legend; nothing if it has no point.
    pub(super) fn figure(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let is_fit = |point: &&Point| point.x.is_finite() && point.y.is_finite() && point.y > 0.0;
        let ys = points().filter(is_fit).map(|point| point.y);
        let Some(y) = Span::logarithmic(ys) else { return String::new() };
        let xs = points().filter(is_fit).map(|point| point.x);
        let Some(x) = Span::linear(xs.chain(self.x_ticks.iter().map(|tick| tick.0))) else {
            return String::new();
        };
        let mut text = format!("<figure>\n<figcaption>{}</figcaption>\n", escaped(&self.title));
        let _ = writeln!(
            text,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escaped(&self.title)
        );
        self.grid(&mut text, &x, &y);
        for line in &self.lines {
            draw(&mut text, line, &x, &y, self.marks);
        }
        text += "</svg>\n<ul class=\"legend\">\n";
        for Line { name, colour, is_floor, .. } in &self.lines {
            let class = class(*colour, *is_floor);
            let _ = writeln!(text, "<li><i class=\"{class}\"></i>{}</li>", escaped(name));
        }
        text + "</ul>\n</figure>\n"
    }

    fn grid(&self, text: &mut String, x: &Span, y: &Span) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (at, name) in y.round_numbers() {
            let at = y.down(at);
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        for (at, name) in &self.x_ticks {
            let at = x.across(*at);
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 15.0,
                escaped(name)
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            self.x_name,
            (TOP + bottom) / 2.0,
            escaped(&self.y_name)
        );
    }
}

fn draw(text: &mut String, line: &Line, x: &Span, y: &Span, marks: bool) {
    let class = class(line.colour, line.is_floor);
    let mut path = String::new();
    let mut circles = String::new();
    for Point { x: at, y: value, note } in &line.points {
        if !(at.is_finite() && value.is_finite() && *value > 0.0) {
            continue;
        }
        let (across, down) = (x.across(*at), y.down(*value));
        let step = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{step}{across:.1} {down:.1}");
        if marks {
            let note = escaped(note);
            let circle = format!("<circle class=\"{class}\" cx=\"{across:.1}\" cy=\"{down:.1}\"");
            let _ = writeln!(circles, "{circle} r=\"3\"><title>{note}</title></circle>");
        }
    }
    let _ = writeln!(text, "<path class=\"{class}\" d=\"{path}\"/>\n{circles}");
}

/// The classes of a line in the page's style.
fn class(colour: usize, is_floor: bool) -> String {
    format!("c{}{}", colour % COLOURS.len(), if is_floor { " floor" } else { "" })
}

/// Colours that most people can tell apart (Okabe and Ito), on a light and on a dark page.
pub(super) const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#2fd3a5"),
    ("#cc79a7", "#e79ac6"),
    ("#b07d00", "#f0c808"),
    ("#56606b", "#aab4be"),
    ("#7a3fb5", "#b48ae0"),
];

/// The values of an axis.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Span {
    fn linear(values: impl Iterator<Item = f64>) -> Option<Span> {
        let (from, to) = bounds(values)?;
        let room = if to > from { 0.0 } else { 0.5 };
        Some(Span { from: from - room, to: to + room, is_log: false })
    }

    /// Over the logarithms of values above 0, with a little room.
    fn logarithmic(values: impl Iterator<Item = f64>) -> Option<Span> {
        let (from, to) = bounds(values.map(f64::log10))?;
        let room = (to - from).max(0.2) * 0.08;
        Some(Span { from: from - room, to: to + room, is_log: true })
    }

    fn share(&self, value: f64) -> f64 {
        let value = if self.is_log { value.log10() } else { value };
        (value - self.from) / (self.to - self.from)
    }

    fn across(&self, value: f64) -> f64 {
        LEFT + self.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn down(&self, value: f64) -> f64 {
        TOP + (1.0 - self.share(value)) * (HEIGHT - TOP - BOTTOM)
    }

    /// 1, 2 and 5 times powers of ten, or fewer of them over many decades.
    fn round_numbers(&self) -> Vec<(f64, String)> {
        let decades = self.to - self.from;
        let factors: &[f64] = match decades {
            d if d < 0.5 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
            d if d < 3.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = self.from.floor() as i32..=self.to.ceil() as i32;
        let step = (decades / 8.0).ceil().max(1.0) as i32;
        let all = powers
            .filter(|power| power % step == 0)
            .flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
        let fits = all.filter(|value| (0.0..=1.0).contains(&self.share(*value)));
        fits.map(|value| (value, plain(value))).collect()
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    })
}

/// A round number without needless digits.
pub(super) fn plain(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", (v / 1e4).round() / 1e2),
        v if v >= 1e3 => format!("{}k", (v / 10.0).round() / 1e2),
        v => format!("{}", (v * 1e6).round() / 1e6),
    }
}

/// Text that is no markup.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn chart(ys: &[f64]) -> Chart {
        let note = "<b>".to_owned();
        let point = |(x, y): (usize, &f64)| Point { x: x as f64, y: *y, note: note.clone() };
        let points = ys.iter().enumerate().map(point).collect();
        let name = "one & \"two\"".to_owned();
        Chart {
            title: "a < b".to_owned(),
            x_name: "size",
            y_name: "µs".to_owned(),
            x_ticks: vec![(0.0, "8 B".to_owned())],
            lines: vec![Line { name, colour: 9, is_floor: true, points }],
            marks: true,
        }
    }

    #[test]
    fn charts_are_well_formed_and_keep_inside() {
        let text = chart(&[1.0, 20.0, 3000.0]).figure();
        let document = roxmltree::Document::parse(&text).unwrap();
        let circles = document.descendants().filter(|node| node.has_tag_name("circle"));
        let places: Vec<[f64; 2]> = circles
            .map(|node| ["cx", "cy"].map(|name| node.attribute(name).unwrap().parse().unwrap()))
            .collect();
        assert_eq!(places.len(), 3);
        assert!(places.iter().all(|[x, y]| (0.0..WIDTH).contains(x) && (0.0..HEIGHT).contains(y)));
        assert!(places.is_sorted_by(|a, b| a[1] > b[1]), "larger is higher: {places:?}");
    }

    #[test]
    fn nothing_to_draw_is_no_trouble() {
        for ys in [&[][..], &[0.0], &[f64::NAN], &[-1.0]] {
            assert_eq!(chart(ys).figure(), "");
        }
        let one = chart(&[5.0]).figure();
        assert!(one.contains("<circle") && !one.contains("NaN") && !one.contains("inf"), "{one}");
    }

    #[test]
    fn round_numbers_are_few() {
        for (low, high) in [(5.9, 6.1), (1.0, 90.0), (1e-3, 1e9), (0.3, 0.31)] {
            let span = Span::logarithmic([low, high].into_iter()).unwrap();
            let count = span.round_numbers().len();
            assert!((1..=12).contains(&count), "{low} to {high}: {count}");
        }
        assert_eq!(
            ["0.5", "20", "1.5k", "2M"],
            [0.5, 20.0, 1500.0, 2e6].map(plain).each_ref().map(String::as_str)
        );
    }
}
