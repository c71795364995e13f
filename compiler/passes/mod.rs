//! Passes, by the IR they work on. The order stands in `pipeline`.

pub mod graph;
pub mod lower;
pub mod nest;
