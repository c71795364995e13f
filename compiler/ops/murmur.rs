//! MurmurHash3 of com.microsoft: MurmurHash3_x86_32 (A. Appleby) of the bytes of each element, lowest first.
//!
//! Spec:
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MurmurHash3>.
//! One version.

use super::support::runtime::{int, le};
use super::support::text::lt;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::Result;
use crate::nest::{BinOp, Expr, KernelBuilder, LoopKind, Reg, UnOp};
use crate::tensor::ElemType;

/// The attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct Murmur {
    seed: u32,
    positive: bool,
}

const U32: ElemType = ElemType::U32;

fn word(v: u32) -> Expr {
    Expr::int(U32, i64::from(v))
}

fn xor(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Xor, a, b)
}

fn rotated(k: &mut KernelBuilder, v: Expr, by: u32) -> Expr {
    let v = k.let_(v);
    k.let_(Expr::bin(
        BinOp::Or,
        Expr::bin(BinOp::Shl, v.clone(), word(by)),
        Expr::bin(BinOp::Shr, v, word(32 - by)),
    ))
}

/// Mixes in up to four bytes.
fn add(k: &mut KernelBuilder, h: Reg, bytes: Expr) {
    let v = rotated(k, bytes * word(0xcc9e_2d51), 15);
    k.set(h, xor(Expr::acc(h), v * word(0x1b87_3593)));
}

/// Mixes in a whole word.
fn block(k: &mut KernelBuilder, h: Reg, bytes: Expr) {
    add(k, h, bytes);
    let v = rotated(k, Expr::acc(h), 13);
    k.set(h, v * word(5) + word(0xe654_6b64));
}

/// Mixes in the number of bytes.
fn finish(k: &mut KernelBuilder, h: Reg, len: Expr) -> Expr {
    let mut v = k.let_(xor(Expr::acc(h), len));
    for (shift, factor) in [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35)] {
        v = k.let_(xor(v.clone(), Expr::bin(BinOp::Shr, v, word(shift))) * word(factor));
    }
    k.let_(xor(v.clone(), Expr::bin(BinOp::Shr, v, word(16))))
}

/// Hashes a string: its words, then the remaining bytes.
fn text(k: &mut KernelBuilder, h: Reg, s: &Expr) -> Expr {
    let n = k.let_(Expr::text_len(s.clone()));
    let i = k.acc(int(0));
    let byte = |at: Expr| Expr::cast(ElemType::U8, U32, Expr::text_byte(s.clone(), at));
    k.while_(le(Expr::acc(i) + int(4), n.clone()), |k| {
        let bytes = (0..4).map(|b| Expr::bin(BinOp::Shl, byte(Expr::acc(i) + int(b)), word(8 * b as u32)));
        let whole = bytes.reduce(|a, b| Expr::bin(BinOp::Or, a, b)).unwrap_or(word(0));
        block(k, h, whole);
        k.update(BinOp::Add, i, int(4));
    });
    let (rest, shift) = (k.acc(word(0)), k.acc(word(0)));
    k.if_(lt(Expr::acc(i), n.clone()), |k| {
        k.while_(lt(Expr::acc(i), n.clone()), |k| {
            let b = Expr::bin(BinOp::Shl, byte(Expr::acc(i)), Expr::acc(shift));
            k.set(rest, Expr::bin(BinOp::Or, Expr::acc(rest), b));
            k.update(BinOp::Add, shift, word(8));
            k.update(BinOp::Add, i, int(1));
        });
        add(k, h, Expr::acc(rest));
    });
    Expr::cast(ElemType::I64, U32, n)
}

impl Operator for Murmur {
    const OPS: &'static [&'static str] = &["com.microsoft:MurmurHash3"];
    fn elements(_op: &str) -> Elements {
        Elements::Strings
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(Murmur { seed: a.int("seed", 0) as u32, positive: a.flag("positive", true) })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let dims = cx.tensor(0).dims.clone();
        cx.set(0, if self.positive { U32 } else { ElemType::I32 }, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (dims, from, to) = (cx.dims(y), cx.elem(x), cx.elem(y));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let v = k.load(x, at);
                let v = k.let_(v);
                let h = k.acc(word(self.seed));
                let len = if from == ElemType::Str {
                    text(k, h, &v)
                } else if from.bits() == 64 {
                    let bits = if from == ElemType::F64 {
                        Expr::un(UnOp::Bits(ElemType::U64), v)
                    } else {
                        Expr::cast(from, ElemType::U64, v)
                    };
                    let bits = k.let_(bits);
                    for part in [bits.clone(), Expr::bin(BinOp::Shr, bits, Expr::int(ElemType::U64, 32))] {
                        block(
                            k,
                            h,
                            Expr::cast(ElemType::U64, U32, part.and(Expr::int(ElemType::U64, 0xffff_ffff))),
                        );
                    }
                    word(8)
                } else {
                    let bits = if from == ElemType::F32 {
                        Expr::un(UnOp::Bits(U32), v)
                    } else {
                        Expr::cast(from, U32, v)
                    };
                    block(k, h, bits);
                    word(4)
                };
                let v = finish(k, h, len);
                k.store(y, at, Expr::cast(U32, to, v));
            });
        });
        Ok(())
    }
}
