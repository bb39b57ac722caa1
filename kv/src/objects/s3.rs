//! Objects by the crate `object_store`.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};

use super::SCHEME;
use crate::checkpoint::Disk;

/// How often, and how long, a request is made again that a store did not answer well.
const TRIES_MAX: usize = 4;
const TRIES_WITHIN: Duration = Duration::from_secs(60);

/// Bytes that are asked for at once: few where reading begins, twice as many each time after it.
const PIECE_BYTES_MIN: u64 = 64 << 10;
const PIECE_BYTES_MAX: u64 = 8 << 20;

/// Bytes of a part of an object that is written, and parts that are on their way.
const PART_BYTES: usize = 8 << 20;
const PARTS_MAX: usize = 4;

/// An object that is read from its beginning on, or from wherever [`Seek`] says.
#[derive(Debug)]
pub struct Object {
    bucket: Bucket,
    key: Path,
    bytes: u64,
    tag: Option<String>,
    /// The next byte to read.
    at: u64,
    /// What came from there on.
    piece: Bytes,
    /// How much to ask for next.
    piece_bytes: u64,
}

impl Object {
    /// The object at an address, whose store is asked for its length.
    ///
    /// # Errors
    /// That of the store, or what is wrong with the address or the `AWS_*` variables.
    pub fn open(address: &str) -> io::Result<Object> {
        let (bucket, key) = Bucket::of(address)?;
        Object::of(bucket, key)
    }

    fn of(bucket: Bucket, key: Path) -> io::Result<Object> {
        let found = bucket.runtime.block_on(bucket.store.head(&key)).map_err(failed)?;
        Ok(Object {
            bucket,
            key,
            bytes: found.size,
            tag: found.e_tag,
            at: 0,
            piece: Bytes::new(),
            piece_bytes: PIECE_BYTES_MIN,
        })
    }

    /// Its length in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.bytes
    }

    /// What the store gives another object at this address, if it tells.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The next bytes of the object that was opened: of another one none are taken.
    fn next_piece(&self) -> io::Result<Bytes> {
        let end = self.bytes.min(self.at + self.piece_bytes);
        let options = GetOptions {
            range: Some(GetRange::Bounded(self.at..end)),
            if_match: self.tag.clone(),
            ..GetOptions::default()
        };
        let Bucket { store, runtime } = &self.bucket;
        let piece = runtime
            .block_on(async { store.get_opts(&self.key, options).await?.bytes().await })
            .map_err(failed)?;
        let wanted = end - self.at;
        if piece.len() as u64 != wanted {
            let why = format!("the store sent {} of {wanted} bytes", piece.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        Ok(piece)
    }
}

impl Read for Object {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.bytes || into.is_empty() {
            return Ok(0);
        }
        if self.piece.is_empty() {
            self.piece = self.next_piece()?;
            self.piece_bytes = PIECE_BYTES_MAX.min(2 * self.piece_bytes);
        }
        let count = self.piece.len().min(into.len());
        into[..count].copy_from_slice(&self.piece.split_to(count));
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Object {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before byte 0"))?;
        if at != self.at {
            self.at = at;
            self.piece = Bytes::new();
            self.piece_bytes = PIECE_BYTES_MIN;
        }
        Ok(at)
    }
}

/// Objects whose addresses begin alike, as the files of a folder.
pub(super) struct Prefix {
    bucket: Bucket,
    path: Path,
    /// Objects that are being written: they are there once they are whole.
    open: BTreeMap<String, BufWriter>,
}

impl Prefix {
    /// The objects below an address.
    pub(super) fn open(address: &str) -> io::Result<Prefix> {
        let (bucket, path) = Bucket::of(address.trim_end_matches('/'))?;
        Ok(Prefix { bucket, path, open: BTreeMap::new() })
    }

    fn key(&self, name: &str) -> Path {
        self.path.clone().join(name)
    }
}

impl Disk for Prefix {
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let key = self.key(name);
        let Bucket { store, runtime } = &self.bucket;
        let open = self.open.entry(name.to_owned()).or_insert_with(|| {
            let writer = BufWriter::with_capacity(store.clone(), key, PART_BYTES);
            writer.with_max_concurrency(PARTS_MAX)
        });
        runtime.block_on(open.put(Bytes::copy_from_slice(bytes))).map_err(failed)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let Some(mut open) = self.open.remove(name) else { return Ok(()) };
        self.bucket.runtime.block_on(open.shutdown())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.key(from), self.key(to));
        let Bucket { store, runtime } = &self.bucket;
        runtime.block_on(store.rename(&from, &to)).map_err(failed)
    }

    fn sync_names(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read>> {
        Ok(Box::new(Object::of(self.bucket.clone(), self.key(name))?))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let key = self.key(name);
        let Bucket { store, runtime } = &self.bucket;
        runtime.block_on(store.delete(&key)).map_err(failed)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let Bucket { store, runtime } = &self.bucket;
        let found = runtime.block_on(store.list_with_delimiter(Some(&self.path)));
        let objects = found.map_err(failed)?.objects.into_iter();
        Ok(objects.filter_map(|it| it.location.filename().map(str::to_owned)).collect())
    }
}

/// A bucket, and what runs the requests to it.
#[derive(Debug, Clone)]
struct Bucket {
    store: Arc<AmazonS3>,
    runtime: Arc<Runtime>,
}

impl Bucket {
    /// The bucket of an address, and its key.
    fn of(address: &str) -> io::Result<(Bucket, Path)> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let named = address.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
        let named = named.filter(|(bucket, key)| !bucket.is_empty() && !key.is_empty());
        let (bucket, key) =
            named.ok_or_else(|| wrong("name an object, as s3://BUCKET/KEY".into()))?;
        let key = Path::parse(key).map_err(|error| wrong(error.to_string()))?;
        // Of the process, for TLS. It may be there already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig {
            max_retries: TRIES_MAX,
            retry_timeout: TRIES_WITHIN,
            ..RetryConfig::default()
        };
        let store = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
        // Deletions of many at once are not in all stores.
        let store = store.with_disable_bulk_delete(true).build().map_err(failed)?;
        let runtime = Arc::new(Builder::new_current_thread().enable_all().build()?);
        let store = Arc::new(store);
        Ok((Bucket { store, runtime }, key))
    }
}

fn failed(error: object_store::Error) -> io::Error {
    let kind = match &error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        object_store::Error::Precondition { .. } => {
            return io::Error::other("the object was replaced while it was read: start again");
        }
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
