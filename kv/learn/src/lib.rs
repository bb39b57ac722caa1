//! What runs on `kv`: data readers and delayed block proximal gradient.

#![forbid(unsafe_code)]

pub mod dbpg;
