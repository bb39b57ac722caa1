//! Arbitrary bytes as a model file, text or binary.

#![no_main]

#[path = "../bodies.rs"]
#[allow(dead_code, reason = "each target uses one")]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::model(bytes));
