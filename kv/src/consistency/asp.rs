//! Asynchronous (eventual consistency, Hogwild): every request is executed as it comes.

use super::{Access, Controller, Members, Verdict, check_member};

/// Admits everything, and keeps the workers' clocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asp {
    members: Members,
}

impl Asp {
    /// For `workers` workers.
    pub fn new(workers: usize) -> Self {
        Asp { members: Members::new(workers) }
    }
}

impl Controller for Asp {
    fn members(&self) -> &Members {
        &self.members
    }

    fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    fn admit(&mut self, access: &Access<'_>) -> Verdict {
        match check_member(&self.members, access) {
            Ok(_) => Verdict::Admit,
            Err(forbidden) => Verdict::Refuse(forbidden),
        }
    }
}
