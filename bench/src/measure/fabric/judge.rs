//! Which links and hosts of a matrix are slower than the others, beyond noise.
//!
//! A host with a slow card makes all its links slow, and must not be taken for many slow links. So
//! a median polish (Tukey, "Exploratory Data Analysis", 1977) takes the figures apart: what all
//! have in common, what each sender and each receiver adds, and what is left for each link. What
//! is left tells how noisy the matrix is, and which links stand out.

use std::str::FromStr;

/// The least that links may carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Least {
    /// This share of the link in the middle.
    Share(f64),
    /// So many GB/s.
    Rate(f64),
}

impl Least {
    pub(super) fn of(self, middle: f64) -> f64 {
        match self {
            Least::Share(share) => share * middle,
            Least::Rate(rate) => rate,
        }
    }
}

impl FromStr for Least {
    type Err = String;

    fn from_str(text: &str) -> Result<Least, String> {
        let (digits, is_share) = text.strip_suffix('%').map_or((text, false), |text| (text, true));
        let number = digits.parse().ok().filter(|number: &f64| *number > 0.0);
        match (number, is_share) {
            (Some(percent), true) if percent <= 100.0 => Ok(Least::Share(percent / 100.0)),
            (Some(rate), false) if rate.is_finite() => Ok(Least::Rate(rate)),
            _ => {
                Err(format!("{text:?} is neither a share of the median, as 90%, nor GB/s, as 11.5"))
            }
        }
    }
}

/// Slowness of each link, from a host (outer) to a host (inner), as a logarithm: higher is slower.
/// A host has no link to itself.
pub(super) type Matrix = Vec<Vec<Option<f64>>>;

/// What a matrix says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    /// How much slower each sender is than the others, and each receiver.
    pub(super) hosts: [Vec<f64>; 2],
    /// How much slower each link is than its sender and its receiver account for.
    pub(super) links: Matrix,
    /// What noise alone does not make of a link, and of a host.
    pub(super) limits: [f64; 2],
}

/// Changes that are smaller are never called slow.
const SLOWER_MIN: f64 = 0.05;
/// So many standard deviations noise alone does not make in a matrix of thousands of links.
const DEVIATIONS: f64 = 5.0;
/// With fewer hosts, a slow link cannot be told from a slow host.
pub(super) const HOSTS_MIN: usize = 4;
/// Sweeps over rows and columns; few are needed.
const SWEEPS: usize = 10;

impl Judged {
    /// Takes a matrix apart. `repeats` is how far its figures swing between repeats, as a standard
    /// deviation; of few hosts it tells more than what is left of them.
    pub(super) fn of(matrix: &Matrix, repeats: f64) -> Judged {
        let count = matrix.len();
        let mut links = matrix.clone();
        let mut hosts = [vec![0.0; count], vec![0.0; count]];
        for _ in 0..SWEEPS {
            for at in 0..count {
                let typical = median(links[at].iter().flatten().copied());
                links[at].iter_mut().flatten().for_each(|left| *left -= typical);
                hosts[0][at] += typical;
            }
            for at in 0..count {
                let typical = median(links.iter().filter_map(|row| row[at]));
                links.iter_mut().filter_map(|row| row[at].as_mut()).for_each(|l| *l -= typical);
                hosts[1][at] += typical;
            }
        }
        for effects in &mut hosts {
            let typical = median(effects.iter().copied());
            effects.iter_mut().for_each(|effect| *effect -= typical);
        }
        let apart = links.iter().flatten().flatten().map(|left| left.abs());
        // Of normal noise this factor makes a standard deviation.
        let deviation = repeats.max(1.4826 * median(apart));
        let of_host = deviation * 1.2533 / (count.max(2) as f64 - 1.0).sqrt();
        let limits = [deviation, of_host].map(|noise| SLOWER_MIN.max(DEVIATIONS * noise));
        Judged { hosts, links, limits }
    }

    /// Whether a link is slower than its hosts account for.
    pub(super) fn is_slow(&self, from: usize, to: usize) -> bool {
        self.links.len() >= HOSTS_MIN
            && self.links[from][to].is_some_and(|left| left > self.limits[0])
    }

    /// Hosts that send (0) or receive (1) more slowly than the others, with by how much.
    pub(super) fn slow_hosts(&self, direction: usize) -> impl Iterator<Item = (usize, f64)> {
        let is_slow =
            |(_, effect): &(usize, f64)| self.links.len() >= HOSTS_MIN && *effect > self.limits[1];
        self.hosts[direction].iter().copied().enumerate().filter(is_slow)
    }
}

/// How far the medians of repeated figures swing, as a standard deviation of their logarithms; 0 of
/// figures without repeats. Half of the links may have been held up.
pub(super) fn repeats_deviation<'a>(links: impl Iterator<Item = &'a Vec<f64>>) -> f64 {
    let mut repeats = 0;
    let variances: Vec<f64> = links
        .filter(|figures| figures.len() > 1)
        .map(|figures| {
            repeats = figures.len();
            let count = figures.len() as f64;
            let mean = figures.iter().map(|figure| figure.ln()).sum::<f64>() / count;
            figures.iter().map(|figure| (figure.ln() - mean).powi(2)).sum::<f64>() / (count - 1.0)
        })
        .collect();
    if repeats == 0 {
        return 0.0;
    }
    // The median of a variance lies below its mean (Wilson and Hilferty, 1931).
    let free = repeats as f64 - 1.0;
    let low = (1.0 - 2.0 / (9.0 * free)).powi(3);
    1.2533 * (median(variances.into_iter()) / low / repeats as f64).sqrt()
}

