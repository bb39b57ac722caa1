//! `caravan bench verbs`: the device itself, measured as perftest measures it, to compare the two
//! and to compare a van with both. The kv and its servers have no part in it.
//!
//! The other process runs on this machine, or on another one with `--listen`. Every row has a
//! connection of its own: its private data describe the test, and hanging up ends it.

mod bandwidth;
mod how;
pub(crate) mod kinds;
mod latency;
mod side;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, bail, ensure};
use caravan_van::Wait;

use self::kinds::{Measure, Op};
use self::side::{Side, Test};
use crate::cli::values::size;
use crate::cli::{Common, VerbsArgs};
use crate::cluster;
use crate::doctor::machine::Machine;
use crate::floor::address::{Usable, usable, usable_named};
use crate::floor::link::Listener;
use crate::floor::place;
use crate::floor::process::{Answerer, Process, say_address};
use crate::report::say;

/// The default port of `--listen`.
const PORT: u16 = 18_600;

/// Runs `caravan bench verbs`.
pub(crate) fn run(common: &Common, args: &VerbsArgs) -> Result<()> {
    let config = cluster::config(common)?;
    let wait = config.node.wait;
    if let Some(host) = &args.listen {
        return listen(args, host, wait);
    }
    let tests = tests(args, common.smoke);
    let mine = usable_named(args.device.as_deref())?;
    let mut report = Machine::first(common, tests.len())?;
    if config.node.pin {
        place::pin(place::SERVER + 1, &config.node);
    }
    let (_process, to) = match &args.connect {
        Some(host) => (None, address_at(host)?),
        None => {
            let (process, address) = other_process(&mine, wait)?;
            (Some(process), address)
        }
    };
    for (test, count) in tests {
        let Test { measure, op, bytes, .. } = test;
        report.doing(format!("verbs {measure:?} {op:?} {}", size(&bytes)));
        let side = Side::dial(mine.address, to, test, wait)?;
        match measure {
            Measure::Latency => report.row(&latency::measure(side, count)?)?,
            Measure::Bandwidth => {
                report.row(&bandwidth::measure(side, count, args.list as usize)?)?;
            }
        }
        report.step();
    }
    report.end("messages")
}

/// Answers every connection until a signal ends it.
fn listen(args: &VerbsArgs, host: &str, wait: Wait) -> Result<()> {
    if let Some(device) = &args.device {
        let usable = usable_named(Some(device))?;
        let at = address_at(host)?.ip();
        ensure!(usable.address == at, "{device} has the address {}, not {at}", usable.address);
    }
    let listener = Listener::bind(address_at(host)?)?;
    say(format_args!("bench verbs can connect to {}", listener.address()?));
    loop {
        if let Err(error) = serve(&listener, wait) {
            say(format_args!("{error:#}"));
        }
    }
}

/// The answering process of `bench verbs` without `--connect`: prints its address and answers until
/// its input ends.
pub(crate) fn answer(host: IpAddr, wait: Wait) -> Result<()> {
    let listener = Listener::bind((host, 0).into())?;
    say_address(listener.address()?)?;
    loop {
        serve(&listener, wait)?;
    }
}

fn serve(listener: &Listener, wait: Wait) -> Result<()> {
    let Some(mut side) = Side::answer(listener.next()?, wait)? else { return Ok(()) };
    match side.test.measure {
        Measure::Latency => latency::answer(&mut side),
        Measure::Bandwidth => bandwidth::answer(&mut side),
    }
}

/// Starts the other process on another device of this machine that can be reached, else on the same
/// one.
fn other_process(mine: &Usable, wait: Wait) -> Result<(Process, SocketAddr)> {
    let probe =
        Test { measure: Measure::Latency, op: Op::Send, bytes: 8, window: 1, inline_bytes: 0 };
    for other in usable()?.iter().filter(|other| other.device != mine.device) {
        let (process, address) = start(other, wait)?;
        match Side::dial(mine.address, address, probe, wait) {
            Ok(_) => return Ok((process, address)),
            Err(error) => tracing::info!("{} cannot be reached: {error:#}", other.device),
        }
    }
    start(mine, wait)
}

/// Starts the other process on a device; returns where it listens.
fn start(device: &Usable, wait: Wait) -> Result<(Process, SocketAddr)> {
    let process = Process::start(Answerer::Device, (device.address, 0).into(), wait)?;
    let address = process.address.parse().context("the other process named no address")?;
    Ok((process, address))
}

