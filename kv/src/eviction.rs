//! EvictionRule of a table: which keys get rows, and which rows go.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::table::{Store, TableSpec};

/// Which keys get rows (admission), and which rows go (eviction). What is not named limits nothing.
///
/// A push of a key that gets no row is acknowledged and not applied. A row that goes is gone with
/// its hidden values, and its key reads as new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvictionRule {
    /// A key gets a row with the push that names it for the n-th time, 1 to 255. Servers count in a
    /// count-min sketch, so some keys get one too early and none too late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushes_min: Option<u8>,
    /// Cells of that sketch at each shard, a byte each; 2^20 if not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cells: Option<u32>,
    /// A key that has none gets a row with a push at this probability, above 0 and at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Time to live: a row goes that no push has named for more than this many clocks, at most a
    /// quarter of them later. Time is the highest clock of any push to the shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_max: Option<u64>,
    /// A row goes whose score falls below this, once the clock of the shard rises. A score is the
    /// number of pushes, each times `decay` for every clock since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_min: Option<f32>,
    /// Above 0 and at most 1; 1 if not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<f32>,
    /// Most bytes of all rows with their keys, hidden values and scores, and of the sketches. Each
    /// shard has a share by the length of its key range. Rows with the lowest scores go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

impl EvictionRule {
    /// Most cells of a sketch.
    pub const CELLS_MAX: u32 = 1 << 30;

    pub(crate) fn cells(&self) -> u32 {
        self.cells.unwrap_or(1 << 20)
    }

    pub(crate) fn decay(&self) -> f32 {
        self.decay.unwrap_or(1.0)
    }

    /// Checks that a table can have this eviction.
    ///
    /// # Errors
    /// [`Error::Config`] names the table, the setting and what is allowed.
    pub(crate) fn check(&self, spec: &TableSpec) -> Result<()> {
        let EvictionRule { pushes_min, cells, probability, score_min, decay, .. } = *self;
        let is_share = |share: f64| share > 0.0 && share <= 1.0;
        let why = if spec.store == Store::Dense {
            "a dense table has all of its rows".to_owned()
        } else if pushes_min == Some(0) {
            "pushes_min is 0, and must be 1 to 255".to_owned()
        } else if let Some(cells) = cells.filter(|it| !(1..=Self::CELLS_MAX).contains(it)) {
            format!("cells is {cells}, and must be 1 to {}", Self::CELLS_MAX)
        } else if let Some(share) = probability.filter(|it| !is_share(*it)) {
            format!("probability is {share}, and must be above 0 and at most 1")
        } else if let Some(decay) = decay.filter(|it| !is_share(f64::from(*it))) {
            format!("decay is {decay}, and must be above 0 and at most 1")
        } else if let Some(least) = score_min.filter(|it| !(it.is_finite() && *it >= 0.0)) {
            format!("score_min is {least}, and must be a number from 0 on")
        } else {
            return Ok(());
        };
        Err(Error::Config(format!("table {} cannot have this eviction: {why}", spec.name)))
    }
}
