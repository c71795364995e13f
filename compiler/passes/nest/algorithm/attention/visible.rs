//! The keys that a block of rows may see, if its mask compares positions: causal masks, and numbers of keys
//! per sample.
//!
//! A masked score of -inf has a weight of 0, so that a block computes scores, softmax and values up to the
//! last key that one of its rows sees. It computes whole panels of keys; the mask applies to the last ones.
//! With `--math strict`, all keys are computed: a hidden value may be infinite or NaN.

use super::Scores;
use crate::nest::{BinOp, Expr, LoopKind, Math, Module, Reg, Stmt};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::shape::substitute;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Bound of the numbers in masks, so that their sums do not wrap.
const FAR: u64 = 1 << 40;

/// The last key that a row sees, which does not decrease from row to row.
pub(super) struct Visible {
    /// Each of them is a bound, as i64; a negative one means that no key is visible.
    last: Vec<Expr>,
    /// The row inside a block.
    local: Sym,
}

/// The part of the keys that a block computes.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    /// Panels of keys, and keys.
    pub panels: Dim,
    pub keys: Dim,
}

impl Limit {
    /// All keys.
    pub fn none(of: &Scores) -> Limit {
        let t = &of.tile;
        Limit { panels: t.n_extent.ceil_div(t.nr), keys: t.n_extent }
    }
    /// Statements with loops over the visible keys in place of loops over `all`.
    pub fn apply(self, body: Vec<Stmt>, all: Dim) -> Vec<Stmt> {
        let shorter = |s: Stmt| match s {
            Stmt::For { kind, var, lo, hi, body } if hi == all => {
                Stmt::For { kind, var, lo, hi: self.keys, body }
            }
            s => s,
        };
        body.into_iter().map(|s| s.rewrite(&mut |s| shorter(s))).collect()
    }
}

impl Visible {
    /// The bounds of the mask in the epilogue of the scores; `row`: the row inside a block, and the first row
    /// of the block. `None` if a row may see all keys, or there are too few keys to leave some out.
    pub fn of(m: &Module, p: &Contraction, (key, keys): (Sym, Dim), row: (Sym, Sym)) -> Option<Visible> {
        const FEW: i64 = 64;
        if m.math == Math::Strict || keys.as_const().is_some_and(|n| n <= FEW) {
            return None;
        }
        let mut regs = HashMap::new();
        let mut value = None;
        for s in &p.epilogue {
            match s {
                Stmt::Let { reg, value } => {
                    regs.insert(*reg, value);
                }
                Stmt::Store { value: v, .. } => value = Some(v),
                _ => return None,
            }
        }
        let mut value = value?;
        while let Expr::Let { reg, value: v, body } = value {
            regs.insert(*reg, v);
            value = body;
        }
        let Expr::Select(cond, _, hidden) = value else { return None };
        if !matches!(&**hidden, Expr::Const(c) if c.to_f64() == f64::NEG_INFINITY) {
            return None;
        }
        let mut mask = Mask { m, regs, key, row, last: vec![] };
        mask.conjunction(cond);
        let last = mask.last;
        (!last.is_empty()).then_some(Visible { last, local: row.0 })
    }
    /// The body of a block of `count` rows, given the part of the keys that it computes.
    pub fn bound(
        &self,
        m: &mut Module,
        (of, count): (&Scores, Dim),
        body: impl FnOnce(&mut Module, Limit) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (zero, all, nr) = (Dim::constant(0), Limit::none(of), of.tile.nr);
        let most = m.syms.simplify(all.panels.max(1));
        let number = m.syms.loop_var("v", zero, most);
        let panels = Dim::sym(number) + 1;
        let exact = all.keys.modulo(nr).as_const() == Some(0);
        let keys = if exact { panels * nr } else { (panels * nr).min(all.keys) };
        // Without keys there is no panel.
        let panels = if m.syms.is_pos(all.keys) { panels } else { panels.min(all.panels) };
        let body = body(m, Limit { panels, keys });
        let sub = |s: Sym| (s == self.local).then(|| count - 1);
        let last: Vec<Expr> = self.last.iter().map(|e| e.clone().subst(&sub)).collect();
        let positions: Option<Vec<Dim>> =
            last.iter().map(|e| if let Expr::Index(d) = e { Some(*d) } else { None }).collect();
        let Some(positions) = positions else {
            let int = |n: i64| Expr::index(Dim::constant(n));
            let Some(last) = last.into_iter().reduce(Expr::min) else { return body };
            let value = Expr::bin(BinOp::Div, last.max(int(0)), int(nr)).min(Expr::index(most - 1));
            return vec![Stmt::With { sym: number, value, extent: most, body }];
        };
        let last = positions.into_iter().fold(all.keys - 1, Dim::min);
        let at = m.syms.simplify(last.max(0).floor_div(nr));
        // A loop of one iteration.
        let once = m.syms.loop_var("v", at, at + 1);
        let body = substitute(m, body, &|s| (s == number).then_some(once.into()));
        vec![Stmt::For { kind: LoopKind::Seq, var: once, lo: at, hi: at + 1, body }]
    }
}

