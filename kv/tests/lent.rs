//! Goal: a peer that changes values while they are lent harms nobody: what is looked at more than
//! once is a copy. Method: a server thread on shared memory and a peer whose other thread goes on
//! writing what it has lent; a worker whose server lends it a block, which the decoder refuses to
//! read before it is copied.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::raw_lane::RawLane;
use crate::support::{Servers, TIMEOUT, config, endpoint};
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{
    Handles, Refusal, Refused, ServerAddress, Shard, TableSpec, ValueType, Van, Worker,
};
use caravan_van::wire::{Coding, Kind};
use caravan_van::{Arrival, Draft, PeerId, Pool, Shared, Values};

/// A server's answer to the creation of a table.
const CREATED: &[u8] = b"{\"number\":1}";

const PUSH: u8 = 1;
const CREATE: u8 = 4;
const COMMAND: u8 = 5;
const FILTERED: u8 = 0x80;

/// Values of a row.
const WIDTH: usize = 1 << 16;

/// Requests about what changes.
const REQUESTS: u64 = 200;

/// A shard that looks at values twice, and an answer that says whether they were the same.
struct Twice;

impl Twice {
    fn look(values: &[u8]) -> Result<(), Refused> {
        let sum = || values.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let first = std::hint::black_box(sum());
        std::thread::yield_now();
        if first == std::hint::black_box(sum()) {
            Ok(())
        } else {
            Err(Refusal::Shape.because("it changed"))
        }
    }
}

impl Shard for Twice {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        Twice::look(request.values)
    }

    fn pull(&mut self, _request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        Ok(Pulled::Bytes(0))
    }

    fn read(&mut self, _request: &Request<'_>, _into: &mut [u8]) {}

    fn command(&mut self, _sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        Twice::look(body).map(|()| Vec::new())
    }
}

/// A lane to a server that reads what is lent.
fn lane_to(servers: &Servers) -> RawLane {
    let endpoint = endpoint(Van::Shm, &config(16, 1 << 28));
    RawLane::to(&servers.addresses[0].address, endpoint, Coding::plain())
}

fn create(lane: &mut RawLane, spec: &TableSpec) {
    let text = serde_json::to_vec(spec).unwrap();
    lane.ask(Draft { op: CREATE, values: Values::Copied(&text), ..request() }).unwrap();
}

/// Memory that is lent when it is sent.
fn lendable(lane: &RawLane, bytes: &[u8]) -> Shared {
    let mut buffer = lane.endpoint.lanes.memory().allocate(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    assert!(lane.endpoint.lanes.lends(PeerId(0), bytes.len()), "so long values are lent");
    buffer.share()
}

fn request<'a>() -> Draft<'a> {
    Draft::new(Kind::Request)
}

/// Runs `work` while another thread writes one of `contents` after the other to the byte at `at` of
/// what is lent, and those behind it: past the types, as a peer with the same memory can.
fn while_it_changes(lent: &Shared, at: usize, contents: [Vec<u8>; 2], work: impl FnOnce()) {
    let address = lent[at..].as_ptr().addr() as u64;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
            while !ended.load(Ordering::Relaxed) {
                for content in &contents {
                    memory.write_all_at(content, address).unwrap();
                }
            }
        });
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(work));
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

fn servers() -> Servers {
    let twice = |_: &_, _: _, _: &_| Ok(Box::new(Twice) as Box<dyn Shard>);
    Servers::start(Van::Shm, 1, &config(16, 1 << 28), &Handles::default().with("twice", twice))
}

const HEAD_BYTES: usize = 12;

/// A row with a bit for each value; every other one is there, and so many numbers follow.
fn block() -> Vec<u8> {
    let mut block = vec![2, 0, 0, 0];
    block.extend(1_u32.to_le_bytes());
    block.extend((WIDTH as u32).to_le_bytes());
    block.resize(HEAD_BYTES + WIDTH / 8, 0x55);
    block.resize(block.len() + WIDTH / 2 * 8, 0);
    block
}

