//! The worker's side: one stage at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::error::with_sources;
use caravan_kv::{App, Apps, Table, TableSpec, ValueType, WorkerNode};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};

use super::centres::Centres;
use super::points::{DataStore, Points};
use super::{Batches, check_points, order, share};
use crate::data::listed;
use crate::data_root::DataRoot;
use crate::task::{ModelStore, Models, Part};

/// Name of this app.
pub(super) const APP: &str = "kmeans";

/// Name of the app that publishes the centres of a stage.
pub(super) const PUBLISH: &str = "kmeans centres";

/// Id of the table of the last centres; those of stages follow.
const CENTRES: u32 = 1;

/// Simulated time for one coordinate of a point and one centre.
const ENTRY: Duration = Duration::from_nanos(1);

/// Adds the apps of a cluster whose workers train; their centres stay in `models`.
pub fn apps(apps: Apps, models: &ModelStore) -> Apps {
    let kept = models.clone();
    let apps = apps.with(PUBLISH, move || Box::new(Publishes { models: kept.models() }));
    let models = models.clone();
    let store = Arc::new(DataStore::default());
    apps.with(APP, move || {
        Box::new(Kmeans { store: store.clone(), models: models.models(), loaded: None })
    })
}

/// The input of a stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) files: Vec<PathBuf>,
    pub(super) clusters: usize,
    pub(super) seed: u64,
    pub(super) batches: Batches,
    pub(super) replicas: u32,
    /// Points that the stages before have taken.
    pub(super) first: u64,
    /// The workers of the stage before, which have its centres.
    pub(super) from: Vec<usize>,
}

/// What a worker says of a stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Of its share of all points, with the centres at the end.
    pub(super) objective: f64,
    pub(super) dimensions: usize,
    /// Bytes to and from servers while it got its first centres and passed its last ones on.
    pub(super) handover_bytes: u64,
}

/// What a stage has left, for [`PUBLISH`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {
    pub(super) stage: usize,
    pub(super) clusters: usize,
    pub(super) dimensions: usize,
    pub(super) replicas: u32,
}

/// The table of centres: one row each.
pub(super) fn centres_spec(left: &Left) -> TableSpec {
    let keys = KeyRange::new(0, left.clusters as u64).unwrap_or(KeyRange::ALL);
    let spec = TableSpec::new(CENTRES, "centres", ValueType::F64, left.dimensions as u32);
    spec.keys(keys).dense().handle("assign").replicas(left.replicas)
}

/// The table of a stage.
fn sums_spec(order: &Order, dimensions: usize, stage: usize) -> TableSpec {
    let keys = KeyRange::new(0, order.clusters as u64).unwrap_or(KeyRange::ALL);
    let id = CENTRES + 1 + stage as u32;
    let spec = TableSpec::new(id, &format!("sums {stage}"), ValueType::F64, dimensions as u32 + 1);
    let spec = spec.keys(keys).dense().consistency(Model::Bsp, order.batches.workers as u32);
    spec.replicas(order.replicas)
}

/// The name of a stage's centres.
fn model(stage: usize) -> String {
    format!("centres {stage}")
}

/// Pushes the centres that this worker has from a stage, so that the driver may read them.
struct Publishes {
    models: Models,
}

impl App for Publishes {
    fn run(
        &mut self,
        node: &mut WorkerNode,
        input: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let (part, _) = Part::of(node, input)?;
        let left: Left =
            serde_json::from_value(part.body.clone()).map_err(|error| with_sources(&error))?;
        let Left { stage, clusters, dimensions, .. } = left;
        let kept = self.models.take(node, &part, &model(stage), node.rank)?;
        let centres = centres_of(dimensions, &kept);
        let keys: Vec<u64> = (0..clusters as u64).collect();
        let worker = &mut node.worker;
        let pushed = worker.admin().create_table(&centres_spec(&left)).and_then(|table| {
            let pushed = worker.push(table, &keys, centres.values())?;
            worker.wait(pushed)
        });
        pushed.map_err(|error| with_sources(&error))?;
        Ok(serde_json::Value::Null)
    }
}

/// Centres from the bytes in which they pass from stage to stage.
fn centres_of(dimensions: usize, bytes: &[u8]) -> Centres {
    let (values, _) = bytes.as_chunks::<8>();
    Centres::new(dimensions, values.iter().map(|value| f64::from_le_bytes(*value)).collect())
}

/// One worker.
struct Kmeans {
    store: Arc<DataStore>,
    models: Models,
    loaded: Option<Loaded>,
}

/// What a worker keeps from stage to stage.
struct Loaded {
    files: Vec<PathBuf>,
    points: Arc<Points>,
    order: Vec<u32>,
    seed: u64,
}

