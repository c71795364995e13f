//! Element types, tensor types and constant data.
pub mod consts;
pub mod types;

pub use consts::{ConstData, count};
pub use types::{ElemType, Shape, TensorType, ValueType};
