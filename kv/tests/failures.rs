//! Goal: what goes wrong is an error that names the node, at once, and harms nobody else.
//! Method: servers that end, run out of memory or lie, and workers that vanish, over real sockets.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::support::{Servers, TIMEOUT, config, endpoint, handles, vans};
use caravan_kv::node::{client, open};
use caravan_kv::{
    Error, Handles, NodeConfig, SecretSource, ServerAddress, ServerThread, TableSpec, ValueType,
    Van, Worker,
};
use caravan_van::wire::{Coding, Kind};
use caravan_van::{
    Arrival, Buffer, Draft, Endpoint, Event, FRAME_PREFIX, KeyRange, Message, PeerId, Secret,
    Values,
};

/// A server's answer to the creation of a table.
const CREATED: &[u8] = b"{\"number\":1}";

const GIB: usize = 1 << 30;

#[test]
fn a_lost_server_fails_all_that_is_outstanding_with_it_at_once() {
    for van in vans() {
        let mut servers = Servers::start(van, 3, &config(64, GIB), &handles());
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "clocked", ValueType::I64, 1).handle("clocked");
        let table = worker.admin().create_table(&spec).unwrap();
        let first_two = [0, u64::MAX / 2];
        worker.set_clock(1);
        // These wait on all servers for a clock that never comes; two are long enough for offers
        // and landings.
        let mut waiting = vec![
            worker.pull(table, &[0, u64::MAX / 2, u64::MAX]).unwrap(),
            worker.pull(table, &first_two).unwrap(),
        ];
        let many: Vec<u64> = (0..30_000).map(|i| i * (u64::MAX / 30_000)).collect();
        let into = Buffer::adopt(vec![0i64; many.len()]);
        waiting.push(worker.pull_into(table, &many, into).unwrap());
        waiting.push(worker.pull(table, &many).unwrap());
        let elsewhere = worker.pull(table, &[u64::MAX]).unwrap();
        let called = Rc::new(RefCell::new(String::new()));
        let said = called.clone();
        let callback = move |outcome: Result<&caravan_kv::Answer, &Error>| {
            *said.borrow_mut() = outcome.unwrap_err().to_string();
        };
        worker.then(waiting[0], Box::new(callback)).unwrap();
        worker.set_clock(0);
        let check = worker.pull(table, &first_two).unwrap();
        worker.wait(check).unwrap();
        servers.end(1);
        let began = Instant::now();
        for timestamp in waiting {
            let error = worker.wait(timestamp).unwrap_err();
            let Error::ServerLost { server, address, .. } = &error else { panic!("{error}") };
            assert_eq!((&server[..], address), ("server 1", &servers.addresses[1].address));
            assert!(worker.wait(timestamp).unwrap().values.is_none(), "told once");
        }
        assert!(began.elapsed() < Duration::from_secs(5), "at once, not after a timeout");
        assert!(called.borrow().contains("server 1"));
        assert!(!worker.is_done(elsewhere).unwrap(), "the others go on");
        // New requests: those without the lost server work, and release what is parked.
        worker.push(table, &[u64::MAX], &[0i64]).unwrap();
        worker.wait(elsewhere).unwrap();
        let pushed = worker.push(table, &first_two, &[0i64, 0]).unwrap();
        let error = worker.wait(pushed).unwrap_err();
        assert!(
            matches!(&error, Error::ServerLost { server, .. } if server == "server 1"),
            "{error}"
        );
        let pulled = worker.pull(table, &[0]).unwrap();
        worker.wait(pulled).unwrap();
    }
}

#[test]
fn a_server_lost_while_its_lane_is_full_ends_the_wait_for_room() {
    for van in vans() {
        let mut servers = Servers::start(van, 1, &config(2, GIB), &handles());
        let mut worker = servers.worker();
        let spec = TableSpec::new(1, "clocked", ValueType::I64, 1).handle("clocked");
        let table = worker.admin().create_table(&spec).unwrap();
        worker.set_clock(9);
        let waiting = [worker.pull(table, &[1]).unwrap(), worker.pull(table, &[1]).unwrap()];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                servers.end(0);
            });
            let third = worker.pull(table, &[1]).unwrap(); // finds no credit
            for timestamp in [waiting[0], waiting[1], third] {
                assert!(matches!(worker.wait(timestamp), Err(Error::ServerLost { .. })));
            }
        });
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    for van in vans() {
        let address = "127.0.0.1:1".to_owned();
        let nobody = [ServerAddress { name: "server 7 thread 2".to_owned(), address }];
        let error = Worker::connect(endpoint(van, &config(4, GIB)), &nobody, TIMEOUT)
            .err()
            .expect("nobody listens on port 1")
            .to_string();
        assert!(error.contains("server 7 thread 2 at 127.0.0.1:1"), "{error}");
        if matches!(van, Van::Rdma | Van::Shm) {
            continue; // only a van's own code listens there
        }
        // One that listens, and never says hello.
        let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = mute.local_addr().unwrap().to_string();
        let mute = [ServerAddress { name: "mute".to_owned(), address: address.clone() }];
        let timeout = Duration::from_millis(300);
        let error = Worker::connect(endpoint(van, &config(4, GIB)), &mute, timeout).err().unwrap();
        assert!(
            matches!(&error, Error::Timeout { missing, .. } if missing.contains(&address)),
            "{error}"
        );
    }
}

