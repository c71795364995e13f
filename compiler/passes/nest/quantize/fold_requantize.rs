//! fold_requantize: simplifies the arithmetic between a quantized reduction and its store. Constant
//! subexpressions are folded, and the rest uses as few operations as give bit-identical results.
//!
//! * Operations on constants of one position, the channel (scales, zero points, sums of weights), become a
//!   constant of that position; an integer sum collects all of its constants in one.
//! * A clamp moves before the rounding, and the zero point behind the conversion to an integer, where it
//!   joins others: `i32(clamp(round(x) + z))` is `i32(round(clamp(x))) + z` with limits reduced by z.
//! * Integer sums that are exact in floats stay floats if the added values are known.
//! * Dividing quantized sums by a constant scale becomes a multiplication, if no possible value is rounded
//!   differently ([`reciprocal_division`] tries all).
//!
//! Results do not change: integers are exact modulo 2^32, constants are computed as by the interpreter, and
//! rules for finite values only query [`Bounds`].

pub mod reciprocal_division;

use crate::diag::Result;
use crate::nest::bounds::Bounds;
use crate::nest::interp::eval_operation;
use crate::nest::{BinOp, Buf, Expr, Layout, LoopKind, Module, Place, Scalar, Stmt, UnOp, visit};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum elements of a folded constant.
const MOST: i64 = 1 << 16;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let known =
        m.regs.iter().filter_map(|(r, d)| d.whole.map(|most| (r, (-(most as f64), most as f64)))).collect();
    let mut c = Columns { m, bounds: Bounds::new(known), decoded: HashMap::new() };
    for k in visit::calls(&c.m.driver) {
        let body = std::mem::take(&mut c.m.kernels[k].body);
        let body = body.into_iter().map(|s| c.stmt(s)).collect();
        c.m.kernels[k].body = body;
    }
    Ok(())
}

/// True for a loop around statements that run once per result, unlike the steps of a reduction.
pub(crate) fn is_around_results(kind: LoopKind, body: &[Stmt]) -> bool {
    match kind {
        LoopKind::Par | LoopKind::Private => true,
        LoopKind::Seq => body.iter().any(|s| matches!(s, Stmt::For { kind: LoopKind::Par, .. })),
        LoopKind::Vec(_) | LoopKind::Unroll => false,
    }
}

struct Columns<'a> {
    m: &'a mut Module,
    bounds: Bounds,
    /// Decoded elements of constants.
    decoded: HashMap<Buf, Option<Rc<Vec<Scalar>>>>,
}

/// A sum of integers: signs and terms.
type Terms = Vec<(bool, Expr)>;

