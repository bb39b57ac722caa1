//! Rows as CSV (RFC 4180): a line with the names before the first row of each kind, then a line a
//! row. Lists and objects stand in quotes as JSON has them.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// The fields of a row in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Fields(pub(crate) Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a row, which is a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(InOrder)
    }
}

/// The line of a row, after its heading if that is wanted.
pub(super) fn lines(row: &Fields, with_heading: bool) -> String {
    let line = |cells: Vec<String>| cells.join(",");
    let values = line(row.0.iter().map(|(_, value)| cell(value)).collect());
    if !with_heading {
        return values;
    }
    let names = row.0.iter().map(|(name, _)| quoted(name)).collect();
    format!("{}\n{values}", line(names))
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    }
}

fn quoted(text: &str) -> String {
    if !text.contains(['"', ',', '\n', '\r']) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let row = r#"{"row":"x","z":1.5,"a":null,"why":"no, \"it\" is\nnot","list":[1,2]}"#;
        let row: Fields = serde_json::from_str(row).unwrap();
        let expected = "row,z,a,why,list\nx,1.5,,\"no, \"\"it\"\" is\nnot\",\"[1,2]\"";
        assert_eq!(lines(&row, true), expected);
        assert_eq!(lines(&row, false), expected.split_once('\n').unwrap().1);
        assert!(serde_json::from_str::<Fields>("[1]").is_err());
    }
}
