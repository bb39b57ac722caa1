//! The `caravan` program: reads the command line, runs one command, and reports the outcome by its
//! exit status.
//!
//! Status 0: everything was done and every verified byte was right. 1: it was not. 2: wrong usage.
//! 130: Ctrl-C. 141: nobody reads the rows any more. 143: SIGTERM.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(all(target_os = "linux", feature = "rdma", feature = "shm")),
    allow(dead_code, reason = "some of it serves the vans that are left out")
)]

mod apps;
mod checkpoint;
mod cli;
mod cluster;
mod doctor;
mod floor;
mod history;
mod jobs;
mod launch;
mod manual;
mod measure;
mod plot;
mod rebalance;
mod report;
mod results;
mod sketch;
mod table;
mod top;
mod train;
mod vans;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGPIPE, SIGXFSZ};
use signal_hook::flag;

use cli::ending::{Failed, Interrupted, Usage};
use cli::{BenchCommand, Cli, Command, Common, FloorArgs, interrupt};
use floor::process::Answerer;
use measure::{consistency, fabric, failover, load, placement, scale, verbs, wait};
use report::{Unwritten, say};
use train::{generate, predict};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_ansi(colours)
        // By default a log that cannot be written is reported to the same place, which panics.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    open_more_files();
    outlive_large_files();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let unread = error.downcast_ref::<Unwritten>().is_some_and(Unwritten::is_unread);
            if !unread {
                say(format_args!("{error:#}"));
            }
            ExitCode::from(match error.downcast_ref::<Interrupted>() {
                Some(interrupted) => interrupted.status as u8,
                None if let Some(failed) = error.downcast_ref::<Failed>() => failed.status as u8,
                None if error.is::<Usage>() => 2,
                None if unread => interrupt::status(SIGPIPE) as u8,
                None => 1,
            })
        }
    }
}

/// Raises the limit on descriptors to the hard one: a peer takes one or two, and the soft limit is
/// often 1024.
fn open_more_files() {
    let limit = getrlimit(Resource::Nofile);
    // If that fails the soft limit stays, and a peer beyond it gets an error that names it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A write beyond the limit on the size of a file (`ulimit -f`) fails like one to a full disk, with
/// an error that names the file, where its signal would end the program.
fn outlive_large_files() {
    // If the system takes no handler the signal keeps its meaning.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

fn run(cli: &Cli) -> Result<()> {
    if launch::instead(cli)?.is_some() {
        return Ok(());
    }
    match &cli.command {
        Command::Bench(BenchCommand::Verbs(args)) => verbs::run(&cli.common, args),
        Command::Bench(BenchCommand::Placement) => placement::run(&cli.common),
        Command::Bench(BenchCommand::Wait(args)) => wait::run(&cli.common, args),
        Command::Bench(BenchCommand::Load(args)) => load::run(&cli.common, args),
        Command::Bench(BenchCommand::Fabric(args)) => fabric::run(&cli.common, args),
        Command::Bench(BenchCommand::Failover(args)) => failover::run(&cli.common, args),
        Command::Bench(BenchCommand::Sketch(args)) => measure::sketch::run(&cli.common, args),
        Command::Bench(BenchCommand::Scale(args)) => scale::run(&cli.common, args),
        Command::Bench(BenchCommand::Consistency(args)) => consistency::run(&cli.common, args),
        Command::Bench(command) => measure::run(&cli.common, command),
        Command::CheckHistory(args) => history::run(&cli.common, args),
        Command::Checkpoint(command) => checkpoint::run(&cli.common, command),
        Command::Sketch(command) => sketch::run(&cli.common, command),
        Command::Table(command) => table::run(&cli.common, command),
        Command::Submit(args) => jobs::submit(&cli.common, args),
        Command::Status => jobs::status(&cli.common),
        Command::Cancel(args) => jobs::cancel(&cli.common, args),
        Command::Rebalance(args) => rebalance::run(&cli.common, args),
        Command::Top(args) => top::run(&cli.common, args),
        Command::Man(args) => manual::man(args),
        Command::Completions(args) => manual::completions(args),
        Command::Doctor(args) => doctor::run(&cli.common, args),
        Command::Launch(args) => launch::run(&cli.common, args),
        Command::Agent(args) => launch::agent::run(args.through),
        Command::Server(args) => cluster::serve(&cli.common, args),
        Command::Worker(args) => cluster::work(&cli.common, args),
        Command::Floor(args) => answer(&cli.common, args),
        Command::Generate(command) => generate::run(&cli.common, command),
        Command::Train(command) => train::run(&cli.common, command),
        Command::Report(args) => results::page::run(args),
        Command::Compare(args) => results::compare::run(&cli.common, args),
        Command::Predict(args) => predict::run(&cli.common, args),
        Command::Scheduler(role) => cluster::schedule(&cli.common, role),
    }
}

/// The other process of a floor, or of `bench verbs`.
fn answer(common: &Common, args: &FloorArgs) -> Result<()> {
    let config = cluster::config(common)?.node;
    if config.pin {
        floor::place::pin(floor::place::SERVER, &config);
    }
    match args.answerer {
        Answerer::Device => verbs::answer(args.host, config.wait),
        answerer => floor::run(answerer, (args.host, args.port).into(), config.wait),
    }
}