impl Columns<'_> {
    /// Simplifies statements that run once per result; reduction loops do not change.
    fn stmt(&mut self, s: Stmt) -> Stmt {
        match s {
            Stmt::For { kind, var, lo, hi, body } if is_around_results(kind, &body) => {
                Stmt::For { kind, var, lo, hi, body: body.into_iter().map(|s| self.stmt(s)).collect() }
            }
            Stmt::Let { reg, value } => {
                let value = self.expr(value);
                if let Some(r) = self.bounds.of(self.m, &value) {
                    self.bounds.regs.insert(reg, r);
                }
                Stmt::Let { reg, value }
            }
            Stmt::Store { buf, at, value } => Stmt::Store { buf, at, value: self.expr(value) },
            s => s,
        }
    }
    /// Simplifies an expression bottom-up.
    fn expr(&mut self, e: Expr) -> Expr {
        if let Some(c) = self.folded(&e) {
            return c;
        }
        if self.m.type_of(&e) == ElemType::I32 && matches!(e, Expr::Bin(BinOp::Add | BinOp::Sub, ..)) {
            let mut terms = vec![];
            self.flatten(e, false, &mut terms);
            return self.sum(terms);
        }
        let e = match e {
            Expr::Un(op, x) => Expr::Un(op, self.boxed(*x)),
            Expr::Bin(op, x, y) => Expr::Bin(op, self.boxed(*x), self.boxed(*y)),
            Expr::Fma(x, y, z) => Expr::Fma(self.boxed(*x), self.boxed(*y), self.boxed(*z)),
            Expr::Select(c, x, y) => Expr::Select(self.boxed(*c), self.boxed(*x), self.boxed(*y)),
            Expr::Cast(t, x) => {
                let x = self.expr(*x);
                return self.cast(t, x);
            }
            e => e,
        };
        match reciprocal_division::multiplied(self.m, &self.bounds, &e) {
            Some(p) => p,
            None => e,
        }
    }
    fn boxed(&mut self, e: Expr) -> Box<Expr> {
        Box::new(self.expr(e))
    }
    /// Flattens a sum whose terms are simplified already.
    fn flatten(&mut self, e: Expr, minus: bool, out: &mut Terms) {
        match e {
            Expr::Bin(op @ (BinOp::Add | BinOp::Sub), x, y) => {
                self.flatten(*x, minus, out);
                self.flatten(*y, minus != (op == BinOp::Sub), out);
            }
            // Simplification may have turned a term into a sum.
            e => {
                let e = self.expr(e);
                split(e, minus, out);
            }
        }
    }
    /// The sum with all constant parts folded into one term at its end.
    fn sum(&mut self, terms: Terms) -> Expr {
        let zero = || Expr::int(ElemType::I32, 0);
        let signed = |minus: bool, sum: Option<Expr>, e: Expr| match (sum, minus) {
            (None, false) => e,
            (None, true) => zero() - e,
            (Some(s), false) => s + e,
            (Some(s), true) => s - e,
        };
        let (known, rest): (Terms, Terms) = terms.into_iter().partition(|t| self.variable(&t.1).is_some());
        // One term per position; numbers are added to the first.
        let mut groups: Vec<(Option<Dim>, Expr)> = vec![];
        for (minus, e) in known {
            let of = self.variable(&e).flatten();
            match groups.iter_mut().find(|g| g.0 == of || of.is_none() || g.0.is_none()) {
                Some(g) => {
                    g.0 = g.0.or(of);
                    g.1 = signed(minus, Some(g.1.clone()), e);
                }
                None => groups.push((of, signed(minus, None, e))),
            }
        }
        let (minus, plus): (Terms, Terms) = rest.into_iter().partition(|t| t.0);
        let mut out = plus.into_iter().fold(None, |s, t| Some(signed(false, s, t.1)));
        for (_, e) in minus {
            out = Some(signed(true, out, e));
        }
        for (_, g) in groups {
            let g = self.folded(&g).unwrap_or(g);
            if !matches!(&g, Expr::Const(c) if c.bits == 0) || out.is_none() {
                out = Some(signed(false, out, g));
            }
        }
        out.unwrap_or_else(zero)
    }
    /// Simplifies a conversion of a simplified operand.
    fn cast(&mut self, to: ElemType, x: Expr) -> Expr {
        // A conversion between bytes of the same type.
        if let (ElemType::U8 | ElemType::I8, Expr::Cast(ElemType::I32, y)) = (to, &x)
            && let Expr::Cast(t, z) = &**y
            && *t == to
            && self.m.type_of(z) == ElemType::I32
        {
            return Expr::Cast(to, z.clone());
        }
        if to == ElemType::F32
            && let Some(sum) = self.whole_sum(&x)
        {
            return sum;
        }
        if to == ElemType::I32
            && let Some((inner, lo, hi, zero)) = clamp(&x)
            && self.bounds.of(self.m, inner).is_some()
        {
            let limit = |v: f64| Expr::f32((v - zero) as f32);
            let v =
                Expr::Cast(to, Box::new(Expr::un(UnOp::Round, inner.clone().max(limit(lo)).min(limit(hi)))));
            return if zero == 0.0 { v } else { v + Expr::int(ElemType::I32, zero as i64) };
        }
        Expr::Cast(to, Box::new(x))
    }
    /// The float of `i32(sum)`, or of `i32(sum) + constant`, computed without a conversion to integer.
    fn whole_sum(&mut self, e: &Expr) -> Option<Expr> {
        const EXACT: f64 = (1 << 24) as f64;
        let (sum, more) = match e {
            Expr::Bin(BinOp::Add, x, k) => (&**x, Some(&**k)),
            x => (x, None),
        };
        let Expr::Cast(ElemType::I32, sum) = sum else { return None };
        if !matches!(&**sum, Expr::Acc { reg, .. } if self.m.regs[*reg].whole.is_some()) {
            return None;
        }
        let Some(k) = more else { return Some((**sum).clone()) };
        let (a, b) = (self.bounds.of(self.m, sum)?, self.bounds.of(self.m, k)?);
        if a.1.max(-a.0) + b.1.max(-b.0) > EXACT {
            return None;
        }
        let k = self.folded(&Expr::cast(ElemType::I32, ElemType::F32, k.clone()))?;
        Some((**sum).clone() + k)
    }
    /// The only position that a constant expression depends on, or none for a number; `None` if the
    /// expression depends on anything else.
    fn variable(&self, e: &Expr) -> Option<Option<Dim>> {
        let join = |a: Option<Dim>, b: Option<Dim>| match (a, b) {
            (Some(x), Some(y)) if x != y => None,
            (a, b) => Some(a.or(b)),
        };
        match e {
            Expr::Const(_) => Some(None),
            Expr::Load { buf, at } => {
                let d = &self.m.bufs[*buf];
                let Place::Const(c) = &d.place else { return None };
                if d.layout != Layout::RowMajor
                    || c.count() > MOST as u64
                    || c.elem() != d.ty
                    || d.ty == ElemType::Str
                {
                    return None;
                }
                at.iter().try_fold(None, |v, i| join(v, i.as_const().is_none().then_some(*i)))
            }
            Expr::Un(
                UnOp::Neg
                | UnOp::Abs
                | UnOp::Round
                | UnOp::Floor
                | UnOp::Ceil
                | UnOp::Trunc
                | UnOp::Sqrt
                | UnOp::Recip,
                x,
            )
            | Expr::Cast(_, x) => self.variable(x),
            // An integer quotient may be undefined.
            Expr::Bin(BinOp::Div, x, _) if !self.m.type_of(x).is_float() => None,
            Expr::Bin(BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div | BinOp::Min | BinOp::Max, x, y) => {
                join(self.variable(x)?, self.variable(y)?)
            }
            _ => None,
        }
    }
    /// The value of operations on constants: a number, or a constant at the position.
    fn folded(&mut self, e: &Expr) -> Option<Expr> {
        let ty = self.m.type_of(e);
        if !matches!(e, Expr::Un(..) | Expr::Bin(..) | Expr::Cast(..))
            || !matches!(ty, ElemType::F32 | ElemType::I32)
        {
            return None;
        }
        let Some(var) = self.variable(e)? else { return self.eval(e, None).map(Expr::Const) };
        let range = self.m.syms.range(var);
        let (Some(0), Some(last)) = (range.lo, range.hi) else { return None };
        if last >= MOST {
            return None;
        }
        let values = (0..=last).map(|i| self.eval(e, Some(i))).collect::<Option<Vec<Scalar>>>()?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| (v.bits as u32).to_le_bytes()).collect();
        let mut name = None;
        e.walk(&mut |e| {
            if let (Expr::Load { buf, .. }, None) = (e, &name) {
                name = Some(format!("{}.folded", self.m.bufs[*buf].name.trim_end_matches(".folded")));
            }
        });
        let buf = self.m.constant(name?, Arc::new(ConstData::new(ty, vec![last + 1], bytes)?));
        Some(Expr::Load { buf, at: vec![var] })
    }
    /// The value at one position.
    fn eval(&mut self, e: &Expr, i: Option<i64>) -> Option<Scalar> {
        match e {
            Expr::Const(s) => Some(*s),
            Expr::Load { buf, at } => {
                let values = self.elements(*buf)?;
                let dims = &self.m.bufs[*buf].dims;
                let at = at.iter().zip(dims).try_fold(0i64, |sum, (d, n)| {
                    let (d, n) = (d.as_const().or(i)?, n.as_const()?);
                    (0..n).contains(&d).then_some(sum * n + d)
                })?;
                values.get(at as usize).copied()
            }
            e => eval_operation(e, &mut |e| self.eval(e, i)),
        }
    }
    fn elements(&mut self, b: Buf) -> Option<Rc<Vec<Scalar>>> {
        let m = &*self.m;
        let decode = || {
            let Place::Const(c) = &m.bufs[b].place else { return None };
            let ty = c.elem().compute();
            let values = match c.to_i64s() {
                Some(v) => v.into_iter().map(|v| Scalar::int(ty, v)).collect(),
                None => c.to_f64s()?.into_iter().map(|v| Scalar::from_f64(ty, v)).collect(),
            };
            Some(Rc::new(values))
        };
        self.decoded.entry(b).or_insert_with(decode).clone()
    }
}

