//! Arbitrary bytes through the decoder, their checksum made right first, so that the fuzzer sees what lies behind it.

#![no_main]

use caravan_van::{Message, Pool};
use libfuzzer_sys::fuzz_target;

/// Where the checksum stands in a message.
const CHECKSUM: std::ops::Range<usize> = 60..64;

fuzz_target!(|bytes: &[u8]| {
    let pool = Pool::new(256 << 20);
    let Ok(mut image) = pool.allocate(bytes.len()) else { return };
    image.copy_from_slice(bytes);
    if let Some(checksum) = image.get_mut(CHECKSUM) {
        checksum.fill(0);
        let sum = crc32c::crc32c(&image);
        image[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    }
    if let Ok(message) = Message::decode(image, &pool) {
        assert!(message.keys().windows(2).all(|pair| pair[0] < pair[1]));
        assert!(message.lengths().is_empty() || message.lengths().len() == message.keys().len());
        message.into_values();
    }
});
