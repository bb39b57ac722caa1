//! When a request may be executed: now, or after which clock.

/// What a shard says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Execute it.
    Now,
    /// Park it until the shard's clock has reached this value.
    AfterClock(u64),
}
