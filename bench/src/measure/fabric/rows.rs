//! The rows of `caravan bench fabric`.

use std::fmt::Write;

use serde::Serialize;

use crate::report::{Row, figure};

/// One link, for scripts and `caravan report`; people see the matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LinkRow {
    pub(super) van: String,
    /// The sender's, where the van has ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<String>,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) bytes: usize,
    pub(super) p50_us: f64,
    pub(super) gb_per_s: f64,
    /// How much longer it takes, and how much less it carries, than its hosts' other links let
    /// expect.
    pub(super) latency_slower_percent: f64,
    pub(super) rate_slower_percent: f64,
    pub(super) is_slow: bool,
    /// Below `--fail-below`.
    pub(super) is_failed: bool,
    pub(super) wrong: u64,
    /// Each time it was measured.
    pub(super) rounds_us: Vec<f64>,
    pub(super) rounds_gb_per_s: Vec<f64>,
}

impl Row for LinkRow {
    const KIND: &'static str = "link";
    const IS_FOR_SCRIPTS: bool = true;

    fn text(&self) -> String {
        String::new()
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// All links together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FabricRow {
    pub(super) van: String,
    pub(super) hosts: usize,
    pub(super) links: usize,
    pub(super) bytes: usize,
    /// Of the link in the middle.
    pub(super) p50_us: f64,
    pub(super) gb_per_s: f64,
    pub(super) slow_links: usize,
    pub(super) slow_hosts: usize,
    pub(super) failed_links: usize,
    pub(super) seconds: f64,
    /// What is slow, a sentence each.
    pub(super) words: Vec<String>,
    /// For people only.
    #[serde(skip)]
    pub(super) matrices: [Shown; 2],
}

/// A matrix for people.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shown {
    pub(super) title: String,
    pub(super) names: Vec<String>,
    /// Figures by sender and receiver, with whether they are slow.
    pub(super) cells: Vec<Vec<Option<(f64, bool)>>>,
}

/// Larger matrices fill no screen; the rows have them all.
const HOSTS_SHOWN: usize = 24;

impl Row for FabricRow {
    const KIND: &'static str = "fabric";

    fn text(&self) -> String {
        let mut text = String::new();
        if self.hosts <= HOSTS_SHOWN {
            self.matrices.iter().for_each(|matrix| text += &matrix.text());
        }
        let _ = write!(
            text,
            "\n{} hosts over {}, {} links in {:.1} s: {} GB/s and {} µs in the middle",
            self.hosts,
            self.van,
            self.links,
            self.seconds,
            figure(&self.gb_per_s),
            figure(&self.p50_us)
        );
        for words in &self.words {
            let _ = write!(text, "\n{words}");
        }
        text
    }
}

impl Shown {
    fn text(&self) -> String {
        let wide = self.names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(9);
        let mut text = format!("\n# {}\n{:wide$}", self.title, "");
        for name in &self.names {
            let _ = write!(text, " {name:>wide$}");
        }
        for (name, cells) in self.names.iter().zip(&self.cells) {
            let _ = write!(text, "\n{name:<wide$}");
            for cell in cells {
                let cell = cell.map_or_else(
                    || "-".to_owned(),
                    |(value, is_slow)| figure(&value) + if is_slow { " !" } else { "" },
                );
                let _ = write!(text, " {cell:>wide$}");
            }
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_a_matrix() {
        let shown = Shown {
            title: "GB/s".to_owned(),
            names: vec!["A".to_owned(), "long-name-of-b".to_owned()],
            cells: vec![vec![None, Some((1.5, false))], vec![Some((0.75, true)), None]],
        };
        let text = shown.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "# GB/s");
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["A", "long-name-of-b"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["A", "-", "1.500"]);
        assert!(lines[4].contains("0.750 !"), "{text}");
        assert!(lines[2..].iter().all(|line| line.chars().count() == lines[2].len()), "{text}");
    }
}
