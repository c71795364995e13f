//! inline_producers: replaces loads of a map's result by the map's expression, through index remappings
//! (transposes, slices, padding, broadcasts), in any kernel, if recomputation is cheaper than a buffer.
//! Where a contraction reads quotients and remainders of a loop variable then (heads of queries that share
//! keys, written as Unsqueeze, Expand and Reshape), its loop is split, so that rows share what they read.
//! `inline_elementwise` is an earlier round of it, for readers that read their own position.

use crate::diag::Result;
use crate::nest::form::{Digit, Window, read_in_loops};
use crate::nest::{BinOp, Body, Buf, Expr, Kernel, Module, Reg, Stmt, UnOp, visit};
use crate::passes::nest::analysis::shape::{Map, Uses, instance, is_plain, is_temp, through_view};
use crate::passes::nest::schedule::split_div_mod;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// Maximum size of the expression of a fused kernel.
const MAX_SIZE: usize = 160;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    inline(m, false)
}

/// Inlines producers; `only_identity`: only into readers that read their own position.
pub(super) fn inline(m: &mut Module, only_identity: bool) -> Result<()> {
    let mut pass = Pass { uses: Uses::new(m), gone: HashSet::new(), only_identity };
    let mut left: Vec<(Kernel, Vec<Kernel>)> = vec![];
    // In driver order, so that an inlined expression has its own producers inlined already.
    for k in pass.uses.order.clone() {
        left.extend(pass.visit(m, k).map(|readers| (k, readers)));
    }
    // Readers that are part of others now: those may accept what these did not.
    for (k, readers) in left {
        if readers.iter().any(|r| pass.gone.contains(r)) {
            pass.visit(m, k);
        }
    }
    let Pass { gone, .. } = pass;
    visit::drop_calls(&mut m.driver, &|k| gone.contains(&k));
    let has_ones = |k: &Kernel| visit::any_expr(&m.kernels[*k].body, &mut has_one);
    for k in visit::calls(&m.driver).into_iter().filter(has_ones).collect::<Vec<_>>() {
        let body = std::mem::take(&mut m.kernels[k].body);
        m.kernels[k].body = body.into_iter().map(|s| s.rewrite_exprs(&mut without_ones)).collect();
    }
    Ok(())
}

/// The state of the pass.
struct Pass {
    uses: Uses,
    /// Kernels that are part of their readers.
    gone: HashSet<Kernel>,
    only_identity: bool,
}

impl Pass {
    /// Inlines kernel `k` if it is a map and all readers accept it. Returns the readers of a map that stays.
    fn visit(&mut self, m: &mut Module, k: Kernel) -> Option<Vec<Kernel>> {
        let Pass { uses, gone, only_identity } = self;
        let map = m.form(k).map()?.clone();
        if !is_temp(m, map.buf)
            || uses.writers(map.buf) != [k]
            || uses.pinned(map.buf)
            || narrows(m, &map)
            || *only_identity && looks_up_constants(m, &map)
        {
            return None;
        }
        map.digits(m)?;
        let readers: Vec<Kernel> = match uses.is_repeated() {
            true => {
                uses.order.iter().copied().filter(|r| !gone.contains(r) && reads(m, *r, map.buf)).collect()
            }
            false => uses.readers(map.buf).to_vec(),
        };
        if readers.is_empty()
            || readers
                .iter()
                .any(|r| !accepts(m, *r, &map, readers.len(), *only_identity) || !uses.may_move(m, k, *r))
        {
            return Some(readers);
        }
        into(m, k, &readers);
        // All calls are removed at the end; until then, nothing reads what they write.
        if !uses.is_repeated() {
            uses.apply(m, &readers, &[(k, &[])]);
        }
        gone.insert(k);
        None
    }
}

fn one(e: &Expr) -> bool {
    matches!(e, Expr::Const(c) if c.ty.is_float() && c.to_f64() == 1.0)
}

