//! The choice of the optimum, if there are several.
//!
//! The loss is strictly convex in every margin, so all optima have the same margins and the same
//! gradient g. Weights that are non-zero at any of them lie in the border E = { j : |g_j| = λ },
//! with the sign of -g_j; there X_E z = 0 keeps the margins and, because 0 = g·z = -λ Σ s_j z_j,
//! the penalty. So if columns of E are equal or dependent, the optima are a polytope { w + z ≥ 0 in
//! the signs s }, and the point where a solver stops, with its number of weights, is arbitrary. Its
//! *centre* is unique: the point with the largest Σ log |v_j|. There, equal columns have equal
//! weights, and every weight that is non-zero at any optimum is non-zero, so the number of weights
//! is the largest possible.
//!
//! kv/learn/docs/decisions/0001-central-optimum.md compares it with other rules.
//!
//! [`Model::centre`] computes it from the Hessian on E in one factorisation: a column whose pivot
//! vanishes is a combination of those before it, which gives a direction z. Equal columns are
//! merged exactly; the sum of logarithms is then maximised along the other directions, if any, one
//! after the other. F changes only to second order in the rounding of an exact Hessian, and the
//! caller measures it.
//!
//! Place: last pass > worker: gram > driver: **centre** > worker: losses > set.

use super::cholesky::dependents;
use super::newton::Model;

/// A column depends on those before it if its pivot is at most this share of its diagonal.
const DEPENDENT: f64 = 1e-9;

/// A coefficient of a combination counts as 0 or 1 within this distance.
const NEAR: f64 = 1e-4;

/// How often the room below 0 is halved: to 1e-12 of the largest weight.
const SHIFTS: usize = 40;

/// Rounds over all directions for each room, and when there is none below 0 any more.
const ROUNDS: usize = 3;
const LAST_ROUNDS: usize = 20;

/// A weight of at most this many times the last room is 0 at every optimum.
const ZERO_ROOMS: f64 = 1e3;

/// Halvings of an interval: to the last bit.
const HALVINGS: usize = 60;

/// A direction that keeps the margins: the columns that move, and how far.
type Direction = Vec<(usize, f64)>;

impl Model {
    /// The central optimum, if this is an optimum and not the only one: `[n]`. The weights of the
    /// model are those of the border, 0 or not. Also returns the rank of the border's columns: some
    /// optimum, a corner of the polytope, has no more weights than that.
    pub(super) fn centre(&self) -> Option<(Vec<f64>, usize)> {
        let n = self.weights.len();
        let signs: Vec<f64> = (0..n).map(|k| self.sign(k)).collect();
        let combinations = dependents(&self.hessian, &self.first_face(), DEPENDENT);
        let rank = n - combinations.len();
        let mut groups = Groups { first: (0..n).collect(), sizes: vec![1.0; n] };
        let mut directions = Vec::new();
        for (column, of) in combinations {
            let of: Direction = of.into_iter().filter(|(_, share)| share.abs() > NEAR).collect();
            match of[..] {
                [(other, share)] if (share - 1.0).abs() < NEAR && signs[other] == signs[column] => {
                    groups.join(column, other);
                }
                _ => directions.push(std::iter::once((column, -1.0)).chain(of).collect()),
            }
        }
        let mut totals = vec![0.0; n];
        for (&first, weight) in groups.first.iter().zip(&self.weights) {
            totals[first] += weight;
        }
        directions.retain(|direction| keeps_norm(direction, &signs));
        Middle { directions: &directions, signs: &signs, sizes: &groups.sizes }.find(&mut totals);
        let central: Vec<f64> =
            groups.first.iter().map(|&first| totals[first] / groups.sizes[first]).collect();
        (central != self.weights).then_some((central, rank))
    }

    /// The sign of a weight on the border at every optimum where it is not 0; 0 for a weight
    /// without penalty, which may have either.
    fn sign(&self, k: usize) -> f64 {
        match (self.lambda[k], self.weights[k]) {
            (0.0, _) => 0.0,
            (_, 0.0) => -self.gradient[k].signum(),
            (_, weight) => weight.signum(),
        }
    }
}

