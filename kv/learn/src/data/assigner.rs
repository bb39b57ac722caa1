//! Gives out blocks of files to readers, near ones first. A plain object: whoever has it says who
//! asks. [`answers`] puts it behind a handler of the driver, whom all workers ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use caravan_kv::error::with_sources;
use caravan_kv::{Asked, Handler, RequestId, Rpc, WorkerNode};
use serde::{Deserialize, Serialize};

use super::Cut;
use crate::{Error, Result};

/// A block and the hosts that have copies of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The block.
    pub cut: Cut,
    /// Readers at these hosts get it before others do.
    pub hosts: BTreeSet<String>,
}

/// Who asks for a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// Its number among the readers, from 0.
    pub number: usize,
    /// Where it is.
    pub host: String,
    /// Whether it reads blocks of other hosts once its own has none left.
    pub takes_far: bool,
    /// How many of the last blocks that it was given it has not read to their ends: 0 where it asks
    /// for a block when it has read the one before.
    pub holds: usize,
}

/// The blocks that are left in this pass over the files.
#[derive(Debug)]
pub struct Assigner {
    blocks: Vec<Placed>,
    /// Blocks that are left, by the hosts that have them; without a host under an empty name.
    left: BTreeMap<String, BTreeSet<usize>>,
    /// What each reader has not read to its end, in the order in which it got them.
    reads: BTreeMap<usize, VecDeque<usize>>,
    /// The readers of which each pass ends when it has nothing left for them.
    readers: BTreeSet<usize>,
    /// Those that have heard so.
    ended: BTreeSet<usize>,
}

impl Assigner {
    /// Gives these blocks to so many readers, pass after pass.
    pub fn new(blocks: Vec<Placed>, readers: usize) -> Self {
        let readers = (0..readers).collect();
        let (left, reads, ended) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut assigner = Assigner { blocks, left, reads, readers, ended };
        (0..assigner.blocks.len()).for_each(|block| assigner.add(block));
        assigner
    }

    fn add(&mut self, block: usize) {
        for host in hosts(&self.blocks[block]) {
            self.left.entry(host).or_default().insert(block);
        }
    }

    fn remove(&mut self, block: usize) {
        for host in hosts(&self.blocks[block]) {
            if let Some(left) = self.left.get_mut(&host) {
                left.remove(&block);
            }
        }
        self.left.retain(|_, left| !left.is_empty());
    }

    /// The next block for a reader: one of its host, else one without a host, else one of the host
    /// that has most left. `None` ends its pass; when all readers have heard that, the next pass
    /// begins.
    pub fn next(&mut self, reader: &Reader) -> Option<Cut> {
        let reads = self.reads.entry(reader.number).or_default();
        reads.drain(..reads.len().saturating_sub(reader.holds));
        if !self.ended.is_empty() && self.readers.is_subset(&self.ended) {
            self.ended.clear();
            self.left.clear();
            (0..self.blocks.len()).for_each(|block| self.add(block));
        }
        let has_ended = self.ended.contains(&reader.number);
        match self.find(reader).filter(|_| !has_ended) {
            Some(block) => {
                self.remove(block);
                self.reads.entry(reader.number).or_default().push_back(block);
                Some(self.blocks[block].cut.clone())
            }
            None => {
                self.ended.insert(reader.number);
                None
            }
        }
    }

    fn find(&self, reader: &Reader) -> Option<usize> {
        let near = self.left.get(&reader.host).or_else(|| self.left.get(""));
        let far = || self.left.values().max_by_key(|left| left.len()).filter(|_| reader.takes_far);
        near.or_else(far)?.first().copied()
    }

    /// Goes on without a reader that is lost: others get the blocks that it has not read to their
    /// ends.
    pub fn lose(&mut self, reader: usize) {
        self.readers.remove(&reader);
        self.ended.remove(&reader);
        let reads = self.reads.remove(&reader).unwrap_or_default();
        if !reads.is_empty() {
            // Who has heard that nothing is left may ask again.
            self.ended.clear();
        }
        reads.into_iter().for_each(|block| self.add(block));
    }
}

/// The hosts of a block; an empty name stands for none.
fn hosts(block: &Placed) -> Vec<String> {
    match block.hosts.is_empty() {
        true => vec![String::new()],
        false => block.hosts.iter().cloned().collect(),
    }
}

/// Answers [`ask`] for as long as an RPC endpoint has it.
pub fn answers(mut assigner: Assigner) -> impl Handler {
    move |rpc: &mut Rpc, asked: Asked| {
        let reader = serde_json::from_slice(&asked.body);
        let outcome = reader.map(|reader: Reader| assigner.next(&reader));
        let answered = match outcome.and_then(|block| serde_json::to_vec(&block)) {
            Ok(block) => rpc.answer(asked.token, &block),
            Err(error) => rpc.refuse(asked.token, &with_sources(&error)),
        };
        // Each request is answered here, once.
        let _ = answered;
    }
}

/// How long the driver may take to answer: it does while it waits for a task.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// Asks the handler `name` of the driver, whose task this worker runs, for the next block.
///
/// # Errors
/// [`Error::Train`] if it does not answer, or has no such handler.
pub fn ask(node: &mut WorkerNode, name: &str, reader: &Reader) -> Result<Option<Cut>> {
    let asked = request(node, name, reader)?;
    answer(node, asked)
}

