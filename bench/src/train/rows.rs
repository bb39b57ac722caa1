//! The rows of training and predicting: what scripts read, and what people do.

use caravan_learn::data::Examples;
use caravan_learn::dbpg::{self, Trained};
use caravan_learn::metrics;
use caravan_learn::model::predict;
use serde::{Deserialize, Serialize};

use crate::report::Shown;

/// The row after each pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pass {
    pub(crate) pass: u64,
    pub(crate) seconds: f64,
    pub(crate) objective: f64,
    pub(crate) relative: f64,
    pub(crate) nnz: usize,
    pub(crate) active: usize,
    pub(crate) violation: f64,
    pub(crate) worker_busy: f64,
    pub(crate) worker_bytes_sent: u64,
    pub(crate) server_bytes_sent: u64,
    pub(crate) lambda: f64,
    pub(crate) delay: u64,
    pub(crate) threshold: f64,
    pub(crate) worker_seconds_min: f64,
    pub(crate) worker_seconds_max: f64,
    pub(crate) server_seconds: f64,
    pub(crate) polish_seconds: f64,
    pub(crate) other_seconds: f64,
    pub(crate) pass_seconds: f64,
    pub(crate) tail_dropped: u64,
}

impl From<&dbpg::Progress> for Pass {
    fn from(progress: &dbpg::Progress) -> Self {
        let times = &progress.times;
        Pass {
            pass: progress.pass,
            seconds: progress.seconds,
            objective: progress.objective,
            relative: progress.relative,
            nnz: progress.nnz,
            active: progress.active,
            violation: progress.violation,
            worker_busy: progress.worker_busy,
            worker_bytes_sent: progress.worker_bytes_sent,
            server_bytes_sent: progress.server_bytes_sent,
            lambda: progress.lambda,
            delay: progress.delay,
            threshold: progress.threshold,
            worker_seconds_min: times.worker_min,
            worker_seconds_max: times.worker_max,
            server_seconds: times.server,
            polish_seconds: times.polish,
            other_seconds: times.other(),
            pass_seconds: times.total,
            tail_dropped: progress.tail_dropped,
        }
    }
}

impl Shown for Pass {
    fn heading(&self) -> Option<String> {
        let heading = "
# objective in sums; KKT filter: its threshold, weights it leaves in, largest violation; time of the pass in s: computing, the least and
# the most busy worker, busiest server thread, Newton steps, other (messages and waiting), all; sent since the start in MB (10^6)
pass   seconds       objective relative      nnz | KKT thr   active    viol | wrk min wrk max  server  newton   other   total | workers  servers";
        Some(heading.to_owned())
    }

    fn text(&self) -> String {
        let [min, max, server] =
            [self.worker_seconds_min, self.worker_seconds_max, self.server_seconds];
        let [polish, other, total] = [self.polish_seconds, self.other_seconds, self.pass_seconds];
        format!(
            "{:<4} {:>9.3} {:>15.8e} {:>8.1e} {:>8} | {:>7.1e} {:>8} {:>7.1e} | {min:>7.3} {max:>7.3} {server:>7.3} {polish:>7.3} {other:>7.3} {total:>7.3} | {:>7.3} {:>8.3}",
            self.pass,
            self.seconds,
            self.objective,
            self.relative,
            self.nnz,
            self.threshold,
            self.active,
            self.violation,
            self.worker_bytes_sent as f64 / 1e6,
            self.server_bytes_sent as f64 / 1e6,
        )
    }
}

/// The row of a filter: what it made of all messages of a training run, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    pub(crate) filter: String,
    pub(crate) worker_bytes_in: u64,
    pub(crate) worker_bytes_out: u64,
    pub(crate) server_bytes_in: u64,
    pub(crate) server_bytes_out: u64,
}

impl From<&dbpg::FilterTraffic> for Traffic {
    fn from(traffic: &dbpg::FilterTraffic) -> Self {
        Traffic {
            filter: traffic.filter.to_owned(),
            worker_bytes_in: traffic.worker_bytes_in,
            worker_bytes_out: traffic.worker_bytes_out,
            server_bytes_in: traffic.server_bytes_in,
            server_bytes_out: traffic.server_bytes_out,
        }
    }
}

