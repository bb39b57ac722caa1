//! Collapsed Gibbs sampling of one batch of documents, with the sparse buckets of Yao, Mimno and
//! McCallum, "Efficient methods for topic model inference on streaming document collections", 2009.
//!
//! A token takes topic k with weight (α + n_dk)(β + n_wk) / (n_k + Vβ), without itself in the
//! counts. That is the sum of three buckets, of which two are sparse:
//!
//! ```text
//! s_k = αβ / (n_k + Vβ)      r_k = n_dk β / (n_k + Vβ)      q_k = (α + n_dk) n_wk / (n_k + Vβ)
//! ```

use caravan_kv::filter::Draws;

/// Priors and sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Priors {
    pub(super) topics: usize,
    pub(super) alpha: f64,
    pub(super) beta: f64,
    /// V β.
    pub(super) beta_sum: f64,
}

/// The counts of a batch: those that were pulled, and then changed by its tokens.
pub(super) struct Sampler {
    priors: Priors,
    /// `[words * topics]`, then `[topics]` totals. A stale count may be below 0; it counts as 0.
    pub(super) counts: Vec<i32>,
    /// Topics with a count above 0, of each word.
    present: Vec<Vec<u16>>,
    /// Σ s_k.
    smoothing: f64,
    // Of the document at hand.
    in_document: Vec<u32>,
    /// (α + n_dk) / (n_k + Vβ).
    coefficients: Vec<f64>,
    /// Topics with n_dk above 0.
    active: Vec<u16>,
    /// Σ r_k.
    of_document: f64,
}

impl Sampler {
    pub(super) fn new(priors: Priors, counts: Vec<i32>) -> Self {
        let topics = priors.topics;
        let words = counts.len() / topics - 1;
        let present = counts[..words * topics].chunks_exact(topics).map(|row| {
            let topics = (0_u16..).zip(row).filter(|(_, count)| **count > 0);
            topics.map(|(topic, _)| topic).collect()
        });
        let present = present.collect();
        let mut sampler = Sampler {
            priors,
            present,
            counts,
            smoothing: 0.0,
            in_document: vec![0; topics],
            coefficients: vec![0.0; topics],
            active: Vec::new(),
            of_document: 0.0,
        };
        let share = |topic| priors.alpha * priors.beta / sampler.denominator(topic);
        sampler.smoothing = (0..topics).map(share).sum();
        sampler
    }

    /// Draws a topic for each token of a document. `words` are rows of the counts.
    pub(super) fn document(&mut self, words: &[u32], assigned: &mut [u16], draws: &mut Draws) {
        self.enter(assigned);
        for (&word, topic) in words.iter().zip(assigned) {
            let word = word as usize;
            self.remove(word, usize::from(*topic));
            let drawn = self.draw(word, draws.next_unit());
            self.add(word, drawn);
            *topic = drawn as u16;
        }
    }

    /// Draws a first topic for each token of a document, all alike, and counts it.
    pub(super) fn begin(&mut self, words: &[u32], assigned: &mut [u16], draws: &mut Draws) {
        self.enter(&[]);
        for (&word, topic) in words.iter().zip(assigned) {
            let drawn = (draws.next_unit() * self.priors.topics as f64) as usize;
            self.add(word as usize, drawn);
            *topic = drawn as u16;
        }
    }

    /// Tokens of each topic in the last document.
    pub(super) fn in_document(&self) -> &[u32] {
        &self.in_document
    }

    fn denominator(&self, topic: usize) -> f64 {
        let totals = self.counts.len() - self.priors.topics;
        f64::from(self.counts[totals + topic].max(0)) + self.priors.beta_sum
    }

    /// Begins a document whose tokens have these topics.
    fn enter(&mut self, assigned: &[u16]) {
        self.in_document.fill(0);
        self.active.clear();
        for &topic in assigned {
            let count = &mut self.in_document[usize::from(topic)];
            if *count == 0 {
                self.active.push(topic);
            }
            *count += 1;
        }
        self.of_document = 0.0;
        for topic in 0..self.priors.topics {
            self.coefficients[topic] = self.coefficient(topic);
            self.of_document += self.share_of_document(topic);
        }
    }

    fn coefficient(&self, topic: usize) -> f64 {
        (self.priors.alpha + f64::from(self.in_document[topic])) / self.denominator(topic)
    }

