//! Speed of parsing on one core in MB (10^6 bytes) per second, best of 50: `cargo bench -p
//! caravan-learn`.
//!
//! Text is parsed in blocks, like the reader's, from memory: disks and decompression are not
//! included.

use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use caravan_learn::data;

const BLOCK_BYTES: usize = 1 << 20;
const ROUNDS: usize = 50;

fn main() {
    let mut state = 1_u64;
    let mut draw = move |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    report(
        "libsvm, ones",
        &text(|row| {
            let mut key = 0;
            write!(row, "{}", if draw(2) == 0 { "-1" } else { "+1" })?;
            (0..100).try_for_each(|_| {
                key += 1 + draw(20_000);
                write!(row, " {key}:1")
            })
        }),
    );
    report(
        "libsvm, values",
        &text(|row| {
            let mut key = 0;
            write!(row, "{}", draw(2))?;
            (0..100).try_for_each(|_| {
                key += 1 + draw(500);
                write!(row, " {key}:0.{:06}", draw(1_000_000))
            })
        }),
    );
    report(
        "criteo",
        &text(|row| {
            write!(row, "{}", draw(2))?;
            (0..13).try_for_each(|_| match draw(5) {
                0 => write!(row, "\t"),
                digits => write!(row, "\t{}", draw(10_u64.pow(digits as u32))),
            })?;
            (0..26).try_for_each(|_| match draw(10) {
                0 => write!(row, "\t"),
                _ => write!(row, "\t{:08x}", draw(1 << 31)),
            })
        }),
    );
}

/// A block of rows.
fn text(mut row: impl FnMut(&mut String) -> std::fmt::Result) -> String {
    let mut text = String::new();
    while text.len() < BLOCK_BYTES {
        row(&mut text).expect("a string takes all that is written");
        text.push('\n');
    }
    text
}

fn report(name: &str, text: &str) {
    let once = || {
        let began = Instant::now();
        let rows = data::parse(Path::new(name), text.as_bytes()).expect("it is well formed");
        assert!(rows.rows() > 0, "{name}");
        began.elapsed().as_secs_f64()
    };
    let best = (0..ROUNDS).map(|_| once()).fold(f64::INFINITY, f64::min);
    println!("{name:16} {:6.0} MB/s", text.len() as f64 / best / 1e6);
}