impl Shown for Traffic {
    fn heading(&self) -> Option<String> {
        let heading = "
# what each filter made of the messages, in MB (10^6)
filter       | workers in       out    in/out | servers in       out    in/out";
        Some(heading.to_owned())
    }

    fn text(&self) -> String {
        let end = |before: u64, after: u64| {
            let (before, after) = (before as f64 / 1e6, after as f64 / 1e6);
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

/// The last row of training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) algorithm: String,
    pub(crate) objective: f64,
    pub(crate) nnz: usize,
    pub(crate) passes: u64,
    pub(crate) seconds: f64,
    pub(crate) load_seconds: f64,
    pub(crate) peak_rss_mib: f64,
    // Without test examples there is nothing to say.
    pub(crate) test_logloss: Option<f64>,
    pub(crate) test_auc: Option<f64>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) test_pr_auc: Option<f64>,
    pub(crate) lambda: f64,
    pub(crate) intercept: f64,
    pub(crate) converged: bool,
}

impl Outcome {
    /// What training came to, and the model on `test`.
    pub(crate) fn of(trained: &Trained, test: Option<&Examples>) -> Self {
        let measured =
            test.map(|test| Quality::of(test, &predict(&trained.model, test))).unwrap_or_default();
        Outcome {
            algorithm: "dbpg".to_owned(),
            objective: trained.objective,
            nnz: trained.model.nonzeros(),
            passes: trained.passes,
            seconds: trained.seconds,
            load_seconds: trained.load_seconds,
            peak_rss_mib: trained.peak_rss_mib,
            test_logloss: measured.logloss,
            test_auc: measured.auc,
            test_accuracy: measured.accuracy,
            test_pr_auc: measured.pr_auc,
            lambda: trained.lambda,
            intercept: trained.model.intercept(),
            converged: trained.converged,
        }
    }
}

impl Shown for Outcome {
    fn text(&self) -> String {
        let quality = Quality {
            logloss: self.test_logloss,
            auc: self.test_auc,
            accuracy: self.test_accuracy,
            pr_auc: self.test_pr_auc,
        };
        let intercept = match self.intercept {
            0.0 => String::new(),
            intercept => format!(", intercept {intercept:.6}"),
        };
        format!(
            "\n{}: lambda {}, objective {:.10}, {} non-zero weights{intercept}, {} passes in {:.2} s after {:.2} s of loading, {:.0} MiB{}",
            self.algorithm,
            self.lambda,
            self.objective,
            self.nnz,
            self.passes,
            self.seconds,
            self.load_seconds,
            self.peak_rss_mib,
            quality.text("\ntest: ")
        )
    }
}

/// How good margins are; a figure that has no meaning, as the area under a curve of one class, is None.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quality {
    pub(crate) logloss: Option<f64>,
    pub(crate) auc: Option<f64>,
    pub(crate) accuracy: Option<f64>,
    pub(crate) pr_auc: Option<f64>,
}

impl Quality {
    /// Of the margins of all rows, in order.
    pub(crate) fn of(examples: &Examples, margins: &[f64]) -> Self {
        Quality {
            logloss: metrics::log_loss(&examples.labels, margins),
            auc: metrics::auc(&examples.labels, margins),
            accuracy: metrics::accuracy(&examples.labels, margins),
            pr_auc: metrics::pr_auc(&examples.labels, margins),
        }
    }

    /// The figures that there are, behind `lead`; nothing when there are none.
    fn text(&self, lead: &str) -> String {
        let figures = [
            ("logloss", self.logloss),
            ("AUC", self.auc),
            ("PR-AUC", self.pr_auc),
            ("accuracy", self.accuracy),
        ];
        let there = figures
            .iter()
            .filter_map(|(name, figure)| figure.map(|figure| format!("{name} {figure:.6}")));
        let there: Vec<_> = there.collect();
        if there.is_empty() { String::new() } else { format!("{lead}{}", there.join(", ")) }
    }
}

/// The row of `caravan predict`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prediction {
    pub(crate) rows: usize,
    #[serde(flatten)]
    pub(crate) quality: Quality,
}

impl Shown for Prediction {
    fn text(&self) -> String {
        format!("{} rows{}", self.rows, self.quality.text(": "))
    }
}
