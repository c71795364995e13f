//! Layouts: the order of buffers in memory, element types of scratch, padding of rows.

pub mod choose_layouts;
pub mod copy_bits;
pub mod fill_vectors;
pub mod pad_rows;
pub mod widen_f16_scratch;
