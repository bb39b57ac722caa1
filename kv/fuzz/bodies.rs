//! What the fuzz targets do with their bytes. `tests/corpus.rs` runs the same over the kept corpus,
//! without a fuzzer.

use caravan_kv::checkpoint::recode_piece;
use caravan_kv::filter::decode_block;
use caravan_kv::{TableSpec, ValueType};
use caravan_van::Pool;

thread_local! {
    static POOL: Pool = Pool::new(256 << 20);
}

/// Decodes arbitrary bytes as the block of a message's values, for tables of each type, with rows
/// of three values or of their own lengths.
pub(crate) fn block(bytes: &[u8]) {
    let Some((&choice, block)) = bytes.split_first() else { return };
    let value = ValueType::ALL[usize::from(choice >> 1) % ValueType::ALL.len()];
    let width = if choice & 1 == 0 { 0 } else { 3 };
    let spec = TableSpec::new(1, "fuzzed", value, width);
    let pool = POOL.with(Pool::clone);
    if let Ok((lengths, values)) = decode_block(&spec, block, &pool) {
        // A bit stands for 8 bytes at most, times the width.
        assert!(values.len() <= 64 * 3 * block.len());
        let total: u64 = lengths.iter().flatten().map(|&length| u64::from(length)).sum();
        assert!(lengths.is_none() || total * value.bytes() as u64 == values.len() as u64);
    }
}

/// Takes arbitrary bytes for a piece of a checkpoint, as servers and files hold it.
pub(crate) fn piece(bytes: &[u8]) {
    if let Ok(again) = recode_piece(bytes) {
        assert_eq!(again, bytes);
    }
}