/// True for x * 1 and x / 1.
fn has_one(e: &Expr) -> bool {
    matches!(e, Expr::Bin(BinOp::Mul | BinOp::Div, x, y) if one(x) || one(y))
}

/// x for x * 1 and x / 1.
pub(crate) fn without_ones(e: Expr) -> Expr {
    match e {
        Expr::Bin(BinOp::Mul | BinOp::Div, x, y) if one(&y) => *x,
        Expr::Bin(BinOp::Mul, x, y) if one(&x) => *y,
        e => e,
    }
}

/// True if storing rounds values that other buffers hold with more bits: a Cast to f16 that must be
/// observable. Between operators of one 16-bit type, fused kernels keep the precision of the compute type.
/// Smaller types always round or wrap, unless their values are only moved.
fn narrows(m: &Module, map: &Map) -> bool {
    let ty = m.bufs[map.buf].ty;
    if ty.is_small() {
        return !moves(m, &map.value, ty);
    }
    if ty == ty.compute() || !ty.is_float() {
        return false;
    }
    map.value.any(&mut |e| matches!(e, Expr::Load { buf, .. } if m.bufs[*buf].ty != ty))
}

/// True if the expression only selects among stored elements of the type.
fn moves(m: &Module, e: &Expr, ty: ElemType) -> bool {
    match e {
        Expr::Load { buf, .. } => m.bufs[*buf].ty == ty,
        Expr::Select(_, a, b) => moves(m, a, ty) && moves(m, b, ty),
        Expr::Const(c) => c.bits == 0,
        _ => false,
    }
}

/// True for rows of a constant table at constant indices, which folding turns into a constant.
fn looks_up_constants(m: &Module, map: &Map) -> bool {
    let (mut looks_up, mut constant) = (false, m.bufs[map.buf].dims.iter().all(|d| d.as_const().is_some()));
    map.value.walk(&mut |e| match e {
        Expr::With { .. } => looks_up = true,
        Expr::Load { buf, .. } => constant &= m.is_constant(*buf),
        _ => {}
    });
    looks_up && constant
}

fn reads(m: &Module, k: Kernel, b: Buf) -> bool {
    visit::loads(&m.kernels[k].body).into_iter().any(|l| m.storage(l) == b)
}

/// Inlines the map kernel `k` into `readers` of its result.
pub(super) fn into(m: &mut Module, k: Kernel, readers: &[Kernel]) {
    let Some((map, digits)) = m.form(k).map().cloned().and_then(|map| map.digits(m).map(|d| (map, d))) else {
        return;
    };
    for r in readers {
        let body = std::mem::take(&mut m.kernels[*r].body);
        let body: Vec<Stmt> = body.into_iter().map(|s| replace_loads(m, s, &map, &digits)).collect();
        m.kernels[*r].body = body.into();
        if m.form(*r).contraction().is_some() {
            let body = std::mem::take(&mut m.kernels[*r].body);
            m.kernels[*r].body = split_div_mod::split(m, &body).map_or(body, Body::from);
        }
    }
}

/// The values of a map's loop variables at a position of its result.
fn variables(m: &Module, digits: &[Digit], at: &[Dim]) -> HashMap<Sym, Dim> {
    digits.iter().map(|d| (d.var, m.syms.simplify(d.at(at)))).collect()
}

