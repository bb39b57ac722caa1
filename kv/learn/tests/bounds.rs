//! Goal: no message makes a server thread take more than `CARAVAN_MEMORY`, however much a short one
//! asks for.
//! Method: a server thread with 64 MiB and a peer that sends anything, in a process of their own;
//! the peak of its resident memory is compared with the server's answers.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

#[path = "../../tests/support/raw_lane.rs"]
mod raw_lane;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use caravan_kv::consistency::Model;
use caravan_kv::node::open;
use caravan_kv::{Handles, Refusal, Refused, ServerThread, Store, TableSpec, ValueType, Van};
use caravan_learn::dbpg;
use caravan_van::wire::{Coding, Kind};
use caravan_van::{Draft, Endpoint, Value, Values, VanConfig};
use raw_lane::RawLane;
use serde_json::json;

const MIB: usize = 1 << 20;

/// Memory of the server thread.
const MEMORY: usize = 64 * MIB;

/// Further memory: the attacker's messages, threads and freed blocks.
const BESIDES: usize = 32 * MIB;

const PUSH: u8 = 1;
const PULL: u8 = 2;
const CREATE: u8 = 4;
const COMMAND: u8 = 5;
const JOIN: u8 = 10;
const FILTERED: u8 = 0x80;

fn endpoint(node: u32) -> Endpoint {
    let config = VanConfig { node, memory_bytes: MEMORY, ..VanConfig::default() };
    Endpoint::new(open(Van::Tcp, &config).unwrap(), node, config.credits)
}

/// A lane of node `node` to the server thread at `address`.
fn connect(node: u32, address: &str) -> RawLane {
    RawLane::to(address, endpoint(node), Coding::compact())
}

