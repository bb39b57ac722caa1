//! Values as people write them: sizes, wait policies, numbers in a range, lists.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use caravan_kv::config::{BYTE_UNITS, is_address, parse_bytes, parse_hexadecimal};
use caravan_kv::node::Numa;
use caravan_learn::dbpg::{Filters, Straggle};
use caravan_learn::kmeans::Batches;
use caravan_van::Wait;
use clap::ValueEnum;
use clap::builder::{RangedI64ValueParser, RangedU64ValueParser};

use crate::launch::hosts::HostList;

/// Reads `8`, `64B`, `1KiB`, `4M`: bytes, at least 1.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text).filter(|bytes| (1..=SIZE_BYTES_MAX).contains(bytes));
    bytes.map(|bytes| bytes as usize).ok_or_else(|| {
        format!("{text:?} is no size from 1 byte to 1GiB; write it like 8, 64, 1KiB or 4MiB")
    })
}

/// Reads a size of memory.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    parse_bytes(text).filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!("{text:?} is no size below 2^64 bytes; write it like 512MiB or 4GiB")
    })
}

/// Largest payload of one request, in bytes.
const SIZE_BYTES_MAX: u64 = 1 << 30;

/// Reads the size of values of 4 bytes each.
pub(super) fn parse_values(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text)?;
    let fits = bytes.is_multiple_of(4).then_some(bytes);
    fits.ok_or_else(|| format!("{text:?} is not a multiple of 4 bytes"))
}

/// Writes a size the way [`parse_size`] reads it, in the largest unit that divides it.
pub(crate) fn size(bytes: &usize) -> String {
    let bytes = *bytes as u64;
    let mut units = BYTE_UNITS.iter();
    let fits = units.find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    let (suffix, unit) = fits.unwrap_or(&("B", 1));
    format!("{} {suffix}", bytes / unit)
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

/// The name of a value on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_owned()
}

/// A count of 1 or more.
pub(super) fn count() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

/// A count from 1 to `most`.
pub(super) fn count_to(most: usize) -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most as i64)
}

/// A count of 1 or more that may be large, but not so large that sums of it overflow.
pub(super) fn large_count() -> RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=1_000_000_000_000)
}

pub(super) fn non_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("{text:?} is not a number of 0 or more"))
}

pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number = non_negative(text).ok().filter(|number| *number > 0.0);
    number.ok_or_else(|| format!("{text:?} is not a number above 0"))
}

/// Reads a setting of an update rule, `rate=0.1`.
pub(super) fn option(text: &str) -> Result<(String, f64), String> {
    let read = text.split_once('=').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    let read = read.filter(|(name, number): &(&str, f64)| !name.is_empty() && number.is_finite());
    let (name, number) = read.ok_or_else(|| format!("{text:?} is not like rate=0.1"))?;
    Ok((name.to_owned(), number))
}

/// Reads a stage of k-means, `4:1000:20`: workers, points of a batch, batches.
pub(super) fn batches(text: &str) -> Result<Batches, String> {
    let positive = |number: &str| number.parse().ok().filter(|number: &u32| *number > 0);
    let numbers: Option<Vec<u32>> = text.split(':').map(positive).collect();
    match numbers.as_deref() {
        Some(&[workers, batch, iterations]) => Ok(Batches {
            workers: workers as usize,
            batch: batch as usize,
            iterations: iterations.into(),
        }),
        _ => Err(format!("{text:?} is not like 4:1000:20, workers:points:batches, from 1")),
    }
}

/// A time of a run, in seconds.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let number = positive(text).ok().filter(|number| SECONDS.contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number of seconds in {SECONDS:?}"))
}

const SECONDS: std::ops::RangeInclusive<f64> = 0.001..=86_400.0;

pub(super) fn up_to(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = non_negative(text).ok().filter(|number| *number <= most);
        number.ok_or_else(|| format!("{text:?} is not a number of 0 to {most}"))
    }
}

/// Reads seconds between two looks.
pub(super) fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| format!("{text:?} is not a number of seconds from 0.1 to 3600"))
}

pub(super) fn address(text: &str) -> Result<String, String> {
    let fits = is_address(text).then(|| text.to_owned());
    fits.ok_or_else(|| {
        format!("{text:?} is no address; it takes host:port, with a port below 65536")
    })
}