fn failed(reason: String) -> Error {
    Error::Train { reason: format!("no block of files: {reason}") }
}

/// As [`ask`], without the wait for the answer.
///
/// # Errors
/// As [`ask`].
pub(crate) fn request(node: &mut WorkerNode, name: &str, reader: &Reader) -> Result<RequestId> {
    let body = serde_json::to_vec(reader).map_err(|error| failed(with_sources(&error)))?;
    let to = node.driver();
    let asked = node.rpc(|rpc| rpc.ask(to, name, 0, &body)).and_then(|asked| asked);
    asked.map_err(|error| failed(with_sources(&error)))
}

/// The answer to a [`request`], once it is there.
///
/// # Errors
/// As [`ask`].
pub(crate) fn answer(node: &mut WorkerNode, asked: RequestId) -> Result<Option<Cut>> {
    let answers = node.wait_for(asked, ANSWERS_WITHIN);
    let answers = answers.map_err(|error| failed(with_sources(&error)))?;
    let answer = answers.into_iter().next().ok_or_else(|| failed("no answer".to_owned()))?;
    let body = answer.outcome.map_err(failed)?;
    serde_json::from_slice(&body).map_err(|error| failed(with_sources(&error)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn block(number: u64, hosts: &[&str]) -> Placed {
        let cut = Cut { path: "file".into(), begin: number, end: number + 1 };
        Placed { cut, hosts: hosts.iter().map(|&host| host.to_owned()).collect() }
    }

    fn reader(number: usize, host: &str) -> Reader {
        Reader { number, host: host.to_owned(), takes_far: true, holds: 0 }
    }

    /// The number of the next block.
    fn next(assigner: &mut Assigner, reader: &Reader) -> Option<u64> {
        assigner.next(reader).map(|cut| cut.begin)
    }

    #[test]
    fn near_blocks_come_first_and_each_comes_once() {
        let blocks = vec![
            block(0, &["a", "b"]),
            block(1, &["b"]),
            block(2, &["c"]),
            block(3, &["c"]),
            block(4, &[]),
        ];
        let mut assigner = Assigner::new(blocks, 2);
        let (a, b) = (reader(0, "a"), reader(1, "b"));
        assert_eq!(next(&mut assigner, &b), Some(0), "it is gone from a, too");
        assert_eq!(next(&mut assigner, &a), Some(4), "what is nobody's");
        assert_eq!(next(&mut assigner, &a), Some(2), "of the host with the most left");
        assert_eq!(next(&mut assigner, &b), Some(1));
        assert_eq!(next(&mut assigner, &b), Some(3));
        // A second pass begins when both have heard of the end, and not before.
        assert_eq!(next(&mut assigner, &b), None);
        assert_eq!(next(&mut assigner, &b), None);
        assert_eq!(next(&mut assigner, &a), None);
        let second: Vec<u64> = std::iter::from_fn(|| next(&mut assigner, &a)).collect();
        assert_eq!(second.len(), 5);
        assert_eq!(next(&mut assigner, &b), None);
        assert_eq!(next(&mut assigner, &b), Some(0), "the third");
    }

    #[test]
    fn a_reader_may_take_near_blocks_alone() {
        let mut assigner = Assigner::new(vec![block(0, &["a"]), block(1, &["b"])], 1);
        let near = Reader { takes_far: false, ..reader(0, "a") };
        assert_eq!(next(&mut assigner, &near), Some(0));
        assert_eq!(next(&mut assigner, &near), None);
        assert_eq!(next(&mut assigner, &near), Some(0), "the second pass");
    }

    #[test]
    fn others_read_what_a_lost_reader_has_not() {
        let mut assigner = Assigner::new(vec![block(0, &[]), block(1, &[])], 2);
        let [lost, other] = [0, 1].map(|number| reader(number, "a"));
        assert_eq!(next(&mut assigner, &lost), Some(0));
        assert_eq!(next(&mut assigner, &other), Some(1));
        assert_eq!(next(&mut assigner, &other), None);
        assigner.lose(0);
        assert_eq!(next(&mut assigner, &other), Some(0));
        assert_eq!(next(&mut assigner, &other), None);
        assert_eq!(next(&mut assigner, &other), Some(0), "the second pass, of one reader");
        assert_eq!(Assigner::new(Vec::new(), 1).next(&other), None);
    }

    #[test]
    fn a_lost_reader_may_have_held_several_blocks() {
        let mut assigner = Assigner::new((0..4).map(|number| block(number, &[])).collect(), 2);
        let [ahead, other] = [0, 1].map(|number| reader(number, "a"));
        assert_eq!(next(&mut assigner, &ahead), Some(0));
        assert_eq!(next(&mut assigner, &Reader { holds: 1, ..ahead.clone() }), Some(1));
        assert_eq!(next(&mut assigner, &Reader { holds: 1, ..ahead }), Some(2), "0 is read");
        assigner.lose(0);
        let rest: Vec<u64> = std::iter::from_fn(|| next(&mut assigner, &other)).collect();
        assert_eq!(rest, [1, 2, 3]);
    }
}
