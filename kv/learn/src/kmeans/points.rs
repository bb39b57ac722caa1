//! Points of k-means: rows of numbers, most of which may be 0. They are read once in a process,
//! whatever the number of its workers.

use std::collections::HashMap;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::data::source::Unpacked;
use crate::data::{self, Examples, Labels, Shard, check_shared};
use crate::{Error, Result};

/// First bytes of a file of images in the IDX format: bytes, in three dimensions.
const IDX_IMAGES: [u8; 4] = [0, 0, 8, 3];

/// Most bytes of images in a file.
const IMAGE_BYTES_MAX: u64 = 1 << 32;

/// Most coordinates of a point: a centre has them all.
const DIMENSIONS_MAX: u64 = 1 << 20;

/// Points with the coordinates that are not 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Points {
    /// `[points + 1]`.
    starts: Vec<usize>,
    /// `[nonzeros]`, ascending within a point.
    at: Vec<u32>,
    /// `[nonzeros]`.
    values: Vec<f64>,
    dimensions: usize,
}

impl Points {
    /// Reads files of images (IDX, as MNIST's), or of text as
    /// [`data::read`] does, with any labels.
    ///
    /// # Errors
    /// As [`data::read`]; [`Error::Images`] for a damaged file, or for images of two sizes;
    /// [`Error::Option`] for keys from 2^20 on.
    pub fn read(files: &[PathBuf]) -> Result<Points> {
        // What a file is takes a look of its own.
        check_shared(files)?;
        let mut points = Points { starts: vec![0], ..Points::default() };
        let first = files.first().map(|file| images(file)).transpose()?.flatten();
        let Some(first) = first else {
            let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            return Points::of(&data::read_as(Labels::Ignored, files, Shard::ALL, threads)?);
        };
        points.append(&files[0], first)?;
        for file in &files[1..] {
            let more = images(file)?.ok_or_else(|| wrong(file, "it has no images".to_owned()))?;
            points.append(file, more)?;
        }
        Ok(points)
    }

    /// The rows of examples.
    ///
    /// # Errors
    /// [`Error::Option`] for keys from 2^20 on.
    pub fn of(examples: &Examples) -> Result<Points> {
        let dimensions = examples.keys.iter().max().map_or(0, |last| last.saturating_add(1));
        if dimensions > DIMENSIONS_MAX {
            return Err(Error::Option {
                name: "the largest key of k-means",
                value: (dimensions - 1).to_string(),
                expected: "below 2^20: every centre has all coordinates",
            });
        }
        let values = examples.values.clone();
        Ok(Points {
            starts: if examples.rows() == 0 { vec![0] } else { examples.row_starts.clone() },
            at: examples.keys.iter().map(|key| *key as u32).collect(),
            values: values.unwrap_or_else(|| vec![1.0; examples.keys.len()]),
            dimensions: dimensions as usize,
        })
    }

