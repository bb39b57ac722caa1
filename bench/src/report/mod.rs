//! Rows, as programs read them (`--json`, one object a line) and as people do (aligned columns).
//! Only rows go to standard output; everything else that a reader should know goes to standard
//! error.
//!
//! This folder knows the trait [`Row`] and no type that has it: it imports nothing else of the
//! program, which `ci/check` holds.

mod csv;
mod progress;
mod row;
mod terminal;

use std::{fmt, io};

use anyhow::{Result, ensure};

pub(crate) use csv::Fields;
use progress::Progress;
use row::Tagged;
pub(crate) use row::{Column, Row, figure, line, row};
pub(crate) use terminal::{say, tell};

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Aligned columns.
    Text,
    /// One object a line.
    Json,
    /// One line a row, below a heading for each kind.
    Csv,
}

/// Writes the rows of a run, and shows how far it has come.
#[derive(Debug)]
pub(crate) struct Report {
    format: Format,
    progress: Progress,
    /// Kind of the row before.
    last: Option<&'static str>,
    wrong: u64,
}

impl Report {
    /// Rows of a run with `steps` steps; without a progress bar if that is 0.
    pub(crate) fn new(format: Format, steps: usize) -> Self {
        let progress = Progress::new(steps, format != Format::Text);
        Report { format, progress, last: None, wrong: 0 }
    }

    /// Writes one row.
    ///
    /// # Errors
    /// [`Unwritten`].
    pub(crate) fn row<R: Row>(&mut self, row: &R) -> Result<()> {
        self.wrong += row.wrong();
        if R::IS_FOR_SCRIPTS && self.format == Format::Text {
            return Ok(());
        }
        let text = self.render(row);
        self.progress.hidden(|| print(&text))
    }

    fn render<R: Row>(&mut self, row: &R) -> String {
        let json = || {
            let row = Tagged { row: R::KIND, fields: row };
            serde_json::to_string(&row).expect("a row is numbers and text")
        };
        let is_first = self.last.replace(R::KIND) != Some(R::KIND);
        match self.format {
            Format::Text => {}
            Format::Json => return json(),
            Format::Csv => {
                let row = serde_json::from_str(&json()).expect("it was written as JSON");
                return csv::lines(&row, is_first);
            }
        }
        let heading = row.heading().filter(|_| is_first);
        heading.map_or_else(String::new, |heading| heading + "\n") + &row.text()
    }

    /// Ends a run, with an error if any row counted wrong answers; `what` names them.
    pub(crate) fn end(self, what: &str) -> Result<()> {
        ensure!(self.wrong == 0, "{} {what} were wrong; see the rows", self.wrong);
        Ok(())
    }

    /// Wrong answers in all rows so far.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong
    }

    /// Shows what the run is doing.
    pub(crate) fn doing(&self, what: String) {
        self.progress.doing(what);
    }

    /// One step of the run is done.
    pub(crate) fn step(&self) {
        self.progress.step();
    }

    /// Counts steps from 0 again.
    pub(crate) fn restart(&self) {
        self.progress.restart();
    }

    /// Writes a line for people to standard error.
    pub(crate) fn say(&self, text: impl fmt::Display) {
        self.progress.hidden(|| say(text));
    }
}

/// Writes lines to standard output at once, harmless for a terminal.
///
/// # Errors
/// [`Unwritten`].
pub(crate) fn print(text: &str) -> Result<()> {
    use io::Write;
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{}", terminal::harmless(text)).and_then(|()| out.flush());
    written.map_err(|error| Unwritten(error).into())
}

/// Standard output takes no rows.
#[derive(Debug)]
pub(crate) struct Unwritten(io::Error);

impl Unwritten {
    /// Whether the reader of the rows has gone, which is no fault: the run ends without a message,
    /// as programs do in a pipe.
    pub(crate) fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for Unwritten {}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    row! {
        /// A row of a table.
        #[derive(Debug, Clone, Serialize)]
        pub(crate) struct Timed is "timed" {
            van: String => "van",
            op: String => "op",
            hidden: Option<u64>,
            p50_us: f64 => "p50" as figure,
            wrong: u64 => "wrong",
        }
        title |row| format!("timed: over {}", row.van);
        counts wrong;
    }

    fn timed() -> Timed {
        let van = "uring".to_owned();
        Timed { van, op: "pull".to_owned(), hidden: None, p50_us: 8.25, wrong: 2 }
    }

    #[test]
    fn json_has_every_field_in_order_behind_the_kind() {
        let expected =
            r#"{"row":"timed","van":"uring","op":"pull","hidden":null,"p50_us":8.25,"wrong":2}"#;
        assert_eq!(Report::new(Format::Json, 0).render(&timed()), expected);
    }

    #[test]
    fn csv_has_one_heading_a_kind() {
        let mut report = Report::new(Format::Csv, 0);
        let first = "row,van,op,hidden,p50_us,wrong\ntimed,uring,pull,,8.25,2";
        assert_eq!(report.render(&timed()), first);
        assert_eq!(report.render(&timed()), "timed,uring,pull,,8.25,2");
    }

    #[test]
    fn columns_line_up_below_one_heading() {
        let mut report = Report::new(Format::Text, 0);
        let first = report.render(&timed());
        let lines: Vec<&str> = first.lines().collect();
        let expected = [
            "",
            "# timed: over uring",
            "van   op               p50     wrong",
            "uring pull           8.250         2",
        ];
        assert_eq!(lines, expected);
        assert_eq!(report.render(&timed()), expected[3]);
    }

    #[test]
    fn a_run_with_wrong_answers_is_an_error() {
        let mut report = Report::new(Format::Json, 0);
        report.row(&timed()).unwrap();
        let error = report.end("answers").unwrap_err().to_string();
        assert_eq!(error, "2 answers were wrong; see the rows");
    }
}
