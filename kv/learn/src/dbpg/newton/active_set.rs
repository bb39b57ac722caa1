//! Conjugate gradients on the active set { v ≠ 0 }: where blocks crawl, because directions that
//! lower q need columns of many of them, this moves all non-zero weights at once.
//!
//! With r the gradient of q and h the diagonal of its Hessian H, they solve
//! (H + ρ diag h) x = -(r + λ sign v), preconditioned by the diagonal. ρ keeps steps short where H
//! is nearly singular. Signs may flip on the way; q is minimised exactly along x, and weights that
//! flip may stop at 0 if that keeps most of the gain.

use caravan_kv::{Cluster, Timestamp, Worker};

use super::plan::Plan;
use super::task::{self, Order, of_rows, rows};
use super::{Kind, Open, change};
use crate::dbpg::train::submit;
use crate::numeric::Scale;

/// Limits of ρ, and where it begins.
const RIDGE: std::ops::RangeInclusive<f64> = 1e-10..=1.0;
pub(super) const RIDGE_BEGIN: f64 = 0.03;

/// How exactly a step is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// The residual at which a solution ends, in relation to the first.
    pub(super) residual_end: f64,
    /// The share of the mean gain of a product that the last one must have.
    pub(super) gain_end: f64,
    /// Most products.
    pub(super) products_max: usize,
    /// Most solutions: after each, weights that flipped are at 0 and have left.
    pub(super) rounds_max: usize,
}

/// A round that gains less than this share of all before it is the last.
const ROUND_END: f64 = 0.01;

/// A weight stops at 0 when a step leaves at most this share of it.
const ARRIVED: f64 = 1e-12;

/// The share of the gain that must be left for flipped weights to stop at 0.
const FLIPPED_KEEP: f64 = 0.7;

/// ρ after a step of share `share` of a solution.
pub(super) fn next_ridge(ridge: f64, share: f64) -> f64 {
    let factor = match share {
        _ if share < 0.1 => 8.0,
        _ if share < 0.5 => 2.0,
        _ if share < 1.0 => 1.0,
        _ => 0.0625,
    };
    (ridge * factor).clamp(*RIDGE.start(), *RIDGE.end())
}

/// The columns of an active set, and their numbers: `[active]`.
struct ActiveSet {
    /// Indices in the plan.
    columns: Vec<usize>,
    /// v.
    iterate: Vec<f64>,
    /// λ of each.
    lambda: Vec<f64>,
    l2: Vec<f64>,
    /// h.
    curvature: Vec<f64>,
    /// Gradient of q.
    gradient: Vec<f64>,
}

/// Products of the Hessian with directions, by the workers.
struct Products<'a> {
    servers: &'a mut Worker,
    open: Open,
    directions: Vec<(u64, usize)>,
    sums: Vec<(u64, usize)>,
    /// Where each block's columns of the active set are.
    ranges: Vec<std::ops::Range<usize>>,
    scale: Scale,
    /// Largest |x_ij|.
    largest: f64,
    clock: u64,
}

