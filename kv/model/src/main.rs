//! Explores configurations by name, and prints the rows of `kv/docs/protocol.md`.

use std::process::ExitCode;

use caravan_kv_model::configurations::{self, Configuration};
use caravan_kv_model::explore::{Outcome, Verdict};
use caravan_kv_model::mutants;

const USAGE: &str = "\
Explores the replication protocol of kv in every order of events.

  caravan-kv-model list               the names of configurations and mutants
  caravan-kv-model quick              the configurations that tests explore
  caravan-kv-model all                all configurations: about 6 min, and 2 GB
  caravan-kv-model mutants            each mutant, in the configuration that finds it
  caravan-kv-model NAME [MUTANT]      one configuration, with a mutant or without

Each line has the number of states and the verdict. Where a promise is broken, the events that lead
to it follow. The status is 0 where rules hold and mutants are found. A configuration of more than
20 million states stays unfinished.";

const STATES_MAX: usize = 20_000_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_well = match words[..] {
        ["list"] => list(),
        ["quick"] => hold(|configuration| configuration.is_quick),
        ["all"] => hold(|_| true),
        ["mutants"] => find(),
        [name] if configurations::named(name).is_some() => hold(|known| known.name == name),
        [name, mutant] => return one(name, mutant),
        _ => return usage(),
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn list() -> bool {
    configurations::all().iter().for_each(|configuration| println!("{}", configuration.name));
    mutants::MUTATIONS.iter().for_each(|mutation| println!("{}", mutation.name));
    true
}

/// Explores configurations under the rules. Returns whether none is broken.
fn hold(is_wanted: impl Fn(&Configuration) -> bool) -> bool {
    let mut is_well = true;
    for configuration in configurations::all().into_iter().filter(is_wanted) {
        let outcome = configuration.explore(None, STATES_MAX);
        println!("{}", configuration.row(&outcome));
        is_well &= !print_run(&outcome);
    }
    is_well
}

/// Explores each mutant. Returns whether all are found.
fn find() -> bool {
    let mut is_well = true;
    for mutation in mutants::MUTATIONS {
        let configuration = configurations::named(mutation.configuration);
        let configuration = configuration.expect("a test holds the names of configurations");
        let outcome = configuration.explore(Some(mutation.mutant), STATES_MAX);
        println!("{}", mutation.row(&outcome));
        is_well &= print_run(&outcome);
    }
    is_well
}

/// Explores a mutant in any configuration.
fn one(configuration: &str, mutant: &str) -> ExitCode {
    let known = (configurations::named(configuration), mutants::named(mutant));
    let (Some(configuration), Some(mutation)) = known else { return usage() };
    let outcome = configuration.explore(Some(mutation.mutant), STATES_MAX);
    println!("{}", configuration.row(&outcome));
    if print_run(&outcome) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the events that lead to a broken promise. Returns whether one is broken.
fn print_run(outcome: &Outcome) -> bool {
    let Verdict::Broken { run, .. } = &outcome.verdict else { return false };
    run.iter().for_each(|step| println!("    {step}"));
    true
}
