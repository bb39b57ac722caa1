//! The filters of a table, their text form in specifications and command lines, and the checks of
//! what a table can have.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::quantize;
use crate::error::{Error, Result};
use crate::table::{TableSpec, ValueType};

/// Handles of floating-point numbers to which pushes are no contributions.
const NOT_SUMS: [&str; 5] = ["assign", "mul", "div", "min", "max"];

/// The filters of a table; none by default. Written as a list:
/// `mask,zero,quantize=2,key-cache,snappy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filters {
    /// Send each row of a push with this probability, in (0, 1], scaled up; all if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<f64>,
    /// Hold a row back until one of its values has changed by this threshold, above 0, over the
    /// clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub significant: Option<f64>,
    /// A bit per row in place of its number of values, if that is 0 or the same for all. The four
    /// below imply it.
    pub mask: bool,
    /// A bit per value in place of values that are 0.
    pub zero: bool,
    /// Four bytes in place of eight if all values are f32s.
    pub narrow: bool,
    /// Push values in this many bytes, 1 to 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantize: Option<u8>,
    /// Send each list of keys once.
    pub key_cache: bool,
    /// Send differences of keys, and compress sections that get shorter.
    pub snappy: bool,
    /// Seed of the random draws of `skip` and `quantize`; workers draw from streams of their own.
    pub seed: u64,
}

impl Filters {
    /// No filter.
    pub const NONE: Filters = Filters {
        skip: None,
        significant: None,
        mask: false,
        zero: false,
        narrow: false,
        quantize: None,
        key_cache: false,
        snappy: false,
        seed: 0,
    };

    /// Whether there are no filters, whatever the seed.
    pub fn is_none(&self) -> bool {
        Filters { seed: 0, ..*self } == Filters::NONE
    }

    /// Whether pushed values become a block.
    pub(crate) fn makes_blocks(&self) -> bool {
        self.is_lossy() || self.mask || self.zero || self.narrow
    }

    /// Whether answered values become a block.
    pub(crate) fn makes_answer_blocks(&self) -> bool {
        self.mask || self.zero || self.narrow
    }

    /// Whether any of them changes or withholds values.
    pub fn is_lossy(&self) -> bool {
        self.skip.is_some() || self.significant.is_some() || self.quantize.is_some()
    }

    /// Checks that a table can have these filters.
    ///
    /// # Errors
    /// [`Error::Config`] names the one it cannot have, and why.
    pub fn check(&self, spec: &TableSpec) -> Result<()> {
        let refuse = |what: &str, why: &str| {
            Err(Error::Config(format!("table {} cannot have {what}: {why}", spec.name)))
        };
        let exact = why_exact(spec);
        let in_unit = |share: f64| share > 0.0 && share <= 1.0;
        match *self {
            Filters { quantize: Some(bytes), .. } if !Self::QUANTIZE_BYTES.contains(&bytes) => {
                refuse("this quantize", "it takes 1, 2 or 3 bytes")
            }
            Filters { skip: Some(share), .. } if !in_unit(share) => {
                refuse("this skip", "it takes a probability above 0 and at most 1")
            }
            Filters { significant: Some(t), .. } if !(t > 0.0 && t.is_finite()) => {
                refuse("this significant", "it takes a threshold above 0")
            }
            _ if self.is_lossy() && exact.is_some() => {
                refuse("skip, significant or quantize", exact.unwrap_or_default())
            }
            Filters { skip, significant, .. }
                if (skip.is_some() || significant.is_some()) && spec.width == 0 =>
            {
                refuse(
                    "skip or significant",
                    "its rows have their own lengths, where a row left out reads as one without values",
                )
            }
            Filters { narrow: true, .. } if spec.value != ValueType::F64 => {
                refuse("narrow", "it is for f64")
            }
            _ => Ok(()),
        }
    }
}

/// Why nothing lossy may be done to pushes of a table, if so.
pub(super) fn why_exact(spec: &TableSpec) -> Option<&'static str> {
    if !matches!(spec.value, ValueType::F32 | ValueType::F64) {
        return Some("lossy filters are for f32 and f64, and counts are exact");
    }
    NOT_SUMS.contains(&&*spec.handle).then_some(
        "its handle does not add up pushes, so what one lacks is lost instead of evened out",
    )
}

impl FromStr for Filters {
    type Err = Error;

    /// Parses a list of names, some followed by `=` and a number; `none` is an empty list.
    fn from_str(text: &str) -> Result<Filters> {
        let mut filters = Filters::NONE;
        for item in
            text.split(',').map(str::trim).filter(|item| !item.is_empty() && *item != "none")
        {
            let (name, number) = match item.split_once('=') {
                Some((name, number)) => (name, Some(number)),
                None => (item, None),
            };
            filters.set(name, number)?;
        }
        Ok(filters)
    }
}

impl Filters {
    /// Bytes of a quantized value.
    pub const QUANTIZE_BYTES: RangeInclusive<u8> = 1..=quantize::BYTES_MAX;

    /// Items of a list, as help texts show them.
    pub const NAMES: &[&str] = &[
        "skip=Q",
        "significant=T",
        "mask",
        "zero",
        "narrow",
        "quantize=BYTES",
        "key-cache",
        "snappy",
        "seed=N",
    ];

