//! Parses decimal numbers from bytes: keys and values. Not a general parser: no sign on keys, no
//! infinities.

/// Most digits of a mantissa that is exact in an `f64` (10^15 < 2^53).
const EXACT_DIGITS: usize = 15;

/// 10^0 to 10^15: all exact, so a division by one of them rounds once, like the exact parse.
const POWERS_OF_TEN: [f64; EXACT_DIGITS + 1] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// The same as integers.
const TENS: [u64; EXACT_DIGITS + 1] = {
    let mut tens = [1; EXACT_DIGITS + 1];
    let mut power = 1;
    while power < tens.len() {
        tens[power] = 10 * tens[power - 1];
        power += 1;
    }
    tens
};

/// The key that `text` spells: decimal digits, at most 2^64 - 1.
pub(crate) fn parse_key(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let (mut key, len) = leading_digits(text);
    for &byte in &text[len..] {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        key = key.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(key)
}

/// The finite number that `text` spells, correctly rounded. Overflow is refused, underflow is 0.
pub(crate) fn parse_value(text: &[u8]) -> Option<f64> {
    if let Some(value) = parse_short(text) {
        return Some(value);
    }
    let value: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// Parses integers and decimals of up to 15 digits, which are nearly all values in practice; `None`
/// for others.
fn parse_short(text: &[u8]) -> Option<f64> {
    leading_value(text).filter(|&(_, len)| len == text.len()).map(|(value, _)| value)
}

/// The value at the start of `text` and its length, if it is an integer or decimal of up to 15
/// digits. Ignores what follows, which may turn it into another number.
pub(crate) fn leading_value(text: &[u8]) -> Option<(f64, usize)> {
    let negative = text.first() == Some(&b'-');
    let signed = usize::from(negative || text.first() == Some(&b'+'));
    let (mut mantissa, mut digits) = leading_digits(&text[signed..]);
    let mut len = signed + digits;
    let mut decimals = 0;
    if text.get(len) == Some(&b'.') {
        let (fraction, found) = leading_digits(&text[len + 1..]);
        len += 1 + found;
        digits += found;
        decimals = found;
        if digits <= EXACT_DIGITS {
            mantissa = mantissa * TENS[found] + fraction;
        }
    }
    if !(1..=EXACT_DIGITS).contains(&digits) {
        return None;
    }
    let value = mantissa as f64 / POWERS_OF_TEN[decimals];
    Some((if negative { -value } else { value }, len))
}

/// The number that the first digits of `text` form, and how many they are: all, or the first 16.
pub(super) fn leading_digits(text: &[u8]) -> (u64, usize) {
    let (high, len) = eight_digits(text);
    if len < 8 {
        return (high, len);
    }
    let (low, more) = eight_digits(&text[8..]);
    (high * TENS[more] + low, 8 + more)
}

/// The number that the first digits of `text` form, at most 8, and how many they are. All are
/// handled together, so that their unpredictable count decides no branch.
fn eight_digits(text: &[u8]) -> (u64, usize) {
    const LOW_HALVES: u64 = 0x0000_00FF_0000_00FF;
    let mut bytes = [0; 8];
    match text.first_chunk() {
        Some(chunk) => bytes = *chunk,
        None => bytes.iter_mut().zip(text).for_each(|(to, from)| *to = *from),
    }
    // 0 to 9 for digits; below, the highest bit is set for other bytes, possibly also for some
    // after the first of them.
    let values = u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030;
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    let len = others.trailing_zeros() / 8;
    // Shifts the digits to the end, with zeros before them; then neighbours become pairs, fours,
    // and all eight.
    let aligned = values.checked_shl(u64::BITS - 8 * len).unwrap_or(0);
    let pairs = aligned.wrapping_mul(10).wrapping_add(aligned >> 8);
    let high = (pairs & LOW_HALVES).wrapping_mul(100 + (1_000_000 << 32));
    let low = (pairs >> 16 & LOW_HALVES).wrapping_mul(1 + (10_000 << 32));
    (high.wrapping_add(low) >> 32, len as usize)
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
    fn digits_end_where_another_byte_is() {
        for (text, expected) in [
            (&b""[..], (0, 0)),
            (b"7", (7, 1)),
            (b"0012:", (12, 4)),
            (b"12345678", (12_345_678, 8)),
            (b"123456789 1", (123_456_789, 9)),
            (b"99999999999999999999", (9_999_999_999_999_999, 16)),
            (b":1234567", (0, 0)),
            (b"1/2", (1, 1)),
        ] {
            assert_eq!(leading_digits(text), expected, "{}", text.escape_ascii());
        }
        for other in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
            for at in 0..17 {
                let text: Vec<u8> = (0..20).map(|k| if k == at { other } else { b'1' }).collect();
                assert_eq!(leading_digits(&text).1, at.min(16), "{}", text.escape_ascii());
            }
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
