//! Explores every order of events, the shortest runs first, until a promise is broken.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher};

use crate::violation::Violation;

/// Something with states and events.
pub trait Machine {
    /// Everything that has an effect on what may happen.
    type State: Clone + Hash;
    /// One event.
    type Step: Copy;

    /// Where each run begins.
    fn initial(&self) -> Self::State;

    /// All events that can happen.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;

    /// Whether an event may never happen, as a fault. All others happen sooner or later.
    fn is_optional(&self, step: Self::Step) -> bool;

    /// Lets an event happen.
    ///
    /// # Errors
    /// Says which promise it broke.
    fn apply(&self, state: &mut Self::State, step: Self::Step) -> Result<(), Violation>;

    /// Whether nobody waits.
    fn is_finished(&self, state: &Self::State) -> bool;

    /// Says what an event is, in a state in which it can happen.
    fn describe(&self, state: &Self::State, step: Self::Step) -> String;
}

/// What an exploration found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every run keeps every promise.
    Holds,
    /// A run breaks one.
    Broken {
        /// Which.
        violation: Violation,
        /// The events of a shortest such run.
        run: Vec<String>,
    },
    /// There are more states than were allowed; those that were seen keep every promise.
    Unfinished,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Holds => write!(f, "holds"),
            Verdict::Broken { violation, .. } => write!(f, "broken: {violation}"),
            Verdict::Unfinished => write!(f, "not finished, nothing found"),
        }
    }
}

/// How much was explored, and what was found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// States that differ.
    pub states: usize,
    /// Events of the longest of the shortest runs to a state.
    pub depth: usize,
    /// States in which everybody is done and only optional events are left.
    pub ends: usize,
    /// What was found.
    pub verdict: Verdict,
}

/// A number with commas.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups = groups.map(|group| String::from_utf8_lossy(group).into_owned());
    Vec::from_iter(groups).join(",")
}

/// Explores a machine, at most about so many states.
///
/// A state is known by 64 bits of its hash: two that share them would count as one, which is as
/// good as impossible for the numbers of states here.
pub fn explore<M: Machine>(machine: &M, states_max: usize) -> Outcome {
    let mut search = Search::new(machine);
    let mut outcome = Outcome { states: 0, depth: 0, ends: 0, verdict: Verdict::Unfinished };
    loop {
        match search.level(&mut outcome.ends) {
            Level::Broken(violation, run) => {
                outcome.verdict = Verdict::Broken { violation, run };
                break;
            }
            Level::Empty => {
                outcome.verdict = Verdict::Holds;
                break;
            }
            Level::Done if search.origins.len() > states_max => break,
            Level::Done => outcome.depth += 1,
        }
    }
    outcome.states = search.origins.len();
    outcome
}

enum Level {
    Done,
    Empty,
    Broken(Violation, Vec<String>),
}

/// How a state was reached first: from which one, by which event.
#[derive(Clone, Copy)]
struct Origin<S> {
    from: u32,
    step: Option<S>,
}

struct Search<'a, M: Machine> {
    machine: &'a M,
    seen: HashSet<u64, AlreadyMixed>,
    /// Of each state, in the order in which they were found.
    origins: Vec<Origin<M::Step>>,
    /// The states that were found last, each with its number.
    frontier: Vec<(u32, M::State)>,
}

