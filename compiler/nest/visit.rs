//! Walking and rewriting nests.

use super::{BinOp, Buf, Expr, Kernel, LoopKind, Reg, Scalar, Stmt, TextOp, UnOp};
use crate::maps::Set;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// What is where an expression was taken out, until another one comes.
const NOTHING: Expr = Expr::Const(Scalar { ty: ElemType::Bool, bits: 0 });

impl Expr {
    /// Direct operands.
    pub fn children(&self) -> impl Iterator<Item = &Expr> {
        let few: [Option<&Expr>; 3] = match self {
            Expr::Const(_)
            | Expr::Reg(_)
            | Expr::Acc { .. }
            | Expr::Horizontal { .. }
            | Expr::Index(_)
            | Expr::Load { .. }
            | Expr::Text(..)
            | Expr::Address(_) => [None; 3],
            Expr::Un(_, a) | Expr::Cast(_, a) => [Some(a), None, None],
            Expr::Bin(_, a, b) => [Some(a), Some(b), None],
            Expr::Fma(a, b, c) | Expr::Dot(_, a, b, c) | Expr::Select(a, b, c) => [Some(a), Some(b), Some(c)],
            Expr::Let { value, body, .. } | Expr::With { value, body, .. } => [Some(value), Some(body), None],
        };
        let many: &[Expr] = if let Expr::Text(_, v) = self { v } else { &[] };
        few.into_iter().flatten().chain(many)
    }
    /// Calls `f` for this and every expression in it, outer ones first.
    pub fn walk<'a>(&'a self, f: &mut dyn FnMut(&'a Expr)) {
        f(self);
        for c in self.children() {
            c.walk(f);
        }
    }
    /// True if `f` holds for this or an expression in it.
    pub fn any<'a>(&'a self, f: &mut dyn FnMut(&'a Expr) -> bool) -> bool {
        f(self) || self.children().any(|c| c.any(f))
    }
    /// True for the value of an accumulator.
    pub fn is_acc(&self, acc: Reg) -> bool {
        matches!(self, Expr::Acc { reg, .. } if *reg == acc)
    }
    /// What a load reads.
    pub fn loaded(&self) -> Option<Buf> {
        if let Expr::Load { buf, .. } = self { Some(*buf) } else { None }
    }
    /// Calls `f` for each load: its buffer and subscripts.
    pub fn each_load<'a>(&'a self, f: &mut dyn FnMut(Buf, &'a [Dim])) {
        self.walk(&mut |e| {
            if let Expr::Load { buf, at } = e {
                f(*buf, at);
            }
        });
    }
    /// The same, with whether the load is under a condition.
    pub fn each_load_or_conditional<'a>(&'a self, f: &mut dyn FnMut(Buf, &'a [Dim], bool)) {
        self.loads_under(false, f);
    }
    fn loads_under<'a>(&'a self, conditional: bool, f: &mut dyn FnMut(Buf, &'a [Dim], bool)) {
        match self {
            Expr::Load { buf, at } => f(*buf, at, conditional),
            Expr::Select(c, a, b) => {
                c.loads_under(conditional, f);
                a.loads_under(true, f);
                b.loads_under(true, f);
            }
            e => e.children().for_each(|e| e.loads_under(conditional, f)),
        }
    }
    /// Rebuilds bottom-up: `f` gets every expression after its operands were rebuilt.
    pub fn rewrite(self, f: &mut dyn FnMut(Expr) -> Expr) -> Expr {
        let e = self.map_children(&mut |e| e.rewrite(f));
        f(e)
    }
    /// Replaces its operands, in the order of [`Expr::children`].
    pub fn map_children(self, f: &mut dyn FnMut(Expr) -> Expr) -> Expr {
        // The same box holds what comes out.
        let b = |mut e: Box<Expr>, f: &mut dyn FnMut(Expr) -> Expr| {
            *e = f(std::mem::replace(&mut *e, NOTHING));
            e
        };
        match self {
            Expr::Un(op, a) => Expr::Un(op, b(a, f)),
            Expr::Cast(t, a) => Expr::Cast(t, b(a, f)),
            Expr::Text(op, v) => Expr::Text(op, v.into_iter().map(f).collect()),
            Expr::Bin(op, x, y) => Expr::Bin(op, b(x, f), b(y, f)),
            Expr::Fma(x, y, z) => Expr::Fma(b(x, f), b(y, f), b(z, f)),
            Expr::Dot(g, x, y, z) => Expr::Dot(g, b(x, f), b(y, f), b(z, f)),
            Expr::Select(x, y, z) => Expr::Select(b(x, f), b(y, f), b(z, f)),
            Expr::Let { reg, value, body } => Expr::Let { reg, value: b(value, f), body: b(body, f) },
            Expr::With { sym, value, extent, body } => {
                Expr::With { sym, value: b(value, f), extent, body: b(body, f) }
            }
            e => e,
        }
    }
    /// Renames its buffers.
    pub fn rename(&mut self, f: &dyn Fn(Buf) -> Buf) {
        match self {
            Expr::Load { buf, .. } | Expr::Address(buf) | Expr::Text(TextOp::Of(buf), _) => *buf = f(*buf),
            _ => {}
        }
        match self {
            Expr::Un(_, a) | Expr::Cast(_, a) => a.rename(f),
            Expr::Bin(_, a, b) => [a, b].into_iter().for_each(|e| e.rename(f)),
            Expr::Fma(a, b, c) | Expr::Dot(_, a, b, c) | Expr::Select(a, b, c) => {
                [a, b, c].into_iter().for_each(|e| e.rename(f))
            }
            Expr::Let { value, body, .. } | Expr::With { value, body, .. } => {
                [value, body].into_iter().for_each(|e| e.rename(f))
            }
            Expr::Text(_, v) => v.iter_mut().for_each(|e| e.rename(f)),
            _ => {}
        }
    }
    /// Calls `f` for every dim in it.
    pub fn each_dim(&self, f: &mut dyn FnMut(Dim)) {
        self.walk(&mut |e| match e {
            Expr::Index(d) | Expr::With { extent: d, .. } => f(*d),
            Expr::Load { at, .. } | Expr::Horizontal { at, .. } => at.iter().for_each(|d| f(*d)),
            Expr::Acc { at, lane, .. } => at.iter().chain(lane).for_each(|d| f(*d)),
            _ => {}
        });
    }
    /// Rewrites every dim in it.
    pub fn map_dims(self, f: &mut dyn FnMut(Dim) -> Dim) -> Expr {
        self.rewrite(&mut |e| match e {
            Expr::Index(d) => Expr::Index(f(d)),
            Expr::Load { buf, at } => Expr::Load { buf, at: at.into_iter().map(&mut *f).collect() },
            Expr::Acc { reg, at, lane } => {
                Expr::Acc { reg, at: at.into_iter().map(&mut *f).collect(), lane: lane.map(&mut *f) }
            }
            Expr::Horizontal { op, reg, at } => {
                Expr::Horizontal { op, reg, at: at.into_iter().map(&mut *f).collect() }
            }
            Expr::With { sym, value, extent, body } => Expr::With { sym, value, extent: f(extent), body },
            e => e,
        })
    }
    /// Puts dims in place of symbols.
    pub fn subst(self, f: &dyn Fn(Sym) -> Option<Dim>) -> Expr {
        self.map_dims(&mut |d| d.subst(&mut |s| f(s)))
    }
    /// Whether a condition on indices holds, with their values.
    pub fn truth(&self, value: &dyn Fn(Dim) -> Option<i64>) -> Option<bool> {
        let index = |e: &Expr| match e {
            Expr::Index(d) => value(*d),
            Expr::Const(c) if c.ty.is_int() => Some(c.to_i64()),
            _ => None,
        };
        match self {
            Expr::Un(UnOp::Not, a) => a.truth(value).map(|t| !t),
            Expr::Bin(BinOp::And, a, b) => Some(a.truth(value)? && b.truth(value)?),
            Expr::Bin(BinOp::Or, a, b) => Some(a.truth(value)? || b.truth(value)?),
            Expr::Bin(op, a, b) if op.is_comparison() => Some(op.holds(index(a)?, index(b)?)),
            _ => None,
        }
    }
    /// Number of operations, loads and leaves: how much inlining it costs.
    pub fn size(&self) -> usize {
        1 + self.children().map(Expr::size).sum::<usize>()
    }
}

