//! Arbitrary arrays as a cache of rows.

#![no_main]

#[path = "../bodies.rs"]
#[allow(dead_code, reason = "each target uses one")]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::cache(bytes));
