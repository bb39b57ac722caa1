//! Decimal numbers from bytes: keys and values. Not a general parser: no sign on keys, no infinities.

/// Most digits a mantissa may have and still be exact in an `f64` (10^15 < 2^53).
const EXACT_DIGITS: usize = 15;

/// 10^0 to 10^15: all exact, so one division by one of them rounds once, as the exact parse does.
const POWERS_OF_TEN: [f64; EXACT_DIGITS + 1] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// The key that all of `text` spells: decimal digits, at most 2^64 - 1.
pub(crate) fn parse_key(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut key = 0_u64;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        key = key.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(key)
}

/// The finite number that all of `text` spells, correctly rounded. What overflows is refused, what underflows is 0.
pub(crate) fn parse_value(text: &[u8]) -> Option<f64> {
    if let Some(value) = parse_short(text) {
        return Some(value);
    }
    let value: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// Integers and decimals of up to 15 digits, which are nearly all values in practice. None: not one of these.
fn parse_short(text: &[u8]) -> Option<f64> {
    leading_value(text).filter(|&(_, len)| len == text.len()).map(|(value, _)| value)
}

/// The value that `text` begins with and its length, if it is an integer or decimal of up to 15 digits. What follows is not
/// looked at: it may make another number of it.
pub(crate) fn leading_value(text: &[u8]) -> Option<(f64, usize)> {
    let negative = text.first() == Some(&b'-');
    let signed = usize::from(negative || text.first() == Some(&b'+'));
    let (mut mantissa, mut len) = (0_u64, signed);
    let mut point = None;
    for &byte in text[signed..].iter().take(EXACT_DIGITS + 1) {
        match byte {
            b'0'..=b'9' => mantissa = mantissa * 10 + u64::from(byte - b'0'),
            b'.' if point.is_none() => point = Some(len),
            _ => break,
        }
        len += 1;
    }
    let digits = len - signed - usize::from(point.is_some());
    if !(1..=EXACT_DIGITS).contains(&digits) {
        return None;
    }
    let decimals = point.map_or(0, |at| len - 1 - at);
    let value = mantissa as f64 / POWERS_OF_TEN[decimals];
    Some((if negative { -value } else { value }, len))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys() {
        assert_eq!(parse_key(b"0"), Some(0));
        assert_eq!(parse_key(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"18446744073709551616", b"-1", b"+1", b"1.0", b"0x1", b"1 "] {
            assert_eq!(parse_key(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn values() {
        for good in [
            "1",
            "-1",
            "+1",
            "0.708333",
            ".5",
            "5.",
            "1e5",
            "-0",
            "123456789.1234567890123",
            "1e-400",
        ] {
            let value = parse_value(good.as_bytes()).unwrap();
            assert_eq!(value.to_bits(), good.parse::<f64>().unwrap().to_bits(), "{good}");
        }
        for bad in [
            "",
            ".",
            "-",
            "+.",
            "nan",
            "inf",
            "-infinity",
            "1e400",
            "1e",
            "1..2",
            "0x10",
            "1_0",
            "٣",
        ] {
            assert_eq!(parse_value(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_decimal_equals_the_exact_parse(text in "[+-]?[0-9]{0,18}\\.?[0-9]{0,12}") {
            let exact = text.parse::<f64>().ok();
            prop_assert_eq!(parse_value(text.as_bytes()).map(f64::to_bits), exact.map(f64::to_bits));
        }

        #[test]
        fn shortest_form_round_trips(value in proptest::num::f64::ANY.prop_filter("finite", |v| v.is_finite())) {
            prop_assert_eq!(parse_value(value.to_string().as_bytes()).unwrap().to_bits(), value.to_bits());
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = (parse_key(&bytes), parse_value(&bytes));
        }
    }
}
