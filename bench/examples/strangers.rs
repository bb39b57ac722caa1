//! Strangers at the ports of a running job: what `ci/suites/strangers` throws at it, for so many
//! seconds.
//!
//! `strangers silent|half|wrong|replay SECONDS ADDRESS…`; `replay` needs the job's `CARAVAN_SECRET`
//! and `CARAVAN_JOB`, to make one genuine call and to say it over and over. Prints how many
//! connections were made, and how many bytes came back.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use caravan_van::handshake::Credentials;
use caravan_van::socket::CARRIER;
use caravan_van::{Secret, VanConfig};

/// Connections that are held open at a time.
const HELD: usize = 1000;

/// Time between two connections of those that are not held.
const PAUSE: Duration = Duration::from_millis(1);

/// What came of a run.
#[derive(Default)]
struct Tally {
    connections: u64,
    refused: u64,
    bytes_heard: u64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, seconds, addresses @ ..] = &words[..] else { return usage() };
    let Ok(seconds) = seconds.parse() else { return usage() };
    let until = Instant::now() + Duration::from_secs(seconds);
    let tally = match kind.as_str() {
        "silent" => hold(addresses, &[], until),
        "half" => hold(addresses, &call(Secret::random(), 0)[..20], until),
        "wrong" => repeat(addresses, &call(Secret::random(), 0), until),
        "replay" => match genuine() {
            Some(call) => repeat(addresses, &call, until),
            None => return usage(),
        },
        _ => return usage(),
    };
    let Tally { connections, refused, bytes_heard } = tally;
    println!(
        "{kind}: {connections} connections, {refused} could not be made, {bytes_heard} bytes came back"
    );
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: strangers silent|half|wrong|replay SECONDS ADDRESS...");
    ExitCode::from(2)
}

/// What a node of that job says first.
fn call(secret: Secret, cluster: u64) -> Vec<u8> {
    let config = VanConfig { secret, cluster, ..VanConfig::default() };
    Credentials::new(&config, CARRIER).call().1.to_vec()
}

fn genuine() -> Option<Vec<u8>> {
    let secret = Secret::from_hex(&std::env::var("CARAVAN_SECRET").ok()?).ok()?;
    let job = u64::from_str_radix(&std::env::var("CARAVAN_JOB").ok()?, 16).ok()?;
    Some(call(secret, job))
}

/// Keeps [`HELD`] connections open that have said `words`, in turn to each address; what is hung up
/// on is made anew.
fn hold(addresses: &[String], words: &[u8], until: Instant) -> Tally {
    let (mut tally, mut held) = (Tally::default(), Vec::new());
    while Instant::now() < until {
        held.retain_mut(|socket| hear(socket, &mut tally));
        for address in addresses.iter().cycle().take(HELD.saturating_sub(held.len())) {
            held.extend(dial(address, words, &mut tally));
        }
        std::thread::sleep(100 * PAUSE);
    }
    tally
}

/// Connects over and over, says `words`, and waits for up to a second for an answer, which is read.
fn repeat(addresses: &[String], words: &[u8], until: Instant) -> Tally {
    let mut tally = Tally::default();
    for address in addresses.iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        if let Some(mut socket) = dial(address, words, &mut tally) {
            for _ in 0..20 {
                std::thread::sleep(PAUSE);
                if !hear(&mut socket, &mut tally) {
                    break;
                }
            }
        }
    }
    tally
}

fn dial(address: &str, words: &[u8], tally: &mut Tally) -> Option<TcpStream> {
    let made = TcpStream::connect(address).and_then(|mut socket| {
        socket.set_nonblocking(true)?;
        socket.write_all(words)?;
        Ok(socket)
    });
    tally.connections += u64::from(made.is_ok());
    tally.refused += u64::from(made.is_err());
    made.ok()
}

/// Reads what came; false once the other side has hung up.
fn hear(socket: &mut TcpStream, tally: &mut Tally) -> bool {
    let mut bytes = [0; 256];
    match socket.read(&mut bytes) {
        Ok(0) => false,
        Ok(count) => {
            tally.bytes_heard += count as u64;
            true
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}
