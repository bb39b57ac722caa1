//! Topics of documents: latent Dirichlet allocation by collapsed Gibbs sampling, with the counts on
//! the servers (Li et al., OSDI'14 section 5.2; Ahmed et al., WSDM'12).
//!
//! Row w of the table has the counts n_wk of word w, and the row after the last word the totals
//! n_k. A step takes documents whose words are few enough, pulls the rows of these, draws the
//! topics of all their tokens, and pushes the changes. The first pass draws topics evenly and
//! pushes all counts; each other one is a sweep.
//!
//! Between passes Σ_k n_k is the number of tokens and Σ_w n_wk = n_k, exactly, under any model.
//! During a pass a stale count may even be below 0, which counts as 0 for the draw.

mod corpus;
mod evaluate;
mod sampler;

use std::ops::Range;
use std::path::PathBuf;

use caravan_kv::filter::Draws;
use caravan_kv::{TableSpec, ValueType};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};

pub use self::corpus::Corpus;
pub use self::evaluate::{Foretold, Topics};
use self::sampler::{Priors, Sampler};
use crate::data::Shard;
use crate::trainer::{Part, ReadRows, Rows, Step, Sums, Trainer};

/// Id of the table of counts.
const TABLE: u32 = 1;

/// Most topics.
pub const TOPICS_MAX: u32 = 1 << 15;

/// The problem and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Documents in the format of LDA-C, read in this order.
    pub files: Vec<PathBuf>,
    /// One more than the largest word: [`vocabulary`].
    pub words: u64,
    /// K, 1 to [`TOPICS_MAX`].
    pub topics: u32,
    /// Prior of a document's topics, above 0.
    pub alpha: f64,
    /// Prior of a topic's words, above 0.
    pub beta: f64,
    /// Most distinct words of a step, unless one document has more.
    pub step_words: usize,
    /// Determines all draws.
    pub seed: u64,
}

impl Settings {
    /// 100 topics with α = 0.1 and β = 0.01.
    pub fn new(files: Vec<PathBuf>, words: u64) -> Self {
        let [alpha, beta] = [0.1, 0.01];
        Settings { files, words, topics: 100, alpha, beta, step_words: 2048, seed: 1 }
    }

    fn priors(&self) -> Priors {
        let beta_sum = self.beta * self.words as f64;
        Priors { topics: self.topics as usize, alpha: self.alpha, beta: self.beta, beta_sum }
    }

    fn check(&self) -> Result<(), String> {
        let is_prior = |prior: f64| prior > 0.0 && prior.is_finite();
        match () {
            () if !(1..=TOPICS_MAX).contains(&self.topics) => {
                Err(format!("{} topics are not 1 to {TOPICS_MAX}", self.topics))
            }
            () if !is_prior(self.alpha) => {
                Err(format!("alpha is {}, and must be a number above 0", self.alpha))
            }
            () if !is_prior(self.beta) => {
                Err(format!("beta is {}, and must be a number above 0", self.beta))
            }
            () if self.step_words == 0 => Err("a step has at least 1 word, not 0".to_owned()),
            () => Ok(()),
        }
    }
}

/// One more than the largest word of all files.
///
/// # Errors
/// As [`Corpus::read`].
pub fn vocabulary(files: &[PathBuf]) -> crate::Result<u64> {
    Corpus::read(files, Shard::ALL).map(|corpus| corpus.vocabulary())
}

/// Samples one part.
#[derive(Debug)]
pub struct Lda {
    priors: Priors,
    words: u64,
    corpus: Corpus,
    /// `[tokens]`: the topic of each.
    topics: Vec<u16>,
    batches: Vec<Batch>,
    draws: Draws,
}

/// Documents of a step.
#[derive(Debug)]
struct Batch {
    documents: Range<usize>,
    /// Their words, ascending.
    words: Vec<u64>,
    /// `[tokens]`: place of each among `words`.
    places: Vec<u32>,
}

impl Trainer for Lda {
    const NAME: &'static str = "lda";
    type Settings = Settings;
    type Value = i32;
    const REMEDY: &'static str = "take --alpha and --beta nearer to 1";

    fn table(settings: &Settings) -> TableSpec {
        let spec = TableSpec::new(TABLE, "counts", ValueType::I32, settings.topics.max(1));
        // The row after the words has the totals.
        let keys = KeyRange::new(0, settings.words.saturating_add(1)).unwrap_or(KeyRange::ALL);
        spec.keys(keys).dense()
    }

    fn files(settings: &Settings) -> &[PathBuf] {
        &settings.files
    }

    fn load(settings: &Settings, part: &Part) -> Result<Self, String> {
        settings.check()?;
        let corpus = part.read(&settings.files, Corpus::read)?;
        if corpus.vocabulary() > settings.words {
            let word = corpus.vocabulary() - 1;
            return Err(format!("word {word} is not below {}, the vocabulary", settings.words));
        }
        Ok(Lda {
            priors: settings.priors(),
            words: settings.words,
            topics: vec![0; corpus.words.len()],
            batches: batches(&corpus, settings.step_words),
            corpus,
            draws: Draws::new(settings.seed, part.number as u64),
        })
    }

