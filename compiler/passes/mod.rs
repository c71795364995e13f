//! Passes, by the IR they work on. Their order stands in [`table`].

pub mod graph;
pub mod lower;
pub mod nest;
pub mod table;
