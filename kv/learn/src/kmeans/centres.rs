//! The centres, and the sums of points from which they follow.

use serde::{Deserialize, Serialize};

use super::points::Points;
use crate::model::RowModel;
use crate::trainer::Rows;
use crate::{Error, Result};

/// What models of k-means are called.
const ALGORITHM: &str = "kmeans";

/// A value of each coordinate for each cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Centres {
    dimensions: usize,
    /// `[clusters * dimensions]`.
    values: Vec<f64>,
    /// `[clusters]`: |c|².
    squares: Vec<f64>,
}

impl Centres {
    /// Centres with these values, one after another.
    pub(super) fn new(dimensions: usize, values: Vec<f64>) -> Self {
        let centres = values.chunks_exact(dimensions.max(1));
        let squares = centres.map(|centre| centre.iter().map(|value| value * value).sum());
        Centres { dimensions, squares: squares.collect(), values }
    }

    /// The rows of a model, one a cluster.
    ///
    /// # Errors
    /// [`Error::OtherModel`] if it has no cluster, or is of another algorithm.
    pub fn of_model(model: &RowModel) -> Result<Self> {
        let other = |reason| Error::OtherModel { algorithm: ALGORITHM, reason };
        match model.algorithm.as_str() {
            ALGORITHM if model.rows.keys.is_empty() => Err(other("it has no clusters".to_owned())),
            ALGORITHM => Ok(Centres::new(model.rows.width, model.rows.values.clone())),
            of => Err(other(format!("it is one of {of}"))),
        }
    }

    /// The model with a row for each cluster.
    pub fn to_model(&self) -> RowModel {
        let keys = (0..self.clusters() as u64).collect();
        let rows = Rows { keys, values: self.values.clone(), width: self.dimensions };
        RowModel { algorithm: ALGORITHM.to_owned(), settings: serde_json::Value::Null, rows }
    }

    /// Those of some points.
    pub(super) fn at(points: &Points, chosen: &[u32]) -> Self {
        let dimensions = points.dimensions();
        let mut values = vec![0.0; chosen.len() * dimensions];
        for (centre, point) in values.chunks_exact_mut(dimensions.max(1)).zip(chosen) {
            let (at, numbers) = points.point(*point as usize);
            at.iter().zip(numbers).for_each(|(at, number)| centre[*at as usize] = *number);
        }
        Centres::new(dimensions, values)
    }

    /// The means of sums; clusters without points stay as they are `before`.
    pub(super) fn of(sums: &[f64], before: &Centres) -> Self {
        let width = before.dimensions + 1;
        let mut values = before.values.clone();
        let centres = values.chunks_exact_mut(before.dimensions.max(1));
        for (centre, sums) in centres.zip(sums.chunks_exact(width)) {
            let count = sums[before.dimensions];
            if count > 0.0 {
                centre.iter_mut().zip(sums).for_each(|(value, sum)| *value = sum / count);
            }
        }
        Centres::new(before.dimensions, values)
    }

    /// Number of clusters.
    pub fn clusters(&self) -> usize {
        self.squares.len()
    }

    /// The values, one centre after another.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The nearest cluster of a point, the first if there are several, and the squared distance.
    /// Coordinates that the centres do not have are 0 in them.
    pub fn nearest(&self, points: &Points, point: usize) -> (usize, f64) {
        let (at, numbers) = points.point(point);
        let own: f64 = numbers.iter().map(|number| number * number).sum();
        let at = &at[..at.partition_point(|at| (*at as usize) < self.dimensions)];
        let centres = self.values.chunks_exact(self.dimensions.max(1)).zip(&self.squares);
        let distances = centres.map(|(centre, square)| {
            let both = at.iter().zip(numbers);
            let product: f64 = both.map(|(at, number)| number * centre[*at as usize]).sum();
            own - 2.0 * product + square
        });
        let mut best = (0, f64::INFINITY);
        for (cluster, distance) in distances.enumerate() {
            if distance < best.1 {
                best = (cluster, distance);
            }
        }
        (best.0, best.1.max(0.0))
    }

    /// Adds points to the sums of their clusters: `[clusters * (dimensions + 1)]`, the last of each
    /// the number of points. Returns the number of entries visited.
    pub(super) fn add(
        &self,
        points: &Points,
        chosen: impl Iterator<Item = u32>,
        sums: &mut [f64],
    ) -> u64 {
        let width = self.dimensions + 1;
        let mut entries = 0;
        for point in chosen {
            let (cluster, _) = self.nearest(points, point as usize);
            let (at, numbers) = points.point(point as usize);
            let sums = &mut sums[cluster * width..][..width];
            at.iter().zip(numbers).for_each(|(at, number)| sums[*at as usize] += number);
            sums[self.dimensions] += 1.0;
            entries += at.len() as u64;
        }
        entries
    }

    /// The sum of squared distances of points to their nearest centres.
    pub fn objective(&self, points: &Points, part: impl Iterator<Item = usize>) -> f64 {
        part.map(|point| self.nearest(points, point).1).sum()
    }
}
