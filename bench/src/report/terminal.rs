//! Lines for people on standard error. Text from other nodes is made harmless for a terminal.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

/// Writes a line to standard error. Nothing happens if that fails: work is not lost because nobody
/// reads about it.
pub(crate) fn say(text: impl Display) {
    tell(format_args!("caravan: {text}"));
}

/// As [`say`], for a line that names its own source.
pub(crate) fn tell(text: impl Display) {
    let text = text.to_string();
    let line = harmless(&text).replace('\n', "\\n");
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes control characters and characters that change the direction of text as `\u001b`. Ends of
/// lines and tabs stay. The result means the same inside the quotes of JSON, which has such
/// characters nowhere else.
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| match c {
        '\n' | '\t' => false,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    };
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let written = |c: char| match is_harmful(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(written).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_written_out() {
        for (text, expected) in [
            ("worker 3: no\nsuch \"file\" é ◄", "worker 3: no\nsuch \"file\" é ◄"),
            ("\x1b[2J\x1b]0;owned\x07", "\\u001b[2J\\u001b]0;owned\\u0007"),
            ("a\r\x08\x7f\t\0", "a\\u000d\\u0008\\u007f\t\\u0000"),
            ("\u{9b}31m", "\\u009b31m"),
            ("\u{202e}txt.exe\u{2066}", "\\u202etxt.exe\\u2066"),
        ] {
            assert_eq!(harmless(text), expected);
        }
    }

    #[test]
    fn rows_of_json_stay_json() {
        let said = "\x1b[31m\u{9b}1m\u{7f}\u{202e}\n\"\\";
        let row = serde_json::to_string(&serde_json::json!({ "why": said })).unwrap();
        let harmless = harmless(&row);
        assert!(!harmless.contains(|c: char| c.is_control() || c == '\u{202e}'), "{harmless}");
        let read: serde_json::Value = serde_json::from_str(&harmless).unwrap();
        assert_eq!(read["why"], said);
    }
}
