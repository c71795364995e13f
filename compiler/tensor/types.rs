//! Element types (numbered as ONNX `TensorProto.DataType`), symbolic shapes, and the types of values.

use crate::sym::{Dim, SymTable};
use std::fmt;

macro_rules! elem_types {
    ($($v:ident = $n:literal, $name:literal, $short:literal, $bits:literal;)*) => {
        /// An element type; discriminants are the numbers of `TensorProto.DataType` (onnx 1.23.2).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum ElemType { $($v = $n),* }
        impl ElemType {
            /// All of them, by number.
            pub const ALL: &'static [ElemType] = &[$(ElemType::$v),*];
            /// From the number in a file.
            pub fn from_onnx(n: i32) -> Option<Self> { match n { $($n => Some(ElemType::$v),)* _ => None } }
            /// ONNX textual name, e.g. `float`, `int64`, `bfloat16`.
            pub fn onnx_name(self) -> &'static str { match self { $(ElemType::$v => $name),* } }
            /// Name in the nest IR, e.g. `f32`.
            pub fn short(self) -> &'static str { match self { $(ElemType::$v => $short),* } }
            /// Bits of one element in memory (4- and 2-bit types are packed, 6-bit floats take a byte); 128
            /// for a string descriptor.
            pub fn bits(self) -> u32 { match self { $(ElemType::$v => $bits),* } }
            /// From the ONNX textual name.
            pub fn from_onnx_name(s: &str) -> Option<Self> {
                match s { $($name => Some(ElemType::$v),)* _ => None }
            }
            /// From the nest IR's name.
            pub fn from_short(s: &str) -> Option<Self> {
                match s { $($short => Some(ElemType::$v),)* _ => None }
            }
        }
    };
}

elem_types! {
    F32 = 1, "float", "f32", 32;
    U8 = 2, "uint8", "u8", 8;
    I8 = 3, "int8", "i8", 8;
    U16 = 4, "uint16", "u16", 16;
    I16 = 5, "int16", "i16", 16;
    I32 = 6, "int32", "i32", 32;
    I64 = 7, "int64", "i64", 64;
    Str = 8, "string", "str", 128;
    Bool = 9, "bool", "bool", 8;
    F16 = 10, "float16", "f16", 16;
    F64 = 11, "double", "f64", 64;
    U32 = 12, "uint32", "u32", 32;
    U64 = 13, "uint64", "u64", 64;
    C64 = 14, "complex64", "c64", 64;
    C128 = 15, "complex128", "c128", 128;
    BF16 = 16, "bfloat16", "bf16", 16;
    F8E4M3FN = 17, "float8e4m3fn", "f8e4m3fn", 8;
    F8E4M3FNUZ = 18, "float8e4m3fnuz", "f8e4m3fnuz", 8;
    F8E5M2 = 19, "float8e5m2", "f8e5m2", 8;
    F8E5M2FNUZ = 20, "float8e5m2fnuz", "f8e5m2fnuz", 8;
    U4 = 21, "uint4", "u4", 4;
    I4 = 22, "int4", "i4", 4;
    F4E2M1 = 23, "float4e2m1", "f4e2m1", 4;
    F8E8M0 = 24, "float8e8m0", "f8e8m0", 8;
    U2 = 25, "uint2", "u2", 2;
    I2 = 26, "int2", "i2", 2;
    F6E2M3 = 27, "float6e2m3", "f6e2m3", 8;
    F6E3M2 = 28, "float6e3m2", "f6e3m2", 8;
}

