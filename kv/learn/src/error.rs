//! The crate's one error type. A variant for each thing a caller can act on; what only a bug of ours can cause is an assert.

use std::io;
use std::path::PathBuf;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a file, an option or the machine can do wrong. Lines and columns count from 1; columns count bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file as given.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Reading failed part way.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file as given.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A compressed file ends too early or is damaged.
    #[error("{} is truncated or damaged {format} data; fetch or compress it again", path.display())]
    Decompress {
        /// The file as given.
        path: PathBuf,
        /// The format its first bytes name: gzip, zstd or xz.
        format: &'static str,
        /// What the decompressor said.
        source: io::Error,
    },
    /// Writing failed; the destination is as it was, or whole where only its folder could not be
    /// written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The destination.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Something else than a plain file stands where one is to be written: nothing is replaced, and
    /// nothing followed.
    #[error(
        "{} is {what}; name {}",
        path.display(),
        if *what == "a link" { "the file that it leads to" } else { "a plain file, or a new one" }
    )]
    NoFile {
        /// The destination.
        path: PathBuf,
        /// What it is: "a link", "a pipe".
        what: &'static str,
    },
    /// A line is too long to be one row of data.
    #[error("{}:{line}: the line is longer than {bytes_max} bytes; is this a text file with a row a line?", path.display())]
    LineTooLong {
        /// The file as given.
        path: PathBuf,
        /// Where.
        line: u64,
        /// The longest line read.
        bytes_max: usize,
    },
    /// The text is not what its format asks for.
    #[error("{}:{line}:{column}: found {found}, expected {expected}", path.display())]
    Syntax {
        /// The file as given.
        path: PathBuf,
        /// Where.
        line: u64,
        /// Where in the line.
        column: usize,
        /// The offending text, shortened and escaped.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// One row names a key twice.
    #[error(
        "{}:{line}:{column}: key {key} was already given in column {first_column}; a row may name a key once",
        path.display()
    )]
    DuplicateKey {
        /// The file as given.
        path: PathBuf,
        /// Where.
        line: u64,
        /// Where the second one stands.
        column: usize,
        /// Where the first one stands.
        first_column: usize,
        /// The key.
        key: u64,
    },
    /// A model file names a key twice.
    #[error("{}:{line}: {key} was already given in line {first_line}; a model may name a key once", path.display())]
    DuplicateWeight {
        /// The file as given.
        path: PathBuf,
        /// Where the second one stands.
        line: u64,
        /// Where the first one stands.
        first_line: u64,
        /// Which one.
        key: String,
    },
    /// A model file is not what was once written.
    #[error("{} is a damaged model: {reason}; copy it again, or train anew", path.display())]
    DamagedModel {
        /// The file as given.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// An intercept that cannot be a model's: training has diverged.
    #[error("the intercept {intercept} is not finite; nothing was written")]
    BadIntercept {
        /// What it is.
        intercept: f64,
    },
    /// Weights that cannot be a model: training has diverged, or two parts overlap.
    #[error(
        "weight {weight} of key {key} is not finite or its key occurs twice; nothing was written"
    )]
    BadWeight {
        /// The key.
        key: u64,
        /// Its weight.
        weight: f64,
    },
    /// More than the column-major matrix can number.
    #[error("{count} {what} in one worker, at most {count_max} fit; use more workers")]
    TooMany {
        /// "rows" or "columns".
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many fit.
        count_max: u64,
    },
    /// An option is outside its range.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// What it was.
        value: String,
        /// Its range.
        expected: &'static str,
    },
    /// The system gives no more threads.
    #[error("cannot start thread {number}: raise the limit (`ulimit -u`), or take fewer threads")]
    Thread {
        /// Which one of those that were asked for, from 1.
        number: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// Whoever started the work wants it no more.
    #[error("stopped before it was done; nothing is left of files that were not whole")]
    Stopped,
    /// Training on a cluster ended with an error.
    #[error("training failed: {reason}")]
    Train {
        /// Which node or file, and what is wrong.
        reason: String,
    },
}
