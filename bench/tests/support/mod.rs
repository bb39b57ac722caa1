//! The program as a process, for tests from outside.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// As long as any of this may take on a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// `caravan` with the words of a command line, and no `CARAVAN_` variables.
pub(crate) fn caravan(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caravan"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARAVAN_") {
            command.env_remove(name);
        }
    }
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// An empty folder for one test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.unwrap().success(), "{name} to {pid}");
}

pub(crate) fn ended(child: &mut Child, within: Duration) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > within {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
