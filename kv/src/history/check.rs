//! Reads histories and checks them, event by event: no file is ever in memory as a whole.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use super::MAGIC;
use super::data_centric::DataCentric;
use super::event::{Event, Op};
use super::staleness::Staleness;
use crate::consistency::{Consistency, Model};
use crate::files;

/// Longest line of a history, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Where an event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the history among those that are checked together.
    pub file: usize,
    /// Its line, from 1.
    pub line: u64,
}

/// Two events that a model forbids in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The constraint.
    pub rule: &'static str,
    /// The event that must not come before the other, if it is a single one.
    pub before: Option<Place>,
    /// The event that breaks the constraint.
    pub after: Place,
    /// That event.
    pub event: Event,
}

/// Why histories are not accepted.
#[derive(Debug)]
pub enum Trouble {
    /// A history cannot be read.
    Unreadable {
        /// Its index.
        file: usize,
        /// The reason.
        source: io::Error,
    },
    /// A line is none of a history.
    Invalid {
        /// The line.
        place: Place,
        /// What is wrong with it.
        what: String,
    },
    /// The histories are of tables with different models.
    OtherTable {
        /// Its index.
        file: usize,
    },
    /// The model is broken.
    Violated(Box<Violation>),
}

impl Trouble {
    /// The reason in words, where `name` says what the history of an index is called.
    pub fn describe(&self, name: impl Fn(usize) -> String) -> String {
        let at = |place: &Place| format!("{}, line {}", name(place.file), place.line);
        match self {
            Trouble::Unreadable { file, source } => {
                format!("{} cannot be read: {source}", name(*file))
            }
            Trouble::Invalid { place, what } => format!("{}: {what}", at(place)),
            Trouble::OtherTable { file } => {
                format!("{} is of another table than {}", name(*file), name(0))
            }
            Trouble::Violated(violation) => {
                let Violation { rule, before, after, event } = &**violation;
                let before = before.map_or_else(String::new, |it| format!(", after {}", at(&it)));
                format!("{rule}: {} ({event}){before}", at(after))
            }
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(|file| format!("history {file}")))
    }
}

impl std::error::Error for Trouble {}

/// What was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The table's model.
    pub consistency: Consistency,
    /// Events of all histories.
    pub events: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
}

/// The rules of a model, fed with the events of each history in order.
pub(super) trait Rules {
    /// Whether an event's turn has come, as far as other histories are concerned.
    fn is_due(&self, _event: &Event) -> bool {
        true
    }

    /// Records an event.
    ///
    /// # Errors
    /// The violation.
    fn enter(&mut self, place: Place, event: &Event) -> Result<(), Box<Violation>>;
}

/// A history that is being read.
struct Reading<R> {
    lines: R,
    file: usize,
    line: u64,
    text: Vec<u8>,
    /// The next event, unless the history is at its end.
    event: Event,
    is_at_end: bool,
}

impl<R: BufRead> Reading<R> {
    /// Reads the head of a history, and its first event.
    fn begin(lines: R, file: usize) -> Result<(Self, Consistency), Trouble> {
        let event = Event::default();
        let mut reading =
            Reading { lines, file, line: 0, text: Vec::new(), event, is_at_end: false };
        reading.read_line()?;
        let head = String::from_utf8_lossy(&reading.text).into_owned();
        let text = head.strip_prefix(MAGIC).filter(|_| !reading.is_at_end);
        let text =
            text.ok_or_else(|| reading.invalid(format!("it has to begin with {MAGIC:?}")))?;
        let consistency: Consistency = serde_json::from_str(text.trim())
            .map_err(|error| reading.invalid(error.to_string()))?;
        consistency.check().map_err(|reason| reading.invalid(reason))?;
        reading.advance()?;
        Ok((reading, consistency))
    }

    fn place(&self) -> Place {
        Place { file: self.file, line: self.line }
    }

    fn invalid(&self, what: impl Into<String>) -> Trouble {
        Trouble::Invalid { place: self.place(), what: what.into() }
    }

    /// Reads the next line without its end.
    fn read_line(&mut self) -> Result<(), Trouble> {
        self.text.clear();
        self.line += 1;
        let unreadable = |source| Trouble::Unreadable { file: self.file, source };
        let mut limited = io::Read::take(&mut self.lines, LINE_BYTES_MAX as u64);
        let bytes = limited.read_until(b'\n', &mut self.text).map_err(unreadable)?;
        self.is_at_end = bytes == 0;
        match self.text.pop() {
            Some(b'\n') | None => Ok(()),
            // A process that was killed leaves the beginning of a line.
            Some(_) if bytes < LINE_BYTES_MAX => {
                self.is_at_end = true;
                Ok(())
            }
            Some(_) => Err(self.invalid(format!("it is longer than {LINE_BYTES_MAX} bytes"))),
        }
    }