#[test]
fn a_server_without_memory_refuses_and_goes_on() {
    for van in vans() {
        let mut small = config(16, 16 << 20);
        let servers = Servers::start(van, 1, &small, &handles());
        small.memory_bytes = GIB;
        let mut worker =
            Worker::connect(endpoint(van, &small), &servers.addresses, TIMEOUT).unwrap();
        let spec = TableSpec::new(1, "sums", ValueType::I64, 256);
        let table = worker.admin().create_table(&spec).unwrap();
        // Each push takes one more row of 2 KiB, 32 rows a chunk, until nothing is left.
        let row = vec![1i64; 256];
        let mut stored = 0;
        let error = loop {
            let pushed = worker.push(table, &[stored], &row).unwrap();
            match worker.wait(pushed) {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < 10_000, "16 MiB hold less");
        };
        let text = error.to_string();
        assert!(
            matches!(error, Error::Refused { .. }) && text.contains("CARAVAN_MEMORY"),
            "{text}"
        );
        // Neither a panic nor half of a push: two rows that exist and one that finds no place.
        let keys = [0, 1, stored];
        for _ in 0..2 {
            let pushed = worker.push(table, &keys, &vec![5i64; 3 * 256]).unwrap();
            assert!(matches!(worker.wait(pushed), Err(Error::Refused { .. })));
        }
        let pulled = worker.pull(table, &keys).unwrap();
        let answer = worker.wait(pulled).unwrap();
        assert_eq!(answer.values::<i64>(), [vec![1i64; 512], vec![0; 256]].concat());
        let pushed = worker.push(table, &[0], &row).unwrap();
        worker.wait(pushed).unwrap();
        // An answer that finds no place there.
        let keys: Vec<u64> = (0..stored).collect();
        let varying = worker.pull(table, &keys).unwrap();
        let outcome = worker.wait(varying);
        assert!(matches!(&outcome, Err(Error::Refused { .. })), "{outcome:?}");
        let pulled = worker.pull(table, &[0]).unwrap();
        assert_eq!(worker.wait(pulled).unwrap().values::<i64>()[0], 2);
    }
}

/// A worker with a server that is played by hand.
struct Played {
    endpoint: Endpoint,
    peer: PeerId,
}

impl Played {
    /// Answers requests with `answer` until the worker is gone.
    fn serve(
        van: Van,
        mut answer: impl FnMut(&mut Played, &Message) + Send + 'static,
    ) -> (ServerAddress, std::thread::JoinHandle<()>) {
        let (say, hear) = std::sync::mpsc::channel();
        let run = move || {
            let endpoint = endpoint(van, &config(16, GIB));
            say.send(endpoint.lanes.address().to_owned()).unwrap();
            let mut played = Played { endpoint, peer: PeerId(0) };
            loop {
                played.endpoint.wait(Duration::from_millis(10)).unwrap();
                played.endpoint.poll().unwrap();
                while let Some(arrival) = played.endpoint.take() {
                    match arrival {
                        Arrival::Connected { .. } => {}
                        Arrival::Lost { .. } => return,
                        Arrival::Placed { .. } => panic!("a server asks for nothing"),
                        Arrival::Message { peer } => {
                            let message = played.endpoint.pop().unwrap();
                            played.peer = peer;
                            answer(&mut played, &message);
                        }
                    }
                }
            }
        };
        let thread = std::thread::spawn(run);
        (ServerAddress { name: "liar".to_owned(), address: hear.recv().unwrap() }, thread)
    }

    fn post<'a>(&mut self, kind: Kind, timestamp: u64, values: Values<'a>, lengths: &'a [u32]) {
        let draft = Draft { timestamp, values, lengths, ..Draft::new(kind) };
        let _ = self.endpoint.lanes.post(self.peer, draft, &mut Coding::plain());
    }
}

