//! The sketch of a server thread.

use caravan_kv::server::{Extract, Pulled, Request};
use caravan_kv::{Handles, Refusal, Refused, Shard, TableSpec, ValueType};
use caravan_van::{Account, KeyRange, Pool};
use serde::{Deserialize, Serialize};

use super::{Cell, CountMin, HANDLE};

/// The command that halves the cells of every sketch of a table, for half the memory. An empty
/// command ends the counting and frees them.
pub(super) const HALVE: &[u8] = b"halve";

/// What the command begins with that asks for cells, from the number behind it on.
const CELLS: &[u8] = b"cells";

/// What the command begins with that adds cells: those of an answer to [`CELLS`], whose number is
/// between the two.
const MERGE: &[u8] = b"merge";

/// Bytes of the cells of an answer.
const ANSWER_BYTES: usize = 64 << 10;

/// Most bytes of a sketch that goes to another server thread, which it does in one message.
const GIVEN_BYTES_MAX: usize = 1 << 30;

/// Options of the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Cells of each server thread, at least 1.
    pub cells: u64,
    /// Hash functions, 1 to [`Options::HASHES_MAX`].
    pub hashes: u8,
}

impl Options {
    /// Most bytes of a server thread's cells.
    pub const BYTES_MAX: u64 = 1 << 34;

    /// Most hash functions.
    pub const HASHES_MAX: u8 = 30;
}

/// Adds the handle.
pub fn handle(handles: Handles) -> Handles {
    handles.with(HANDLE, |spec, range, memory| {
        Ok(match spec.value {
            ValueType::U8 => Box::new(Counts::<u8>::new(spec, range, memory)?) as Box<dyn Shard>,
            ValueType::U32 => Box::new(Counts::<u32>::new(spec, range, memory)?),
            ValueType::U64 => Box::new(Counts::<u64>::new(spec, range, memory)?),
            other => {
                return Err(Refusal::Shape.because(format!(
                    "a sketch counts in u8, u32 or u64, and the table holds {}",
                    other.name()
                )));
            }
        })
    })
}

/// The command for cells from this one on.
pub(super) fn cells_from(from: u64) -> Vec<u8> {
    [CELLS, &from.to_le_bytes()].concat()
}

/// The command that adds the cells of an answer, from this one on.
pub(super) fn merge_from(from: u64, answer: &[u8]) -> Vec<u8> {
    [MERGE, &from.to_le_bytes(), answer].concat()
}

/// Number of the cells in an answer.
pub(super) fn cells_in(answer: &[u8]) -> u64 {
    let Some((layout, cells)) = Layout::read(answer) else { return 0 };
    let value = ValueType::ALL.into_iter().find(|it| u64::from(it.code()) == layout.value);
    value.map_or(0, |value| (cells.len() / value.bytes()) as u64)
}

/// What a command asks for.
enum Command<'a> {
    End,
    Halve,
    Cells { from: usize },
    Merge { from: usize, cells: &'a [u8] },
}

impl<'a> Command<'a> {
    fn read(body: &'a [u8]) -> Option<Self> {
        if body.is_empty() {
            return Some(Command::End);
        }
        let number = |body: &'a [u8]| {
            let (number, rest) = body.split_first_chunk()?;
            Some((usize::try_from(u64::from_le_bytes(*number)).ok()?, rest))
        };
        match body.split_at_checked(CELLS.len())? {
            (HALVE, []) => Some(Command::Halve),
            (CELLS, rest) => {
                let (from, rest) = number(rest)?;
                rest.is_empty().then_some(Command::Cells { from })
            }
            (MERGE, rest) => number(rest).map(|(from, cells)| Command::Merge { from, cells }),
            _ => None,
        }
    }
}

/// What two sketches have in common whose cells can be added. It stands before cells that leave
/// their server thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    value: u64,
    hashes: u64,
    cells: u64,
    /// First and last key that are counted.
    first: u64,
    last: u64,
}

