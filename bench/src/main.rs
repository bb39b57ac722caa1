//! The `caravan` program: reads the command line, runs one command, and says by its status how that went.
//!
//! Status 0: all that was asked for was done and every verified byte was right. 1: it was not. 2: wrong usage. 130: Ctrl-C.
//! 141: nobody reads its rows any more. 143: SIGTERM.

#![forbid(unsafe_code)]

mod bandwidth;
mod cli;
mod cluster;
mod crowd;
mod doctor;
mod floor;
mod generate;
mod interrupt;
mod latency;
mod layout;
mod machine;
mod measure;
mod pattern;
mod place;
mod placement;
mod plan;
mod plot;
mod predict;
mod progress;
mod rate;
mod report;
mod requests;
mod scale;
mod subject;
mod terminal;
mod train;
mod units;
mod usage;
mod verbs;
mod wait;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGPIPE;

use cli::{BenchCommand, Cli, Command, TrainCommand};
use usage::{Interrupted, Unwritten, Usage};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_ansi(colours)
        // A log that cannot be written is no reason to panic, which saying so on the same place
        // would be.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .init();
    open_more_files();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let unread = error.downcast_ref::<Unwritten>().is_some_and(Unwritten::is_unread);
            if !unread {
                terminal::say(format_args!("{error:#}"));
            }
            ExitCode::from(match error.downcast_ref::<Interrupted>() {
                Some(interrupted) => interrupted.status as u8,
                None if error.is::<Usage>() => 2,
                None if unread => interrupt::status(SIGPIPE) as u8,
                None => 1,
            })
        }
    }
}

/// Raises the number of descriptors to what this process may have: a peer takes one or two, and the soft limit is often 1024.
fn open_more_files() {
    let limit = getrlimit(Resource::Nofile);
    // Whoever may not raise it goes on with what there is; what then does not fit is an error that says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn run(cli: &Cli) -> Result<()> {
    match &cli.command {
        Command::Bench(BenchCommand::Verbs(args)) => verbs::run(&cli.common, args),
        Command::Bench(BenchCommand::Placement) => placement::run(&cli.common),
        Command::Bench(BenchCommand::Wait(args)) => wait::run(&cli.common, args),
        Command::Bench(BenchCommand::Scale(args)) => scale::run(&cli.common, args),
        Command::Bench(command) => measure::run(&cli.common, command),
        Command::Doctor(args) => doctor::run(&cli.common, args),
        Command::Server(role) => cluster::serve(&cli.common, role),
        Command::Worker(args) => cluster::work(&cli.common, args),
        Command::Floor(args) => {
            floor::run(args.answerer, args.host, &cluster::config(&cli.common)?.node)
        }
        Command::Generate(command) => generate::run(&cli.common, command),
        Command::Train(TrainCommand::Dbpg(args)) => train::dbpg(&cli.common, args),
        Command::Predict(args) => predict::run(&cli.common, args),
        Command::Scheduler(role) => cluster::schedule(&cli.common, role),
    }
}