#[test]
fn answers_that_do_not_fit_are_errors() {
    const CREATE: u8 = 4;
    type Lie = fn(&mut Played, &Message);
    let (address, thread) = Played::serve(Van::Tcp, |server, request| {
        server.post(Kind::Reply, request.timestamp(), Values::Copied(b"one"), &[]);
    });
    let mut worker =
        Worker::connect(endpoint(Van::Tcp, &config(16, GIB)), &[address], TIMEOUT).unwrap();
    let error =
        worker.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 1)).unwrap_err();
    assert!(error.to_string().contains("liar refused to create a table"), "{error}");
    drop(worker);
    thread.join().unwrap();
    let lies: [(Lie, &str); 4] = [
        (
            |server, request| {
                server.post(Kind::Reply, request.timestamp(), Values::Copied(&[1; 12]), &[])
            },
            "answered with",
        ),
        (
            |server, request| {
                server.post(Kind::Reply, request.timestamp(), Values::Copied(&[1; 8]), &[1, 1, 1])
            },
            "",
        ),
        (
            |server, request| server.post(Kind::Request, request.timestamp(), Values::None, &[]),
            "a request to a worker",
        ),
        (
            |server, request| {
                server.post(Kind::Reply, request.timestamp() ^ 1, Values::None, &[]); // never asked
                server.post(Kind::Reply, request.timestamp(), Values::Copied(&[1; 16]), &[]);
            },
            "nobody asked for",
        ),
    ];
    for (lie, words) in lies {
        for width in [1, 0] {
            let (address, thread) =
                Played::serve(Van::Tcp, move |server, request| match request.op() {
                    CREATE => {
                        server.post(Kind::Reply, request.timestamp(), Values::Copied(CREATED), &[])
                    }
                    _ => lie(server, request),
                });
            let mut worker =
                Worker::connect(endpoint(Van::Tcp, &config(16, GIB)), &[address], TIMEOUT).unwrap();
            let table = worker
                .admin()
                .create_table(&TableSpec::new(1, "t", ValueType::I64, width))
                .unwrap();
            let pulled = worker.pull(table, &[1, 2]).unwrap();
            let outcome = worker.wait(pulled);
            if width == 1 && words == "nobody asked for" {
                // The right answer came behind one too many; the next request finds the lane lost.
                let next = worker.pull(table, &[1, 2]).unwrap();
                assert!(outcome.is_err() || worker.wait(next).is_err());
            } else {
                let error = outcome.expect_err("a lie is found out").to_string();
                assert!(error.contains("liar"), "{error}");
                assert!(width == 0 || error.contains(words), "{error}");
            }
            drop(worker);
            thread.join().unwrap();
        }
    }
}

/// A server that gives signs of life on its lane and answers nothing: a wait for it ends, and names
/// it and the request.
#[test]
fn a_request_that_nobody_answers_is_given_up() {
    const CREATE: u8 = 4;
    let (address, thread) = Played::serve(Van::Tcp, |server, request| {
        if request.op() == CREATE {
            server.post(Kind::Reply, request.timestamp(), Values::Copied(CREATED), &[]);
        }
    });
    let config = NodeConfig {
        van: Van::Tcp,
        secret: SecretSource::Given(Secret::NONE),
        request_timeout: Duration::from_millis(300),
        credits: 64,
        ..NodeConfig::default()
    };
    let mut worker = client(&config, 1, std::slice::from_ref(&address)).unwrap();
    let table = worker.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 1)).unwrap();
    let pulled = worker.pull(table, &[1]).unwrap();
    for _ in 0..2 {
        // It may still be answered, and can be waited for again.
        let error = worker.wait(pulled).unwrap_err();
        let Error::Timeout { what, missing, .. } = &error else { panic!("{error}") };
        assert_eq!(what, &format!("request {pulled}"));
        assert_eq!(missing, &format!("{} at {}", address.name, address.address));
    }
    // So does a wait for room on its lane.
    let pushes = (0..config.credits).map(|_| worker.push(table, &[1], &[1i64]).unwrap());
    let last = pushes.last().unwrap();
    let full = worker.wait(last).unwrap_err().to_string();
    assert!(full.contains("an earlier request") && full.contains("liar at"), "{full}");
    drop(worker);
    thread.join().unwrap();
}

