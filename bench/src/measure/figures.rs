//! From times to the figures of a row: quantiles, medians, decimals, and warnings of noise.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// A histogram of nanoseconds up to a minute.
pub(super) fn nanoseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .expect("three digits up to a minute is in range")
}

pub(super) fn record(nanos: &mut Histogram<u64>, took: Duration) {
    nanos.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
}

/// A histogram as the tools of HdrHistogram write it in logs: base64 of its compressed V2 format.
pub(crate) fn encoded(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
    written.expect("memory takes everything, and nothing is too large");
    BASE64.encode(bytes)
}

/// Reads a histogram of nanoseconds that [`encoded`] or another tool has written.
///
/// # Errors
/// If it is none, or has larger values than any request takes.
pub(crate) fn decoded(text: &str) -> Result<Histogram<u64>> {
    ensure!(text.len() <= ENCODED_MAX, "a histogram of {} characters", text.len());
    let bytes = BASE64.decode(text).context("no base64")?;
    let compressed = bytes.get(COMPRESSED_FROM..).context("a histogram without its first words")?;
    let mut plain = Vec::new();
    let read = ZlibDecoder::new(compressed).take(PLAIN_MAX).read_to_end(&mut plain);
    read.context("a histogram that cannot be decompressed")?;
    // The reader takes as much memory as the second word says.
    let word = |at: usize| plain.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let is_whole = word(4).is_some_and(|payload| payload as usize <= plain.len());
    ensure!(word(0) == Some(PLAIN_V2) && is_whole, "no histogram, or only a part of one");
    let read: Histogram<u64> = Deserializer::new()
        .deserialize(&mut plain.as_slice())
        .map_err(|error| anyhow::anyhow!("no histogram: {error}"))?;
    let mut nanos = nanoseconds();
    nanos.add(read).context("a histogram of times of more than a minute")?;
    Ok(nanos)
}

/// Longest text of a histogram: one of nanoseconds up to a minute has fewer bytes even if every
/// bucket is taken.
const ENCODED_MAX: usize = 1 << 20;
/// The same before it is compressed, in bytes.
const PLAIN_MAX: u64 = 1 << 20;
/// Where the compressed part begins: after the cookie and the length of the rest.
const COMPRESSED_FROM: usize = 8;
/// The first word of the V2 format that is not compressed.
const PLAIN_V2: u32 = 0x1c84_9313;

/// A quantile of a histogram of nanoseconds, in microseconds.
pub(crate) fn quantile_us(nanos: &Histogram<u64>, quantile: f64) -> f64 {
    nanos.value_at_quantile(quantile) as f64 / 1e3
}

/// Three decimals: more would be noise in a row.
pub(super) fn milli(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Six decimals: of a million messages, single ones.
pub(super) fn micro(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Nine decimals: of seconds all that a clock tells, so that no time is 0.
pub(super) fn nano(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

pub(super) fn ratio(value: &f64) -> String {
    format!("{value:.2}")
}

pub(super) fn four(value: &f64) -> String {
    format!("{value:.4}")
}

pub(super) fn three(value: &f64) -> String {
    format!("{value:.3}")
}

pub(super) fn megabytes(bytes: &u64) -> String {
    format!("{:.2}", *bytes as f64 / 1e6)
}

/// The value in the middle; of an even number the upper of the two.
///
/// # Panics
/// If there are none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A warning if the batches of a floor are too far apart, since a floor always does the same.
pub(super) fn spread_warning(what: &str, batches: impl Iterator<Item = f64>) -> Option<String> {
    let mut batches: Vec<f64> = batches.collect();
    batches.sort_by(f64::total_cmp);
    // The middle four fifths: one interrupted batch in twenty is not yet a noisy run.
    let cut = batches.len() / 10;
    let low = *batches.get(cut)?;
    let high = *batches.get(batches.len() - 1 - cut)?;
    (high > SPREAD_MAX * low).then(|| {
        format!(
            "noisy run: the {what} spread by {:.1} x between batches; stop other programs, pin, \
             or take more iterations",
            high / low
        )
    })
}

/// A warning if a floor's p99 is too far above its median.
pub(super) fn tail_warning(floor: &Histogram<u64>) -> Option<String> {
    let times = quantile_us(floor, 0.99) / quantile_us(floor, 0.5);
    (times > TAIL_MAX).then(|| {
        format!(
            "noisy run: the floor's p99 is {times:.1} x its p50; the tails here are the machine's"
        )
    })
}

/// How far apart batches of a floor may be, relatively.
const SPREAD_MAX: f64 = 1.5;

/// How far the floor's p99 may be above its median, relatively.
const TAIL_MAX: f64 = 5.0;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    #[test]
    fn histograms_travel_and_merge() {
        let mut one = nanoseconds();
        let mut two = nanoseconds();
        for nanos in (1..100_000_u64).map(|n| n * n % 1_000_003 + 400) {
            if nanos % 3 == 0 { &mut one } else { &mut two }.record(nanos).unwrap();
        }
        let mut merged = decoded(&encoded(&one)).unwrap();
        merged += decoded(&encoded(&two)).unwrap();
        let mut all = one.clone();
        all += &two;
        assert_eq!(merged, all, "to the bucket");
        assert!(encoded(&all).starts_with("HISTFAAA"), "as other tools write it");
        for text in ["", "HISTFAAA", "not base64!", "AAAA"] {
            assert!(decoded(text).is_err(), "{text}");
        }
        let cut = encoded(&all);
        assert!(decoded(&cut[..cut.len() / 8 * 4]).is_err());
        // A payload that claims 4 GiB.
        let mut claims = ZlibEncoder::new(Vec::new(), Compression::fast());
        claims.write_all(&PLAIN_V2.to_be_bytes()).unwrap();
        claims.write_all(&[0xff; 4]).unwrap();
        claims.write_all(&[0; 32]).unwrap();
        let claims = [vec![0; COMPRESSED_FROM], claims.finish().unwrap()].concat();
        let error = decoded(&BASE64.encode(claims)).unwrap_err().to_string();
        assert!(error.contains("only a part"), "{error}");
        let mut long = Histogram::<u64>::new(3).unwrap();
        long.record(u64::MAX / 4).unwrap();
        assert!(decoded(&encoded(&long)).is_err());
    }

    /// One batch in which only the floor was held up, and one in which both were, change nothing.
    #[test]
    fn the_median_of_ratios_stays_where_sums_do_not() {
        let rounds = [(2.0, 1.0), (2.0, 1.0), (90.0, 1.0), (20.0, 10.0), (2.0, 1.0)];
        assert_eq!(median(rounds.iter().map(|(floor, subject)| floor / subject)), 2.0);
        assert_eq!(median([3.0, 1.0].into_iter()), 3.0);
    }

    #[test]
    fn a_spread_run_warns() {
        assert_eq!(spread_warning("x", [1.0; 20].into_iter()), None);
        assert_eq!(spread_warning("x", std::iter::empty()), None);
        let one_bad = (0..20).map(|n| if n == 3 { 9.0 } else { 1.0 });
        assert_eq!(spread_warning("x", one_bad), None);
        let half_bad = (0..20).map(|n| if n % 2 == 0 { 2.0 } else { 1.0 });
        assert!(spread_warning("x", half_bad).unwrap().contains("2.0 x"));
    }

    #[test]
    fn a_long_tail_warns() {
        let mut floor = nanoseconds();
        floor.record_n(1000, 900).unwrap();
        assert_eq!(tail_warning(&floor), None);
        floor.record_n(100_000, 100).unwrap();
        assert!(tail_warning(&floor).is_some());
    }
}
