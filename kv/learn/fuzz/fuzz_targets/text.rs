//! Arbitrary bytes as training data: LIBSVM text, or Criteo's.

#![no_main]

#[path = "../bodies.rs"]
#[allow(dead_code, reason = "each target uses one")]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::text(bytes));
