//! What the clients ask for, and what a log of it comes to.

use crate::log::{Log, REQUESTS_MAX, RequestId, RequestSet};

/// The number of a client.
pub type ClientId = u8;

/// How many clients there are.
pub const CLIENTS: usize = 2;

/// How many rows the shard has. Each increment changes all of them, so a torn one is seen.
pub const ROWS: usize = 2;

/// A row: two bits for each increment, which count how often it was applied.
pub type Row = u16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Counts in the bits of its number.
    Increment(u8),
    Read,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    client: ClientId,
    kind: Kind,
}

/// The requests of all clients. Those of a client have numbers that follow each other.
#[derive(Clone, Debug)]
pub struct Workload {
    requests: Vec<Request>,
    first: [RequestId; CLIENTS],
}

impl Workload {
    /// Reads what each client does: `i` is an increment, `r` a read.
    pub fn new(programs: [&str; CLIENTS]) -> Workload {
        let mut workload = Workload { requests: Vec::new(), first: [0; CLIENTS] };
        let mut increments = 0;
        for (client, program) in programs.iter().enumerate() {
            workload.first[client] = workload.requests.len() as RequestId;
            for letter in program.bytes() {
                let kind = match letter {
                    b'i' => Kind::Increment(increments),
                    _ => Kind::Read,
                };
                increments += u8::from(letter == b'i');
                workload.requests.push(Request { client: client as ClientId, kind });
            }
        }
        assert!(workload.requests.len() <= REQUESTS_MAX, "at most {REQUESTS_MAX} requests");
        workload
    }

    /// All requests.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> + use<> {
        0..self.requests.len() as RequestId
    }

    /// All increments.
    pub fn increments(&self) -> impl Iterator<Item = RequestId> {
        self.requests().filter(|request| !self.is_read(*request))
    }

    /// The first requests of a client.
    pub fn of(&self, client: ClientId, count: u8) -> impl Iterator<Item = RequestId> + use<> {
        let first = self.first[usize::from(client)];
        first..first + count
    }

    /// The client of a request.
    pub fn client(&self, request: RequestId) -> ClientId {
        self.requests[usize::from(request)].client
    }

    /// Whether a request reads, and so changes nothing.
    pub fn is_read(&self, request: RequestId) -> bool {
        self.requests[usize::from(request)].kind == Kind::Read
    }

    /// Whether the rule of the shard refuses a request behind this log: the second increment of the
    /// first client, if the other client was served before. So what is refused depends on the
    /// order, and on nothing else.
    pub fn refuses(&self, log: Log, request: RequestId) -> bool {
        let is_second = request == 1 && self.client(1) == 0 && !self.is_read(1);
        is_second && log.requests().any(|earlier| earlier == self.first[1])
    }

    /// Applies one request to a row.
    pub fn apply(&self, row: Row, request: RequestId) -> Row {
        let Kind::Increment(number) = self.requests[usize::from(request)].kind else { return row };
        let shift = 2 * number;
        let is_at_most = row >> shift & 3 == 3;
        if is_at_most { row } else { row + (1 << shift) }
    }

    /// What each row is behind this log.
    pub fn row(&self, log: Log) -> Row {
        let refused = self.refused(log);
        let applied = log.requests().filter(|request| !refused.has(*request));
        applied.fold(0, |row, request| self.apply(row, request))
    }

    /// The requests of this log that were refused.
    pub fn refused(&self, log: Log) -> RequestSet {
        let before = |at| log.prefix(at);
        let refused = (0..log.len()).filter(|at| self.refuses(before(*at), log.get(*at)));
        refused.map(|at| log.get(at)).collect()
    }

    /// The increments that a read behind this log sees, refused or not.
    pub fn seen(&self, log: Log) -> RequestSet {
        log.requests().filter(|request| !self.is_read(*request)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(requests: &[RequestId]) -> Log {
        let mut log = Log::default();
        requests.iter().for_each(|request| log.push(*request));
        log
    }

    #[test]
    fn what_is_refused_depends_on_the_order() {
        let workload = Workload::new(["ii", "r"]);
        assert!(workload.refused(log(&[0, 1, 2])).is_empty());
        assert!(workload.refused(log(&[0, 2, 1])).has(1));
        assert_eq!(workload.row(log(&[0, 1, 2])), 0b0101);
        assert_eq!(workload.row(log(&[0, 2, 1])), 0b0001);
        assert!(workload.seen(log(&[0, 2, 1])).has(1), "a refused request is in the log");
    }

    #[test]
    fn a_request_that_is_applied_twice_is_seen_in_the_row() {
        let workload = Workload::new(["i", "i"]);
        assert_eq!(workload.row(log(&[0, 1, 1])), 0b1001);
    }
}
