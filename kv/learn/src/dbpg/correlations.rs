//! A worker's part of a Hessian in two bytes a number, for jobs that quantise.
//!
//! H is a sum of x xᵀ over the worker's rows, so |H_ij| ≤ d_i d_j with d_i² = H_ii: its
//! correlations H_ij / (d_i d_j) lie in [-1, 1] and are sent as integers of 16 bits, each with an
//! error of at most 2⁻¹⁶. That changes the Newton step slightly, but not where it converges: only
//! the gradient determines the minimum, and each of its numbers is sent as two f32s, the second
//! being the remainder of the first.
//!
//! ```text
//! correlations of the lower triangle by rows, two a number | gradient | its remainder | d
//! ```
//!
//! All numbers have 32 bits.

use super::cholesky::triangle;
use super::support::packed_len;

/// The integer for 1.
const ONE: f64 = 32767.0;

/// Numbers on the wire for a support of n weights.
pub(super) fn wire_len(n: usize) -> usize {
    triangle(n).div_ceil(2) + 3 * n
}

/// Packs the output of [`super::support::Gram`] for n weights: `[wire_len(n)]`.
pub(super) fn pack(n: usize, packed: &[f64]) -> Vec<i32> {
    let (hessian, gradient) = packed.split_at(triangle(n));
    let bits = |number: f64| (number as f32).to_bits().cast_signed();
    let scale: Vec<f32> = (0..n).map(|i| hessian[triangle(i) + i].sqrt() as f32).collect();
    let correlations: Vec<u16> = (0..n)
        .flat_map(|i| (0..=i).map(move |j| (i, j)))
        .zip(hessian)
        .map(|((i, j), h)| {
            let scale = f64::from(scale[i]) * f64::from(scale[j]);
            let correlation = if scale > 0.0 { (h / scale).clamp(-1.0, 1.0) } else { 0.0 };
            ((correlation * ONE).round() as i16).cast_unsigned()
        })
        .collect();
    let pair = |pair: &[u16]| {
        let high = pair.get(1).copied().unwrap_or(0);
        (u32::from(pair[0]) | u32::from(high) << 16).cast_signed()
    };
    let rest = gradient.iter().map(|g| bits(g - f64::from(*g as f32)));
    let head = gradient.iter().map(|g| bits(*g)).chain(rest);
    let scale = scale.iter().map(|d| bits(f64::from(*d)));
    correlations.chunks(2).map(pair).chain(head).chain(scale).collect()
}

/// Adds the numbers of `wire` to `sum`, in the order of [`super::support::Gram`].
///
/// # Panics
/// If lengths do not match.
pub(super) fn add(n: usize, wire: &[i32], sum: &mut [f64]) {
    assert_eq!((wire.len(), sum.len()), (wire_len(n), packed_len(n)), "of n weights");
    let number = |bits: &i32| f64::from(f32::from_bits(bits.cast_unsigned()));
    let (pairs, head) = wire.split_at(triangle(n).div_ceil(2));
    let (gradient, scale) = head.split_at(2 * n);
    let scale: Vec<f64> = scale.iter().map(number).collect();
    let halves = pairs.iter().flat_map(|pair| {
        let pair = pair.cast_unsigned();
        [pair as u16, (pair >> 16) as u16].map(u16::cast_signed)
    });
    let places = (0..n).flat_map(|i| (0..=i).map(move |j| (i, j)));
    let (hessian, sums) = sum.split_at_mut(triangle(n));
    for (((i, j), half), h) in places.zip(halves).zip(hessian) {
        *h += f64::from(half) / ONE * scale[i] * scale[j];
    }
    let (near, rest) = gradient.split_at(n);
    for ((sum, near), rest) in sums.iter_mut().zip(near).zip(rest) {
        *sum += number(near) + number(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_off_by_little_of_their_diagonals() {
        // Rows (1, a), for a from -2 to 2, and a column that no row has.
        let n = 3;
        let rows = [-2.0, -0.5, 0.1, 2.0];
        let products = |f: fn(f64) -> f64| rows.iter().copied().map(f).sum::<f64>();
        let (one, a, aa) = (products(|_| 1.0), products(|a| a), products(|a| a * a));
        let packed = [one, a, aa, 0.0, 0.0, 0.0, 1e5 + 1e-4, -0.1, 0.0];
        let wire = pack(n, &packed);
        assert_eq!(wire.len(), wire_len(n));
        let mut sum = vec![1.0; packed.len()];
        add(n, &wire, &mut sum);
        for ((sum, exact), scale) in
            sum.iter().zip(packed).zip([one, (one * aa).sqrt(), aa, 0.0, 0.0, 0.0])
        {
            assert!((sum - 1.0 - exact).abs() <= scale / 65_000.0, "{sum} {exact}");
        }
        for (sum, exact) in sum.iter().zip(packed).skip(6) {
            assert!((sum - 1.0 - exact).abs() <= 1e-9, "{sum} {exact}");
        }
    }
}
