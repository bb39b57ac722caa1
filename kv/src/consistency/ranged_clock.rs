//! Ranged vector clocks of the parameter server (OSDI 2014, section 4.1 and Algorithm 2): the last
//! time of every node at every key, kept as ranges of keys with one time each.
//!
//! A message carries the range that it is about, and keys of the range that it does not name get
//! its time, too. So the number of ranges stays small: with `k` different ranges and `m` nodes
//! there are `O(mk)` of them. Neighbours with the same time are one range again, which the paper
//! leaves open.

use std::collections::BTreeMap;

use caravan_van::KeyRange;

/// One node's last time at every key; 0 where there was nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RangedClock {
    /// By their first keys: disjoint spans of times above 0. Spans that touch differ in time.
    spans: BTreeMap<u64, Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Span {
    last: u64,
    time: u64,
}

impl RangedClock {
    /// The time at a key.
    pub fn time(&self, key: u64) -> u64 {
        let before = self.spans.range(..=key).next_back();
        before.filter(|(_, span)| key <= span.last).map_or(0, |(_, span)| span.time)
    }

    /// The smallest time in a range.
    pub fn least(&self, range: KeyRange) -> u64 {
        self.pieces(range).map(|(_, time)| time).min().unwrap_or(0)
    }

    /// Number of spans.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether all times are 0.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The parts of a range, ascending, that are before `time`. None: whatever happened there at
    /// `time` is known, and a message that tells of it is a repeated one.
    pub fn behind(&self, range: KeyRange, time: u64) -> Vec<KeyRange> {
        let mut behind: Vec<KeyRange> = Vec::new();
        for (piece, _) in self.pieces(range).filter(|(_, at)| *at < time) {
            match behind.last_mut() {
                Some(before) if before.end() == piece.begin() => {
                    *before = span_of(before.begin(), piece.last());
                }
                _ => behind.push(piece),
            }
        }
        behind
    }

    /// Sets the time of a range, as far as it is before `time`.
    pub fn advance(&mut self, range: KeyRange, time: u64) {
        for piece in self.behind(range, time) {
            self.cut_out(piece);
            self.insert(piece, time);
        }
    }

    /// Takes out the times of a range, for whoever has it from now on.
    pub fn split_off(&mut self, range: KeyRange) -> RangedClock {
        let spans = self.pieces(range).filter(|(_, time)| *time > 0);
        let spans = spans.map(|(piece, time)| (piece.begin(), Span { last: piece.last(), time }));
        let taken = RangedClock { spans: spans.collect() };
        self.cut_out(range);
        taken
    }

    /// Takes the later of both times at every key.
    pub fn merge(&mut self, other: &RangedClock) {
        for (&begin, span) in &other.spans {
            self.advance(span_of(begin, span.last), span.time);
        }
    }

