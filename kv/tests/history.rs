//! Goal: the checker of histories accepts what a model allows, and names the two events that break
//! it otherwise.
//! Method: the histories of the papers, others with one event out of place, and histories of random
//! schedules of the real controllers.

use caravan_kv::consistency::{Consistency, Model};
use caravan_kv::history::{Summary, Trouble, Violation, check};

/// Checks histories of two workers, one of each server thread.
fn check_all(model: Model, histories: &[&str]) -> Result<Summary, Trouble> {
    let consistency = Consistency { model, workers: 2 };
    let head = serde_json::to_string(&consistency).unwrap();
    let text = |events: &&str| {
        let events: Vec<&str> = events.split_terminator(';').map(str::trim).collect();
        format!("caravan-history 1 {head}\nj 1 1 0 -\nj 2 1 0 -\n{}\n", events.join("\n"))
    };
    let texts: Vec<String> = histories.iter().map(text).collect();
    check(texts.len(), |file| Ok(texts[file].as_bytes()))
}

fn violation(model: Model, histories: &[&str]) -> Violation {
    match check_all(model, histories) {
        Err(Trouble::Violated(violation)) => *violation,
        other => panic!("{other:?}"),
    }
}

fn delay(delay: u64) -> Model {
    Model::DataCentric { delay: Some(delay), chunk_keys: 1 }
}

/// Reads of both chunks by both workers, then both writes: two iterations.
const H1: &str = "r 1 1 0 1;r 1 1 0 2;r 2 1 0 1;r 2 1 0 2;w 1 1 1 1;w 2 1 1 2;\
    r 1 2 1 1;r 1 2 1 2;r 2 2 1 1;r 2 2 1 2;w 1 2 2 1;w 2 2 2 2";

/// Worker 1 reads chunk 2 of iteration 2 before it writes its own of iteration 1.
const H2: &str = "r 2 1 0 1;r 2 1 0 2;r 1 1 0 2;w 2 1 1 2;r 1 2 1 2;r 1 1 0 1;w 1 1 1 1;\
    r 2 2 1 1;r 2 2 1 2;r 1 2 1 1;w 1 2 2 1;w 2 2 2 2";

/// Worker 1 writes its chunk before worker 2 has read it.
const H3: &str = "r 1 1 0 1;r 1 1 0 2;w 1 1 1 1;r 2 1 1 1;r 2 1 0 2;w 2 1 1 2";

#[test]
fn the_papers_histories() {
    let summary = check_all(delay(0), &[H1]).unwrap();
    assert_eq!((summary.events, summary.reads, summary.writes), (14, 8, 4));
    check_all(delay(0), &[H2]).unwrap();
    let broken = violation(delay(0), &[H3]);
    assert!(broken.rule.starts_with("WC"), "{broken:?}");
    assert_eq!((broken.after.line, broken.event.to_string()), (6, "w 1 1 1 1".to_owned()));
    check_all(delay(1), &[H3]).unwrap();
}

/// The same operations, where a read's version is the number of writes before it.
#[test]
fn only_the_first_is_bulk_synchronous() {
    let h1 = "r 1 1 0 -;r 1 1 0 -;r 2 1 0 -;r 2 1 0 -;w 1 1 0 -;w 2 1 1 -;r 1 2 2 -;r 2 2 2 -";
    check_all(Model::Bsp, &[h1]).unwrap();
    let h2 = "r 2 1 0 -;r 2 1 0 -;r 1 1 0 -;w 2 1 0 -;r 1 2 1 -;r 1 1 1 -;w 1 1 1 -";
    let broken = violation(Model::Bsp, &[h2]);
    assert_eq!((broken.before.unwrap().line, broken.after.line), (7, 9), "{broken:?}");
    let unordered = "r 1 1 0 -;r 2 1 0 -;w 2 1 0 -;w 1 1 1 -";
    assert!(violation(Model::Bsp, &[unordered]).rule.contains("order of rank"));
    let late = "r 1 1 0 -;r 2 1 0 -;w 1 1 0 -;r 1 2 1 -;w 2 1 1 -";
    assert!(violation(Model::Bsp, &[late]).rule.contains("over"));
}

#[test]
fn one_event_out_of_place_breaks_a_history() {
    for (events, rule) in [
        (H1.replace("r 1 2 1 1", "r 1 2 0 1"), "version"),
        (H1.replace("r 2 2 1 1;", ""), "WC"),
        (H1.replace("w 1 1 1 1;", "w 1 1 1 1;w 1 1 1 1;"), "once"),
        (H1.replace("w 1 1 1 1;", "").replace("r 1 2 1 1", "r 1 2 0 1"), "RC"),
        (H1.replace("w 2 1 1 2;", "w 1 1 1 2;"), "owner"),
        (H1.replace("w 1 2 2 1", "w 2 2 2 1"), "owner"),
        (H1.replace("r 1 1 0 1;r 1 1 0 2", "r 1 1 0 2") + ";w 1 3 3 1", "WC"),
        ("r 1 1 0 1;r 2 1 0 1;w 1 1 1 1;r 1 1 0 2".to_owned(), "DAM"),
    ] {
        let broken = violation(delay(0), &[&events]);
        assert!(broken.rule.starts_with(rule), "{events}: {broken:?}");
    }
}

