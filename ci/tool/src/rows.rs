//! Rows that `caravan … --json` prints, a JSON object a line.

use std::path::Path;

use serde_json::Value;

use crate::files;

/// The rows of a file.
///
/// # Errors
/// Names the file and the line that is no row.
pub(crate) fn read(file: &str) -> Result<Vec<Value>, String> {
    parse(&files::read(Path::new("."), file)?, file)
}

/// The rows of a text.
///
/// # Errors
/// As [`read`].
pub(crate) fn parse(text: &str, file: &str) -> Result<Vec<Value>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty());
    let rows = lines.map(|(at, line)| {
        let row = serde_json::from_str(line);
        row.map_err(|error| format!("{file}:{}: {error}", at + 1))
    });
    rows.collect()
}

/// Those of one kind.
pub(crate) fn of<'a>(rows: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    rows.iter().filter(move |row| row["row"] == kind)
}

/// A number of a row; `None` where it has none of this name.
pub(crate) fn number(row: &Value, name: &str) -> Option<f64> {
    row[name].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_kind_and_a_broken_one_is_named() {
        let text = "{\"row\":\"a\",\"x\":1}\n\n{\"row\":\"b\",\"x\":2.5}\n";
        let rows = parse(text, "f").unwrap();
        let found: Vec<Option<f64>> = of(&rows, "b").map(|row| number(row, "x")).collect();
        assert_eq!(found, [Some(2.5)]);
        assert_eq!(number(&rows[0], "y"), None);
        assert!(parse("{}\n{", "f").unwrap_err().starts_with("f:2: "));
    }
}
