//! `select`, and accesses under a condition. Conditions that are the same in all iterations of a vector loop
//! are evaluated before it.

use super::expr::{bits_of, form};
use super::{Fit, Translate, Val, outside};
use crate::codegen::tile::ir::{Form, Op, Value};
use crate::codegen::tile::isa;
use crate::nest::{BinOp, Buf, Expr, Stmt, patterns, visit};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Maximum conditions that are held in registers during a loop.
const MOST_CONDITIONS: usize = 2;

impl Translate<'_> {
    /// Runs `f`, which translates a vector loop, with the conditions of selections that the loop does not
    /// change evaluated before it.
    pub(super) fn with_conditions<T>(
        &mut self,
        body: &[Stmt],
        f: impl FnOnce(&mut Self) -> Fit<T>,
    ) -> Fit<T> {
        let mut found: Vec<&Expr> = vec![];
        visit::walk_exprs(body, &mut |e| {
            if let Expr::Select(c, ..) = e {
                self.unchanged(c, &mut found);
            }
        });
        let before = self.conditions.len();
        for c in found.into_iter().take(MOST_CONDITIONS) {
            let v = self.value(c)?;
            self.conditions.push((c.clone(), v));
        }
        let r = f(self);
        self.conditions.truncate(before);
        r
    }
    /// The largest parts of a condition that no loop changes which is still to be opened.
    fn unchanged<'a>(&self, c: &'a Expr, found: &mut Vec<&'a Expr>) {
        let opened = |s| self.active.iter().any(|a| a.0 == s);
        let varies = |d: Dim| {
            let mut inner = self.vars.loops.iter().filter(|s| !opened(**s)).chain(&self.vars.withs);
            inner.any(|s| d.contains(*s))
        };
        if self.is_of_positions(c, &varies) {
            if !found.contains(&c) && self.evaluated(c).is_none() {
                found.push(c);
            }
        } else if let Expr::Bin(BinOp::And | BinOp::Or, a, b) = c {
            self.unchanged(a, found);
            self.unchanged(b, found);
        }
    }
    /// The value of a condition that was evaluated before a loop.
    pub(super) fn evaluated(&self, e: &Expr) -> Option<Val> {
        self.conditions.iter().find(|c| c.0 == *e).map(|c| c.1)
    }
    /// True for a condition that only compares positions, none of which `varies`.
    pub(super) fn is_of_positions(&self, condition: &Expr, varies: &dyn Fn(Dim) -> bool) -> bool {
        !condition.any(&mut |e| match e {
            Expr::Index(d) => varies(self.substituted(*d)),
            Expr::Bin(op, ..) => !matches!(op, BinOp::And | BinOp::Or) && !op.is_comparison(),
            _ => true,
        })
    }
    /// `a` where `c` holds, else `b`; neither accesses memory in other lanes.
    pub(super) fn choice(&mut self, c: &Expr, a: &Expr, b: &Expr) -> Fit<Val> {
        let c = self.value(c)?.v;
        if let Some(v) = self.load_or_zero(c, a, b)? {
            return Ok(v);
        }
        let no = self.b.not(c);
        let a = self.under(c, a)?;
        let b = self.under(no, b)?;
        self.pick(c, a, b)
    }
    /// `a` in the lanes of `c`, else `b`.
    fn pick(&mut self, c: Value, a: Val, b: Val) -> Fit<Val> {
        if a.ty == ElemType::Bool {
            // b xor (c and (a xor b))
            let d = self.b.masks(Op::MaskXor, a.v, b.v);
            let d = self.b.masks(Op::MaskAnd, c, d);
            return Ok(Val { v: self.b.masks(Op::MaskXor, b.v, d), ..a });
        }
        Ok(Val { v: self.b.select(c, a.v, b.v, bits_of(a.ty)), ..a })
    }
    /// A vector load under a condition, with zeros in the inactive lanes: a masked load.
    fn load_or_zero(&mut self, c: Value, a: &Expr, b: &Expr) -> Fit<Option<Val>> {
        let (Expr::Load { buf, at }, Expr::Const(zero)) = (a, b) else { return Ok(None) };
        let ty = self.m.bufs[*buf].ty;
        let whole = zero.bits == 0 && form(ty) == Some(Form::B32) && self.transposed(*buf, at).is_none();
        if !whole || !isa::machine(self.b.width()).has(Form::B32, false, true) || self.b.is_uniform(c) {
            return Ok(None);
        }
        let place = self.access(*buf, at)?;
        let beside = place.lane == Some(1) && place.places.is_none() && place.window.is_none();
        if !beside || !place.bound.is_empty() || !self.may_leave(*buf, at) {
            return Ok(None);
        }
        self.under(c, a).map(Some)
    }
    /// An expression whose accesses and checks happen only in the lanes of a condition, since others might be
    /// out of bounds.
    fn under(&mut self, c: Value, e: &Expr) -> Fit<Val> {
        let leaves = e.any(&mut |e| match e {
            Expr::Load { buf, at } => self.may_leave(*buf, at),
            Expr::With { .. } => true,
            e => patterns::may_divide_by_zero(self.m, e),
        });
        if !leaves {
            return self.value(e);
        }
        let outer = self.mask;
        let k = self.in_mask(c);
        let k = self.b.condition(k);
        self.mask = Some(k);
        let r = self.value(e);
        self.mask = outer;
        r
    }
    /// The lanes of a condition that are active.
    pub(super) fn in_mask(&mut self, c: Value) -> Value {
        match self.mask {
            Some(k) => self.b.masks(Op::MaskAnd, k, c),
            None => c,
        }
    }
    /// Reports a failed check in those of the lanes that are active.
    pub(super) fn report(&mut self, failed: Value) {
        let failed = self.in_mask(failed);
        if let Some(v) = self.accs.get(&outside()).and_then(|a| a.values.first().copied()) {
            let v = self.b.masks(Op::MaskOr, v, failed);
            self.accs.entry(outside()).and_modify(|a| a.values = vec![v]);
        }
    }
    /// True unless all iterations of the loops around access an existing element.
    fn may_leave(&self, buf: Buf, at: &[Dim]) -> bool {
        at.iter().zip(&self.m.bufs[buf].dims).any(|(x, n)| !self.m.syms.in_range(*x, *n))
    }
}
