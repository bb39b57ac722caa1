//! What the fuzz targets do with their bytes. `tests/corpus.rs` runs the same over the kept corpus,
//! without a fuzzer.

use std::cell::OnceCell;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use caravan_learn::data::{self, Examples, Shard, libsvm};
use caravan_learn::kmeans::Points;
use caravan_learn::lda::Corpus;
use caravan_learn::mf::{KEY_MAX, Ratings};
use caravan_learn::model::{Format, Model, RowModel};

/// Bytes of a checksum at the end of a file.
const CHECKSUM: usize = 4;

/// A folder for the files of one thread, removed at its end.
struct Folder {
    folder: tempfile::TempDir,
    /// The cache's only file, and its bytes as they were made.
    cache: OnceCell<(PathBuf, Vec<u8>)>,
}

thread_local! {
    static FOLDER: Folder = {
        let folder = tempfile::tempdir().expect("the system has room for temporary files");
        Folder { folder, cache: OnceCell::new() }
    };
}

/// Reads arbitrary bytes as a model: as they are, and as a binary one whose checksum is right. What
/// is read is written and read back the same.
pub(crate) fn model(bytes: &[u8]) {
    let mut summed = bytes.to_vec();
    sum(&mut summed);
    FOLDER.with(|Folder { folder, .. }| {
        let path = folder.path().join("model");
        for bytes in [bytes, &summed] {
            write(&path, bytes);
            let Ok(model) = Model::read(&path) else { continue };
            assert!(model.iter().all(|(_, weight)| weight.is_finite() && weight != 0.0));
            for format in [Format::Text, Format::Binary] {
                model.write(&path, format, "fuzzed").expect("it could be written before");
                let again = Model::read(&path).expect("what is written can be read");
                assert_eq!(again, model);
            }
        }
    });
}

/// Reads arbitrary bytes as a model of rows: as they are, and with a checksum that is right. What
/// is read is written and read back the same.
pub(crate) fn rows(bytes: &[u8]) {
    let checksum = format!("# crc32c {:08x}\n", crc_fast::crc32_iscsi(bytes));
    let summed = [bytes, checksum.as_bytes()].concat();
    FOLDER.with(|Folder { folder, .. }| {
        let path = folder.path().join("rows");
        for bytes in [bytes, &summed] {
            write(&path, bytes);
            let Ok(model) = RowModel::read(&path) else { continue };
            model.write(&path).expect("what is read can be written");
            assert_eq!(RowModel::read(&path).expect("what is written can be read"), model);
        }
    });
}

/// Most digits of a number in fuzzed documents: it may say how often a word occurs, and each of
/// these takes memory.
const DIGITS_MAX: usize = 5;

/// Reads arbitrary bytes as ratings, documents, and points: images or text.
pub(crate) fn inputs(bytes: &[u8]) {
    FOLDER.with(|Folder { folder, .. }| {
        let paths = [folder.path().join("inputs")];
        write(&paths[0], bytes);
        if let Ok(ratings) = Ratings::read(&paths, Shard::ALL) {
            assert!(ratings.all.iter().all(|it| it.user.max(it.item) <= KEY_MAX));
            assert!(ratings.all.iter().all(|it| it.value.is_finite()));
        }
        let numbers = || bytes.split(|byte| !byte.is_ascii_digit());
        if numbers().all(|number| number.len() <= DIGITS_MAX)
            && let Ok(corpus) = Corpus::read(&paths, Shard::ALL)
        {
            let tokens: usize = (0..corpus.documents()).map(|at| corpus.document(at).len()).sum();
            assert_eq!(tokens, corpus.words.len());
        }
        if let Ok(points) = Points::read(&paths) {
            assert!(points.is_empty() || points.dimensions() <= 1 << 20);
        }
    });
}

