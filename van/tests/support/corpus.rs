//! Kept corpora of fuzz targets, for the tests of every room that has some.

use std::path::Path;

/// Runs each file of a target's corpus, whole and cut short, through the body of the target.
pub(crate) fn run(target: &str, body: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files = 0;
    for entry in folder.read_dir().unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        body(&bytes);
        (0..bytes.len()).step_by(5).for_each(|end| body(&bytes[..end]));
        files += 1;
    }
    assert!(files >= 3, "{target}: the corpus is not there");
}