/// A server thread, and a lane to it for arbitrary messages.
struct Attack {
    lane: RawLane,
    address: String,
    /// Resident bytes of the process at the start.
    before: usize,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Attack {
    fn begin() -> Attack {
        std::fs::write("/proc/self/clear_refs", "5").unwrap(); // resets the peak
        let before = resident_peak();
        let (say, hear) = std::sync::mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let server = std::thread::spawn(move || {
            let handles = dbpg::handles(Handles::default());
            let mut server = ServerThread::new(endpoint(0), 0, 1, handles);
            say.send(server.address().to_owned()).unwrap();
            server.run(&stopped).unwrap();
        });
        let address = hear.recv().unwrap();
        Attack { lane: connect(1, &address), address, before, stop, server: Some(server) }
    }

    /// Goes on as another node.
    fn as_node(&mut self, node: u32) {
        self.lane = connect(node, &self.address);
    }

    /// Sends a request; returns the server's answer: nothing, or why it refuses.
    fn ask(&mut self, draft: Draft<'_>) -> Result<(), Refused> {
        self.lane.ask(draft)
    }

    fn create(&mut self, spec: &TableSpec) -> Result<(), Refused> {
        self.create_by(&serde_json::to_string(spec).unwrap())
    }

    fn create_by(&mut self, text: &str) -> Result<(), Refused> {
        self.ask(Draft { op: CREATE, values: Values::Copied(text.as_bytes()), ..request() })
    }

    fn push(&mut self, table: u32, keys: &[u64], values: &[u8]) -> Result<(), Refused> {
        self.ask(Draft { op: PUSH, table, keys, values: Values::Copied(values), ..request() })
    }

    /// Repeats `step` until it is refused, and a few times more: the server must have stayed within
    /// its memory, and say so.
    fn until_refused(
        mut self,
        what: &str,
        mut step: impl FnMut(&mut Attack, u64) -> Result<(), Refused>,
    ) {
        let mut refused = 0;
        for number in 0..50_000 {
            if let Err(why) = step(&mut self, number) {
                assert_eq!(why.kind, Refusal::Memory, "{what}: {why}");
                assert!(why.reason.contains("CARAVAN_MEMORY"), "{what}: {why}");
                assert!(why.reason.bytes().any(|byte| byte.is_ascii_digit()), "{what}: {why}");
                refused += 1;
            }
            if refused == 5 {
                return self.end(what);
            }
        }
        panic!("{what}: never refused");
    }

    /// Checks that the server still works, and has not taken too much.
    fn end(mut self, what: &str) {
        let taken = resident_peak().saturating_sub(self.before);
        assert!(taken < MEMORY + BESIDES, "{what}: {taken} bytes");
        assert!(!self.server.as_ref().unwrap().is_finished(), "{what}");
        let unknown = self.push(u32::MAX, &[1], &[]).unwrap_err();
        assert!(unknown.reason.contains("is unknown here"), "{what}: {unknown}");
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.server.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server has panicked");
        caravan_numa::return_freed_blocks();
    }
}

fn request<'a>() -> Draft<'a> {
    Draft::new(Kind::Request)
}

/// Most resident bytes of the process since the attack began.
fn resident_peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// A table with any handle.
fn shard(id: u32, handle: &str, value: ValueType, width: u32) -> TableSpec {
    TableSpec::new(id, "t", value, width).handle(handle)
}

fn coordinates() -> TableSpec {
    let options = json!({
        "lambda": 1.0, "l2": 0.0, "free": null, "learning_rate": 1.0, "delta_init": 1.0,
        "delta_max": 1.0, "workers": 1_000_000, "narrow": false, "rounds": false,
        "blocks": [[0, u64::MAX]],
    });
    shard(1, "dbpg", ValueType::F64, 0).options(options)
}

/// `count` keys from `from` on, `step` apart.
fn keys(from: u64, count: u64, step: u64) -> Vec<u64> {
    (0..count).map(|n| from + n * step).collect()
}

/// One after the other, because they share the process's memory.
#[test]
fn nothing_that_a_peer_says_takes_more_than_there_is() {
    a_sketch_or_a_dense_table();
    tables_and_their_options();
    rows_and_their_keys();
    lists_of_keys();
    blocks_of_few_bytes();
    chunks_of_a_model();
    coordinates_and_passes();
    parts_and_bounds();
}

fn a_sketch_or_a_dense_table() {
    Attack::begin().until_refused("a sketch", |attack, number| {
        let options = json!({ "cells": 4_u64 << 30, "hashes": 2 });
        attack.create(&shard(number as u32, "count-min", ValueType::U8, 1).options(options))
    });
    Attack::begin().until_refused("small sketches", |attack, number| {
        let options = json!({ "cells": 5 * MIB, "hashes": 2 });
        attack.create(&shard(number as u32, "count-min", ValueType::U8, 1).options(options))
    });
    for (handle, end, width) in [
        ("add", 1 << 28, 1),
        ("add", 1, u32::MAX),
        ("add", 1 << 31, u32::MAX),
        ("adam", 1 << 31, u32::MAX),
        ("ftrl", 1 << 19, 1),
    ] {
        Attack::begin().until_refused("a dense table", |attack, number| {
            let mut spec = shard(number as u32, handle, ValueType::F64, width);
            (spec.end, spec.store) = (end, Store::Dense);
            attack.create(&spec)
        });
    }
}

fn tables_and_their_options() {
    Attack::begin().until_refused("many tables", |attack, number| {
        let name = "t".repeat(2000);
        attack.create(&TableSpec::new(number as u32, &name, ValueType::F32, 1))
    });
    Attack::begin().until_refused("options", |attack, number| {
        // Parsing takes hundreds of bytes for each of these seven.
        let options = format!("[{}0]", r#"{"":0},"#.repeat(300_000));
        let text = serde_json::to_string(&TableSpec::new(number as u32, "t", ValueType::F32, 1));
        attack.create_by(&text.unwrap().replace("null", &options))
    });
}

fn rows_and_their_keys() {
    for (handle, width, lengths) in [
        ("add", 1, None),
        ("adam", 1, None),
        ("add", 0, Some(1)),
        ("add", 0, Some(0)),
        ("add", 0, Some(40)),
    ] {
        Attack::begin().until_refused("rows", |attack, number| {
            if number == 0 {
                attack.create(&shard(1, handle, ValueType::F64, width))?;
            }
            let keys = keys(number * 1_000_003, 20_000, 37);
            let values = vec![1.0; keys.len() * lengths.unwrap_or(1)];
            let lengths: Vec<u32> = lengths.map_or(vec![], |one| vec![one as u32; keys.len()]);
            let (lengths, values) = (&lengths[..], Values::Copied(f64::bytes(&values)));
            attack.ask(Draft { op: PUSH, table: 1, keys: &keys, lengths, values, ..request() })
        });
    }
    // Each table keeps room to find as many rows as any request had.
    Attack::begin().until_refused("room to find rows", |attack, number| {
        let table = number as u32;
        attack.create(&TableSpec::new(table, "t", ValueType::U8, 1))?;
        let table = table + 1; // tables are numbered from 1
        let keys = keys(0, 500_000, 3);
        attack.ask(Draft { op: PULL, table, keys: &keys, ..request() })
    });
}

/// A lane's lists evict each other, so none is refused.
fn lists_of_keys() {
    let mut attack = Attack::begin();
    attack.create(&TableSpec::new(1, "t", ValueType::U8, 1)).unwrap();
    let keys = keys(0, 250_000, 3);
    for signature in 0..100 {
        let signature = Some(signature);
        attack.ask(Draft { op: PULL, table: 1, signature, keys: &keys, ..request() }).unwrap();
    }
    attack.end("lists of keys");
}

/// A bit stands for a row: its length, or its zeros.
fn blocks_of_few_bytes() {
    for (width, wide) in [(0, 1_u32), (1 << 16, 1 << 16)] {
        Attack::begin().until_refused("a block", |attack, number| {
            if number == 0 {
                let filters = "mask".parse().unwrap();
                let spec = TableSpec::new(1, "t", ValueType::F64, width);
                attack.create(&spec.filters(filters))?;
            }
            let (stages, rows) = if width == 0 { (1 | 16, 100_u32 << 20) } else { (1, 1 << 20) };
            let mut block = vec![stages, 0, 0, 0];
            block.extend(rows.to_le_bytes());
            block.extend(wide.to_le_bytes());
            block.resize(block.len() + rows as usize / 8, 0);
            let values = Values::Copied(&block);
            attack.ask(Draft { op: PUSH | FILTERED, table: 1, keys: &[1], values, ..request() })
        });
    }
}

fn chunks_of_a_model() {
    Attack::begin().until_refused("chunks that were read", |attack, number| {
        if number == 0 {
            let model = Model::DataCentric { delay: Some(0), chunk_keys: 1 };
            let spec = TableSpec::new(1, "chunks", ValueType::U8, 1).consistency(model, 1);
            attack.create(&spec)?;
            attack.ask(Draft { op: JOIN, table: 1, clock: 1, ..request() })?;
        }
        let keys = keys(number * 10_000, 10_000, 1);
        attack.ask(Draft { op: PULL, table: 1, clock: 1, keys: &keys, ..request() })
    });
}

fn coordinates_and_passes() {
    Attack::begin().until_refused("keys of workers", |attack, number| {
        if number == 0 {
            attack.create(&coordinates())?;
        }
        attack.as_node(number as u32);
        let keys = keys(number, 100_000, 100);
        attack.ask(Draft { op: PUSH, table: 1, keys: &keys, ..request() })
    });
    Attack::begin().until_refused("tasks", |attack, number| {
        if number == 0 {
            attack.create(&coordinates())?;
        }
        let blocks = vec![0; 500_000];
        let pass = json!({ "Pass": {
            "first": 1, "blocks": blocks, "threshold": 0.0, "reset": true, "all": true, "lossy": null,
        } });
        let values = &serde_json::to_vec(&pass).unwrap()[..];
        attack.ask(Draft { op: COMMAND, table: 1, values: Values::Copied(values), ..request() })
    });
}

fn parts_and_bounds() {
    Attack::begin().until_refused("gradients", |attack, number| {
        if number == 0 {
            let workers = json!({ "workers": 1 });
            attack.create(&shard(1, "dbpg-scores", ValueType::I64, 0).options(workers))?;
        }
        let keys = keys(number * 50_000, 50_000, 1);
        let (lengths, values) = (&vec![2; keys.len()][..], vec![1; 2 * keys.len()]);
        let values = Values::Copied(i64::bytes(&values));
        attack.ask(Draft { op: PUSH, table: 1, keys: &keys, lengths, values, ..request() })
    });
    Attack::begin().until_refused("blocks", |attack, number| {
        if number == 0 {
            let workers = json!({ "workers": 1 });
            attack.create(&shard(1, "dbpg-blocks", ValueType::I64, 0).options(workers))?;
        }
        let (lengths, values) = (&[3 * 1024][..], vec![0; 3 * 1024]);
        let values = Values::Copied(i64::bytes(&values));
        attack.ask(Draft { op: PUSH, table: 1, keys: &[number], lengths, values, ..request() })
    });
    Attack::begin().until_refused("bounds", |attack, number| {
        if number == 0 {
            attack.create(&shard(1, "dbpg-screen", ValueType::F32, 2))?;
        }
        let keys = keys(number, 100_000, 1000);
        attack.push(1, &keys, f32::bytes(&vec![1.0; 2 * keys.len()]))
    });
}
