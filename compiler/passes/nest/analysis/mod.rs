//! What several passes ask about kernels, and the pieces of nests they build alike.

pub mod cost;
pub mod form;
pub mod machine;
pub mod shape;
pub mod strides;
pub mod uses;
