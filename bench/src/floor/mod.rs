//! The floor: the smallest program that moves the same bytes by the same means between two processes.
//!
//! It waits by the policy of the van it is held against, so that a ratio compares what is done with the bytes and not how
//! someone waits. A push is a request of 64 bytes of header, 8 for each key and the values, and a reply of 64; a pull a request
//! of 64 and 8 for each key, and a reply of 64 and the values. The first word of a request is its number, which the reply
//! brings back. `socket.rs` moves them over a socket, `verbs.rs` over a queue pair, `shm.rs` through memory; here is what they share: lengths, contents,
//! and the process that answers.

mod shm;
mod socket;
mod verbs;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caravan_kv::NodeConfig;
use caravan_van::Wait;
use clap::ValueEnum;

use crate::subject::{Shape, Subject};
use crate::usage::NO_THREAD;
use crate::{place, units};

/// Bytes of header in a request and in a reply.
const HEADER_BYTES: usize = 64;
/// Longest request or reply, in bytes, either side agrees to.
const MESSAGE_BYTES_MAX: usize = 2 << 30;
/// Most bytes of messages of one kind under way.
const MEMORY_BYTES_MAX: u64 = 8 << 30;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the other process answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Answerer {
    /// The floor over a socket.
    Socket,
    /// The floor over a queue pair.
    Verbs,
    /// The floor through shared memory.
    Memory,
    /// `bench verbs`.
    Device,
}

/// The floor for a van, with its other process; which ends with it.
///
/// # Errors
/// When the program cannot be started, or the two cannot connect.
pub(crate) fn spawn(van: &str, config: &NodeConfig) -> Result<Box<dyn Subject>> {
    Ok(match van {
        "shm" => Box::new(shm::Floor::spawn(config.wait)?),
        "rdma" => Box::new(verbs::Floor::spawn(config)?),
        _ => Box::new(socket::Floor::spawn(Ipv4Addr::LOCALHOST.into(), config.wait)?),
    })
}

/// Whether the floor can measure such requests.
///
/// # Errors
/// Names what is too large, and how large it may be.
pub(crate) fn check(shape: Shape) -> Result<()> {
    let Lengths { request, reply } = Lengths::of(shape);
    Lengths::checked(request as u64, reply as u64)?.window_checked(shape.window as u64).map(drop)
}

/// The answering process, `caravan floor`: says its address, answers, and ends with its input.
///
/// # Errors
/// When it cannot listen, or is asked for what it does not do.
pub(crate) fn run(answerer: Answerer, host: IpAddr, config: &NodeConfig) -> Result<()> {
    if config.pin {
        place::pin(place::SERVER, config);
    }
    match answerer {
        Answerer::Socket => socket::run(host, config.wait),
        Answerer::Verbs => verbs::run(host, config.wait),
        Answerer::Memory => shm::run(config.wait),
        Answerer::Device => crate::verbs::answer(host, config.wait),
    }
}

/// This program, started a second time as the answering side.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts it; returns where it listens.
    ///
    /// # Errors
    /// When the program cannot be started or does not say where it listens.
    pub(crate) fn start(
        answerer: Answerer,
        host: IpAddr,
        wait: Wait,
    ) -> Result<(Self, SocketAddr)> {
        let (process, address) = Process::start_anywhere(answerer, host, wait)?;
        let address = address.parse().context("the other process named no address")?;
        Ok((process, address))
    }

    /// Likewise, wherever it listens.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(crate) fn start_anywhere(
        answerer: Answerer,
        host: IpAddr,
        wait: Wait,
    ) -> Result<(Self, String)> {
        let program =
            std::env::current_exe().context("cannot find this program to start the floor")?;
        let answers = answerer.to_possible_value().expect("no answerer is hidden");
        let mut child = Command::new(program)
            .args(["floor", answers.get_name(), "--host", &host.to_string()])
            .args(["--wait", units::wait(wait)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other process")?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let process = Process(child);
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address).context("the other process is silent")?;
        Ok((process, address.trim().to_owned()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take()); // which is how it knows
        // Nothing is lost with it, so nothing is to be done if it cannot be waited for.
        let _ = self.0.wait();
    }
}

/// The answering side: tells the parent where it listens.
pub(crate) fn say_address(address: impl std::fmt::Display) -> Result<()> {
    writeln!(io::stdout(), "{address}").context("the other process cannot say its address")
}

/// The answering side: ends this process when the parent closes its input, which it also does by dying.
///
/// # Errors
/// When the system gives no thread.
pub(crate) fn end_with_input() -> Result<()> {
    let end = || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    };
    thread::Builder::new().spawn(end).map(drop).context(NO_THREAD)
}

