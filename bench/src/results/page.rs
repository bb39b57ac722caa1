//! `caravan report`: the rows of one or more runs as one page of HTML. It needs nothing else: no
//! network, no script, no font.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use anyhow::Result;
use caravan_learn::replace_file::replace;
use serde_json::Value;

use super::chart::{Chart, charts};
use super::compare::{Comparison, Verdict};
use super::{Bench, Results, Subject, fabric, load};
use crate::cli::ReportArgs;
use crate::cli::values::size;
use crate::measure::figures::{decoded, quantile_us};
use crate::plot::axis::Span;
use crate::plot::diagram::{COLOURS, Diagram, Dimension, Line, Mark};
use crate::plot::text::escaped;
use crate::report::{Fields, figure, say};

/// Runs `caravan report`.
///
/// # Errors
/// [`Usage`](crate::cli::ending::Usage) for a file without rows; when the page cannot be written.
pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let files: Vec<Results> =
        args.files.iter().map(|file| Results::read(file)).collect::<Result<_>>()?;
    replace(&args.out, page(&files).as_bytes())?;
    say(format_args!("{} has the report", args.out.display()));
    Ok(())
}

/// The whole page.
fn page(files: &[Results]) -> String {
    let names: Vec<String> = files.iter().map(|file| escaped(&file.name)).collect();
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>caravan: {}</title>\n<style>\n{}</style>\n</head>\n<body>\n<header>\n\
         <h1>Push and pull</h1>\n<p>{}</p>\n</header>\n<main>\n",
        names.join(", "),
        style(),
        names.join(" · ")
    );
    section(&mut page, "Machine", &machines(files));
    if let [first, others @ ..] = files {
        let compared: String = others.iter().map(|other| comparison(first, other)).collect();
        section(&mut page, "Comparison", &compared);
    }
    for bench in Bench::ALL {
        section(&mut page, heading(bench), &curves(files, bench));
    }
    section(&mut page, "Under load: latency from when a request was due", &load::curves(files));
    section(&mut page, "Every link", &fabric::matrices(files));
    section(&mut page, "Distribution of latency", &distributions(files));
    section(&mut page, "All rows", &tables(files));
    page + "</main>\n</body>\n</html>\n"
}

fn section(page: &mut String, heading: &str, body: &str) {
    if !body.is_empty() {
        let _ = writeln!(page, "<section>\n<h2>{heading}</h2>\n{body}</section>");
    }
}

fn heading(bench: Bench) -> &'static str {
    match bench {
        Bench::Latency => "Latency: round trip of one request in flight, median",
        Bench::Bandwidth => "Bandwidth: a window of requests in flight",
        Bench::Rate => "Rate: small requests a second",
    }
}

/// A column for each file, a line for each fact of its machine.
fn machines(files: &[Results]) -> String {
    let machines: Vec<Option<&Fields>> = files.iter().map(|file| file.machines().next()).collect();
    let facts = machines.iter().flatten().flat_map(|machine| machine.0.iter());
    let mut known = HashSet::from(["row"]);
    let names: Vec<&str> =
        facts.map(|(name, _)| name.as_str()).filter(|name| known.insert(name)).collect();
    if names.is_empty() {
        return String::new();
    }
    let heads: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
    let machines: Vec<HashMap<&str, &Value>> = machines
        .iter()
        .map(|machine| machine.iter().flat_map(|it| &it.0).map(|(name, fact)| (&**name, fact)))
        .map(HashMap::from_iter)
        .collect();
    let line = |name: &&str| {
        let facts = machines.iter().map(|machine| machine.get(name).copied());
        // A space makes it text, which stands to the left.
        let facts = facts.map(|fact| fact.map_or_else(String::new, shown) + " ");
        [(*name).to_owned()].into_iter().chain(facts).collect()
    };
    table(&[vec![String::new()], heads].concat(), names.iter().map(line))
}

