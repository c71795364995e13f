//! Caches of keys and values: the past, the appended new tokens, and quantization.

use super::{Lower, input, number, output, resident};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::ops::attention::core::{Form, Operand};
use crate::ops::cast::saturated;
use crate::ops::ms_attention::Group;
use crate::ops::quantize::quantized;
use crate::ops::{InferCx, LowerCx};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Element type and elements per head of a quantized cache, 0 for keys and 1 for values, checked against its
/// scale.
pub(super) fn infer(cx: &mut InferCx, g: &Group, i: usize, size: Dim) -> Result<(ElemType, Dim)> {
    let (name, what) = (["k_scale", "v_scale"][i], ["past_key", "past_value"][i]);
    let Some(elem) = cx.tensor_opt(input::PAST[i]).map(|p| p.elem) else {
        let title = format!("a quantized cache needs the input {what}: it has the cache's type");
        return cx.error(codes::OP_FEATURE, title).fail();
    };
    let (fits, expected): (&[ElemType], _) = match g.bits {
        4 => (&[ElemType::U8], "uint8"),
        _ => (&[ElemType::I8, ElemType::F8E4M3FN], "int8 or float8e4m3fn"),
    };
    if !fits.contains(&elem) {
        let error = cx.error(codes::OP_TYPE, format!("{what} has the wrong type"));
        return error.found_expected(elem.to_string(), expected).fail();
    }
    let Some(n) = cx.tensor_opt(input::SCALES[i]).map(|s| s.count()) else {
        return cx.error(codes::OP_ARITY, format!("a quantized cache needs the input {name}")).fail();
    };
    if n.as_const() != Some(1) {
        let message = "a scale is one for all, or one for each key head and element";
        cx.require_eq(n, size * g.kv_heads, message);
    }
    Ok((elem, if g.bits == 4 { size.ceil_div(2) } else { size }))
}

impl Lower<'_> {
    /// Builds the cache of keys (`i` = 0) or values (1) including the new ones, which queries read.
    ///
    /// It is a copy of the past, followed by zeros and overwritten with the new tokens. Rows after a sample's
    /// keys are not used.
    pub(super) fn present(&self, cx: &mut LowerCx, i: usize, new: Operand) -> Operand {
        let Lower { g, batch, tokens, size, kv_heads, past, keys, cached, .. } = *self;
        let cache = g.quantized[i].then(|| Cache::new(cx, g, i, size)).flatten();
        let from = cx.input_opt(input::PAST[i]);
        let (elem, width) = match (&cache, from) {
            (Some(c), Some(p)) => (cx.elem(p), c.stored(size)),
            _ => (self.elem, size),
        };
        let out = match cx.output_opt(output::PRESENT[i]) {
            Some(b) if !g.evicts => b,
            _ => cx.temp(["present_key", "present_value"][i], elem, vec![batch, kv_heads, keys, width]),
        };
        if let Some(p) = from {
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &[batch, kv_heads, past, width], |k, at| {
                    let v = k.load(p, at);
                    k.store(out, at, v);
                });
            });
        }
        let behind = cx.m.syms.simplify(keys - past);
        if behind.as_const() != Some(0) && (from.is_some() || behind != tokens) {
            let zero = Expr::num(elem.compute(), 0.0);
            cx.kernel(|k| {
                k.nest(LoopKind::Par, &[batch, kv_heads, behind, width], |k, at| {
                    k.store(out, &[at[0], at[1], at[2] + past, at[3]], zero);
                });
            });
        }
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[batch, kv_heads, tokens], |k, at| {
                let place = number(k, cached, at[0]) + Expr::index(at[2]);
                k.at_index(place, keys, |k, p| {
                    k.nest(LoopKind::Par, &[width], |k, e| {
                        let v = match &cache {
                            Some(c) => c.code(k, new, [at[0], at[1], at[2], e[0]], size),
                            None => new.load(k, at[0], at[1], at[2], e[0]),
                        };
                        k.store(out, &[at[0], at[1], p, e[0]], v);
                    });
                });
            });
        });
        if let Some(present) = cx.output_opt(output::PRESENT[i]).filter(|_| g.evicts) {
            self.evict(cx, out, present);
        }
        let buf = match &cache {
            Some(c) => {
                let dims = vec![batch, kv_heads, keys, size];
                let floats = cx.temp(["cached_key", "cached_value"][i], self.ty, dims);
                cx.map(floats, |k, at| c.value(k, out, at));
                floats
            }
            None => out,
        };
        Operand { buf, form: Form::Heads }
    }
    /// Copies the rows that remain in the cache after appending the new tokens.
    fn evict(&self, cx: &mut LowerCx, all: Buf, present: Buf) {
        let Lower { g, tokens, past, keys, .. } = *self;
        cx.map(present, |k, at| {
            let total = number(k, self.before, at[0]) + Expr::index(tokens);
            let gone = number(k, self.cached, at[0]) + Expr::index(tokens) - resident(total, past, g.window);
            let from = (gone + Expr::index(at[2])).min(Expr::index(keys - 1));
            k.with_index(from, keys, |k, row| k.load(all, &[at[0], at[1], row, at[3]]))
        });
    }
}