/// Values that a server placed, but not all of them.
#[test]
fn too_few_placed_values_are_an_error() {
    const CREATE: u8 = 4;
    let (address, thread) = Played::serve(Van::Tcp, |server, request| match request.offer() {
        None => {
            assert_eq!(request.op(), CREATE);
            server.post(Kind::Reply, request.timestamp(), Values::Copied(CREATED), &[]);
        }
        Some(offer) => {
            let values =
                server.endpoint.lanes.memory().allocate(offer.len.get() as usize - 8).unwrap();
            server.endpoint.lanes.place(server.peer, values.share(), offer).unwrap();
        }
    });
    let mut worker =
        Worker::connect(endpoint(Van::Tcp, &config(16, GIB)), &[address], TIMEOUT).unwrap();
    let table =
        worker.admin().create_table(&TableSpec::new(1, "t", ValueType::I64, 10_000)).unwrap();
    let pulled = worker.pull(table, &[1]).unwrap();
    let error = worker.wait(pulled).unwrap_err().to_string();
    assert!(error.contains("79992 bytes of values where 80000 were asked for"), "{error}");
    drop(worker);
    thread.join().unwrap();
}

/// A stranger who talks to a server must not disturb those it serves, nor may a worker that
/// vanishes.
#[test]
fn servers_outlive_their_peers() {
    for van in vans() {
        let config = config(8, GIB);
        let servers = Servers::start(van, 1, &config, &handles());
        let mut honest = servers.worker();
        let spec = TableSpec::new(1, "clocked", ValueType::I64, 1).handle("clocked");
        let table = honest.admin().create_table(&spec).unwrap();
        for misdeed in 0..4 {
            let mut raw = open(van, &config).unwrap();
            let peer = raw.connect(&servers.addresses[0].address).unwrap();
            let mut events = Vec::new();
            while events.is_empty() {
                raw.wait(Duration::from_millis(50)).unwrap();
                raw.poll(&mut events).unwrap();
            }
            assert!(matches!(events[0], Event::Connected { .. }));
            let frames = if misdeed == 0 { 9 } else { 1 };
            for number in 0..frames {
                let keys = [3, 9];
                let timestamp = number;
                let draft = match misdeed {
                    0 => Draft { op: 99, timestamp, ..Draft::new(Kind::Request) },
                    1 => {
                        Draft { op: 1, timestamp, keys: &keys, table: 1, ..Draft::new(Kind::Reply) }
                    }
                    2 => Draft { timestamp: 3 << 30, ..Draft::new(Kind::Want) },
                    _ => Draft::new(Kind::Grant),
                };
                let outgoing =
                    caravan_van::encode(draft, &mut Coding::plain(), &raw.about().memory).unwrap();
                raw.post_send(peer, outgoing.head.into()).unwrap();
            }
            if misdeed == 3 {
                let mut garbage = raw.about().memory.allocate(FRAME_PREFIX + 64).unwrap();
                garbage.fill(0x5a);
                raw.post_send(peer, garbage.into()).unwrap();
            }
            let began = Instant::now();
            while misdeed > 0 && !events.iter().any(|event| matches!(event, Event::Lost { .. })) {
                raw.wait(Duration::from_millis(50)).unwrap();
                raw.poll(&mut events).unwrap();
                assert!(began.elapsed() < TIMEOUT, "misdeed {misdeed} goes unpunished");
            }
            let pulled = honest.pull(table, &[1]).unwrap();
            honest.wait(pulled).unwrap();
        }
        // Parked requests go with their worker: nothing of it is executed afterwards.
        let mut vanishing = servers.worker();
        let same = vanishing.admin().create_table(&spec).unwrap();
        vanishing.set_clock(1);
        for _ in 0..5 {
            vanishing.pull(same, &[1]).unwrap();
        }
        vanishing.set_clock(0);
        let now = vanishing.pull(same, &[1]).unwrap();
        vanishing.wait(now).unwrap();
        drop(vanishing);
        std::thread::sleep(Duration::from_millis(300));
        let asked = honest.command(table, b"pulls").unwrap();
        let before = honest.wait(asked).unwrap().replies;
        honest.push(table, &[1], &[0i64]).unwrap();
        let asked = honest.command(table, b"pulls").unwrap();
        assert_eq!(honest.wait(asked).unwrap().replies, before);
    }
}