/// A buffer, and where.
pub type Access = (Buf, Vec<Dim>);

impl Stmt {
    /// Statements directly inside.
    pub fn bodies(&self) -> impl DoubleEndedIterator<Item = &Vec<Stmt>> {
        let bodies = match self {
            Stmt::For { body, .. }
            | Stmt::While { body, .. }
            | Stmt::With { body, .. }
            | Stmt::Tile { body } => [Some(body), None],
            Stmt::If { then, els, .. } => [Some(then), Some(els)],
            _ => [None, None],
        };
        bodies.into_iter().flatten()
    }
    /// The same, to be changed.
    pub fn bodies_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Vec<Stmt>> {
        let bodies = match self {
            Stmt::For { body, .. }
            | Stmt::While { body, .. }
            | Stmt::With { body, .. }
            | Stmt::Tile { body } => [Some(body), None],
            Stmt::If { then, els, .. } => [Some(then), Some(els)],
            _ => [None, None],
        };
        bodies.into_iter().flatten()
    }
    /// True for what a tile may hold (rule 13), of the statement itself.
    pub fn may_stand_in_tile(&self) -> bool {
        match self {
            Stmt::For { kind, .. } => *kind != LoopKind::Private,
            Stmt::Let { .. } | Stmt::Acc { .. } | Stmt::Set { .. } | Stmt::Store { .. } => true,
            Stmt::Prefetch { .. } | Stmt::If { .. } | Stmt::Tile { .. } => true,
            _ => false,
        }
    }
    /// The buffers that a statement of the driver writes without a kernel.
    pub fn writes(&self) -> Vec<Buf> {
        match self {
            Stmt::Foreign(f) => f.to.clone(),
            _ => vec![],
        }
    }
    /// Buffers that the statement itself reads, or takes the address of.
    pub fn loads(&self) -> Vec<Buf> {
        let mut out = vec![];
        if let Stmt::Foreign(f) = self {
            out.extend(&f.from);
        }
        if let Some(e) = self.expr() {
            e.walk(&mut |e| {
                if let Expr::Load { buf, .. } | Expr::Text(TextOp::Of(buf), _) | Expr::Address(buf) = e {
                    out.push(*buf);
                }
            });
        }
        out
    }
    /// Calls `f` for each load and store of the statement itself, the loads first.
    pub fn accesses(&self, f: &mut dyn FnMut(Buf, &[Dim])) {
        if let Some(e) = self.expr() {
            e.each_load(&mut |buf, at| f(buf, at));
        }
        if let Stmt::Store { buf, at, .. } = self {
            f(*buf, at);
        }
    }
    /// The dims of the statement itself, without those of statements inside.
    pub fn dims(&self) -> Vec<Dim> {
        let mut out = vec![];
        self.each_dim(&mut |d| out.push(d));
        out
    }
    /// Calls `f` for each of them.
    pub fn each_dim(&self, f: &mut dyn FnMut(Dim)) {
        match self {
            Stmt::For { lo, hi, .. } => [*lo, *hi].into_iter().for_each(&mut *f),
            Stmt::Define { lo, hi, .. } => std::iter::once(*lo).chain(*hi).for_each(&mut *f),
            Stmt::With { extent, .. } => f(*extent),
            Stmt::Set { at, .. } | Stmt::Store { at, .. } | Stmt::Prefetch { at, .. } => {
                at.iter().for_each(|d| f(*d))
            }
            _ => {}
        }
        if let Some(e) = self.expr() {
            e.each_dim(f);
        }
    }
    /// The expression of the statement itself.
    pub fn expr(&self) -> Option<&Expr> {
        match self {
            Stmt::Let { value: e, .. }
            | Stmt::Acc { init: e, .. }
            | Stmt::Set { value: e, .. }
            | Stmt::Store { value: e, .. } => Some(e),
            Stmt::If { cond: e, .. }
            | Stmt::While { cond: e, .. }
            | Stmt::Check { cond: e, .. }
            | Stmt::Define { value: e, .. }
            | Stmt::With { value: e, .. } => Some(e),
            Stmt::For { .. } | Stmt::Tile { .. } | Stmt::Prefetch { .. } => None,
            Stmt::Call(_) | Stmt::Foreign(_) => None,
        }
    }
    /// Calls `f` for this and every statement in it, outer ones first.
    pub fn walk<'a>(&'a self, f: &mut dyn FnMut(&'a Stmt)) {
        f(self);
        for b in self.bodies() {
            walk(b, f);
        }
    }
    /// The same, to be changed.
    fn expr_mut(&mut self) -> Option<&mut Expr> {
        match self {
            Stmt::Let { value: e, .. }
            | Stmt::Acc { init: e, .. }
            | Stmt::Set { value: e, .. }
            | Stmt::Store { value: e, .. }
            | Stmt::If { cond: e, .. }
            | Stmt::While { cond: e, .. }
            | Stmt::Check { cond: e, .. }
            | Stmt::Define { value: e, .. }
            | Stmt::With { value: e, .. } => Some(e),
            _ => None,
        }
    }
    /// Puts what `f` makes of them in the place of the expression of the statement itself,
    fn change_expr(&mut self, f: &mut dyn FnMut(Expr) -> Expr) {
        if let Some(e) = self.expr_mut() {
            let old = std::mem::replace(e, NOTHING);
            *e = f(old);
        }
    }
    /// and of the statements directly inside.
    fn change_bodies(&mut self, f: &mut dyn FnMut(Stmt) -> Stmt) {
        for body in self.bodies_mut() {
            *body = std::mem::take(body).into_iter().map(&mut *f).collect();
        }
    }
    /// Rebuilds bottom-up: `f` gets every statement after those in it were rebuilt.
    pub fn rewrite(mut self, f: &mut dyn FnMut(Stmt) -> Stmt) -> Stmt {
        self.change_bodies(&mut |s| s.rewrite(f));
        f(self)
    }
    /// Rebuilds every expression in it.
    pub fn map_exprs(mut self, f: &mut dyn FnMut(Expr) -> Expr) -> Stmt {
        self.change_expr(f);
        self.change_bodies(&mut |s| s.map_exprs(f));
        self
    }
    /// The same, bottom-up: `f` gets every expression after its operands were rebuilt.
    pub fn rewrite_exprs(self, f: &mut dyn FnMut(Expr) -> Expr) -> Stmt {
        self.map_exprs(&mut |e| e.rewrite(f))
    }
    /// Rewrites every dim in it, those of expressions too.
    pub fn map_dims(mut self, f: &mut dyn FnMut(Dim) -> Dim) -> Stmt {
        match &mut self {
            Stmt::For { lo, hi, .. } => (*lo, *hi) = (f(*lo), f(*hi)),
            Stmt::Set { at, .. } | Stmt::Store { at, .. } | Stmt::Prefetch { at, .. } => {
                at.iter_mut().for_each(|d| *d = f(*d))
            }
            _ => {}
        }
        self.change_expr(&mut |e| e.map_dims(f));
        match &mut self {
            Stmt::With { extent, .. } => *extent = f(*extent),
            Stmt::Define { lo, hi, .. } => (*lo, *hi) = (f(*lo), hi.map(&mut *f)),
            _ => {}
        }
        self.change_bodies(&mut |s| s.map_dims(f));
        self
    }
    /// Puts dims in place of symbols.
    pub fn subst(self, f: &dyn Fn(Sym) -> Option<Dim>) -> Stmt {
        self.map_dims(&mut |d| d.subst(&mut |s| f(s)))
    }
    /// Renames the buffers of this and every statement in it.
    pub fn rename(&mut self, f: &dyn Fn(Buf) -> Buf) {
        if let Stmt::Store { buf, .. } | Stmt::Prefetch { buf, .. } = self {
            *buf = f(*buf);
        }
        if let Some(e) = self.expr_mut() {
            e.rename(f);
        }
        self.bodies_mut().flatten().for_each(|s| s.rename(f));
    }
    /// Lets every load and store, but those that `f` has nothing for, access another buffer or place.
    pub fn map_accesses(self, f: &dyn Fn(Buf, &[Dim]) -> Option<Access>) -> Stmt {
        let load = |e: Expr| match e {
            Expr::Load { buf, at } => {
                let (buf, at) = f(buf, &at).unwrap_or((buf, at));
                Expr::Load { buf, at }
            }
            e => e,
        };
        let store = |s: Stmt| match s {
            Stmt::Store { buf, at, value } => {
                let (buf, at) = f(buf, &at).unwrap_or((buf, at));
                Stmt::Store { buf, at, value }
            }
            s => s,
        };
        self.rewrite_exprs(&mut |e| load(e)).rewrite(&mut |s| store(s))
    }
}