impl<'a, M: Machine> Search<'a, M> {
    fn new(machine: &'a M) -> Search<'a, M> {
        let start = machine.initial();
        Search {
            machine,
            seen: HashSet::from_iter([fingerprint(&start)]),
            origins: vec![Origin { from: 0, step: None }],
            frontier: vec![(0, start)],
        }
    }

    /// Lets every event happen in every state of the frontier. New states are the next frontier.
    fn level(&mut self, ends: &mut usize) -> Level {
        for (number, state) in std::mem::take(&mut self.frontier) {
            let steps = self.machine.steps(&state);
            if steps.iter().all(|step| self.machine.is_optional(*step)) {
                if !self.machine.is_finished(&state) {
                    return Level::Broken(Violation::Stuck, self.run_to(number, None));
                }
                *ends += 1;
            }
            for step in steps {
                let mut next = state.clone();
                if let Err(violation) = self.machine.apply(&mut next, step) {
                    return Level::Broken(violation, self.run_to(number, Some(step)));
                }
                if self.seen.insert(fingerprint(&next)) {
                    let found = u32::try_from(self.origins.len()).expect("memory ends before u32");
                    self.origins.push(Origin { from: number, step: Some(step) });
                    self.frontier.push((found, next));
                }
            }
        }
        if self.frontier.is_empty() { Level::Empty } else { Level::Done }
    }

    /// The events that lead to a state, and one more.
    fn run_to(&self, number: u32, last: Option<M::Step>) -> Vec<String> {
        let mut steps = Vec::from_iter(last);
        let mut at = number;
        while let Origin { from, step: Some(step) } = self.origins[at as usize] {
            steps.push(step);
            at = from;
        }
        let mut state = self.machine.initial();
        let mut run = Vec::new();
        for step in steps.into_iter().rev() {
            run.push(self.machine.describe(&state, step));
            // The last event breaks a promise, and there is nothing to describe behind it.
            let _ = self.machine.apply(&mut state, step);
        }
        run
    }
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = Mixer::default();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Gathers bytes into words, and folds a product of 128 bits for each, as wyhash does. The hasher
/// of std would take most of an exploration's time.
#[derive(Default)]
struct Mixer {
    mixed: u64,
    word: u64,
    bits: u32,
}

impl Mixer {
    const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
    const OFFSET: u64 = 0x9e37_79b9_7f4a_7c15;

    fn mix(mixed: u64, word: u64) -> u64 {
        let product = u128::from(mixed ^ word ^ Mixer::OFFSET) * u128::from(Mixer::FACTOR);
        (product as u64) ^ ((product >> 64) as u64) ^ mixed.rotate_left(23)
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, value: u8) {
        self.word |= u64::from(value) << self.bits;
        self.bits += u8::BITS;
        if self.bits == u64::BITS {
            self.mixed = Mixer::mix(self.mixed, self.word);
            (self.word, self.bits) = (0, 0);
        }
    }

    /// Lengths, and which variant of an enum it is: all of them are small.
    fn write_usize(&mut self, value: usize) {
        self.write_u8(value as u8);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u8(value as u8);
    }

    fn finish(&self) -> u64 {
        let last = Mixer::mix(self.mixed, self.word);
        let folded = (last ^ (last >> 32)).wrapping_mul(Mixer::FACTOR);
        folded ^ (folded >> 29)
    }
}

/// For fingerprints, which are mixed already.
#[derive(Default, Clone)]
struct AlreadyMixed;

impl BuildHasher for AlreadyMixed {
    type Hasher = Taken;

    fn build_hasher(&self) -> Taken {
        Taken(0)
    }
}

struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a fingerprint is one u64")
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two counters that go up to `most`, one step at a time. It breaks at `bad`; with `ends` false
    /// somebody waits at the end.
    struct Counters {
        most: u8,
        bad: Option<[u8; 2]>,
        ends: bool,
    }

    impl Machine for Counters {
        type State = [u8; 2];
        type Step = usize;

        fn initial(&self) -> [u8; 2] {
            [0; 2]
        }

        fn steps(&self, state: &[u8; 2]) -> Vec<usize> {
            (0..2).filter(|counter| state[*counter] < self.most).collect()
        }

        fn is_optional(&self, _: usize) -> bool {
            false
        }

        fn apply(&self, state: &mut [u8; 2], step: usize) -> Result<(), Violation> {
            state[step] += 1;
            let is_bad = self.bad == Some(*state);
            if is_bad { Err(Violation::Lost { request: 0, server: 0 }) } else { Ok(()) }
        }

        fn is_finished(&self, _: &[u8; 2]) -> bool {
            self.ends
        }

        fn describe(&self, state: &[u8; 2], step: usize) -> String {
            format!("{state:?}: {step}")
        }
    }

    #[test]
    fn every_state_is_seen_once() {
        let outcome = explore(&Counters { most: 5, bad: None, ends: true }, 1000);
        assert_eq!(outcome.verdict, Verdict::Holds);
        assert_eq!((outcome.states, outcome.depth, outcome.ends), (36, 10, 1));
    }

    #[test]
    fn a_broken_promise_comes_with_a_shortest_run() {
        let outcome = explore(&Counters { most: 5, bad: Some([1, 2]), ends: true }, 1000);
        let Verdict::Broken { violation, run } = outcome.verdict else { panic!("it holds") };
        assert_eq!(violation, Violation::Lost { request: 0, server: 0 });
        assert_eq!(run.len(), 3);
        assert_eq!(run[0], "[0, 0]: 0");
    }

    #[test]
    fn whoever_waits_at_the_end_is_found() {
        let outcome = explore(&Counters { most: 1, bad: None, ends: false }, 1000);
        let Verdict::Broken { violation: Violation::Stuck, run } = outcome.verdict else {
            panic!("nobody waits")
        };
        assert_eq!(run.len(), 2);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn too_many_states_are_said() {
        let outcome = explore(&Counters { most: 100, bad: None, ends: true }, 50);
        assert_eq!(outcome.verdict, Verdict::Unfinished);
    }
}
