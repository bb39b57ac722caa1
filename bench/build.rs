//! Writes down at build time what the program says of itself: its version, commit and features, and
//! the compiler. None of the last three has to be known. The names have no prefix of the settings:
//! cargo passes them on to what it runs, and a setting that does not exist is refused.

use std::env;
use std::path::Path;
use std::process::Command;

/// What the program is built from, beside `src`, `Cargo.toml` and `build.rs` of every room.
const SHARED: [&str; 3] = ["../Cargo.toml", "../Cargo.lock", "../.cargo"];
const ROOMS: [&str; 6] = ["../numa", "../van", "../fallback-tcp", "../kv", "../kv/learn", "."];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let commit = commit().unwrap_or_else(|| "unknown".to_owned());
    let version = format!("{} ({commit}, {})", variable("CARGO_PKG_VERSION"), features());
    let rustc = first_line(&variable("RUSTC"), &["--version"]);
    tell("BUILD_COMMIT", &commit);
    tell("BUILD_VERSION", &version);
    tell("BUILD_RUSTC", rustc.as_deref().unwrap_or("unknown"));
    tell("BUILD_PROFILE", &variable("PROFILE"));
}

/// The commit of the repository that this file is in, or `None` in an unpacked package. It ends in
/// `-dirty` where the sources of the program are not those of the commit.
fn commit() -> Option<String> {
    first_line("git", &["ls-files", "--error-unmatch", "build.rs"])?;
    // Moves with every commit, checkout and merge.
    let log = first_line("git", &["rev-parse", "--git-path", "logs/HEAD"])?;
    let rooms =
        ROOMS.iter().flat_map(|room| ["src", "Cargo.toml"].map(|it| format!("{room}/{it}")));
    let sources: Vec<String> = SHARED.map(str::to_owned).into_iter().chain(rooms).collect();
    for path in sources.iter().chain([&log]).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    let commit = first_line("git", &["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--"];
    status.extend(sources.iter().map(String::as_str));
    let dirty = first_line("git", &status).is_some();
    Some(if dirty { format!("{commit}-dirty") } else { commit })
}

/// The features of this build, but for the list of those that are default.
fn features() -> String {
    let mut names: Vec<String> = env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_ascii_lowercase()))
        .filter(|name| name != "default")
        .collect();
    names.sort();
    if names.is_empty() { "no features".to_owned() } else { names.join(" ") }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| "unknown".to_owned())
}

fn tell(name: &str, value: &str) {
    println!("cargo::rustc-env={name}={value}");
}

/// The first line of a program's output, or `None` where there is none or the program fails.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    text.lines().next().map(str::to_owned)
}
