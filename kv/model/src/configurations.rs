//! What is explored: who is there, what they do, and what may go wrong.

use crate::credits;
use crate::credits::Ring;
use crate::explore::{Outcome, explore, grouped};
use crate::model::{Faults, Model, Setup};
use crate::mutants::Mutant;

/// A configuration of one of the two models.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// One shard under a map.
    Shard(Setup),
    /// Chains around a ring of servers.
    Ring(credits::Setup),
}

/// A named configuration.
#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    /// Its name.
    pub name: &'static str,
    /// Who is there, and what may happen.
    pub subject: Subject,
    /// Whether it is explored by the tests, as that takes seconds.
    pub is_quick: bool,
}

impl Configuration {
    /// Explores it, at most about so many states.
    pub fn explore(&self, mutant: Option<Mutant>, states_max: usize) -> Outcome {
        match self.subject {
            Subject::Shard(setup) => explore(&Model::new(setup, mutant), states_max),
            Subject::Ring(setup) => explore(&Ring { setup, mutant }, states_max),
        }
    }

    /// A row of the table in `kv/docs/protocol.md`.
    pub fn row(&self, outcome: &Outcome) -> String {
        let Configuration { name, subject, .. } = self;
        let states = grouped(outcome.states);
        format!("| `{name}` | {subject} | {states} | {} |", outcome.verdict)
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Shard(setup) => setup.fmt(f),
            Subject::Ring(setup) => setup.fmt(f),
        }
    }
}

/// The configuration of a name.
pub fn named(name: &str) -> Option<Configuration> {
    all().into_iter().find(|configuration| configuration.name == name)
}

/// All configurations.
pub fn all() -> Vec<Configuration> {
    let quick = |name, subject| Configuration { name, subject, is_quick: true };
    let large = |name, subject| Configuration { name, subject, is_quick: false };
    let mut all = Vec::new();
    all.extend(QUICK.iter().map(|(name, setup)| quick(*name, Subject::Shard(*setup))));
    all.extend(RINGS.iter().map(|(name, setup)| quick(*name, Subject::Ring(*setup))));
    all.extend(LARGE.iter().map(|(name, setup)| large(*name, Subject::Shard(*setup))));
    all
}

const NONE: Faults =
    Faults { crashes: 0, declared: 0, breaks: 0, moves: 0, scheduler_crashes: 0, others: 0 };

/// Two clients with three requests each, a head, a follower and a spare server.
const THREE: Setup = Setup {
    servers: 3,
    copies: 1,
    programs: ["iir", "iir"],
    window: 2,
    faults: NONE,
    moved: 0,
    is_queue: false,
    fills: true,
    is_scheduler_gone: false,
};
const TWO: Setup = Setup { programs: ["ii", "ir"], ..THREE };
const SMALL: Setup = Setup { programs: ["ii", "r"], ..THREE };
const TINY: Setup = Setup { programs: ["i", "r"], ..THREE };
const ONE: Setup = Setup { programs: ["ii", ""], ..THREE };
/// A shard without followers, and a spare server.
const ALONE: Setup = Setup { servers: 2, copies: 0, ..SMALL };
const ALONE_ONE: Setup = Setup { programs: ONE.programs, ..ALONE };
/// Two followers, and no spare server.
const TWO_COPIES: Setup = Setup { copies: 2, fills: false, ..SMALL };
const TWO_COPIES_TWO: Setup = Setup { programs: TWO.programs, ..TWO_COPIES };
const TWO_COPIES_ONE: Setup = Setup { programs: ["i", ""], ..TWO_COPIES };
const TWO_COPIES_TINY: Setup = Setup { programs: TINY.programs, ..TWO_COPIES };

/// Two servers, each of them the head of a chain whose tail is the other.
const PAIR: credits::Setup =
    credits::Setup { servers: 2, credits: 2, records: 3, confirmations_spend: true };

const CRASH: Faults = Faults { crashes: 1, ..NONE };
const DECLARED: Faults = Faults { declared: 1, ..NONE };
const BREAK: Faults = Faults { breaks: 1, ..NONE };
const MOVE: Faults = Faults { moves: 1, ..NONE };
const MOVES: Faults = Faults { moves: 2, ..NONE };
const QUEUE_DECLARED: Faults = Faults { declared: 1, ..MOVE };
const QUEUE_CRASH: Faults = Faults { crashes: 1, ..MOVE };
const CRASH_DECLARED: Faults = Faults { declared: 1, ..CRASH };
const SCHEDULER_DECLARED: Faults = Faults { scheduler_crashes: 1, ..DECLARED };
const SCHEDULER_MOVE: Faults = Faults { scheduler_crashes: 1, ..MOVE };

