//! Element types, tensor types and constant data.
pub mod consts;
pub mod small;
pub mod types;

pub use consts::{ConstData, count};
pub use small::SmallFloat;
pub use types::{ElemType, MemberType, Shape, TensorType, ValueType};
