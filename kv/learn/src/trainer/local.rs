//! Training in one process, as the hints `seq`, `hogwild` and `spmt` say: the model is here, and
//! nothing is sent until it is trained.

use std::thread;

use caravan_kv::consistency::Model;
use caravan_kv::error::with_sources;
use caravan_kv::{Error, Handles, Result, TableSpec, ValueType, Worker};

use super::hogwild::Hogwild;
use super::serial::Local;
use super::spmt::Spmt;
use super::{Hint, Part, Rows, Step, Sums, Trainer};
use crate::data_root::DataRoot;

/// Keys of a push.
const PUSH_KEYS: usize = 1 << 16;

/// How far the id of the table where a trained model is published is from that of the model.
const PUBLISHED: u32 = 1 << 16;

/// The table where the driver finds a model that one process has trained.
pub(super) fn published(spec: &TableSpec) -> TableSpec {
    let spec = spec.clone().handle("assign").options(serde_json::Value::Null);
    let name = format!("{} of one process", spec.name);
    TableSpec { id: spec.id + PUBLISHED, name, ..spec }
}

/// Trainers of all parts, and their model.
pub(super) struct Trained<T: Trainer> {
    trainers: Vec<T>,
    model: Place<T>,
    spec: TableSpec,
}

enum Place<T: Trainer> {
    Seq(Local),
    Hogwild(Hogwild<T::Value>),
    Spmt(Spmt),
}

impl<T: Trainer> Trained<T> {
    /// Reads all parts.
    ///
    /// # Errors
    /// The reason of the trainer, the update rule or the hint.
    pub(super) fn load(
        settings: &T::Settings,
        hint: Hint,
        model: Model,
        (parts, root): (usize, &DataRoot),
    ) -> Result<Self, String> {
        let load = |number| T::of_part(settings, &Part { number, parts, root: root.clone() });
        let trainers: Vec<T> = (0..parts).map(load).collect::<Result<_, _>>()?;
        let spec = T::table(settings);
        let table = Local::new(spec.clone(), &Handles::default());
        let table = table.map_err(|error| with_sources(&error))?;
        let model = match hint {
            Hint::Hogwild => Place::Hogwild(Hogwild::new(&spec, table)?),
            Hint::Spmt => Place::Spmt(Spmt::new(model, parts, table)?),
            Hint::Seq | Hint::Ps => Place::Seq(table),
        };
        Ok(Trained { trainers, model, spec })
    }

    /// Steps of a pass.
    pub(super) fn steps(&self) -> u64 {
        self.trainers.iter().map(Trainer::steps).max().unwrap_or(0)
    }

    /// Trains a pass.
    ///
    /// # Errors
    /// Those of the update rule; a thread that has panicked.
    pub(super) fn pass(&mut self, pass: u64) -> Result<Sums> {
        let steps = self.steps();
        let Trained { trainers, model, spec } = self;
        let width = spec.width as usize;
        match model {
            Place::Seq(table) => {
                let mut sums = Sums::default();
                for step in 0..steps {
                    table.iterate(trainers, pass, step, &mut sums)?;
                }
                Ok(sums)
            }
            Place::Hogwild(table) => {
                table.add_rows(trainers, pass)?;
                let (first, numbers) = (table.steps, &table.numbers);
                table.steps += steps;
                in_threads(trainers, |_, trainer| {
                    let mut sums = Sums::default();
                    for step in 0..trainer.steps() {
                        let keys = trainer.keys(pass, step);
                        if keys.is_empty() {
                            continue;
                        }
                        let rows = if T::READS { numbers.read(&keys) } else { Vec::new() };
                        let mut taken = Step::new(pass, step, &keys, &rows, width);
                        trainer.step(&mut taken);
                        sums.add_step(&taken);
                        let (keys, values) = taken.pushed();
                        numbers.write(first + step + 1, keys, values);
                    }
                    Ok(sums)
                })
            }
            Place::Spmt(table) => table.serve(steps, |asker| {
                in_threads(trainers, |part, trainer| {
                    let asker = asker.of(part);
                    let mut sums = Sums::default();
                    for step in 0..steps {
                        let has_step = step < trainer.steps();
                        let keys = if has_step { trainer.keys(pass, step) } else { Vec::new() };
                        if keys.is_empty() {
                            asker.push(step, &[], &[] as &[T::Value])?;
                            continue;
                        }
                        let rows = if T::READS { asker.pull(step, &keys)? } else { Vec::new() };
                        let mut taken = Step::new(pass, step, &keys, &rows, width);
                        trainer.step(&mut taken);
                        sums.add_step(&taken);
                        let (keys, values) = taken.pushed();
                        asker.push(step, keys, values)?;
                    }
                    Ok(sums)
                })
            }),
        }
    }

