//! What the van costs without workers, servers and tables: a request with its payload and a bare
//! answer, between two endpoints over RDMA, one to and fro at a time.
//!
//! `van_alone ADDRESS BYTES COUNT`, with the address of a device, prints the median round trip as
//! `ci/suites/figures` reads it. Both sides are threads of this process and yield while they wait.

#![forbid(unsafe_code)]

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use caravan_van::rdma::Rdma;
use caravan_van::wire::Kind;
use caravan_van::{Arrival, Coding, Draft, Endpoint, Pool, Values, VanConfig, Wait};

/// As the vans have it.
const CREDITS: u16 = 256;

/// What nothing should take longer than.
const PATIENCE: Duration = Duration::from_secs(30);

fn endpoint(address: &str, node: u32) -> Result<Endpoint> {
    let listen = format!("{address}:0");
    let config = VanConfig { node, listen, wait: Wait::Yield, ..VanConfig::default() };
    Ok(Endpoint::new(Box::new(Rdma::new(&config)?), node, CREDITS))
}

/// The next thing that arrives.
fn next(endpoint: &mut Endpoint) -> Result<Arrival> {
    let began = Instant::now();
    loop {
        if let Some(arrival) = endpoint.take() {
            return Ok(arrival);
        }
        if !endpoint.poll()? {
            ensure!(began.elapsed() < PATIENCE, "nothing came for {PATIENCE:?}");
            endpoint.wait(PATIENCE)?;
        }
    }
}

/// Answers every request, until the other side is gone.
fn serve(address: &str, tell: &Sender<String>) -> Result<()> {
    let mut endpoint = endpoint(address, 2)?;
    tell.send(endpoint.lanes.address().to_owned())?;
    loop {
        match next(&mut endpoint)? {
            Arrival::Message { peer } => {
                let timestamp = endpoint.inbox.message().timestamp();
                endpoint.inbox.message_mut().advance();
                endpoint.lanes.answer(peer, timestamp)?;
            }
            Arrival::Lost { .. } => return Ok(()),
            Arrival::Connected { .. } | Arrival::Placed { .. } => {}
        }
    }
}

/// The median of `count` round trips of `bytes` bytes there and an answer back, in microseconds.
fn measure(address: &str, server: &str, bytes: usize, count: usize) -> Result<f64> {
    let mut endpoint = endpoint(address, 1)?;
    let peer = endpoint.connect(server)?;
    let Arrival::Connected { .. } = next(&mut endpoint)? else {
        bail!("{server} cannot be reached")
    };
    let mut values = Pool::new(1 << 20).allocate(bytes)?;
    values.fill(1);
    let mut coding = Coding::plain();
    let mut nanos = Vec::with_capacity(count);
    let warm_up = count / 10 + 2;
    for number in 0..warm_up + count {
        let timestamp = number as u64;
        let began = Instant::now();
        let draft = Draft {
            timestamp,
            keys: &[7],
            values: Values::Copied(&values),
            ..Draft::new(Kind::Request)
        };
        endpoint.lanes.post(peer, draft, &mut coding)?;
        let Arrival::Message { .. } = next(&mut endpoint)? else { bail!("no answer came") };
        let answered = endpoint.inbox.message().timestamp();
        endpoint.inbox.message_mut().advance();
        if number >= warm_up {
            nanos.push(began.elapsed().as_nanos());
        }
        ensure!(answered == timestamp, "the answer is to another request");
    }
    nanos.sort_unstable();
    Ok(nanos[count / 2] as f64 / 1e3)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, bytes, count] = &arguments[..] else {
        bail!("van_alone ADDRESS BYTES COUNT");
    };
    let (bytes, count): (usize, usize) = (bytes.parse()?, count.parse()?);
    ensure!(count > 0 && (1..=4096).contains(&bytes), "a few short messages");
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || serve(address, &tell));
        let at = told.recv().context("the other side has no device");
        let median = at.and_then(|at| measure(address, &at, bytes, count));
        server.join().expect("the other side does not panic")?;
        println!("exchange-latency {bytes} alone {:.3}", median?);
        Ok(())
    })
}
