//! Arbitrary bytes through the decoder of messages.

#![no_main]

#[path = "../bodies.rs"]
#[allow(dead_code, reason = "each target uses one")]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::decode(bytes));