/// The value in the middle, of an even number the mean of the two; 0 if there are none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        even if even.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use caravan_kv::filter::Draws;

    use super::*;

    /// A matrix whose links are measured three times each, of which the median counts. A time has
    /// noise of 1 %, one in fifty is held up by as much as 5 %, and hosts differ by up to 2 %.
    fn matrix(hosts: usize, seed: u64) -> Matrix {
        let mut draws = Draws::new(seed, 1);
        let mut even = move |most: f64| (draws.next_unit() * 2.0 - 1.0) * most;
        let own: Vec<f64> = (0..hosts).map(|_| even(0.02)).collect();
        let mut once = || {
            let noise = (0..12).map(|_| even(0.5)).sum::<f64>() * 0.01;
            noise + if even(1.0) > 0.96 { even(0.05).abs() } else { 0.0 }
        };
        let mut link = |from: usize, to: usize| {
            let measured = median([once(), once(), once()].into_iter());
            (from != to).then_some(own[from] + own[to] + measured)
        };
        (0..hosts).map(|from| (0..hosts).map(|to| link(from, to)).collect()).collect()
    }

    fn slow_links(judged: &Judged) -> Vec<(usize, usize)> {
        let count = judged.links.len();
        let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        all.filter(|(from, to)| judged.is_slow(*from, *to)).collect()
    }

    /// Goal: what users rely on, in 20 matrices of 64 hosts and of 8 each: a link that is 10 % slow
    /// is found, and nothing else is said.
    #[test]
    fn a_slow_link_is_found_and_no_other() {
        for hosts in [8, 64] {
            for seed in 0..20 {
                let mut matrix = matrix(hosts, seed);
                let none = Judged::of(&matrix, 0.0);
                assert_eq!(slow_links(&none), [], "{hosts} hosts, seed {seed}");
                let at = seed as usize;
                let (from, to) = (at % hosts, (at * 5 + 1 + at % hosts) % hosts);
                let to = if from == to { (to + 1) % hosts } else { to };
                *matrix[from][to].as_mut().unwrap() += -(0.9_f64.ln());
                let one = Judged::of(&matrix, 0.0);
                assert_eq!(slow_links(&one), [(from, to)], "{hosts} hosts, seed {seed}");
                for judged in [none, one] {
                    let slow = [0, 1].map(|direction| judged.slow_hosts(direction).count());
                    assert_eq!(slow, [0, 0], "{hosts} hosts, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_slow_host_is_no_slow_link() {
        for direction in [0, 1] {
            let mut matrix = matrix(16, 3);
            for other in (0..16).filter(|other| *other != 5) {
                let (from, to) = if direction == 0 { (5, other) } else { (other, 5) };
                *matrix[from][to].as_mut().unwrap() += 0.2;
            }
            let judged = Judged::of(&matrix, 0.0);
            assert_eq!(slow_links(&judged), []);
            let slow: Vec<usize> = judged.slow_hosts(direction).map(|(host, _)| host).collect();
            assert_eq!(slow, [5]);
            assert_eq!(judged.slow_hosts(1 - direction).count(), 0);
        }
    }

    #[test]
    fn repeats_that_swing_are_noise() {
        let mut draws = Draws::new(4, 1);
        let mut once = || {
            let noise = (0..12).map(|_| draws.next_unit() - 0.5).sum::<f64>();
            (0.1 * noise).exp()
        };
        let links: Vec<Vec<f64>> = (0..500).map(|_| vec![once(), once(), once()]).collect();
        let medians = links.iter().map(|link| median(link.iter().map(|v| v.ln())));
        let expected = (medians.map(|median| median.powi(2)).sum::<f64>() / 500.0).sqrt();
        let found = repeats_deviation(links.iter());
        assert!((found / expected - 1.0).abs() < 0.15, "{found} {expected}");
        assert_eq!(repeats_deviation([vec![1.0]].iter()), 0.0);
        let mut few = vec![vec![Some(0.0); 4]; 4];
        few[1][2] = Some(0.3);
        assert_eq!(slow_links(&Judged::of(&few, 0.0)), [(1, 2)]);
        assert_eq!(slow_links(&Judged::of(&few, 0.1)), []);
    }

    #[test]
    fn small_and_broken_matrices_are_no_trouble() {
        for matrix in [
            vec![],
            vec![vec![None]],
            vec![vec![None, Some(1.0)], vec![Some(9.0), None]],
            vec![vec![Some(f64::NAN); 5]; 5],
            vec![vec![None; 5]; 5],
        ] {
            let judged = Judged::of(&matrix, 0.0);
            assert_eq!(slow_links(&judged), [], "{matrix:?}");
        }
    }
}
