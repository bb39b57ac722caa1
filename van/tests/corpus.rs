//! Goal: nothing that a fuzzer once found, and none of its beginnings, breaks what receives bytes
//! of others. Method: run every file of the kept corpus (`fuzz/corpus`) through the body of its
//! fuzz target, whole and cut short.

#[path = "../fuzz/bodies.rs"]
mod bodies;
#[path = "support/corpus.rs"]
mod kept;

use kept::run;

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