    /// The parts of a range with their times, ascending and without gaps.
    fn pieces(&self, range: KeyRange) -> impl Iterator<Item = (KeyRange, u64)> + '_ {
        let before = self.spans.range(..range.begin()).next_back();
        let from = before.filter(|(_, span)| range.begin() <= span.last);
        let from = from.map_or(range.begin(), |(&begin, _)| begin);
        let mut spans = self.spans.range(from..=range.last()).peekable();
        let mut next = Some(range.begin());
        std::iter::from_fn(move || {
            let begin = next.filter(|begin| *begin <= range.last())?;
            let (last, time) = match spans.peek() {
                Some(&(&at, span)) if at <= begin => {
                    spans.next();
                    (span.last.min(range.last()), span.time)
                }
                Some(&(&at, _)) => (at - 1, 0),
                None => (range.last(), 0),
            };
            next = last.checked_add(1);
            Some((span_of(begin, last), time))
        })
    }

    /// Sets the time of a range to 0.
    fn cut_out(&mut self, range: KeyRange) {
        let before = self.spans.range(..range.begin()).next_back();
        if let Some((&begin, &span)) = before.filter(|(_, span)| range.begin() <= span.last) {
            self.spans.insert(begin, Span { last: range.begin() - 1, ..span });
            self.spans.insert(range.begin(), span);
        }
        let within = self.spans.range(range.begin()..=range.last());
        let within: Vec<u64> = within.map(|(&begin, _)| begin).collect();
        for begin in within {
            let Some(span) = self.spans.remove(&begin) else { continue };
            if let Some(after) = range.last().checked_add(1).filter(|after| *after <= span.last) {
                self.spans.insert(after, span);
            }
        }
    }

    /// Sets the time of a range without spans, and joins it to neighbours of the same time.
    fn insert(&mut self, range: KeyRange, time: u64) {
        let mut begin = range.begin();
        let mut last = range.last();
        let before = self.spans.range(..begin).next_back();
        if let Some((&at, span)) = before
            && span.time == time
            && span.last.checked_add(1) == Some(begin)
        {
            begin = at;
        }
        if let Some(after) = last.checked_add(1)
            && let Some(span) = self.spans.get(&after).filter(|span| span.time == time)
        {
            last = span.last;
            self.spans.remove(&after);
        }
        self.spans.insert(begin, Span { last, time });
    }
}

/// The range from `begin` to `last`, which is not before it.
fn span_of(begin: u64, last: u64) -> KeyRange {
    KeyRange::new(begin, last.wrapping_add(1)).unwrap_or(KeyRange::ALL)
}

/// The last time of every node at every key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct VectorClock {
    nodes: BTreeMap<u32, RangedClock>,
}

impl VectorClock {
    /// One node's clock, if it has ever had a time.
    pub fn of(&self, node: u32) -> Option<&RangedClock> {
        self.nodes.get(&node)
    }

    /// The parts of a range that are before `time` of this node: a message of that time is to be
    /// applied there, and was applied everywhere else.
    pub fn behind(&self, node: u32, range: KeyRange, time: u64) -> Vec<KeyRange> {
        match self.nodes.get(&node) {
            Some(clock) => clock.behind(range, time),
            None if time > 0 => vec![range],
            None => Vec::new(),
        }
    }

    /// Notes that a message of this node and time was applied to a range.
    pub fn advance(&mut self, node: u32, range: KeyRange, time: u64) {
        if time > 0 {
            self.nodes.entry(node).or_default().advance(range, time);
        }
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: u32) {
        self.nodes.remove(&node);
    }

    /// How fresh a range is: everything that `nodes` did up to this time is in it. `u64::MAX` for
    /// no nodes.
    pub fn least(&self, nodes: impl IntoIterator<Item = u32>, range: KeyRange) -> u64 {
        let of = |node| self.nodes.get(&node).map_or(0, |clock| clock.least(range));
        nodes.into_iter().map(of).min().unwrap_or(u64::MAX)
    }

    /// Takes out the times of a range, for whoever has it from now on.
    pub fn split_off(&mut self, range: KeyRange) -> VectorClock {
        let taken = self.nodes.iter_mut().map(|(node, clock)| (*node, clock.split_off(range)));
        let taken = taken.filter(|(_, clock)| !clock.is_empty()).collect();
        self.nodes.retain(|_, clock| !clock.is_empty());
        VectorClock { nodes: taken }
    }

    /// Takes the later of both times of every node at every key.
    pub fn merge(&mut self, other: &VectorClock) {
        for (node, clock) in &other.nodes {
            self.nodes.entry(*node).or_default().merge(clock);
        }
    }

    /// Number of spans of all nodes.
    pub fn len(&self) -> usize {
        self.nodes.values().map(RangedClock::len).sum()
    }

