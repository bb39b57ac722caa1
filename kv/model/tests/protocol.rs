//! Goal: the rules of kv's replication hold in every order of events, and each of them is needed.
//! Method: all small configurations are explored without mutants, and each mutant where it is
//! found. The page has the same numbers, so a rule that changes is explored anew.

use std::collections::BTreeSet;

use caravan_kv_model::configurations::{self, Configuration};
use caravan_kv_model::explore::{Outcome, Verdict};
use caravan_kv_model::mutants::MUTATIONS;

const PAGE: &str = include_str!("../../docs/protocol.md");
const STATES_MAX: usize = 2_500_000;

fn is_on_page(row: &str) -> bool {
    PAGE.lines().any(|line| line == row)
}

fn run_of(outcome: &Outcome) -> String {
    match &outcome.verdict {
        Verdict::Broken { run, .. } => run.join("\n"),
        _ => String::new(),
    }
}

#[test]
fn small_configurations_hold() {
    for configuration in configurations::all().iter().filter(|known| known.is_quick) {
        let outcome = configuration.explore(None, STATES_MAX);
        let row = configuration.row(&outcome);
        assert_eq!(outcome.verdict, Verdict::Holds, "{row}\n{}", run_of(&outcome));
        assert!(outcome.ends > 0, "{row}: no run comes to an end");
        assert!(is_on_page(&row), "kv/docs/protocol.md lacks the row\n{row}");
    }
}

#[test]
fn every_mutant_is_found() {
    for mutation in MUTATIONS {
        let configuration = configurations::named(mutation.configuration)
            .unwrap_or_else(|| panic!("{}: no such configuration", mutation.configuration));
        let outcome = configuration.explore(Some(mutation.mutant), STATES_MAX);
        let row = mutation.row(&outcome);
        let Verdict::Broken { violation, .. } = &outcome.verdict else {
            panic!("it is not found: {row}")
        };
        assert!((mutation.leads_to)(violation), "{row}\n{}", run_of(&outcome));
        assert!(is_on_page(&row), "kv/docs/protocol.md lacks the row\n{row}");
    }
}

#[test]
fn the_page_names_every_configuration_and_the_rule_of_every_mutant() {
    for Configuration { name, subject, .. } in configurations::all() {
        let begin = format!("| `{name}` | {subject} | ");
        assert!(PAGE.lines().any(|line| line.starts_with(&begin)), "no row begins with {begin}");
    }
    for mutation in MUTATIONS {
        let name = format!("`{}`", mutation.name);
        let in_a_rule =
            |line: &str| line.contains(&name) && !line.starts_with(&format!("| {name}"));
        assert!(PAGE.lines().any(in_a_rule), "no rule names the mutant {name}");
    }
}

#[test]
fn names_are_unique() {
    let configurations = configurations::all();
    let names: BTreeSet<&str> = configurations.iter().map(|known| known.name).collect();
    assert_eq!(names.len(), configurations.len());
    let names: BTreeSet<&str> = MUTATIONS.iter().map(|mutation| mutation.name).collect();
    assert_eq!(names.len(), MUTATIONS.len());
}
