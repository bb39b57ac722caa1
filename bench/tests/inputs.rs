//! Goal: data that cannot be trained on is refused by the name of its file, with the remedy, by
//! every command that reads it; and nothing that a user can name or write ends as an error between
//! nodes.
//! Method: real processes on small files, pipes, names that are no text, numbers that overflow.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(unix)]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{PATIENCE, caravan, ended, folder, rows_in, text};

/// The trainers, each before the names of its data.
const TRAINERS: [&str; 7] = [
    "train dbpg --lambda 0.1 --data",
    "train sgd --data",
    "train fm --data",
    "train mf --data",
    "train lda --data",
    "train linreg --data",
    "train kmeans --clusters 1 --data",
];

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// Runs to the end, and not for ever.
fn run(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ended(&mut child, PATIENCE);
    child.wait_with_output().unwrap()
}

/// What a command says that ends with status 1.
fn refused(command: &mut Command) -> String {
    let output = run(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
    said
}

#[test]
fn pipes_are_refused_by_all_that_read_data_more_than_once() {
    let folder = folder("inputs-pipe");
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let file = write(&folder, "file", "1 1:1\n");
    for trainer in TRAINERS {
        // Nobody writes: whoever opens it waits for ever.
        let said = refused(&mut caravan(&format!("{trainer} {}", pipe.display())));
        let why = format!("{} is a pipe, which can be read only once", pipe.display());
        assert!(said.contains(&why) && said.contains("write it to a file"), "{said}");
        let mut piped = caravan(&format!("{trainer} /dev/stdin"));
        let said = refused(piped.stdin(Stdio::piped()));
        assert!(said.contains("/dev/stdin is a pipe"), "{said}");
        let said = refused(&mut caravan(&format!("{trainer} /dev/null")));
        assert!(said.contains("/dev/null is a device"), "{said}");
        // A worker has another standard input.
        let said = refused(
            caravan(&format!("{trainer} /dev/stdin")).stdin(fs::File::open(&file).unwrap()),
        );
        assert!(said.contains("/dev/stdin is open in this process alone"), "{said}");
    }
}

#[test]
fn a_pipe_that_is_read_once_is_read_whole() {
    let folder = folder("inputs-once");
    let model = write(&folder, "model", "1\t1\n");
    let rows = write(&folder, "rows", &"1 1:1\n-1 1:-1\n".repeat(50));
    let line = format!("predict --json --model {} --data /dev/stdin", model.display());
    let predict = || caravan(&line);
    let output = run(predict().stdin(fs::File::open(&rows).unwrap()));
    assert_eq!(rows_in(&output)[0]["rows"], 100, "{}", text(&output.stderr));
    let mut cat = Command::new("cat").arg(&rows).stdout(Stdio::piped()).spawn().unwrap();
    let output = run(predict().stdin(cat.stdout.take().unwrap()));
    cat.wait().unwrap();
    assert_eq!(rows_in(&output)[0]["rows"], 100, "{}", text(&output.stderr));
}

#[test]
fn names_that_are_no_text_are_named() {
    let folder = folder("inputs-names");
    let rows = write(&folder, "rows", "1 1:1\n-1 2:1\n");
    let name = folder.join(OsStr::from_bytes(b"na\xffme"));
    fs::copy(&rows, &name).unwrap();
    for trainer in TRAINERS {
        let said = refused(caravan(trainer).arg(&name));
        assert!(said.contains("na\\xFFme") && said.contains("rename it"), "{said}");
    }
    let cached = format!("train dbpg --lambda 1 --data {} --cache", rows.display());
    let said = refused(caravan(&cached).arg(&name));
    assert!(said.contains("na\\xFFme") && said.contains("rename it"), "{said}");
}
