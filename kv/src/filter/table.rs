//! The filters of one table at one end: their state and their counters.

use caravan_van::wire::Coding;
use caravan_van::{Buffer, Draft, Message, Pool, Values};

use super::FILTERED;
use super::draws::Draws;
use super::key_cache::{KEYS_MIN, Sent, Signed};
use super::own::{self, Own, OwnFilters};
use super::significant::Kept;
use super::skip::Skip;
use super::spec::Filters;
use super::stack::{self, Block, Decoded, Number, Rows, encode as make_block};
use super::traffic::{Flows, Passage, Passed, Stage, Traffic};
use crate::error::{Error, Result};
use crate::refusal::{Refusal, Refused};
use crate::table::{TableSpec, with_type};

/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 8;

/// The filters at a worker.
pub(crate) struct AtWorker {
    filters: Filters,
    own: Own,
    lossless: bool,
    pub(crate) sent: Option<Sent>,
    skip: Option<Skip>,
    significant: Option<Kept>,
    draws: Draws,
    carrying: Vec<bool>,
    keys: Vec<u64>,
    traffic: Traffic,
    /// No stage changes a request for fewer keys than this, nor its answer.
    pass_keys: usize,
    pub(crate) passed: Passed,
}

impl AtWorker {
    /// The filters at worker `node`, which has random streams of its own.
    pub(crate) fn new(spec: &TableSpec, own: Own, node: u32) -> AtWorker {
        let filters = spec.filters;
        let stream = |number| {
            let table = u64::from(spec.id) << 2 | number;
            Draws::new(filters.seed, u64::from(node) << 34 | table)
        };
        let width = spec.width as usize;
        let only_names_keys = own.is_none() && only_names_keys(&filters);
        AtWorker {
            filters,
            own,
            lossless: false,
            sent: filters.key_cache.then(Sent::new),
            skip: filters.skip.map(|share| Skip::new(share, stream(0))),
            significant: filters.significant.map(|threshold| Kept::new(threshold, width)),
            draws: stream(1),
            carrying: Vec::new(),
            keys: Vec::new(),
            traffic: Traffic::default(),
            pass_keys: if only_names_keys { KEYS_MIN } else { 0 },
            passed: Passed::default(),
        }
    }

    /// Whether a request for this many keys bypasses the filters.
    #[inline]
    pub(crate) fn pass(&self, keys: usize) -> bool {
        keys < self.pass_keys
    }

