//! Elements of 2, 4 or 8 bits in byte tensors, the first one in the low bits.

use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Place};
use crate::ops::LowerCx;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// A byte tensor viewed as elements: its last dimension counts them.
pub struct Fields {
    buf: Buf,
    /// Elements per byte that must be extracted; 1 if the buffer has a packed type.
    per: i64,
    bits: i64,
}

impl Fields {
    /// Elements of `bits` bits. Tensors of other types than bytes are used as they are.
    pub fn new(cx: &mut LowerCx, bytes: Buf, bits: i64) -> Fields {
        let small = match bits {
            2 => ElemType::U2,
            4 => ElemType::U4,
            _ => return Fields { buf: bytes, per: 1, bits: 8 },
        };
        // Constants and inputs are viewed as packed types; elements of byte buffers in scratch are extracted.
        if !matches!(cx.m.bufs[cx.m.storage(bytes)].place, Place::Const(_) | Place::Input(_)) {
            return Fields { buf: bytes, per: 8 / bits, bits };
        }
        let mut dims = cx.dims(bytes);
        if let Some(last) = dims.last_mut() {
            *last = *last * (8 / bits);
        }
        Fields { buf: cx.m.view_as(bytes, small, dims), per: 1, bits }
    }
    /// The element at `at`, in the compute type of the tensor.
    pub fn load(&self, k: &KernelBuilder, at: &[Dim]) -> Expr {
        if self.per == 1 {
            return k.load(self.buf, at);
        }
        let mut at = at.to_vec();
        let Some(last) = at.last_mut() else { return k.load(self.buf, &at) };
        let i = *last;
        *last = i.floor_div(self.per);
        let int = ElemType::I32;
        let byte = Expr::cast(ElemType::U8, int, k.load(self.buf, &at));
        let shift = Expr::cast(ElemType::I64, int, Expr::index(i.modulo(self.per) * self.bits));
        let field = Expr::bin(BinOp::Shr, byte, shift).and(Expr::int(int, (1 << self.bits) - 1));
        Expr::cast(int, ElemType::U8, field)
    }
}

/// An element of a small type as f32.
pub fn number(elem: ElemType, v: Expr) -> Expr {
    if elem.is_int() {
        Expr::cast(ElemType::I32, ElemType::F32, Expr::cast(elem.compute(), ElemType::I32, v))
    } else {
        v
    }
}
