//! The other process of a floor, and of `bench verbs`: this program, started a second time.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use caravan_kv::how_ended;
use caravan_van::Wait;
use clap::ValueEnum;

use crate::cli::ending::NO_THREAD;
use crate::cli::values::{self, name};

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

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
}

impl Process {
    /// Starts it at an address of this machine; port 0 takes a free one.
    pub(crate) fn start(answerer: Answerer, at: SocketAddr, wait: Wait) -> Result<Self> {
        let program =
            std::env::current_exe().context("cannot find this program to start the floor")?;
        let mut child = Command::new(program)
            .args(["floor", &name(&answerer), "--host", &at.ip().to_string()])
            .args(["--port", &at.port().to_string()])
            .args(["--wait", values::wait(wait)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other process")?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut process = Process { child, address: String::new() };
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut process.address).context("the other process is silent")?;
        process.address.truncate(process.address.trim_end().len());
        if process.address.is_empty() {
            let ended = how_ended(process.child.wait().context("waiting for the other process")?);
            bail!("the other process, which is to listen at {at}, {ended}");
        }
        Ok(process)
    }

    /// Starts it on the loopback interface.
    pub(super) fn start_here(answerer: Answerer, wait: Wait) -> Result<Self> {
        Process::start(answerer, (Ipv4Addr::LOCALHOST, 0).into(), wait)
    }
}

/// The port of the floors beside the first server of a job: all its nodes know it without a word.
pub(super) fn port(job: u64) -> u16 {
    PORTS_FROM + (job.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u16 % PORTS
}

/// Between the ports of launched schedulers and those that Linux gives to connections.
const PORTS_FROM: u16 = 31_000;
const PORTS: u16 = 1_700;

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // tells the process to end
        // Nothing is lost with the process, so a failure to wait for it does not matter.
        let _ = self.child.wait();
    }
}

/// The answering side: tells the parent where it listens, and from then on ends this process when
/// the parent closes its input, which it also does by dying.
pub(crate) fn say_address(address: impl std::fmt::Display) -> Result<()> {
    writeln!(io::stdout(), "{address}").context("the other process cannot print its address")?;
    let end = || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    };
    thread::Builder::new().spawn(end).map(drop).context(NO_THREAD)
}