    /// Everything counted so far.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.and(self.passed)
    }

    /// Suspends lossy stages, or resumes them; returns the previous state.
    pub(crate) fn set_lossless(&mut self, lossless: bool) -> bool {
        std::mem::replace(&mut self.lossless, lossless)
    }

    /// Checks a request's keys and pushed values; returns the keys with their signature if they are
    /// to be cached, which they are not if the message does not name them.
    ///
    /// # Errors
    /// Those of `check` for new keys; [`Error::Config`] for values that are not finite, if any
    /// filter rounds or holds back.
    pub(crate) fn sign(
        &mut self,
        spec: &TableSpec,
        keys: &[u64],
        is_named: bool,
        pushed: &[u8],
        check: impl FnOnce(&[u64]) -> Result<()>,
    ) -> Result<Option<Signed>> {
        if self.filters.is_lossy() || self.own.is_lossy() {
            check_finite(spec, pushed)?;
        }
        match &mut self.sent {
            Some(sent) if is_named => sent.sign(keys, check),
            _ => check(keys).map(|()| None),
        }
    }

    /// Whether the lengths of answers are unknown until they arrive.
    pub(crate) fn shortens_answers(&self) -> bool {
        self.filters.makes_answer_blocks() || self.filters.snappy
    }

    /// Takes everything held back: sorted keys and their rows.
    pub(crate) fn drain(&mut self) -> (Vec<u64>, Vec<f64>) {
        self.significant.as_mut().map(Kept::drain).unwrap_or_default()
    }

    /// Applies all stages before key caching to `draft`, one server's part of a request that pushes
    /// `pushed`; `block` holds the result. With `drops_keys`, the keys of omitted rows are dropped
    /// as well.
    ///
    /// # Errors
    /// [`Error::Config`] if values span more than can be rounded; [`Error::Van`] if memory is
    /// short.
    pub(crate) fn encode<'a>(
        &'a mut self,
        spec: &TableSpec,
        draft: &mut Draft<'a>,
        pushed: &'a [u8],
        drops_keys: bool,
        block: &'a mut Option<Buffer>,
        pool: &Pool,
    ) -> Result<Passage> {
        let is_idle = self.own.is_none() && !self.filters.makes_blocks();
        if is_idle || draft.lengths.is_empty() && pushed.is_empty() {
            return Ok(passage(draft, pushed));
        }
        self.filter(spec, draft, pushed, drops_keys, block, pool)
    }

    /// Does what [`AtWorker::encode`] says. This is out of line, so that tables whose filters only
    /// name keys do not pay for it.
    #[inline(never)]
    fn filter<'a>(
        &'a mut self,
        spec: &TableSpec,
        draft: &mut Draft<'a>,
        pushed: &'a [u8],
        drops_keys: bool,
        block: &'a mut Option<Buffer>,
        pool: &Pool,
    ) -> Result<Passage> {
        let mut passage = passage(draft, pushed);
        let changed = match self.own.is_lossy() && !self.lossless {
            true => Some(self.own.change(spec, pushed, pool)?),
            false => None,
        };
        let values = changed.as_deref().unwrap_or(pushed);
        let selects = self.skip.is_some() || self.significant.is_some();
        let selected = match selects {
            true => {
                let push = Push { keys: draft.keys, values, clock: draft.clock, drops_keys };
                Some(
                    with_type!(spec.value, V => select::<V>(self, spec, push, pool, &mut passage))?,
                )
            }
            false => None,
        };
        let drops_keys = drops_keys && selects;
        if drops_keys {
            draft.keys = &self.keys;
        }
        let filters =
            if self.lossless { Filters { quantize: None, ..self.filters } } else { self.filters };
        let rows = Rows {
            width: spec.width as usize,
            lengths: draft.lengths,
            carrying: (selects && !drops_keys).then_some(&self.carrying[..]),
            count: draft.keys.len(),
            values: selected.as_deref().unwrap_or(values),
        };
        let draws = &mut self.draws;
        let made = match self.filters.makes_blocks() {
            true => {
                with_type!(spec.value, V => make_block::<V>(&filters, draws, rows, pool, &mut passage))
            }
            false => Ok(None),
        };
        let made = made.map_err(|why| {
            Error::Config(format!("a push to table {} cannot be filtered: {why}", spec.name))
        })?;
        let is_block = made.is_some();
        let bytes = match made {
            Some(Block { bytes, holds_lengths }) => {
                if holds_lengths {
                    draft.lengths = &[];
                }
                Some(bytes)
            }
            None => selected.or(changed),
        };
        let limit = own::limit(spec, draft.keys.len());
        let values = bytes.as_deref().unwrap_or(pushed);
        let coded = self.own.encode(is_block, values, limit, pool)?;
        if let Some(coded) = &coded {
            passage.through(Stage::Own, coded.len(), values.len());
        }
        if is_block || coded.is_some() {
            draft.op |= FILTERED;
        }
        if let Some(bytes) = coded.or(bytes) {
            draft.values = Values::Copied(block.insert(bytes));
        }
        Ok(passage)
    }

    /// Counts a sent part: whether it had a signature (`signed`), whether that replaced its keys
    /// (`named`), and the bytes that the codec saved.
    pub(crate) fn count_sent(
        &mut self,
        mut passage: Passage,
        signed: bool,
        named: bool,
        keys: usize,
        saved: u64,
    ) {
        count_keys(&mut passage, signed, named, keys);
        passage.through(Stage::Snappy, 0, saved as usize);
        passage.end(&mut self.traffic.sent);
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub(crate) fn receive(
        &mut self,
        spec: &TableSpec,
        message: Message,
        pool: &Pool,
    ) -> Result<Message, Refused> {
        let is_block = message.op() & FILTERED != 0;
        let message = if is_block { message.kept(pool)? } else { message };
        // Own filters are for pushes alone.
        match receive(spec, &mut Own::default(), &message, 0, pool, &mut self.traffic.received)? {
            None => Ok(message),
            Some(decoded) => {
                let Decoded { ref lengths, values, .. } = decoded;
                Ok(message.decoded(lengths.as_deref(), values, pool)?)
            }
        }
    }
}

/// The filters at a server thread.
pub(crate) struct AtServer {
    /// Those that apply to answers.
    filters: Filters,
    own: Own,
    coding: Coding,
    traffic: Traffic,
    /// No stage changes a request that carries its keys.
    only_names_keys: bool,
    pub(crate) passed: Passed,
}

impl AtServer {
    /// The filters of a table with this specification, if it has any.
    ///
    /// # Errors
    /// As [`OwnFilters::make`].
    pub(crate) fn new(spec: &TableSpec, known: &OwnFilters) -> Result<Option<Box<AtServer>>> {
        let own = known.make(spec, None)?;
        let Filters { mask, zero, narrow, snappy, .. } = spec.filters;
        let filters = Filters { mask, zero, narrow, snappy, ..Filters::NONE };
        let coding = if snappy { Coding::compact() } else { Coding::plain() };
        let only_names_keys = own.is_none() && spec.width > 0 && only_names_keys(&spec.filters);
        Ok(spec.has_filters().then(|| {
            Box::new(AtServer {
                filters,
                own,
                coding,
                traffic: Traffic::default(),
                only_names_keys,
                passed: Passed::default(),
            })
        }))
    }