    /// The rows of the model.
    pub(super) fn rows(&mut self) -> Result<Rows<T::Value>> {
        match &mut self.model {
            Place::Seq(table) => table.rows(),
            Place::Spmt(table) => table.table.rows(),
            Place::Hogwild(table) => table.rows(),
        }
    }

    /// Pushes the model to the servers, for the driver; returns its keys.
    ///
    /// # Errors
    /// Those of the lanes.
    pub(super) fn publish(&mut self, worker: &mut Worker) -> Result<Vec<u64>> {
        let Rows { keys, values, width } = self.rows()?;
        let table = worker.admin().create_table(&published(&self.spec))?;
        let chunks = keys.chunks(PUSH_KEYS).zip(values.chunks(PUSH_KEYS * width.max(1)));
        for (keys, values) in chunks {
            let pushed = worker.push(table, keys, values)?;
            worker.wait(pushed)?;
        }
        Ok(keys)
    }
}

/// Runs `train` for each part in a thread of its own; returns the sums of all, in their order.
fn in_threads<T: Trainer>(
    trainers: &mut [T],
    train: impl Fn(usize, &mut T) -> Result<Sums> + Sync,
) -> Result<Sums> {
    let train = &train;
    thread::scope(|scope| {
        let parts = trainers.iter_mut().enumerate();
        let threads: Vec<_> = parts
            .map(|(part, trainer)| {
                let named = thread::Builder::new().name(format!("part {part}"));
                named.spawn_scoped(scope, move || train(part, trainer))
            })
            .collect();
        let mut all = Ok(Sums::default());
        for (part, thread) in threads.into_iter().enumerate() {
            let name = format!("part {part}");
            let spawned = thread.map_err(|source| Error::Spawn { what: name.clone(), source });
            let sums = spawned.and_then(|thread| {
                let panicked = |_| Err(Error::Config(format!("the thread of {name} has panicked")));
                thread.join().unwrap_or_else(panicked)
            });
            all = all.and_then(|mut all| {
                all.add(&sums?);
                Ok(all)
            });
        }
        all
    })
}

/// Refuses what a hint has no meaning for.
///
/// # Errors
/// The reason.
pub(super) fn check(
    hint: Hint,
    spec: &TableSpec,
    model: Model,
    parts: Option<usize>,
) -> Result<(), String> {
    match hint {
        Hint::Seq if parts.is_some_and(|parts| parts != 1) => {
            Err("seq trains one part in one thread: leave --parts out, or take spmt".to_owned())
        }
        Hint::Hogwild if !matches!(spec.handle.as_str(), "add" | "sgd") => Err(format!(
            "hogwild changes single numbers, as the handles add and sgd do, and {} keeps more with each: take --handle sgd, or spmt",
            spec.handle
        )),
        Hint::Hogwild if !matches!(spec.value, ValueType::F32 | ValueType::F64) => {
            Err("hogwild changes f32 and f64 alone: take spmt".to_owned())
        }
        Hint::Spmt if !matches!(model, Model::Bsp | Model::Ssp { .. } | Model::Asp) => {
            Err(format!("threads of one process train under bsp, ssp:S or asp, not {model}"))
        }
        _ => Ok(()),
    }
}