/// The statement with the map's expression in place of its loads. What an expression reads more than once, at
/// one position, is computed once.
fn replace_loads(m: &mut Module, s: Stmt, map: &Map, digits: &[Digit]) -> Stmt {
    let computed = |m: &mut Module, (buf, at): (Buf, &[Dim])| {
        let at = through_view(m, buf, at, map.buf);
        let subst = variables(m, digits, &at);
        instance(m, &map.value, &|s| subst.get(&s).copied())
    };
    let (dear, ty) = (matches!(cost(m, map), Cost::Dear), m.type_of(&map.value));
    s.map_exprs(&mut |e| {
        let shared = if dear { read_again(m, &e, map.buf) } else { vec![] };
        let shared: Vec<((Buf, Vec<Dim>), Reg)> = shared.into_iter().map(|l| (l, m.reg(ty))).collect();
        let e = e.rewrite(&mut |e| match e {
            Expr::Load { buf, at } if m.storage(buf) == map.buf => {
                let reg = shared.iter().find(|(l, _)| l.0 == buf && l.1 == at).map(|s| s.1);
                reg.map_or_else(|| computed(m, (buf, &at)), Expr::Reg)
            }
            e => e,
        });
        shared.into_iter().fold(e, |body, ((buf, at), reg)| Expr::Let {
            reg,
            value: Box::new(computed(m, (buf, &at))),
            body: Box::new(body),
        })
    })
}

/// Loads of a buffer that an expression repeats, and makes whatever its conditions are.
fn read_again(m: &Module, e: &Expr, buf: Buf) -> Vec<(Buf, Vec<Dim>)> {
    let mut out: Vec<((Buf, Vec<Dim>), usize, bool)> = vec![];
    // Positions may be values that the expression itself defines.
    if e.any(&mut |e| matches!(e, Expr::With { .. })) {
        return vec![];
    }
    e.each_load_or_conditional(&mut |b, at, conditional| {
        if m.storage(b) != buf {
            return;
        }
        match out.iter_mut().find(|l| l.0.0 == b && l.0.1 == at) {
            Some(l) => (l.1, l.2) = (l.1 + 1, l.2 && conditional),
            None => out.push(((b, at.to_vec()), 1, conditional)),
        }
    });
    out.into_iter().filter(|l| l.1 > 1 && !l.2).map(|l| l.0).collect()
}

/// The cost of recomputing an expression.
enum Cost {
    /// One load at another position.
    Remap,
    /// A few cheap operations.
    Cheap,
    Dear,
}

fn cost(m: &Module, map: &Map) -> Cost {
    let e = &map.value;
    if let Expr::Load { .. } = e {
        return Cost::Remap;
    }
    let mut dear = false;
    e.walk(&mut |e| {
        dear |= match e {
            // Vectors compute it lane by lane.
            Expr::Index(d) => map.loops.iter().any(|l| d.contains(l.0) && d.linear_in(l.0).is_none()),
            Expr::Un(op, _) => !matches!(
                op,
                UnOp::Neg | UnOp::Abs | UnOp::Not | UnOp::IsNan | UnOp::IsInf | UnOp::Floor | UnOp::Ceil
            ),
            Expr::Bin(op, ..) => matches!(
                op,
                crate::nest::BinOp::Div
                    | crate::nest::BinOp::Pow
                    | crate::nest::BinOp::Rem
                    | crate::nest::BinOp::Mod
            ),
            // These have few lanes, and on some levels no vector form.
            Expr::Cast(t, x) => t.is_int() && m.type_of(x) == ElemType::F64,
            Expr::With { .. } => true,
            _ => false,
        }
    });
    if dear || e.size() > 12 { Cost::Dear } else { Cost::Cheap }
}

/// A kernel that reads the result of a map.
struct Reader<'a> {
    m: &'a Module,
    k: Kernel,
    map: &'a Map,
    /// The positions that it reads, in the dims of the result.
    at: Vec<Vec<Dim>>,
    /// True if no other kernel reads the result.
    alone: bool,
}

