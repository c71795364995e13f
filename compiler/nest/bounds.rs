//! Value ranges of expressions, derived from types, constants and clamps.

use super::{BinOp, Buf, Expr, Layout, Module, Place, Reg, Scalar, Stmt, UnOp, visit};
use crate::sym::Dim;
use crate::tensor::ElemType;
use std::cell::RefCell;
use std::collections::HashMap;

/// Constants with more elements are not examined.
const MOST: u64 = 1 << 16;

/// A closed interval.
pub type Interval = (f64, f64);

/// All numbers.
const ANY: Interval = (f64::NEG_INFINITY, f64::INFINITY);

/// For each accumulator: its initial value, and the largest magnitude of its updates.
type Sums = HashMap<Reg, (Option<f64>, Option<f64>)>;

/// Answers for the expressions of one module.
#[derive(Default)]
pub struct Bounds {
    /// Registers whose ranges are narrower than their types.
    pub regs: HashMap<Reg, Interval>,
    constants: RefCell<HashMap<Key, Option<Interval>>>,
    /// Constants in memory may have any values.
    of_code: bool,
}

/// A constant, and its subscripts as far as they are numbers.
type Key = (Buf, Vec<Option<i64>>);

impl Bounds {
    /// With known ranges of registers.
    pub fn new(regs: HashMap<Reg, Interval>) -> Self {
        Bounds { regs, ..Bounds::default() }
    }
    /// With the ranges of accumulators in a body whose terms are products of bytes and constants, as floats.
    pub fn of_sums(m: &Module, body: &[Stmt]) -> Self {
        let b = Bounds::default();
        let mut found: Sums = HashMap::new();
        b.sums(m, body, Some(1.0), &mut found);
        let regs =
            found.into_iter().filter_map(|(r, (_, most))| finite((-most?, most?)).map(|i| (r, i))).collect();
        Bounds { regs, ..b }
    }
    /// What follows from the code of a body alone, whatever the values of constants in memory are.
    pub fn of_code(m: &Module, body: &[Stmt]) -> Self {
        let mut b = Bounds { of_code: true, ..Bounds::default() };
        b.learn_values(m, body, |_| true);
        b
    }
    /// The largest magnitudes of floating-point accumulators that begin with zero, in a body that runs
    /// `times` times.
    fn sums(&self, m: &Module, body: &[Stmt], times: Option<f64>, found: &mut Sums) {
        for s in body {
            match s {
                Stmt::Acc { reg, init: Expr::Const(zero), .. }
                    if zero.ty == ElemType::F32 && zero.bits == 0 =>
                {
                    found.insert(*reg, (times, Some(0.0)));
                }
                Stmt::Set { reg, value, .. } => {
                    let Some((begun, most)) = found.get_mut(reg) else { continue };
                    let steps = times.zip(*begun).map(|(times, begun)| times / begun);
                    *most = most
                        .zip(self.term(m, *reg, value))
                        .zip(steps)
                        .map(|((sum, term), steps)| sum + term * steps);
                }
                Stmt::For { lo, hi, body, .. } => {
                    let trips = (*hi - *lo).as_const().map(|n| n as f64);
                    self.sums(m, body, times.zip(trips).map(|(a, b)| a * b), found);
                }
                Stmt::If { then, els, .. } => {
                    [then, els].into_iter().for_each(|b| self.sums(m, b, times, found))
                }
                Stmt::While { body, .. } => self.sums(m, body, None, found),
                _ => {}
            }
        }
    }
    /// The largest magnitude of the term that a step adds to a sum: a byte times a constant.
    fn term(&self, m: &Module, sum: Reg, value: &Expr) -> Option<f64> {
        let Expr::Fma(a, b, c) = value else { return None };
        let (Expr::Acc { reg, .. }, Expr::Cast(ElemType::F32, byte), Expr::Load { buf, .. }) =
            (&**c, &**a, &**b)
        else {
            return None;
        };
        let (Expr::Cast(ElemType::I32, byte), Place::Const(_)) = (&**byte, &m.bufs[*buf].place) else {
            return None;
        };
        let small = byte.loaded().is_some_and(|b| matches!(m.bufs[b].ty, ElemType::U8 | ElemType::I8));
        (*reg == sum && small).then_some(())?;
        let (lo, hi) = self.of(m, b)?;
        Some(hi.max(-lo) * 255.0)
    }
    /// The range of the value; a range of a float also implies that it is finite and not NaN.
    pub fn of(&self, m: &Module, e: &Expr) -> Option<Interval> {
        let both = |a: &Expr, b: &Expr| Some((self.of(m, a)?, self.of(m, b)?));
        let ty = m.type_of(e);
        match e {
            Expr::Const(s) => finite((s.to_f64(), s.to_f64())),
            Expr::Reg(r) | Expr::Acc { reg: r, .. } => self.regs.get(r).copied().or_else(|| of_type(ty)),
            Expr::Load { buf, at } => self.constant(m, *buf, at).or_else(|| of_type(m.bufs[*buf].ty)),
            Expr::Let { body, .. } | Expr::With { body, .. } => self.of(m, body),
            Expr::Select(_, a, b) => both(a, b).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))),
            Expr::Un(op, a) => {
                let (lo, hi) = self.of(m, a)?;
                let r = match *op {
                    UnOp::Neg => (-hi, -lo),
                    UnOp::Abs => (
                        if lo <= 0.0 && hi >= 0.0 { 0.0 } else { lo.abs().min(hi.abs()) },
                        lo.abs().max(hi.abs()),
                    ),
                    op => match rounded(op, (lo, hi)) {
                        Some(r) => r,
                        None => return of_type(ty),
                    },
                };
                fit(ty, r)
            }
            // No more than either operand without a sign.
            Expr::Bin(BinOp::And, a, b) if ty.is_int() => {
                let most = [a, b].into_iter().filter_map(|e| self.of(m, e)).filter(|r| r.0 >= 0.0);
                most.map(|r| r.1).reduce(f64::min).map_or(of_type(ty), |hi| Some((0.0, hi)))
            }
            Expr::Bin(op, a, b) => {
                let Some((a, b)) = both(a, b) else { return of_type(ty) };
                let r = match op {
                    BinOp::Add => (a.0 + b.0, a.1 + b.1),
                    BinOp::Sub => (a.0 - b.1, a.1 - b.0),
                    BinOp::Mul => corners(a, b, |x, y| x * y),
                    BinOp::Div if ty.is_float() && (b.0 > 0.0 || b.1 < 0.0) => corners(a, b, |x, y| x / y),
                    BinOp::Min => (a.0.min(b.0), a.1.min(b.1)),
                    BinOp::Max => (a.0.max(b.0), a.1.max(b.1)),
                    _ => return of_type(ty),
                };
                fit(ty, r)
            }
            Expr::Fma(a, b, c) => {
                let ((a, b), c) = (both(a, b)?, self.of(m, c)?);
                let p = corners(a, b, |x, y| x * y);
                fit(ty, (p.0 + c.0, p.1 + c.1))
            }
            Expr::Cast(to, a) => match (self.of(m, a), m.type_of(a).is_float()) {
                (Some((lo, hi)), true) if to.is_int() => {
                    let (least, most) = of_type(*to)?;
                    Some((lo.trunc().clamp(least, most), hi.trunc().clamp(least, most)))
                }
                (Some(r), _) => fit(*to, r),
                // NaN becomes 0, which every type has.
                (None, true) if to.is_int() => {
                    let ((lo, hi), (least, most)) = (self.of_numbers(m, a), of_type(*to)?);
                    Some((lo.trunc().min(0.0).clamp(least, most), hi.trunc().max(0.0).clamp(least, most)))
                }
                (None, _) => of_type(*to),
            },
            _ => of_type(ty),
        }
    }
    /// The range of a float that may be NaN or infinite, as far as it is neither.
    fn of_numbers(&self, m: &Module, e: &Expr) -> Interval {
        if let Some(r) = self.of(m, e) {
            return r;
        }
        match e {
            Expr::Bin(op @ (BinOp::Min | BinOp::Max), a, b) => {
                let (a, b) = (self.of_numbers(m, a), self.of_numbers(m, b));
                if *op == BinOp::Min { (a.0.min(b.0), a.1.min(b.1)) } else { (a.0.max(b.0), a.1.max(b.1)) }
            }
            Expr::Un(op, a) => rounded(*op, self.of_numbers(m, a)).unwrap_or(ANY),
            _ => ANY,
        }
    }
    /// Adds the ranges of the integer registers that a kernel defines.
    pub fn learn(&mut self, m: &Module, body: &[Stmt]) {
        self.learn_values(m, body, ElemType::is_int);
        // An accumulator holds one of its assigned values. Until all of them are known, it may hold anything.
        let mut given: HashMap<Reg, Option<Interval>> = HashMap::new();
        visit::walk(body, &mut |s| {
            if let Stmt::Acc { reg, init: e, .. } | Stmt::Set { reg, value: e, .. } = s
                && m.regs[*reg].ty.is_int()
            {
                let r = self.of(m, e);
                given
                    .entry(*reg)
                    .and_modify(|g| *g = g.zip(r).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))))
                    .or_insert(r);
            }
        });
        self.regs.extend(given.into_iter().filter_map(|(reg, r)| Some((reg, r?))));
        self.learn_values(m, body, ElemType::is_int);
    }
    /// Adds the ranges of named values of some types.
    fn learn_values(&mut self, m: &Module, body: &[Stmt], of: fn(ElemType) -> bool) {
        let mut found: Vec<(Reg, &Expr)> = vec![];
        visit::walk(body, &mut |s| {
            if let Some(e) = s.expr() {
                e.walk(&mut |e| {
                    if let Expr::Let { reg, value, .. } = e {
                        found.push((*reg, value));
                    }
                });
            }
            if let Stmt::Let { reg, value } = s {
                found.push((*reg, value));
            }
        });
        for (reg, value) in found.into_iter().filter(|x| of(m.regs[x.0].ty)) {
            if let Some(r) = self.of(m, value) {
                self.regs.insert(reg, r);
            }
        }
    }
    fn constant(&self, m: &Module, b: Buf, at: &[Dim]) -> Option<Interval> {
        let Place::Const(c) = &m.bufs[b].place else { return None };
        if self.of_code || c.count() > MOST || m.bufs[b].layout != Layout::RowMajor {
            return None;
        }
        let key = (b, at.iter().map(|d| d.as_const()).collect::<Vec<_>>());
        if let Some(r) = self.constants.borrow().get(&key) {
            return *r;
        }
        let values = if c.elem().is_int() {
            c.to_i64s().map(|v| v.into_iter().map(|x| x as f64).collect())
        } else {
            c.to_f64s()
        };
        // Elements whose position agrees with the known subscripts.
        let read = |i: usize| {
            let mut rest = i as i64;
            key.1.iter().zip(c.dims()).rev().all(|(at, n)| {
                let here = rest % n;
                rest /= n;
                at.is_none_or(|a| a == here)
            })
        };
        let join = |r: Interval, x: &f64| (r.0.min(*x), r.1.max(*x));
        let none = (f64::INFINITY, f64::NEG_INFINITY);
        let r = values
            .filter(|v: &Vec<f64>| v.iter().all(|x| x.is_finite()))
            .map(|v| v.iter().enumerate().filter(|x| read(x.0)).map(|x| x.1).fold(none, join))
            .and_then(finite);
        self.constants.borrow_mut().insert(key, r);
        r
    }
}