impl Layout {
    const BYTES: usize = 40;

    fn bytes(self) -> [u8; Self::BYTES] {
        let Layout { value, hashes, cells, first, last } = self;
        let mut bytes = [0; Self::BYTES];
        let places = bytes.chunks_exact_mut(8).zip([value, hashes, cells, first, last]);
        places.for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    /// Reads a layout, and the cells behind it.
    fn read(bytes: &[u8]) -> Option<(Layout, &[u8])> {
        let (head, rest) = bytes.split_at_checked(Self::BYTES)?;
        let [value, hashes, cells, first, last] = head.as_chunks().0 else { return None };
        let [value, hashes, cells, first, last] =
            [value, hashes, cells, first, last].map(|number| u64::from_le_bytes(*number));
        Some((Layout { value, hashes, cells, first, last }, rest))
    }
}

/// A server thread's counts.
struct Counts<C> {
    sketch: CountMin<C>,
    range: KeyRange,
    answer: Vec<C>,
    /// Accounts for the cells and the answer.
    memory: Account,
}

impl<C: Cell> Counts<C> {
    fn new(spec: &TableSpec, range: KeyRange, memory: &Pool) -> Result<Self, Refused> {
        let options: Options = serde_json::from_value(spec.options.clone())?;
        let Options { cells, hashes } = options;
        let cells_max = Options::BYTES_MAX / C::BYTES as u64;
        if !(1..=cells_max).contains(&cells) || !(1..=Options::HASHES_MAX).contains(&hashes) {
            return Err(Refusal::Shape.because(format!(
                "the settings of a sketch are invalid: {options:?}; take 1 to {cells_max} cells, \
                 and 1 to {} hash functions",
                Options::HASHES_MAX
            )));
        }
        if spec.width != 1 {
            return Err(Refusal::Shape
                .because(format!("a key has one count, and the table's width is {}", spec.width)));
        }
        let mut memory = Account::new(memory, "a sketch");
        memory.set(cells as usize * C::BYTES)?;
        let sketch = CountMin::new(cells as usize, hashes);
        let sketch = sketch.map_err(|error| {
            Refusal::Memory.because(format!("no memory for {cells} cells: {error}"))
        })?;
        Ok(Counts { sketch, range, answer: Vec::new(), memory })
    }

    fn layout(&self) -> Layout {
        Layout {
            value: C::CODE.into(),
            hashes: self.sketch.hashes().into(),
            cells: self.sketch.cells().len() as u64,
            first: self.range.begin(),
            last: self.range.last(),
        }
    }

    /// Makes the answer this long.
    fn make_room(&mut self, values: usize) -> Result<(), Refused> {
        self.answer.clear();
        let reserved = self.memory.reserve(&mut self.answer, values);
        reserved.map_err(Refused::from)
    }

    fn halve(&mut self) -> Result<(), Refused> {
        let cells = self.sketch.cells().len();
        if !self.sketch.halve() {
            return Err(Refusal::Shape
                .because(format!("{cells} cells have no half: begin with an even number")));
        }
        self.memory.release(cells / 2 * C::BYTES);
        Ok(())
    }