    /// Goes on to the next event.
    fn advance(&mut self) -> Result<(), Trouble> {
        self.read_line()?;
        if self.is_at_end {
            return Ok(());
        }
        let Reading { event, text, .. } = self;
        event.read(text).map_err(|what| self.invalid(what))
    }
}

/// Checks the histories of one table at all server threads. `open` opens them from the beginning;
/// it is called twice for histories of several threads under data-centric constraints.
///
/// # Errors
/// The violation, or why a history cannot be read.
pub fn check<R: BufRead>(
    files: usize,
    open: impl Fn(usize) -> io::Result<R>,
) -> Result<Summary, Trouble> {
    let mut readings = begin(files, &open)?;
    let consistency = readings.1;
    let mut rules: Box<dyn Rules> = match consistency.model {
        Model::DataCentric { delay: Some(delay), .. } => {
            let reads = if files > 1 { reads(&mut readings.0)? } else { HashMap::new() };
            readings = begin(files, &open)?;
            Box::new(DataCentric::new(files, consistency.workers, delay, reads))
        }
        _ => Box::new(Staleness::new(files, consistency.model)),
    };
    let mut summary = Summary { consistency, events: 0, reads: 0, writes: 0 };
    merge(&mut readings.0, &mut *rules, &mut summary)?;
    Ok(summary)
}

/// As [`check`], for files.
///
/// # Errors
/// As [`check`].
pub fn check_files(histories: &[PathBuf]) -> Result<Summary, Trouble> {
    check(histories.len(), |file| {
        files::open(&histories[file]).map(|file| BufReader::with_capacity(1 << 20, file))
    })
}

fn begin<R: BufRead>(
    files: usize,
    open: &impl Fn(usize) -> io::Result<R>,
) -> Result<(Vec<Reading<R>>, Consistency), Trouble> {
    let mut readings = Vec::with_capacity(files);
    let mut first = None;
    for file in 0..files {
        let lines = open(file).map_err(|source| Trouble::Unreadable { file, source })?;
        let (reading, consistency) = Reading::begin(lines, file)?;
        if *first.get_or_insert(consistency) != consistency {
            return Err(Trouble::OtherTable { file });
        }
        readings.push(reading);
    }
    let Some(consistency) = first else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "there is no history");
        return Err(Trouble::Unreadable { file: 0, source });
    };
    Ok((readings, consistency))
}

/// Number of reads of each worker in each of its iterations.
fn reads<R: BufRead>(readings: &mut [Reading<R>]) -> Result<HashMap<(u32, u64), u64>, Trouble> {
    let mut reads = HashMap::new();
    for reading in readings {
        while !reading.is_at_end {
            let Event { op, worker, clock, .. } = reading.event;
            if op == Op::Read {
                *reads.entry((worker, clock)).or_insert(0) += 1;
            }
            reading.advance()?;
        }
    }
    Ok(reads)
}

/// Records the events of all histories in an order that each history and each worker's iterations
/// allow. There is none if the edges between events have a circle.
fn merge<R: BufRead>(
    readings: &mut [Reading<R>],
    rules: &mut dyn Rules,
    summary: &mut Summary,
) -> Result<(), Trouble> {
    loop {
        let mut has_moved = false;
        for reading in readings.iter_mut() {
            while !reading.is_at_end && rules.is_due(&reading.event) {
                rules.enter(reading.place(), &reading.event).map_err(Trouble::Violated)?;
                summary.events += 1;
                summary.reads += u64::from(reading.event.op == Op::Read);
                summary.writes += u64::from(matches!(reading.event.op, Op::Write | Op::Observed));
                has_moved = true;
                reading.advance()?;
            }
        }
        let Some(blocked) = readings.iter().find(|reading| !reading.is_at_end) else {
            return Ok(());
        };
        if !has_moved {
            return Err(Trouble::Violated(Box::new(Violation {
                rule: "DAM: a write comes before reads of its iteration, in a circle of histories",
                before: None,
                after: blocked.place(),
                event: blocked.event.clone(),
            })));
        }
    }
}
