//! Latency of a device: one message at a time. A SEND or WRITE goes to and fro, and half a round
//! trip is reported, as by perftest's `ib_send_lat` and `ib_write_lat`. A READ is reported in full,
//! as by `ib_read_lat`.
//!
//! One message in sixteen asks for its completion, as in the vans; with perftest every one does.
//! The last byte of a message is its number. The receiver waits for that number, in memory if the
//! message was written without immediate data.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use caravan_van::Buffer;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::how::{How, padded, yes};
use super::kinds::Op;
use super::side::{SENDS, Side, pattern};
use crate::cli::values::size;
use crate::floor::link::Arrival;
use crate::measure::figures::{milli, record};
use crate::report::{figure, row};

row! {
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub(crate) struct VerbsLatency is "verbs-latency" {
        device: String,
        op: Op => "op        " as padded,
        bytes: usize => "size" as size,
        count: u64 => "count",
        /// What the figures are of: `half_round_trip_us`, or `round_trip_us` of a read.
        figure: &'static str,
        min_us: f64 => "min" as figure,
        p50_us: f64 => "p50" as figure,
        p90_us: f64 => "p90" as figure,
        p99_us: f64 => "p99" as figure,
        p999_us: f64 => "p99.9" as figure,
        max_us: f64 => "max" as figure,
        /// For a read on Soft-RoCE, whose times have two peaks.
        mean_us: f64 => "mean" as figure; "inline" |row| yes(row.how.inline),
        #[serde(flatten)]
        how: How,
        wrong: u64 => "wrong",
    }
    title |row| format!(
        "latency of {}: half a round trip (read: all of it), closed loop, µs; {}",
        row.device,
        row.how.text()
    );
    counts wrong;
}

/// Measures `count` messages as the asking side.
pub(super) fn measure(mut side: Side, count: u64) -> Result<VerbsLatency> {
    let op = side.test.op;
    let bytes = side.test.bytes;
    let device = side.link.device().name();
    let is_read = op == Op::Read;
    let signal_every = if is_read { 1 } else { usize::from(SIGNAL_EVERY) };
    let how = How::of(&mut side, 1, signal_every)?;
    let warm_up = count / 10 + 2;
    let mut ends = Vec::with_capacity(count as usize + 1);
    let mut wrong = 0;
    let memory = is_read.then(|| side.link.memory().allocate(bytes));
    let mut read = memory.transpose()?;
    for number in 1..=warm_up + count {
        if let Some(into) = read.take() {
            read = Some(side.read(into)?);
        } else {
            send(&mut side, number as u8)?;
            ensure!(receive(&mut side, number as u8, &mut wrong)?, "the other side went away");
        }
        if number >= warm_up {
            ends.push(Instant::now()); // the next message begins when this one ends
        }
    }
    wrong += compare(side, read, (warm_up + count) as u8)?;
    let mut nanos = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 4)
        .expect("four digits up to a minute is in range");
    for pair in ends.windows(2) {
        record(&mut nanos, pair[1].duration_since(pair[0]));
    }
    let halves = if is_read { 1.0 } else { 2.0 };
    let micros = |nanos: u64| milli(nanos as f64 / halves / 1e3);
    let at = |quantile| micros(nanos.value_at_quantile(quantile));
    Ok(VerbsLatency {
        device,
        op,
        bytes,
        count: nanos.len(),
        figure: if is_read { "round_trip_us" } else { "half_round_trip_us" },
        min_us: micros(nanos.min()),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: micros(nanos.max()),
        mean_us: milli(nanos.mean() / halves / 1e3),
        how,
        wrong,
    })
}

/// Sends messages back until the other side hangs up.
pub(super) fn answer(side: &mut Side) -> Result<()> {
    if side.test.op == Op::Read {
        return side.link.sleep_until_goodbye();
    }
    let mut number = 1u8;
    let mut wrong = 0;
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
        // Nothing else takes completions while memory is watched.
        ensure!(side.link.drain_to(SENDS / 4, &mut side.arrivals)?, "the other side went away");
    }
    Ok(())
}

/// Messages for one completion. Numbers wrap at a multiple of it.
const SIGNAL_EVERY: u8 = 16;

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

/// Compares the last message in full, where it lies; 0 or 1 wrong.
fn compare(side: Side, read: Option<Buffer>, number: u8) -> Result<u64> {
    let mut expected = pattern(side.test.bytes);
    let found = match side.test.op {
        Op::Send => return Ok(0), // each was checked as it came
        Op::Read => read.context("nothing was read")?,
        Op::Write | Op::WriteImm => {
            *expected.last_mut().expect("a message has a byte") = number;
            side.into_written()
        }
    };
    Ok(u64::from(found[..] != expected[..]))
}