impl Reader<'_> {
    fn indices(&self, f: &dyn Fn(Dim) -> bool) -> bool {
        self.at.iter().flatten().all(|d| f(*d))
    }
    /// True for a map with as many elements as the result.
    fn has_as_many(&self, consumer: &Map) -> bool {
        let elements = |map: &Map| Dim::product(map.loops.iter().map(|l| l.1));
        elements(consumer) == elements(self.map)
    }
    /// Whether it reads each element once, at a position of its own loops. Inlining a loop-free remap here
    /// would only move it; padding and slices are left to the second round.
    fn permutes(&self) -> bool {
        let Some(c) = self.m.form(self.k).map() else { return false };
        let dims = &self.m.bufs[self.map.buf].dims;
        let same =
            |at: &Vec<Dim>| at.iter().zip(dims).all(|(i, d)| d.as_const() == Some(1) || i.as_sym().is_some());
        self.at.iter().all(same)
            && self.has_as_many(c)
            && (self.alone || matches!(cost(self.m, self.map), Cost::Remap))
            && c.cover(self.m).is_some()
            && self.map.cover(self.m).is_some()
    }
    /// The positions that it reads if the result is one load, in the dims of what that reads.
    fn moved(&self) -> Vec<Vec<Dim>> {
        let (Expr::Load { at: from, .. }, Some(digits)) = (&self.map.value, self.map.digits(self.m)) else {
            return vec![];
        };
        let moved = |at: &Vec<Dim>| {
            let subst = variables(self.m, &digits, at);
            from.iter().map(|d| self.m.syms.simplify(d.subst(&mut |s| subst.get(&s).copied()))).collect()
        };
        self.at.iter().map(moved).collect()
    }
    /// Whether computing the elements where they are read costs no more than loading them.
    fn may_compute(&self) -> bool {
        let Reader { m, map, alone, .. } = *self;
        let body = &m.kernels[self.k].body;
        // Elements that a sequential loop reads may be read several times.
        let in_loop = read_in_loops(body).into_iter().any(|b| m.storage(b) == map.buf);
        let form = m.form(self.k);
        let contraction = form.contraction().is_some();
        let plain = map.cover(m).is_some() && self.indices(&|d| is_plain(m, d));
        let size = map.value.size();
        match cost(m, map) {
            // Inner loops must stay free of divisions.
            Cost::Remap => self
                .moved()
                .iter()
                .flatten()
                .all(|d| is_plain(m, *d) || contraction && split_div_mod::removes(m, body, *d)),
            _ if contraction || slides(m, self.k) => false,
            Cost::Cheap => plain && (alone || size <= 6) && (!in_loop || size <= 8),
            Cost::Dear => plain && alone && !in_loop && form.map().is_some_and(|c| self.has_as_many(c)),
        }
    }
}

/// Whether reader `r` may compute `map` itself.
fn accepts(m: &Module, r: Kernel, map: &Map, n_readers: usize, only_identity: bool) -> bool {
    let body = &m.kernels[r].body;
    let loads = accesses(m, body, map.buf);
    if loads.iter().any(|l| m.is_recast(l.0)) {
        return false;
    }
    let mut size = 0;
    visit::walk(body, &mut |s| size += s.expr().map_or(0, Expr::size));
    if size + loads.len() * map.value.size() > MAX_SIZE {
        return false;
    }
    let at = loads.iter().map(|(buf, at)| through_view(m, *buf, at, map.buf)).collect();
    let reader = Reader { m, k: r, map, at, alone: n_readers == 1 };
    if only_identity { reader.permutes() } else { reader.may_compute() }
}

/// True for a window that moves along with its result, as in pooling. It may read an element several times,
/// and its schedules take plain elements only.
fn slides(m: &Module, r: Kernel) -> bool {
    let moves = |w: &Window, d: &Dim| [&w.loops, &w.taps].iter().all(|l| l.iter().any(|l| d.contains(l.0)));
    m.form(r).window().is_some_and(|w| w.read.1.iter().any(|d| moves(&w, d)))
}

fn accesses(m: &Module, body: &[Stmt], b: Buf) -> Vec<(Buf, Vec<Dim>)> {
    let mut out = vec![];
    visit::walk_exprs(body, &mut |e| {
        if let Expr::Load { buf, at } = e
            && m.storage(*buf) == b
        {
            out.push((*buf, at.clone()));
        }
    });
    out
}
