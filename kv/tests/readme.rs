//! Goal: the README's table of variables is correct, and its program builds.
#![allow(clippy::unwrap_used, reason = "tests")]

use caravan_kv::config::VARS;

#[test]
fn the_table_of_variables_is_the_code_s() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with("| `CARAVAN_")).collect();
    let expected =
        VARS.iter().map(|var| format!("| `{}` | `{}` | {} |", var.name, var.default, var.help));
    assert_eq!(rows, expected.collect::<Vec<_>>());
}
