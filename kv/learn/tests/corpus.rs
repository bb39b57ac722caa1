//! Goal: no file that a fuzzer once found, and none of its beginnings, breaks what reads models,
//! caches and training data. Method: run every file of the kept corpus (`fuzz/corpus`) through the
//! body of its fuzz target, whole and cut short.

#[path = "../fuzz/bodies.rs"]
mod bodies;
#[path = "../../../van/tests/support/corpus.rs"]
mod kept;

use kept::run;

#[test]
fn models() {
    run("model", bodies::model);
}

#[test]
fn models_of_rows() {
    run("rows", bodies::rows);
}

#[test]
fn caches() {
    run("cache", bodies::cache);
}

#[test]
fn texts() {
    run("text", bodies::text);
}

#[test]
fn ratings_documents_and_points() {
    run("inputs", bodies::inputs);
}