/// Calls `f` for every statement, outer ones first.
pub fn walk<'a>(body: &'a [Stmt], f: &mut dyn FnMut(&'a Stmt)) {
    body.iter().for_each(|s| s.walk(f));
}

/// True if `f` holds for some statement.
pub fn any<'a>(body: &'a [Stmt], f: &mut dyn FnMut(&'a Stmt) -> bool) -> bool {
    body.iter().any(|s| f(s) || s.bodies().any(|b| any(b, f)))
}

/// True if `f` holds for some expression of some statement.
pub fn any_expr<'a>(body: &'a [Stmt], f: &mut dyn FnMut(&'a Expr) -> bool) -> bool {
    any(body, &mut |s| s.expr().is_some_and(|e| e.any(f)))
}

/// Calls `f` for every expression of every statement.
pub fn walk_exprs<'a>(body: &'a [Stmt], f: &mut dyn FnMut(&'a Expr)) {
    walk(body, &mut |s| {
        if let Some(e) = s.expr() {
            e.walk(f);
        }
    });
}

/// Buffers in order of first use, each once.
fn distinct(each: impl FnOnce(&mut dyn FnMut(Buf))) -> Vec<Buf> {
    let (mut out, mut seen) = (vec![], Set::<Buf>::default());
    each(&mut |b| {
        if seen.insert(b) {
            out.push(b);
        }
    });
    out
}

