//! The tables that a server thread knows, and its shards of them, built from a worker's
//! specification.
//!
//! Path: codec > thread > **tables** > shard > store > answer.

use std::collections::BTreeSet;

use caravan_van::{Account, KeyRange, Pool};

use super::admission::AdmissionController;
use super::chain::Chain;
use super::image::Incoming;
use super::moving::Moving;
use crate::error::Result;
use crate::filter::AtServer;
use crate::map::Placement;
use crate::refusal::{Refusal, Refused};
use crate::server::handle::Handles;
use crate::server::shard::{Request, Shard};
use crate::table::{Initial, TableSpec};

/// Most bytes of memory per byte of JSON: an object of one short name takes a node with room for
/// many.
const JSON_BYTES: usize = 128;

/// Bytes of a table that is known.
const TABLE_BYTES: usize = 1 << 10;

/// Bytes of an empty shard.
const SHARD_BYTES: usize = 4 << 10;

/// Bytes of a table's filters, whose compressor needs most.
const FILTERS_BYTES: usize = 64 << 10;

/// A table that this thread has heard of, whether or not it has shards of it.
pub(in crate::server) struct Known {
    pub(in crate::server) spec: TableSpec,
    /// The specification as JSON.
    pub(in crate::server) text: String,
    /// Whether a worker has had it created here; other threads may have told of it before.
    pub(in crate::server) is_created: bool,
    /// Whether all owners know it, as far as the thread that has numbered it was told.
    pub(in crate::server) is_complete: bool,
    /// The server threads to which shards of it were to move from here.
    pub(in crate::server) elsewhere: BTreeSet<usize>,
    /// Charged for the other fields.
    memory: Account,
}

impl Known {
    /// Reads a specification, if there is memory for its content.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub(in crate::server) fn read(json: &[u8], pool: &Pool) -> Result<Known, Refused> {
        let mut memory = Account::new(pool, "the specification of a table");
        memory.set(JSON_BYTES * json.len())?;
        let spec: TableSpec = serde_json::from_slice(json)?;
        let text = serde_json::to_string(&spec)?;
        spec.filters.check(&spec)?;
        spec.check_consistency()?;
        let (is_created, is_complete) = (false, false);
        Ok(Known { spec, text, is_created, is_complete, elsewhere: BTreeSet::new(), memory })
    }

    /// Checks that the wanted table is this one.
    ///
    /// # Errors
    /// A text with the specification of this table.
    pub(in crate::server) fn check_same(&self, wanted: &Known) -> Result<(), Refused> {
        if self.text == wanted.text {
            return Ok(());
        }
        Err(Refusal::Shape
            .because(format!("table {} exists and is another one: {}", self.spec.id, self.text)))
    }

    /// Forgets what only shards need, once they are built: options and initial values.
    pub(in crate::server) fn shorten(&mut self) -> Result<(), Refused> {
        let placement = std::mem::take(&mut self.spec.placement);
        self.spec = TableSpec { placement, ..short(&self.spec) };
        let TableSpec { name, namespace, placement, .. } = &self.spec;
        let cut = if let Placement::Cut(firsts) = placement { &firsts[..] } else { &[] };
        let bytes = TABLE_BYTES + self.text.len() + name.len() + namespace.len() + size_of_val(cut);
        self.memory.set(bytes).map_err(Refused::from)
    }

    /// Builds the shard of the keys in `range` of table `number`.
    ///
    /// # Errors
    /// The reason why it cannot be built.
    pub(in crate::server) fn build(
        &self,
        number: u32,
        range: KeyRange,
        handles: &Handles,
        pool: &Pool,
    ) -> Result<Replica, Refused> {
        let filters = AtServer::new(&self.spec, handles.filters());
        let filters = filters?;
        let mut memory = Account::new(pool, "a shard");
        let filters_bytes = if filters.is_some() { FILTERS_BYTES } else { 0 };
        memory
            .set(SHARD_BYTES + filters_bytes + self.spec.name.len() + self.spec.namespace.len())?;
        let shard = handles.build(&self.spec, range, pool)?;
        let admission = AdmissionController::new(&self.spec, range, handles, pool)?;
        Ok(Replica {
            number,
            spec: short(&self.spec),
            _memory: memory,
            range,
            epoch: 0,
            moving: None,
            image: None,
            chain: None,
            shard,
            filters,
            admission,
        })
    }
}

