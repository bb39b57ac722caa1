//! A table's consistency model as its specification names it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{
    Asp, BoundedDelay, Bsp, Controller, DataCentric, MapRecorder, RingRecorder, SparseSsp, Ssp,
};
use caravan_van::KeyRange;

/// A model with its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Model {
    /// [`Bsp`].
    Bsp,
    /// [`Ssp`].
    Ssp {
        /// Clocks that a reader may be ahead of the slowest worker.
        staleness: u64,
    },
    /// [`Asp`].
    Asp,
    /// [`BoundedDelay`].
    BoundedDelay {
        /// Clocks that any request may be ahead of the slowest worker.
        delay: u64,
    },
    /// [`SparseSsp`].
    SparseSsp {
        /// Clocks that a reader may be ahead of the slowest worker.
        staleness: u64,
        /// Clocks more for readers whose keys no slower worker touches, 1,000 at most.
        speculation: u64,
    },
    /// [`DataCentric`].
    DataCentric {
        /// Iterations by which reads and writes may be late; none for no bound.
        #[serde(default)]
        delay: Option<u64>,
        /// Keys of a chunk, at least 1: key `k` is in chunk `k / chunk_keys`.
        chunk_keys: u64,
    },
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Model::Bsp => write!(f, "BSP"),
            Model::Ssp { staleness } => write!(f, "SSP({staleness})"),
            Model::Asp => write!(f, "ASP"),
            Model::BoundedDelay { delay } => write!(f, "bounded delay({delay})"),
            Model::SparseSsp { staleness, speculation } => {
                write!(f, "SparseSSP({staleness}, {speculation})")
            }
            Model::DataCentric { delay: Some(delay), .. } => write!(f, "data-centric({delay})"),
            Model::DataCentric { delay: None, .. } => write!(f, "data-centric(infinite)"),
        }
    }
}

/// The forms that [`Model`]'s `from_str` reads.
const FORMS: &str = "bsp, asp, ssp:STALENESS, delay:CLOCKS, sparse-ssp:STALENESS:SPECULATION, \
                     data:DELAY[:CHUNK_KEYS] or data:none[:CHUNK_KEYS]";

impl FromStr for Model {
    type Err = String;

    /// Reads a model as command lines name it: `bsp`, `ssp:3`, `asp`, `delay:2`, `sparse-ssp:1:4`,
    /// `data:1` with chunks of one key, `data:1:64`, `data:none`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let bounds: Vec<&str> = words.collect();
        let number = |word: &str| {
            word.parse::<u64>().map_err(|_| format!("`{word}` in `{text}` is no number, 0 or more"))
        };
        match (name, &bounds[..]) {
            ("bsp", []) => Ok(Model::Bsp),
            ("asp", []) => Ok(Model::Asp),
            ("ssp", [staleness]) => Ok(Model::Ssp { staleness: number(staleness)? }),
            ("delay", [delay]) => Ok(Model::BoundedDelay { delay: number(delay)? }),
            ("sparse-ssp", [staleness, speculation]) => {
                let [staleness, speculation] = [number(staleness)?, number(speculation)?];
                Ok(Model::SparseSsp { staleness, speculation })
            }
            ("data", [delay, rest @ ..]) if rest.len() <= 1 => {
                let delay = if *delay == "none" { None } else { Some(number(delay)?) };
                let chunk_keys = rest.first().map_or(Ok(1), |keys| number(keys))?;
                Ok(Model::DataCentric { delay, chunk_keys })
            }
            _ => Err(format!("`{text}` is no consistency model: take {FORMS}")),
        }
    }
}

/// A table's model, and the number of workers that it begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Consistency {
    /// The model.
    pub model: Model,
    /// Workers that have to join before anybody counts as having finished an iteration, at least 1.
    pub workers: u32,
}

/// Largest number of iterations that requests can be announced ahead.
const SPECULATION_MAX: u64 = 1000;

/// Memory up to which SparseSSP counts keys in arrays.
const RING_BYTES_MAX: u64 = 16 << 20;

impl Consistency {
    /// Checks the bounds.
    ///
    /// # Errors
    /// Text that names what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.workers == 0 {
            return Err("a consistency model needs at least 1 worker".to_owned());
        }
        match self.model {
            Model::SparseSsp { speculation, .. } if speculation > SPECULATION_MAX => {
                Err(format!("speculation {speculation} is above {SPECULATION_MAX}"))
            }
            Model::DataCentric { chunk_keys: 0, .. } => {
                Err("a chunk needs at least 1 key".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The controller of a shard with these keys; `is_dense` says whether it has a row for each.
    pub(crate) fn controller(&self, range: KeyRange, is_dense: bool) -> Box<dyn Controller> {
        let workers = self.workers as usize;
        match self.model {
            Model::Bsp => Box::new(Bsp::new(workers)),
            Model::Ssp { staleness } => Box::new(Ssp::new(workers, staleness)),
            Model::Asp => Box::new(Asp::new(workers)),
            Model::BoundedDelay { delay } => Box::new(BoundedDelay::new(workers, delay)),
            Model::DataCentric { delay, chunk_keys } => {
                Box::new(DataCentric::new(workers, delay, chunk_keys))
            }
            Model::SparseSsp { staleness, speculation } => {
                let versions = SparseSsp::<RingRecorder>::versions(staleness, speculation);
                let is_short = |range: &KeyRange| {
                    let keys = (range.last() - range.begin()).checked_add(1);
                    let bytes = keys.and_then(|keys| RingRecorder::bytes_of(keys, versions));
                    bytes.is_some_and(|bytes| bytes <= RING_BYTES_MAX)
                };
                if is_dense && is_short(&range) {
                    let keys = (range.last() - range.begin()) as usize + 1;
                    let recorder = RingRecorder::new(range.begin(), keys, versions);
                    Box::new(SparseSsp::new(workers, staleness, speculation, recorder))
                } else {
                    let recorder = MapRecorder::default();
                    Box::new(SparseSsp::new(workers, staleness, speculation, recorder))
                }
            }
        }
    }

    /// The iterations that workers announce ahead.
    pub(crate) fn speculation(&self) -> u64 {
        match self.model {
            Model::SparseSsp { speculation, .. } => speculation,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read_as_command_lines_name_them() {
        let read = |text: &str| text.parse::<Model>();
        assert_eq!(read("bsp"), Ok(Model::Bsp));
        assert_eq!(read("asp"), Ok(Model::Asp));
        assert_eq!(read("ssp:3"), Ok(Model::Ssp { staleness: 3 }));
        assert_eq!(read("delay:2"), Ok(Model::BoundedDelay { delay: 2 }));
        assert_eq!(read("sparse-ssp:1:4"), Ok(Model::SparseSsp { staleness: 1, speculation: 4 }));
        let data = |delay, chunk_keys| Ok(Model::DataCentric { delay, chunk_keys });
        assert_eq!(read("data:1"), data(Some(1), 1));
        assert_eq!(read("data:0:64"), data(Some(0), 64));
        assert_eq!(read("data:none"), data(None, 1));
        for text in ["", "bsp:1", "ssp", "ssp:1:2", "sparse-ssp:1", "data", "data:1:2:3", "SSP:1"] {
            assert!(read(text).is_err_and(|why| why.contains("sparse-ssp:STALENESS")), "{text}");
        }
        for text in ["ssp:-1", "ssp:", "delay:x", "data:1:y"] {
            assert!(read(text).is_err_and(|why| why.contains("is no number")), "{text}");
        }
    }
}
