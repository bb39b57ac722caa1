//! The log of a shard, and sets of requests.

/// The number of a request: its place in the [workload](crate::workload).
pub type RequestId = u8;

/// A count of records: the length of a log or of a prefix of it.
pub type Records = u8;

/// Most requests of a configuration.
pub const REQUESTS_MAX: usize = 8;

/// A log from its first record on: which request each record is of.
///
/// A server drops what was acknowledged; the model keeps all of it, to check it. Four bits hold a
/// record, as its request's number and one, so that zero is no record.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default)]
pub struct Log(u64);

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.requests()).finish()
    }
}

impl Log {
    const BITS: u32 = 4;
    const RECORDS_MAX: Records = 16;

    /// How many records it has.
    pub fn len(self) -> Records {
        let unused = (self.0.leading_zeros() / Log::BITS) as Records;
        Log::RECORDS_MAX - unused
    }

    /// Whether it has no record.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds the record of a request at the end.
    pub fn push(&mut self, request: RequestId) {
        let length = self.len();
        assert!(length < Log::RECORDS_MAX, "a log of the model holds {} records", Log::RECORDS_MAX);
        self.0 |= u64::from(request + 1) << (Log::BITS * u32::from(length));
    }

    /// The request of the record with so many before it.
    pub fn get(self, at: Records) -> RequestId {
        assert!(at < self.len(), "a log of {} records has none at {at}", self.len());
        ((self.0 >> (Log::BITS * u32::from(at))) & 15) as RequestId - 1
    }

    /// Its first records.
    pub fn prefix(self, length: Records) -> Log {
        if length >= Log::RECORDS_MAX {
            return self;
        }
        Log(self.0 & ((1 << (Log::BITS * u32::from(length))) - 1))
    }

    /// Whether `longer` begins with all of it.
    pub fn is_prefix_of(self, longer: Log) -> bool {
        longer.prefix(self.len()) == self
    }

    /// The requests of its records, in order.
    pub fn requests(self) -> impl Iterator<Item = RequestId> {
        (0..self.len()).map(move |at| self.get(at))
    }
}

/// A set of requests.
#[derive(Clone, Copy, Hash, PartialEq, Eq, Default)]
pub struct RequestSet(u8);

impl RequestSet {
    /// Adds a request.
    pub fn insert(&mut self, request: RequestId) {
        self.0 |= 1 << request;
    }

    /// Whether it has a request.
    pub fn has(self, request: RequestId) -> bool {
        self.0 >> request & 1 == 1
    }

    /// What one of both has.
    #[must_use]
    pub fn with(self, other: RequestSet) -> RequestSet {
        RequestSet(self.0 | other.0)
    }

    /// What it has and `other` has not.
    #[must_use]
    pub fn without(self, other: RequestSet) -> RequestSet {
        RequestSet(self.0 & !other.0)
    }

    /// Whether it has no request.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<RequestId> for RequestSet {
    fn from_iter<I: IntoIterator<Item = RequestId>>(requests: I) -> RequestSet {
        let mut set = RequestSet::default();
        requests.into_iter().for_each(|request| set.insert(request));
        set
    }
}

impl std::fmt::Debug for RequestSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let requests = (0..REQUESTS_MAX as RequestId).filter(|request| self.has(*request));
        f.debug_set().entries(requests).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_records_in_order() {
        let mut log = Log::default();
        for request in [3, 0, 7] {
            log.push(request);
        }
        assert_eq!(log.requests().collect::<Vec<_>>(), [3, 0, 7]);
        assert!(log.prefix(2).is_prefix_of(log));
        assert!(log.prefix(0).is_empty());
        let mut other = log.prefix(2);
        other.push(6);
        assert!(!other.is_prefix_of(log), "the third record differs");
        assert!(!log.is_prefix_of(log.prefix(2)), "the longer one is no prefix");
    }

    #[test]
    fn a_full_log_has_all_its_records() {
        let mut log = Log::default();
        for _ in 0..Log::RECORDS_MAX {
            log.push(7);
        }
        assert_eq!(log.len(), Log::RECORDS_MAX);
        assert!(log.is_prefix_of(log));
    }
}