/// A specification without options, initial values, placement and own filters.
fn short(spec: &TableSpec) -> TableSpec {
    TableSpec {
        options: serde_json::Value::Null,
        initial: Initial::Zero,
        placement: Placement::default(),
        own_filters: Vec::new(),
        name: spec.name.clone(),
        namespace: spec.namespace.clone(),
        handle: spec.handle.clone(),
        ..*spec
    }
}

/// A shard of this thread.
pub(in crate::server) struct Replica {
    /// Its table's number in messages, which no other table ever has.
    pub(in crate::server) number: u32,
    /// The table's specification without options, initial values, placement and own filters.
    pub(in crate::server) spec: TableSpec,
    /// Charged for the other fields.
    _memory: Account,
    pub(in crate::server) range: KeyRange,
    /// Number of its moves so far.
    pub(in crate::server) epoch: u64,
    /// Only while it moves.
    pub(super) moving: Option<Box<Moving>>,
    /// Only while its image comes.
    pub(super) image: Option<Box<Incoming>>,
    /// Only if it has copies.
    pub(in crate::server) chain: Option<Box<Chain>>,
    pub(in crate::server) shard: Box<dyn Shard>,
    pub(in crate::server) filters: Option<Box<AtServer>>,
    /// `None` if the table has no consistency model.
    pub(in crate::server) admission: Option<Box<AdmissionController>>,
}

impl Replica {
    /// Whether this is the shard of `key` of this table.
    #[inline]
    pub(in crate::server) fn has(&self, number: u32, key: u64) -> bool {
        self.number == number && self.range.contains(key)
    }

    /// Whether no other thread has to hear of what is pushed to it.
    #[inline(always)]
    pub(super) fn is_alone(&self) -> bool {
        self.moving.is_none() && self.chain.is_none()
    }

    /// Whether what is pushed to it goes on to no copy.
    pub(in crate::server) fn is_last(&self) -> bool {
        self.chain.as_ref().is_none_or(|chain| chain.is_last())
    }

    /// Applies a push, and remembers that if its table knows repeats.
    ///
    /// # Errors
    /// The reason why it is invalid.
    #[inline(always)]
    pub(super) fn push(&mut self, request: &Request<'_>, memory: &Pool) -> Result<(), Refused> {
        self.shard.push(request, memory)?;
        if let Some(admission) = &mut self.admission
            && admission.knows_repeats()
        {
            admission.applied(request);
        }
        Ok(())
    }

    /// Checks that its handle may answer requests later.
    ///
    /// # Errors
    /// The reason why its table has to answer at once.
    pub(super) fn check_keeps(&self) -> Result<(), Refused> {
        let Replica { spec, filters, admission, moving, chain, .. } = self;
        let why = [
            (filters.is_some(), "has filters"),
            (admission.is_some(), "has a consistency model"),
            (chain.is_some(), "has replicas"),
            (moving.is_some(), "has a shard that moves or is being read"),
        ];
        match why.iter().find(|(is_so, _)| *is_so) {
            Some((_, why)) => Err(Refusal::Unsupported
                .because(format!("table {} {why}, so its handle cannot answer later", spec.name))),
            None => Ok(()),
        }
    }

    /// Checks that sorted keys are in this shard. The decoder has checked their order.
    ///
    /// # Errors
    /// A text that names the first or last key.
    pub(in crate::server) fn check_keys(&self, keys: &[u64]) -> Result<(), Refused> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(()) };
        let Replica { range, spec, .. } = self;
        match [first, last].into_iter().find(|key| !range.contains(**key)) {
            None => Ok(()),
            Some(key) => Err(Refusal::Key.because(format!(
                "key {key} of table {} is not in its shard of keys {} to {}",
                spec.name,
                range.begin(),
                range.last()
            ))),
        }
    }
}
