//! What several passes ask about kernels, and the pieces of nests they build alike.

pub(crate) use crate::nest::form;

pub mod borders;
pub mod cost;
pub mod lanes64;
pub mod machine;
pub mod shape;
pub mod strides;
pub mod uses;
pub mod vectors;
