//! Says where training diverges, or has nothing to train on, before such numbers go on: the pass,
//! what is not finite, and what helps.

use caravan_kv::{Error, Result};
use caravan_van::Value;

use super::{Rows, Sums, Trainer};
use crate::data::listed;

/// Refuses a number of a pass that is not finite.
///
/// # Errors
/// [`Error::Config`] with the pass, the number and [`Trainer::REMEDY`].
pub(super) fn check<T: Trainer>(pass: u64, what: &str, number: f64) -> Result<()> {
    match number.is_finite() {
        true => Ok(()),
        false => Err(Error::Config(format!(
            "{} diverged in pass {pass}: {what} is {number}, which is not finite; {}",
            T::NAME,
            T::REMEDY
        ))),
    }
}

/// Refuses rows of which a value is not finite.
///
/// # Errors
/// As [`check`].
pub(super) fn check_rows<T: Trainer>(pass: u64, rows: &Rows<T::Value>) -> Result<()> {
    let bytes = T::Value::bytes(&rows.values);
    let first = |bad: Option<(usize, f64)>| {
        bad.map_or(Ok(()), |(at, number)| {
            let key = rows.keys.get(at / rows.width.max(1)).copied().unwrap_or_default();
            check::<T>(pass, &format!("the row of key {key}"), number)
        })
    };
    let is_bad = |number: &f64| !number.is_finite();
    match T::Value::CODE {
        code if code == f32::CODE => {
            let numbers = f32::view(bytes).unwrap_or_default().iter();
            first(numbers.map(|number| f64::from(*number)).enumerate().find(|it| is_bad(&it.1)))
        }
        code if code == f64::CODE => {
            let numbers = f64::view(bytes).unwrap_or_default().iter();
            first(numbers.copied().enumerate().find(|it| is_bad(&it.1)))
        }
        _ => Ok(()),
    }
}

/// Refuses a first pass that has changed no row.
///
/// # Errors
/// [`Error::Config`] names the files.
pub(super) fn check_data<T: Trainer>(pass: u64, settings: &T::Settings, sums: &Sums) -> Result<()> {
    if pass > 0 || sums.rows_pushed > 0 {
        return Ok(());
    }
    let files = match T::files(settings) {
        [] => "its data".to_owned(),
        files => listed(files),
    };
    Err(Error::Config(format!(
        "{} has nothing to train on: no row with a key is in {files}",
        T::NAME
    )))
}