fn corners(a: Interval, b: Interval, f: impl Fn(f64, f64) -> f64) -> Interval {
    let v = [f(a.0, b.0), f(a.0, b.1), f(a.1, b.0), f(a.1, b.1)];
    (v.iter().copied().fold(f64::INFINITY, f64::min), v.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// The range of the rounded values of a range, if the operation rounds.
fn rounded(op: UnOp, (lo, hi): Interval) -> Option<Interval> {
    match op {
        UnOp::Floor => Some((lo.floor(), hi.floor())),
        UnOp::Ceil => Some((lo.ceil(), hi.ceil())),
        UnOp::Trunc => Some((lo.trunc(), hi.trunc())),
        UnOp::Round => Some((lo.round_ties_even(), hi.round_ties_even())),
        _ => None,
    }
}

fn finite(r: Interval) -> Option<Interval> {
    (r.0.is_finite() && r.1.is_finite()).then_some(r)
}

/// All values of an integer type.
fn of_type(t: ElemType) -> Option<Interval> {
    (t.is_int() || t == ElemType::Bool).then(|| (Scalar::lowest(t).to_f64(), Scalar::highest(t).to_f64()))
}

/// The range of results of a type, given that of exact results: floats are rounded, integers wrap.
fn fit(t: ElemType, r: Interval) -> Option<Interval> {
    match t {
        // Ends far from where f64 itself rounds; one more part in 2^20 is more than any rounding to f32.
        ElemType::F32 => {
            let wide = |x: f64, up: f64| x + up * (x.abs() * 2f64.powi(-20) + f64::from(f32::MIN_POSITIVE));
            let exact = |x: f64| x.fract() == 0.0 && x.abs() <= f64::from(1 << 24);
            let (lo, hi) = (
                if exact(r.0) { r.0 } else { wide(r.0, -1.0) },
                if exact(r.1) { r.1 } else { wide(r.1, 1.0) },
            );
            (lo >= f64::from(f32::MIN) && hi <= f64::from(f32::MAX)).then_some((lo, hi))
        }
        ElemType::F64 => finite(r)
            .filter(|r| r.0.abs() <= 1e300 && r.1.abs() <= 1e300)
            .map(|r| (r.0 - r.0.abs() * 1e-9, r.1 + r.1.abs() * 1e-9)),
        // Beyond 2^53, f64 does not represent every integer.
        t => of_type(t).map(|all| {
            if r.0 >= all.0 && r.1 <= all.1 && r.0.abs().max(r.1.abs()) <= 2f64.powi(53) { r } else { all }
        }),
    }
}
