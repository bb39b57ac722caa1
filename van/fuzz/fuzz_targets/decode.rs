//! Arbitrary bytes through the decoder, their first bytes and checksum made right, so that the fuzzer sees what lies behind them.

#![no_main]

use caravan_van::wire::{Entry, Images, MAGIC, VERSION};
use caravan_van::{Message, Pool};
use libfuzzer_sys::fuzz_target;

/// Where the checksum stands in a message.
const CHECKSUM: std::ops::Range<usize> = 60..64;

thread_local! {
    static POOL: Pool = Pool::new(256 << 20);
}

fuzz_target!(|bytes: &[u8]| {
    let pool = POOL.with(Pool::clone);
    if let Ok(mut landed) = pool.allocate(bytes.len()) {
        landed.copy_from_slice(bytes);
        if let Ok(message) = Message::decode_landed(landed, &pool) {
            message.into_values();
        }
    }
    let Ok(mut image) = pool.allocate(bytes.len()) else { return };
    image.copy_from_slice(bytes);
    if image.len() >= CHECKSUM.end {
        image[..4].copy_from_slice(&MAGIC.to_le_bytes());
        image[4] = VERSION;
        image[CHECKSUM].fill(0);
        let sum = crc_fast::crc32_iscsi(&image);
        image[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    }
    let mut images = Images::new(image);
    while !images.is_empty() {
        let Ok(entry) = images.next(&pool) else { break };
        let Entry::Message(message) = entry else { continue };
        let (keys, lengths) = (message.keys(), message.lengths());
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(lengths.is_empty() || keys.is_empty() || lengths.len() == keys.len());
        message.offer();
        message.into_values();
    }
});
