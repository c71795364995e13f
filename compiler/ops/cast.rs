//! Cast, CastLike and BitCast.
//!
//! | Cast | |
//! |---|---|
//! | 1 | `to` is a string |
//! | 6 and later | `to` is a number; `saturate` (19) for 8-bit floats, `round_mode` (24) for float8e8m0 |
//!
//! Stores round 8-bit floats to nearest even and convert overflow to infinity or NaN; saturation is a clamp
//! before the store. Values for float8e8m0 are rounded to powers of two first, so that its stores are exact.
//!
//! Conversions between strings and numbers follow Python (`text/numbers.rs`, `text/parse.rs`); a string that
//! is not a number of the type is an error (`ONNXC_E_VALUE`). A string converted to bool is true if it is not
//! empty.

use super::support::text::numbers::{self, Powers};
use super::support::text::parse;
use super::support::{runtime, text};
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::tensor::{ElemType, SmallFloat};
use std::sync::Arc;

/// Target type; `None` for CastLike.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// Target type of Cast.
    pub to: Option<ElemType>,
    /// Out-of-range values become the largest 8-bit float.
    pub saturate: bool,
    /// Rounding mode of float8e8m0.
    pub round: Round,
    /// BitCast: the bits are kept.
    pub bits: bool,
}

/// `round_mode`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Round {
    Up,
    Down,
    /// Halves are rounded up.
    Nearest,
}

impl Operator for Cast {
    const OPS: &'static [&'static str] = &["Cast", "CastLike", "BitCast"];
    fn elements(op: &str) -> Elements {
        if op == "BitCast" { Elements::Complex } else { Elements::Strings }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let to = match (a.op(), a.since()) {
            ("Cast", 1) => {
                match a.string_opt("to").and_then(|s| ElemType::from_onnx_name(&s.to_lowercase())) {
                    Some(t) => Some(t),
                    None => return a.error("attribute \"to\" is not the name of an element type").fail(),
                }
            }
            ("Cast" | "BitCast", _) => match a.elem_type_opt("to") {
                Some(t) => Some(t),
                None => return a.error("attribute \"to\" is missing").fail(),
            },
            _ => None,
        };
        let saturate = a.flag("saturate", true);
        let rounds = [("up", Round::Up), ("down", Round::Down), ("nearest", Round::Nearest)];
        let round = a.choice("round_mode", "up", &rounds);
        Ok(Cast { to, saturate, round, bits: a.op() == "BitCast" })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0);
        let to = match self.to {
            Some(t) => t,
            None => cx.tensor(1).elem,
        };
        for e in [t.elem, to] {
            if !(e.is_float()
                || e.is_int()
                || e == ElemType::Bool
                || e == ElemType::Str && !self.bits
                || e.is_complex() && self.bits)
            {
                return cx
                    .error(
                        codes::OP_FEATURE,
                        format!(
                            "{} between {} and {to} is not supported yet",
                            if self.bits { "BitCast" } else { "Cast" },
                            t.elem
                        ),
                    )
                    .fail();
            }
        }
        if self.bits {
            if t.elem.bits() != to.bits() {
                let text = |t: ElemType| format!("{t} of {} bits", t.bits());
                return cx
                    .error(codes::OP_TYPE, "BitCast needs a type of the same width")
                    .found_expected(text(to), format!("as wide as {}", text(t.elem)))
                    .fail();
            }
            let known =
                cx.constant(0).and_then(|c| c.with_elem(to)).map_or(Known::No, |c| Known::Const(Arc::new(c)));
            cx.set_known(0, to, t.dims.clone(), known);
            return Ok(());
        }
        let known = match cx.dims_value(0) {
            Some(v) if matches!(to, ElemType::I64 | ElemType::I32) && t.elem != ElemType::F32 => {
                Known::Dims(v)
            }
            Some(v) if to == ElemType::Bool && v.iter().all(|d| matches!(d.as_const(), Some(0 | 1))) => {
                Known::Dims(v)
            }
            _ => Known::No,
        };
        cx.set_known(0, to, t.dims.clone(), known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (from, to) = (cx.elem(x), cx.elem(y));
        if from == to {
            cx.alias(0, x);
            return Ok(());
        }
        if self.bits {
            let dims = cx.dims(y);
            cx.outputs[0] = Some(cx.m.view_as(x, to, dims));
            return Ok(());
        }
        if to == ElemType::Str {
            write(cx, x, y);
            return Ok(());
        }
        if from == ElemType::Str {
            self.read(cx, x, y);
            return Ok(());
        }
        cx.map(y, |k, at| {
            let v = k.load(x, at);
            self.convert(k, from.compute(), to, v)
        });
        Ok(())
    }
}

