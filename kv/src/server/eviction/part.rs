//! Rows that come, and the part of them that is kept.

use caravan_van::Value;

use crate::server::shard::Request;

/// Rows that come, with a push or from another shard.
#[derive(Clone, Copy)]
pub(super) struct Incoming<'a> {
    pub(super) keys: &'a [u64],
    pub(super) lengths: &'a [u32],
    pub(super) values: &'a [u8],
}

impl Incoming<'_> {
    /// Whether each key has its values. If not, the rows say why.
    pub(super) fn is_sound(&self, width: usize) -> bool {
        let Incoming { keys, lengths, values } = *self;
        match width {
            0 if lengths.len() != keys.len() => false,
            0 => {
                let rows: usize = lengths.iter().map(|length| *length as usize).sum();
                if rows == 0 { values.is_empty() } else { values.len().is_multiple_of(rows) }
            }
            _ if keys.is_empty() => values.is_empty(),
            _ => values.len().is_multiple_of(keys.len()),
        }
    }
}

/// The part of what comes that gets rows, or had them.
#[derive(Default)]
pub(super) struct Part {
    pub(super) places: Vec<u32>,
    /// The keys without rows, which were or were not admitted.
    pub(super) asked: Vec<u64>,
    /// Whether it is all of it; there are no copies then.
    is_whole: bool,
    keys: Vec<u64>,
    lengths: Vec<u32>,
    /// The values, aligned, of which the first `bytes` bytes count.
    values: Vec<u64>,
    bytes: usize,
}

impl Part {
    /// Bytes that a key takes here and among the found and inserted ones, without its values.
    pub(super) const KEY_BYTES: usize = 3 * size_of::<u32>() + 3 * size_of::<u64>();

    /// All of what comes.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.asked.clear();
        self.is_whole = true;
    }

    /// Copies the rows at its places, which are not all.
    pub(super) fn copy(&mut self, incoming: Incoming<'_>) {
        let Incoming { keys, lengths, values } = incoming;
        self.is_whole = false;
        let all: usize = lengths.iter().map(|length| *length as usize).sum();
        let size = if lengths.is_empty() { keys.len() } else { all };
        let size = values.len().checked_div(size).unwrap_or(0);
        let bytes_of = |at: usize| lengths.get(at).map_or(1, |length| *length as usize) * size;
        self.keys.clear();
        self.lengths.clear();
        self.values.resize(values.len().div_ceil(8), 0);
        let room = u64::bytes_mut(&mut self.values);
        let (mut from, mut to) = (0, 0);
        let mut next = self.places.iter().peekable();
        for (at, key) in keys.iter().enumerate() {
            let bytes = bytes_of(at);
            if next.next_if(|place| **place as usize == at).is_some() {
                self.keys.push(*key);
                self.lengths.extend(lengths.get(at));
                room[to..to + bytes].copy_from_slice(&values[from..from + bytes]);
                to += bytes;
            }
            from += bytes;
        }
        self.bytes = to;
    }

    /// The rows of it.
    pub(super) fn rows<'a>(&'a self, incoming: Incoming<'a>) -> Incoming<'a> {
        if self.is_whole {
            return incoming;
        }
        let values = &u64::bytes(&self.values)[..self.bytes];
        Incoming { keys: &self.keys, lengths: &self.lengths, values }
    }

    /// The push of it.
    pub(super) fn of<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        let Request { keys, lengths, values, .. } = *request;
        let Incoming { keys, lengths, values } = self.rows(Incoming { keys, lengths, values });
        Request { keys, lengths, values, rows: None, ..*request }
    }
}