/// A quantized cache of keys or values.
struct Cache {
    scale: Buf,
    /// True for a scale per head and element, `[head, element]`.
    each: bool,
    /// True if a byte holds two elements, the first one in the low bits, with an offset of 8.
    halves: bool,
    elem: ElemType,
}

impl Cache {
    fn new(cx: &mut LowerCx, g: &Group, i: usize, size: Dim) -> Option<Cache> {
        let (scale, past) = (cx.input_opt(input::SCALES[i])?, cx.input_opt(input::PAST[i])?);
        let each = Dim::product(cx.dims(scale)).as_const() != Some(1);
        let dims = if each { vec![Dim::constant(g.kv_heads), size] } else { vec![Dim::constant(1)] };
        let elem = cx.elem(past);
        Some(Cache { scale: cx.m.view(scale, dims), each, halves: g.bits == 4, elem })
    }
    /// Stored elements per head.
    fn stored(&self, size: Dim) -> Dim {
        if self.halves { size.ceil_div(2) } else { size }
    }
    fn scale(&self, k: &KernelBuilder, head: Dim, element: Dim) -> Expr {
        if self.each { k.load(self.scale, &[head, element]) } else { k.load(self.scale, &[Dim::constant(0)]) }
    }
    /// The quantized form of an element of `new`, by batch, head, token and element of the cache.
    fn code(&self, k: &mut KernelBuilder, new: Operand, at: [Dim; 4], size: Dim) -> Expr {
        let ty = k.m.bufs[new.buf].ty.compute();
        let quotient = |k: &KernelBuilder, e: Dim| {
            Expr::cast(ty, ElemType::F32, new.load(k, at[0], at[1], at[2], e)) / self.scale(k, at[1], e)
        };
        if !self.halves {
            let q = quotient(k, at[3]);
            return if self.elem.is_int() {
                quantized(ElemType::F32, self.elem, q, None)
            } else {
                saturated(self.elem, q)
            };
        }
        let nibble = |k: &KernelBuilder, e: Dim| {
            let v = Expr::un(UnOp::Round, quotient(k, e)).max(Expr::f32(-8.0)).min(Expr::f32(7.0));
            Expr::cast(ElemType::F32, ElemType::I32, v + Expr::f32(8.0))
        };
        let low = nibble(k, at[3] * 2);
        let second = at[3] * 2 + 1;
        let high = if k.m.syms.in_range(second, size) {
            nibble(k, second)
        } else {
            Expr::select(
                Expr::cmp_index(BinOp::Lt, second, size),
                nibble(k, second),
                Expr::int(ElemType::I32, 8),
            )
        };
        Expr::cast(ElemType::I32, ElemType::U8, low + high * Expr::int(ElemType::I32, 16))
    }
    /// The dequantized element `at` of a cache.
    fn value(&self, k: &mut KernelBuilder, cache: Buf, at: &[Dim]) -> Expr {
        let scale = self.scale(k, at[1], at[3]);
        if !self.halves {
            let v = k.load(cache, at);
            let ty = k.m.type_of(&v);
            return Expr::cast(ty, ElemType::F32, v) * scale;
        }
        let byte = Expr::cast(
            ElemType::U8,
            ElemType::I32,
            k.load(cache, &[at[0], at[1], at[2], at[3].floor_div(2)]),
        );
        let shift = Expr::cast(ElemType::I64, ElemType::I32, Expr::index(at[3].modulo(2) * 4));
        let v = Expr::bin(BinOp::Shr, byte, shift).and(Expr::int(ElemType::I32, 15))
            - Expr::int(ElemType::I32, 8);
        Expr::cast(ElemType::I32, ElemType::F32, v) * scale
    }
}
