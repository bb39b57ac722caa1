//! Latency of a device: one message at a time. A SEND or WRITE goes to and fro, and half a round trip is reported, as perftest's
//! `ib_send_lat` and `ib_write_lat` do; a READ is reported in full, as `ib_read_lat` does.
//!
//! One message in sixteen asks for its completion, as in the vans; perftest asks for every one. The last byte of a message is
//! its number: whoever gets it looks for that, in memory when it was written without immediate data.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::link::Arrival;
use super::side::{Op, SENDS, Side, pattern};
use super::{About, How, yes};
use crate::report::{Shown, columns, decimals};
use crate::units::{self, milli};

/// One row of latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct VerbsLatency {
    pub(crate) device: String,
    pub(crate) op: Op,
    pub(crate) bytes: usize,
    pub(crate) count: u64,
    /// What the figures are of: `half_round_trip_us`, or `round_trip_us` of a read.
    pub(crate) figure: String,
    pub(crate) min_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// For a read on Soft-RoCE, whose times fall into two heaps.
    pub(crate) mean_us: f64,
    #[serde(flatten)]
    pub(crate) how: How,
    pub(crate) wrong: u64,
}

impl Shown for VerbsLatency {
    fn heading(&self) -> Option<String> {
        Some(format!(
            "\n# latency of {}: {}, closed loop, µs; {}\n{}",
            self.device,
            "half a round trip (read: all of it)",
            self.how.text(),
            columns(&[
                "op        ",
                "size",
                "count",
                "min",
                "p50",
                "p90",
                "p99",
                "p99.9",
                "max",
                "mean",
                "inline",
                "wrong"
            ])
        ))
    }

    fn text(&self) -> String {
        let mut cells = vec![self.op.padded(), units::size(self.bytes), self.count.to_string()];
        let times = [
            self.min_us,
            self.p50_us,
            self.p90_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.mean_us,
        ];
        cells.extend(times.iter().map(decimals));
        cells.extend([yes(self.how.inline), self.wrong.to_string()]);
        columns(&cells)
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// Measures `count` messages as the asking side.
///
/// # Errors
/// When the other side goes away, or work fails.
pub(crate) fn measure(mut side: Side, count: u64, about: &About) -> Result<VerbsLatency> {
    let how = How::of(&mut side, 1, signal_every(about.test.op), about)?;
    let warm_up = count / 10 + 2;
    let mut ends = Vec::with_capacity(count as usize + 1);
    let mut wrong = 0;
    let is_read = side.test.op == Op::Read;
    let mut into = match is_read {
        true => Some(side.link.memory().allocate(side.test.bytes)?),
        false => None,
    };
    for number in 1..=warm_up + count {
        if is_read {
            into = Some(read(&mut side, into.take())?);
        } else {
            send(&mut side, number as u8)?;
            ensure!(receive(&mut side, number as u8, &mut wrong)?, "the other side went away");
        }
        if number >= warm_up {
            ends.push(Instant::now()); // one ends as the next begins, and differences are taken later
        }
    }
    wrong += compare(side, into, (warm_up + count) as u8)?;
    let times_ns: Vec<_> =
        ends.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_nanos() as u64).collect();
    Ok(row(about, &times_ns, how, wrong))
}

/// Sends back what comes until the other side hangs up.
///
/// # Errors
/// When work fails.
pub(crate) fn answer(side: &mut Side) -> Result<()> {
    if side.test.op == Op::Read {
        return side.link.sleep_until_goodbye();
    }
    let (mut number, mut wrong) = (1u8, 0);
    while receive(side, number, &mut wrong)? {
        send(side, number)?;
        number = number.wrapping_add(1);
    }
    Ok(())
}

/// Posts message `number`.
fn send(side: &mut Side, number: u8) -> Result<()> {
    let message = side.numbered(number)?;
    side.push(message, 0)?;
    side.link.queue().ring(number.is_multiple_of(SIGNAL_EVERY))?;
    if side.test.op == Op::Write && side.link.under_way() >= SENDS / 2 {
        // Nobody looks at completions while memory is watched.
        ensure!(side.link.drain_to(SENDS / 4, &mut side.arrivals)?, "the other side went away");
    }
    Ok(())
}

/// Messages for one completion. Numbers wrap at a multiple of it.
const SIGNAL_EVERY: u8 = 16;

fn signal_every(op: Op) -> usize {
    if op == Op::Read { 1 } else { usize::from(SIGNAL_EVERY) }
}

/// Waits for message `number`; `false` when the other side hung up.
fn receive(side: &mut Side, number: u8, wrong: &mut u64) -> Result<bool> {
    if side.test.op == Op::Write {
        return side.watch(number);
    }
    loop {
        let stands = side.link.wait(&mut side.arrivals, true)?;
        let mut came = false;
        while let Some(arrival) = side.arrivals.pop() {
            let last = match arrival {
                Arrival::Message { slot, bytes, .. } => {
                    let last = side.link.message(&slot, bytes)?.last().copied();
                    side.link.give_back(slot)?;
                    last
                }
                Arrival::Written { .. } => Some(side.last_byte()),
                Arrival::Read { .. } => bail!("nothing was to be read"),
            };
            *wrong += u64::from(last != Some(number));
            came = true;
        }
        if came || !stands {
            return Ok(stands);
        }
    }
}

/// Reads the other side's message once.
fn read(side: &mut Side, into: Option<caravan_van::Buffer>) -> Result<caravan_van::Buffer> {
    let Some(into) = into else { bail!("there is no memory to read into") };
    side.push_read(into)?;
    side.link.queue().ring(true)?;
    loop {
        let stands = side.link.wait(&mut side.arrivals, true)?;
        if let Some(Arrival::Read { memory }) = side.arrivals.pop() {
            return Ok(memory);
        }
        ensure!(stands, "the other side went away");
    }
}

/// Compares what came last in full, where it still lies; 0 or 1 wrong.
fn compare(side: Side, read: Option<caravan_van::Buffer>, number: u8) -> Result<u64> {
    let mut expected = pattern(side.test.bytes);
    let found = match (side.test.op, read) {
        (Op::Read, Some(read)) => read,
        (Op::Write | Op::WriteImm, _) => {
            *expected.last_mut().expect("a message has a byte") = number;
            side.into_written()
        }
        _ => return Ok(0), // each was looked at as it came
    };
    Ok(u64::from(found[..] != expected[..]))
}

fn row(about: &About, times_ns: &[u64], how: How, wrong: u64) -> VerbsLatency {
    let mut nanos = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 4)
        .expect("four digits up to a minute is in range");
    for time in times_ns {
        nanos.saturating_record((*time).max(1));
    }
    let halves = if about.test.op == Op::Read { 1.0 } else { 2.0 };
    let micros = |nanos: u64| milli(nanos as f64 / halves / 1e3);
    let at = |quantile| micros(nanos.value_at_quantile(quantile));
    VerbsLatency {
        device: about.device.clone(),
        op: about.test.op,
        bytes: about.test.bytes,
        count: nanos.len(),
        figure: if halves == 1.0 { "round_trip_us" } else { "half_round_trip_us" }.to_owned(),
        min_us: micros(nanos.min()),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: micros(nanos.max()),
        mean_us: milli(nanos.mean() / halves / 1e3),
        how,
        wrong,
    }
}
