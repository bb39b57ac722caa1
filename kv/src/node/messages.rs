//! Every message of a thread: as a line of the log, or as an event of a trace that Perfetto and
//! Chrome show. Threads that nobody watches pay nothing: their transports are as they are.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use caravan_van::watched::{Passing, Watched};
use caravan_van::wire::Kind;
use caravan_van::{PeerId, Transport};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::backend::is_simulated;
use crate::config::NodeConfig;
use crate::error::{Error, Result};
use crate::files;
use crate::op;

/// Most events of one thread; the trace has no more, which the log says.
const EVENTS_MAX: u64 = 1_000_000;

/// Bytes of events that are written at once.
const PIECE_BYTES: usize = 32 << 10;

/// The transport of thread number `thread` of a node, by its role and id, with messages logged or
/// traced if the log or the settings ask for that.
///
/// # Errors
/// [`Error::Config`] if the file of the trace cannot be opened.
pub(super) fn watched(
    transport: Box<dyn Transport>,
    config: &NodeConfig,
    (role, node): (&str, u32),
    thread: usize,
) -> Result<Box<dyn Transport>> {
    let mut transport = transport;
    if tracing::enabled!(target: "caravan::messages", tracing::Level::TRACE) {
        transport = Box::new(Watched::new(transport, monotonic, log));
    }
    if let Some(path) = &config.trace
        && !is_simulated()
    {
        let mut trace = Trace::open(path, (role, node), thread).map_err(|error| {
            Error::Config(format!("cannot write CARAVAN_TRACE={}: {error}", path.display()))
        })?;
        transport =
            Box::new(Watched::new(transport, monotonic, move |passing| trace.enter(passing)));
    }
    Ok(transport)
}

/// The time of all processes of a host.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn log(passing: &Passing) {
    let Passing { is_sent, peer, node, kind, op, table, clock, timestamp, bytes, .. } = *passing;
    let way = if is_sent { "to" } else { "from" };
    let (range, name) = (passing.range, name(kind, op));
    tracing::trace!(
        target: "caravan::messages",
        table, timestamp, clock, ?range, bytes, "{name} {way} node {node} ({peer})"
    );
}

/// What a message is.
fn name(kind: Kind, op: u8) -> String {
    match kind {
        Kind::Request | Kind::Requests => return op::name(op),
        Kind::Reply | Kind::Replies => "reply",
        Kind::Failure => "failure",
        Kind::Want => "want a landing",
        Kind::Grant => "grant a landing",
    }
    .to_owned()
}

/// The events of one thread. All threads of a host append to one file: a list in JSON without its
/// end, which readers of this format do not need.
struct Trace {
    file: File,
    /// Whole events that are not written yet.
    piece: Vec<u8>,
    events: u64,
    process: u32,
    thread: usize,
    /// Id of this node.
    node: u32,
    /// By whether this side has made it, the other side and its number, a request without an
    /// answer: the fields that its last event has in common with its first.
    open: HashMap<(bool, PeerId, u64), String>,
}

impl Trace {
    fn open(path: &Path, (role, node): (&str, u32), thread: usize) -> io::Result<Trace> {
        let file = open(path)?;
        let mut trace = Trace {
            file,
            piece: Vec::with_capacity(2 * PIECE_BYTES),
            events: 0,
            process: std::process::id(),
            thread,
            node,
            open: HashMap::new(),
        };
        let name = format!("{role} (node {node})");
        let named = json!({
            "ph": "M", "name": "process_name", "pid": trace.process, "args": { "name": name }
        });
        trace.piece.extend_from_slice(format!("{named},\n").as_bytes());
        Ok(trace)
    }

    fn enter(&mut self, passing: &Passing) {
        let Passing { at, is_sent, peer, kind, op, table, timestamp, bytes, range, .. } = *passing;
        if self.events >= EVENTS_MAX {
            return;
        }
        match kind {
            Kind::Request => {
                let serves = if is_sent { "" } else { "serve " };
                let (name, begin) = (op::name(op), range.begin());
                // Both ends know who asks, the number and the range: their events come together.
                let asker = if is_sent { self.node } else { passing.node };
                let common = format!(
                    r#""cat":"request","name":"{serves}{name}","id":"{asker:x}.{timestamp:x}.{begin:x}""#
                );
                self.write(at, 'b', &common, &format!(r#""table":{table},"bytes":{bytes}"#));
                self.open.insert((is_sent, peer, timestamp), common);
            }
            Kind::Reply | Kind::Failure => {
                if let Some(common) = self.open.remove(&(!is_sent, peer, timestamp)) {
                    let failed = kind == Kind::Failure;
                    let arguments = format!(r#""answer_bytes":{bytes},"failed":{failed}"#);
                    self.write(at, 'e', &common, &arguments);
                }
            }
            _ => {} // notices between endpoints
        }
    }

    fn write(&mut self, at: Duration, phase: char, common: &str, arguments: &str) {
        let Trace { piece, process, thread, .. } = self;
        let (us, ns) = (at.as_micros(), at.as_nanos() % 1000);
        // Writing to memory cannot fail.
        let _ = writeln!(
            piece,
            r#"{{"ph":"{phase}",{common},"pid":{process},"tid":{thread},"ts":{us}.{ns:03},"args":{{{arguments}}}}},"#
        );
        self.events += 1;
        if self.events == EVENTS_MAX {
            tracing::warn!("the trace of a thread has {EVENTS_MAX} events, and ends");
        }
        if self.piece.len() >= PIECE_BYTES {
            self.flush();
        }
    }

    /// Writes whole events at once, so that those of others do not come between.
    fn flush(&mut self) {
        if let Err(error) = self.file.write_all(&self.piece) {
            tracing::warn!(%error, "the trace cannot be written, and ends");
            self.events = EVENTS_MAX;
        }
        self.piece.clear();
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Opens the file to append to it, with the begin of its list if it is new.
fn open(path: &Path) -> io::Result<File> {
    files::begin(path, b"[\n", files::MODE)?;
    files::append(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn files_begin_once_and_what_others_have_planted_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [trace, other, link, socket] =
            ["trace", "other", "link", "socket"].map(|name| folder.path().join(name));
        for line in ["a\n", "b\n"] {
            open(&trace).unwrap().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&trace).unwrap(), "[\na\nb\n");
        fs::write(&other, "mine").unwrap();
        symlink(&other, &link).unwrap();
        let _listens = UnixListener::bind(&socket).unwrap();
        for planted in [&link, &socket] {
            open(planted).unwrap_err();
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 4, "nothing is left behind");
    }
}
