//! All tests of the program in one, a module for each subject. They run it as users do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod checkpoint;
mod cli;
mod doctor;
mod inputs;
mod interrupt;
mod jobs;
mod joining;
mod launch;
mod launchers;
mod messages;
mod models;
mod moving;
mod outputs;
mod page;
mod rows;
mod scheduler;
mod sketch;
mod support;
mod table;
mod top;
