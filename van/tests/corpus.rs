//! Goal: nothing that a fuzzer once found, and none of its beginnings, breaks what receives bytes
//! of others. Method: run every file of the kept corpus (`fuzz/corpus`) through the body of its
//! fuzz target, whole and cut short.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

#[path = "../fuzz/bodies.rs"]
mod bodies;

/// Runs each file of a target's corpus.
fn run(target: &str, body: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files = 0;
    for entry in folder.read_dir().unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        body(&bytes);
        (0..bytes.len()).step_by(13).for_each(|end| body(&bytes[..end]));
        files += 1;
    }
    assert!(files >= 3, "{target}: the corpus is not there");
}

#[test]
fn messages() {
    run("decode", bodies::decode);
}

#[test]
fn streams() {
    run("stream", bodies::stream);
}

#[test]
#[cfg(all(target_os = "linux", feature = "shm"))]
fn rings() {
    run("ring", caravan_van::shm::stranger::ring);
}
