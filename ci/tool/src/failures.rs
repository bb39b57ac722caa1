//! `failures NAME <LOG`: names what failed in the log of a command.
//!
//! Prints one line or more, `FAILED NAME …: why`. Lines of that form from ci's own scripts are
//! passed on, each once. Without them the log is read as cargo's or a test program's. Where it
//! names no test, its last error is the reason.

use std::collections::BTreeSet;
use std::io::{self, Read};

/// Names of tests in one line.
const TESTS_MAX: usize = 5;
/// Characters of a reason.
const REASON_MAX: usize = 300;

/// Reads standard input.
///
/// # Errors
/// If it cannot be read, or no name was given.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let [name] = arguments else { return Err("usage: failures NAME <LOG".to_owned()) };
    let mut log = Vec::new();
    io::stdin().read_to_end(&mut log).map_err(|error| format!("failures: {error}"))?;
    for line in failures(name, &String::from_utf8_lossy(&log)) {
        println!("{line}");
    }
    Ok(())
}

/// The lines for a log.
pub(crate) fn failures(name: &str, log: &str) -> Vec<String> {
    let plain = without_colours(log);
    let mut reader = Reader { name, ..Reader::default() };
    plain.lines().for_each(|line| reader.read(line.strip_suffix('\r').unwrap_or(line)));
    reader.end()
}

fn is_of_a_script(line: &str) -> bool {
    let named = line.strip_prefix("FAILED ");
    named.is_some_and(|rest| ["ci/", "cargo ", "machine"].iter().any(|with| rest.starts_with(with)))
}

/// A text without the escape sequences of a terminal.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split("\x1b[");
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(part.len());
        let letter = part[end..].starts_with(|c: char| c.is_ascii_alphabetic());
        plain.push_str(if letter { &part[end + 1..] } else { part });
    }
    plain
}

/// What the lines read so far say.
#[derive(Default)]
struct Reader<'a> {
    name: &'a str,
    told: Vec<String>,
    /// Whether a line of ci's own scripts was passed on, which says why the command failed.
    passed_on: bool,
    program: Program,
    /// That cargo says has failed, by the arguments that run it again.
    failed: String,
    first_error: String,
    place_follows: bool,
    last_error: String,
    last: String,
    running: BTreeSet<String>,
}

/// What the lines of one program of tests say.
#[derive(Default)]
struct Program {
    /// Those that have failed; hanging ones, if none has.
    tests: Vec<String>,
    /// Whether the list of failed tests goes on.
    is_list: bool,
    /// Whether the output of passed tests goes on.
    is_of_passed: bool,
    /// Whose output goes on.
    test: String,
    /// Where the panic was whose message follows.
    panicked_at: Option<String>,
    /// Whether the last panic is the failed test's own, which counts more than those beside it.
    is_own: bool,
    own_panic: String,
    other_panic: String,
    returned: String,
    died: String,
}

impl Reader<'_> {
    fn read(&mut self, line: &str) {
        if is_of_a_script(line) {
            self.passed_on = true;
            if !self.told.iter().any(|told| told == line) {
                self.told.push(line.to_owned());
            }
        }
        let start = line.trim_start();
        if start.len() < line.len()
            && ["Running ", "Doc-tests "].iter().any(|w| start.starts_with(w))
        {
            self.end_program();
        }
        if self.program.read(line) {
            return;
        }
        if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.split(' ').next()) {
            if line.contains(" has been running for over") {
                self.running.insert(test.to_owned());
            }
            if line.contains(" ... ") {
                self.running.remove(test);
            }
        }
        if ["error: test failed", "error: doctest failed"].iter().any(|with| line.starts_with(with))
        {
            self.failed = line.split('`').nth(1).unwrap_or_default().to_owned();
            return;
        }
        if line.contains("process didn't exit successfully: ")
            && let Some(at) = line.rfind("(signal: ")
        {
            self.program.died = format!("died {}", &line[at..]);
        }
        if !self.read_error(line) {
            self.read_words(line);
        }
    }

    /// Whether the line is an error of the compiler.
    fn read_error(&mut self, line: &str) -> bool {
        if line.starts_with("error: could not compile `") {
            let what = line.trim_start_matches("error: ");
            let first = std::mem::take(&mut self.first_error);
            let first = if first.is_empty() { first } else { format!("; first {first}") };
            self.tell("", &format!("{what}{first}"));
            return true;
        }
        if self.first_error.is_empty() && is_error(line) {
            self.first_error = line.to_owned();
            self.place_follows = true;
            return true;
        }
        if std::mem::take(&mut self.place_follows)
            && let Some(place) = line.trim_start().strip_prefix("--> ")
        {
            self.first_error += &format!(" ({place})");
        }
        false
    }

    fn read_words(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        self.last = line.to_owned();
        let words = ["error", "Error", "fatal", "failed", "cannot", "refused", "panicked"];
        let has_word = line
            .split(|c: char| !c.is_ascii_lowercase() && c != 'E')
            .any(|word| words.contains(&word));
        if has_word || without_script(line).len() < line.len() {
            self.last_error = line.to_owned();
        }
    }

    /// Tells of the program whose lines have gone by, where cargo or a list of tests says that it
    /// failed.
    fn end_program(&mut self) {
        if self.program.tests.is_empty() {
            self.program.tests = std::mem::take(&mut self.running).into_iter().collect();
        }
        let program = &self.program;
        let reasons = [
            &program.own_panic,
            &program.returned,
            &program.died,
            &program.other_panic,
            &self.last_error,
        ];
        let why = reasons.into_iter().find(|why| !why.is_empty()).cloned().unwrap_or_default();
        let failed = std::mem::take(&mut self.failed);
        if !failed.is_empty() || !self.program.tests.is_empty() {
            self.tell(&failed, &why);
        }
        self.program = Program::default();
        self.running.clear();
    }

    fn tell(&mut self, what: &str, why: &str) {
        let tests = &self.program.tests;
        let mut what = if what.is_empty() { String::new() } else { format!(" {what}") };
        if !tests.is_empty() {
            let unit = if tests.len() == 1 { "test" } else { "tests" };
            let more = if tests.len() > TESTS_MAX { ", …" } else { "" };
            let names = tests[..tests.len().min(TESTS_MAX)].join(", ");
            what += &format!(" ({} {unit}: {names}{more})", tests.len());
        }
        let why = without_script(if why.is_empty() { "says no word of why" } else { why });
        let why: String = why.chars().take(REASON_MAX).collect();
        self.told.push(format!("FAILED {}{what}: {why}", self.name));
    }

    fn end(mut self) -> Vec<String> {
        if self.passed_on {
            return self.told;
        }
        self.end_program();
        if self.told.is_empty() {
            let reasons = [&self.first_error, &self.last_error, &self.last];
            let why = reasons.into_iter().find(|why| !why.is_empty()).cloned().unwrap_or_default();
            self.tell("", &why);
        }
        self.told
    }
}

