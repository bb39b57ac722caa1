//! Models that pass from stage to stage without the servers (FlexPS, section 4.1).
//!
//! ```text
//!   stage 1, worker 0 ── keep ──> store of its process ── take ──> stage 2, same process
//!                                        └── requests between nodes ──> stage 2, another process
//! ```
//!
//! A worker keeps its model at the end of a stage. A worker of the next stage takes it from the
//! worker that has it, or several read it there: where both are in one process nothing is sent,
//! else the model comes in pieces by requests between nodes. Servers take no part.
//!
//! A model belongs to a task or to the job, and is freed with it where nobody has taken it. When a
//! task has ended the engine tells the workers that have run its stages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use caravan_kv::{Apps, Asked, NodeName, Rpc, TaskId, WorkerNode};
use serde::{Deserialize, Serialize};

use super::Part;

/// Bytes of a model in one answer.
const PIECE: usize = 256 << 10;

/// How long a worker may take to answer: it does while it waits for a task, an answer or others.
const ANSWERS_WITHIN: Duration = Duration::from_secs(600);

/// Name of the handler of stores.
const HANDLER: &str = "models of stages";

/// Asks for a piece of a model: [`Wanted`].
const PIECE_OF: i32 = 0;

/// Says that a task has ended: its [`TaskId`].
const TASK_ENDED: i32 = 1;

/// Whose a model is. Where nobody has taken it, it is freed with this.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Owner {
    /// The task of this [`Part::task`]. Other tasks can have models of the same name.
    Task(TaskId),
    /// The part of the job of this name, for tasks that come later.
    Job(String),
}

impl Owner {
    /// The part of the job that this worker runs a task of.
    pub fn job(node: &WorkerNode) -> Owner {
        Owner::Job(node.job.clone())
    }
}

impl From<&Part> for Owner {
    fn from(part: &Part) -> Owner {
        Owner::Task(part.task)
    }
}

/// A model that a worker keeps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Name {
    owner: Owner,
    model: String,
    /// The worker.
    rank: usize,
}

type Kept = BTreeMap<Name, Arc<[u8]>>;

/// The models that workers of this process keep. Apps of one process that keep models share one.
#[derive(Debug, Clone, Default)]
pub struct ModelStore {
    all: Arc<Mutex<Kept>>,
    /// Pieces sent to workers of other processes.
    sent: Arc<AtomicU64>,
}

impl ModelStore {
    /// A store, and the apps with what gives its models to workers of other processes.
    pub fn with(apps: Apps) -> (ModelStore, Apps) {
        let store = ModelStore::default();
        let served = store.clone();
        let apps = apps.with_handler(HANDLER, move || {
            let store = served.clone();
            Box::new(move |rpc: &mut Rpc, asked: Asked| store.answer(rpc, &asked))
        });
        (store, apps)
    }

    /// The models of one app. An app that has it, and is dropped with its job, frees what it has
    /// kept.
    pub fn models(&self) -> Models {
        Models { store: self.clone(), kept: Vec::new() }
    }

    /// Number of models that are kept.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Pieces of models that were sent to workers elsewhere.
    pub fn pieces_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether no model is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn all(&self) -> MutexGuard<'_, Kept> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a worker that wants a model, or frees those of a task.
    fn answer(&self, rpc: &mut Rpc, asked: &Asked) {
        let answer = match asked.command {
            PIECE_OF => self.piece(&asked.body),
            TASK_ENDED => self.free(&asked.body),
            other => Err(format!("models have no command {other}")),
        };
        let answered = match answer {
            Ok(answer) => rpc.answer(asked.token, &answer),
            Err(why) => rpc.refuse(asked.token, &why),
        };
        // Each request is answered here, once.
        let _ = answered;
    }

    fn free(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        let task = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let ended = Owner::Task(task);
        self.all().retain(|name, _| name.owner != ended);
        Ok(Vec::new())
    }

    /// The length of a model and a piece of it. Frees the model if the worker says so.
    fn piece(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let Wanted { name, at, frees } =
            serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let mut all = self.all();
        let model = all.get(&name).ok_or_else(|| name.is_missing())?;
        let rest = model.get(at..).ok_or_else(|| format!("the model has no byte {at}"))?;
        let piece = &rest[..rest.len().min(PIECE)];
        let answer = [&(model.len() as u64).to_le_bytes(), piece].concat();
        if frees {
            all.remove(&name);
        }
        Ok(answer)
    }
}

impl Name {
    fn new(owner: impl Into<Owner>, model: &str, rank: usize) -> Name {
        Name { owner: owner.into(), model: model.to_owned(), rank }
    }

    fn is_missing(&self) -> String {
        let Name { owner, model, rank } = self;
        let owner = match owner {
            Owner::Task(_) => "this task".to_owned(),
            Owner::Job(job) => format!("job {job:?}"),
        };
        format!("worker {rank} has no model {model:?} of {owner}: it was taken, or never kept")
    }
}

/// A piece of a model, from byte `at` on.
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    name: Name,
    at: usize,
    /// Whether whoever asks has all of it.
    frees: bool,
}

