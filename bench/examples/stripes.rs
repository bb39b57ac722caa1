//! Long values from one thread to another over one port of each or several.
//!
//! `stripes BYTES SECONDS HERE THERE [WAIT]`: HERE and THERE are the RDMA devices of the two, with
//! commas between them. The server keeps 4 offers of BYTES open, and the client writes each of them
//! as soon as it knows it. Prints the rate at which writes arrive. One write in 16 is compared.

#![forbid(unsafe_code)]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use caravan_van::mixed::Mixed;
use caravan_van::rdma::Rdma;
use caravan_van::wire::Offer;
use caravan_van::{
    Buffer, Event, FRAME_PREFIX, PeerId, RdmaConfig, Sleeper, Transport, VanConfig, Wait,
};

/// Offers that are open at a time.
const OPEN: usize = 4;

/// Writes that do not count.
const WARM_UP: usize = 8;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [bytes, seconds, here, there, wait @ ..] = words.as_slice() else {
        bail!("usage: stripes BYTES SECONDS HERE THERE [block|yield|spin]");
    };
    let wait = match wait.first().map(String::as_str) {
        None | Some("yield") => Wait::Yield,
        Some("block") => Wait::Block,
        Some("spin") => Wait::Spin,
        Some(other) => {
            bail!("there is no way to wait called {other}; there are block, yield and spin")
        }
    };
    let (bytes, seconds) = (bytes.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let (tell, told) = mpsc::channel();
    let devices = there.clone();
    let server = std::thread::spawn(move || -> Result<f64> {
        let mut van = open(1, &devices, wait)?;
        tell.send(van.about().address.clone())?;
        serve(&mut van, bytes, seconds)
    });
    let mut van = open(2, here, wait)?;
    let address = told.recv().context("the server did not start")?;
    van.connect(&address)?;
    write(&mut van, bytes)?;
    let rate = server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    println!("{bytes} bytes from {here} to {there}: {rate:.2} MB/s");
    Ok(())
}

/// A node with these ports.
fn open(node: u32, devices: &str, wait: Wait) -> Result<Mixed> {
    let ports = devices.split(',').map(|device| {
        let rdma = RdmaConfig { device: Some(device.to_owned()), ..RdmaConfig::default() };
        let port = Rdma::new(&VanConfig { node, wait, rdma, ..VanConfig::default() })?;
        Ok(Box::new(port) as Box<dyn Sleeper>)
    });
    Ok(Mixed::new(ports.collect::<Result<_>>()?, wait)?)
}

/// What a write has in it.
fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 7) >> 4) as u8).collect()
}

/// Offers memory again and again; returns how many megabytes a second were written.
fn serve(van: &mut Mixed, bytes: usize, seconds: Duration) -> Result<f64> {
    let expected = value(bytes);
    let (mut events, mut count, mut began) = (Vec::new(), 0, Instant::now());
    loop {
        van.wait(Duration::from_secs(1))?;
        van.poll(&mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Connected { peer, .. } => {
                    for _ in 0..OPEN {
                        let into = van.about().memory.allocate(bytes)?;
                        offer(van, peer, into)?;
                    }
                }
                Event::Written { peer, memory, len, .. } => {
                    let is_looked_at = count % 16 == 0;
                    ensure!(len == bytes && (!is_looked_at || memory[..] == expected[..]), "{len}");
                    count += 1;
                    if count == WARM_UP {
                        began = Instant::now();
                    }
                    let took = began.elapsed();
                    if count > WARM_UP && took >= seconds {
                        return Ok((bytes * (count - WARM_UP)) as f64 / took.as_secs_f64() / 1e6);
                    }
                    offer(van, peer, memory)?;
                }
                event => bail!("at the server: {event:?}"),
            }
        }
    }
}

fn offer(van: &mut Mixed, peer: PeerId, into: Buffer) -> Result<()> {
    let offer = van.offer(peer, into)?;
    let words = [offer.key, offer.address, offer.len].map(|word| word.get().to_le_bytes());
    let mut frame = van.about().memory.allocate(FRAME_PREFIX + size_of::<Offer>())?;
    frame[FRAME_PREFIX..].copy_from_slice(&words.concat());
    van.post_send(peer, frame.into())?;
    Ok(())
}

/// Writes to every offer, until the server has gone.
fn write(van: &mut Mixed, bytes: usize) -> Result<()> {
    let value = Buffer::adopt(value(bytes)).share();
    let mut events = Vec::new();
    loop {
        van.wait(Duration::from_secs(1))?;
        van.poll(&mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Connected { .. } => {}
                Event::Received { peer, frame } => {
                    ensure!(frame.len() == size_of::<Offer>(), "this is no offer");
                    let word = |at: usize| {
                        frame[8 * at..].first_chunk().copied().map_or(0, u64::from_le_bytes).into()
                    };
                    let offer = Offer { key: word(0), address: word(1), len: word(2) };
                    van.post_write(peer, value.clone().into(), &offer, 0)?;
                }
                Event::Lost { .. } => return Ok(()),
                event => bail!("at the client: {event:?}"),
            }
        }
    }
}
