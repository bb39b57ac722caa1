//! Models in binary. All numbers are little-endian:
//!
//! ```text
//! offset  0  8 bytes   magic
//!         8  u32       version
//!        12  u32       bytes of the comment
//!        16  u64       n, the number of weights
//!        24  f64       intercept
//!        32  u64       0
//!        40  comment, UTF-8;  n keys, u64, ascending;  n weights, f64;  CRC32C of all that, u32
//! ```

use std::io::{BufReader, Read};
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest};

use super::Model;
use crate::data::Input;
use crate::replace_file::Replacement;
use crate::{Error, Result};

/// First bytes of a file.
pub(super) const MAGIC: &[u8; 8] = b"caravanM";

const VERSION: u32 = 1;
const HEAD_BYTES: usize = 40;
const CHECKSUM_BYTES: usize = 4;

/// Bytes of numbers that are read at once, and checked.
const PIECE_BYTES: usize = 8 << 10;

/// A file and the checksum of everything written to it.
struct Summed {
    file: Replacement,
    crc: Digest,
}

impl Summed {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.crc.update(bytes);
        self.file.write(bytes)
    }
}

/// Writes all of a model to a file.
pub(super) fn write(model: &Model, file: Replacement, comment: &str) -> Result<()> {
    let mut file = Summed { file, crc: Digest::new(CrcAlgorithm::Crc32Iscsi) };
    let comment = &comment.as_bytes()[..comment.len().min(u32::MAX as usize)];
    file.write(MAGIC)?;
    file.write(&VERSION.to_le_bytes())?;
    file.write(&(comment.len() as u32).to_le_bytes())?;
    file.write(&(model.keys.len() as u64).to_le_bytes())?;
    file.write(&model.intercept.to_le_bytes())?;
    file.write(&0_u64.to_le_bytes())?;
    file.write(comment)?;
    model.keys.iter().try_for_each(|key| file.write(&key.to_le_bytes()))?;
    model.weights.iter().try_for_each(|weight| file.write(&weight.to_le_bytes()))?;
    let checksum = (file.crc.finalize() as u32).to_le_bytes();
    file.write(&checksum)?;
    file.file.commit()
}

/// Reads a whole file that begins with [`MAGIC`].
pub(super) fn read(path: &Path) -> Result<Model> {
    let input = Input::open_plain(path)?;
    let len = input.total_bytes();
    let len = len.map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    let crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let model = Reading { input: BufReader::new(input), crc }.model(len);
    model.map_err(|reason| Error::DamagedModel { path: path.to_path_buf(), reason })
}

/// A file that is read, and the checksum of what was read.
struct Reading<R> {
    input: R,
    crc: Digest,
}

impl<R: Read> Reading<R> {
    /// The model in a file of `len` bytes. Numbers are checked as they come: a file that claims
    /// more of them than it has, or is a hole, takes no memory.
    fn model(mut self, len: u64) -> Result<Model, String> {
        if len < HEAD_BYTES as u64 {
            return Err(format!("it is cut off after {len} bytes, within its head"));
        }
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let version = u32_at(8);
        if version != VERSION {
            let says = format!("it has version {version}");
            return Err(format!("{says}, but this program reads version {VERSION}"));
        }
        let comment = u64::from(u32_at(12));
        let count = u64_at(16);
        // In u128, because the numbers are not trusted yet.
        let rest = u128::from(comment) + (HEAD_BYTES + CHECKSUM_BYTES) as u128;
        let expected = u128::from(count) * 16 + rest;
        if expected != u128::from(len) {
            return Err(format!("{count} weights take {expected} bytes, but it has {len}"));
        }
        let intercept = f64::from_bits(u64_at(24));
        if !intercept.is_finite() || u64_at(32) != 0 {
            return Err("its intercept is not finite, or its head is another one".to_owned());
        }
        self.pieces(comment, |_| Ok(()))?;
        let mut keys: Vec<u64> = Vec::new();
        self.pieces(8 * count, |piece| {
            keys.extend(piece.as_chunks().0.iter().map(|key| u64::from_le_bytes(*key)));
            let begin = keys.len().saturating_sub(piece.len() / 8 + 1);
            let ascend = keys[begin..].is_sorted_by(|a, b| a < b);
            ascend.then_some(()).ok_or("its keys do not ascend")
        })?;
        let mut weights: Vec<f64> = Vec::new();
        self.pieces(8 * count, |piece| {
            let begin = weights.len();
            weights.extend(piece.as_chunks().0.iter().map(|it| f64::from_le_bytes(*it)));
            let are_sane = weights[begin..].iter().all(|it| it.is_finite() && *it != 0.0);
            are_sane.then_some(()).ok_or("a weight is 0 or not finite")
        })?;
        let found = (self.crc.finalize() as u32).to_le_bytes();
        let mut checksum = [0; CHECKSUM_BYTES];
        self.fill(&mut checksum)?;
        match found == checksum {
            true => Ok(Model { keys, weights, intercept }),
            false => Err(format!("its checksum is {found:02x?}, but it says {checksum:02x?}")),
        }
    }