    fn steps(&self) -> u64 {
        self.batches.len() as u64
    }

    fn keys(&self, _pass: u64, step: u64) -> Vec<u64> {
        let words = &self.batches[step as usize].words;
        words.iter().copied().chain([self.words]).collect()
    }

    fn step(&mut self, step: &mut Step<'_, i32>) {
        let batch = &self.batches[step.step as usize];
        let first = self.corpus.starts[batch.documents.start];
        let mut sampler = Sampler::new(self.priors, step.rows.to_vec());
        for document in batch.documents.clone() {
            let tokens = self.corpus.starts[document]..self.corpus.starts[document + 1];
            let places = &batch.places[tokens.start - first..tokens.end - first];
            let topics = &mut self.topics[tokens];
            match step.pass {
                0 => sampler.begin(places, topics, &mut self.draws),
                _ => sampler.document(places, topics, &mut self.draws),
            }
            step.sums.loss -= of_document(&self.priors, sampler.in_document());
            step.sums.examples += topics.len() as u64;
        }
        let changes = step.update.iter_mut().zip(sampler.counts.iter().zip(step.rows));
        changes.for_each(|(update, (new, old))| *update = new - old);
    }

    /// The negative logarithm of the joint probability of words and topics.
    fn objective(
        settings: &Settings,
        sums: &Sums,
        rows: &mut ReadRows<'_, i32>,
    ) -> caravan_kv::Result<f64> {
        Ok(sums.loss - of_words(&settings.priors(), settings.words, &rows()?))
    }
}

/// Cuts documents into batches of few enough words.
fn batches(corpus: &Corpus, words_max: usize) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut first = 0;
    let mut words: Vec<u32> = Vec::new();
    for document in 0..corpus.documents() {
        let mut with: Vec<u32> = [&words[..], corpus.document(document)].concat();
        with.sort_unstable();
        with.dedup();
        if with.len() > words_max && document > first {
            batches.push(batch(corpus, first..document, &words));
            first = document;
            with = corpus.document(document).to_vec();
            with.sort_unstable();
            with.dedup();
        }
        words = with;
    }
    if first < corpus.documents() {
        batches.push(batch(corpus, first..corpus.documents(), &words));
    }
    batches
}

fn batch(corpus: &Corpus, documents: Range<usize>, words: &[u32]) -> Batch {
    let tokens = &corpus.words[corpus.starts[documents.start]..corpus.starts[documents.end]];
    let place = |word: &u32| words.partition_point(|other| other < word) as u32;
    Batch {
        documents,
        places: tokens.iter().map(place).collect(),
        words: words.iter().copied().map(u64::from).collect(),
    }
}

/// log p(z_d): the topics of a document's tokens.
fn of_document(priors: &Priors, in_document: &[u32]) -> f64 {
    let Priors { alpha, topics, .. } = *priors;
    let all = topics as f64 * alpha;
    let tokens: u32 = in_document.iter().sum();
    let of = |count: &u32| libm::lgamma(f64::from(*count) + alpha) - libm::lgamma(alpha);
    let present = in_document.iter().filter(|count| **count > 0);
    libm::lgamma(all) - libm::lgamma(f64::from(tokens) + all) + present.map(of).sum::<f64>()
}

/// log p(w | z): the words of all topics' tokens.
fn of_words(priors: &Priors, words: u64, rows: &Rows<i32>) -> f64 {
    let Priors { beta, beta_sum, topics, .. } = *priors;
    let prior = libm::lgamma(beta);
    let mut sum = topics as f64 * libm::lgamma(beta_sum);
    for (word, row) in rows.iter() {
        if word == words {
            sum -= row.iter().map(|&n| libm::lgamma(f64::from(n) + beta_sum)).sum::<f64>();
            continue;
        }
        let present = row.iter().filter(|count| **count > 0);
        sum += present.map(|&n| libm::lgamma(f64::from(n) + beta) - prior).sum::<f64>();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tokens of one document, all their topics counted: probabilities are those of the urns.
    #[test]
    fn likelihoods_are_those_of_polya_urns() {
        let priors = Priors { topics: 3, alpha: 0.5, beta: 0.25, beta_sum: 1.0 };
        let same = of_document(&priors, &[2, 0, 0]).exp();
        let other = of_document(&priors, &[1, 1, 0]).exp();
        assert!((same - 0.5 / 1.5 * 1.5 / 2.5).abs() < 1e-12);
        assert!((other - 0.5 / 1.5 * 0.5 / 2.5).abs() < 1e-12);
        assert!((3.0 * same + 6.0 * other - 1.0).abs() < 1e-12);
        // Words 0 and 0 of topic 0, of four words: 1/4, then (1 + β) / (1 + 4β).
        let counts = vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0];
        let rows = Rows { keys: (0..5).collect(), values: counts, width: 3 };
        let found = of_words(&priors, 4, &rows).exp();
        assert!((found - 0.25 * 1.25 / 2.0).abs() < 1e-12, "{found}");
    }
}
