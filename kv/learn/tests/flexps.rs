//! Goal: the page that maps FlexPS to what is here names tests that exist, and leaves none of
//! FlexPS's out. Method: reads the page and the files that it names.

use std::path::Path;

const PAGE: &str = include_str!("../../docs/flexps.md");

/// Tests of FlexPS's public code, with one that is commented out.
const THEIRS: usize = 126;

#[test]
fn the_tests_that_the_page_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = PAGE.split('`').filter_map(|word| word.split_once("::"));
    let mut count = 0;
    for (file, test) in named.filter(|(file, _)| file.ends_with(".rs")) {
        let code = std::fs::read_to_string(root.join(file)).unwrap_or_else(|_| panic!("{file}"));
        let has = |open: &str| code.contains(&format!("fn {test}{open}"));
        assert!(has("(") || has("<"), "{file} has no test {test}");
        count += 1;
    }
    assert!(count > 50, "the page names {count} tests");
}

#[test]
fn each_test_of_flexps_is_on_the_page_with_a_test_or_a_reason() {
    let mut count = 0;
    for section in PAGE.split("\n## ").skip(1) {
        for row in section.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let (theirs, here) = match cells[..] {
                ["", theirs, here, ""] => (theirs, here),
                ["", _, theirs, here, ""] => {
                    count += theirs.split(", ").count();
                    (theirs, here)
                }
                _ => panic!("{row}"),
            };
            let is_tested = here.contains(".rs::");
            assert!(is_tested || here.split(' ').count() >= 6, "{theirs}: {here}");
        }
    }
    assert_eq!(count, THEIRS);
}
