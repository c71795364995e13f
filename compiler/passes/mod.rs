//! Passes, by the IR they work on. Their order is in [`table`].

pub mod graph;
pub mod lower;
pub mod nest;
pub mod table;