/// Bytes of a request and of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lengths {
    request: usize,
    reply: usize,
}

impl Lengths {
    fn of(shape: Shape) -> Self {
        let values = |there: bool| if there { shape.bytes } else { 0 };
        Lengths {
            request: HEADER_BYTES + 8 * shape.keys + values(shape.op.pushes()),
            reply: HEADER_BYTES + values(shape.op.pulls()),
        }
    }

    /// What the other side asks for, before memory is taken for it.
    fn checked(request: u64, reply: u64) -> Result<Self> {
        let range = HEADER_BYTES as u64..=MESSAGE_BYTES_MAX as u64;
        for bytes in [request, reply] {
            ensure!(
                range.contains(&bytes),
                "the floor takes messages of {range:?} bytes, not {bytes}"
            );
        }
        Ok(Lengths { request: request as usize, reply: reply as usize })
    }

    /// The window that the other side asks for, likewise.
    fn window_checked(&self, window: u64) -> Result<usize> {
        let most = MEMORY_BYTES_MAX / self.request.max(self.reply) as u64;
        ensure!(
            (1..=most).contains(&window),
            "a window of {window} messages of up to {} bytes is more than the floor holds at a time, {}: take a window of {most} or less",
            self.request.max(self.reply),
            units::size(MEMORY_BYTES_MAX as usize)
        );
        Ok(window as usize)
    }
}

/// Whether a reply is the one to request `number`.
fn answers(reply: &[u8], number: u64) -> Result<()> {
    let found = word(reply, 0);
    ensure!(found == number, "the floor's reply is to request {found}, not {number}");
    Ok(())
}

/// A message in which every byte depends on its place; the first word is the number's.
fn patterned(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(0x9E37_79B1).to_le_bytes()[3]).collect()
}

fn word(message: &[u8], at: usize) -> u64 {
    let bytes = message[at * 8..][..8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::subject::{Op, Subject};

    /// One at a time and streamed, every op with each of `sizes`: bytes and window.
    pub(super) fn answers_every_shape(floor: &mut dyn Subject, sizes: &[(usize, usize)]) {
        for op in [Op::Push, Op::Pull, Op::PushPull] {
            for &(bytes, window) in sizes {
                let shape = Shape { op, keys: 1, bytes, window };
                floor.prepare(shape).unwrap();
                for _ in 0..3 {
                    floor.once().unwrap();
                    assert_eq!(floor.check().unwrap(), 0, "{shape:?}");
                }
                floor.stream(100).unwrap();
                assert_eq!(floor.settle().unwrap(), 0, "{shape:?}");
            }
        }
    }

    #[test]
    fn a_push_and_a_pull_move_the_bytes_of_their_direction() {
        let shape = Shape { op: Op::Push, keys: 3, bytes: 4096, window: 1 };
        assert_eq!(Lengths::of(shape), Lengths { request: 64 + 24 + 4096, reply: 64 });
        let shape = Shape { op: Op::Pull, ..shape };
        assert_eq!(Lengths::of(shape), Lengths { request: 64 + 24, reply: 64 + 4096 });
    }

    #[test]
    fn lengths_out_of_range_are_refused() {
        assert!(Lengths::checked(64, 2 << 30).is_ok());
        for (request, reply) in [(0, 64), (64, 63), (1 << 62, 64), (64, u64::MAX)] {
            assert!(Lengths::checked(request, reply).is_err());
        }
    }

    #[test]
    fn a_reply_to_another_request_is_an_error() {
        assert!(answers(&[1; 64], 1).is_err());
        assert!(answers(&[1; 64], 0x0101_0101_0101_0101).is_ok());
    }
}
