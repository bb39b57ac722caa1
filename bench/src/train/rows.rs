//! The rows of training and predicting.

use anyhow::{Result, bail, ensure};
use caravan_learn::data::Examples;
use caravan_learn::dbpg::{FilterTraffic, Progress, Trained};
use caravan_learn::lda::Foretold;
use caravan_learn::metrics;
use caravan_learn::model::predict;
use caravan_learn::sgd::Loss;
use serde::Serialize;

use crate::report::Row;

impl Row for Progress {
    const KIND: &'static str = "progress";

    fn heading(&self) -> Option<String> {
        let heading = "\n\
            # objective in sums; KKT filter: its threshold, weights it leaves in, largest violation; \
            time of the pass in s: computing, the least and\n\
            # the most busy worker, busiest server thread, Newton steps, \
            other (messages and waiting), all; sent since the start in MB (10^6)\n\
            pass   seconds       objective relative      nnz | KKT thr   active    viol | \
            wrk min wrk max  server  newton   other   total | workers  servers";
        Some(heading.to_owned())
    }

    fn text(&self) -> String {
        let Progress { pass, seconds, objective, relative, nnz, .. } = self;
        let Progress { threshold, active, violation, times, .. } = self;
        let seconds_of =
            [times.worker_min, times.worker_max, times.server, times.polish, times.other];
        let parts = seconds_of.map(|seconds| format!("{seconds:>7.3} ")).concat();
        let sent = [self.worker_bytes_sent, self.server_bytes_sent];
        let [workers, servers] = sent.map(|bytes| bytes as f64 / 1e6);
        format!(
            "{pass:<4} {seconds:>9.3} {objective:>15.8e} {relative:>8.1e} {nnz:>8} | \
             {threshold:>7.1e} {active:>8} {violation:>7.1e} | {parts}{:>7.3} | \
             {workers:>7.3} {servers:>8.3}",
            times.total
        )
    }
}

/// The row of a filter: what it made of all messages of a training run, in bytes.
impl Row for FilterTraffic {
    const KIND: &'static str = "traffic";

    fn heading(&self) -> Option<String> {
        let heading = "
# what each filter made of the messages, in MB (10^6)
filter       | workers in       out    in/out | servers in       out    in/out";
        Some(heading.to_owned())
    }

    fn text(&self) -> String {
        let end = |before: u64, after: u64| {
            let before = before as f64 / 1e6;
            let after = after as f64 / 1e6;
            let ratio = if after > 0.0 { before / after } else { 1.0 };
            format!("{before:>10.3} {after:>9.3} {ratio:>9.2}")
        };
        format!(
            "{:<12} | {} | {}",
            self.filter,
            end(self.worker_bytes_in, self.worker_bytes_out),
            end(self.server_bytes_in, self.server_bytes_out)
        )
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    pub(crate) algorithm: String,
    pub(crate) objective: f64,
    pub(crate) nnz: usize,
    pub(crate) passes: u64,
    pub(crate) seconds: f64,
    pub(crate) load_seconds: f64,
    pub(crate) peak_rss_mib: f64,
    // The most that a worker's data took, as it counts; None without --memory.
    pub(crate) worker_memory_mib: Option<f64>,
    // None without test examples.
    pub(crate) test_logloss: Option<f64>,
    pub(crate) test_auc: Option<f64>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) test_pr_auc: Option<f64>,
    pub(crate) lambda: f64,
    pub(crate) intercept: f64,
    pub(crate) converged: bool,
    // The objective is at most this far above the least; None where that is unknown.
    pub(crate) bound: Option<f64>,
}

impl Outcome {
    /// The result of training, and the model's quality on `test`.
    ///
    /// # Errors
    /// As [`Quality::of`].
    pub(crate) fn of(trained: &Trained, test: Option<&Examples>) -> Result<Self> {
        let of = |test| Quality::of(Loss::Logistic, test, &predict(&trained.model, test));
        let measured = test.map_or_else(|| Ok(Quality::default()), of)?;
        Ok(Outcome {
            algorithm: "dbpg".to_owned(),
            objective: trained.objective,
            nnz: trained.model.nonzeros(),
            passes: trained.passes,
            seconds: trained.seconds,
            load_seconds: trained.load_seconds,
            peak_rss_mib: trained.peak_rss_mib,
            worker_memory_mib: trained.data_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)),
            test_logloss: measured.logloss,
            test_auc: measured.auc,
            test_accuracy: measured.accuracy,
            test_pr_auc: measured.pr_auc,
            lambda: trained.lambda,
            intercept: trained.model.intercept(),
            converged: trained.converged,
            bound: bound(trained),
        })
    }
}

/// How far above the least the objective is at most, where that is known. No objective is below 0,
/// so a bound of all of it says nothing, and without a penalty no other is found.
pub(super) fn bound(trained: &Trained) -> Option<f64> {
    trained.bound.filter(|bound| trained.lambda > 0.0 || *bound < trained.objective)
}