/// Converts numbers to strings.
fn write(cx: &mut LowerCx, x: Buf, y: Buf) {
    let from = cx.elem(x);
    let powers = from.is_float().then(|| Powers::new(cx.m));
    text::produce(cx, y, |k, at, sink| {
        let v = k.load(x, at);
        match &powers {
            Some(p) => numbers::write_float(k, p, v, from == ElemType::F16, sink),
            None if from == ElemType::Bool => numbers::write_bool(k, v, sink),
            None => numbers::write_int(k, v, sink),
        }
    });
}

impl Cast {
    /// Converts strings to numbers.
    fn read(&self, cx: &mut LowerCx, x: Buf, y: Buf) {
        let (to, dims) = (cx.elem(y), cx.dims(y));
        if to.is_float() {
            parse::read_floats(cx, x, y, |k, v| self.convert(k, ElemType::F64, to, v));
            return;
        }
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let s = k.load(x, at);
                let s = k.let_(s);
                let v = match to {
                    ElemType::Bool => Expr::bin(BinOp::Gt, Expr::text_len(s), runtime::int(0)),
                    _ => parse::read_int(k, &s, to),
                };
                k.store(y, at, v);
            });
        });
    }
    fn convert(&self, k: &mut KernelBuilder, from: ElemType, to: ElemType, v: Expr) -> Expr {
        let v = match to {
            // Out-of-range values wrap, as in the ONNX reference and ONNX Runtime, which convert through a
            // wider signed type.
            t if from.is_float() && t.is_int() && t.bits() < 32 => {
                Expr::cast(ElemType::I32, t.compute(), Expr::cast(from, ElemType::I32, v))
            }
            ElemType::U32 if from.is_float() => {
                Expr::cast(ElemType::I64, to, Expr::cast(from, ElemType::I64, v))
            }
            ElemType::U64 if from.is_float() => k.shared(v, |_, v| {
                let negative = Expr::bin(BinOp::Lt, v.clone(), Expr::num(from, 0.0));
                let below = Expr::cast(ElemType::I64, to, Expr::cast(from, ElemType::I64, v.clone()));
                Expr::select(negative, below, Expr::cast(from, to, v))
            }),
            _ => Expr::cast(from, to.compute(), v),
        };
        match to {
            ElemType::F8E8M0 => self.power_of_two(k, v),
            t if self.saturate => saturated(t, v),
            _ => v,
        }
    }
    /// The power of two that float8e8m0 holds for a magnitude; subnormal magnitudes are between 2^-127 and
    /// 2^-126.
    fn power_of_two(&self, k: &mut KernelBuilder, v: Expr) -> Expr {
        let int = |v: i64| Expr::int(ElemType::I32, v);
        let bits = Expr::un(UnOp::Bits(ElemType::I32), v).and(int(0x7fff_ffff));
        k.shared(bits, |_, b| {
            let at_least = |limit: i64| Expr::bin(BinOp::Ge, b.clone(), int(limit));
            let (add, subnormal_up) = match self.round {
                Round::Up => (0x7f_ffff, at_least(0x40_0001)),
                Round::Down => (0, Expr::bool(false)),
                Round::Nearest => (0x40_0000, at_least(0x60_0000)),
            };
            // A carry propagates into the exponent.
            let normal = (b.clone() + int(add)).and(int(0x7f80_0000));
            let small = Expr::select(subnormal_up, int(0x80_0000), int(0x40_0000));
            let r = Expr::select(at_least(0x80_0000), normal, small);
            let nan = int(0x7fc0_0000);
            let r = if self.saturate {
                let capped = Expr::bin(BinOp::Min, r, int(0x7f00_0000));
                Expr::select(at_least(0x7f80_0001), nan, capped)
            } else {
                Expr::select(
                    Expr::bin(
                        BinOp::Or,
                        at_least(0x7f80_0000),
                        Expr::bin(BinOp::Lt, b.clone(), int(0x40_0000)),
                    ),
                    nan,
                    r,
                )
            };
            Expr::un(UnOp::Bits(ElemType::F32), r)
        })
    }
}

/// A value of the compute type, clamped to the range of a small float; NaN is kept. Values for other types
/// are unchanged.
pub fn saturated(to: ElemType, v: Expr) -> Expr {
    match SmallFloat::of(to) {
        Some(s) if s.has_specials() => v.max(Expr::f32(-s.largest())).min(Expr::f32(s.largest())),
        _ => v,
    }
}
