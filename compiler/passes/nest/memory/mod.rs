//! Memory: the addresses of buffers.

pub mod place_memory;
pub mod read_panels;
