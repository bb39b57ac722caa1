//! Which optimum a run ends at, where there are many.
//!
//! The loss bends strictly along every margin, so all optima have the same margins, and with them the same gradient g. Weights
//! that are not 0 anywhere among them lie in the border E = { j : |g_j| = λ }, with the sign of -g_j; there X_E z = 0 leaves the
//! margins and, as 0 = g·z = -λ Σ s_j z_j, the penalty. So where columns of E equal each other or depend on each other the
//! optimum is a polytope { w + z ≥ 0 in the signs s }, and which of its points a solver stops at, with how many weights, is
//! chance. Its *centre* is unique: the point where Σ log |v_j| is largest. There equal columns have equal weights, and every
//! weight is non-zero that is so at any optimum: the number of weights is the largest there is.
//!
//! Other rules give other numbers of weights; kv/learn/docs/decisions/0001-central-optimum.md lists them.
//!
//! [`Model::centre`] finds it from the Hessian on E, in one factorisation: a column whose pivot vanishes is a combination of
//! those before it, which is a direction z to move along. Equal columns are put together exactly; along the other directions,
//! if there are any, the sum of logarithms is maximised one after the other. F is as before to second order in the rounding
//! of an exact Hessian, and the caller measures it.
//!
//! Place: last pass > worker: gram > driver: **centre** > worker: losses > set.

use super::cholesky::dependents;
use super::newton::Model;

/// A column whose pivot is this share of its diagonal or less depends on those before it.
const DEPENDENT: f64 = 1e-9;

/// A coefficient of a combination is taken for 0, or for 1, when it is this near.
const NEAR: f64 = 1e-4;

/// How often the room below 0 is halved: to 1e-12 of the largest weight.
const SHIFTS: usize = 40;

/// Times that all directions are gone along for each, and when there is no room below 0 any more.
const ROUNDS: usize = 3;
const LAST_ROUNDS: usize = 20;

/// A weight of no more than so many times the last room is 0 at every optimum.
const ZERO_ROOMS: f64 = 1e3;

/// Halvings of an interval: to the last bit.
const HALVINGS: usize = 60;

/// A direction in which the margins stay: which columns move, and how far each.
type Direction = Vec<(usize, f64)>;

impl Model {
    /// The central optimum, if this is one and another: `[n]`. The weights of the model are those of the border, 0 or not.
    /// Also the rank of the border's columns: some optimum, a corner of the polytope, has no more weights than that.
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

    /// The sign of a weight on the border at every optimum where it is not 0; 0 for one without penalty, which may have any.
    fn sign(&self, k: usize) -> f64 {
        match (self.lambda[k], self.weights[k]) {
            (0.0, _) => 0.0,
            (_, 0.0) => -self.gradient[k].signum(),
            (_, weight) => weight.signum(),
        }
    }
}

/// Columns that equal each other.
struct Groups {
    /// The first of each column's group: `[n]`.
    first: Vec<usize>,
    /// How many there are in the group of each first: `[n]`.
    sizes: Vec<f64>,
}

impl Groups {
    /// `other` is a first: it does not depend on columns before it.
    fn join(&mut self, column: usize, other: usize) {
        self.first[column] = other;
        self.sizes[other] += 1.0;
    }
}

/// Whether ‖w‖₁ stays along a direction within the signs, as it does on the border.
fn keeps_norm(direction: &Direction, signs: &[f64]) -> bool {
    let moves = || direction.iter().map(|&(k, share)| share * signs[k]);
    moves().sum::<f64>().abs() <= NEAR * moves().map(f64::abs).sum::<f64>()
}

/// Where Σ log |v| is largest, each |v| as often as there are columns in its group.
struct Middle<'a> {
    directions: &'a [Direction],
    signs: &'a [f64],
    sizes: &'a [f64],
}

impl Middle<'_> {
    /// Moves there from any optimum, one direction after the other.
    ///
    /// Weights at 0 may block every direction that some combination of them would leave: so all may lie a bit on the other
    /// side of 0 at first, and the room for that shrinks. Half the way back to the start is always within half the room.
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

    /// Goes along one direction to where the sum of logarithms is largest.
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

    /// Two one-hot codes: their columns add up to the same, all ones. Along (1, 1, -1, -1) the weights 0, 2, 3, 1 go on to
    /// where 1/a + 1/(2+a) = 1/(3-a) + 1/(1-a).
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
        // The second is the first twice over: any weight on it would change the norm.
        let columns = [vec![1.0, 2.0], vec![2.0, 4.0]];
        assert_eq!(model(&columns, vec![0.0, 0.5], &[1.0, 1.0]).centre(), None);
    }
}