/// Buffers read, or shown as texts, in order of first use.
pub fn loads(body: &[Stmt]) -> Vec<Buf> {
    distinct(|found| {
        walk_exprs(body, &mut |e| {
            if let Expr::Load { buf, .. } | Expr::Text(TextOp::Of(buf), _) = e {
                found(*buf);
            }
        })
    })
}

/// Buffers shown as texts.
pub fn shown(body: &[Stmt]) -> Vec<Buf> {
    distinct(|found| {
        walk_exprs(body, &mut |e| {
            if let Expr::Text(TextOp::Of(buf), _) = e {
                found(*buf);
            }
        })
    })
}

/// True if texts are loaded, stored or made.
pub fn has_texts(m: &super::Module, body: &[Stmt]) -> bool {
    loads(body).into_iter().chain(stores(body)).any(|b| m.bufs[b].ty == crate::tensor::ElemType::Str)
        || !shown(body).is_empty()
}

/// True if texts or complex numbers are moved: elements without vectors.
pub fn has_opaque(m: &super::Module, body: &[Stmt]) -> bool {
    loads(body).into_iter().chain(stores(body)).any(|b| m.bufs[b].ty.is_complex()) || has_texts(m, body)
}

/// Every store and load: its buffer and subscripts.
pub fn accesses(body: &[Stmt], f: &mut dyn FnMut(Buf, &[Dim])) {
    walk(body, &mut |s| s.accesses(f));
}

