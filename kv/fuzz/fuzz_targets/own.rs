//! Arbitrary bytes as values that own filters have coded.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::own(bytes));
