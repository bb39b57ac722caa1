//! What the fuzz targets do with their bytes. `tests/corpus.rs` runs the same over the kept corpus,
//! without a fuzzer.

#[path = "../tests/support/own_filters.rs"]
mod own_filters;

use caravan_kv::checkpoint::{recode_changes, recode_piece};
use caravan_kv::export::{Format, rewrite_rows};
use caravan_kv::filter::{OwnFilters, decode_filtered};
use caravan_kv::{TableSpec, ValueType, history};
use caravan_van::Pool;

thread_local! {
    static POOL: Pool = Pool::new(256 << 20);
}

/// Decodes arbitrary bytes as the block of a message's values, for tables of each type, with rows
/// of three values or of their own lengths.
pub(crate) fn block(bytes: &[u8]) {
    let Some((spec, block)) = table(bytes) else { return };
    let value = spec.value;
    let pool = POOL.with(Pool::clone);
    let none = OwnFilters::default();
    if let Ok((lengths, values)) = decode_filtered(&spec, &none, block, 0, &pool) {
        // A bit stands for 8 bytes at most, times the width.
        assert!(values.len() <= 64 * 3 * block.len());
        let total: u64 = lengths.iter().flatten().map(|&length| u64::from(length)).sum();
        assert!(lengths.is_none() || total * value.bytes() as u64 == values.len() as u64);
    }
}

/// Takes arbitrary bytes for a piece of a checkpoint, as servers and files hold it, and for the
/// changes of an increment.
pub(crate) fn piece(bytes: &[u8]) {
    for again in [recode_piece(bytes), recode_changes(bytes)].into_iter().flatten() {
        assert_eq!(again, bytes);
    }
}

/// Bytes that own filters may have before them, besides twice those of the rows.
const OWN_BYTES: usize = 1 << 10;

/// Decodes arbitrary bytes as values that three own filters have coded: for a table as the first
/// byte says, and as many keys as the second.
pub(crate) fn own(bytes: &[u8]) {
    let Some((spec, bytes)) = table(bytes) else { return };
    let Some((&keys, coded)) = bytes.split_first() else { return };
    let own = own_filters::own();
    let named = |spec: TableSpec, name: &&str| spec.own_filter(name, serde_json::Value::Null);
    let spec = ["trim", "turn", "trim"].iter().fold(spec, named);
    let pool = POOL.with(Pool::clone);
    let keys = usize::from(keys);
    if let Ok((_, values)) = decode_filtered(&spec, &own, coded, keys, &pool) {
        // What the filters undo is bounded by the keys, what a block may say by its bytes.
        let undone = 2 * keys * spec.row_bytes() + OWN_BYTES;
        assert!(values.len() <= 64 * 3 * undone.max(coded.len()));
        let again = decode_filtered(&spec, &own, coded, keys, &pool);
        assert!(again.is_ok_and(|(_, again)| again[..] == values[..]), "it is decoded otherwise");
    }
}

/// Reads arbitrary bytes as exported rows, of each form that the build has. Records that are read
/// are written the same; so are text and Arrow, once they were written.
pub(crate) fn rows(bytes: &[u8]) {
    let Some((spec, bytes)) = table(bytes) else { return };
    let rewrite = |format, mut bytes: &[u8]| rewrite_rows(&spec, format, &mut bytes, format);
    if let Ok(text) = rewrite(Format::Text, bytes) {
        assert_eq!(rewrite(Format::Text, &text).expect("what is written can be read"), text);
    }
    if let Ok(again) = rewrite(Format::Binary, bytes) {
        assert_eq!(again, bytes);
    }
    if let Ok(file) = rewrite(Format::Arrow, bytes) {
        assert_eq!(rewrite(Format::Arrow, &file).expect("what is written can be read"), file);
    }
}

/// Models whose histories are checked.
const MODELS: [&str; 5] = [
    r#"{"model":"bsp","workers":2}"#,
    r#"{"model":{"ssp":{"staleness":1}},"workers":3}"#,
    r#"{"model":{"sparse_ssp":{"staleness":1,"speculation":1}},"workers":2}"#,
    r#"{"model":{"data_centric":{"delay":1,"chunk_keys":4}},"workers":2}"#,
    r#"{"model":{"bounded_delay":{"delay":2}},"workers":2}"#,
];

/// Checks arbitrary bytes as a history: as they are, and behind the head of one of some models. As
/// two histories of one table they are cut at a line.
pub(crate) fn history(bytes: &[u8]) {
    let _ = history::check(1, |_| Ok(bytes));
    let Some((&choice, lines)) = bytes.split_first() else { return };
    let head = format!("caravan-history 1 {}\n", MODELS[usize::from(choice) % MODELS.len()]);
    let end = lines.iter().position(|byte| *byte == 0).unwrap_or(lines.len());
    let (first, second) = lines.split_at(end);
    let files = [first, second.get(1..).unwrap_or_default()];
    let files = files.map(|lines| [head.as_bytes(), lines].concat());
    for count in 1..=files.len() {
        if let Ok(summary) = history::check(count, |file| Ok(&files[file][..])) {
            assert!(summary.reads + summary.writes <= summary.events);
        }
    }
}

/// A table of the type and width that the first byte names, and the bytes after it: its rows have
/// three values or lengths of their own.
fn table(bytes: &[u8]) -> Option<(TableSpec, &[u8])> {
    let (&choice, rest) = bytes.split_first()?;
    let value = ValueType::ALL[usize::from(choice >> 1) % ValueType::ALL.len()];
    let width = if choice & 1 == 0 { 0 } else { 3 };
    Some((TableSpec::new(1, "fuzzed", value, width), rest))
}