/// In words and as a table: what is slower in `other`.
fn comparison(first: &Results, other: &Results) -> String {
    let comparison = Comparison::of(first, other);
    let verdict = match comparison.verdict {
        Verdict::Slower => "slower",
        Verdict::Faster => "faster",
        Verdict::Equal | Verdict::Unknown => "equal",
    };
    let mut text = format!("<p class=\"{verdict}\">{}</p>\n", escaped(&comparison.words()));
    if comparison.rows.is_empty() {
        return text;
    }
    let heads = ["", "van", "op", "size", "before", "after", "change", "noise", ""];
    let lines = comparison.rows.iter().map(|row| {
        vec![
            row.subject.bench.name().to_owned(),
            row.subject.van.clone(),
            row.subject.op.clone(),
            size(&row.subject.bytes),
            figure(&row.before),
            figure(&row.after),
            format!("{:+.1} %", row.change_percent()),
            format!("± {:.1} %", row.noise_percent()),
            row.verdict.name().to_owned(),
        ]
    });
    text += &table(&heads.map(str::to_owned), lines);
    text
}

/// A chart for each kind of request: figures by size, with the floor.
fn curves(files: &[Results], bench: Bench) -> String {
    let mut by_chart: BTreeMap<Subject, Vec<Vec<super::Measured>>> = BTreeMap::new();
    for (at, file) in files.iter().enumerate() {
        for measured in file.measured().into_iter().filter(|one| one.subject.bench == bench) {
            // What a chart is about: all of a subject but its van and size.
            let about = Subject { van: String::new(), bytes: 0, ..measured.subject.clone() };
            let of_files = by_chart.entry(about).or_insert_with(|| vec![Vec::new(); files.len()]);
            of_files[at].push(measured);
        }
    }
    charts(by_chart.iter().map(|(about, of_files)| curve(files, about, of_files)))
}

/// The chart of one kind of request, from what each file has of it.
fn curve(files: &[Results], about: &Subject, of_files: &[Vec<super::Measured>]) -> Chart {
    let bench = about.bench;
    let mut lines = Vec::new();
    let mut sizes = BTreeSet::new();
    for (file, measured) in files.iter().zip(of_files) {
        let mut by_van: BTreeMap<&str, BTreeMap<usize, Vec<&super::Measured>>> = BTreeMap::new();
        for one in measured {
            let van = by_van.entry(&one.subject.van).or_default();
            van.entry(one.subject.bytes).or_default().push(one);
            sizes.insert(one.subject.bytes);
        }
        for (van, by_size) in by_van {
            let name = match files.len() {
                1 => van.to_owned(),
                _ => format!("{van}, {}", file.name),
            };
            let colour = lines.len() / 2;
            let points = by_size.iter().filter_map(|(bytes, runs)| {
                point(bench, *bytes, runs.iter().map(|run| Some(run.value)))
            });
            lines.push(line(name.clone(), colour, false, points.collect()));
            let points = by_size
                .iter()
                .filter_map(|(bytes, runs)| point(bench, *bytes, runs.iter().map(|run| run.floor)));
            lines.push(line(format!("{name}: floor"), colour, true, points.collect()));
        }
    }
    lines.retain(|line| !line.marks.is_empty());
    let sizes = sizes.iter().map(|bytes| (place(*bytes), size(bytes))).collect();
    let mut title = about.op.clone();
    for (count, what) in
        [(about.keys, "keys"), (about.window, "in flight"), (about.workers, "workers")]
    {
        if count > 1 {
            let _ = write!(title, ", {count} {what}");
        }
    }
    let x = Dimension::new("size of a request", Span::Named(sizes));
    let y = Dimension::new(bench.unit(), Span::Logarithmic);
    Chart { title, diagram: Diagram { x, y, lines, has_marks: true } }
}

/// A line of what was measured, or of its floor, which is dashed.
fn line(name: String, colour: usize, is_floor: bool, marks: Vec<Mark>) -> Line {
    let class = if is_floor { "floor" } else { "measured" };
    Line { name, colour, class, is_dashed: is_floor, marks }
}

/// Where a size stands on its axis.
fn place(bytes: usize) -> f64 {
    (bytes.max(1) as f64).log2()
}