    /// Whether a request and its answer bypass the filters; counts it if so.
    #[inline]
    pub(crate) fn pass(&mut self, message: &Message) -> bool {
        let bytes = size_of_val(message.keys()) + message.values().len();
        let passes = self.only_names_keys
            && (message.signature(), message.op() & FILTERED) == (None, 0)
            && message.offer().is_none()
            && message.wire_bytes() == bytes;
        self.passed.received += if passes { bytes as u64 } else { 0 };
        passes
    }

    /// Everything counted so far.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.and(self.passed)
    }

    /// Decodes a request for `keys` keys; `None` if it came unchanged.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub(crate) fn receive(
        &mut self,
        spec: &TableSpec,
        message: &Message,
        keys: usize,
        pool: &Pool,
    ) -> Result<Option<Decoded>, Refused> {
        receive(spec, &mut self.own, message, keys, pool, &mut self.traffic.received)
    }

    /// Encodes an answer's values and their numbers, and passes the result to `post`: whether the
    /// values are a block, the numbers, the values.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn answer<T>(
        &mut self,
        spec: &TableSpec,
        lengths: &[u32],
        values: &[u8],
        pool: &Pool,
        post: impl FnOnce(bool, &[u32], &[u8], &mut Coding) -> T,
    ) -> Result<T, Refused> {
        let mut passage = Passage::new(size_of_val(lengths) + values.len());
        let count = values.len().checked_div(spec.row_bytes()).unwrap_or(lengths.len());
        let width = spec.width as usize;
        let rows = Rows { width, lengths, carrying: None, count, values };
        let mut draws = Draws::new(0, 0); // never drawn from
        let block = match self.filters.makes_answer_blocks() {
            true => {
                let filters = &self.filters;
                with_type!(spec.value, V => make_block::<V>(filters, &mut draws, rows, pool, &mut passage))?
            }
            false => None,
        };
        let before = self.coding.saved_bytes();
        let posted = match block {
            None => post(false, lengths, values, &mut self.coding),
            Some(Block { bytes, holds_lengths }) => {
                let lengths = if holds_lengths { &[][..] } else { lengths };
                post(true, lengths, &bytes, &mut self.coding)
            }
        };
        passage.through(Stage::Snappy, 0, (self.coding.saved_bytes() - before) as usize);
        passage.end(&mut self.traffic.sent);
        Ok(posted)
    }
}

/// Whether key caching is the only filter.
fn only_names_keys(filters: &Filters) -> bool {
    Filters { key_cache: false, ..*filters }.is_none()
}

/// Decodes a message for `keys` keys, and counts it.
fn receive(
    spec: &TableSpec,
    own: &mut Own,
    message: &Message,
    keys: usize,
    pool: &Pool,
    flows: &mut Flows,
) -> Result<Option<Decoded>, Refused> {
    let lengths = size_of_val(message.lengths());
    let values = message.values().len();
    let key_bytes = keys * size_of::<u64>();
    let mut passage = Passage::new(key_bytes + lengths + values);
    let decoded = match message.op() & FILTERED {
        0 => None,
        _ => {
            // Counts first and reads then: what a peer can still write may differ in between.
            assert!(message.lent().is_none(), "a block is decoded from a copy");
            let (decoded, coded) = undo(spec, own, message.values(), keys, pool)?;
            if decoded.lengths.is_some() && lengths > 0 {
                return Err(
                    Refusal::Shape.because("numbers of values are in the block and beside it")
                );
            }
            passage = Passage::new(key_bytes + lengths + decoded.raw_bytes);
            decoded.sizes.pass(&mut passage);
            if let Some(coded) = coded {
                passage.through(Stage::Own, values, coded);
            }
            Some(decoded)
        }
    };
    let named = message.keys().len() < keys; // by a signature, or as runs
    count_keys(&mut passage, message.signature().is_some(), named, keys);
    let sections = size_of_val(message.keys()) + lengths + values;
    passage.through(Stage::Snappy, 0, sections.saturating_sub(message.wire_bytes()));
    passage.end(flows);
    Ok(decoded)
}

