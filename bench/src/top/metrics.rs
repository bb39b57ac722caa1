//! `caravan top --serve`: the metrics of a whole cluster on one page, in the text format of
//! Prometheus.
//!
//! All readers are looked at in turn, and none is waited for. Each has a bound on its time and on
//! its length, which small HTTP servers on crates.io lack. The cluster does not notice a slow
//! reader.

use std::collections::VecDeque;
use std::fmt::{Display, Write as _};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use caravan_kv::node::{LanesByVan, NodeState, Observer, Vitals};

use crate::cli::ending::Usage;
use crate::report::say;

/// Time between two looks at the readers.
const LOOK: Duration = Duration::from_millis(50);

/// How long a reader may take to ask, and as long again to read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most readers at a time; one more takes the place of the one that came first.
const READERS_MAX: usize = 64;

/// Longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Serves the metrics at `address` until the cluster has ended.
///
/// # Errors
/// [`Usage`] if the address cannot be bound; those of the observer.
pub(super) fn serve(address: &str, observer: &mut Observer) -> Result<()> {
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Usage(format!("cannot serve metrics at {address}: {error}")))?;
    say(format_args!("metrics are at http://{}/metrics", listener.local_addr()?));
    let mut readers = Readers::default();
    loop {
        if let Err(error) = readers.accept(&listener, Instant::now()) {
            say(format_args!("cannot accept a reader of metrics: {error}"));
        }
        readers.look(Instant::now(), |request| answer(request, observer));
        observer.pause(LOOK)?;
    }
}

