//! Goal: nothing that a fuzzer once found, and none of its beginnings, breaks what decodes it.
//! Method: run every file of the kept corpus (`fuzz/corpus`) through the body of its fuzz target,
//! whole and cut short.

#[path = "../fuzz/bodies.rs"]
mod bodies;
#[path = "../../van/tests/support/corpus.rs"]
mod kept;

use kept::run;

#[test]
fn blocks() {
    run("block", bodies::block);
}

#[test]
fn pieces() {
    run("piece", bodies::piece);
}

#[test]
fn own_filters() {
    run("own", bodies::own);
}

#[test]
fn exported_rows() {
    run("rows", bodies::rows);
}

#[test]
fn histories() {
    run("history", bodies::history);
}
