//! 64-bit integers that are uniform across 32-bit lanes, such as the number of keys of a sample: they are
//! kept in integer registers, and lanes only compare their positions with them.

use super::index::{MOST_STEP, Parts};
use super::{Fit, NOT_INSIDE, Translate, Val};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Value, Width};
use crate::nest::{BinOp, Buf, Expr, Reg};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Upper bound of positions.
const FAR: i64 = 1 << 61;
const NOT_SHARED: &str = "an integer of 64 bits that lanes do not share";

/// An integer as the sum of a position, which may vary between lanes, and of a uniform integer.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    position: Dim,
    uniform: Option<Value>,
    /// The uniform part is not the sum of a few words: the whole sum may wrap.
    wraps: bool,
}

impl Translate<'_> {
    /// True for a type whose values are uniform, if the tile has any.
    pub(super) fn is_shared(&self, ty: ElemType) -> bool {
        ty == ElemType::I64 && !self.b.is_long()
    }
    /// Records the integer of a register.
    pub(super) fn define_shared(&mut self, reg: Reg, value: &Expr) -> Fit<()> {
        let v = self.shared(value)?;
        self.shared.insert(reg, v);
        Ok(())
    }
    /// Compares two integers that differ by the lane's position and a uniform integer; `None` for other types.
    pub(super) fn compare_with_shared(&mut self, op: BinOp, a: &Expr, b: &Expr) -> Fit<Option<Val>> {
        if !self.is_shared(self.m.type_of(a)) {
            return Ok(None);
        }
        let (a, b) = (self.shared(a)?, self.shared(b)?);
        let (a, b) = (self.without_wrap(a)?, self.without_wrap(b)?);
        let p = self.parts(a.position - b.position)?;
        if p.lane.unsigned_abs() > MOST_STEP {
            return Err("a comparison of indices beyond 32 bits");
        }
        // lane * step + rest + a' ? b' is lane * step ? b' - a' - rest.
        let rest = self.scalar(&Parts {
            counters: p.counters.iter().map(|(v, c)| (*v, c.wrapping_neg())).collect(),
            lane: 0,
            rest: Dim::constant(0) - p.rest,
        })?;
        let uniform = match (a.uniform, b.uniform) {
            (None, b) => b,
            (Some(a), b) => {
                let minus = self.b.mul_imm(a, -1);
                Some(b.map_or(minus, |b| self.b.add(b, minus)))
            }
        };
        let rest = match uniform {
            Some(v) => self.sum(v, rest),
            None => match rest {
                Count::Fixed(n) => self.b.int(n),
                Count::Run(v) => v,
            },
        };
        // The lane part is small, so that values beyond 32 bits can be clamped.
        let rest = self.b.limited(rest, i32::MIN.into(), i32::MAX.into());
        let rest = Val { v: self.b.splat(rest), ty: ElemType::I32 };
        let lane = match p.lane {
            0 => self.index_number(0),
            1 => self.b.iota(),
            n => {
                let (iota, step) = (self.b.iota(), self.index_number(n));
                self.index_op(Bin::IMul, iota, step)
            }
        };
        self.compare(op, Val { v: lane, ty: ElemType::I32 }, rest).map(Some)
    }
    /// The same integer, limited to numbers whose sums with positions do not wrap. No lane changes an integer
    /// that may wrap itself.
    fn without_wrap(&mut self, x: Shared) -> Fit<Shared> {
        let Some(v) = x.uniform.filter(|_| x.wraps) else { return Ok(x) };
        let p = self.parts(x.position)?;
        if p.lane != 0 {
            return Err(NOT_SHARED);
        }
        let at = self.scalar(&p)?;
        let v = self.sum(v, at);
        let v = self.b.limited(v, -FAR, FAR);
        Ok(Shared { position: Dim::constant(0), uniform: Some(v), wraps: false })
    }
    /// An integer as position and uniform part.
    fn shared(&mut self, e: &Expr) -> Fit<Shared> {
        let plain = |position| Shared { position, uniform: None, wraps: false };
        let loaded = |v, wraps| Shared { position: Dim::constant(0), uniform: Some(v), wraps };
        match e {
            Expr::Reg(r) => self.shared.get(r).copied().ok_or(NOT_INSIDE),
            Expr::Const(c) if c.to_i64().unsigned_abs() > FAR as u64 => {
                Ok(loaded(self.b.int(c.to_i64()), true))
            }
            Expr::Const(c) => Ok(plain(Dim::constant(c.to_i64()))),
            Expr::Index(d) => Ok(plain(self.substituted(*d))),
            Expr::Load { buf, at } if self.m.bufs[*buf].ty == ElemType::I64 => {
                // Vectors of RISC-V have the element size of the tile.
                if matches!(self.b.width(), Width::Rvv128 | Width::Rvv256 | Width::Rvv512) {
                    return Err(NOT_SHARED);
                }
                self.one_element(*buf, at, (Form::B64, Bits::B64)).map(|v| loaded(v, true))
            }
            Expr::Cast(ElemType::I64, x) => match &**x {
                Expr::Load { buf, at } if self.m.bufs[*buf].ty == ElemType::I32 => {
                    self.one_element(*buf, at, (Form::B32, Bits::B32)).map(|v| loaded(v, false))
                }
                _ => Err(NOT_SHARED),
            },
            Expr::Bin(op @ (BinOp::Add | BinOp::Sub), x, y) => {
                let (x, y) = (self.shared(x)?, self.shared(y)?);
                let negative = *op == BinOp::Sub;
                let uniform = match (x.uniform, y.uniform) {
                    (x, None) => x,
                    (x, Some(y)) => {
                        let y = if negative { self.b.mul_imm(y, -1) } else { y };
                        Some(x.map_or(y, |x| self.b.add(x, y)))
                    }
                };
                let position = if negative { x.position - y.position } else { x.position + y.position };
                Ok(Shared { position, uniform, wraps: x.wraps || y.wraps })
            }
            _ => Err(NOT_SHARED),
        }
    }
    /// An element that no lane changes, in an integer register; words are sign-extended.
    fn one_element(&mut self, buf: Buf, at: &[Dim], (form, bits): (Form, Bits)) -> Fit<Value> {
        let a = self.access(buf, at)?;
        if a.lane != Some(0) || !a.is_regular() || !a.bound.is_empty() || self.mask_is_condition() {
            return Err(NOT_SHARED);
        }
        // A single element does not depend on the active lanes.
        let (mem, outer) = (self.mem(&a)?, self.mask.take());
        let v = self.load_at(&a, form, mem);
        self.mask = outer;
        Ok(self.b.first_of(v?, bits))
    }
    fn sum(&mut self, v: Value, n: Count) -> Value {
        match n {
            Count::Fixed(n) => self.b.add_imm(v, n),
            Count::Run(w) => self.b.add(v, w),
        }
    }
}
