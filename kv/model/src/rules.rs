//! What all roles know: the workload, and which rule of the protocol is broken.

use crate::mutants::Mutant;
use crate::workload::Workload;

/// The rules of one exploration.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What the clients ask for.
    pub workload: Workload,
    /// The rule that is broken, if one is.
    pub mutant: Option<Mutant>,
}

impl Rules {
    /// Whether this mutant is explored.
    pub fn breaks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