/// Puts arbitrary numbers into the head and the arrays of a cache, and its checksum right: what is
/// read then is used as training does.
pub(crate) fn cache(bytes: &[u8]) {
    FOLDER.with(|Folder { folder, cache }| {
        let text = folder.path().join("text");
        let caches = folder.path().join("cache");
        let (path, made) = cache.get_or_init(|| make_cache(&text, &caches));
        write(path, &patched(made, bytes));
        let paths = [text];
        let read = data::read_packed(&paths, Shard::ALL, NonZeroUsize::MIN, Some(&caches));
        let rows = read.expect("what cannot be used is made again from the text");
        let nonzeros = rows.nonzeros();
        let keys = rows.distinct_keys();
        assert!(keys.is_empty() == (nonzeros == 0));
        if let Ok(columns) = rows.into_columns(keys) {
            assert_eq!(columns.nonzeros(), nonzeros);
        }
    });
}

/// Bytes of a cache before its identity: the magic and nine numbers.
const CACHE_HEAD: usize = 80;
/// Bytes that a script has for the head: numbers 4 to 8, a byte each, and the keys' range.
const CACHE_NUMBERS: usize = 5 + 16;

/// A cache whose counts and range are the first bytes of `script`, and whose arrays are the rest of
/// it.
fn patched(made: &[u8], script: &[u8]) -> Vec<u8> {
    let Some((numbers, arrays)) = script.split_at_checked(CACHE_NUMBERS) else {
        return made.to_vec();
    };
    let identity = u64::from_le_bytes(made[24..32].try_into().expect("8 bytes")) as usize;
    let mut file = made[..CACHE_HEAD + identity].to_vec();
    let (counts, range) = numbers.split_at(5);
    // Rows, nonzeros, bytes of deltas, whether there are values. The fifth says that the counts
    // shall fit the arrays.
    for (at, count) in counts[..4].iter().enumerate() {
        let number = u64::from(*count) >> if at == 3 { 7 } else { 0 };
        file[32 + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
    }
    file[64..CACHE_HEAD].copy_from_slice(range);
    file.extend_from_slice(arrays);
    if counts[4] != 0 {
        let values = u64::from(counts[3] >> 7) * u64::from(counts[1]) * 8;
        let len = 5 * u64::from(counts[0]) + u64::from(counts[2]) + values;
        file.resize(CACHE_HEAD + identity + len as usize, 0);
    }
    file.extend_from_slice(&[0; CHECKSUM]);
    sum(&mut file);
    file
}

/// Makes the library make a cache, and returns its file and what is in it.
fn make_cache(text: &Path, caches: &Path) -> (PathBuf, Vec<u8>) {
    write(text, b"+1 3:0.5 9:1\n-1 9:2\n");
    data::read_packed(&[text.to_owned()], Shard::ALL, NonZeroUsize::MIN, Some(caches))
        .expect("this is text");
    let entry = caches.read_dir().expect("it was made").next().expect("it holds a file");
    let path = entry.expect("it can be listed").path();
    let bytes = fs::read(&path).expect("it was written");
    (path, bytes)
}

/// Parses arbitrary bytes as training data. What is read is written as LIBSVM text and read back
/// the same.
pub(crate) fn text(bytes: &[u8]) {
    let name = Path::new("fuzzed");
    let Ok(examples) = data::parse(name, bytes) else { return };
    assert!(examples.iter().all(|row| row.keys.is_sorted_by(|a, b| a < b)));
    assert!(examples.values.iter().flatten().all(|value| value.is_finite() && *value != 0.0));
    let mut lines = Vec::new();
    examples.iter().for_each(|row| libsvm::write_row(&mut lines, row));
    let again = data::parse(name, &lines).expect("what is written can be read");
    let known = |examples: &Examples| (examples.labels.clone(), examples.keys.clone());
    assert_eq!(known(&again), known(&examples));
    assert_eq!(again.row_starts, examples.row_starts);
    assert!(again.iter().zip(examples.iter()).all(|(again, row)| {
        again
            .keys
            .iter()
            .enumerate()
            .all(|(at, _)| again.values.map_or(1.0, |v| v[at]) == row.values.map_or(1.0, |v| v[at]))
    }));
}

/// Makes the last bytes the checksum of those before them.
fn sum(bytes: &mut [u8]) {
    if let Some((all, checksum)) = bytes.split_last_chunk_mut::<CHECKSUM>() {
        *checksum = crc_fast::crc32_iscsi(all).to_le_bytes();
    }
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("a temporary file can be written");
}
