//! What a launcher and its agents say to each other: one JSON object a line, over the agent's
//! standard input and output, through ssh or srun. The first line of each side is here by name; an
//! agent that reads the end of its input ends all its processes.

use std::io::{self, BufRead, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::{Context, Result, bail, ensure};
use caravan_kv::{JobRole, how_ended};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What both sides have to be.
pub(super) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " ", env!("BUILD_COMMIT"));

/// Longest line, in bytes: an order has a few hundred for each node.
const LINE_MAX: u64 = 64 << 20;

/// The agent's first line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    /// The launcher's address as this host sees it, and this host's own on the way there; both are
    /// missing where the agent was started without a remote shell.
    pub(super) launcher: Option<IpAddr>,
    pub(super) own: Option<IpAddr>,
}

/// The launcher's first line. It holds the job's secret.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) secret: String,
    /// Folder to start in, if it is there.
    pub(super) folder: PathBuf,
    pub(super) command: Vec<String>,
    /// Of all processes.
    pub(super) variables: Vec<(String, String)>,
    pub(super) nodes: Vec<Node>,
}

/// One process of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    /// Its place among all processes of the job.
    pub(super) at: usize,
    pub(super) role: JobRole,
    pub(super) rank: usize,
}

/// Any later line of the agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    /// A process has written a line.
    Line { at: usize, to_error: bool, text: String },
    /// It has ended.
    Ended { at: usize, end: End },
    /// It could not be started.
    Failed { at: usize, why: String },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum End {
    Status(i32),
    Signal(i32),
}

impl End {
    pub(super) fn of(status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Status(code),
            (None, signal) => End::Signal(signal.unwrap_or_default()),
        }
    }

    pub(super) fn is_success(self) -> bool {
        self == End::Status(0)
    }

    /// The status of a shell that ran it.
    pub(super) fn status(self) -> i32 {
        match self {
            End::Status(code) => code,
            End::Signal(signal) => 128 + signal,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // As the system says it of a process that this one has started.
            End::Signal(signal) => f.write_str(&how_ended(ExitStatus::from_raw(*signal))),
            End::Status(code) => f.write_str(&how_ended(ExitStatus::from_raw(code << 8))),
        }
    }
}

/// Writes one line.
pub(super) fn say(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads one line; `None` at the end.
///
/// # Errors
/// If it is too long, or not what is expected; the error does not show it.
pub(super) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    ensure!(line.ends_with(b"\n"), "a line that does not end within {LINE_MAX} bytes");
    let heard = serde_json::from_slice(&line).map_err(|error| error.classify());
    heard.map(Some).ok().context("a line that is not of this program")
}

/// Lines that a login may print before the first one of this program, and how much is shown of
/// each, in bytes.
const BANNER_LINES_MAX: usize = 100;
const BANNER_LINE_MAX: u64 = 4 << 10;

/// Reads the first line that is of this program; those before it go to `noise`. `None` at the end.
///
/// # Errors
/// If there are too many of those, or the input breaks.
pub(super) fn hear_after<T: DeserializeOwned>(
    from: &mut impl BufRead,
    mut noise: impl FnMut(String),
) -> Result<Option<T>> {
    for _ in 0..BANNER_LINES_MAX {
        let mut line = Vec::new();
        from.take(BANNER_LINE_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        if let Ok(heard) = serde_json::from_slice(&line) {
            return Ok(Some(heard));
        }
        noise(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
    bail!("it prints {BANNER_LINES_MAX} lines, and none is of this program");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_travel() {
        let said = Said::Line { at: 3, to_error: true, text: "a\nb \u{1b}[1m é".to_owned() };
        let mut wire = Vec::new();
        say(&mut wire, &said).unwrap();
        say(&mut wire, &Said::Ended { at: 0, end: End::Signal(9) }).unwrap();
        let mut wire = &wire[..];
        assert_eq!(hear::<Said>(&mut wire).unwrap(), Some(said));
        let ended = hear::<Said>(&mut wire).unwrap();
        assert_eq!(ended, Some(Said::Ended { at: 0, end: End::Signal(9) }));
        assert_eq!(hear::<Said>(&mut wire).unwrap(), None);
    }

    #[test]
    fn lines_of_a_login_come_before_the_first() {
        let mut wire = b"welcome\n\xff{}\n".to_vec();
        say(&mut wire, &Said::Ended { at: 0, end: End::Signal(9) }).unwrap();
        let mut shown = Vec::new();
        let heard = hear_after::<Said>(&mut &wire[..], |line| shown.push(line)).unwrap();
        assert_eq!(heard, Some(Said::Ended { at: 0, end: End::Signal(9) }));
        assert_eq!(shown, ["welcome", "\u{fffd}{}"]);
        let endless = "x".repeat(3 << 20);
        let mut bytes = 0;
        let error = hear_after::<Said>(&mut endless.as_bytes(), |line| bytes += line.len());
        assert!(error.unwrap_err().to_string().contains("100 lines"));
        assert_eq!(bytes, BANNER_LINES_MAX * BANNER_LINE_MAX as usize);
        assert!(hear_after::<Said>(&mut "".as_bytes(), drop).unwrap().is_none());
    }

    #[test]
    fn a_signal_has_its_name() {
        assert_eq!(End::Signal(9).to_string(), "was ended by signal 9 (SIGKILL)");
        assert_eq!(End::Status(7).to_string(), "ended with status 7");
    }

    #[test]
    fn other_lines_are_refused_and_not_shown() {
        for line in ["Welcome to host B\n", "{}\n", "{\"secret\":\"abc\"}\n", "{\"Ended\":", "\n"] {
            let error = hear::<Said>(&mut line.as_bytes()).unwrap_err();
            assert!(!format!("{error:#}").contains("abc"), "{error:#}");
        }
    }
}