    /// Whether all times of all nodes are 0.
    pub fn is_empty(&self) -> bool {
        self.nodes.values().all(RangedClock::is_empty)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use proptest::prelude::*;

    use super::*;

    /// Keys of which the obvious clock keeps the time one by one, at the end of the key space.
    const FIRST: u64 = u64::MAX - 39;

    fn range() -> impl Strategy<Value = KeyRange> {
        (0..40u64, 0..40u64).prop_map(|(a, b)| span_of(FIRST + a.min(b), FIRST + a.max(b)))
    }

    fn keys(range: KeyRange) -> impl Iterator<Item = usize> {
        (range.begin()..=range.last()).map(|key| (key - FIRST) as usize)
    }

    /// Checks that the spans are those of these times, none more.
    fn is(clock: &RangedClock, times: &[u64]) {
        for (at, time) in times.iter().enumerate() {
            assert_eq!(clock.time(FIRST + at as u64), *time, "{clock:?}");
        }
        let runs = times.chunk_by(|a, b| a == b).filter(|run| run[0] > 0).count();
        assert_eq!(clock.len(), runs, "{clock:?}");
    }

    proptest! {
        #[test]
        fn it_is_a_time_a_key(
            calls in prop::collection::vec((range(), 0..6u64, 0..4u8), 1..40),
        ) {
            let mut clock = RangedClock::default();
            let mut other = RangedClock::default();
            let mut times = [0u64; 40];
            let mut others = [0u64; 40];
            for (range, time, what) in calls {
                let behind = clock.behind(range, time);
                let expected: Vec<_> = keys(range).filter(|key| times[*key] < time).collect();
                prop_assert_eq!(behind.iter().flat_map(|it| keys(*it)).collect::<Vec<_>>(), expected);
                prop_assert!(behind.windows(2).all(|pair| pair[0].last() + 1 < pair[1].begin()));
                let least = keys(range).map(|key| times[key]).min().unwrap();
                prop_assert_eq!(clock.least(range), least);
                match what {
                    0 => {
                        let taken = clock.split_off(range);
                        for key in keys(range) {
                            assert_eq!(taken.time(FIRST + key as u64), times[key]);
                            others[key] = others[key].max(std::mem::take(&mut times[key]));
                        }
                        other.merge(&taken);
                    }
                    1 => {
                        clock.merge(&other);
                        times.iter_mut().zip(others).for_each(|(time, other)| *time = other.max(*time));
                    }
                    _ => {
                        clock.advance(range, time);
                        keys(range).for_each(|key| times[key] = times[key].max(time));
                        prop_assert!(clock.behind(range, time).is_empty(), "a second one is repeated");
                    }
                }
                is(&clock, &times);
                is(&other, &others);
            }
        }
    }

    #[test]
    fn the_whole_key_space_is_one_range() {
        let mut clock = RangedClock::default();
        clock.advance(KeyRange::ALL, 3);
        assert_eq!((clock.len(), clock.least(KeyRange::ALL)), (1, 3));
        let half = KeyRange::new(1 << 63, 0).unwrap();
        assert_eq!(clock.split_off(half).len(), 1);
        assert_eq!((clock.least(KeyRange::ALL), clock.time((1 << 63) - 1)), (0, 3));
        assert_eq!(clock.behind(KeyRange::ALL, 3), [half]);
    }

    #[test]
    fn nodes_have_times_of_their_own() {
        let mut clock = VectorClock::default();
        let low = KeyRange::new(0, 100).unwrap();
        clock.advance(7, low, 4);
        clock.advance(9, KeyRange::ALL, 2);
        assert_eq!(clock.least([7, 9], low), 2);
        assert_eq!(clock.least([7, 9], KeyRange::ALL), 0);
        assert_eq!(clock.least([], low), u64::MAX);
        assert_eq!(clock.behind(9, low, 3), [low]);
        assert!(clock.behind(7, low, 4).is_empty() && clock.behind(8, low, 0).is_empty());
        let taken = clock.split_off(KeyRange::new(50, 0).unwrap());
        assert_eq!((taken.len(), clock.len()), (2, 2));
        clock.merge(&taken);
        assert_eq!((clock.len(), clock.of(7).unwrap().len()), (2, 1));
        assert!(!clock.is_empty());
    }
}
