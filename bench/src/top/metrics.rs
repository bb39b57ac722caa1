//! `caravan top --serve`: the metrics of a whole cluster on one page, in the text format of
//! Prometheus.
//!
//! Requests are served one after the other: each has a bound on its time and on its length, which
//! small HTTP servers on crates.io lack. The cluster does not notice a slow reader.

use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use caravan_kv::node::{LanesByVan, NodeState, Observer, Vitals};

use crate::cli::ending::Usage;
use crate::report::say;

/// Time between two looks for a reader.
const LOOK: Duration = Duration::from_millis(50);

/// How long a reader may take to ask, and as long again to read.
const PATIENCE: Duration = Duration::from_secs(2);

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
    loop {
        match listener.accept() {
            // A reader that goes away is its own affair.
            Ok((stream, _)) => drop(answer(stream, observer)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => observer.pause(LOOK)?,
            Err(error) => {
                say(format_args!("cannot accept a reader of metrics: {error}"));
                observer.pause(LOOK)?;
            }
        }
    }
}

/// Answers one request.
fn answer(mut stream: TcpStream, observer: &mut Observer) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let Some(request) = request(&mut stream)? else { return Ok(()) };
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
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    write_in_time(&mut stream, answer.as_bytes())
}

/// Writes all of `bytes`, unless the reader takes too long for it.
fn write_in_time(stream: &mut TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let Some(left) = left(until) else { return Err(ErrorKind::TimedOut.into()) };
        stream.set_write_timeout(Some(left))?;
        bytes = &bytes[stream.write(bytes)?..];
    }
    Ok(())
}

/// The time until then; `None` if there is none.
fn left(until: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

/// Reads a request and returns its first line; `None` if it is too long or comes too late.
fn request(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let until = Instant::now() + PATIENCE;
    let mut read = Vec::new();
    let mut piece = [0; 1024];
    while read.len() < REQUEST_BYTES_MAX {
        let Some(left) = left(until) else { return Ok(None) };
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut piece)?;
        read.extend_from_slice(&piece[..count]);
        let is_whole = read.windows(4).any(|four| four == b"\r\n\r\n");
        if is_whole || count == 0 {
            let text = String::from_utf8_lossy(&read);
            return Ok(text.lines().next().map(str::to_owned));
        }
    }
    Ok(None)
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

    #[test]
    fn a_slow_reader_is_left_after_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let reading = std::thread::spawn(move || {
            let mut piece = vec![0; 64 << 10];
            while (&reader).read(&mut piece).is_ok_and(|count| count > 0) {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        write_in_time(&mut stream, &vec![0; 64 << 20]).unwrap_err();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
        drop(stream);
        reading.join().unwrap();
    }
}
