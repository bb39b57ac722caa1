//! Counts what Caravan's rules limit, and reads what its checks print: what would be a program in
//! bash and awk otherwise. `ci/lib/tool` builds and starts it, at the top of the repository.
//!
//! It is a workspace of its own. So `cargo build` and `cargo test --workspace` know nothing of it,
//! and no package, lock file or feature of the product changes by what it needs.

mod code;
mod failures;
mod files;
mod instructions;
mod optima;
mod pages;
mod rows;
#[cfg(test)]
mod scratch;
mod shape;
mod traffic;
mod walk;
mod words;

use std::process::ExitCode;

/// The commands, with what each is for.
const COMMANDS: [(&str, &str, Command); 8] = [
    ("failures", "names what failed in the log of a command", failures::run),
    ("instructions", "compares counts of instructions with the recorded ones", instructions::run),
    ("optima", "does the arithmetic of ci/suites/optima", optima::run),
    ("pages", "checks links, names of files, and sentences of the pages", pages::run),
    ("shape", "counts what the rules of style limit, and holds it to ci/shape.toml", shape::run),
    ("traffic", "says what filters save, by the rows of two trainings", traffic::run),
    ("walk", "compares the files that a push passes with the map in README.md", walk::run),
    ("words", "finds words that ci/words lists", words::run),
];

type Command = fn(&[String]) -> Result<(), String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let found =
        arguments.first().and_then(|name| COMMANDS.iter().find(|(known, ..)| known == name));
    let Some((_, _, run)) = found else {
        eprintln!("usage: ci/lib/tool COMMAND [ARGUMENT...]");
        for (name, what, _) in COMMANDS {
            eprintln!("  {name:<14}{what}");
        }
        return ExitCode::from(2);
    };
    match run(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(faults) => {
            eprintln!("{faults}");
            ExitCode::FAILURE
        }
    }
}
