//! Arrays as inputs and outputs of the program, and (feature `cli`) the files that hold them.

#[cfg(feature = "cli")]
mod files;
#[cfg(feature = "cli")]
mod npy;
#[cfg(all(feature = "cli", feature = "image"))]
pub mod picture;

#[cfg(feature = "cli")]
pub use files::{FORMATS, Format, format, read, read_named, read_npz, write, write_all};

use crate::tensor::{ElemType, count};
use onnxc_runtime::texts;

/// A dense, row-major array.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Name, if the file gives one.
    pub name: String,
    /// Element type.
    pub ty: ElemType,
    /// Shape.
    pub dims: Vec<i64>,
    /// Little-endian data; strings as in [`texts`].
    pub data: Vec<u8>,
}

impl Array {
    /// The bytes of each string.
    pub fn to_strings(&self) -> Option<Vec<&[u8]>> {
        let n = count(&self.dims).and_then(|n| usize::try_from(n).ok())?;
        if self.ty == ElemType::Str { texts::decode(&self.data, n) } else { None }
    }
    /// The values as f64. A complex number gives both its parts.
    pub fn to_f64s(&self) -> Vec<f64> {
        let (ty, dims) = match self.ty.part() {
            Some(part) => (part, [self.dims.as_slice(), &[2]].concat()),
            None => (self.ty, self.dims.clone()),
        };
        let c = crate::tensor::ConstData::new(ty, dims, self.data.clone());
        c.and_then(|c| c.to_f64s().or_else(|| c.to_i64s().map(|v| v.into_iter().map(|x| x as f64).collect())))
            .unwrap_or_default()
    }
}