    /// Whether [`FromStr`] accepts the name of this item.
    pub fn knows(item: &str) -> bool {
        let name = |item: &str| item.split('=').next().unwrap_or_default().to_owned();
        ["", "none"].contains(&item) || Self::NAMES.iter().any(|known| name(known) == name(item))
    }

    /// Switches one filter on.
    fn set(&mut self, name: &str, number: Option<&str>) -> Result<()> {
        match (name, number) {
            ("mask", None) => self.mask = true,
            ("zero", None) => self.zero = true,
            ("narrow", None) => self.narrow = true,
            ("key-cache", None) => self.key_cache = true,
            ("snappy", None) => self.snappy = true,
            ("quantize", number) => self.quantize = Some(parse(name, number.unwrap_or("2"))?),
            ("significant", Some(number)) => self.significant = Some(parse(name, number)?),
            ("skip", Some(number)) => self.skip = Some(parse(name, number)?),
            ("seed", Some(number)) => self.seed = parse(name, number)?,
            ("significant" | "skip" | "seed", None) => {
                return Err(Error::Config(format!("{name} takes a number, as {name}=0.5")));
            }
            ("mask" | "zero" | "narrow" | "key-cache" | "snappy", Some(number)) => {
                return Err(Error::Config(format!(
                    "{name} takes no number, and was given {number}"
                )));
            }
            _ => {
                let names = Filters::NAMES.join(", ");
                return Err(Error::Config(format!("there is no filter {name}; there are {names}")));
            }
        }
        Ok(())
    }
}

/// Parses the number of a filter.
fn parse<T: FromStr>(name: &str, number: &str) -> Result<T> {
    number.parse().map_err(|_| Error::Config(format!("{name} does not take {number}")))
}

impl fmt::Display for Filters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            self.skip.map(|share| format!("skip={share}")),
            self.significant.map(|threshold| format!("significant={threshold}")),
            self.mask.then(|| "mask".to_owned()),
            self.zero.then(|| "zero".to_owned()),
            self.narrow.then(|| "narrow".to_owned()),
            self.quantize.map(|bytes| format!("quantize={bytes}")),
            self.key_cache.then(|| "key-cache".to_owned()),
            self.snappy.then(|| "snappy".to_owned()),
            (self.seed != 0).then(|| format!("seed={}", self.seed)),
        ];
        let list = names.into_iter().flatten().collect::<Vec<_>>().join(",");
        f.write_str(if list.is_empty() { "none" } else { &list })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for text in [
            "none",
            "skip=0.5,significant=0.1,mask,zero,narrow,quantize=3,key-cache,snappy,seed=7",
            "zero",
        ] {
            assert_eq!(text.parse::<Filters>().unwrap().to_string(), text);
        }
        assert_eq!("quantize".parse::<Filters>().unwrap().quantize, Some(2));
        assert!(" key-cache , zero".parse::<Filters>().unwrap().key_cache);
        for (text, says) in [
            ("compress", "no filter compress"),
            ("skip", "takes a number"),
            ("zero=1", "takes no number"),
            ("quantize=two", "quantize does not take two"),
        ] {
            let error = text.parse::<Filters>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn specifications_carry_them_and_old_ones_have_none() {
        let filters: Filters = "significant=0.1,zero,key-cache".parse().unwrap();
        let text = serde_json::to_string(&filters).unwrap();
        assert_eq!(serde_json::from_str::<Filters>(&text).unwrap(), filters);
        assert_eq!(serde_json::from_str::<Filters>("{}").unwrap(), Filters::NONE);
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_reason() {
        let floats = TableSpec::new(1, "t", ValueType::F64, 2);
        let counts = TableSpec::new(1, "t", ValueType::I64, 2);
        let assigned = TableSpec::new(1, "t", ValueType::F32, 2).handle("assign");
        let varying = TableSpec::new(1, "t", ValueType::F64, 0).handle("mine");
        for (spec, list, says) in [
            (&floats, "quantize=4", "1, 2 or 3 bytes"),
            (&floats, "quantize=0", "1, 2 or 3 bytes"),
            (&floats, "skip=1.5", "probability"),
            (&floats, "skip=NaN", "probability"),
            (&floats, "significant=0", "threshold above 0"),
            (&counts, "quantize=2", "counts are exact"),
            (&counts, "narrow", "it is for f64"),
            (&assigned, "skip=0.5", "does not add up"),
            (&assigned, "quantize=2", "does not add up"),
            (&varying, "significant=1", "own lengths"),
        ] {
            let error = list.parse::<Filters>().unwrap().check(spec).unwrap_err().to_string();
            assert!(error.contains(says), "{list}: {error}");
        }
        for (spec, list) in [
            (&floats, "skip=0.5,significant=1,mask,zero,narrow,quantize=3,key-cache,snappy"),
            (&counts, "mask,zero,key-cache,snappy"),
            (&assigned, "mask,zero,key-cache,snappy"),
            (&varying, "mask,zero,narrow,quantize=1,key-cache,snappy"),
        ] {
            list.parse::<Filters>().unwrap().check(spec).unwrap();
        }
    }
}
