//! Writes down at build time what a row says of the program: the commit and the compiler. Neither
//! has to be known.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Without the prefix of the settings: cargo passes these on to what it runs, and a setting that
    // does not exist is refused. Moves with every commit, checkout and merge. Absent in a source
    // archive, and then there is no commit to name either.
    if let Some(log) = first_line("git", &["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = first_line("git", &["rev-parse", "--short=12", "HEAD"]);
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = first_line(&rustc, &["--version"]);
    println!("cargo::rustc-env=BUILD_RUSTC={}", version.as_deref().unwrap_or("unknown"));
    println!(
        "cargo::rustc-env=BUILD_PROFILE={}",
        env::var("PROFILE").unwrap_or_else(|_| "unknown".to_owned())
    );
}

/// The first line of a program's output, or `None` where it does not run or fails.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    text.lines().next().map(str::to_owned)
}
