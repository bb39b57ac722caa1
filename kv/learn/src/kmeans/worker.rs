//! The worker's side: one stage at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caravan_kv::consistency::Model;
use caravan_kv::{App, Apps, Table, TableSpec, ValueType, WorkerNode};
use caravan_van::KeyRange;
use serde::{Deserialize, Serialize};

use super::centres::Centres;
use super::points::{DataStore, Points};
use super::{Batches, check_points, order, share};
use crate::data_root::DataRoot;
use crate::task::Part;

/// Name of this app.
pub(super) const APP: &str = "kmeans";

/// Id of the table of centres; those of stages follow.
const CENTRES: u32 = 1;

/// Simulated time for one coordinate of a point and one centre.
const ENTRY: Duration = Duration::from_nanos(1);

/// Adds the app to those of a cluster whose workers train.
pub fn apps(apps: Apps) -> Apps {
    let store = Arc::new(DataStore::default());
    apps.with(APP, move || Box::new(Kmeans { store: store.clone(), loaded: None }))
}

/// The input of a stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) files: Vec<PathBuf>,
    pub(super) clusters: usize,
    pub(super) seed: u64,
    pub(super) batches: Batches,
    /// Points that the stages before have taken.
    pub(super) first: u64,
}

/// What a worker says of a stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Of its share of all points, with the centres at the end.
    pub(super) objective: f64,
    pub(super) dimensions: usize,
}

/// The table of centres: one row each.
pub(super) fn centres_spec(clusters: usize, dimensions: usize) -> TableSpec {
    let keys = KeyRange::new(0, clusters as u64).unwrap_or(KeyRange::ALL);
    let spec = TableSpec::new(CENTRES, "centres", ValueType::F64, dimensions as u32);
    spec.keys(keys).dense().handle("assign")
}

/// The table of a stage.
fn sums_spec(clusters: usize, dimensions: usize, stage: usize, workers: usize) -> TableSpec {
    let keys = KeyRange::new(0, clusters as u64).unwrap_or(KeyRange::ALL);
    let id = CENTRES + 1 + stage as u32;
    let spec = TableSpec::new(id, &format!("sums {stage}"), ValueType::F64, dimensions as u32 + 1);
    spec.keys(keys).dense().consistency(Model::Bsp, workers as u32)
}

/// One worker.
struct Kmeans {
    store: Arc<DataStore>,
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
        let order = serde_json::from_value(part.body).map_err(|error| error.to_string())?;
        let loaded = self.load(node, &order)?;
        let mut stage = Stage { node, loaded, order: &order, rank, stage: part.stage };
        let report = stage.run().map_err(|error| error.to_string())?;
        serde_json::to_value(report).map_err(|error| error.to_string())
    }
}

impl Kmeans {
    fn load(&mut self, node: &WorkerNode, wanted: &Order) -> Result<&Loaded, String> {
        let is_it = |it: &Loaded| it.files == wanted.files && it.seed == wanted.seed;
        if !self.loaded.as_ref().is_some_and(is_it) {
            let root = DataRoot::of(&node.config)?;
            let files: Result<Vec<_>, _> =
                wanted.files.iter().map(|file| root.allow(file)).collect();
            let points = self.store.points(&files?).map_err(|error| error.to_string())?;
            check_points(&points, wanted.clusters)?;
            let (files, seed) = (wanted.files.clone(), wanted.seed);
            let order = order(points.len(), seed);
            self.loaded = Some(Loaded { files, points, order, seed });
        }
        self.loaded.as_ref().ok_or_else(|| "there are no points".to_owned())
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
    fn run(&mut self) -> caravan_kv::Result<Report> {
        let Order { clusters, batches: Batches { workers, batch, iterations }, first, .. } =
            *self.order;
        let points = &*self.loaded.points;
        let dimensions = points.dimensions();
        let keys: Vec<u64> = (0..clusters as u64).collect();
        let centres = self.node.worker.create_table(&centres_spec(clusters, dimensions))?;
        let before = self.begin(centres, &keys)?;
        let spec = sums_spec(clusters, dimensions, self.stage, workers);
        let table = self.node.worker.create_table(&spec)?;
        self.node.worker.join(table)?;
        let mut pushed = None;
        for iteration in 0..iterations {
            let now = self.pull(table, &keys, &before)?;
            let first = first + iteration * batch as u64;
            let chosen = share(&self.loaded.order, first, batch, self.rank, workers);
            let mut sums = vec![0.0; clusters * (dimensions + 1)];
            let entries = now.add(points, chosen, &mut sums);
            self.charge(entries)?;
            pushed.take().map_or(Ok(()), |push| self.node.worker.wait(push).map(drop))?;
            pushed = Some(self.node.worker.push_last(table, &keys, &sums)?);
        }
        pushed.map_or(Ok(()), |push| self.node.worker.wait(push).map(drop))?;
        let last = self.pull(table, &keys, &before)?;
        if self.rank == 0 {
            let kept = self.node.worker.push(centres, &keys, last.values())?;
            self.node.worker.wait(kept)?;
        }
        let left = self.node.worker.leave(table)?;
        self.node.worker.wait(left)?;
        let of = |rank: usize| points.len() * rank / workers;
        let objective = last.objective(points, of(self.rank)..of(self.rank + 1));
        Ok(Report { objective, dimensions })
    }

    /// The centres with which the stage begins.
    fn begin(&mut self, centres: Table, keys: &[u64]) -> caravan_kv::Result<Centres> {
        let points = &self.loaded.points;
        if self.stage == 0 {
            return Ok(Centres::at(points, &self.loaded.order[..self.order.clusters]));
        }
        let pulled = self.node.worker.pull(centres, keys)?;
        let values = self.node.worker.wait(pulled)?.values::<f64>().to_vec();
        Ok(Centres::new(points.dimensions(), values))
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
