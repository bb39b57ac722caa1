//! The one way to open files that decide what a node does: state, secrets, host files, checkpoints,
//! models, histories, traces.
//!
//! Others who may write to a folder can put a link, a pipe or a device there, or a file that they
//! change later. So only plain files are opened, and nobody waits for a pipe. What is written, and
//! what is read and trusted, is reached by no link, and nobody else may write to it. Data of a
//! training are opened elsewhere (`kv/learn/src/data`): they may be pipes.

use std::ffi::OsString;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Mode of a new file that others may read, before the process's mask.
pub const MODE: u32 = 0o644;

/// Mode of a new file that nobody else may read.
pub const MODE_OWN: u32 = 0o600;

/// Mode bits by which others than the owner may write to a file.
const OTHERS_WRITE: u32 = 0o022;

/// Random bytes in the name of a file that gets another one.
const DRAWN_BYTES: usize = 8;

/// Opens a plain file for reading. A link is followed: the caller was given the name.
///
/// # Errors
/// The system's; says what stands there if it is no plain file.
pub fn open(path: &Path) -> io::Result<File> {
    plain(path, OpenOptions::new().read(true), OFlags::empty())
}

/// As [`open`], but no link is followed: others may have put one there.
///
/// # Errors
/// Likewise.
pub fn open_unlinked(path: &Path) -> io::Result<File> {
    plain(path, OpenOptions::new().read(true), OFlags::NOFOLLOW)
}

/// Reads a file that [`open`] opens.
///
/// # Errors
/// Likewise; names the bound if the file is longer.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_up_to(open(path)?, bytes_max)
}

/// Reads a file to which nobody else may write, by no link.
///
/// # Errors
/// As [`open_unlinked`] and [`check_own`]; names the bound if the file is longer.
pub fn read_own(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open_unlinked(path)?;
    check_own(&file)?;
    read_up_to(file, bytes_max)
}

/// Reads all of an input.
///
/// # Errors
/// The system's; names the bound if there is more.
pub fn read_up_to(input: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new(); // grows with what is really there
    input.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(refused(format!("it is longer than {bytes_max} bytes, the most for its kind"))),
        false => Ok(bytes),
    }
}

/// Opens a file for writing, which is made or emptied.
///
/// # Errors
/// As [`open_unlinked`] and [`check_own`]; then the file is unchanged.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(mode);
    let file = plain(path, &mut options, OFlags::NOFOLLOW)?;
    check_own(&file)?;
    file.set_len(0)?;
    Ok(file)
}

/// Opens a file that is there to append to it.
///
/// # Errors
/// As [`open_unlinked`] and [`check_own`].
pub fn append(path: &Path) -> io::Result<File> {
    let file = plain(path, OpenOptions::new().append(true), OFlags::NOFOLLOW)?;
    check_own(&file)?;
    Ok(file)
}

/// Makes a file that is not there, and opens it for writing.
///
/// # Errors
/// The system's, also if anything has that name.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Makes a file with these bytes, whole or not at all, unless anything has its name.
///
/// # Errors
/// The system's.
pub fn begin(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut drawn = [0; DRAWN_BYTES];
    getrandom::fill(&mut drawn).map_err(io::Error::other)?;
    let mut partial: OsString = path.into();
    partial.push(format!(".{:016x}", u64::from_le_bytes(drawn)));
    let mut file = create_new(partial.as_ref(), mode)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let made = written.and_then(|()| fs::hard_link(&partial, path));
    fs::remove_file(&partial)?;
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Checks that nobody but this user and root may write to an open file.
///
/// # Errors
/// Names the owner or the mode, and the remedy.
pub fn check_own(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    check_owner(&found)?;
    let mode = found.mode() & 0o777;
    match mode & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err(refused(format!("others may write to it (mode {mode:o}): chmod go-w it"))),
    }
}

/// Checks that a file is of this user or root.
///
/// # Errors
/// Names the owner, and the remedy.
pub fn check_owner(found: &Metadata) -> io::Result<()> {
    let (user, own) = (found.uid(), rustix::process::geteuid().as_raw());
    if user == own || user == 0 {
        return Ok(());
    }
    let why = format!("user {user} owns it, and this process is of user {own}");
    Err(refused(format!("{why}: remove it, or name another file")))
}

/// What is no plain file, in words: "a link", "a pipe".
pub fn kind_of(kind: FileType) -> &'static str {
    match () {
        () if kind.is_symlink() => "a link",
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () => "a device or a socket",
    }
}

/// Opens a plain file without waiting for anything else.
fn plain(path: &Path, options: &mut OpenOptions, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = options.custom_flags(flags.bits() as i32).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => refused("it is a link: name the file that it leads to".to_owned()),
        Some(Errno::NXIO) => refused("it is a pipe or a socket: name a plain file".to_owned()),
        _ => error,
    })?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false => Err(refused(format!("it is {}: name a plain file", kind_of(kind)))),
    }
}

fn refused(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    type Opens = fn(&Path) -> io::Result<()>;

    const READS: [Opens; 3] = [
        |path| open(path).map(drop),
        |path| open_unlinked(path).map(drop),
        |path| read_own(path, 9).map(drop),
    ];
    const WRITES: [Opens; 2] = [|path| create(path, MODE).map(drop), |path| append(path).map(drop)];

    fn said(opens: Opens, path: &Path) -> String {
        opens(path).unwrap_err().to_string()
    }

    #[test]
    fn only_plain_files_are_opened_and_nobody_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "mine").unwrap();
        symlink(at("file"), at("link")).unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _listens = UnixListener::bind(at("socket")).unwrap();
        for opens in READS.into_iter().chain(WRITES) {
            for other in [at("pipe"), at("socket"), PathBuf::from("/dev/zero")] {
                let said = said(opens, &other);
                assert!(said.contains("name a plain file"), "{other:?}: {said}");
            }
            opens(folder.path()).unwrap_err();
        }
        open(&at("link")).unwrap();
        for opens in READS[1..].iter().chain(&WRITES) {
            let said = said(*opens, &at("link"));
            assert!(said.contains("it is a link: name the file"), "{said}");
        }
        assert_eq!(fs::read(at("file")).unwrap(), b"mine");
    }

    #[test]
    fn what_others_may_write_is_neither_trusted_nor_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let trusts = READS[2..].iter().chain(&WRITES);
        for (mode, taken) in [(0o600, true), (0o644, true), (0o664, false), (0o606, false)] {
            fs::write(&path, "mine").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for opens in trusts.clone() {
                let opened = opens(&path);
                assert_eq!(opened.is_ok(), taken, "{mode:o}");
                if let Err(error) = opened {
                    let says = format!("others may write to it (mode {mode:o}): chmod go-w it");
                    assert_eq!(error.to_string(), says);
                    assert_eq!(fs::read(&path).unwrap(), b"mine");
                }
            }
        }
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            for opens in trusts {
                assert!(said(*opens, &path).contains("user 65534 owns it"));
            }
        }
    }

    #[test]
    fn a_bound_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        begin(&path, b"nine here", MODE).unwrap();
        assert_eq!(read(&path, 9).unwrap(), b"nine here");
        for longer in [read(&path, 8), read_own(&path, 8)] {
            assert!(longer.unwrap_err().to_string().contains("longer than 8 bytes"));
        }
    }

    #[test]
    fn a_file_begins_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for bytes in [b"first", b"other"] {
            begin(&path, bytes, MODE_OWN).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, MODE_OWN);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left behind");
        assert!(begin(&folder.path().join("no/file"), b"", MODE).is_err());
    }
}