/// Flattens a sum without simplifying it.
fn split(e: Expr, minus: bool, out: &mut Terms) {
    match e {
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub), x, y) => {
            split(*x, minus, out);
            split(*y, minus != (op == BinOp::Sub), out);
        }
        e => out.push((minus, e)),
    }
}

/// Matches `min(max(round(x) + z, lo), hi)` of floats, where all but x are integers whose sums are exact in
/// 24 bits: returns x, lo, hi, z.
fn clamp(e: &Expr) -> Option<(&Expr, f64, f64, f64)> {
    const FAR: f64 = 65536.0;
    let number = |e: &Expr| match e {
        Expr::Const(c) if c.ty == ElemType::F32 => {
            Some(c.to_f64()).filter(|v| v.fract() == 0.0 && v.abs() <= FAR)
        }
        _ => None,
    };
    let Expr::Bin(BinOp::Min, x, hi) = e else { return None };
    let Expr::Bin(BinOp::Max, x, lo) = &**x else { return None };
    let (x, zero) = match &**x {
        Expr::Bin(BinOp::Add, x, z) => (&**x, number(z)?),
        x => (x, 0.0),
    };
    let (Expr::Un(UnOp::Round, x), lo, hi) = (x, number(lo)?, number(hi)?) else { return None };
    (lo <= hi).then_some((&**x, lo, hi, zero))
}
