//! Memory: the kernels that only fill or share buffers, and the addresses of buffers.

pub mod join_borders;
pub mod place_memory;
pub mod read_panels;