impl Program {
    /// Whether the line is of the list of failed tests.
    fn read(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.is_of_passed = true;
        }
        let test = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = test {
            self.test = test.to_owned();
        }
        self.read_panic(line);
        if !self.is_of_passed && self.returned.is_empty() && line.starts_with("Error: ") {
            self.returned = line.to_owned();
        }
        // The list of failed tests is the last that a program prints under this head.
        if line == "failures:" {
            self.is_of_passed = false;
            self.is_list = true;
            self.tests.clear();
            return true;
        }
        let name =
            line.strip_prefix("    ").filter(|name| !name.is_empty() && !name.starts_with(' '));
        if let (true, Some(name)) = (self.is_list, name) {
            self.tests.push(name.to_owned());
            return true;
        }
        self.is_list = false;
        false
    }

    fn read_panic(&mut self, line: &str) {
        if let Some(place) = self.panicked_at.take() {
            let panic = format!("{place}: {line}");
            if self.is_own {
                self.own_panic = panic;
            } else if self.other_panic.is_empty() {
                self.other_panic = panic;
            }
        }
        let side = line.trim_start();
        let is_side =
            side.len() < line.len() && (side.starts_with("left: ") || side.starts_with("right: "));
        if self.is_own && is_side && !self.own_panic.contains("right: ") {
            let words: Vec<&str> = side.split_whitespace().take(2).collect();
            self.own_panic += &format!("; {}", words.join(" "));
        }
        let place = line.strip_suffix(':').and_then(|line| line.split_once("panicked at "));
        if let Some((_, place)) = place
            && !self.is_of_passed
            && !place.contains(' ')
        {
            self.is_own =
                self.own_panic.is_empty() && line.starts_with(&format!("thread '{}'", self.test));
            let column =
                place.rsplit_once(':').filter(|(_, n)| n.bytes().all(|b| b.is_ascii_digit()));
            self.panicked_at = Some(column.map_or(place, |(place, _)| place).to_owned());
        }
    }
}

/// `error: …` or `error[E0000]: …`.
fn is_error(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("error") else { return false };
    let code = rest.strip_prefix("[E").and_then(|rest| rest.split_once(']'));
    code.map_or(rest, |(_, rest)| rest).starts_with(": ")
}

/// A line without the name of the script that says it.
fn without_script(line: &str) -> &str {
    let Some((script, rest)) = line.split_once(": ") else { return line };
    let is_script = script.strip_prefix("ci/").is_some_and(|name| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b"-/".contains(&b))
    });
    if is_script { rest } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `log NAME`, the log, `says`, the lines: as often as the file has them.
    #[test]
    fn samples_are_read_as_they_say() {
        let text = include_str!("failures.samples");
        let samples = text.split("\nlog ").skip(1);
        let mut count = 0;
        for sample in samples {
            let (name, rest) = sample.split_once('\n').unwrap();
            let (log, says) = rest.split_once("says\n").unwrap();
            assert_eq!(failures(name, log).join("\n"), says.trim_end(), "of {name}:\n{log}");
            count += 1;
        }
        assert_eq!(count, 7);
    }

    #[test]
    fn colours_are_no_part_of_a_log() {
        let said = failures("x", "\x1b[1;31merror\x1b[0m: no such thing\r\n");
        assert_eq!(said, ["FAILED x: error: no such thing"]);
    }

    #[test]
    fn more_tests_than_fit_are_left_out() {
        let list: String = (0..7).map(|n| format!("    t{n}\n")).collect();
        let said = failures("x", &format!("failures:\n{list}"));
        assert_eq!(said, ["FAILED x (7 tests: t0, t1, t2, t3, t4, …): says no word of why"]);
    }

    #[test]
    fn a_script_of_a_suite_is_taken_off_as_well() {
        assert_eq!(failures("x", "ci/suites/rdma: no device"), ["FAILED x: no device"]);
    }
}
