//! The same faults in the servers of a simulated cluster: workers run programs on it whose outcome,
//! or the history of which, gives every fault away.

use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caravan_kv::consistency::{Controller, Model};
use caravan_kv::{
    Error, Handles, ServerThread, Table, TableSpec, Timestamp, ValueType, Worker, history,
};
use caravan_van::KeyRange;
use caravan_van::sim::{Faults, Network};

use super::mutants::{FAULTS, Fault, Protocol};
use crate::support::simulated::{Draws, connect, start};

const WORKERS: u64 = 3;
const ITERATIONS: u64 = 5;

/// Node id of the first worker; the protocol's chunk of a worker is its rank.
const FIRST: u32 = 100;

/// What the workers do in each iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// They read all chunks and write a mix of them.
    Serial,
    /// Without delay, they send their write before the read of their own chunk.
    Ahead,
    /// They send each write twice. Without delay they also read their own chunk again.
    Again,
    /// They read the others' chunks of the next iteration before those of this one.
    Prefetch,
    /// They stop within the first iteration, when their write is acknowledged.
    Unended,
}

type Text = Arc<Mutex<Vec<u8>>>;

struct Writes(Text);

impl Write for Writes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn mix(rank: u64, clock: u64, read: &[i64]) -> i64 {
    read.iter().fold((rank << 32 | clock) as i64, |hash, value| {
        (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64).rotate_left(23)
    })
}

/// The chunks after all iterations of the serial run.
fn serial() -> Vec<i64> {
    (1..=ITERATIONS).fold(vec![0; WORKERS as usize], |read, clock| {
        (0..WORKERS).map(|rank| mix(rank, clock, &read)).collect()
    })
}

/// One worker's program; returns its last read.
fn program(
    network: &Network,
    worker: &mut Worker,
    rank: u64,
    form: Form,
    seed: u64,
    delay: u64,
) -> Result<Vec<i64>, Error> {
    let model = Model::DataCentric { delay: Some(delay), chunk_keys: 1 };
    let range = KeyRange::new(0, WORKERS).unwrap();
    let spec = TableSpec::new(1, "chunks", ValueType::I64, 1).handle("assign").keys(range);
    let table = worker.admin().create_table(&spec.consistency(model, WORKERS as u32))?;
    worker.clocks(table).join()?;
    let mut draws = Draws(seed << 8 | rank);
    for clock in 1..=ITERATIONS {
        network.sleep(Duration::from_micros(draws.below(600)));
        // In every second iteration the next one's reads come first.
        let others: Vec<u64> = (0..WORKERS).filter(|chunk| *chunk != rank).collect();
        let has_read = form == Form::Prefetch && clock % 2 == 0;
        let mut ahead = Vec::new();
        if form == Form::Prefetch && !has_read {
            for chunk in &others {
                ahead.push(worker.clocks(table).pull_ahead(1, &[*chunk])?);
            }
            network.sleep(Duration::from_micros(draws.below(2000)));
        }
        let all: Vec<u64> = (0..WORKERS).collect();
        if form == Form::Ahead && delay == 0 {
            let reads = read(worker, table, &others)?;
            collect(worker, reads)?;
            let pushed = worker.push(table, &[rank], &[clock as i64])?;
            network.sleep(Duration::from_micros(draws.below(600)));
            let own = worker.pull(table, &[rank])?;
            worker.wait(own)?;
            worker.wait(pushed)?;
            worker.clocks(table).advance()?;
            continue;
        }
        let chunks = if has_read { &all[rank as usize..=rank as usize] } else { &all };
        let reads = read(worker, table, chunks)?;
        let value = mix(rank, clock, &collect(worker, reads)?);
        let pushed = worker.push(table, &[rank], &[value])?;
        worker.wait(pushed)?;
        if form == Form::Unended {
            // Its lane stays: a lost one would have the server look at what is parked.
            network.sleep(Duration::from_secs(1000));
            return Ok(Vec::new());
        }
        if form == Form::Again {
            let pushed = worker.push(table, &[rank], &[value])?;
            worker.wait(pushed)?;
            if delay == 0 {
                let pulled = worker.pull(table, &[rank])?;
                // It may be refused, since the version that it has to see is gone.
                let _ = worker.wait(pulled);
            }
        }
        worker.clocks(table).advance()?;
        collect(worker, ahead)?;
    }
    let reads = read(worker, table, &(0..WORKERS).collect::<Vec<_>>())?;
    collect(worker, reads)
}