pub(super) fn etcd(text: &str) -> Result<PathBuf, String> {
    let is_member = |text: &str| text.strip_prefix("http://").is_some_and(is_address);
    match text.split(',').all(|member| is_member(member.trim_end_matches('/'))) {
        true => Ok(text.into()),
        false => {
            Err(format!("{text:?} is no etcd; it takes http://host:port, several with commas"))
        }
    }
}

pub(super) fn hexadecimal(text: &str) -> Result<u64, String> {
    parse_hexadecimal(text).ok_or_else(|| format!("{text:?} is no hexadecimal number below 2^64"))
}

pub(super) fn hosts(text: &str) -> Result<HostList, String> {
    text.parse()
}

pub(super) fn numa(text: &str) -> Result<Numa, String> {
    text.parse().map_err(|error: caravan_kv::Error| error.to_string())
}

pub(super) fn filters(text: &str) -> Result<Filters, String> {
    text.parse().map_err(|error: caravan_kv::Error| error.to_string())
}

/// The filters of a simulated training, and how they were written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FilterList {
    pub(crate) name: String,
    pub(crate) filters: Filters,
}

impl FromStr for FilterList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(FilterList { name: text.to_owned(), filters: filters(&text.replace('+', ","))? })
    }
}

/// How far workers may run ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delay {
    pub(crate) most: u32,
    /// Whether training lowers it where that helps.
    pub(crate) adapts: bool,
}

pub(super) fn delay(text: &str) -> Result<Delay, String> {
    let adapting = text.strip_prefix("0..");
    let most = adapting.unwrap_or(text).parse().map_err(|_| {
        format!("{text:?} is neither a number of blocks nor a range that begins with 0, as 0..8")
    })?;
    Ok(Delay { most, adapts: adapting.is_some() })
}

/// A key, or the first and the last key of a range.
pub(super) fn key_range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let keys = first.parse().ok().zip(last.parse().ok());
    keys.filter(|(first, last)| first <= last)
        .ok_or_else(|| format!("{text:?} is neither a key nor FIRST..LAST, with both of them keys"))
}

/// `SHARE:MS` of `--straggle`.
pub(super) fn pauses(text: &str) -> Result<Straggle, String> {
    let parts = text.split_once(':').and_then(|(share, ms)| {
        share.parse::<f64>().ok().zip(ms.parse().ok().map(Duration::from_millis))
    });
    let fits = parts.filter(|(share, _)| (0.0..=1.0).contains(share));
    fits.map(|(share, pause)| Straggle { share, pause })
        .ok_or_else(|| format!("{text:?} is no share from 0 to 1 and milliseconds, as 0.05:20"))
}

/// `FACTOR:EVERY:SPELL` of `bench scale --straggle`.
pub(super) fn spells(text: &str) -> Result<[f64; 3], String> {
    let numbers: Result<Vec<f64>, _> = text.split(':').map(str::parse).collect();
    let numbers = numbers.ok().and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
    let is_sane = |numbers: &[f64; 3]| {
        let [_, every, spell] = *numbers;
        let is_seldom = every == 0.0 || every + spell >= SPELLS_MS_MIN;
        is_seldom && numbers.iter().all(|n| (0.0..1e9).contains(n))
    };
    numbers.filter(is_sane).ok_or_else(|| {
        format!(
            "{text:?} is not FACTOR:EVERY:SPELL, as 4:40:10 (times as long, and twice ms, together \
             0 or from {SPELLS_MS_MIN})"
        )
    })
}

/// Reads how many times as long something takes.
pub(super) fn factor(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (1.0..1e6).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number of 1 or more"))
}

/// Shortest time from spell to spell, in ms: a simulated network visits each of them.
const SPELLS_MS_MIN: f64 = 1e-3;

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
            ("1K", 1024, "1 KiB"),
            ("2 mib", 2 << 20, "2 MiB"),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
            assert_eq!(size(&bytes), shown);
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

    #[test]
    fn a_factor_is_1_or_more() {
        assert_eq!(factor("1"), Ok(1.0));
        assert!(factor("0.5").is_err() && factor("inf").is_err());
    }

    #[test]
    fn spells_are_three_numbers() {
        assert_eq!(spells("4:40:2.5"), Ok([4.0, 40.0, 2.5]));
        for text in ["", "4", "4:40", "4:40:x", "4:-1:2", "1:2:3:4", "NaN:1:1", "4:1e-6:1e-6"] {
            assert!(spells(text).is_err(), "{text}");
        }
    }
}
