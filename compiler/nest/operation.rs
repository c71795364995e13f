//! Operations of expressions.

use super::Buf;
use crate::tensor::ElemType;

/// Operations on one value. The type stays unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum UnOp {
    Neg,
    Abs,
    Sign,
    Not,
    BitNot,
    Floor,
    Ceil,
    Trunc,
    /// Halves to even.
    Round,
    Sqrt,
    Recip,
    Exp,
    Log,
    Erf,
    Tanh,
    Sigmoid,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    /// exp(x) - 1 and log(1 + x) without cancellation.
    Expm1,
    Log1p,
    /// Bool results.
    IsNan,
    IsInf,
    /// The same bits as another type of the same width.
    Bits(ElemType),
}

impl UnOp {
    /// The type of the result, for an operand of type `ty`.
    pub fn result(self, ty: ElemType) -> ElemType {
        match self {
            UnOp::IsNan | UnOp::IsInf => ElemType::Bool,
            UnOp::Bits(to) => to,
            _ => ty,
        }
    }
    /// True for functions that are computed in generated code, including vectors.
    pub fn is_elementary(self, ty: ElemType) -> bool {
        use UnOp::*;
        match self {
            Exp | Log | Erf | Tanh | Sigmoid | Expm1 | Log1p => ty.is_float(),
            Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh => ty == ElemType::F32,
            _ => false,
        }
    }
    /// True for floating-point operations of one or a few instructions, including vectors.
    pub fn is_plain_float(self) -> bool {
        use UnOp::*;
        matches!(self, Neg | Abs | Sign | Floor | Ceil | Trunc | Round | Sqrt | Recip | IsNan | IsInf)
    }
}

/// Operations on strings (rule 9). Positions and lengths are i64 and must be in range, which only the
/// interpreter checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextOp {
    /// Bytes of a text, as i64.
    Len,
    /// The byte, as u8, of a text at a position.
    Byte,
    /// Of a text: from a position on so many bytes.
    Part,
    /// All bytes of a buffer of type u8.
    Of(Buf),
}

impl TextOp {
    /// The types of the operands, and of the result.
    pub fn signature(self) -> (&'static [ElemType], ElemType) {
        match self {
            TextOp::Len => (&[ElemType::Str], ElemType::I64),
            TextOp::Byte => (&[ElemType::Str, ElemType::I64], ElemType::U8),
            TextOp::Part => (&[ElemType::Str, ElemType::I64, ElemType::I64], ElemType::Str),
            TextOp::Of(_) => (&[], ElemType::Str),
        }
    }
}

/// Operations on two values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum BinOp {
    Add,
    Sub,
    Mul,
    /// Floats: IEEE; integers: truncating, by zero leaves with `E_VALUE`.
    Div,
    /// Remainder with the sign of the dividend (C fmod), and with that of the divisor (Python %).
    Rem,
    Mod,
    /// NaN if either is NaN (ONNX Min and Max).
    Min,
    Max,
    Pow,
    Atan2,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    /// Bool results.
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl BinOp {
    /// The type of the result, for operands of type `ty`.
    pub fn result(self, ty: ElemType) -> ElemType {
        if self.is_comparison() { ElemType::Bool } else { ty }
    }
    /// True for the six comparisons.
    pub fn is_comparison(self) -> bool {
        matches!(self, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge)
    }
    /// Evaluates a comparison of two values.
    #[inline]
    pub fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            BinOp::Eq => a == b,
            BinOp::Ne => a != b,
            BinOp::Lt => a < b,
            BinOp::Le => a <= b,
            BinOp::Gt => a > b,
            _ => a >= b,
        }
    }
}
