//! A model of one process for several threads, under a consistency model. One thread has it, and
//! answers the others.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use caravan_kv::consistency::Model;
use caravan_kv::{Error, Result};
use caravan_van::Value;

use super::Sums;
use super::serial::Local;

/// The model, and how far each part has come in a pass.
pub(super) struct Spmt {
    pub(super) table: Local,
    /// Iterations that a read may miss of others; `None` lets it miss any.
    staleness: Option<u64>,
    /// Whether writes of an iteration are kept until all parts have ended it.
    keeps: bool,
    /// Iterations of passes before.
    base: u64,
    /// Iterations of this pass that each part has ended.
    ended: Vec<u64>,
    /// Reads that wait for slower parts.
    parked: Vec<Pull>,
    /// Writes that are kept, by iteration and part.
    kept: BTreeMap<(u64, usize), Push>,
}

/// What a part asks for.
enum Asked {
    Pull(Pull),
    Push(Push),
}

struct Pull {
    step: u64,
    keys: Vec<u64>,
    /// Where the values go, as bytes.
    to: Sender<Vec<u8>>,
}

/// The writes of an iteration, which it ends.
struct Push {
    step: u64,
    part: usize,
    keys: Vec<u64>,
    values: Vec<u8>,
}

/// Where threads ask.
pub(super) struct Askers(Sender<Asked>);

/// Where the thread of a part asks.
pub(super) struct Asker {
    part: usize,
    to: Sender<Asked>,
}

impl Askers {
    pub(super) fn of(&self, part: usize) -> Asker {
        Asker { part, to: self.0.clone() }
    }
}

impl Asker {
    /// Reads rows as the model lets iteration `step` see them.
    pub(super) fn pull<V: Value>(&self, step: u64, keys: &[u64]) -> Result<Vec<V>> {
        let (to, answer) = channel();
        let keys = keys.to_vec();
        self.to.send(Asked::Pull(Pull { step, keys, to })).map_err(|_| stopped())?;
        let bytes = answer.recv().map_err(|_| stopped())?;
        let mut values = vec![V::default(); bytes.len() / V::BYTES];
        V::bytes_mut(&mut values).copy_from_slice(&bytes);
        Ok(values)
    }

    /// Writes rows, and ends iteration `step`.
    pub(super) fn push<V: Value>(&self, step: u64, keys: &[u64], values: &[V]) -> Result<()> {
        let (keys, values) = (keys.to_vec(), V::bytes(values).to_vec());
        let push = Push { step, part: self.part, keys, values };
        self.to.send(Asked::Push(push)).map_err(|_| stopped())
    }
}

fn stopped() -> Error {
    Error::Config("another thread has failed".to_owned())
}

impl Spmt {
    /// A model for so many parts.
    ///
    /// # Errors
    /// If threads of one process have no such consistency model.
    pub(super) fn new(model: Model, parts: usize, table: Local) -> Result<Self, String> {
        let staleness = match model {
            Model::Bsp => Some(0),
            Model::Ssp { staleness } => Some(staleness),
            Model::Asp => None,
            other => return Err(format!("threads of one process have no model {other}")),
        };
        let keeps = model == Model::Bsp;
        let (parked, kept) = Default::default();
        Ok(Spmt { table, staleness, keeps, base: 0, ended: vec![0; parts], parked, kept })
    }

    /// Runs a pass of so many steps on another thread, which starts those of the parts, and answers
    /// them until all have ended.
    pub(super) fn serve(
        &mut self,
        steps: u64,
        train: impl FnOnce(&Askers) -> Result<Sums> + Send,
    ) -> Result<Sums> {
        self.ended.fill(0);
        let (to, asked) = channel();
        let (served, trained) = std::thread::scope(|scope| {
            let trains = scope.spawn(move || train(&Askers(to)));
            let served = self.answer(&asked);
            // Threads that wait for an answer hear that there is none.
            self.parked.clear();
            self.kept.clear();
            drop(asked);
            (served, trains.join())
        });
        self.base += steps;
        served?;
        trained
            .unwrap_or_else(|_| Err(Error::Config("the threads of parts have panicked".to_owned())))
    }

    fn answer(&mut self, asked: &Receiver<Asked>) -> Result<()> {
        for asked in asked {
            match asked {
                Asked::Pull(pull) => self.parked.push(pull),
                Asked::Push(push) => {
                    self.ended[push.part] = push.step + 1;
                    match self.keeps {
                        true => drop(self.kept.insert((push.step, push.part), push)),
                        false => self.apply(&push)?,
                    }
                }
            }
            self.go_on()?;
        }
        Ok(())
    }

    /// Applies what all have ended, in the order of iterations and parts, and answers what may be
    /// read then.
    fn go_on(&mut self) -> Result<()> {
        let slowest = self.ended.iter().copied().min().unwrap_or(0);
        while let Some(first) = self.kept.first_entry().filter(|it| it.key().0 < slowest) {
            let push = first.remove();
            self.apply(&push)?;
        }
        let staleness = self.staleness.unwrap_or(u64::MAX);
        let may = |pull: &mut Pull| pull.step <= slowest.saturating_add(staleness);
        let ready: Vec<Pull> = self.parked.extract_if(.., may).collect();
        for Pull { keys, to, .. } in ready {
            let bytes = self.table.pull_bytes(&keys)?;
            // A thread that has panicked says so itself.
            let _ = to.send(bytes);
        }
        Ok(())
    }

    fn apply(&mut self, push: &Push) -> Result<()> {
        if push.keys.is_empty() {
            return Ok(());
        }
        self.table.clock = self.base + push.step + 1;
        self.table.push_bytes(&push.keys, &push.values)
    }
}