    fn append(&mut self, file: &Path, Images { pixels, bytes }: Images) -> Result<()> {
        if self.dimensions != 0 && self.dimensions != pixels {
            let before = self.dimensions;
            return Err(wrong(file, format!("its images have {pixels} pixels, others {before}")));
        }
        self.dimensions = pixels;
        for image in bytes.chunks_exact(pixels) {
            for (at, pixel) in image.iter().enumerate().filter(|(_, pixel)| **pixel != 0) {
                self.at.push(at as u32);
                self.values.push(f64::from(*pixel));
            }
            self.starts.push(self.at.len());
        }
        Ok(())
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Coordinates of each.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The coordinates of point `point` that are not 0.
    pub(super) fn point(&self, point: usize) -> (&[u32], &[f64]) {
        let entries = self.starts[point]..self.starts[point + 1];
        (&self.at[entries.clone()], &self.values[entries])
    }
}

/// Images of a file, one after another.
struct Images {
    pixels: usize,
    bytes: Vec<u8>,
}

fn wrong(file: &Path, reason: String) -> Error {
    Error::Images { path: file.to_owned(), reason }
}

/// Reads a file of images; `None` if it is something else.
fn images(file: &Path) -> Result<Option<Images>> {
    let failed = |source| Error::Read { path: file.to_owned(), source };
    let mut reader = Unpacked::open(file)?.input;
    let mut header = Vec::new();
    reader.by_ref().take(16).read_to_end(&mut header).map_err(failed)?;
    let Some((magic, sizes)) = header.split_first_chunk::<4>() else { return Ok(None) };
    if *magic != IDX_IMAGES {
        return Ok(None);
    }
    let (sizes, _) = sizes.as_chunks::<4>();
    let [count, rows, columns] = sizes else {
        return Err(wrong(file, "it ends in its header".to_owned()));
    };
    let [count, rows, columns] = [count, rows, columns].map(|size| u32::from_be_bytes(*size));
    let pixels = u64::from(rows) * u64::from(columns);
    let bytes_in_all = pixels.checked_mul(count.into()).filter(|bytes| *bytes <= IMAGE_BYTES_MAX);
    let Some(bytes_in_all) = bytes_in_all.filter(|_| (1..=DIMENSIONS_MAX).contains(&pixels)) else {
        let sizes = format!("{count} images of {rows} x {columns} pixels");
        return Err(wrong(file, format!("its header says {sizes}: at most 2^20 pixels, 4 GiB")));
    };
    let mut bytes = Vec::new();
    reader.take(bytes_in_all + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 == bytes_in_all {
        true => Ok(Some(Images { pixels: pixels as usize, bytes })),
        false => Err(wrong(file, format!("it has not {bytes_in_all} bytes of images"))),
    }
}

/// The points that workers of this process have read.
#[derive(Debug, Default)]
pub(super) struct DataStore(Mutex<HashMap<Vec<PathBuf>, Weak<Points>>>);

impl DataStore {
    /// The points of these files, which are read if no worker has them.
    pub(super) fn points(&self, files: &[PathBuf]) -> Result<Arc<Points>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(points) = all.get(files).and_then(Weak::upgrade) {
            return Ok(points);
        }
        let points = Arc::new(Points::read(files)?);
        all.retain(|_, points| points.strong_count() > 0);
        all.insert(files.to_vec(), Arc::downgrade(&points));
        Ok(points)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::data::testing::{Folder, gzip};

    /// Two images of 2 x 1 pixels.
    const IMAGES: [u8; 20] = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 7, 0, 0, 255];

    #[test]
    fn images_and_rows_are_points() {
        let folder = Folder::new("points");
        let plain = folder.write("plain", &IMAGES);
        let packed = folder.write("packed.gz", &gzip(&IMAGES));
        let points = Points::read(&[plain, packed]).unwrap();
        assert_eq!((points.len(), points.dimensions()), (4, 2));
        for twice in [0, 2] {
            assert_eq!(points.point(twice), (&[0][..], &[7.0][..]));
            assert_eq!(points.point(twice + 1), (&[1][..], &[255.0][..]));
        }
        let text = folder.write("text", b"+1 1:0.5 3:2\n-1 0:1\n");
        let points = Points::read(&[text]).unwrap();
        assert_eq!((points.len(), points.dimensions()), (2, 4));
        assert_eq!(points.point(0), (&[1, 3][..], &[0.5, 2.0][..]));
        assert!(Points::read(&[]).unwrap().is_empty());
    }

    #[test]
    fn wrong_files_are_named() {
        let folder = Folder::new("wrong-points");
        let refused = |bytes: &[u8], why: &str| {
            let file = folder.write("file", bytes);
            let error = Points::read(&[file]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(&IMAGES[..19], "it has not 4 bytes of images");
        refused(&[&IMAGES[..], &[1]].concat(), "it has not 4 bytes of images");
        refused(&IMAGES[..9], "it ends in its header");
        refused(&[&IMAGES[..4], &[255; 12], &[0; 4]].concat(), "at most 2^20 pixels");
        refused(&[&IMAGES[..8], &[0; 8]].concat(), "2 images of 0 x 0 pixels");
        refused(b"+1 1048576:1\n", "below 2^20");
        let images = folder.write("images", &IMAGES);
        let text = folder.write("text", b"+1 1:1\n");
        let error = Points::read(&[images, text]).unwrap_err().to_string();
        assert!(error.contains("it has no images"), "{error}");
    }

    #[test]
    fn points_are_read_once() {
        let folder = Folder::new("store");
        let files = [folder.write("file", &IMAGES)];
        let store = DataStore::default();
        let points = store.points(&files).unwrap();
        assert!(Arc::ptr_eq(&points, &store.points(&files).unwrap()));
        drop(points);
        assert_eq!(store.points(&files).unwrap().len(), 2, "read anew");
    }
}