    fn share_of_document(&self, topic: usize) -> f64 {
        f64::from(self.in_document[topic]) * self.priors.beta / self.denominator(topic)
    }

    fn remove(&mut self, word: usize, topic: usize) {
        self.change(word, topic, -1);
        if self.in_document[topic] == 0 {
            self.active.retain(|&other| usize::from(other) != topic);
        }
        if self.counts[word * self.priors.topics + topic] == 0 {
            self.present[word].retain(|&other| usize::from(other) != topic);
        }
    }

    fn add(&mut self, word: usize, topic: usize) {
        self.change(word, topic, 1);
        if self.in_document[topic] == 1 {
            self.active.push(topic as u16);
        }
        if self.counts[word * self.priors.topics + topic] == 1 {
            self.present[word].push(topic as u16);
        }
    }

    /// Changes the counts of a word's token, and the sums of buckets.
    fn change(&mut self, word: usize, topic: usize, by: i32) {
        let prior = self.priors.alpha * self.priors.beta;
        self.smoothing -= prior / self.denominator(topic);
        self.of_document -= self.share_of_document(topic);
        let topics = self.priors.topics;
        let total = self.counts.len() - topics + topic;
        self.counts[word * topics + topic] += by;
        self.counts[total] += by;
        self.in_document[topic] = self.in_document[topic].wrapping_add_signed(by);
        self.smoothing += prior / self.denominator(topic);
        self.of_document += self.share_of_document(topic);
        self.coefficients[topic] = self.coefficient(topic);
    }

    /// The topic at `unit`, from 0 to 1, of all weight. The sparse buckets come first: they have
    /// most of it.
    fn draw(&self, word: usize, unit: f64) -> usize {
        let row = &self.counts[word * self.priors.topics..][..self.priors.topics];
        let present = &self.present[word];
        let weight = |topic: u16| {
            let topic = usize::from(topic);
            self.coefficients[topic] * f64::from(row[topic])
        };
        let of_word: f64 = present.iter().map(|&topic| weight(topic)).sum();
        let mut left = unit * (of_word + self.of_document + self.smoothing);
        for &topic in present {
            left -= weight(topic);
            if left < 0.0 {
                return usize::from(topic);
            }
        }
        for &topic in &self.active {
            left -= self.share_of_document(usize::from(topic));
            if left < 0.0 {
                return usize::from(topic);
            }
        }
        for topic in 0..self.priors.topics {
            left -= self.priors.alpha * self.priors.beta / self.denominator(topic);
            if left < 0.0 {
                return topic;
            }
        }
        self.priors.topics - 1 // only by rounding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Even draws meet each topic as often as the dense formula says, with counts below 0 too.
    #[test]
    fn buckets_have_the_weights_of_the_dense_formula() {
        let (topics, beta, words) = (5, 0.1, 3_usize);
        let priors = Priors { topics, alpha: 0.3, beta, beta_sum: beta * words as f64 };
        #[rustfmt::skip]
        let counts = vec![
            4, 0, 1, 0, 2,
            0, 0, 3, -1, 0,
            1, 2, 0, 0, 1,
            5, 2, 4, -1, 3,
        ];
        let mut sampler = Sampler::new(priors, counts);
        let mut assigned = [0, 2, 2, 4];
        let tokens = [0, 0, 1, 2];
        sampler.enter(&assigned);
        for (&word, topic) in tokens.iter().zip(&mut assigned) {
            sampler.remove(word, usize::from(*topic));
            let dense: Vec<f64> = (0..topics)
                .map(|k| {
                    let count = f64::from(sampler.counts[word * topics + k].max(0));
                    let in_document = f64::from(sampler.in_document[k]);
                    let total = f64::from(sampler.counts[words * topics + k].max(0));
                    (0.3 + in_document) * (beta + count) / (total + priors.beta_sum)
                })
                .collect();
            let sum: f64 = dense.iter().sum();
            let draws = 100_000;
            let mut met = vec![0.0; topics];
            for at in 0..draws {
                met[sampler.draw(word, (f64::from(at) + 0.5) / f64::from(draws))] += 1.0;
            }
            for (met, weight) in met.iter().zip(dense) {
                assert!((met / f64::from(draws) - weight / sum).abs() < 1e-4, "{word}");
            }
            *topic = (*topic + 1) % topics as u16;
            sampler.add(word, usize::from(*topic));
        }
        assert_eq!(sampler.in_document().iter().sum::<u32>(), 4);
    }
}
