//! Objects of stores, read as files are: `s3://bucket/key`, and `http://` and `https://` addresses.
//!
//! Settings of S3 are the `AWS_*` variables that its tools have, which `object_store` reads itself:
//! keys, region, `AWS_ENDPOINT` of another store, `AWS_SKIP_SIGNATURE` for public buckets.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::runtime::{Builder, Runtime};

/// How often, and how long, a request is made again that a store did not answer well.
const TRIES_MAX: usize = 4;
const TRIES_WITHIN: Duration = Duration::from_secs(60);

/// An object that is read from its beginning on, or from wherever [`Seek`] says.
pub(crate) struct Object {
    /// What comes from byte `at` on, once it was asked for. Dropped before `runtime`.
    stream: Option<BoxStream<'static, object_store::Result<bytes::Bytes>>>,
    store: Box<dyn ObjectStore>,
    path: Path,
    /// What has come and was not read.
    rest: bytes::Bytes,
    at: u64,
    len: u64,
    runtime: Runtime,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("path", &self.path).field("len", &self.len).finish()
    }
}

impl Object {
    /// The object at an address, which is asked for its length.
    ///
    /// # Errors
    /// That of the store, or of a wrong address.
    pub(crate) fn open(url: &str) -> io::Result<Object> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("no address".to_owned()))?;
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() || key.is_empty() {
            return Err(wrong(format!("name an object, as {scheme}://HOST/PATH")));
        }
        let retry = RetryConfig {
            max_retries: TRIES_MAX,
            retry_timeout: TRIES_WITHIN,
            ..RetryConfig::default()
        };
        let store: Box<dyn ObjectStore> = match scheme {
            "s3" => {
                let bucket = AmazonS3Builder::from_env().with_bucket_name(host).with_retry(retry);
                Box::new(bucket.build().map_err(failed)?)
            }
            _ => {
                let options = ClientOptions::new().with_allow_http(true);
                let at = HttpBuilder::new().with_url(format!("{scheme}://{host}"));
                let at = at.with_client_options(options).with_retry(retry);
                Box::new(at.build().map_err(failed)?)
            }
        };
        let path = Path::parse(key).map_err(|error| wrong(error.to_string()))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let len = runtime.block_on(store.head(&path)).map_err(failed)?.size;
        let (stream, rest) = (None, bytes::Bytes::new());
        Ok(Object { stream, store, path, rest, at: 0, len, runtime })
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Asks for the bytes from `at` on; without a range for all of them, which any server can.
    fn ask(&self) -> io::Result<BoxStream<'static, object_store::Result<bytes::Bytes>>> {
        let range = (self.at > 0).then_some(GetRange::Offset(self.at));
        let options = GetOptions { range, ..GetOptions::default() };
        let got = self.runtime.block_on(self.store.get_opts(&self.path, options));
        Ok(got.map_err(failed)?.into_stream())
    }
}

fn failed(error: object_store::Error) -> io::Error {
    let kind = match &error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl Read for Object {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.len || into.is_empty() {
            return Ok(0);
        }
        while self.rest.is_empty() {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => self.ask()?,
            };
            let next = self.runtime.block_on(stream.next());
            let Some(next) = next else {
                let why = format!("it ends after {} of {} bytes", self.at, self.len);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            };
            self.rest = next.map_err(failed)?;
            self.stream = Some(stream);
        }
        let read = self.rest.len().min(into.len());
        into[..read].copy_from_slice(&self.rest.split_to(read));
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Object {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before byte 0"))?;
        if at != self.at {
            self.at = at;
            self.rest = bytes::Bytes::new();
            self.stream = None;
        }
        Ok(at)
    }
}
