//! Goal: no block of values that a fuzzer once found, and none of its beginnings, breaks what
//! decodes it. Method: run every file of the kept corpus (`fuzz/corpus`) through the body of the
//! fuzz target, whole and cut short.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

#[path = "../fuzz/bodies.rs"]
mod bodies;

#[test]
fn blocks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/block");
    let mut files = 0;
    for entry in folder.read_dir().unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        bodies::block(&bytes);
        (0..bytes.len()).step_by(5).for_each(|end| bodies::block(&bytes[..end]));
        files += 1;
    }
    assert!(files >= 3, "the corpus is not there");
}