impl Products<'_> {
    /// The sums of the next task.
    fn sums(&mut self) -> caravan_kv::Result<Vec<f64>> {
        self.clock += 1;
        let parts = task::pull(self.servers, self.open.blocks, self.clock, &self.sums)?;
        let mut all = vec![0.0; self.ranges.last().map_or(0, |range| range.end)];
        for ((_, block), part) in self.sums.iter().zip(&parts) {
            let own = &mut all[self.ranges[*block].clone()];
            if own.len() != part.len() {
                return Err(caravan_kv::Error::Config(format!(
                    "workers have {} columns of block {block} on the active set, not {}",
                    part.len(),
                    own.len()
                )));
            }
            for (number, sum) in own.iter_mut().zip(part) {
                *number = self.scale.from(*sum);
            }
        }
        Ok(all)
    }

    /// XᵀDX times a direction.
    fn of(&mut self, direction: &[f64]) -> caravan_kv::Result<Vec<f64>> {
        let most = direction.iter().fold(0.0_f64, |most, x| most.max(x.abs())) * self.largest;
        let unit = 2_f64.powi(-(most.max(1e-300).log2().ceil() as i32));
        let bits: Vec<i64> = direction.iter().map(|x| (x * unit).to_bits() as i64).collect();
        let pushed = self.push(&bits, |range| range.len())?;
        let mut product = self.sums()?;
        self.servers.wait(pushed)?;
        product.iter_mut().for_each(|number| *number /= unit);
        Ok(product)
    }

    /// Pushes a direction, or with lengths of 0 the end of all.
    fn push(
        &mut self,
        bits: &[i64],
        length: impl Fn(&std::ops::Range<usize>) -> usize,
    ) -> caravan_kv::Result<Timestamp> {
        self.clock += 1;
        let (keys, lengths) = of_rows(&self.directions, |block| length(&self.ranges[block]));
        let own = self.directions.iter().zip(&lengths);
        let values: Vec<i64> = own
            .flat_map(|((_, block), length)| {
                let begin = self.ranges[*block].start;
                bits.iter().skip(begin).take(*length as usize)
            })
            .copied()
            .collect();
        self.servers.set_clock(self.clock);
        self.servers.push_varying(self.open.blocks, &keys, &lengths, &values)
    }
}

/// Where a step on the active set begins.
pub(super) struct Begin {
    pub(super) ridge: f64,
    pub(super) effort: Effort,
    /// The last task.
    pub(super) clock: u64,
}

/// What a step on the active set has done.
pub(super) struct Faced {
    /// How much q fell.
    pub(super) gain: f64,
    pub(super) ridge: f64,
    /// The last task.
    pub(super) clock: u64,
}

/// Moves v on its active set, at workers and servers.
pub(super) fn run(
    cluster: &mut Cluster,
    servers: &mut Worker,
    open: Open,
    plan: &Plan,
    begin: Begin,
) -> caravan_kv::Result<Option<Faced>> {
    let Begin { ridge, effort, clock } = begin;
    let iterate = plan.iterate(servers, open)?;
    let columns: Vec<usize> =
        (0..iterate.len()).filter(|&k| iterate[k] != 0.0 || plan.is_free(k)).collect();
    if columns.is_empty() {
        return Ok(None);
    }
    let mut begin = 0;
    let ranges = plan.ends.iter().map(|&end| {
        let len = columns[begin..].partition_point(|&k| k < end);
        begin += len;
        begin - len..begin
    });
    let ranges: Vec<_> = ranges.collect();
    let threads = servers.info().servers();
    let active = || (0..ranges.len()).filter(|&block| !ranges[block].is_empty());
    let (directions, sums) =
        (rows(Kind::Direction, threads, active()), rows(Kind::Sum, threads, active()));
    let (scale, largest) = (plan.scale, plan.largest);
    let working = submit(cluster, &Order::Multiply { first: clock + 1 })?;
    let mut products = Products { servers, open, directions, sums, ranges, scale, largest, clock };
    let gradient = products.sums()?;
    let pick = |of: &dyn Fn(usize) -> f64| columns.iter().map(|&k| of(k)).collect::<Vec<f64>>();
    let mut active_set = ActiveSet {
        iterate: pick(&|k| iterate[k]),
        lambda: pick(&|k| plan.penalties(k).lambda),
        l2: pick(&|k| plan.penalties(k).l2),
        curvature: pick(&|k| plan.columns[k].curvature),
        gradient: columns
            .iter()
            .zip(gradient)
            .map(|(&k, g)| g + plan.penalties(k).l2 * iterate[k])
            .collect(),
        columns,
    };
    let (gain, share) = active_set.step(&mut products, ridge, effort)?;
    let ended = products.push(&[], |_| 0)?;
    products.servers.wait(ended)?;
    let clock = products.clock;
    working.wait(cluster)?;
    let mut all = iterate.clone();
    active_set.columns.iter().zip(&active_set.iterate).for_each(|(&k, to)| all[k] = *to);
    let clock = plan.move_to(cluster, servers, open, clock, &all)?;
    Ok(Some(Faced { gain, ridge: next_ridge(ridge, share), clock }))
}