    /// Calls `with` with the next bytes, a piece at a time.
    fn pieces(
        &mut self,
        bytes: u64,
        mut with: impl FnMut(&[u8]) -> Result<(), &'static str>,
    ) -> Result<(), String> {
        let mut piece = [0; PIECE_BYTES];
        let mut left = bytes;
        while left > 0 {
            let count = left.min(PIECE_BYTES as u64);
            let piece = &mut piece[..count as usize];
            self.fill(piece)?;
            with(piece)?;
            left -= count;
        }
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), String> {
        self.input.read_exact(into).map_err(|error| error.to_string())?;
        self.crc.update(into);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;

    use crc_fast::crc32_iscsi;

    use super::*;
    use crate::data::testing::Folder;
    use crate::model::Format;

    #[test]
    fn bad_files_are_refused_with_the_reason() {
        let folder = Folder::new("model-binary");
        let path = folder.path().join("m.bin");
        let model = Model::new(vec![(3, 0.1), (u64::MAX, -2.5)]).unwrap();
        let model = model.with_intercept(1e-300).unwrap();
        model.write(&path, Format::Binary, "dbpg").unwrap();
        assert_eq!(Model::read(&path).unwrap(), model);
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), HEAD_BYTES + 4 + 2 * 16 + CHECKSUM_BYTES);
        let resummed = |mut bytes: Vec<u8>| {
            let end = bytes.len() - CHECKSUM_BYTES;
            let crc = crc32_iscsi(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
            bytes
        };
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = whole.clone();
            bytes[at..at + to.len()].copy_from_slice(to);
            bytes
        };
        for (bytes, message) in [
            (whole[..20].to_vec(), "it is cut off after 20 bytes, within its head"),
            (whole[..70].to_vec(), "2 weights take 80 bytes, but it has 70"),
            (changed(8, &[2]), "it has version 2, but this program reads version 1"),
            (changed(16, &[0xff; 8]), "18446744073709551615 weights take"),
            (changed(50, &[9]), "its checksum is"),
            (resummed(changed(44, &[0xff; 8])), "its keys do not ascend"),
            (resummed(changed(60, &[0; 8])), "a weight is 0 or not finite"),
            (resummed(changed(24, &[0xff; 8])), "not finite"),
        ] {
            let error = Model::read(&folder.write("bad", &bytes)).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("bad"), "{message}: {error}");
        }
    }

    /// A hole in a file costs nothing to make: it is read no further than the first keys.
    #[test]
    fn a_hole_takes_no_memory() {
        let folder = Folder::new("model-hole");
        let count = 1_u64 << 36;
        let head: [&[u8]; 6] =
            [MAGIC, &[1, 0, 0, 0], &[0; 4], &count.to_le_bytes(), &[0; 8], &[0; 8]];
        let path = folder.write("hole", &head.concat());
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(16 * count + (HEAD_BYTES + CHECKSUM_BYTES) as u64).unwrap();
        let error = Model::read(&path).unwrap_err().to_string();
        assert!(error.contains("its keys do not ascend"), "{error}");
    }
}
