//! What a check is: what it sees of a machine, and the places where it has found something.

use super::root::Root;

/// What a cluster asks of this machine, and where the machine tells of itself.
pub(super) struct Seen {
    pub(super) root: Root,
    /// Threads that run at once.
    pub(super) threads: usize,
    /// Memory of one thread at most.
    pub(super) memory_bytes: usize,
    /// Whether the kernel refuses io_uring to this process.
    pub(super) uring_is_refused: bool,
}

/// One place where a check has found something.
pub(super) struct Place {
    /// What stands for `{}` in the command: the interface, the device, or how much is needed.
    pub(super) name: String,
    pub(super) what: String,
}

/// One kind of thing that hurts.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) find: fn(&Seen) -> Vec<Place>,
    pub(super) remedy: &'static str,
    pub(super) command: &'static str,
}

/// A place for the whole machine, if there is something to say.
pub(super) fn here(what: Option<String>) -> Vec<Place> {
    what.into_iter().map(|what| Place { name: String::new(), what }).collect()
}

/// A place where `needed` is too much, if there is something to say.
pub(super) fn short_of(needed: impl ToString, what: Option<String>) -> Vec<Place> {
    what.into_iter().map(|what| Place { name: needed.to_string(), what }).collect()
}

/// The places among some names of which there is something to say.
pub(super) fn among(names: Vec<String>, what: impl Fn(&str) -> Option<String>) -> Vec<Place> {
    let place = |name: String| what(&name).map(|what| Place { name, what });
    names.into_iter().filter_map(place).collect()
}