/// Undoes what filters have made of the values for `keys` keys. Returns as well how many bytes the
/// own filters had before them, if they have coded it.
fn undo(
    spec: &TableSpec,
    own: &mut Own,
    bytes: &[u8],
    keys: usize,
    pool: &Pool,
) -> Result<(Decoded, Option<usize>), Refused> {
    let undone = own.decode(bytes, own::limit(spec, keys), pool)?;
    let coded = undone.as_ref().map(|(_, bytes)| bytes.len());
    let decoded = match undone {
        Some((false, values)) => Decoded::plain(values, pool),
        Some((true, block)) => stack::decode(spec, &block, pool)?,
        None => stack::decode(spec, bytes, pool)?,
    };
    Ok((decoded, coded))
}

/// Decodes what filters have made of a message's values for `keys` keys, as a server does: numbers
/// of values, if they are in it, and the values.
///
/// # Errors
/// The reason why these bytes are not from such filters.
pub fn decode_filtered(
    spec: &TableSpec,
    own: &OwnFilters,
    bytes: &[u8],
    keys: usize,
    pool: &Pool,
) -> Result<(Option<Vec<u32>>, Buffer), Refused> {
    let mut own = own.make(spec, None)?;
    let (decoded, _) = undo(spec, &mut own, bytes, keys, pool)?;
    Ok((decoded.lengths, decoded.values))
}

/// The passage of one server's part of a request that pushes `pushed`, before any stage.
fn passage(draft: &Draft<'_>, pushed: &[u8]) -> Passage {
    Passage::new(size_of_val(draft.keys) + size_of_val(draft.lengths) + pushed.len())
}

fn count_keys(passage: &mut Passage, signed: bool, named: bool, keys: usize) {
    let longer = if signed { SIGNATURE_BYTES } else { 0 };
    passage.through(Stage::KeyCache, longer, if named { keys * size_of::<u64>() } else { 0 });
}

/// Checks that all values are finite.
///
/// # Errors
/// [`Error::Config`] names the first value that is not.
fn check_finite(spec: &TableSpec, values: &[u8]) -> Result<()> {
    let wrong = with_type!(spec.value, V => first_infinite::<V>(values));
    wrong.map_or(Ok(()), |at| {
        Err(Error::Config(format!(
            "value {at} of a push to table {} is not finite, and its filters round or keep what is pushed",
            spec.name
        )))
    })
}

fn first_infinite<V: Number>(values: &[u8]) -> Option<usize> {
    V::view(values)?.iter().position(|value| !value.to_f64().is_finite())
}

/// One server's part of a push.
struct Push<'a> {
    keys: &'a [u64],
    values: &'a [u8],
    clock: u64,
    /// Whether the keys of omitted rows are dropped.
    drops_keys: bool,
}

/// Removes rows that are skipped or not significant. Stores which rows remain, and their keys, in
/// `filters`; returns their values.
fn select<V: Number>(
    filters: &mut AtWorker,
    spec: &TableSpec,
    push: Push<'_>,
    pool: &Pool,
    passage: &mut Passage,
) -> Result<Buffer> {
    let Push { keys: all_keys, values: pushed, clock, drops_keys } = push;
    let AtWorker { skip, significant, lossless, carrying, keys, .. } = filters;
    let width = spec.width as usize;
    let values = V::view(pushed).expect("what is pushed came as numbers");
    let threshold = match significant {
        Some(kept) if !*lossless => kept.threshold(clock),
        _ => 0.0,
    };
    let mut buffer = pool.allocate(pushed.len())?;
    let out = V::view_mut(&mut buffer).expect("memory of the pool is aligned");
    carrying.clear();
    keys.clear();
    let mut row = vec![0.0; width];
    let mut skipped = 0;
    for (&key, values) in all_keys.iter().zip(values.chunks_exact(width)) {
        let scale = match skip {
            Some(skip) if !*lossless => skip.next(),
            _ => Some(1.0),
        };
        skipped += usize::from(scale.is_none());
        let scale = scale.unwrap_or(0.0);
        row.iter_mut().zip(values).for_each(|(row, value)| *row = value.to_f64() * scale);
        let goes = match significant {
            Some(kept) => kept.take_or_keep(key, &mut row, threshold),
            None => scale > 0.0,
        };
        carrying.push(goes);
        if goes {
            let at = keys.len() * width;
            out[at..at + width].iter_mut().zip(&row).for_each(|(out, v)| *out = V::from_f64(*v));
            keys.push(key);
        }
    }
    let row_bytes = spec.row_bytes() + if drops_keys { size_of::<u64>() } else { 0 };
    let left_out = all_keys.len() - keys.len();
    // A skipped row that is sent nevertheless carries what was held back of it.
    let (first, second) = match significant {
        None => (left_out, 0),
        Some(_) => (skipped.min(left_out), left_out - skipped.min(left_out)),
    };
    passage.through(Stage::Skip, 0, first * row_bytes);
    passage.through(Stage::Significant, 0, second * row_bytes);
    buffer.truncate(keys.len() * spec.row_bytes());
    Ok(buffer)
}
