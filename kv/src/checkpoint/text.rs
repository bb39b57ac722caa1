//! Rows as text.

use std::fmt::Display;

use caravan_van::Value;

use crate::table::{TableSpec, with_type};

/// Appends a row as a line: its key and values that pulls show.
pub(crate) fn append_line(spec: &TableSpec, key: u64, values: &[u8], text: &mut String) {
    text.push_str(&key.to_string());
    with_type!(spec.value, V => append_values::<V>(values, text));
    text.push('\n');
}

/// Appends values with a space before each.
fn append_values<V: Value + Display>(bytes: &[u8], text: &mut String) {
    let mut values = vec![V::default(); bytes.len() / V::BYTES];
    V::bytes_mut(&mut values).copy_from_slice(&bytes[..bytes.len() / V::BYTES * V::BYTES]);
    for value in &values {
        text.push(' ');
        text.push_str(&value.to_string());
    }
}
