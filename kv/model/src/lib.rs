//! The replication protocol of kv as a program that explores every order of events.
//!
//! A shard has a chain of servers and a log; clients have sessions; the scheduler owns the map that
//! says who is in the chain. The page `kv/docs/protocol.md` has the rules. Here each rule is code
//! that runs under every order of messages and faults of small configurations, and is checked after
//! each event. A [mutant](mutants) breaks one rule, and a configuration finds it.
//!
//! | question | file |
//! |---|---|
//! | who is in a chain, and who joins it | [`entry`] |
//! | what a head, a follower, a source and a joiner do | [`server`], [`links`], [`replica`], [`transfer`] |
//! | what a client does | [`client`] |
//! | what the scheduler does | [`scheduler`] |
//! | what can happen | [`steps`], [`model`] |
//! | what must hold | [`invariants`] |
//! | what is explored | [`configurations`], [`explore`] |
//! | credits of lanes, as a model of their own | [`credits`] |

pub mod client;
pub mod configurations;
pub mod credits;
pub mod entry;
pub mod explore;
pub mod invariants;
pub mod lanes;
pub mod links;
pub mod log;
pub mod model;
pub mod mutants;
pub mod replica;
pub mod rules;
pub mod scheduler;
pub mod server;
pub mod steps;
pub mod transfer;
pub mod violation;
pub mod workload;