impl Row for Outcome {
    const KIND: &'static str = "result";

    fn text(&self) -> String {
        let quality = Quality {
            logloss: self.test_logloss,
            auc: self.test_auc,
            accuracy: self.test_accuracy,
            pr_auc: self.test_pr_auc,
            rmse: None,
        };
        let intercept = match self.intercept {
            0.0 => String::new(),
            intercept => format!(", intercept {intercept:.6}"),
        };
        let Outcome { algorithm, lambda, objective, nnz, passes, .. } = self;
        let Outcome { seconds, load_seconds, peak_rss_mib, .. } = self;
        let of_worker = match self.worker_memory_mib {
            Some(mib) => format!(" ({mib:.0} counted at a worker)"),
            None => String::new(),
        };
        let bound = match self.bound {
            Some(bound) => format!(" (at most {:.1e} of it above the least)", bound / objective),
            None => " (no bound tells how far above the least)".to_owned(),
        };
        format!(
            "\n{algorithm}: lambda {lambda}, objective {objective:.10}{bound}, {nnz} non-zero weights\
             {intercept}, {passes} passes in {seconds:.2} s after {load_seconds:.2} s of loading, \
             {peak_rss_mib:.0} MiB{of_worker}{}",
            quality.text("\ntest: ")
        )
    }
}

/// A figure, which no row can have if it is not finite.
///
/// # Errors
/// Its name.
pub(crate) fn finite(name: &str, figure: Option<f64>) -> Result<Option<f64>> {
    ensure!(figure.is_none_or(f64::is_finite), "the {name} is not finite: scale the data");
    Ok(figure)
}

/// The quality of margins. A figure without a meaning is None, as the AUC of a single class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Quality {
    pub(crate) logloss: Option<f64>,
    pub(crate) auc: Option<f64>,
    pub(crate) accuracy: Option<f64>,
    pub(crate) pr_auc: Option<f64>,
    pub(crate) rmse: Option<f64>,
}

impl Quality {
    /// Of the margins of all rows, in order.
    ///
    /// # Errors
    /// Names the first row whose margin is not finite.
    pub(crate) fn of(loss: Loss, examples: &Examples, margins: &[f64]) -> Result<Self> {
        if let Some(row) = margins.iter().position(|margin| !margin.is_finite()) {
            bail!(
                "the margin of row {} is {}: the products of its values and the weights are too \
                 large; scale the values, or train again at a lower rate",
                row + 1,
                margins[row]
            );
        }
        let labels = &examples.labels;
        Ok(match loss {
            Loss::Squared => {
                let rmse = finite("RMSE", metrics::rmse(labels, margins))?;
                Quality { rmse, ..Quality::default() }
            }
            Loss::Logistic => Quality {
                logloss: metrics::log_loss(labels, margins),
                auc: metrics::auc(labels, margins),
                accuracy: metrics::accuracy(labels, margins),
                pr_auc: metrics::pr_auc(labels, margins),
                rmse: None,
            },
        })
    }

    /// The figures that have a meaning after `lead`; nothing if none has.
    pub(super) fn text(&self, lead: &str) -> String {
        let figures = [
            ("logloss", self.logloss),
            ("AUC", self.auc),
            ("PR-AUC", self.pr_auc),
            ("accuracy", self.accuracy),
            ("RMSE", self.rmse),
        ];
        let figures = figures
            .iter()
            .filter_map(|(name, figure)| figure.map(|figure| format!("{name} {figure:.6}")));
        let figures: Vec<_> = figures.collect();
        if figures.is_empty() { String::new() } else { format!("{lead}{}", figures.join(", ")) }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Prediction {
    pub(crate) rows: usize,
    #[serde(flatten)]
    pub(crate) quality: Quality,
}

impl Row for Prediction {
    const KIND: &'static str = "predict";

    fn text(&self) -> String {
        format!("{} rows{}", self.rows, self.quality.text(": "))
    }
}

/// How well topics foretell documents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Perplexity {
    documents: u64,
    tokens: u64,
    perplexity: f64,
}

impl Perplexity {
    pub(crate) fn of(Foretold { documents, tokens, perplexity }: Foretold) -> Self {
        Perplexity { documents, tokens, perplexity }
    }
}

impl Row for Perplexity {
    const KIND: &'static str = "perplexity";

    fn text(&self) -> String {
        let Perplexity { documents, tokens, perplexity } = self;
        format!("{documents} documents, {tokens} words foretold: perplexity {perplexity:.3}")
    }
}

/// How near a model of ratings is to others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Rmse {
    pub(crate) ratings: u64,
    pub(crate) rmse: f64,
}

impl Row for Rmse {
    const KIND: &'static str = "rmse";

    fn text(&self) -> String {
        format!("{} ratings: RMSE {:.6}", self.ratings, self.rmse)
    }
}