    /// Adds cells of another sketch, from cell `from` on.
    fn merge(&mut self, from: usize, bytes: &[u8]) -> Result<(), Refused> {
        let own = self.layout();
        let (layout, cells) = Layout::read(bytes)
            .ok_or_else(|| Refusal::Internal.because("the cells are cut off"))?;
        if layout != own {
            return Err(Refusal::Shape
                .because(format!("sketches differ: {layout:?} cannot be added to {own:?}")));
        }
        let count = cells.len() / C::BYTES;
        let is_there = from.checked_add(count).is_some_and(|end| end <= self.sketch.cells().len());
        if !is_there || !cells.len().is_multiple_of(C::BYTES) {
            return Err(Refusal::Shape
                .because(format!("{} bytes are no cells from {from} on", cells.len())));
        }
        self.make_room(count)?;
        self.answer.resize(count, C::default());
        C::bytes_mut(&mut self.answer).copy_from_slice(cells);
        let own = self.sketch.cells_mut()[from..].iter_mut();
        own.zip(&self.answer).for_each(|(cell, other)| *cell = cell.plus(*other));
        Ok(())
    }
}

impl<C: Cell> Shard for Counts<C> {
    fn push(&mut self, request: &Request<'_>, _memory: &Pool) -> Result<(), Refused> {
        let keys = request.keys;
        let counts = C::view(request.values).filter(|counts| counts.len() == keys.len());
        let counts = counts.ok_or_else(|| {
            let (keys, bytes) = (keys.len(), request.values.len());
            Refusal::Shape.because(format!("{keys} keys came with {bytes} bytes of counts"))
        })?;
        keys.iter().zip(counts).for_each(|(&key, &count)| self.sketch.add(key, count));
        Ok(())
    }

