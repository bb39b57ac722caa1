//! Rates and popularity as people write them.

use std::fmt;
use std::str::FromStr;

/// How fast requests are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rate {
    /// As fast as the answers come.
    Closed,
    /// This share of what the closed loop of the same run gave.
    Share(f64),
    /// So many a second.
    PerSecond(f64),
}

/// Most requests a second.
const RATE_MAX: f64 = 1e9;

impl Rate {
    /// The closed loop first, if there is one or shares of it are asked for.
    pub(super) fn in_order(rates: &[Rate]) -> Vec<Rate> {
        let needs_closed = rates.iter().any(|rate| !matches!(rate, Rate::PerSecond(_)));
        let closed = needs_closed.then_some(Rate::Closed);
        let others = rates.iter().filter(|rate| **rate != Rate::Closed);
        closed.into_iter().chain(others.copied()).collect()
    }

    /// Requests a second; none in a closed loop. `closed` is what that gave.
    pub(super) fn per_second(self, closed: Option<f64>) -> Option<f64> {
        match self {
            Rate::Closed => None,
            Rate::Share(share) => Some((share * closed.unwrap_or_default()).max(1.0)),
            Rate::PerSecond(rate) => Some(rate),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let wrong = || {
            format!(
                "{text:?} is no rate: write closed, a share as 80%, or a number as 20000, 20k, 2M"
            )
        };
        if text == "closed" {
            return Ok(Rate::Closed);
        }
        let units = [("%", 0.01), ("k", 1e3), ("M", 1e6)];
        let split = units.iter().find_map(|(end, unit)| Some((text.strip_suffix(end)?, *unit)));
        let (digits, unit) = split.unwrap_or((text, 1.0));
        let number: f64 = digits.parse().map_err(|_| wrong())?;
        let value = number * unit;
        let is_share = text.ends_with('%');
        let range = if is_share { 1e-6..=100.0 } else { 1e-3..=RATE_MAX };
        if !range.contains(&value) {
            return Err(wrong());
        }
        Ok(if is_share { Rate::Share(value) } else { Rate::PerSecond(value) })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Closed => f.write_str("closed"),
            Rate::Share(share) => write!(f, "{}%", (share * 1e4).round() / 100.0),
            Rate::PerSecond(rate) if *rate >= 1e6 => write!(f, "{}M", rate / 1e6),
            Rate::PerSecond(rate) if *rate >= 1e3 => write!(f, "{}k", rate / 1e3),
            Rate::PerSecond(rate) => write!(f, "{rate}"),
        }
    }
}

/// Which keys of a table requests name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Skew {
    /// The key in place r by popularity comes in proportion to r^-exponent.
    Zipf(f64),
    /// Keys that no request has named, so that each push makes rows.
    New,
}

/// Steepest exponent.
const ZIPF_MAX: f64 = 20.0;

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Skew, String> {
        if text == "new" {
            return Ok(Skew::New);
        }
        let exponent = match text.strip_prefix("zipf:") {
            Some(exponent) => exponent.parse().ok(),
            None => (text == "uniform").then_some(0.0),
        };
        let zipf = exponent.filter(|zipf| (0.0..=ZIPF_MAX).contains(zipf)).ok_or_else(|| {
            format!("{text:?} is neither uniform nor new nor zipf:S with S from 0 to {ZIPF_MAX}")
        })?;
        Ok(Skew::Zipf(zipf))
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skew::New => f.write_str("new"),
            Skew::Zipf(0.0) => f.write_str("uniform"),
            Skew::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_both_ways() {
        for text in ["closed", "80%", "0.5%", "120%", "20k", "2M", "999", "1.5k"] {
            assert_eq!(text.parse::<Rate>().map(|rate| rate.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("20000".parse(), Ok(Rate::PerSecond(20_000.0)));
        for text in ["", "0", "-1", "0%", "open", "80 %", "1e12", "NaN", "inf", "k"] {
            assert!(text.parse::<Rate>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn shares_come_after_what_they_are_of() {
        let rates = |text: &str| {
            let rates: Vec<Rate> = text.split(',').map(|rate| rate.parse().unwrap()).collect();
            let rates = Rate::in_order(&rates).into_iter().map(|rate| rate.to_string());
            rates.collect::<Vec<_>>().join(",")
        };
        assert_eq!(rates("50%,80%"), "closed,50%,80%");
        assert_eq!(rates("50%,closed"), "closed,50%");
        assert_eq!(rates("1k,2k"), "1k,2k");
        assert_eq!(Rate::Share(0.5).per_second(Some(1000.0)), Some(500.0));
        assert_eq!(Rate::Closed.per_second(Some(1000.0)), None);
    }

    #[test]
    fn popularity_goes_both_ways() {
        for text in ["uniform", "zipf:1.05", "zipf:0.99", "new"] {
            assert_eq!(text.parse::<Skew>().map(|skew| skew.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "zipf", "zipf:", "zipf:-1", "zipf:NaN", "zipf:21", "1.05"] {
            assert!(text.parse::<Skew>().is_err(), "{text:?}");
        }
    }
}