#[test]
fn a_block_that_changes_is_decoded_as_it_was_counted() {
    let servers = servers();
    let mut lane = lane_to(&servers);
    let spec = TableSpec::new(1, "t", ValueType::F64, WIDTH as u32);
    create(&mut lane, &spec.filters("zero".parse().unwrap()));
    let lent = lendable(&lane, &block());
    let last = HEAD_BYTES + WIDTH / 8 - 1;
    let bits = [0xff, 0x55].map(|bits| vec![bits]);
    while_it_changes(&lent, last, bits, || {
        for _ in 0..REQUESTS {
            let values = Values::Apart(lent.clone());
            let draft = Draft { op: PUSH | FILTERED, table: 1, keys: &[1], values, ..request() };
            if let Err(why) = lane.ask(draft) {
                assert!(why.reason.contains("its numbers take"), "{why}");
            }
        }
    });
    lane.ask(Draft { op: PUSH, table: 1, ..request() }).unwrap();
}

#[test]
fn who_looks_twice_sees_the_same() {
    let servers = servers();
    let mut lane = lane_to(&servers);
    create(&mut lane, &TableSpec::new(1, "t", ValueType::U8, WIDTH as u32).handle("twice"));
    let lent = lendable(&lane, &[0; WIDTH]);
    let contents = [1, 0].map(|byte| vec![byte; 4096]);
    while_it_changes(&lent, WIDTH / 2, contents, || {
        for number in 0..REQUESTS {
            let (op, keys) = if number % 2 == 0 { (PUSH, &[1][..]) } else { (COMMAND, &[][..]) };
            let values = Values::Apart(lent.clone());
            lane.ask(Draft { op, table: 1, keys, values, ..request() }).unwrap();
        }
    });
}

/// A server that lends every worker that pulls the same block, until it is left.
fn lending_server(address: &mpsc::Sender<String>) {
    let mut server = endpoint(Van::Shm, &config(16, 1 << 28));
    address.send(server.lanes.address().to_owned()).unwrap();
    let mut lent = server.lanes.memory().allocate(block().len()).unwrap();
    lent.copy_from_slice(&block());
    assert!(server.lanes.lends(PeerId(0), lent.len()), "so long values are lent");
    let lent = lent.share();
    loop {
        server.wait(Duration::from_millis(10)).unwrap();
        server.poll().unwrap();
        while let Some(arrival) = server.take() {
            let (peer, message) = match arrival {
                Arrival::Message { peer } => (peer, server.pop().unwrap()),
                Arrival::Connected { .. } => continue,
                Arrival::Lost { .. } => return,
                other => panic!("{other:?}"),
            };
            let reply = Draft { table: 1, ..Draft::new(Kind::Reply) };
            let reply = Draft { timestamp: message.timestamp(), ..reply };
            let reply = match message.op() {
                CREATE => Draft { values: Values::Copied(CREATED), ..reply },
                _ => Draft { op: FILTERED, values: Values::Apart(lent.clone()), ..reply },
            };
            server.lanes.post(peer, reply, &mut Coding::plain()).unwrap();
        }
    }
}

#[test]
fn a_worker_decodes_a_copy_of_a_block_that_is_lent() {
    let (sender, address) = mpsc::channel();
    let server = std::thread::spawn(move || lending_server(&sender));
    let address = ServerAddress { name: "lender".to_owned(), address: address.recv().unwrap() };
    let lanes = endpoint(Van::Shm, &config(16, 1 << 28));
    let mut worker = Worker::connect(lanes, &[address], TIMEOUT).unwrap();
    let spec = TableSpec::new(1, "t", ValueType::F64, WIDTH as u32);
    let table = worker.admin().create_table(&spec.filters("zero".parse().unwrap())).unwrap();
    let pulled = worker.pull(table, &[1]).unwrap();
    assert_eq!(worker.wait(pulled).unwrap().values::<f64>(), [0.0; WIDTH]);
    drop(worker);
    server.join().unwrap();
}