/// Groups of equal columns.
struct Groups {
    /// The first column of each column's group: `[n]`.
    first: Vec<usize>,
    /// The size of the group of each first column: `[n]`.
    sizes: Vec<f64>,
}

impl Groups {
    /// Adds `column` to the group of `other`, a first column, because it does not depend on those
    /// before it.
    fn join(&mut self, column: usize, other: usize) {
        self.first[column] = other;
        self.sizes[other] += 1.0;
    }
}

/// Whether ‖w‖₁ stays the same along a direction within the signs, as it does on the border.
fn keeps_norm(direction: &Direction, signs: &[f64]) -> bool {
    let moves = || direction.iter().map(|&(k, share)| share * signs[k]);
    moves().sum::<f64>().abs() <= NEAR * moves().map(f64::abs).sum::<f64>()
}

/// The search for the largest Σ log |v|, with each |v| counted once per column of its group.
struct Middle<'a> {
    directions: &'a [Direction],
    signs: &'a [f64],
    sizes: &'a [f64],
}

impl Middle<'_> {
    /// Moves there from any optimum, one direction after the other.
    ///
    /// Weights at 0 may block every single direction although some combination of them would lead
    /// away. So all weights may first lie slightly on the other side of 0, by a room that shrinks.
    /// Halfway back to the start is always within half the room.
    fn find(&self, totals: &mut [f64]) {
        let start = totals.to_vec();
        let scale = start.iter().fold(0.0_f64, |largest, total| largest.max(total.abs()));
        if self.directions.is_empty() || scale == 0.0 {
            return;
        }
        let mut room = scale;
        for _ in 0..SHIFTS {
            (0..ROUNDS).for_each(|_| self.round(totals, room));
            totals
                .iter_mut()
                .zip(&start)
                .for_each(|(total, start)| *total = 0.5 * (*total + start));
            room *= 0.5;
        }
        for (total, sign) in totals.iter_mut().zip(self.signs) {
            if *sign != 0.0 && *total * sign <= ZERO_ROOMS * room {
                *total = 0.0;
            }
        }
        (0..LAST_ROUNDS).for_each(|_| self.round(totals, 0.0));
    }

    fn round(&self, totals: &mut [f64], room: f64) {
        self.directions.iter().for_each(|direction| self.go(totals, direction, room));
    }

    /// Moves along one direction to the largest sum of logarithms.
    fn go(&self, totals: &mut [f64], direction: &Direction, room: f64) {
        let moves: Vec<[f64; 3]> = direction
            .iter()
            .filter(|(k, _)| self.signs[*k] != 0.0)
            .map(|&(k, share)| {
                [self.signs[k] * totals[k] + room, self.signs[k] * share, self.sizes[k]]
            })
            .collect();
        let ends = |up: bool| {
            let ends = moves.iter().filter(move |[_, share, _]| (*share > 0.0) == up);
            ends.map(|[left, share, _]| -left / share)
        };
        let (mut low, mut high) = (
            ends(true).fold(f64::NEG_INFINITY, f64::max),
            ends(false).fold(f64::INFINITY, f64::min),
        );
        if !(low < high && (high - low).is_finite()) {
            return;
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            let slope = |[left, share, size]: &[f64; 3]| size * share / (left + middle * share);
            let rises = moves.iter().map(slope).sum::<f64>() > 0.0;
            *(if rises { &mut low } else { &mut high }) = middle;
        }
        direction.iter().for_each(|&(k, share)| totals[k] += low * share);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// The model of columns `a: [n][rows]` at weights of the border, where g = -λ s.
    fn model(a: &[Vec<f64>], weights: Vec<f64>, signs: &[f64]) -> Model {
        let product = |k: usize, l: usize| a[k].iter().zip(&a[l]).map(|(x, y)| x * y).sum::<f64>();
        let triangle = (0..a.len()).flat_map(|k| (0..=k).map(move |l| (k, l)));
        let mut packed: Vec<f64> = triangle.map(|(k, l)| product(k, l)).collect();
        packed.extend(signs.iter().map(|sign| -sign));
        Model::new(vec![1.0; a.len()], weights, packed)
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        }
    }

    #[test]
    fn equal_columns_share_their_weight() {
        let (a, b) = (vec![1.0, 0.0, 2.0, 1.0], vec![0.0, 1.0, 1.0, 0.0]);
        let columns = [a.clone(), b.clone(), a.clone(), a, b];
        let (central, rank) =
            model(&columns, vec![0.0, -0.5, 3.0, 0.0, -0.25], &[1.0, -1.0, 1.0, 1.0, -1.0])
                .centre()
                .unwrap();
        assert_eq!(rank, 2);
        assert_near(&central, &[1.0, -0.375, 1.0, 1.0, -0.375]);
        let again = model(&columns, central, &[1.0, -1.0, 1.0, 1.0, -1.0]).centre();
        assert_eq!(again, None, "it is at the centre");
    }

    /// Two one-hot codes: the columns of each sum to all ones. Along (1, 1, -1, -1) the weights 0,
    /// 2, 3, 1 move to where 1/a + 1/(2+a) = 1/(3-a) + 1/(1-a).
    #[test]
    fn dependent_columns_meet_in_the_middle() {
        let columns = [
            vec![1.0, 1.0, 0.0, 0.0],
            vec![0.0, 0.0, 1.0, 1.0],
            vec![1.0, 0.0, 1.0, 0.0],
            vec![0.0, 1.0, 0.0, 1.0],
        ];
        let central = model(&columns, vec![0.0, 2.0, 3.0, 1.0], &[1.0; 4]).centre().unwrap().0;
        let way = central[0];
        assert_near(&central, &[way, 2.0 + way, 3.0 - way, 1.0 - way]);
        let slope = 1.0 / way + 1.0 / (2.0 + way) - 1.0 / (3.0 - way) - 1.0 / (1.0 - way);
        assert!(way > 0.0 && way < 1.0 && slope.abs() < 1e-9, "{way}: {slope}");
        let other = model(&columns, vec![0.5, 2.5, 2.5, 0.5], &[1.0; 4]).centre().unwrap().0;
        assert_near(&other, &central);
    }

    /// Three codes of two columns each, from a corner and from inside.
    #[test]
    fn any_optimum_leads_to_the_same() {
        let one = |on: fn(u32) -> bool| (0..8).map(|row| f64::from(u8::from(on(row)))).collect();
        let columns: Vec<Vec<f64>> = vec![
            one(|row| row & 1 > 0),
            one(|row| row & 1 == 0),
            one(|row| row & 2 > 0),
            one(|row| row & 2 == 0),
            one(|row| row & 4 > 0),
            one(|row| row & 4 == 0),
        ];
        let central =
            |from: [f64; 6]| model(&columns, from.to_vec(), &[1.0; 6]).centre().unwrap().0;
        let inside = central([1.0, 3.0, 0.5, 3.5, 2.5, 3.5]);
        assert!(inside.iter().all(|weight| *weight > 0.1), "{inside:?}");
        for corner in [[0.0, 2.0, 0.0, 3.0, 4.0, 5.0], [0.0, 2.0, 4.0, 7.0, 0.0, 1.0]] {
            for (found, expected) in central(corner).iter().zip(&inside) {
                assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
            }
        }
    }

    #[test]
    fn a_single_optimum_stays() {
        let columns = [vec![1.0, 0.0, 2.0], vec![0.0, 1.0, 1.0]];
        assert_eq!(model(&columns, vec![0.5, 0.0], &[1.0, 1.0]).centre(), None);
        // The second column is twice the first: any weight on it would change the norm.
        let columns = [vec![1.0, 2.0], vec![2.0, 4.0]];
        assert_eq!(model(&columns, vec![0.0, 0.5], &[1.0, 1.0]).centre(), None);
    }
}