/// The median of several runs at one size.
fn point(bench: Bench, bytes: usize, values: impl Iterator<Item = Option<f64>>) -> Option<Mark> {
    let mut values: Vec<f64> = values.flatten().collect();
    values.sort_by(f64::total_cmp);
    let y = *values.get(values.len() / 2)?;
    let note = format!("{}: {} {}", size(&bytes), figure(&y), bench.unit());
    Some(Mark { x: place(bytes), y, note })
}

/// A chart for each op and size: the time that each share of requests has stayed below. Histograms
/// of the same subject in a file are merged.
fn distributions(files: &[Results]) -> String {
    type OfFile<'a> = BTreeMap<(String, bool), Vec<&'a str>>;
    let mut by_chart: BTreeMap<Subject, Vec<OfFile<'_>>> = BTreeMap::new();
    for (at, file) in files.iter().enumerate() {
        for row in file.rows.iter().filter(|row| row.kind() == "latency") {
            let Some(super::Measured { subject, .. }) = super::Measured::of(row) else { continue };
            let about = Subject { van: String::new(), ..subject.clone() };
            let chart = by_chart.entry(about).or_insert_with(|| vec![BTreeMap::new(); files.len()]);
            for (field, is_floor) in [("histogram", false), ("floor_histogram", true)] {
                let line = chart[at].entry((subject.van.clone(), is_floor)).or_default();
                line.push(row.text(field));
            }
        }
    }
    charts(by_chart.iter().map(|(about, of_files)| {
        let mut lines = Vec::new();
        for (file, of_file) in files.iter().zip(of_files) {
            for ((van, is_floor), histograms) in of_file {
                let of_file =
                    if files.len() > 1 { format!(", {}", file.name) } else { String::new() };
                let of_floor = if *is_floor { ": floor" } else { "" };
                let (name, colour) = (format!("{van}{of_file}{of_floor}"), lines.len() / 2);
                lines.push(line(name, colour, *is_floor, distribution(histograms)));
            }
        }
        lines.retain(|line| !line.marks.is_empty());
        let ticks = ["0", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
        let shares = ticks.iter().enumerate().map(|(at, name)| (at as f64, (*name).to_owned()));
        let title = format!("{}, {}", about.op, size(&about.bytes));
        let longest = lines.iter().flat_map(|line| &line.marks).map(|mark| mark.x);
        let longest = longest.fold(0.0, f64::max);
        let shares = shares.filter(|(at, _)| *at <= longest + 0.5).collect();
        let x = Dimension::new("share of requests", Span::Named(shares));
        let y = Dimension::new("µs", Span::Logarithmic);
        Chart { title, diagram: Diagram { x, y, lines, has_marks: false } }
    }))
}

/// The curve of all requests of some histograms; no points if none can be read. A histogram takes
/// far more memory than its text, so only their sum stays.
fn distribution(histograms: &[&str]) -> Vec<Mark> {
    let read = histograms.iter().filter_map(|text| decoded(text).ok());
    let Some(histogram) = read.reduce(|all, one| all + one) else { return Vec::new() };
    let marks = NINES
        .iter()
        .map(|nines| Mark::new(*nines, quantile_us(&histogram, 1.0 - 10_f64.powf(-nines))));
    // Shares that fewer requests than one make up say nothing.
    let most = (histogram.len() as f64).log10();
    marks.filter(|mark| mark.x <= most).collect()
}

/// Shares of requests, as the number of nines: 1 is 90 %.
const NINES: [f64; 26] = [
    0.0, 0.1, 0.2, 0.301, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0,
    3.2, 3.4, 3.6, 3.8, 4.0, 4.3, 4.6, 5.0,
];

/// Every row, in a table for each file, kind and list of fields: one for all rows of a kind would
/// grow with their number times that of all fields that any of them has.
fn tables(files: &[Results]) -> String {
    let mut text = String::new();
    for file in files {
        let mut places = HashMap::new();
        let mut tables: Vec<(Vec<&str>, Vec<&Fields>)> = Vec::new();
        for row in &file.rows {
            let names: Vec<&str> = row.0.iter().map(|(name, _)| name.as_str()).collect();
            let place = *places.entry((row.kind(), names.clone())).or_insert(tables.len());
            if place == tables.len() {
                tables.push((names, Vec::new()));
            }
            tables[place].1.push(row);
        }
        for (names, rows) in tables {
            let is_told = |name: &str| !LONG.contains(&name);
            let heads: Vec<String> =
                names.into_iter().filter(|name| is_told(name)).map(str::to_owned).collect();
            let lines = rows.iter().map(|row| {
                let cells = row.0.iter().filter(|(name, _)| is_told(name));
                cells.map(|(_, value)| shown(value)).collect()
            });
            let _ = writeln!(
                text,
                "<details>\n<summary>{}: {}, rows: {}</summary>\n{}</details>",
                escaped(&file.name),
                escaped(rows[0].kind()),
                rows.len(),
                table(&heads, lines)
            );
        }
    }
    text
}

/// Fields of rows that say nothing to a reader of a table.
const LONG: [&str; 5] = ["row", "histogram", "floor_histogram", "rounds", "floor_rounds"];

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn table(heads: &[String], lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = "<div class=\"table\"><table>\n<tr>".to_owned();
    for head in heads {
        let _ = write!(text, "<th>{}</th>", escaped(head));
    }
    text += "</tr>\n";
    for line in lines {
        text += "<tr>";
        for cell in line {
            let is_number = cell.trim_start_matches(['+', '±', ' ']).parse::<f64>().is_ok();
            let class = if is_number { " class=\"n\"" } else { "" };
            let _ = write!(text, "<td{class}>{}</td>", escaped(&cell));
        }
        text += "</tr>\n";
    }
    text + "</table></div>\n"
}

fn style() -> String {
    let mut style = STYLE.to_owned();
    for (at, (light, dark)) in COLOURS.iter().enumerate() {
        let _ = writeln!(style, ".c{at} {{ stroke: {light}; color: {light} }}");
        let _ = writeln!(
            style,
            "@media (prefers-color-scheme: dark) {{ .c{at} {{ stroke: {dark}; color: {dark} }} }}"
        );
    }
    style
}

const STYLE: &str = "\
:root { --ink: #1c2530; --faint: #6b7785; --line: #dfe4ea; --page: #f6f8fa; --card: #ffffff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --faint: #9aa7b4; --line: #303a45; --page: #12171d; --card: #1a2129 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, \"Segoe UI\", sans-serif }
header, main { max-width: 1180px; margin: 0 auto; padding: 0 24px }
header { padding-top: 28px }
h1 { margin: 0; font-size: 26px } h2 { margin: 0 0 12px; font-size: 18px }
header p { margin: 2px 0 0; color: var(--faint); overflow-wrap: anywhere }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  margin: 20px 0; padding: 18px 20px }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 20px }
figure { margin: 0 } figcaption { font-weight: 600; margin-bottom: 4px }
svg { width: 100%; height: auto; display: block }
svg text { fill: var(--faint); font-size: 11px }
.grid { stroke: var(--line) }
polyline { fill: none; stroke-width: 2 }
polyline.dashed { stroke-dasharray: 5 4; stroke-width: 1.5 }
circle { fill: var(--card); stroke-width: 2 }
.legend { list-style: none; margin: 4px 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: 2px 16px; font-size: 13px }
.legend i { display: inline-block; width: 18px; margin-right: 6px; vertical-align: middle;
  border-top: 3px solid currentColor }
