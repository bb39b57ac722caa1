//! How well topics foretell documents: perplexity by document completion (Wallach et al.,
//! "Evaluation methods for topic models", 2009).

use super::{Corpus, Lda};
use crate::model::RowModel;
use crate::trainer::Trainer;
use crate::{Error, Result};

/// Steps of expectation and maximisation for the topics of a document.
const STEPS: usize = 30;

/// The words of topics, from a trained model.
#[derive(Debug)]
pub struct Topics {
    topics: usize,
    alpha: f64,
    /// `[words * topics]`: p(w | k).
    shares: Vec<f64>,
}

/// What topics foretell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Foretold {
    /// Documents of at least two known tokens.
    pub documents: u64,
    /// Their tokens that were foretold: every second.
    pub tokens: u64,
    /// exp(−mean log probability) of these.
    pub perplexity: f64,
}

impl Topics {
    /// Reads them from a model of `lda`.
    ///
    /// # Errors
    /// [`Error::OtherModel`] says what such a model lacks.
    pub fn of(model: &RowModel) -> Result<Self> {
        let other = |reason| Error::OtherModel { algorithm: Lda::NAME, reason };
        let number = |name: &str| {
            let found = model.settings.get(name).and_then(serde_json::Value::as_f64);
            let found = found.filter(|number| *number > 0.0);
            found.ok_or_else(|| other(format!("its setting {name} is no number above 0")))
        };
        let (alpha, beta) = (number("alpha")?, number("beta")?);
        let topics = model.rows.width;
        let words = model.rows.keys.len().saturating_sub(1);
        let is_whole = (0..=words as u64).eq(model.rows.keys.iter().copied());
        let (counts, totals) = model.rows.values.split_at(words * topics);
        if words == 0 || !is_whole {
            let reason = "it has no row for each word, and one with the totals";
            return Err(other(reason.to_owned()));
        }
        let share = |(at, count): (usize, &f64)| {
            (count + beta) / (totals[at % topics] + beta * words as f64)
        };
        let shares = counts.iter().enumerate().map(share).collect();
        Ok(Topics { topics, alpha, shares })
    }

    /// p(w | k) of all topics k.
    pub fn shares(&self, word: u32) -> Option<&[f64]> {
        self.shares.chunks_exact(self.topics).nth(word as usize)
    }

    /// Finds the topics of each document from its even tokens, and foretells the odd ones. Words
    /// that the model does not have are left out.
    pub fn foretell(&self, corpus: &Corpus) -> Foretold {
        let (mut documents, mut tokens, mut sum) = (0, 0, 0.0);
        for document in 0..corpus.documents() {
            let known: Vec<&[f64]> =
                corpus.document(document).iter().filter_map(|&word| self.shares(word)).collect();
            if known.len() < 2 {
                continue;
            }
            let weights = self.weights(known.iter().step_by(2));
            for shares in known.iter().skip(1).step_by(2) {
                let likely: f64 = shares.iter().zip(&weights).map(|(share, it)| share * it).sum();
                sum += likely.ln();
                tokens += 1;
            }
            documents += 1;
        }
        let perplexity = if tokens > 0 { (-sum / tokens as f64).exp() } else { f64::NAN };
        Foretold { documents, tokens, perplexity }
    }

    /// The topics of a document with these tokens, in shares.
    fn weights<'a>(&self, tokens: impl Iterator<Item = &'a &'a [f64]> + Clone) -> Vec<f64> {
        let even = 1.0 / self.topics as f64;
        let mut weights = vec![even; self.topics];
        for _ in 0..STEPS {
            let mut next = vec![self.alpha; self.topics];
            for shares in tokens.clone() {
                let all: f64 = shares.iter().zip(&weights).map(|(share, it)| share * it).sum();
                let both = shares.iter().zip(&weights);
                next.iter_mut().zip(both).for_each(|(next, (share, it))| *next += share * it / all);
            }
            let all: f64 = next.iter().sum();
            weights = next.into_iter().map(|weight| weight / all).collect();
        }
        weights
    }
}
