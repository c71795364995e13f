//! 64-bit integers that are uniform across 32-bit lanes, such as the number of keys of a sample: they are
//! kept in integer registers, and lanes only compare their positions with them.

use super::index::{MOST_STEP, Parts};
use super::{Fit, NOT_INSIDE, Translate, Val};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Form, Value, Width};
use crate::nest::{BinOp, Expr, Reg};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Upper bound of positions.
const FAR: i64 = 1 << 62;
const NOT_SHARED: &str = "an integer of 64 bits that lanes do not share";

impl Translate<'_> {
    /// True for a type whose values are uniform, if the tile has any.
    pub(super) fn is_shared(&self, ty: ElemType) -> bool {
        let has = matches!(self.b.width(), Width::Avx2 | Width::Avx512 | Width::Neon);
        ty == ElemType::I64 && !self.b.is_long() && has
    }
    /// Records the integer of a register.
    pub(super) fn define_shared(&mut self, reg: Reg, value: &Expr) -> Fit<()> {
        let v = self.shared(value)?;
        self.shared.insert(reg, v);
        Ok(())
    }
    /// Compares the positions of lanes with an integer, if one operand is the position; `None` otherwise.
    pub(super) fn compare_with_shared(&mut self, op: BinOp, a: &Expr, b: &Expr) -> Fit<Option<Val>> {
        if !self.is_shared(self.m.type_of(a)) {
            return Ok(None);
        }
        let (d, other, turned) = match (a, b) {
            (Expr::Index(d), e) => (*d, e, false),
            (e, Expr::Index(d)) => (*d, e, true),
            _ => return Ok(None),
        };
        let other = self.shared(other)?;
        let p = self.parts(self.substituted(d))?;
        if p.lane.unsigned_abs() > MOST_STEP {
            return Err("a comparison of indices beyond 32 bits");
        }
        let own = self.scalar(&Parts {
            counters: p.counters.iter().map(|(v, c)| (*v, c.wrapping_neg())).collect(),
            lane: 0,
            rest: Dim::constant(0) - p.rest,
        })?;
        // The lane part is small, so that values beyond 32 bits can be clamped.
        let rest = self.b.limited(other, -FAR, FAR);
        let rest = self.sum(rest, own);
        let rest = self.b.limited(rest, i32::MIN.into(), i32::MAX.into());
        let rest = Val { v: self.b.splat(rest), ty: ElemType::I32 };
        let (iota, step) = (self.b.iota(), self.index_number(p.lane));
        let lane = if p.lane == 1 { iota } else { self.index_op(Bin::IMul, iota, step) };
        let lane = Val { v: lane, ty: ElemType::I32 };
        let (x, y) = if turned { (rest, lane) } else { (lane, rest) };
        self.compare(op, x, y).map(Some)
    }
    /// A uniform integer in a register.
    fn shared(&mut self, e: &Expr) -> Fit<Value> {
        match e {
            Expr::Reg(r) => self.shared.get(r).copied().ok_or(NOT_INSIDE),
            Expr::Const(c) => Ok(self.b.int(c.to_i64())),
            Expr::Index(d) => {
                let p = self.parts(self.substituted(*d))?;
                match self.scalar(&p)? {
                    _ if p.lane != 0 => Err(NOT_SHARED),
                    Count::Fixed(n) => Ok(self.b.int(n)),
                    Count::Run(v) => Ok(v),
                }
            }
            Expr::Load { buf, at } if self.is_shared(self.m.bufs[*buf].ty) => {
                let a = self.access(*buf, at)?;
                if a.lane != Some(0) || !a.is_regular() || !a.bound.is_empty() || self.mask_is_condition() {
                    return Err(NOT_SHARED);
                }
                // A single element does not depend on the active lanes.
                let (mem, outer) = (self.mem(&a)?, self.mask.take());
                let v = self.load_at(&a, Form::B64, mem);
                self.mask = outer;
                Ok(self.b.first_long(v?))
            }
            Expr::Bin(BinOp::Add, x, y) => {
                let (x, y) = (self.shared(x)?, self.shared(y)?);
                Ok(self.b.add(x, y))
            }
            Expr::Bin(BinOp::Sub, x, y) => {
                let (x, y) = (self.shared(x)?, self.shared(y)?);
                let minus = self.b.mul_imm(y, -1);
                Ok(self.b.add(x, minus))
            }
            _ => Err(NOT_SHARED),
        }
    }
    fn sum(&mut self, v: Value, n: Count) -> Value {
        match n {
            Count::Fixed(n) => self.b.add_imm(v, n),
            Count::Run(w) => self.b.add(v, w),
        }
    }
}