.legend i.dashed { border-top-style: dashed; border-top-width: 2px }
.table { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line);
  white-space: nowrap }
th { color: var(--faint); font-weight: 500 } td.n { text-align: right }
details { margin: 6px 0 } summary { cursor: pointer; color: var(--faint) }
p.slower, p.faster, p.equal { padding: 8px 12px; border-left: 4px solid var(--faint);
  background: var(--page); margin: 0 0 12px }
p.slower { border-color: #d55e00 } p.faster { border-color: #009e73 }
";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn results(name: &str, text: &str) -> Results {
        Results { name: name.to_owned(), rows: super::super::rows(text.as_bytes()).unwrap() }
    }

    const ROWS: &str = concat!(
        r#"{"row":"machine","cpu":"<script>alert(1)</script>","cores":2}"#,
        "\n",
        r#"{"row":"latency","van":"tcp","op":"push","keys":1,"bytes":8,"p50_us":6.5,"floor_p50_us":6.0,"rounds":[6.5,6.4],"floor_rounds":[6.0,6.1],"wrong":0}"#,
        "\n",
        r#"{"row":"latency","van":"uring","op":"push","keys":1,"bytes":4096,"p50_us":8.5,"floor_p50_us":null,"wrong":0}"#,
        "\n",
        r#"{"row":"load","van":"tcp","op":"pull","bytes":64,"per_s":5000.0,"asked_per_s":5001.0,"p50_us":9.5,"p99_us":30.0,"p999_us":55.5,"wrong":0}"#,
        "\n",
        r#"{"row":"something-else","answer":[1,2]}"#,
    );

    #[test]
    fn the_page_has_every_row_and_asks_for_nothing() {
        let page = page(&[results("one.jsonl", ROWS), results("a & b", ROWS)]);
        for part in ["one.jsonl", "a &amp; b", "&lt;script&gt;", "6.5", "4 KiB", "[1,2]", "uring"] {
            assert!(page.contains(part), "{part}");
        }
        for part in ["<script", "http", "src=", "href=", "url(", "@import", "NaN"] {
            assert!(!page.contains(part), "{part}");
        }
        // All of the page but its first line is well-formed.
        let body = page.split_once("<body>").unwrap().1.split_once("</body>").unwrap().0;
        let body = format!("<body>{body}</body>");
        let document = roxmltree::Document::parse(&body).unwrap();
        let cells = document.descendants().filter(|node| node.has_tag_name("td"));
        assert!(cells.count() > 40);
        let curves = document.descendants().filter(|node| node.has_tag_name("polyline"));
        assert_eq!(curves.count(), 6 + 6, "two vans and a floor, three quantiles, twice");
    }

    /// Goal: a page is as long as its rows. Method: rows that have nothing in common, of each kind
    /// that has a section, and twice as many of them.
    #[test]
    fn a_page_grows_with_its_rows_and_not_with_their_square() {
        let empty = page(&[results("x", r#"{"row":"x"}"#)]).len();
        for row in [
            r#"{"row":"x","#,
            r#"{"row":"machine","#,
            r#"{"row":"latency","p50_us":1,"keys":N,"#,
            r#"{"row":"load","asked_per_s":1,"per_s":1,"p50_us":1,"keys":N,"#,
        ] {
            let len = |count: usize| {
                let row =
                    |at: usize| row.replace('N', &at.to_string()) + &format!("\"f{at}\":1}}\n");
                let rows: String = (1000..1000 + count).map(row).collect();
                page(&[results("x", &rows)]).len() - empty
            };
            assert!(len(400) < 3 * len(200), "{row} {} {}", len(200), len(400));
        }
    }

    #[test]
    fn any_rows_make_a_page() {
        for rows in [
            r#"{"row":"x"}"#,
            r#"{"row":"latency","p50_us":"fast","bytes":-1}"#,
            r#"{"row":"latency","van":1,"p50_us":1e308,"floor_p50_us":-1,"histogram":"AAAA"}"#,
            r#"{"row":"machine"}"#,
            r#"{"row":"load","per_s":0,"asked_per_s":1e308,"p50_us":1e-300}"#,
            r#"{"row":"load","per_s":-5,"asked_per_s":1,"p50_us":1,"p99_us":1e300,"van":[]}"#,
        ] {
            let page = page(&[results("x", rows)]);
            assert!(page.ends_with("</html>\n") && !page.contains("NaN"), "{rows}");
        }
    }
}
