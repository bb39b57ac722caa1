//! Sizes, times and wait policies as people write them, both ways. The only place that knows them.

use caravan_van::Wait;

const SUFFIXES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads `8`, `64B`, `1KiB`, `4MiB`: bytes, at least 1.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = SUFFIXES
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1));
    let number: u64 = digits
        .trim()
        .parse()
        .map_err(|_| format!("{text:?} is not a size; write it like 8, 64, 1KiB or 4MiB"))?;
    let bytes = number.checked_mul(unit).filter(|bytes| (1..=SIZE_BYTES_MAX).contains(bytes));
    bytes.map(|bytes| bytes as usize).ok_or(format!("{text:?} is not between 1 byte and 1GiB"))
}

/// Largest payload of one request a bench takes, in bytes.
pub(crate) const SIZE_BYTES_MAX: u64 = 1 << 30;

/// Writes a size the way [`parse_size`] reads it, in the largest unit that divides it.
pub(crate) fn size(bytes: usize) -> String {
    match SUFFIXES
        .iter()
        .find(|(_, unit)| bytes as u64 >= *unit && (bytes as u64).is_multiple_of(*unit))
    {
        Some((suffix, unit)) => format!("{} {suffix}", bytes as u64 / unit),
        None => format!("{bytes} B"),
    }
}

/// Reads a wait policy by its name.
pub(crate) fn parse_wait(text: &str) -> Result<Wait, String> {
    caravan_kv::config::wait_named(text)
        .ok_or_else(|| format!("{text:?} is not spin, yield, adaptive or block"))
}

/// The name of a wait policy; how long it yields before it sleeps is not part of it.
pub(crate) fn wait(wait: Wait) -> &'static str {
    match wait {
        Wait::Spin => "spin",
        Wait::Yield => "yield",
        Wait::Adaptive(_) => "adaptive",
        Wait::Block => "block",
    }
}

/// Three decimals: more would be noise in a row.
pub(crate) fn milli(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_both_ways() {
        for (text, bytes, shown) in [
            ("8", 8, "8 B"),
            ("64B", 64, "64 B"),
            ("1KiB", 1024, "1 KiB"),
            ("4MiB", 4 << 20, "4 MiB"),
            ("1GiB", 1 << 30, "1 GiB"),
            ("1000", 1000, "1000 B"),
            ("1536", 1536, "1536 B"),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
            assert_eq!(size(bytes), shown);
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for text in
            ["", "KiB", "-1", "1.5KiB", "8 apples", "0", "2GiB", "99999999999999999999GiB", "1kb"]
        {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn wait_policies_go_both_ways() {
        for text in ["spin", "yield", "block", "adaptive"] {
            assert_eq!(wait(parse_wait(text).expect(text)), text);
        }
        for text in ["", "sleep", "spin:3", "Adaptive"] {
            assert!(parse_wait(text).is_err(), "{text:?}");
        }
    }
}
