//! Text in pictures and pages.

/// A round number without needless digits.
pub(crate) fn plain(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", (v / 1e4).round() / 1e2),
        v if v >= 1e3 => format!("{}k", (v / 10.0).round() / 1e2),
        v if v > 0.0 && v < 1e-3 => format!("{v:.1e}").replace(".0e", "e"),
        v => format!("{}", (v * 1e6).round() / 1e6),
    }
}

/// Text that is no markup.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 2e-5, 1.5e-4, 0.5, 20.0, 1500.0, 2e6];
        assert_eq!(numbers.map(plain), ["0", "2e-5", "1.5e-4", "0.5", "20", "1.5k", "2M"]);
    }

    #[test]
    fn text_is_no_markup() {
        assert_eq!(escaped("<a & \"b\">\u{1}"), "&lt;a &amp; &quot;b&quot;&gt;\u{fffd}");
    }
}
