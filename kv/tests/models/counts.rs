//! The numbers of histories.

use caravan_kv::consistency::{Asp, Bsp, DataCentric};

use super::program::{Form, Formula, Shape, admitted, allowed, released};

/// Histories of one shape under BSP, under δ = 0, 1 and 2, and without constraints. 0 stands for a
/// number that is not known.
struct Row {
    workers: usize,
    iterations: u64,
    bsp: u128,
    delays: [u128; 3],
    free: u128,
}

const fn row(workers: usize, iterations: u64, counts: [u128; 5]) -> Row {
    let [bsp, zero, one, two, free] = counts;
    Row { workers, iterations, bsp, delays: [zero, one, two], free }
}

const ANY_ORDER: [Row; 4] = [
    row(2, 1, [48, 60, 80, 80, 80]),
    row(2, 2, [2_304, 4_608, 14_656, 14_784, 14_784]),
    row(2, 3, [110_592, 353_088, 2_903_552, 3_110_976, 3_111_680]),
    row(3, 1, [2_177_280, 3_991_680, 7_484_400, 7_484_400, 7_484_400]),
];

const FIXED_ORDER: [Row; 5] = [
    row(2, 1, [12, 15, 20, 20, 20]),
    row(2, 2, [144, 321, 916, 924, 924]),
    row(2, 3, [1_728, 6_927, 45_566, 48_609, 48_620]),
    row(3, 1, [10_080, 19_680, 34_650, 34_650, 34_650]),
    row(3, 2, [101_606_400, 1_101_362_680, 9_389_092_356, 9_465_511_770, 0]),
];

const PREFETCH: [Row; 5] = [
    row(2, 1, [48, 60, 80, 80, 0]),
    row(2, 2, [2_304, 6_600, 233_152, 236_544, 0]),
    row(2, 3, [110_592, 726_000, 577_801_668, 1_791_086_976, 0]),
    row(3, 1, [2_177_280, 3_991_680, 7_484_400, 7_484_400, 0]),
    row(
        3,
        2,
        [
            4_740_548_198_400,
            72_242_684_352_000,
            220_612_874_398_396_416,
            226_110_933_576_253_440,
            0,
        ],
    ),
];

fn check(form: Form, rows: &[Row]) {
    for &Row { workers, iterations, bsp, delays, free } in rows {
        let shape = Shape { form, workers, iterations };
        assert_eq!(allowed(shape, Formula::Bsp), bsp, "{shape:?}: BSP by formula");
        // The controller applies the writes of an iteration in order of rank: one of the orders
        // that the barriers allow, which are p! in each iteration.
        let orders = (1..=workers as u128).product::<u128>().pow(iterations as u32);
        assert_eq!(released(shape, Bsp::new(workers)) * orders, bsp, "{shape:?}: BSP");
        for (delay, count) in (0..).zip(delays) {
            assert_eq!(
                allowed(shape, Formula::Delay(delay)),
                count,
                "{shape:?}: δ = {delay} by formula"
            );
            let controller = DataCentric::new(workers, Some(delay), 1);
            assert_eq!(admitted(shape, controller), count, "{shape:?}: δ = {delay}");
        }
        let expected = if free > 0 { free } else { allowed(shape, Formula::Free) };
        assert_eq!(allowed(shape, Formula::Free), expected, "{shape:?}: free by formula");
        assert_eq!(admitted(shape, Asp::new(workers)), expected, "{shape:?}: ASP");
        let hogwild = DataCentric::new(workers, None, 1);
        assert_eq!(admitted(shape, hogwild), expected, "{shape:?}: δ = ∞");
    }
}

#[test]
fn reads_in_any_order() {
    check(Form::AnyOrder, &ANY_ORDER);
}

#[test]
fn reads_in_fixed_order() {
    check(Form::FixedOrder, &FIXED_ORDER);
}

/// BSP allows no read ahead, so its counts are those of the sequential program.
#[test]
fn reads_ahead() {
    check(Form::Prefetch, &PREFETCH);
}
