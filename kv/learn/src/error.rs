//! The crate's error type, with a variant for each thing a caller can act on. Our own bugs are
//! asserts.

use std::io;
use std::path::PathBuf;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a file, an option or the machine. Lines and columns count from 1; columns count
/// bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A read failed part way.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A pipe or a device, where more than one process or pass would read it.
    #[error(
        "{} is {what}, which can be read only once, and each worker and pass reads its data itself: write it to a file, and name that",
        path.display()
    )]
    ReadOnce {
        /// The file as given.
        path: PathBuf,
        /// What it is: "a pipe".
        what: &'static str,
    },
    /// The name of a file that workers read cannot be sent to them.
    #[error(
        "the name {path:?} is no UTF-8, and workers get names as text: rename it, or name a link to it"
    )]
    Name {
        /// The file as given.
        path: PathBuf,
    },
    /// A file has changed while it was read.
    #[error("{} has changed while it was read: leave it as it is, and run again", path.display())]
    Changed {
        /// The file as given.
        path: PathBuf,
    },
    /// A file of another kind, by its first bytes.
    #[error(
        "{} is {what}, which is not read: make it text with a row a line, plain or as .gz, .zst or .xz",
        path.display()
    )]
    NoText {
        /// The file as given.
        path: PathBuf,
        /// What it is: "bzip2 data".
        what: &'static str,
    },
    /// A compressed file ends too early or is damaged.
    #[error("{} is truncated or damaged {format} data; fetch or compress it again", path.display())]
    Decompress {
        /// The file as given.
        path: PathBuf,
        /// The format its first bytes name: gzip, zstd or xz.
        format: &'static str,
        /// The decompressor's error.
        source: io::Error,
    },
    /// A write failed. The destination is unchanged, or complete if only its folder could not be
    /// written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The destination.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The destination exists and is no plain file: nothing is replaced, and no link is followed.
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
        /// The line.
        line: u64,
        /// The longest line read.
        bytes_max: usize,
    },
    /// The text does not match its format.
    #[error("{}:{line}:{column}: found {found}, expected {expected}", path.display())]
    Syntax {
        /// The file as given.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The column.
        column: usize,
        /// The offending text, shortened and escaped.
        found: String,
        /// What is allowed there.
        expected: &'static str,
    },
    /// Rows of two classes have three labels.
    #[error(
        "{}:{line}: {label} is a third class beside 1 and {before}: take out its rows, or write it as one of two",
        path.display()
    )]
    ThirdClass {
        /// The file as given.
        path: PathBuf,
        /// The first line that has it.
        line: u64,
        /// The label.
        label: i8,
        /// The other label that is not 1, which rows before have.
        before: i8,
    },
    /// A row names a key twice.
    #[error(
        "{}:{line}:{column}: key {key} was already given in column {first_column}; a row may name a key once",
        path.display()
    )]
    DuplicateKey {
        /// The file as given.
        path: PathBuf,
        /// The line.
        line: u64,
        /// The column of the second one.
        column: usize,
        /// The column of the first one.
        first_column: usize,
        /// The key.
        key: u64,
    },
    /// A model file names a key twice.
    #[error("{}:{line}: {key} was already given in line {first_line}; a model may name a key once", path.display())]
    DuplicateWeight {
        /// The file as given.
        path: PathBuf,
        /// The line of the second one.
        line: u64,
        /// The line of the first one.
        first_line: u64,
        /// The key.
        key: String,
    },
    /// A model file was changed or cut off.
    #[error("{} is a damaged model: {reason}; copy it again, or train anew", path.display())]
    DamagedModel {
        /// The file as given.
        path: PathBuf,
        /// What does not match.
        reason: String,
    },
    /// A compressed model holds far more text than models do.
    #[error(
        "{} holds more than {bytes_max} bytes of text in its {bytes}, the most of a compressed model; decompress it",
        path.display()
    )]
    LongModel {
        /// The file as given.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Most bytes of text in a file of this length.
        bytes_max: u64,
    },
    /// A model is of another algorithm, or lacks what models of this one have.
    #[error("it is no model of {algorithm}: {reason}")]
    OtherModel {
        /// The algorithm.
        algorithm: &'static str,
        /// What is otherwise.
        reason: String,
    },
    /// The intercept is not finite: training has diverged.
    #[error("the intercept {intercept} is not finite; nothing was written")]
    BadIntercept {
        /// The intercept.
        intercept: f64,
    },
    /// A weight is invalid: training has diverged, or two parts overlap.
    #[error(
        "weight {weight} of key {key} is not finite or its key occurs twice; nothing was written"
    )]
    BadWeight {
        /// The key.
        key: u64,
        /// Its weight.
        weight: f64,
    },
    /// A file of images is damaged, or does not suit the others.
    #[error("{}: {reason}; fetch it again, or name others", path.display())]
    Images {
        /// The file as given.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// More rows or columns than the column-major matrix can index.
    #[error("{count} {what} in one worker, at most {count_max} fit; use more workers")]
    TooMany {
        /// "rows" or "columns".
        what: &'static str,
        /// Their number.
        count: u64,
        /// The largest number allowed.
        count_max: u64,
    },
    /// An option is outside its range.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values allowed.
        expected: &'static str,
    },
    /// The system has no more threads.
    #[error("cannot start thread {number}: raise the limit (`ulimit -u`), or take fewer threads")]
    Thread {
        /// Number of the thread, from 1.
        number: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The caller stopped the work.
    #[error("stopped before it was done; incomplete files were removed")]
    Stopped,
    /// Training on a cluster ended with an error.
    #[error("training failed: {reason}")]
    Train {
        /// The node or file, and the reason.
        reason: String,
    },
}
