//! All tests of the portable van in one program, a module for each subject.
#![allow(clippy::unwrap_used, reason = "tests")]

mod conformance;
mod cost;
mod mixed;
mod stripes;
mod support;
mod threads;
mod watched;
