//! The files of the repository, whether or not git knows them yet.

use std::fs;
use std::path::Path;

/// All files below `top` whose name passes, sorted. What is built and what git keeps is left out.
///
/// # Errors
/// Names the folder that cannot be read.
pub(crate) fn find(top: &Path, passes: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        for entry in entries.map_err(|error| format!("{}: {error}", folder.display()))? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(|error| format!("{name}: {error}"))?;
            if kind.is_dir() && !["target", ".git"].contains(&&*name) && !name.starts_with(".venv")
            {
                open.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let path = path.strip_prefix(top).unwrap_or(&path).display().to_string();
                files.extend(Some(path).filter(|path| passes(path)));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file below `top`.
///
/// # Errors
/// Names the file.
pub(crate) fn read(top: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(top.join(file)).map_err(|error| format!("{file}: {error}"))
}