/// Every load: its buffer and subscripts.
pub fn each_load<'a>(body: &'a [Stmt], f: &mut dyn FnMut(Buf, &'a [Dim])) {
    walk_exprs(body, &mut |e| {
        if let Expr::Load { buf, at } = e {
            f(*buf, at);
        }
    });
}

/// Every store: its buffer and subscripts.
pub fn each_store(body: &[Stmt], f: &mut dyn FnMut(Buf, &[Dim])) {
    walk(body, &mut |s| {
        if let Stmt::Store { buf, at, .. } = s {
            f(*buf, at);
        }
    });
}

/// Buffers written, in order of first use.
pub fn stores(body: &[Stmt]) -> Vec<Buf> {
    distinct(|found| each_store(body, &mut |buf, _| found(buf)))
}

/// Kernels that the driver calls, nested calls included, in order; a kernel called twice occurs twice.
pub fn calls(driver: &[Stmt]) -> Vec<Kernel> {
    let mut out = vec![];
    walk(driver, &mut |s| {
        if let Stmt::Call(k) = s {
            out.push(*k);
        }
    });
    out
}

/// Removes calls from the driver, nested ones too.
pub fn drop_calls(driver: &mut Vec<Stmt>, gone: &dyn Fn(Kernel) -> bool) {
    driver.retain(|s| !matches!(s, Stmt::Call(k) if gone(*k)));
    for s in driver {
        for b in s.bodies_mut() {
            drop_calls(b, gone);
        }
    }
}

/// Puts statements in place of the call of `k` (`keep`: before it), wherever it is. False without such a
/// call.
pub fn splice_call(driver: &mut Vec<Stmt>, k: Kernel, keep: bool, with: Vec<Stmt>) -> bool {
    if let Some(i) = driver.iter().position(|s| matches!(s, Stmt::Call(x) if *x == k)) {
        driver.splice(if keep { i..i } else { i..i + 1 }, with);
        return true;
    }
    let mut with = Some(with);
    for s in driver {
        for b in s.bodies_mut() {
            if visit_calls(b, k) {
                return splice_call(b, k, keep, with.take().unwrap_or_default());
            }
        }
    }
    false
}

fn visit_calls(body: &[Stmt], k: Kernel) -> bool {
    calls(body).contains(&k)
}
