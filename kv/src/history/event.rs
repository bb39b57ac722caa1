//! One line of a history.

use std::fmt;

/// What happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Op {
    /// A read.
    #[default]
    Read,
    /// A write.
    Write,
    /// A write by an observer, who takes no part.
    Observed,
    /// A worker takes part from its clock on.
    Join,
    /// A worker has finished its iterations below its clock.
    Clock,
    /// A worker takes part no longer.
    Leave,
    /// The model's bound is the clock's value from now on.
    Bound,
}

impl Op {
    const ALL: [Op; 7] =
        [Op::Read, Op::Write, Op::Observed, Op::Join, Op::Clock, Op::Leave, Op::Bound];

    fn letter(self) -> char {
        match self {
            Op::Read => 'r',
            Op::Write => 'w',
            Op::Observed => 'o',
            Op::Join => 'j',
            Op::Clock => 'c',
            Op::Leave => 'l',
            Op::Bound => 'b',
        }
    }
}

/// An event of a history: `OP WORKER CLOCK VERSION KEYS`, the keys separated by commas, or `-`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub op: Op,
    /// Number of the worker.
    pub worker: u32,
    /// Its iteration.
    pub clock: u64,
    /// The version that a read saw: the iteration of its chunk's last write under data-centric
    /// constraints with a bound, else the number of writes before it. That of a write is its
    /// iteration, or the number of writes before it.
    pub version: u64,
    /// Its chunk, or its keys under SparseSSP; none under other models.
    pub keys: Vec<u64>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { op, worker, clock, version, keys } = self;
        write!(f, "{} {worker} {clock} {version} ", op.letter())?;
        let Some((first, rest)) = keys.split_first() else { return f.write_str("-") };
        write!(f, "{first}")?;
        rest.iter().try_for_each(|key| write!(f, ",{key}"))
    }
}

impl Event {
    /// Reads a line into this event; its memory is used again.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn read(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let mut words = line.split(|byte| *byte == b' ');
        let letter = words.next().filter(|word| word.len() == 1).ok_or("no operation")?[0];
        let op = Op::ALL.into_iter().find(|op| op.letter() == char::from(letter));
        self.op = op.ok_or("no such operation")?;
        let mut next = |what| words.next().and_then(number).ok_or(what);
        let worker = next("no number of a worker")?;
        self.worker = u32::try_from(worker).map_err(|_| "a worker's number beyond 2^32")?;
        self.clock = next("no clock")?;
        self.version = next("no version")?;
        self.keys.clear();
        match words.next() {
            Some(b"-") => {}
            None => return Err("no keys"),
            Some(keys) => {
                for key in keys.split(|byte| *byte == b',') {
                    self.keys.push(number(key).ok_or("a key that is no number")?);
                }
            }
        }
        if words.next().is_some() { Err("more than five words") } else { Ok(()) }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let mut read = Event::default();
        for op in Op::ALL {
            for keys in [vec![], vec![0], vec![3, u64::MAX]] {
                let event = Event { op, worker: u32::MAX, clock: u64::MAX, version: 7, keys };
                read.read(event.to_string().as_bytes()).unwrap();
                assert_eq!(read, event);
            }
        }
    }

    #[test]
    fn other_lines_are_refused() {
        let wrong = [
            "",
            "r",
            "r 1",
            "r 1 2",
            "r 1 2 3",
            "r 1 2 3 ",
            "r 1 2 3 -  ",
            "r 1 2 3 - x",
            "x 1 2 3 -",
            "rr 1 2 3 -",
            "r -1 2 3 -",
            "r 4294967296 2 3 -",
            "r 1 2 3 4,",
            "r 1 18446744073709551616 3 -",
            "r 1 2 3 4,x",
            "r  1 2 3 -",
            "r 1 2 3 -\r",
        ];
        for line in wrong {
            assert!(Event::default().read(line.as_bytes()).is_err(), "{line:?}");
        }
    }
}
