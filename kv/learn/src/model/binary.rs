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

use std::fs;
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

use super::Model;
use crate::replace_file::Replacement;
use crate::{Error, Result};

/// First bytes of a file.
pub(super) const MAGIC: &[u8; 8] = b"caravanM";

const VERSION: u32 = 1;
const HEAD_BYTES: usize = 40;
const CHECKSUM_BYTES: usize = 4;

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
    let bytes =
        fs::read(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    parse(&bytes).map_err(|reason| Error::DamagedModel { path: path.to_path_buf(), reason })
}

fn parse(bytes: &[u8]) -> Result<Model, String> {
    let (Some(head), Some(body)) = (bytes.get(..HEAD_BYTES), bytes.get(HEAD_BYTES..)) else {
        return Err(format!("it is cut off after {} bytes, within its head", bytes.len()));
    };
    let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    if u32_at(8) != VERSION {
        return Err(format!(
            "it has version {}, but this program reads version {VERSION}",
            u32_at(8)
        ));
    }
    let comment = u32_at(12) as usize;
    let count = u64_at(16);
    // In u128, because the numbers are not trusted yet.
    let expected = u128::from(count) * 16 + (HEAD_BYTES + comment + CHECKSUM_BYTES) as u128;
    if expected != bytes.len() as u128 {
        return Err(format!("{count} weights take {expected} bytes, but it has {}", bytes.len()));
    }
    let (summed, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    let found = crc32_iscsi(summed).to_le_bytes();
    if found != checksum {
        return Err(format!("its checksum is {found:02x?}, but it says {checksum:02x?}"));
    }
    let numbers = &body[comment..body.len() - CHECKSUM_BYTES];
    let (keys, weights) = numbers.split_at(numbers.len() / 2);
    let keys: Vec<u64> = keys.as_chunks().0.iter().map(|key| u64::from_le_bytes(*key)).collect();
    let weights: Vec<f64> =
        weights.as_chunks().0.iter().map(|weight| f64::from_le_bytes(*weight)).collect();
    let intercept = f64::from_bits(u64_at(24));
    let sane = keys.is_sorted_by(|a, b| a < b)
        && weights.iter().all(|weight| weight.is_finite() && *weight != 0.0)
        && intercept.is_finite()
        && u64_at(32) == 0;
    if sane {
        Ok(Model { keys, weights, intercept })
    } else {
        Err("its keys do not ascend, or a weight is 0 or not finite".to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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
}
