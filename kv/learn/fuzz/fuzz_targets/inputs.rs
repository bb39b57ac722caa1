//! Arbitrary bytes as ratings, documents, and points.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::inputs(bytes));
