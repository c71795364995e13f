//! Layouts: the order of buffers in memory, the element types of scratch, rows with elements to spare.

pub mod choose_layouts;
pub mod copy_small_floats;
pub mod fill_vectors;
pub mod pad_rows;
pub mod widen_f16_scratch;
