//! `words`: no word that `ci/words` lists occurs in code, comments, messages and pages.
//!
//! A line of the list is `WORDS = what to say instead`. An identifier counts as its words: `nap` is
//! found in `nap_ms` and in `NapState`, but not in `naps_ms`. Decision records tell of their
//! time: code that they quote may have other words.

use std::path::Path;

use crate::files;

const LIST: &str = "ci/words";

/// Runs the command at the top of the repository.
///
/// # Errors
/// Names each place where such a word stands.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err(format!("usage: words; the list is {LIST}"));
    }
    let faults = faults(Path::new("."))?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// A line of the list.
struct Entry {
    words: Vec<String>,
    instead: String,
}

fn faults(top: &Path) -> Result<Vec<String>, String> {
    let list = entries(&files::read(top, LIST)?)?;
    let mut faults = Vec::new();
    for file in files::find(top, is_text)? {
        let text = files::read(top, &file)?;
        let is_decision = file.contains("/decisions/");
        for (at, line) in text.lines().enumerate() {
            let line = if is_decision { without_code(line) } else { line.to_owned() };
            let words = words(&line);
            for entry in list.iter().filter(|entry| contains(&words, &entry.words)) {
                let what = entry.words.join(" ");
                let number = at + 1;
                faults.push(format!("{file}:{number}: \"{what}\"; say {}", entry.instead));
            }
        }
    }
    Ok(faults)
}

fn entries(list: &str) -> Result<Vec<Entry>, String> {
    let lines = list.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|(at, line)| match line.split_once('=') {
        Some((what, instead)) if !words(what).is_empty() && !instead.trim().is_empty() => {
            Ok(Entry { words: words(what), instead: instead.trim().to_owned() })
        }
        _ => Err(format!("{LIST}:{}: not `WORDS = what to say instead`: {line}", at + 1)),
    });
    parsed.collect()
}

/// Rust, pages, manifests, Python, C, and the scripts of ci, which have no ending.
fn is_text(file: &str) -> bool {
    let ending = file.rsplit_once('.').map(|(_, ending)| ending);
    let is_script = (file.starts_with("ci/") || file.starts_with(".ci/")) && !file.contains('.');
    file != LIST
        && (is_script || matches!(ending, Some("rs" | "md" | "toml" | "py" | "c" | "cc" | "h")))
}

/// A line without what stands between backquotes.
pub(crate) fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("code")
}

/// The words of a line in small letters; those of identifiers one by one.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut before_is_small = false;
    for letter in line.chars() {
        if !letter.is_alphabetic() || letter.is_uppercase() && before_is_small {
            words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
        }
        if letter.is_alphabetic() {
            word.extend(letter.to_lowercase());
        } else if letter != '_' && !letter.is_whitespace() {
            words.push(String::new()); // what follows is no part of the same phrase
        }
        before_is_small = letter.is_lowercase();
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

/// Whether these words stand in that order, one behind the other.
pub(crate) fn contains(words: &[String], wanted: &[String]) -> bool {
    words.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Folder;

    fn faults_of(list: &str, files: &[(&str, &str)]) -> Vec<String> {
        let top = Folder::new();
        top.write(LIST, list);
        files.iter().for_each(|(file, text)| top.write(file, text));
        faults(top.path()).unwrap()
    }

    #[test]
    fn a_word_is_found_in_code_comments_messages_and_pages() {
        let list = "# Why.\n\nnap = sleep\ntake in = ingest\n";
        for text in
            ["fn nap_ms() {}", "NapState", "// A nap.", "\"take in\"", "take_in(x)", "Take in"]
        {
            assert_eq!(faults_of(list, &[("kv/src/a.rs", text)]).len(), 1, "{text}");
        }
        for text in ["naps", "snap", "take, in", "intake in"] {
            assert_eq!(faults_of(list, &[("kv/src/a.rs", text)]), Vec::<String>::new(), "{text}");
        }
        let pages = [("README.md", "a nap"), ("ci/check", "# nap"), ("bench/x.jsonl", "nap")];
        let expected = ["README.md:1: \"nap\"; say sleep", "ci/check:1: \"nap\"; say sleep"];
        assert_eq!(faults_of(list, &pages), expected);
    }

    #[test]
    fn decisions_may_quote_old_code() {
        let page = "kv/docs/decisions/0001-x.md";
        assert_eq!(faults_of("nap = sleep", &[(page, "was `nap`")]).len(), 0);
        assert_eq!(faults_of("nap = sleep", &[(page, "a nap")]).len(), 1);
    }

    #[test]
    fn a_line_of_the_list_that_says_nothing_is_named() {
        for line in ["nap", "nap =", "= sleep"] {
            let error = entries(line).err().unwrap();
            assert!(error.starts_with("ci/words:1: "), "{error}");
        }
    }
}