/// The answer to a request with this first line.
fn answer(request: &str, observer: &mut Observer) -> String {
    let (status, body) = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/metrics", _] => match observer.nodes() {
            Ok(nodes) => ("200 OK", page(&nodes)),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        ["GET", ..] => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is served\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Those who are connected, in the order in which they came.
#[derive(Default)]
struct Readers(VecDeque<Reader>);

impl Readers {
    /// Takes in whoever has connected, but not more than there is room for.
    fn accept(&mut self, listener: &TcpListener, now: Instant) -> io::Result<()> {
        for _ in 0..READERS_MAX {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            if self.0.len() == READERS_MAX {
                self.0.pop_front();
            }
            self.0.push_back(Reader::new(stream, now));
        }
        Ok(())
    }

    /// Goes on with every reader as far as that takes no wait, and leaves those that are done.
    fn look(&mut self, now: Instant, mut answer: impl FnMut(&str) -> String) {
        // A reader that goes away is its own affair.
        self.0.retain_mut(|reader| reader.go_on(now, &mut answer).is_ok_and(|is_done| !is_done));
    }
}

/// One who asks, and then reads the answer.
struct Reader {
    stream: TcpStream,
    /// It is left then.
    until: Instant,
    /// What has come of the request.
    asked: Vec<u8>,
    /// What it has not read yet; `None` before the whole request is there.
    unread: Option<VecDeque<u8>>,
}

impl Reader {
    fn new(stream: TcpStream, now: Instant) -> Reader {
        Reader { stream, until: now + PATIENCE, asked: Vec::new(), unread: None }
    }

    /// Reads and writes what goes without a wait; returns whether this reader is done.
    ///
    /// # Errors
    /// If it is gone, takes too long, or asks too much.
    fn go_on(&mut self, now: Instant, answer: impl FnOnce(&str) -> String) -> io::Result<bool> {
        if now >= self.until {
            return Err(ErrorKind::TimedOut.into());
        }
        if self.unread.is_none() {
            let Some(request) = self.request()? else { return Ok(false) };
            self.unread = Some(answer(&request).into_bytes().into());
            self.until = now + PATIENCE;
        }
        let unread = self.unread.get_or_insert_default();
        while !unread.is_empty() {
            match self.stream.write(unread.as_slices().0) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => drop(unread.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The first line of the request, once all of it is there.
    fn request(&mut self) -> io::Result<Option<String>> {
        let mut piece = [0; 1024];
        while self.asked.len() < REQUEST_BYTES_MAX {
            let count = match self.stream.read(&mut piece) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            self.asked.extend_from_slice(&piece[..count]);
            let is_whole = self.asked.windows(4).any(|four| four == b"\r\n\r\n");
            if is_whole || count == 0 {
                let text = String::from_utf8_lossy(&self.asked);
                let line = text.lines().next().ok_or(ErrorKind::UnexpectedEof)?;
                return Ok(Some(line.to_owned()));
            }
        }
        Err(ErrorKind::InvalidData.into())
    }
}

/// The text of all metrics.
fn page(nodes: &[NodeState]) -> String {
    let mut page = Page::default();
    page.metric(nodes, "up", "gauge", "1 if the node is there, 0 if it is lost", |node| {
        Some(u8::from(node.lost.is_none()))
    });
    page.metric(nodes, "slow", "gauge", "1 for a worker that others have to wait for", |node| {
        Some(u8::from(node.is_slow))
    });
    let behind = "iterations that a worker has been behind the middle one lately";
    page.metric(nodes, "clocks_behind", "gauge", behind, |node| Some(node.behind));
    let mut vital = |name, kind, help, of: fn(&Vitals) -> Option<f64>| {
        page.metric(nodes, name, kind, help, |node| of(node.vitals.as_ref()?));
    };
    vital("cpu_seconds_total", "counter", "CPU time of the process", |it| {
        Some(it.cpu_ns as f64 / 1e9)
    });
    vital("memory_bytes", "gauge", "resident memory of the process", |it| {
        Some(it.memory_bytes as f64)
    });
    vital("sent_bytes_total", "counter", "bytes handed to the van", |it| {
        Some(it.bytes_sent as f64)
    });
    vital("received_bytes_total", "counter", "bytes taken from the van", |it| {
        Some(it.bytes_received as f64)
    });
    vital("sent_messages_total", "counter", "requests and answers sent", |it| {
        Some(it.messages_sent as f64)
    });
    vital("received_messages_total", "counter", "requests and answers received", |it| {
        Some(it.messages_received as f64)
    });
    vital("system_calls_total", "counter", "system calls of the van", |it| {
        Some(it.system_calls as f64)
    });
    vital("sleeps_total", "counter", "times that a thread slept for want of work", |it| {
        Some(it.sleeps as f64)
    });
    vital("clock", "gauge", "iteration that a worker is in", |it| {
        Some(it.clock as f64).filter(|clock| *clock > 0.0)
    });
    for (at, (van, _)) in LanesByVan::default().named().into_iter().enumerate() {
        let help = format!("lanes over the {van} van");
        page.metric(nodes, &format!("lanes_{van}"), "gauge", &help, |node| {
            Some(node.vitals.as_ref()?.lanes.named()[at].1)
        });
    }
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    /// Adds a metric with its value for each node that has one.
    fn metric<V: Display>(
        &mut self,
        nodes: &[NodeState],
        name: &str,
        kind: &str,
        help: &str,
        value: impl Fn(&NodeState) -> Option<V>,
    ) {
        let Page(text) = self;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP caravan_{name} {help}\n# TYPE caravan_{name} {kind}");
        for node in nodes {
            let Some(value) = value(node) else { continue };
            let NodeState { role, rank, host, .. } = node;
            let host = host.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let labels = format!(r#"role="{role}",rank="{rank}",host="{host}""#);
            let _ = writeln!(text, "caravan_{name}{{{labels}}} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use caravan_kv::node::Role;

    use super::*;

    #[test]
    fn the_page_names_every_node_and_escapes_labels() {
        let vitals = Vitals { cpu_ns: 1_500_000_000, clock: 4, ..Vitals::default() };
        let worker = NodeState {
            role: Role::Worker,
            rank: 2,
            host: "a\"\\\nb".to_owned(),
            pid: 7,
            lost: None,
            vitals: Some(vitals),
            behind: 0.75,
            is_slow: true,
        };
        let lost = Some("why".to_owned());
        let server =
            NodeState { role: Role::Server, rank: 0, lost, vitals: None, ..worker.clone() };
        let page = page(&[server, worker]);
        let labels = r#"role="worker",rank="2",host="a\"\\\nb""#;
        for line in [
            "# TYPE caravan_cpu_seconds_total counter".to_owned(),
            format!("caravan_cpu_seconds_total{{{labels}}} 1.5"),
            format!("caravan_clock{{{labels}}} 4"),
            format!("caravan_slow{{{labels}}} 1"),
            format!("caravan_clocks_behind{{{labels}}} 0.75"),
            format!("caravan_up{{{labels}}} 1"),
            format!("caravan_up{{{}}} 0", labels.replace("worker", "server").replace('2', "0")),
        ] {
            assert!(page.lines().any(|it| it == line), "{line}\n{page}");
        }
        let server = labels.replace("worker", "server").replace('2', "0");
        assert!(!page.contains(&format!("caravan_clock{{{server}")), "it has told nothing");
    }

    /// Readers of a listener, and those who connect to it.
    fn listen() -> (Readers, TcpListener, impl Fn() -> TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (Readers::default(), listener, move || TcpStream::connect(address).unwrap())
    }

    fn is_left(mut stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        !stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Goal: whoever asks is answered whatever those do who came before. Method: the clock stands
    /// still, so none of the silent ones is left for its silence.
    #[test]
    fn silent_readers_delay_nobody_and_are_left_in_the_end() {
        let (mut readers, listener, connect) = listen();
        let now = Instant::now();
        let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
        let mut asks = connect();
        asks.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        while readers.0.len() < 21 {
            readers.accept(&listener, now).unwrap();
        }
        while readers.0.len() > 20 {
            readers.look(now, |request| format!("asked {request}"));
        }
        let mut read = String::new();
        asks.read_to_string(&mut read).unwrap();
        assert_eq!(read, "asked GET /metrics HTTP/1.1");
        assert!(!silent.iter().any(is_left));
        readers.look(now + PATIENCE, |_| String::new());
        assert_eq!(readers.0.len(), 0);
    }

    #[test]
    fn the_first_reader_goes_when_there_are_too_many() {
        let (mut readers, listener, connect) = listen();
        let now = Instant::now();
        let streams: Vec<TcpStream> = (0..=READERS_MAX).map(|_| connect()).collect();
        let ports = || streams.iter().map(|it| it.local_addr().unwrap().port());
        let last = ports().next_back();
        let newest = |readers: &Readers| Some(readers.0.back()?.stream.peer_addr().unwrap().port());
        while newest(&readers) != last {
            readers.accept(&listener, now).unwrap();
        }
        let there: Vec<u16> =
            readers.0.iter().map(|reader| reader.stream.peer_addr().unwrap().port()).collect();
        assert_eq!(there, ports().skip(1).collect::<Vec<_>>());
    }

    #[test]
    fn one_who_asks_too_much_or_does_not_read_is_left() {
        let (mut readers, listener, connect) = listen();
        let now = Instant::now();
        let mut long = connect();
        long.write_all(&[b'x'; 2 * REQUEST_BYTES_MAX]).unwrap();
        let mut slow = connect();
        slow.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        while readers.0.len() < 2 {
            readers.accept(&listener, now).unwrap();
        }
        let large = "x".repeat(64 << 20);
        while readers.0.len() > 1 || readers.0[0].unread.is_none() {
            readers.look(now, |_| large.clone());
        }
        readers.look(now + PATIENCE, |_| String::new());
        assert_eq!(readers.0.len(), 0);
    }
}