/// The two chunks are at two server threads, whose clocks say nothing of each other.
#[test]
fn orders_of_each_thread_are_enough() {
    let first = "r 1 1 0 1;r 2 1 0 1;w 1 1 1 1;r 1 2 1 1;r 2 2 1 1;w 1 2 2 1";
    let second = "r 1 1 0 2;r 2 1 0 2;w 2 1 1 2;r 2 2 1 2;r 1 2 1 2;w 2 2 2 2";
    let summary = check_all(delay(0), &[first, second]).unwrap();
    assert_eq!(summary.events, 16);
    check_all(delay(0), &[second, first]).unwrap();
    // Worker 1 writes before it reads there, which it does only after worker 2's write, which comes
    // before worker 2 reads here.
    let first = "r 1 1 0 1;w 1 1 1 1;r 2 1 1 1";
    let second = "r 2 1 0 2;w 2 1 1 2;r 1 1 1 2";
    let broken = violation(delay(1), &[first, second]);
    assert!(broken.rule.starts_with("DAM"), "{broken:?}");
}

#[test]
fn staleness_names_the_read_and_the_write() {
    let ssp = Model::Ssp { staleness: 1 };
    let good = "r 1 1 0 -;w 1 1 0 -;c 1 2 0 -;r 1 2 1 -;w 1 2 1 -;w 2 1 2 -;r 1 3 3 -";
    check_all(ssp, &[good]).unwrap();
    let bad = "r 1 1 0 -;w 1 1 0 -;r 1 2 1 -;w 1 2 1 -;r 1 3 2 -;w 2 1 2 -";
    let broken = violation(ssp, &[bad]);
    assert_eq!((broken.before.unwrap().line, broken.after.line), (8, 9), "{broken:?}");
    check_all(Model::Ssp { staleness: 2 }, &[bad]).unwrap();
    check_all(ssp, &["b 0 2 0 -;r 1 1 0 -;w 1 1 0 -;r 1 3 1 -;w 2 1 1 -"]).unwrap();
    check_all(Model::Asp, &[bad]).unwrap();
    assert!(violation(Model::Asp, &["w 1 1 0 -;r 1 1 0 -"]).rule.starts_with("version"));
    let delayed = "w 1 1 0 -;w 1 2 1 -;w 1 3 2 -;w 2 1 3 -";
    let broken = violation(Model::BoundedDelay { delay: 1 }, &[delayed]);
    assert_eq!((broken.before.unwrap().line, broken.after.line), (6, 7), "{broken:?}");
}

#[test]
fn a_conflict_names_the_reader_that_left_a_write_out() {
    let sparse = Model::SparseSsp { staleness: 0, speculation: 2 };
    check_all(sparse, &["r 1 3 0 4,7;w 2 1 0 5,6;w 2 2 1 7"]).unwrap_err();
    check_all(sparse, &["r 1 3 0 4,7;w 2 1 0 5,6;w 2 3 1 7"]).unwrap();
    let broken = violation(sparse, &["r 2 9 0 1;r 1 3 0 4,7;w 2 2 0 7"]);
    assert!(broken.rule.starts_with("staleness"), "{broken:?}");
    let broken = violation(sparse, &["r 1 3 0 4,7;w 1 2 0 4;w 2 2 1 7"]);
    assert!(broken.rule.starts_with("conflict"), "{broken:?}");
    assert_eq!((broken.before.unwrap().line, broken.after.line), (4, 6), "{broken:?}");
    let too_far = violation(sparse, &["r 1 4 0 4;w 2 1 0 5"]);
    assert!(too_far.rule.starts_with("staleness"), "{too_far:?}");
}

#[test]
fn other_files_are_refused_by_line() {
    let model = r#"{"model":"asp","workers":2}"#;
    for (text, part) in [
        (String::new(), "line 1"),
        ("# nothing".to_owned(), "line 1"),
        ("caravan-history 1 {}".to_owned(), "line 1"),
        ("caravan-history 2 {}\n".to_owned(), "line 1"),
        (format!("caravan-history 1 {model}\nr 1 1 0\n"), "line 2"),
        (format!("caravan-history 1 {model}\nr 1 1 0 -\n\nr 1 1 0 -\n"), "line 3"),
        (r#"caravan-history 1 {"model":"asp","workers":0}"#.to_owned() + "\n", "line 1"),
    ] {
        let trouble = check(1, |_| Ok(text.as_bytes())).unwrap_err().to_string();
        assert!(trouble.contains(part), "{text:?}: {trouble}");
    }
    // What a killed process has not written is not missed.
    let torn = format!("caravan-history 1 {model}\nr 1 1 0 -\nw 1 1");
    assert_eq!(check(1, |_| Ok(torn.as_bytes())).unwrap().events, 1);
    assert!(check(0, |_| Ok(&b""[..])).is_err());
}

/// Whoever comes when all have left begins with iteration 1 again.
#[test]
fn those_who_come_later_begin_anew() {
    let first = "r 1 1 0 -;w 1 1 0 -;w 2 1 1 -;r 1 2 2 -;l 1 0 0 -";
    check_all(Model::Bsp, &[&format!("{first};l 2 0 0 -;j 3 1 0 -;r 3 1 2 -;w 3 1 2 -")]).unwrap();
    let broken = violation(Model::Bsp, &[&format!("{first};j 3 1 0 -;w 3 1 2 -")]);
    assert!(broken.rule.contains("over"), "{broken:?}");
}
