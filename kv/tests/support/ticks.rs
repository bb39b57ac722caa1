//! A shard that is no rows: it counts commands, and pulls wait for their number.

use caravan_kv::consistency::Admission;
use caravan_kv::server::{Pulled, Request};
use caravan_kv::{Handles, Refusal, Refused, Shard, Table, TableSpec, ValueType, Worker};
use caravan_van::{KeyRange, Pool};

/// Counts commands. A pull waits until there were as many as its clock says.
#[derive(Default)]
struct Ticks {
    count: u64,
    answer: [u8; 8],
}

/// Bytes of the image: several pieces.
const IMAGE_BYTES: usize = 500;

impl Shard for Ticks {
    fn admit(&self, request: &Request<'_>) -> Admission {
        match request.pulls && request.clock > self.count {
            true => Admission::AfterClock(request.clock),
            false => Admission::Now,
        }
    }

    fn clock(&self) -> u64 {
        self.count
    }

    fn push(&mut self, _request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        Err(Refusal::Shape.because("ticks are commands"))
    }

    fn pull(&mut self, _request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        self.answer = self.count.to_le_bytes();
        Ok(Pulled::Stored(&self.answer))
    }

    fn read(&mut self, _request: &Request<'_>, _into: &mut [u8]) {}

    fn command(&mut self, _sender: u32, _body: &[u8]) -> Result<Vec<u8>, Refused> {
        self.count += 1;
        Ok(self.count.to_le_bytes().to_vec())
    }

    fn image_bytes(&self) -> Option<usize> {
        Some(IMAGE_BYTES)
    }

    fn image(&self, image: &mut Vec<u8>) {
        image.extend_from_slice(&self.count.to_le_bytes());
        image.resize(IMAGE_BYTES, self.count as u8);
    }

    fn restore(&mut self, image: &[u8], _memory: &Pool) -> Result<(), Refused> {
        assert_eq!(self.count, 0, "it is new");
        let (count, rest) = image.split_first_chunk().expect("it is whole");
        self.count = u64::from_le_bytes(*count);
        assert_eq!(rest, [self.count as u8; IMAGE_BYTES - 8]);
        Ok(())
    }
}

/// These handles, and that of ticks.
pub(crate) fn with_ticks(handles: Handles) -> Handles {
    handles.with("ticks", |_, _, _| Ok(Box::<Ticks>::default()))
}

/// A table of ticks, whose shards have these keys.
pub(crate) fn ticks(keys: u64) -> TableSpec {
    let spec = TableSpec::new(3, "ticks", ValueType::U64, 1).handle("ticks");
    spec.keys(KeyRange::new(0, keys).unwrap())
}

/// Commands all shards, behind a pull that waits for this; returns their counts. There were
/// `before` at the first of them.
pub(crate) fn tick(worker: &mut Worker, table: Table, before: u64) -> Vec<u64> {
    worker.set_clock(before + 1);
    let pulled = worker.pull(table, &[0]).unwrap();
    let ticked = worker.command(table, &[]).unwrap();
    worker.set_clock(0);
    let counts = worker.wait(ticked).unwrap().replies;
    assert!(worker.wait(pulled).unwrap().values::<u64>()[0] > before);
    counts.iter().map(|count| u64::from_le_bytes(count[..].try_into().unwrap())).collect()
}

/// Checks that each command was counted once at each shard: the counts are those of all commands.
pub(crate) fn check_ticks<'a>(counts: impl IntoIterator<Item = &'a Vec<u64>>, what: &str) {
    let mut ticked: Vec<Vec<u64>> = Vec::new();
    for of in counts {
        ticked.resize(of.len(), Vec::new());
        ticked.iter_mut().zip(of).for_each(|(all, it)| all.push(*it));
    }
    for mut counts in ticked {
        counts.sort_unstable();
        let each_once = counts.iter().copied().eq(1..=counts.len() as u64);
        assert!(each_once, "{what}: commands were counted {counts:?}");
    }
}