/// What tests explore.
const QUICK: &[(&str, Setup)] = &[
    ("calm", THREE),
    ("break", Setup { faults: BREAK, ..THREE }),
    ("break-twice", Setup { faults: Faults { breaks: 2, ..NONE }, ..THREE }),
    ("break-long", Setup { faults: BREAK, programs: ["iii", "i"], window: 3, ..THREE }),
    ("crash-small", Setup { faults: CRASH, ..SMALL }),
    ("crash-break-tiny", Setup { faults: Faults { breaks: 1, ..CRASH }, ..TINY }),
    ("declared-tiny", Setup { faults: DECLARED, ..TINY }),
    ("move-small", Setup { faults: MOVE, ..SMALL }),
    ("move-tail", Setup { faults: MOVE, moved: 1, ..TWO }),
    ("move-break-tiny", Setup { faults: Faults { breaks: 1, ..MOVE }, ..TINY }),
    ("queue-tiny", Setup { faults: MOVE, is_queue: true, ..TINY }),
    ("queue-middle-tiny", Setup { faults: MOVE, is_queue: true, moved: 1, ..TINY }),
    ("queue-crash-tiny", Setup { faults: QUEUE_CRASH, is_queue: true, fills: false, ..TINY }),
    ("alone-queue-twice", Setup { faults: MOVES, is_queue: true, ..ALONE_ONE }),
    ("alone-move-break", Setup { faults: Faults { breaks: 1, ..MOVE }, ..ALONE }),
    ("alone-move-twice", Setup { faults: MOVES, ..ALONE_ONE }),
    ("alone-move-twice-other", Setup { faults: Faults { others: 1, ..MOVES }, ..ALONE_ONE }),
    ("two-copies-break", Setup { faults: BREAK, ..TWO_COPIES_TWO }),
    ("two-copies-crash-declared-tiny", Setup { faults: CRASH_DECLARED, ..TWO_COPIES_TINY }),
    (
        "two-copies-declared-twice-tiny",
        Setup { faults: Faults { declared: 2, ..NONE }, ..TWO_COPIES_TINY },
    ),
    (
        "two-copies-crash-filled",
        Setup { faults: CRASH, servers: 4, fills: true, ..TWO_COPIES_TINY },
    ),
    ("two-copies-move-middle", Setup { faults: MOVE, servers: 4, moved: 1, ..TWO_COPIES_TINY }),
    ("scheduler-crash-tiny", Setup { faults: Faults { scheduler_crashes: 1, ..CRASH }, ..TINY }),
    ("scheduler-declared-tiny", Setup { faults: SCHEDULER_DECLARED, ..TINY }),
    ("scheduler-move-tiny", Setup { faults: SCHEDULER_MOVE, ..TINY }),
    (
        "scheduler-gone-move",
        Setup { faults: SCHEDULER_MOVE, is_scheduler_gone: true, fills: false, ..TINY },
    ),
];

/// Rings of servers, in which every server is a head.
const RINGS: &[(&str, credits::Setup)] = &[
    ("credits-free", credits::Setup { confirmations_spend: false, ..PAIR }),
    ("credits-kept", PAIR),
    ("credits-ring", credits::Setup { servers: 3, credits: 3, confirmations_spend: false, ..PAIR }),
];

/// What takes minutes, and up to 2 GB.
const LARGE: &[(&str, Setup)] = &[
    ("crash", Setup { faults: CRASH, ..TWO }),
    ("crash-break", Setup { faults: Faults { breaks: 1, ..CRASH }, fills: false, ..THREE }),
    ("crash-declared", Setup { faults: CRASH_DECLARED, servers: 4, ..ONE }),
    ("declared-small", Setup { faults: DECLARED, ..SMALL }),
    ("declared-break-tiny", Setup { faults: Faults { breaks: 1, ..DECLARED }, ..TINY }),
    ("declared-other-tiny", Setup { faults: Faults { others: 1, ..DECLARED }, ..TINY }),
    ("move", Setup { faults: MOVE, ..TWO }),
    ("move-twice", Setup { faults: MOVES, ..ONE }),
    ("queue-small", Setup { faults: MOVE, is_queue: true, ..SMALL }),
    (
        "queue-declared",
        Setup { faults: QUEUE_DECLARED, is_queue: true, programs: ["i", ""], ..TINY },
    ),
    ("move-crash-tiny", Setup { faults: Faults { crashes: 1, ..MOVE }, ..TINY }),
    ("move-declared", Setup { faults: Faults { declared: 1, ..MOVE }, ..ONE }),
    ("alone-move-twice-two", Setup { faults: MOVES, ..ALONE }),
    ("two-copies-crash-declared", Setup { faults: CRASH_DECLARED, ..TWO_COPIES }),
    (
        "two-copies-move-declared",
        Setup { faults: Faults { declared: 1, ..MOVE }, servers: 4, ..TWO_COPIES_ONE },
    ),
    ("scheduler-declared", Setup { faults: SCHEDULER_DECLARED, ..SMALL }),
];
