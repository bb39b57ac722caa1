//! Where a task has its model, by the hint that it gives.

use std::fmt;
use std::str::FromStr;

use caravan_kv::consistency::Model;
use serde::{Deserialize, Serialize};

/// Where the model is, and what threads may do to it at once (FlexPS's frameworks).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Hint {
    /// On the servers; all workers train.
    #[default]
    Ps,
    /// In one worker, which trains all data in one thread: the run of [`super::serial()`] with one
    /// part.
    Seq,
    /// In one worker. A thread for each part changes it number by number, without locks or order
    /// (Niu et al., "Hogwild!", 2011): no change is lost, and any may be seen at any time.
    Hogwild,
    /// In one worker. A thread for each part, under the job's consistency model: under BSP the run
    /// of [`super::serial()`] with these parts.
    Spmt,
}

const NAMES: [(Hint, &str); 4] =
    [(Hint::Ps, "ps"), (Hint::Seq, "seq"), (Hint::Hogwild, "hogwild"), (Hint::Spmt, "spmt")];

impl Hint {
    /// What a row says of a run under this model.
    pub fn under(self, model: Model) -> String {
        match self {
            Hint::Ps => model.to_string(),
            Hint::Spmt => format!("spmt {model}"),
            Hint::Seq | Hint::Hogwild => self.to_string(),
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(hint, _)| hint == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Hint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(_, name)| *name == text);
        let wrong = || format!("{text} is none of ps, seq, hogwild and spmt");
        found.map(|(hint, _)| *hint).ok_or_else(wrong)
    }
}