impl ElemType {
    /// The type in which arithmetic is done: f32 for small floats, 8-bit integers for packed ones, the type
    /// itself otherwise. A `Load` yields this type and a `Store` takes it; the access converts.
    pub fn compute(self) -> ElemType {
        use ElemType::*;
        match self {
            F16 | BF16 | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F4E2M1 | F6E2M3 | F6E3M2 | F8E8M0 => {
                F32
            }
            U4 | U2 => U8,
            I4 | I2 => I8,
            t => t,
        }
    }
    /// Whole bytes of one element; `None` for packed types.
    pub fn bytes(self) -> Option<u32> {
        self.bits().is_multiple_of(8).then(|| self.bits() / 8)
    }
    /// Bytes of `n` dense elements, `None` on overflow.
    pub fn bytes_for(self, n: u64) -> Option<u64> {
        n.checked_mul(u64::from(self.bits())).map(|b| b.div_ceil(8))
    }
    /// Any floating-point type.
    pub fn is_float(self) -> bool {
        use ElemType::*;
        matches!(
            self,
            F32 | F64
                | F16
                | BF16
                | F8E4M3FN
                | F8E4M3FNUZ
                | F8E5M2
                | F8E5M2FNUZ
                | F4E2M1
                | F6E2M3
                | F6E3M2
                | F8E8M0
        )
    }
    /// True for complex64 and complex128: pairs of floats, real part first. Elements are opaque and can only
    /// be moved; arithmetic works on their parts.
    pub fn is_complex(self) -> bool {
        matches!(self, ElemType::C64 | ElemType::C128)
    }
    /// Type of the parts of a complex number.
    pub fn part(self) -> Option<ElemType> {
        match self {
            ElemType::C64 => Some(ElemType::F32),
            ElemType::C128 => Some(ElemType::F64),
            _ => None,
        }
    }
    /// True for floats and integers of less than 16 bits that are computed in another type. A store rounds or
    /// wraps, so a value that was stored and loaded may differ from the original.
    pub fn is_small(self) -> bool {
        self.compute() != self && !matches!(self, ElemType::F16 | ElemType::BF16)
    }
    /// True if several elements share a byte, the first one in the low bits.
    pub fn is_packed(self) -> bool {
        self.bits() < 8
    }
    /// Signed or unsigned integer, not bool.
    pub fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }
    /// Signed integer.
    pub fn is_signed_int(self) -> bool {
        use ElemType::*;
        matches!(self, I8 | I16 | I32 | I64 | I4 | I2)
    }
    /// Unsigned integer.
    pub fn is_unsigned_int(self) -> bool {
        use ElemType::*;
        matches!(self, U8 | U16 | U32 | U64 | U4 | U2)
    }
}

impl fmt::Display for ElemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.onnx_name())
    }
}

/// Dimensions, outermost first.
pub type Shape = Vec<Dim>;

/// Type of a dense, row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Storage type of the elements.
    pub elem: ElemType,
    /// Dimensions.
    pub dims: Shape,
}

impl TensorType {
    /// A tensor type.
    pub fn new(elem: ElemType, dims: impl Into<Shape>) -> Self {
        TensorType { elem, dims: dims.into() }
    }
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }
    /// Number of elements.
    pub fn count(&self) -> Dim {
        Dim::product(self.dims.iter().copied())
    }
    /// `float[batch, 3, 224]`.
    pub fn display(&self, syms: &SymTable) -> String {
        let dims: Vec<String> = self.dims.iter().map(|d| d.display(syms).to_string()).collect();
        format!("{}[{}]", self.elem, dims.join(", "))
    }
}

/// Type of the tensors in a sequence, an optional or a map; sizes may differ between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberType {
    /// Storage type of the elements.
    pub elem: ElemType,
    /// Their common properties: the rank, and sizes.
    pub dims: Option<Vec<Option<i64>>>,
}

impl MemberType {
    fn text(&self) -> String {
        match &self.dims {
            Some(d) if d.is_empty() => self.elem.to_string(),
            Some(d) => format!(
                "{}[{}]",
                self.elem,
                d.iter().map(|d| d.map_or("?".to_owned(), |d| d.to_string())).collect::<Vec<_>>().join(", ")
            ),
            None => format!("{}[]", self.elem),
        }
    }
}

/// ONNX text of a member type.
impl fmt::Display for MemberType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// Type of a value of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ValueType {
    Tensor(TensorType),
    /// A member; occurs only inside the other types.
    Member(MemberType),
    Sequence(Box<ValueType>),
    Optional(Box<ValueType>),
    Map(ElemType, Box<ValueType>),
}

impl ValueType {
    /// The tensor type, if it is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            ValueType::Tensor(t) => Some(t),
            _ => None,
        }
    }
    /// `float[N, 3]`, `seq(float[2])`, ...
    pub fn display(&self, syms: &SymTable) -> String {
        match self {
            ValueType::Tensor(t) => t.display(syms),
            ValueType::Member(t) => t.to_string(),
            ValueType::Sequence(t) => format!("seq({})", t.display(syms)),
            ValueType::Optional(t) => format!("optional({})", t.display(syms)),
            ValueType::Map(k, v) => format!("map({k}, {})", v.display(syms)),
        }
    }
}
