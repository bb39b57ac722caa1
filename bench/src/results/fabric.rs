//! Rows of `bench fabric` as a matrix, with what is slow.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Results;

use crate::plot::text::escaped;
use crate::report::{Fields, figure};

/// A matrix for each figure of each file that has links.
pub(super) fn matrices(files: &[Results]) -> String {
    let mut text = String::new();
    for file in files {
        let links: Vec<&Fields> = file.rows.iter().filter(|row| row.kind() == "link").collect();
        if links.is_empty() {
            continue;
        }
        let _ = writeln!(text, "<p>{}</p>", escaped(&file.name));
        for row in file.rows.iter().filter(|row| row.kind() == "fabric") {
            let words = row.get("words").and_then(serde_json::Value::as_array);
            for words in words.into_iter().flatten().filter_map(serde_json::Value::as_str) {
                let _ = writeln!(text, "<p class=\"equal\">{}</p>", escaped(words));
            }
        }
        let names = names(&links);
        for (field, slower, title) in [
            ("gb_per_s", "rate_slower_percent", "GB/s from row to column"),
            ("p50_us", "latency_slower_percent", "µs round trip from row to column"),
        ] {
            text += &matrix(&links, &names, field, slower, title);
        }
    }
    text
}

/// Hosts in the order in which they come.
fn names<'a>(links: &[&'a Fields]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for link in links {
        for end in ["from", "to"] {
            let name = link.text(end);
            if names.len() < HOSTS_MAX && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// More hosts are no page.
const HOSTS_MAX: usize = 512;

fn matrix(links: &[&Fields], names: &[&str], field: &str, slower: &str, title: &str) -> String {
    let of = |link: &&Fields| {
        let cell = link.number(field).map(|value| (value, link.number(slower).unwrap_or(0.0)));
        Some(((link.text("from").to_owned(), link.text("to").to_owned()), cell?))
    };
    let cells: BTreeMap<(String, String), (f64, f64)> = links.iter().filter_map(of).collect();
    let mut text = format!("<div class=\"table\"><table>\n<tr><th>{title}</th>");
    for name in names {
        let _ = write!(text, "<th>{}</th>", escaped(name));
    }
    text += "</tr>\n";
    for from in names {
        let _ = write!(text, "<tr><th>{}</th>", escaped(from));
        for to in names {
            match cells.get(&((*from).to_owned(), (*to).to_owned())) {
                Some((value, slower)) => {
                    let shade = (slower / SLOWEST).clamp(0.0, 1.0) * 0.8;
                    let _ = write!(
                        text,
                        "<td class=\"n\" style=\"background: rgba(213, 94, 0, {shade:.2})\" \
                         title=\"{} to {}: {slower:+.1} % slower\">{}</td>",
                        escaped(from),
                        escaped(to),
                        figure(value)
                    );
                }
                None => text += "<td></td>",
            }
        }
        text += "</tr>\n";
    }
    text + "</table></div>\n"
}

/// A link that is slower by so many percent has the full colour.
const SLOWEST: f64 = 25.0;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_matrix_has_every_link_and_shows_slow_ones() {
        let rows = concat!(
            r#"{"row":"link","from":"A","to":"<B>","gb_per_s":12.5,"p50_us":9.5,"rate_slower_percent":0.5,"latency_slower_percent":0.0}"#,
            "\n",
            r#"{"row":"link","from":"<B>","to":"A","gb_per_s":10.5,"p50_us":9.25,"rate_slower_percent":25.5,"latency_slower_percent":0.0}"#,
            "\n",
            r#"{"row":"link","from":7}"#,
            "\n",
            r#"{"row":"fabric","words":["link A to <B>: slow"]}"#,
        );
        let rows = super::super::rows(rows.as_bytes()).unwrap();
        let page = matrices(&[Results { name: "x".to_owned(), rows }]);
        for part in ["12.50", "10.50", "9.250", "&lt;B&gt;", "0, 0.80)", "link A to"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<B>"));
        let document = format!("<body>{page}</body>");
        roxmltree::Document::parse(&document).unwrap();
        assert_eq!(matrices(&[Results::default()]), "");
    }
}
