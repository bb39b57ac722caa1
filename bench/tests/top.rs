//! Goal: `caravan top` shows what the processes of a running cluster do, and serves it as metrics
//! whatever the readers of these do.
//! Method: a cluster of processes that a driver pushes to; a program beside it; plain sockets.

use crate::support;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use caravan_kv::{Cluster, ClusterConfig, SecretSource, TableSpec, ValueType};
use caravan_van::Secret;

/// A cluster of one server and two workers, each a process.
fn cluster() -> Cluster {
    let mut config = ClusterConfig { servers: 1, workers: 2, ..ClusterConfig::default() };
    config.node.secret = SecretSource::Given(Secret::random());
    support::launch(&config)
}

/// Answers to the requests in `words`, which end the connection.
fn ask(address: &str, words: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(words.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a metric for a node, if the page has it.
fn metric(page: &str, name: &str, node: &str) -> Option<f64> {
    let begin = format!("caravan_{name}{{{node},host=");
    page.lines().find(|line| line.starts_with(&begin))?.split(' ').next_back()?.parse().ok()
}

#[test]
fn metrics_name_every_node_and_count_what_it_does_whatever_other_readers_do() {
    const WIDTH: u32 = 1 << 18;
    let cluster = cluster();
    let mut client = cluster.client().unwrap();
    let table =
        client.admin().create_table(&TableSpec::new(1, "w", ValueType::F32, WIDTH)).unwrap();
    let pushed = client.push(table, &[1], &vec![1.0f32; WIDTH as usize]).unwrap();
    let bytes = Some(4.0 * f64::from(WIDTH));
    client.wait(pushed).unwrap();

    let mut top = support::of_cluster(&cluster, "top --serve 127.0.0.1:0");
    let mut top = top.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(top.stderr.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    let address = line.split("http://").nth(1).unwrap().strip_suffix("/metrics").unwrap();

    // Some that say nothing, one that says too much, and one that goes away.
    let silent = [(); 20].map(|()| TcpStream::connect(address).unwrap());
    let mut long = TcpStream::connect(address).unwrap();
    let _ = long.write_all(&[b'x'; 10_000]);
    drop(TcpStream::connect(address).unwrap());
    let server = "role=\"server\",rank=\"0\"";
    let began = Instant::now();
    let page = loop {
        let page = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        if metric(&page, "received_bytes_total", server) >= bytes {
            break page;
        }
        assert!(began.elapsed() < support::PATIENCE, "{page}");
        std::thread::sleep(Duration::from_millis(100));
    };
    drop(silent);
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    for node in [server, "role=\"worker\",rank=\"0\"", "role=\"worker\",rank=\"1\""] {
        assert_eq!(metric(&page, "up", node), Some(1.0), "{page}");
    }
    assert!(metric(&page, "memory_bytes", server) > bytes, "{page}");
    assert!(metric(&page, "cpu_seconds_total", server) > Some(0.0), "{page}");
    assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));

    drop(client);
    cluster.shutdown().unwrap();
    assert!(support::ended(&mut top, support::PATIENCE).success());
    let last = said.map(Result::unwrap).last().unwrap();
    assert!(last.contains("the cluster has ended"), "{last}");
}

#[test]
fn an_address_that_is_taken_and_a_wrong_secret_are_named() {
    let cluster = cluster();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let output = support::of_cluster(&cluster, &format!("top --serve {address}")).output().unwrap();
    let said = support::text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot serve metrics") && said.contains(&address.to_string()), "{said}");

    let mut top = support::of_cluster(&cluster, "top --once");
    top.env("CARAVAN_SECRET", Secret::random().to_hex()).env("CARAVAN_JOIN_TIMEOUT_S", "1");
    let output = top.output().unwrap();
    let said = support::text(&output.stderr);
    assert!(output.stdout.is_empty() && !output.status.success(), "{said}");
    assert!(said.contains("the scheduler at"), "{said}");
    cluster.shutdown().unwrap();
}

#[test]
fn the_address_of_a_scheduler_is_asked_for() {
    let output = support::caravan("top --once").output().unwrap();
    let said = support::text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("CARAVAN_SCHEDULER"), "{said}");
}
