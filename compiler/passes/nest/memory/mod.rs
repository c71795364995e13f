//! Memory: where every buffer lies.

pub mod place_memory;
pub mod read_panels;
