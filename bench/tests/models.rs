//! Goal: `--consistency` names every consistency model for every algorithm that trains in steps,
//! and the servers keep to it; what has no meaning is refused by name.
//! Method: the program trains on small data with three workers and two servers, whose histories
//! `caravan check-history` checks.

use crate::support;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use support::{caravan, folder, rows_in, text};

const MODELS: [&str; 6] = ["bsp", "ssp:3", "asp", "sparse-ssp:1:4", "delay:2", "data:1"];

/// The command lines of all trainers, for data in this folder.
fn trainers(folder: &Path) -> [String; 5] {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let example =
        |at: usize| format!("{} 0:1 {}:1 {}:{}\n", at % 2, 1 + at % 3, 4 + at % 5, at % 7);
    let examples = write("examples", (0..90).map(example).collect());
    let rating = |at: usize| format!("{} {} {}\n", at % 7, at % 5, at % 3);
    let ratings = write("ratings", (0..90).map(rating).collect());
    let documents = ["3 0:4 1:2 2:1\n", "2 3:3 4:2\n", "2 0:1 2:5\n"].concat().repeat(20);
    let documents = write("documents", documents);
    [
        format!("sgd --data {examples} --batch 8"),
        format!("fm --data {examples} --batch 8 --factors 2"),
        format!("mf --data {ratings} --batch 8 --factors 2"),
        format!("lda --data {documents} --topics 3 --step-words 3"),
        format!("linreg --data {examples} --pass-steps 5 --rate 0.2"),
    ]
}

/// The files of histories in a folder, by their table.
fn histories(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let mut tables: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let (table, _shard) = name.strip_suffix(".history").unwrap().rsplit_once('.').unwrap();
        tables.entry(table.to_owned()).or_default().push(path.display().to_string());
    }
    tables
}

/// The row of `caravan check-history` for these files.
fn checked(files: &[String]) -> Value {
    let output = caravan(&format!("check-history {} --json", files.join(" "))).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    rows_in(&output).remove(0)
}

#[test]
fn every_trainer_keeps_every_model_that_its_flag_names() {
    let data = folder("trainers-under-models");
    let mut count = 0;
    let mut refused = Vec::new();
    for trainer in trainers(&data) {
        let algorithm = trainer.split(' ').next().unwrap().to_owned();
        for model in MODELS {
            let history = folder(&format!("history-{algorithm}-{}", model.replace(':', "-")));
            let flags = "--workers 3 --servers 2 --in-process --passes 2 --json";
            let mut command = caravan(&format!("train {trainer} --consistency {model} {flags}"));
            let output = command.env("CARAVAN_HISTORY", &history).output().unwrap();
            let what = format!("{algorithm} under {model}: {}", text(&output.stderr));
            if model == "data:1" && algorithm != "linreg" {
                assert_eq!(output.status.code(), Some(1), "{what}");
                let why = format!("parts of {algorithm} write rows of each other");
                assert!(what.contains(&why) && what.contains("take another model"), "{what}");
                refused.push(algorithm.clone());
                continue;
            }
            assert!(output.status.success(), "{what}");
            let tables = histories(&history);
            assert_eq!(tables.len(), 1, "{what}: {tables:?}");
            for files in tables.values() {
                let row = checked(files);
                let [reads, writes] = ["reads", "writes"].map(|it| row[it].as_u64().unwrap());
                assert!(files.len() == 2 && reads > 10 && writes > 10, "{what}: {row}");
                let trained = rows_in(&output).pop().unwrap();
                assert_eq!(row["model"], trained["consistency"], "{what}");
                assert_eq!(row["workers"], 3, "{what}");
            }
            count += 1;
        }
    }
    assert_eq!(count, 26);
    assert_eq!(refused, ["sgd", "fm", "mf", "lda"], "data-centric constraints are for linreg");
}
