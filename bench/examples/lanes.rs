//! One server thread and one client thread with many lanes between them.
//!
//! `lanes VAN LANES ACTIVE BYTES SECONDS [WAIT]`: LANES connections, of which ACTIVE have one
//! request of BYTES in flight at a time. Prints the time of a round in which each active lane makes
//! one round trip, and the system calls of a round trip on either side. Every answer is compared.

#![forbid(unsafe_code)]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use caravan_fallback_tcp::Tcp;
use caravan_van::uring::Uring;
use caravan_van::{Counters, Event, FRAME_PREFIX, PeerId, Transport, VanConfig, Wait};

/// The part of the time that does not count.
const WARM_UP: f64 = 0.2;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [van, lanes, active, bytes, seconds, wait @ ..] = words.as_slice() else {
        bail!("usage: lanes uring|tcp|rdma LANES ACTIVE BYTES SECONDS [block|yield|spin]");
    };
    let wait = match wait.first().map(String::as_str) {
        None => Wait::default(),
        Some("block") => Wait::Block,
        Some("yield") => Wait::Yield,
        Some("spin") => Wait::Spin,
        Some(other) => {
            bail!("there is no way to wait called {other}; there are block, yield and spin")
        }
    };
    let (lanes, active, bytes) = (lanes.parse()?, active.parse()?, bytes.parse()?);
    ensure!((1..=lanes).contains(&active), "ACTIVE is {active}, and it is 1 to LANES ({lanes})");
    let plan =
        Plan { lanes, active, bytes, wait, seconds: Duration::from_secs_f64(seconds.parse()?) };
    match van.as_str() {
        "uring" => measure(Uring::new, &plan),
        "tcp" => measure(Tcp::new, &plan),
        #[cfg(feature = "rdma")]
        "rdma" => measure(caravan_van::rdma::Rdma::new, &plan),
        _ => bail!("there is no van {van} here; there are uring, tcp and rdma"),
    }
}

/// What is measured.
#[derive(Clone, Copy)]
struct Plan {
    lanes: usize,
    active: usize,
    bytes: usize,
    wait: Wait,
    seconds: Duration,
}

fn measure<T: Transport + 'static>(
    open: fn(&VanConfig) -> caravan_van::Result<T>,
    plan: &Plan,
) -> Result<()> {
    let (tell, told) = mpsc::channel();
    let wait = plan.wait;
    let server = std::thread::spawn(move || -> Result<Counters> {
        let mut van = open(&VanConfig { node: 1, wait, ..VanConfig::default() })?;
        tell.send(van.about().address.clone())?;
        answer(&mut van)
    });
    let mut van = open(&VanConfig { node: 2, wait, ..VanConfig::default() })?;
    let address = told.recv().context("the server did not start")?;
    let peers = connect(&mut van, &address, plan.lanes)?;
    let mut rounds = Rounds { van, peers, bytes: plan.bytes, sent: 0, events: Vec::new() };
    let warm = Instant::now();
    while warm.elapsed() < plan.seconds.mul_f64(WARM_UP) {
        rounds.run(plan.active)?;
    }
    let mut nanos = Vec::new();
    let before = rounds.van.counters();
    let began = Instant::now();
    while began.elapsed() < plan.seconds {
        let round = Instant::now();
        rounds.run(plan.active)?;
        nanos.push(round.elapsed().as_nanos() as u64);
    }
    let after = rounds.van.counters();
    let (sent, total) = (nanos.len() * plan.active, rounds.sent);
    let name = rounds.van.about().name;
    drop(rounds);
    let served = server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    nanos.sort_unstable();
    let of = |calls: u64, count: usize| calls as f64 / count as f64;
    println!(
        "{name} lanes {} active {} bytes {}: p50 {:.2} us a round, {:.3} us a round trip, \
         calls a round trip: client {:.2}, server {:.2}; sleeps {}, {}",
        plan.lanes,
        plan.active,
        plan.bytes,
        nanos[nanos.len() / 2] as f64 / 1e3,
        began.elapsed().min(plan.seconds).as_nanos() as f64 / 1e3 / sent as f64,
        of(after.system_calls - before.system_calls, sent),
        of(served.system_calls, total),
        after.sleeps - before.sleeps,
        served.sleeps,
    );
    Ok(())
}

/// Connects `lanes` times.
fn connect<T: Transport>(van: &mut T, address: &str, lanes: usize) -> Result<Vec<PeerId>> {
    let mut peers = Vec::new();
    let mut events = Vec::new();
    while peers.len() < lanes {
        let calls = (lanes - peers.len()).min(64);
        for _ in 0..calls {
            van.connect(address)?;
        }
        let want = peers.len() + calls;
        while peers.len() < want {
            van.wait(Duration::from_secs(1))?;
            van.poll(&mut events)?;
            for event in events.drain(..) {
                match event {
                    Event::Connected { peer, .. } => peers.push(peer),
                    event => bail!("while connecting: {event:?}"),
                }
            }
        }
    }
    Ok(peers)
}

/// Sends every frame back, until all lanes are gone.
fn answer<T: Transport>(van: &mut T) -> Result<Counters> {
    let mut events = Vec::new();
    let mut lanes = 0;
    loop {
        van.wait(Duration::from_secs(1))?;
        van.poll(&mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Connected { .. } => lanes += 1,
                Event::Received { peer, frame } => {
                    let mut answer = van.about().memory.allocate(FRAME_PREFIX + frame.len())?;
                    answer[FRAME_PREFIX..].copy_from_slice(&frame);
                    van.post_send(peer, answer.into())?;
                }
                Event::Lost { .. } => lanes -= 1,
                event => bail!("at the server: {event:?}"),
            }
            if lanes == 0 {
                return Ok(van.counters());
            }
        }
    }
}

/// Rounds of one request on each of some lanes.
struct Rounds<T> {
    van: T,
    peers: Vec<PeerId>,
    bytes: usize,
    sent: usize,
    events: Vec<Event>,
}

impl<T: Transport> Rounds<T> {
    fn run(&mut self, active: usize) -> Result<()> {
        let mark = self.sent as u8;
        for &peer in &self.peers[..active] {
            let mut frame = self.van.about().memory.allocate(FRAME_PREFIX + self.bytes)?;
            frame[FRAME_PREFIX..].fill(mark);
            self.van.post_send(peer, frame.into())?;
        }
        self.van.poll(&mut self.events)?;
        let mut answered = 0;
        loop {
            for event in self.events.drain(..) {
                let Event::Received { frame, .. } = event else { bail!("{event:?}") };
                let is_right = frame.len() == self.bytes && frame.iter().all(|&byte| byte == mark);
                ensure!(is_right, "an answer is not what was sent");
                answered += 1;
            }
            if answered == active {
                self.sent += active;
                return Ok(());
            }
            self.van.wait(Duration::from_secs(1))?;
            self.van.poll(&mut self.events)?;
        }
    }
}
