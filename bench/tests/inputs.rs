//! Goal: data that cannot be trained on is refused by the name of its file, with the remedy, by
//! every command that reads it; and nothing that a user can name or write ends as an error between
//! nodes.
//! Method: real processes on small files, pipes, names that are no text, numbers that overflow.
#![cfg(unix)]

use crate::support;
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

#[test]
fn labels_are_what_the_task_needs() {
    let folder = folder("inputs-labels");
    let real = write(&folder, "real", &"2.5 1:1\n-0.5 2:1\n2 1:1 2:1\n".repeat(8));
    let (real, model) = (real.display(), folder.join("model"));
    for trainer in [
        format!("train linreg --pass-steps 200 --data {real}"),
        format!("train sgd --loss squared --batch 4 --passes 200 --handle adagrad --data {real}"),
    ] {
        let line = format!("{trainer} --workers 2 --in-process --json --model {}", model.display());
        let output = run(&mut caravan(&line));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let line =
            format!("predict --json --loss squared --model {} --data {real}", model.display());
        let output = run(&mut caravan(&line));
        let row = rows_in(&output).remove(0);
        assert!(row["rmse"].as_f64().unwrap() < 0.1 && row["auc"].is_null(), "{trainer}: {row}");
    }
    let labels = write(&folder, "labels", "3 1:1\n7 2:1\nred 1:1\n");
    let line = format!("train kmeans --clusters 2 --data {} --json", labels.display());
    let output = run(&mut caravan(&line));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let third = write(&folder, "third", "1 1:1\n-1 2:1\n0 1:1\n");
    for trainer in &TRAINERS[..3] {
        let said = refused(&mut caravan(&format!("{trainer} {}", third.display())));
        assert!(said.contains("third:3: 0 is a third class beside 1 and -1"), "{said}");
        let said = refused(&mut caravan(&format!("{trainer} {}", labels.display())));
        assert!(said.contains("labels:1:1: found `3`, expected a label"), "{said}");
    }
}

#[test]
fn what_is_not_finite_is_said_with_the_remedy() {
    let folder = folder("inputs-finite");
    let rows = write(&folder, "rows", &"1 1:3 2:1\n-1 1:4\n".repeat(20));
    let huge = write(&folder, "huge", &"1 1:1e200\n-1 2:1e200\n".repeat(20));
    let ratings = write(&folder, "ratings", "1 1 1e300\n1 2 -1e300\n");
    let most = write(&folder, "most", "1 1 1.7e308\n1 2 1.7e308\n");
    let words = write(&folder, "words", "2 0:3 1:2\n");
    for (line, file, says) in [
        ("linreg --rate 100 --passes 9", &rows, "diverged in pass "),
        ("sgd --loss squared --handle sgd --option rate=1e100", &rows, "diverged in pass "),
        ("fm --handle sgd --option rate=1e30", &rows, "diverged in pass "),
        ("mf --handle sgd --option rate=1e30", &ratings, "diverged in pass "),
        ("mf", &most, "no finite mean"),
        ("lda --topics 2 --alpha 1e308", &words, "diverged in pass 0"),
        ("kmeans --clusters 1", &huge, "diverged in stage 0"),
        ("linreg", &huge, "no finite number"),
    ] {
        let said = refused(&mut caravan(&format!("train {line} --data {}", file.display())));
        assert!(said.contains(says), "{line}: {said}");
        assert!(!said.contains("expected f64"), "{line}: {said}");
    }
    let model = write(&folder, "model", "1\t1e300\n2\t-1e300\n");
    let line = format!("predict --json --model {} --data", model.display());
    let said = refused(caravan(&line).arg(&huge));
    assert!(said.contains("the margin of row 1 is") && said.contains("scale the values"), "{said}");
}

#[test]
fn data_without_rows_is_named_by_every_trainer() {
    let folder = folder("inputs-none");
    let (none, missing) = (write(&folder, "none", "# nothing\n"), folder.join("missing"));
    for trainer in TRAINERS {
        let said = refused(caravan(trainer).arg(&none));
        assert!(said.contains(&none.display().to_string()), "{trainer}: {said}");
        let said = refused(caravan(trainer).arg(&missing));
        let why = format!("cannot open {}: No such file", missing.display());
        assert!(said.contains(&why), "{trainer}: {said}");
    }
}