/// Pulls of chunks, one by one.
fn read(worker: &mut Worker, table: Table, chunks: &[u64]) -> Result<Vec<Timestamp>, Error> {
    chunks.iter().map(|chunk| worker.pull(table, &[*chunk])).collect()
}

fn collect(worker: &mut Worker, reads: Vec<Timestamp>) -> Result<Vec<i64>, Error> {
    let read = |it| Ok(worker.wait(it)?.values::<i64>()[0]);
    reads.into_iter().map(read).collect()
}

/// What gives a fault away in one run, if anything does.
fn fault_of(
    seed: u64,
    form: Form,
    delay: u64,
    make: impl Fn() -> Box<dyn Controller> + Clone + Send + Sync + 'static,
) -> Option<String> {
    let network = Network::new(seed, Faults::jittery());
    let text = Text::default();
    let recorded = text.clone();
    let record = move |server: ServerThread| {
        let text = recorded.clone();
        server.record_histories(move |_, _| Ok(Box::new(Writes(text.clone()))))
    };
    let handles = Handles::default().with_controllers(move |_, _| Some(make()));
    let (addresses, stop) = start(&network, 1, &handles, record);
    let nodes: Vec<_> = (0..WORKERS)
        .map(|rank| {
            let addresses = addresses.clone();
            network.spawn(&format!("worker {rank}"), move |network| {
                let mut worker = connect(network, FIRST + rank as u32, &addresses);
                program(network, &mut worker, rank, form, seed, delay)
            })
        })
        .collect();
    let ends: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
    stop.store(true, Ordering::Relaxed);
    let text = text.lock().unwrap();
    if let Err(trouble) = history::check(1, |_| Ok(&text[..])) {
        return Some(trouble.to_string());
    }
    for end in ends {
        match end {
            Err(error) => return Some(error.to_string()),
            Ok(read) if delay == 0 && form == Form::Serial && read != serial() => {
                return Some(format!("{read:?}, not the serial run's {:?}", serial()));
            }
            Ok(_) => {}
        }
    }
    None
}

/// What gives a fault away in any of many runs.
fn found(
    seeds: u64,
    make: impl Fn(u64) -> Box<dyn Controller> + Clone + Send + Sync + 'static,
) -> Option<String> {
    let forms = [Form::Serial, Form::Ahead, Form::Again, Form::Prefetch, Form::Unended];
    (0..seeds).find_map(|seed| {
        forms.into_iter().find_map(|form| {
            (0..2).find_map(|delay| {
                let make = make.clone();
                let why = fault_of(seed, form, delay, move || make(delay))?;
                Some(format!("seed {seed}, {form:?}, δ = {delay}: {why}"))
            })
        })
    })
}

#[test]
fn clusters_without_faults_pass() {
    let own = |delay| -> Box<dyn Controller> {
        Box::new(caravan_kv::consistency::DataCentric::new(WORKERS as usize, Some(delay), 1))
    };
    assert_eq!(found(8, own), None);
    let protocol = |delay| -> Box<dyn Controller> {
        Box::new(Protocol::new(WORKERS as usize, delay, Fault::None))
    };
    assert_eq!(found(8, protocol), None);
}

#[test]
fn every_fault_of_a_server_is_found() {
    for fault in FAULTS {
        let found = found(30, move |delay| Box::new(Protocol::new(WORKERS as usize, delay, fault)));
        let why = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
        println!("{fault:?}: {why}");
    }
}
