//! `pages`: checks the pages of the project (`*.md`).
//!
//! Links lead to files, files that pages name exist, and so do pages that Rust files name. Lines
//! have at most 100 columns, and sentences are short and plain. Decision records have the sections
//! of `ci/decision.md` and stand on their room's page. `README.md` has at most 250 lines.

use std::path::Path;

use crate::files;
use crate::words::{contains, without_code, words};

const README_LINES_MAX: usize = 250;
const COLUMNS_MAX: usize = 100;
const SENTENCE_WORDS_MAX: usize = 30;

/// Words that hide the subject of a sentence. Those that no code has are in `ci/words`.
const UNCLEAR: [&str; 6] =
    ["whom", "likewise", "to speak of", "is said in", "is said under", "has it back"];

const ROOMS: [&str; 6] = ["numa/", "van/", "fallback-tcp/", "kv/", "bench/", "ci/"];

/// Runs the command at the top of the repository.
///
/// # Errors
/// Names each fault with its place.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("usage: pages".to_owned());
    }
    let faults = faults(Path::new("."))?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn faults(top: &Path) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    for name in files::find(top, |file| file.ends_with(".md"))? {
        let text = files::read(top, &name)?;
        let page = Page { top, name: &name, text: &text };
        page.links(&mut faults);
        // A decision record tells of its time: files that it names may have gone.
        match name.split_once("/docs/decisions/") {
            Some((room, file)) => page.is_a_decision(room, file, &mut faults),
            None => page.names_files("", &mut faults),
        }
        page.fits(&mut faults);
        page.is_plain(&mut faults);
        if name == "README.md" && text.lines().count() > README_LINES_MAX {
            faults.push(format!(
                "README.md: more than {README_LINES_MAX} lines; move what only some readers need to \
                 a room's page"
            ));
        }
    }
    // The tests of this program name pages that are nowhere.
    let is_code = |file: &str| file.ends_with(".rs") && !file.starts_with("ci/tool/");
    for name in files::find(top, is_code)? {
        let text = files::read(top, &name)?;
        Page { top, name: &name, text: &text }.names_files(".md", &mut faults);
    }
    Ok(faults)
}

struct Page<'a> {
    top: &'a Path,
    name: &'a str,
    text: &'a str,
}

impl Page<'_> {
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    fn is_a_decision(&self, room: &str, file: &str, faults: &mut Vec<String>) {
        for section in ["Question", "Tried", "Kept", "How to turn it off"] {
            let other = section.replace(" off", " on");
            let mut heads = self.text.lines().filter_map(|line| line.strip_prefix("## "));
            if !heads.any(|head| head == section || head == other) {
                faults
                    .push(format!("{}: no section '## {section}'; see ci/decision.md", self.name));
            }
        }
        let room_page = files::read(self.top, &format!("{room}/README.md")).unwrap_or_default();
        if !room_page.contains(&format!("(docs/decisions/{file})")) {
            faults.push(format!("{}: no link on {room}/README.md", self.name));
        }
    }

    fn links(&self, faults: &mut Vec<String>) {
        let folder = Path::new(self.name).parent().unwrap_or(Path::new(""));
        for (number, line) in self.lines() {
            let targets = line.split("](").skip(1);
            let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
            for target in targets.filter(|target| !target.is_empty() && !target.contains(' ')) {
                let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
                let file = target.split('#').next().unwrap_or_default();
                if !is_elsewhere && !file.is_empty() && !self.top.join(folder).join(file).exists() {
                    faults.push(format!("{}:{number}: no such file: {target}", self.name));
                }
            }
        }
    }

    /// Files with that ending that stand in the text by their path from the top.
    fn names_files(&self, ending: &str, faults: &mut Vec<String>) {
        for (number, line) in self.lines() {
            for file in named_files(line, ending) {
                if !self.top.join(file).exists() {
                    faults.push(format!("{}:{number}: no such file: {file}", self.name));
                }
            }
        }
    }

    /// Tables, rows and commands have to stand in one line.
    fn fits(&self, faults: &mut Vec<String>) {
        let mut is_code = false;
        for (number, line) in self.lines() {
            is_code ^= line.starts_with("```");
            let is_row = line.starts_with(['|', '#', '<']);
            let is_link = line.starts_with("* [") && line.ends_with(')');
            if !is_code && !is_row && !is_link && line.chars().count() > COLUMNS_MAX {
                faults.push(format!("{}:{number}: more than {COLUMNS_MAX} columns", self.name));
            }
        }
    }

    fn is_plain(&self, faults: &mut Vec<String>) {
        for (number, sentence) in sentences(self.text) {
            let place = format!("{}:{number}:", self.name);
            let count = sentence.split_whitespace().count();
            if count > SENTENCE_WORDS_MAX {
                let begin: String = sentence.trim_start().chars().take(60).collect();
                faults.push(format!(
                    "{place} a sentence of {count} words, {SENTENCE_WORDS_MAX} at most: {begin}…"
                ));
            }
            if UNCLEAR.iter().any(|unclear| contains(&words(&sentence), &words(unclear))) {
                faults.push(format!("{place} {sentence}   (say it plainly: subject first)"));
            }
        }
    }
}

/// Paths in a line that begin with a room and have that ending.
fn named_files<'a>(line: &'a str, ending: &str) -> Vec<&'a str> {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let mut files = Vec::new();
    for path in line.split(|c| !is_of_path(c)) {
        let plain = path.strip_prefix('.').unwrap_or(path);
        let Some(room) = ROOMS.iter().find(|room| plain.starts_with(**room)) else { continue };
        let end = match ending {
            "" => path.rfind(|c: char| c.is_ascii_alphanumeric() || c == '_').map(|at| at + 1),
            ending => path.rfind(ending).map(|at| at + ending.len()),
        };
        let least = path.len() - plain.len() + room.len() + ending.len();
        files.extend(end.filter(|end| *end > least).map(|end| &path[..end]));
    }
    files
}

