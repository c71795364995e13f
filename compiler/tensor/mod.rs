//! Element types, tensor types and constant data.
pub mod consts;
pub mod small;
pub mod types;
pub mod words;

pub use consts::{ConstData, count};
pub use small::SmallFloat;
pub use types::{ElemType, MemberType, Shape, TensorType, ValueType};
pub use words::Words;
