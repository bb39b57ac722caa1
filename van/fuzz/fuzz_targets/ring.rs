//! Arbitrary records of a peer in the ring of a shared-memory lane.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| caravan_van::shm::stranger::ring(bytes));