    fn pull(&mut self, request: &Request<'_>) -> Result<Pulled<'_>, Refused> {
        self.make_room(request.keys.len())?;
        self.answer.extend(request.keys.iter().map(|&key| self.sketch.estimate(key)));
        Ok(Pulled::Bytes(size_of_val(&self.answer[..])))
    }

    fn read(&mut self, _request: &Request<'_>, into: &mut [u8]) {
        into.copy_from_slice(C::bytes(&self.answer));
    }

    /// All cells are one row, that of the first key: every push changes cells anywhere.
    fn give(
        &self,
        _from: u64,
        _bytes_max: usize,
        extract: &mut Extract,
    ) -> Result<Option<u64>, Refused> {
        let cells = C::bytes(self.sketch.cells());
        if cells.len() > GIVEN_BYTES_MAX {
            return Err(Refusal::Shape.because(format!(
                "a sketch of {} bytes is over the {GIVEN_BYTES_MAX} that go to another server: \
                 take fewer cells, or more servers",
                cells.len()
            )));
        }
        extract.keys.push(self.range.begin());
        extract.values.extend_from_slice(&self.layout().bytes());
        extract.values.extend_from_slice(cells);
        Ok(None)
    }

    fn take(
        &mut self,
        _keys: &[u64],
        _lengths: &[u32],
        values: &[u8],
        _memory: &Pool,
    ) -> Result<(), Refused> {
        let own = self.layout();
        let (layout, cells) = Layout::read(values)
            .ok_or_else(|| Refusal::Internal.because("the sketch is cut off"))?;
        let bytes = layout.cells.checked_mul(C::BYTES as u64);
        let fits = (1..=own.cells).contains(&layout.cells) && bytes == Some(cells.len() as u64);
        // A sketch may have been halved.
        if (Layout { cells: own.cells, ..layout }) != own || !fits {
            return Err(Refusal::Shape.because(format!(
                "{layout:?} with {} bytes cannot take the place of {own:?}: counts of other keys, \
                 as with another number of server threads, cannot be told apart",
                cells.len()
            )));
        }
        self.sketch.truncate(layout.cells as usize);
        C::bytes_mut(self.sketch.cells_mut()).copy_from_slice(cells);
        self.memory.release((own.cells - layout.cells) as usize * C::BYTES);
        Ok(())
    }

    fn command(&mut self, _sender: u32, body: &[u8]) -> Result<Vec<u8>, Refused> {
        let command = Command::read(body).ok_or_else(|| {
            let body = String::from_utf8_lossy(&body[..body.len().min(40)]);
            Refusal::Shape.because(format!(
                "a sketch takes the command halve, or an empty one, and was given {body:?}"
            ))
        })?;
        match command {
            Command::Halve => self.halve()?,
            Command::Merge { from, cells } => self.merge(from, cells)?,
            Command::Cells { from } => {
                let cells = self.sketch.cells().get(from..).unwrap_or_default();
                let cells = &cells[..cells.len().min(ANSWER_BYTES / C::BYTES)];
                return Ok([&self.layout().bytes(), C::bytes(cells)].concat());
            }
            Command::End => {
                self.sketch = CountMin::new(1, 1)?;
                self.answer = Vec::new();
                self.memory.release(usize::MAX);
            }
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn build(
        memory: &Pool,
        value: ValueType,
        width: u32,
        cells: u64,
        hashes: u8,
    ) -> Result<Box<dyn Shard>, Refused> {
        let options = serde_json::to_value(Options { cells, hashes }).unwrap();
        let spec = TableSpec::new(1, "t", value, width).handle(HANDLE).options(options);
        handle(Handles::default()).build(&spec, spec.range().unwrap(), memory)
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        let memory = Pool::new(64 << 20);
        for (value, width, cells, hashes, says) in [
            (ValueType::U8, 1, u64::MAX, 2, "1 to 17179869184 cells"),
            (ValueType::U64, 1, 3 << 30, 2, "1 to 2147483648 cells"),
            (ValueType::U8, 1, 0, 2, "1 to"),
            (ValueType::U8, 1, 64, 31, "30 hash functions"),
            (ValueType::F32, 1, 64, 2, "holds f32"),
            (ValueType::U32, 2, 64, 2, "width is 2"),
            (ValueType::U8, 1, 4 << 30, 2, "4294967296 bytes"),
            (ValueType::U32, 1, 1 << 30, 2, "CARAVAN_MEMORY"),
        ] {
            let said = build(&memory, value, width, cells, hashes).err().unwrap();
            assert!(said.reason.contains(says), "{said}");
        }
        assert_eq!(memory.bytes_left(), 56 << 20, "nothing is taken for it");
        build(&memory, ValueType::U32, 1, 64, 2).unwrap();
    }

    /// No cells from elsewhere can make a sketch panic or take what is not its own.
    #[test]
    fn cells_of_another_layout_are_refused() {
        let memory = Pool::new(16 << 20);
        let mut sketch = build(&memory, ValueType::U32, 1, 64, 2).unwrap();
        let mut rows = Extract::default();
        assert_eq!(sketch.give(0, 1, &mut rows), Ok(None));
        sketch.take(&rows.keys, &[], &rows.values, &memory).unwrap();
        let mut take = |layout: Layout, bytes: usize| {
            let values = [&layout.bytes()[..], &vec![1; bytes]].concat();
            sketch.take(&[0], &[], &values, &memory)
        };
        let own = Layout { value: 8, hashes: 2, cells: 64, first: 0, last: u64::MAX };
        take(own, 256).unwrap();
        for (layout, bytes) in [
            (own, 255),
            (own, 0),
            (Layout { cells: 0, ..own }, 0),
            (Layout { cells: 65, ..own }, 260),
            (Layout { cells: u64::MAX, ..own }, 4),
            (Layout { hashes: 3, ..own }, 256),
            (Layout { value: 9, ..own }, 256),
            (Layout { last: 5, ..own }, 256),
        ] {
            let said = take(layout, bytes).unwrap_err();
            assert!(said.reason.contains("cannot take the place"), "{said}");
        }
        take(Layout { cells: 32, ..own }, 128).unwrap();
        let mut merge = |from, bytes: &[u8]| sketch.command(1, &merge_from(from, bytes));
        let halved = Layout { cells: 32, ..own };
        let cells = |count: usize| [&halved.bytes()[..], &vec![1; 4 * count]].concat();
        merge(31, &cells(1)).unwrap();
        for (from, bytes) in [
            (32, cells(1)),
            (u64::MAX, cells(1)),
            (0, cells(33)),
            (0, cells(1)[..43].to_vec()),
            (0, own.bytes().to_vec()),
            (0, vec![0; 39]),
        ] {
            merge(from, &bytes).unwrap_err();
        }
        for body in [&b"double"[..], b"hal", b"halve!", b"cells1234567", b"merge"] {
            assert!(sketch.command(1, body).unwrap_err().reason.contains("takes the command"));
        }
    }
}