impl ActiveSet {
    /// Minimises q on the active set in rounds. Returns how much it falls, and the share of the
    /// first solution that was taken.
    fn step(
        &mut self,
        products: &mut Products<'_>,
        ridge: f64,
        effort: Effort,
    ) -> caravan_kv::Result<(f64, f64)> {
        let mut total = 0.0;
        let mut first = 0.0;
        let mut left = effort.products_max;
        for round in 0..effort.rounds_max {
            let (gain, share, stopped) = self.round(products, ridge, effort, &mut left)?;
            total += gain;
            if round == 0 {
                first = share;
            }
            if share == 1.0 || !stopped || left == 0 || gain < ROUND_END * total {
                break;
            }
        }
        Ok((total, first))
    }

    /// Takes part of one solution. Returns how much q falls, the share, and whether weights have
    /// stopped at 0.
    fn round(
        &mut self,
        products: &mut Products<'_>,
        ridge: f64,
        effort: Effort,
        left: &mut usize,
    ) -> caravan_kv::Result<(f64, f64, bool)> {
        let n = self.iterate.len();
        let (solution, image) = self.solve(products, ridge, effort, left)?;
        let share = self.share(&solution, &image);
        let step: Vec<f64> = solution.iter().map(|x| share * x).collect();
        let image: Vec<f64> = image.iter().map(|x| share * x).collect();
        let gain = self.gain(&step, &image);
        if gain.is_nan() || gain <= 0.0 {
            return Ok((0.0, 0.0, false));
        }
        let to: Vec<f64> = (0..n).map(|k| self.iterate[k] + step[k]).collect();
        let stops = |k: usize| {
            self.lambda[k] > 0.0
                && to[k] * self.iterate[k] <= ARRIVED * self.iterate[k] * self.iterate[k]
                && self.iterate[k] != 0.0
        };
        let back: Vec<f64> = (0..n).map(|k| if stops(k) { -to[k] } else { 0.0 }).collect();
        if (0..n).any(stops) {
            let mut more = products.of(&back)?;
            for k in 0..n {
                more[k] += image[k] + self.l2[k] * back[k];
            }
            let stopped: Vec<f64> = (0..n).map(|k| step[k] + back[k]).collect();
            let gain_stopped = self.gain(&stopped, &more);
            if gain_stopped >= FLIPPED_KEEP * gain {
                let to: Vec<f64> = (0..n).map(|k| if stops(k) { 0.0 } else { to[k] }).collect();
                self.iterate = to;
                self.gradient.iter_mut().zip(&more).for_each(|(gradient, more)| *gradient += more);
                return Ok((gain_stopped, share, true));
            }
        }
        self.iterate = to;
        self.gradient.iter_mut().zip(&image).for_each(|(gradient, image)| *gradient += image);
        Ok((gain, share, false))
    }

    /// Solves for the weights that are not 0; also returns the Hessian times the solution.
    fn solve(
        &self,
        products: &mut Products<'_>,
        ridge: f64,
        effort: Effort,
        left: &mut usize,
    ) -> caravan_kv::Result<(Vec<f64>, Vec<f64>)> {
        let n = self.iterate.len();
        let on = |k: usize| self.iterate[k] != 0.0 || self.lambda[k] == 0.0;
        let diagonal: Vec<f64> =
            (0..n).map(|k| (1.0 + ridge) * self.curvature[k] + self.l2[k]).collect();
        let down = |k: usize| -(self.gradient[k] + self.lambda[k] * signum(self.iterate[k]));
        let mut residual: Vec<f64> = (0..n).map(|k| if on(k) { down(k) } else { 0.0 }).collect();
        let mut solution = vec![0.0; n];
        let mut image = vec![0.0; n];
        let mut direction: Vec<f64> = (0..n).map(|k| residual[k] / diagonal[k]).collect();
        let mut size = dot(&residual, &direction);
        let first = size;
        let mut gains = 0.0;
        let mut count = 0;
        while *left > 0 && size > 0.0 {
            let mut product = products.of(&direction)?;
            count += 1;
            *left -= 1;
            for k in 0..n {
                product[k] += self.l2[k] * direction[k];
            }
            let ridges = (0..n).map(|k| ridge * self.curvature[k] * direction[k] * direction[k]);
            let curvature = dot(&direction, &product) + ridges.sum::<f64>();
            if !(curvature > 0.0 && curvature.is_finite()) {
                break;
            }
            let length = size / curvature;
            for k in 0..n {
                solution[k] += length * direction[k];
                image[k] += length * product[k];
                if on(k) {
                    residual[k] -= length * (product[k] + ridge * self.curvature[k] * direction[k]);
                }
            }
            let gain = 0.5 * length * size;
            gains += gain;
            let next: f64 = (0..n).map(|k| residual[k] * residual[k] / diagonal[k]).sum();
            let is_slow = gain < effort.gain_end * gains / count as f64;
            if next <= effort.residual_end * effort.residual_end * first || is_slow {
                break;
            }
            for k in 0..n {
                direction[k] = residual[k] / diagonal[k] + next / size * direction[k];
            }
            size = next;
        }
        Ok((solution, image))
    }