/// An address as a person gives it, with or without a port.
fn address_at(host: &str) -> Result<SocketAddr> {
    let with_port = host.to_socket_addrs().or_else(|_| (host, PORT).to_socket_addrs());
    let mut found = with_port.with_context(|| format!("{host} is no address"))?;
    let Some(address) = found.next() else { bail!("{host} has no address") };
    Ok(address)
}

/// The rows of a command, with the number of messages of each.
fn tests(args: &VerbsArgs, smoke: bool) -> Vec<(Test, u64)> {
    let all = |measure: Measure| {
        let sizes = match (args.sizes.is_empty(), measure) {
            (false, _) => args.sizes.as_slice(),
            (true, Measure::Latency) => LATENCY_SIZES,
            (true, Measure::Bandwidth) => BANDWIDTH_SIZES,
        };
        let ops = if args.op.is_empty() { OPS } else { &args.op };
        ops.iter().flat_map(move |op| sizes.iter().map(move |bytes| (*op, *bytes)))
    };
    let measures = if args.measure.is_empty() { MEASURES } else { &args.measure };
    let mut tests = Vec::new();
    for &measure in measures {
        for (op, bytes) in all(measure) {
            let window = match measure {
                Measure::Latency => 1,
                Measure::Bandwidth => args.window.map_or_else(|| window(bytes), |w| w as usize),
            };
            let test = Test { measure, op, bytes, window, inline_bytes: args.inline as usize };
            tests.push((test, args.iterations.unwrap_or_else(|| count(measure, bytes, smoke))));
        }
    }
    tests
}

const OPS: &[Op] = &[Op::Send, Op::Write, Op::WriteImm, Op::Read];
const MEASURES: &[Measure] = &[Measure::Latency, Measure::Bandwidth];
const LATENCY_SIZES: &[usize] = &[8, 64, 512, 4 << 10, 64 << 10];
const BANDWIDTH_SIZES: &[usize] = &[64, 4 << 10, 64 << 10, 1 << 20];

/// Default of messages in flight: perftest's 128, fewer if they would take much memory.
fn window(bytes: usize) -> usize {
    ((64 << 20) / bytes).clamp(1, 128)
}

/// Default of messages in a row: perftest's numbers, fewer of large ones.
fn count(measure: Measure, bytes: usize, smoke: bool) -> u64 {
    let most = match (measure, smoke) {
        (_, true) => 50,
        (Measure::Latency, _) => 1000,
        (Measure::Bandwidth, _) => 5000,
    };
    ((2 << 30) / bytes as u64).clamp(50, most)
}

#[cfg(test)]
mod tests_of_plan {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::cli::{BenchCommand, Cli, Command};
    use clap::Parser;

    fn plan(line: &str) -> Vec<(Test, u64)> {
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Bench(BenchCommand::Verbs(args)) = &cli.command else { panic!("{line}") };
        tests(args, cli.common.smoke)
    }

    #[test]
    fn every_kind_and_size_is_a_row() {
        let all = plan("caravan bench verbs");
        assert_eq!(all.len(), 4 * (LATENCY_SIZES.len() + BANDWIDTH_SIZES.len()));
        let some = plan(
            "caravan bench verbs --measure bandwidth --op write,read --sizes 64,1MiB --window 7 --iterations 9",
        );
        let seen: Vec<_> = some.iter().map(|(test, count)| (test.op, test.bytes, *count)).collect();
        let (write, read) = (Op::Write, Op::Read);
        assert_eq!(seen, [(write, 64, 9), (write, 1 << 20, 9), (read, 64, 9), (read, 1 << 20, 9)]);
        assert!(some.iter().all(|(test, _)| test.window == 7));
        assert!(plan("caravan bench verbs --smoke").iter().all(|(_, count)| *count <= 50));
    }

    #[test]
    fn an_address_may_leave_out_its_port() {
        assert_eq!(address_at("192.0.2.1").unwrap().port(), PORT);
        assert_eq!(address_at("192.0.2.1:7").unwrap().port(), 7);
        assert_eq!(address_at("::1").unwrap().port(), PORT);
        assert!(address_at("no such host").is_err());
    }
}