/// Each sentence of running text, with the number of the line that its paragraph begins in. Code,
/// tables and headings are left out.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let mut begin = 0;
    let mut is_code = false;
    for (at, line) in text.lines().chain([""]).enumerate() {
        let is_fence = line.starts_with("```");
        let is_none = is_code || line.starts_with(['|', '#', '<']) || line.trim().is_empty();
        if is_fence || is_none || is_entry(line) {
            found.extend(split(&paragraph).into_iter().map(|sentence| (begin, sentence)));
            paragraph.clear();
        }
        is_code ^= is_fence;
        if is_fence || is_none {
            continue;
        }
        if paragraph.is_empty() {
            begin = at + 1;
        }
        paragraph.push(' ');
        paragraph += line;
    }
    found
}

/// Whether a line begins an entry of a list.
fn is_entry(line: &str) -> bool {
    let line = line.trim_start_matches(' ');
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with("* ")
        || line.starts_with("- ")
        || number.len() < line.len() && number.starts_with(". ")
}

fn split(paragraph: &str) -> Vec<String> {
    let mut text = String::new();
    let plain = without_code(paragraph);
    let mut parts = plain.split("](");
    text += parts.next().unwrap_or_default();
    for part in parts {
        text.push(']');
        text += part.split_once(')').map_or(part, |(_, rest)| rest);
    }
    let mut sentences = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if !".:;?!".contains(letter) {
            sentences.last_mut().map(|sentence| sentence.push(letter)).unwrap_or_default();
            continue;
        }
        let mut behind = String::from(letter);
        while let Some(mark) = letters.next_if(|mark| "\"*)".contains(*mark)) {
            behind.push(mark);
        }
        if letters.peek().is_none_or(|next| *next == ' ') {
            sentences.push(String::new());
        } else if let Some(sentence) = sentences.last_mut() {
            *sentence += &behind;
        }
    }
    sentences.retain(|sentence| sentence.contains(|c: char| c.is_ascii_lowercase()));
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Folder;

    fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
        let top = Folder::new();
        files.iter().for_each(|(file, text)| top.write(file, text));
        faults(top.path()).unwrap()
    }

    #[test]
    fn a_link_leads_to_a_file() {
        let page = "[a](kv/b.md) [b](gone.md#x) [c](#here) [d](https://x.y/z) [e](mailto:a@b)";
        let said = faults_of(&[("README.md", page), ("kv/b.md", "[up](../README.md)")]);
        assert_eq!(said, ["README.md:1: no such file: gone.md#x"]);
    }

    #[test]
    fn files_that_are_named_exist() {
        let page = "`kv/src/a.rs`, van/gone.rs. And .ci/run, xkv/b, /kv/c, kv/";
        let said = faults_of(&[("kv/README.md", page), ("kv/src/a.rs", "// See kv/docs/gone.md.")]);
        let expected = [
            "kv/README.md:1: no such file: van/gone.rs",
            "kv/README.md:1: no such file: .ci/run",
            "kv/src/a.rs:1: no such file: kv/docs/gone.md",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn lines_fit_and_tables_and_commands_may_be_longer() {
        let long = "x".repeat(101);
        let page = format!("{long}\n| {long}\n```\n{long}\n```\n* [{long}](README.md)\n");
        assert_eq!(faults_of(&[("README.md", &page)]), ["README.md:1: more than 100 columns"]);
    }

    #[test]
    fn sentences_are_short_and_plain() {
        let long = "word ".repeat(16).repeat(2).trim_end().replace("word word", "word\nword");
        let said = faults_of(&[("a.md", &format!("Short. {long}.\n"))]);
        assert!(
            said[0].starts_with("a.md:1: a sentence of 32 words, 30 at most: word"),
            "{said:?}"
        );
        let said = faults_of(&[("a.md", "He to whom it is. Whomever. `whom`.")]);
        assert_eq!(said.len(), 1);
        assert!(said[0].contains("subject first"), "{said:?}");
    }

    #[test]
    fn a_sentence_ends_at_a_mark_and_not_in_a_name() {
        let found: Vec<String> =
            sentences("One, v1.2 (yes.) Two: `a. b` [c. d](e. f)\n* three; 4.\n")
                .into_iter()
                .map(|s| s.1)
                .collect();
        assert_eq!(found, [" One, v1.2 (yes", " Two", " code [c", " d]", " * three"]);
    }

    #[test]
    fn a_decision_has_its_sections_and_stands_on_its_page() {
        let whole = "# 1\n## Question\n## Tried\n## Kept\n## How to turn it on\nkv/gone.rs\n";
        let page = "kv/docs/decisions/0001-x.md";
        let link = "[x](docs/decisions/0001-x.md)";
        assert_eq!(faults_of(&[(page, whole), ("kv/README.md", link)]), Vec::<String>::new());
        let said = faults_of(&[(page, "## Question\n## Kept\n"), ("kv/README.md", "")]);
        assert_eq!(said.len(), 3, "{said:?}");
    }

    #[test]
    fn the_front_page_is_short() {
        assert_eq!(faults_of(&[("README.md", &"\n".repeat(250))]).len(), 0);
        assert_eq!(faults_of(&[("README.md", &"\n".repeat(251))]).len(), 1);
    }
}