impl App for Kmeans {
    fn run(
        &mut self,
        node: &mut WorkerNode,
        input: serde_json::Value,
    ) -> Result<serde_json::Value, String> {
        let (part, rank) = Part::of(node, input)?;
        let order: Order =
            serde_json::from_value(part.body.clone()).map_err(|error| with_sources(&error))?;
        self.load(node, &order)?;
        let loaded = self.loaded.as_ref().ok_or("there are no points")?;
        let dimensions = loaded.points.dimensions();
        let before = traffic(node);
        let first = first_centres(&mut self.models, loaded, node, (&order, &part))?;
        let taken = traffic(node) - before;
        let mut stage = Stage { node, loaded, order: &order, rank, stage: part.stage };
        let (centres, objective) = stage.run(&first).map_err(|error| with_sources(&error))?;
        if !objective.is_finite() || centres.values().iter().any(|value| !value.is_finite()) {
            return Err(format!(
                "kmeans diverged in stage {}: the squares of coordinates add up to no finite number; scale them",
                part.stage
            ));
        }
        let trained = traffic(node);
        let bytes: Vec<u8> = centres.values().iter().flat_map(|it| it.to_le_bytes()).collect();
        self.models.keep(node, &part, &model(part.stage), bytes);
        let handover_bytes = taken + traffic(node) - trained;
        serde_json::to_value(Report { objective, dimensions, handover_bytes })
            .map_err(|error| with_sources(&error))
    }
}

/// Bytes to and from the servers.
fn traffic(node: &WorkerNode) -> u64 {
    let counters = node.worker.info().counters();
    counters.bytes_sent + counters.bytes_received
}

/// The centres with which a stage begins: points, or what the stage before has left.
fn first_centres(
    models: &mut Models,
    loaded: &Loaded,
    node: &mut WorkerNode,
    (order, part): (&Order, &Part),
) -> Result<Centres, String> {
    let Some(before) = part.stage.checked_sub(1) else {
        return Ok(Centres::at(&loaded.points, &loaded.order[..order.clusters]));
    };
    let centres = models.read(node, part, &model(before), &order.from)?;
    // All have them now. Who waits here answers at once.
    node.barrier("centres").map_err(|error| with_sources(&error))?;
    models.free(node, part, &model(before));
    Ok(centres_of(loaded.points.dimensions(), &centres))
}

impl Kmeans {
    fn load(&mut self, node: &WorkerNode, wanted: &Order) -> Result<(), String> {
        let is_it = |it: &Loaded| it.files == wanted.files && it.seed == wanted.seed;
        if !self.loaded.as_ref().is_some_and(is_it) {
            let root = DataRoot::of(&node.config)?;
            let files = root.files(&wanted.files, node.workers)?;
            let points = self.store.points(&files).map_err(|error| with_sources(&error))?;
            check_points(&points, wanted.clusters)
                .map_err(|why| format!("{}: {why}", listed(&files)))?;
            let (files, seed) = (wanted.files.clone(), wanted.seed);
            let order = order(points.len(), seed);
            self.loaded = Some(Loaded { files, points, order, seed });
        }
        Ok(())
    }
}

/// A stage at a worker.
struct Stage<'a> {
    node: &'a mut WorkerNode,
    loaded: &'a Loaded,
    order: &'a Order,
    rank: usize,
    stage: usize,
}

impl Stage<'_> {
    /// Trains from these centres on; returns those at the end, and the objective of this worker's
    /// share of all points.
    fn run(&mut self, before: &Centres) -> caravan_kv::Result<(Centres, f64)> {
        let Order { clusters, batches: Batches { workers, batch, iterations }, first, .. } =
            *self.order;
        let points = &*self.loaded.points;
        let dimensions = points.dimensions();
        let keys: Vec<u64> = (0..clusters as u64).collect();
        let spec = sums_spec(self.order, dimensions, self.stage);
        let table = self.node.worker.admin().create_table(&spec)?;
        self.node.worker.clocks(table).join()?;
        let mut pushed = None;
        for iteration in 0..iterations {
            let now = self.pull(table, &keys, before)?;
            let first = first + iteration * batch as u64;
            let chosen = share(&self.loaded.order, first, batch, self.rank, workers);
            let mut sums = vec![0.0; clusters * (dimensions + 1)];
            let entries = now.add(points, chosen, &mut sums);
            self.charge(entries)?;
            pushed.take().map_or(Ok(()), |push| self.node.worker.wait(push).map(drop))?;
            pushed = Some(self.node.worker.clocks(table).push_last(&keys, &sums)?);
        }
        pushed.map_or(Ok(()), |push| self.node.worker.wait(push).map(drop))?;
        let last = self.pull(table, &keys, before)?;
        let left = self.node.worker.clocks(table).leave()?;
        self.node.worker.wait(left)?;
        let of = |rank: usize| points.len() * rank / workers;
        let objective = last.objective(points, of(self.rank)..of(self.rank + 1));
        Ok((last, objective))
    }

    /// The centres now.
    fn pull(
        &mut self,
        table: Table,
        keys: &[u64],
        before: &Centres,
    ) -> caravan_kv::Result<Centres> {
        let pulled = self.node.worker.pull(table, keys)?;
        let answer = self.node.worker.wait(pulled)?;
        Ok(Centres::of(answer.values::<f64>(), before))
    }

    /// Charges for as many coordinates with all centres.
    fn charge(&mut self, entries: u64) -> caravan_kv::Result<()> {
        let entries = entries.saturating_mul(self.order.clusters as u64);
        let count = u32::try_from(entries).unwrap_or(u32::MAX);
        self.node.worker.charge(ENTRY * count)
    }
}
