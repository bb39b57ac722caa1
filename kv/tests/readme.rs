//! Goal: the page of variables is correct, and the front page's program is an example.

use caravan_kv::config::VARS;

fn front_page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap()
}

/// `ci/suites/portable` runs the example.
#[test]
fn the_program_is_an_example() {
    let page = front_page();
    let shown = page.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    let program = include_str!("../examples/one_process.rs");
    assert!(program.ends_with(shown), "README.md shows another program");
}

#[test]
fn the_table_of_variables_is_the_code_s() {
    let page = include_str!("../docs/variables.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `CARAVAN_")).collect();
    let expected =
        VARS.iter().map(|var| format!("| `{}` | `{}` | {} |", var.name, var.default, var.help));
    assert_eq!(rows, expected.collect::<Vec<_>>());
}