/// What a server says to requests it cannot make sense of.
#[test]
fn senseless_requests_are_refused_by_name() {
    let config = config(64, GIB);
    let transport = open(Van::Tcp, &config).unwrap();
    let mut server = ServerThread::new(Endpoint::new(transport, 0, 64), 0, 2, Handles::default());
    let mut client = endpoint(Van::Tcp, &config);
    let peer = client.connect(server.address()).unwrap();
    let mut ask = |op: u8, table: u32, keys: &[u64], lengths: &[u32], values: &[u8]| {
        let mut posted = false;
        loop {
            if !posted && client.lanes.credits(peer) > 0 {
                let values = Values::Copied(values);
                let draft = Draft { op, table, keys, lengths, values, ..Draft::new(Kind::Request) };
                client.lanes.post(peer, draft, &mut Coding::plain()).unwrap();
                posted = true;
            }
            client.poll().unwrap();
            server.step().unwrap();
            while let Some(arrival) = client.take() {
                match arrival {
                    Arrival::Message { .. } => {
                        let message = client.pop().unwrap();
                        return match message.kind() {
                            Kind::Failure => String::from_utf8_lossy(message.values()).into_owned(),
                            _ => String::new(),
                        };
                    }
                    Arrival::Connected { .. } | Arrival::Placed { .. } => {}
                    Arrival::Lost { error, .. } => panic!("{error}"),
                }
            }
        }
    };
    let spec = TableSpec::new(1, "t", ValueType::F32, 2).keys(KeyRange::new(0, 10).unwrap());
    assert!(ask(1, 1, &[1], &[], &[0; 8]).contains("table number 1 is unknown"));
    assert!(ask(5, 1, &[], &[], b"x").contains("table number 1 is unknown"));
    assert!(ask(4, 0, &[], &[], b"{\"id\":").contains("EOF"));
    assert!(ask(4, 1, &[], &[], b"{\"table\":\"\",\"dropped\":[]}").contains("EOF"));
    assert!(ask(4, 1, &[], &[], b"{\"table\":7}").contains("invalid type"));
    assert_eq!(ask(4, 0, &[], &[], &serde_json::to_vec(&spec).unwrap()), "");
    assert!(ask(0, 1, &[], &[], &[]).contains("no operation 0"));
    assert!(ask(1, 1, &[5], &[], &[0; 8]).contains("not in its shard of keys 0 to 4"));
    assert!(ask(2, 1, &[3, u64::MAX], &[], &[]).contains("not in its shard"));
    assert!(ask(1, 1, &[1, 2], &[], &[0; 15]).contains("takes 16 bytes, not 15"));
    assert!(ask(3, 1, &[1, 2], &[], &[]).contains("takes 16 bytes, not 0"));
    // Runs of keys: empty, overlapping, beyond the keys, more than fit, another thread's, and
    // right.
    assert!(ask(2, 1, &[1], &[0], &[]).contains("a run of 0 keys from 1 on does not end"));
    assert!(
        ask(2, 1, &[1, 3], &[3, 1], &[]).contains("a run of 3 keys from 1 on does not end by 2")
    );
    assert!(ask(2, 1, &[u64::MAX], &[2], &[]).contains("a run of 2 keys"));
    assert!(ask(2, 1, &[0], &[u32::MAX], &[]).contains("CARAVAN_MEMORY"));
    assert!(ask(2, 1, &[2], &[4], &[]).contains("not in its shard of keys 0 to 4"));
    assert!(ask(1, 1, &[2], &[3], &[0; 16]).contains("takes 24 bytes, not 16"));
    assert_eq!(ask(1, 1, &[2], &[3], &[0; 24]), "");
    let spec = TableSpec::new(2, "v", ValueType::F32, 0);
    assert_eq!(ask(4, 0, &[], &[], &serde_json::to_vec(&spec).unwrap()), "");
    assert!(ask(1, 2, &[1, 2], &[1, 2], &[0; 8]).contains("add up to 3"));
    assert!(ask(1, 2, &[1, 2], &[], &[0; 8]).contains("0 lengths"));
    assert!(ask(1, 2, &[1], &[u32::MAX], &[0; 8]).contains("4294967295"));
    assert!(ask(1, 2, &[1], &[1], &[0; 7]).contains("do not fit"));
    // The least width that overflows, and one that no memory holds.
    for (id, width) in [(3, u32::MAX), (4, 1 << 31)] {
        let spec = TableSpec::new(id, "huge", ValueType::F64, width);
        assert_eq!(ask(4, 0, &[], &[], &serde_json::to_vec(&spec).unwrap()), "");
        assert!(
            ask(2, id, &[1], &[], &[]).contains("over a message's"),
            "a pull of {width} values"
        );
        assert!(ask(1, id, &[1], &[], &[0; 8]).contains("not 8"));
    }
    assert_eq!(ask(3, 1, &[1, 2], &[], &[0; 16]), "");
}
