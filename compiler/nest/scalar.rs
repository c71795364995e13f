//! Typed constants.

use crate::tensor::ElemType;

/// A typed constant; `bits` holds the value's bits, zero-extended (integers: two's complement of their
/// width).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Scalar {
    pub ty: ElemType,
    pub bits: u64,
}

impl Scalar {
    /// f32 constant.
    pub fn f32(v: f32) -> Self {
        Scalar { ty: ElemType::F32, bits: u64::from(v.to_bits()) }
    }
    /// Constant of a compute type from a float: rounded to f32, or truncated to an integer.
    pub fn from_f64(ty: ElemType, v: f64) -> Self {
        match ty {
            ElemType::F32 => Scalar::f32(v as f32),
            ElemType::F64 => Scalar { ty, bits: v.to_bits() },
            _ => Scalar::int(ty, v as i64),
        }
    }
    /// Constant of a compute type from an integer, wrapped to its width.
    pub fn int(ty: ElemType, v: i64) -> Self {
        match ty {
            ElemType::F32 | ElemType::F64 => Scalar::from_f64(ty, v as f64),
            ElemType::Bool => Scalar { ty, bits: u64::from(v != 0) },
            _ if ty.bits() >= 64 => Scalar { ty, bits: v as u64 },
            _ => Scalar { ty, bits: (v as u64) & ((1u64 << ty.bits()) - 1) },
        }
    }
    /// The value as f64 (exact for all but large 64-bit integers).
    pub fn to_f64(self) -> f64 {
        match self.ty {
            ElemType::F32 => f64::from(f32::from_bits(self.bits as u32)),
            ElemType::F64 => f64::from_bits(self.bits),
            ElemType::U64 => self.bits as f64,
            _ => self.to_i64() as f64,
        }
    }
    /// The value of an integer or bool, sign-extended; floats are truncated.
    pub fn to_i64(self) -> i64 {
        match self.ty {
            ElemType::F32 | ElemType::F64 => self.to_f64() as i64,
            t if t.is_signed_int() && t.bits() < 64 => {
                let s = 64 - t.bits();
                ((self.bits << s) as i64) >> s
            }
            _ => self.bits as i64,
        }
    }
    /// Smallest value of a type: -inf for floats.
    pub fn lowest(ty: ElemType) -> Self {
        match ty {
            t if t.is_float() => Scalar::from_f64(ty, f64::NEG_INFINITY),
            t if t.is_signed_int() => Scalar::int(ty, i64::MIN >> (64 - t.bits())),
            _ => Scalar { ty, bits: 0 },
        }
    }
    /// Largest value of a type: inf for floats.
    pub fn highest(ty: ElemType) -> Self {
        match ty {
            t if t.is_float() => Scalar::from_f64(ty, f64::INFINITY),
            t if t.is_signed_int() => Scalar { ty, bits: (1u64 << (t.bits() - 1)) - 1 },
            ElemType::Bool => Scalar { ty, bits: 1 },
            t => Scalar { ty, bits: u64::MAX >> (64 - t.bits()) },
        }
    }
}