    /// How much q falls by a step with this image.
    fn gain(&self, step: &[f64], image: &[f64]) -> f64 {
        let terms = (0..step.len()).map(|k| {
            let gradient = self.gradient[k] + 0.5 * image[k];
            change(self.iterate[k], self.iterate[k] + step[k], step[k], gradient, self.lambda[k])
        });
        -terms.sum::<f64>()
    }

    /// The share of a step, up to 1, at which q is least.
    fn share(&self, step: &[f64], image: &[f64]) -> f64 {
        let mut turns: Vec<(f64, f64)> = Vec::new(); // where a weight is 0, and how the gradient jumps
        let mut gradient = 0.0;
        for (k, &step) in step.iter().enumerate() {
            let sign = signum(if self.iterate[k] == 0.0 { step } else { self.iterate[k] });
            gradient += step * (self.gradient[k] + self.lambda[k] * sign);
            let at = -self.iterate[k] / step;
            if at > 0.0 && at < 1.0 {
                turns.push((at, 2.0 * self.lambda[k] * step.abs()));
            }
        }
        let curvature = dot(step, image);
        turns.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (at, jump) in turns.into_iter().chain([(1.0, 0.0)]) {
            if gradient + curvature * at >= 0.0 {
                return (-gradient / curvature).clamp(0.0, at);
            }
            if gradient + jump + curvature * at >= 0.0 {
                return at;
            }
            gradient += jump;
        }
        1.0
    }
}

/// -1, 0 or 1.
fn signum(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One weight that flips on the way, and one that does not: q is least where its gradient is 0.
    #[test]
    fn the_share_is_where_q_is_least() {
        let active_set = ActiveSet {
            columns: vec![0, 1],
            iterate: vec![1.0, -2.0],
            lambda: vec![0.5, 0.5],
            l2: vec![0.0; 2],
            curvature: vec![1.0; 2],
            gradient: vec![3.0, -1.0],
        };
        for (step, curvature) in
            [([-2.0, 1.0], 1.0), ([-2.0, 1.0], 9.0), ([-0.5, 0.1], 0.1), ([-4.0, 3.0], 0.7)]
        {
            let image = [step[0] * curvature, step[1] * curvature];
            let share = active_set.share(&step, &image);
            let at =
                |share: f64| active_set.gain(&step.map(|x| share * x), &image.map(|x| share * x));
            for other in 0..=1000 {
                let other = f64::from(other) / 1000.0;
                assert!(at(share) >= at(other) - 1e-12, "{step:?} {curvature}: {share} {other}");
            }
        }
    }

    #[test]
    fn a_ridge_grows_after_short_steps_and_stays_in_its_limits() {
        assert_eq!(
            [0.05, 0.3, 0.7, 1.0].map(|share| next_ridge(0.01, share)),
            [0.08, 0.02, 0.01, 0.000625]
        );
        assert_eq!((next_ridge(1.0, 0.0), next_ridge(1e-10, 1.0)), (1.0, 1e-10));
    }
}