/// Frees the models of a task that has ended, at the workers that have run it. Nobody waits: a
/// worker does it when it waits for something itself.
pub(super) fn free_models_of(task: TaskId, workers: &BTreeSet<usize>, rpc: &mut Rpc) {
    for worker in workers {
        let ask = |body: Vec<u8>| rpc.ask(NodeName::Worker(*worker), HANDLER, TASK_ENDED, &body);
        let asked = serde_json::to_vec(&task).map_err(caravan_kv::Error::from).and_then(ask);
        // A worker without a store has no models, one that is lost neither.
        drop(asked.and_then(|request| rpc.then(request, |_, _| ())));
    }
}

/// The models of an app, which are freed with it.
#[derive(Debug)]
pub struct Models {
    store: ModelStore,
    kept: Vec<Name>,
}

impl Models {
    /// Keeps a model until a worker takes it or its owner ends, in place of one of that name.
    pub fn keep(
        &mut self,
        node: &WorkerNode,
        owner: impl Into<Owner>,
        model: &str,
        bytes: impl Into<Arc<[u8]>>,
    ) {
        let name = Name::new(owner, model, node.rank);
        let mut all = self.store.all();
        all.insert(name.clone(), bytes.into());
        // Others may have been taken, or freed.
        self.kept.retain(|kept| *kept != name && all.contains_key(kept));
        self.kept.push(name);
    }

    /// Takes the model that worker `from` has kept; it has it no longer.
    ///
    /// # Errors
    /// The reason why it has no such model, or cannot be asked.
    pub fn take(
        &self,
        node: &mut WorkerNode,
        owner: impl Into<Owner>,
        model: &str,
        from: usize,
    ) -> Result<Arc<[u8]>, String> {
        let name = Name::new(owner, model, from);
        if let Some(model) = self.store.all().remove(&name) {
            return Ok(model);
        }
        let bytes = self.fetch(node, &name)?;
        // Where this does not arrive, the model is freed with the app that has kept it.
        drop(self.ask(node, &Wanted { name, at: bytes.len(), frees: true }));
        Ok(bytes.into())
    }

    /// Reads the model that each of the workers `from` has kept, at one of them, which goes on to
    /// have it: one of this process if there is one.
    ///
    /// # Errors
    /// As [`Models::take`].
    pub fn read(
        &self,
        node: &mut WorkerNode,
        owner: impl Into<Owner>,
        model: &str,
        from: &[usize],
    ) -> Result<Arc<[u8]>, String> {
        let owner = owner.into();
        let name = |rank: usize| Name::new(owner.clone(), model, rank);
        let all = self.store.all();
        let near = from.iter().find_map(|rank| all.get(&name(*rank)).cloned());
        drop(all);
        if let Some(model) = near {
            return Ok(model);
        }
        let from = from.get(node.rank % from.len().max(1)).ok_or("nobody has kept a model")?;
        self.fetch(node, &name(*from)).map(Into::into)
    }

    /// Frees a model that this worker has kept, if it has it.
    pub fn free(&mut self, node: &WorkerNode, owner: impl Into<Owner>, model: &str) {
        let name = Name::new(owner, model, node.rank);
        self.kept.retain(|kept| *kept != name);
        self.store.all().remove(&name);
    }

    /// Gets a model piece by piece from another worker.
    fn fetch(&self, node: &mut WorkerNode, name: &Name) -> Result<Vec<u8>, String> {
        let from = name.rank;
        if from == node.rank {
            return Err(name.is_missing());
        }
        let mut bytes = Vec::new();
        loop {
            let wanted = Wanted { name: name.clone(), at: bytes.len(), frees: false };
            let answer = self.ask(node, &wanted)?;
            let Some((len, piece)) = answer.split_first_chunk::<8>() else {
                return Err(format!("worker {from} has answered {} bytes", answer.len()));
            };
            bytes.extend_from_slice(piece);
            match bytes.len() as u64 {
                read if read == u64::from_le_bytes(*len) => return Ok(bytes),
                read if read > u64::from_le_bytes(*len) || piece.is_empty() => {
                    return Err(format!("worker {from} has sent {read} bytes of a shorter model"));
                }
                _ => {}
            }
        }
    }

    fn ask(&self, node: &mut WorkerNode, wanted: &Wanted) -> Result<Vec<u8>, String> {
        let text = |error: caravan_kv::Error| error.to_string();
        let body = serde_json::to_vec(wanted).map_err(|error| error.to_string())?;
        let from = wanted.name.rank;
        let ask = |rpc: &mut Rpc| rpc.ask(NodeName::Worker(from), HANDLER, PIECE_OF, &body);
        let asked = node.rpc(ask);
        let request = asked.and_then(|request| request).map_err(text)?;
        let mut answers = node.wait_for(request, ANSWERS_WITHIN).map_err(text)?;
        answers.pop().ok_or_else(|| format!("worker {from} is not there"))?.outcome
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        let mut all = self.store.all();
        self.kept.iter().for_each(|name| drop(all.remove(name)));
    }
}