/// A search for bounds of the keys in a mask.
struct Mask<'a> {
    m: &'a Module,
    /// The values of registers.
    regs: HashMap<Reg, &'a Expr>,
    key: Sym,
    /// As in [`Visible::of`].
    row: (Sym, Sym),
    last: Vec<Expr>,
}

/// A sum of a position and of values, each with its sign.
#[derive(Default)]
struct Sum {
    position: Dim,
    values: Vec<(bool, Expr)>,
}

impl Mask<'_> {
    /// Collects the bounds of comparisons that all have to hold.
    fn conjunction(&mut self, cond: &Expr) {
        let (a, b, own) = match cond {
            Expr::Bin(BinOp::And, a, b) => {
                self.conjunction(a);
                return self.conjunction(b);
            }
            Expr::Bin(BinOp::Le, a, b) => (a, b, 0),
            Expr::Bin(BinOp::Lt, a, b) => (a, b, 1),
            Expr::Bin(BinOp::Ge, a, b) => (b, a, 0),
            Expr::Bin(BinOp::Gt, a, b) => (b, a, 1),
            _ => return,
        };
        let mut room = Sum::default();
        if self.m.type_of(a) == ElemType::I64
            && self.add(b, false, &mut room)
            && self.add(a, true, &mut room)
            && let Some(last) = self.bound(room, own)
        {
            self.last.push(last);
        }
    }
    /// Adds an expression to a sum; false if it is none.
    fn add(&self, e: &Expr, negative: bool, sum: &mut Sum) -> bool {
        let sign = if negative { -1 } else { 1 };
        match e {
            Expr::Index(d) => sum.position = sum.position + *d * sign,
            Expr::Const(c) if c.to_i64().unsigned_abs() < FAR => {
                sum.position = sum.position + c.to_i64() * sign;
            }
            Expr::Bin(BinOp::Add, a, b) => return self.add(a, negative, sum) && self.add(b, negative, sum),
            Expr::Bin(BinOp::Sub, a, b) => return self.add(a, negative, sum) && self.add(b, !negative, sum),
            Expr::Reg(r) => return self.regs.get(r).is_some_and(|e| self.add(e, negative, sum)),
            Expr::Load { at, .. } => {
                sum.values.push((negative, e.clone()));
                return self.is_shared(at);
            }
            Expr::Cast(ElemType::I64, x) if let Expr::Load { at, .. } = &**x => {
                sum.values.push((negative, e.clone()));
                return self.is_shared(at);
            }
            _ => return false,
        }
        true
    }
    /// True for subscripts of an element of all rows of a block, and of all keys.
    fn is_shared(&self, at: &[Dim]) -> bool {
        [self.key, self.row.0, self.row.1].into_iter().all(|s| !at.iter().any(|d| d.contains(s)))
    }
    /// The last key for which `room - own` is not negative, if the keys are bounded from above and rows only
    /// move the bound upwards.
    fn bound(&self, room: Sum, own: i64) -> Option<Expr> {
        let (factor, rest) = room.position.linear_in(self.key)?;
        let (step, _) = rest.linear_in(self.row.0)?;
        let grows = step.as_const().is_some_and(|n| n >= 0);
        if factor.as_const() != Some(-1) || !grows {
            return None;
        }
        let position = Expr::index(rest - own);
        Some(room.values.into_iter().fold(position, |sum, (negative, e)| {
            Expr::bin(if negative { BinOp::Sub } else { BinOp::Add }, sum, e)
        }))
    }
}
