//! Factors against the plain loop and the equations they solve.

use super::*;

/// Pseudo-random numbers in -1..1.
pub(crate) fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// H = AᵀA of this many rows: singular if they are fewer than `n`.
fn gram(n: usize, rows: usize, seed: u64) -> Triangle {
    let a = noise(rows * n, seed);
    let product = |k, l| (0..rows).map(|row| a[row * n + k] * a[row * n + l]).sum();
    Triangle::new(n, (0..n).flat_map(|k| (0..=k).map(move |l| product(k, l))).collect())
}

#[test]
fn products_are_those_of_both_triangles() {
    let (n, x) = (20, noise(20, 4));
    let matrix = gram(n, 7, 3);
    for (k, product) in matrix.times(&x).into_iter().enumerate() {
        let expected: f64 = (0..n).map(|l| matrix.at(k, l) * x[l]).sum();
        assert!((product - expected).abs() < 1e-12, "row {k}: {product} is not {expected}");
    }
}

#[test]
fn factors_solve_and_may_be_built_on() {
    for n in [1, 7, 16, 17, 60, 600] {
        let hessian = gram(n, 2 * n, 5);
        let mut factor = Factor::default();
        let mut face: Vec<usize> = (0..n).rev().collect();
        for round in 0..4 {
            let b = noise(face.len(), 9);
            let x = factor.solve(&hessian, &face, &b).expect("it is regular");
            for (&k, b) in face.iter().zip(&b) {
                let product: f64 = face.iter().zip(&x).map(|(&l, x)| hessian.at(k, l) * x).sum();
                assert!((product - b).abs() < 1e-6, "n {n}, round {round}: {product} is not {b}");
            }
            // One leaves from the middle and comes back last in the next round.
            let gone = face.remove(face.len() * 2 / 3);
            if round % 2 == 1 || face.is_empty() {
                face.push(gone);
            }
        }
    }
}

/// The plain loop: one entry after the other, each by [`dot`]. With rows done before and rows that
/// are not.
#[test]
fn factors_are_those_of_the_plain_loop_to_the_bit() {
    for n in [5, 30, 61, 600] {
        let hessian = gram(n, n + 9, 8);
        let mut plain = Triangle::new(n, hessian.entries.clone());
        for row in 0..n {
            for column in 0..row {
                let product = dot(&plain.row(row)[..column], &plain.row(column)[..column]);
                let own = (plain.at(row, column) - product) / plain.at(column, column);
                plain.row_mut(row)[column] = own;
            }
            let left = &plain.row(row)[..row];
            let pivot = (plain.at(row, row) - dot(left, left)).sqrt();
            plain.row_mut(row)[row] = pivot;
        }
        for same in [0, 3, n / 2] {
            let mut matrix = Triangle::new(n, hessian.entries.clone());
            let done: Vec<usize> = (0..n).map(|row| same.min(row + 1)).collect();
            for (row, &done) in done.iter().enumerate() {
                matrix.row_mut(row)[..done].copy_from_slice(&plain.row(row)[..done]);
            }
            assert!(matrix.factor(&done).is_some());
            assert!(matrix.entries == plain.entries, "{n}, of which {same} were there");
        }
    }
}

#[test]
fn dependent_columns_are_combined_from_those_before() {
    let (n, face) = (9, [8, 3, 5, 0, 1, 2, 4, 6, 7]);
    let hessian = gram(n, 4, 3);
    let combinations = dependents(&hessian, &face, 1e-9);
    assert_eq!(combinations.iter().map(|(k, _)| *k).collect::<Vec<_>>(), [1, 2, 4, 6, 7]);
    for (k, of) in combinations {
        for l in 0..n {
            let combined: f64 = of.iter().map(|&(j, share)| share * hessian.at(l, j)).sum();
            assert!((combined - hessian.at(l, k)).abs() < 1e-12, "column {k}, row {l}");
        }
    }
    assert!(dependents(&gram(n, 2 * n, 3), &face, 1e-9).is_empty());
    let mut factor = Factor::default();
    factor.solve(&hessian, &face[..4], &[1.0; 4]).expect("these are independent");
    assert!(!factor.met_dependence(1e-9));
    factor.solve(&hessian, &face, &[1.0; 9]).expect("a ridge helps");
    assert!(factor.met_dependence(1e-9));
}

#[test]
fn a_singular_matrix_gets_a_ridge_and_an_empty_one_no_solution() {
    let mut factor = Factor::default();
    let x = factor.solve(&gram(6, 3, 1), &[0, 1, 2, 3, 4, 5], &[0.0; 6]);
    assert_eq!(x.as_deref(), Some(&[0.0; 6][..]));
    assert!(Factor::default().solve(&Triangle::new(2, vec![0.0; 3]), &[0, 1], &[1.0; 2]).is_none());
    let broken = Triangle::new(1, vec![f64::NAN]);
    assert!(Factor::default().solve(&broken, &[0], &[1.0]).is_none());
}
