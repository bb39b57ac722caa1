//! Arbitrary bytes as a piece of a checkpoint.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::piece(bytes));
