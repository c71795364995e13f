//! Compiles statements and expressions to the interpreter's code. Scopes and types are checked here, once for
//! all iterations.

mod expr;

use super::code::{Access, Cell, CellAt, Factor, Ix, LaneIx, Node, Op};
use super::memory::storage;
use super::*;
use crate::sym::{Atom, View};

#[derive(Clone)]
pub(super) enum Def {
    None,
    Value,
    /// A value for each lane.
    Lanes {
        base: usize,
        lanes: u32,
    },
    Acc {
        base: usize,
        lanes: u32,
        shape: Vec<u32>,
    },
}

pub(super) enum Undo {
    Reg(usize, Def),
    Sym(usize, bool),
}

pub(super) struct Compiler<'a> {
    pub(super) m: &'a Module,
    /// Symbols in scope.
    pub(super) syms: Vec<bool>,
    pub(super) regs: Vec<Def>,
    pub(super) undo: Vec<Undo>,
    pub(super) cells: usize,
    /// Lanes of the `vec` loops around; the position is the lane slot.
    pub(super) vecs: Vec<u32>,
    pub(super) depth: usize,
    pub(super) kernels: Vec<Option<Vec<Op>>>,
    pub(super) in_kernel: bool,
}

impl Compiler<'_> {
    fn back_to(&mut self, mark: usize) {
        for u in self.undo.split_off(mark.min(self.undo.len())).into_iter().rev() {
            match u {
                Undo::Reg(r, d) => self.regs[r] = d,
                Undo::Sym(s, b) => self.syms[s] = b,
            }
        }
    }
    pub(super) fn define_sym(&mut self, s: Sym) -> Res<usize> {
        let i = s.0 as usize;
        match self.syms.get_mut(i) {
            Some(b) => {
                self.undo.push(Undo::Sym(i, std::mem::replace(b, true)));
                Ok(i)
            }
            None => msg(format!("there is no symbol s{i}")),
        }
    }
    pub(super) fn define_reg(&mut self, r: Reg, ty: ElemType, d: Def) -> Res<usize> {
        let i = r.as_u32() as usize;
        match (self.m.regs.get(r), self.regs.get_mut(i)) {
            (Some(data), Some(_)) if data.ty != ty => msg(format!("{r} is {}, its value {ty}", data.ty)),
            (Some(_), Some(old)) => {
                self.undo.push(Undo::Reg(i, std::mem::replace(old, d)));
                Ok(i)
            }
            _ => msg(format!("there is no register {r}")),
        }
    }
    /// Compiles what `body` says in a scope of its own.
    pub(super) fn scoped<T>(&mut self, body: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        let mark = self.undo.len();
        let done = body(self);
        self.back_to(mark);
        done
    }
    fn scope(&mut self, body: &[Stmt]) -> Res<Vec<Op>> {
        self.scoped(|c| c.block(body))
    }
    pub(super) fn block(&mut self, body: &[Stmt]) -> Res<Vec<Op>> {
        let mut ops = vec![];
        for s in body {
            match s {
                Stmt::Tile { body } => ops.extend(self.block(body)?),
                s => ops.push(self.stmt(s)?),
            }
        }
        Ok(ops)
    }
    fn stmt(&mut self, s: &Stmt) -> Res<Op> {
        match s {
            Stmt::For { kind, var, lo, hi, body } => self.for_loop(*kind, *var, (*lo, *hi), body),
            Stmt::Let { reg, value } => self.value(*reg, value),
            Stmt::Acc { reg, lanes, shape, init } => self.accumulators(*reg, *lanes, shape, init),
            Stmt::Set { reg, at, value } => self.set(*reg, at, value),
            Stmt::Store { buf, at, value } => self.store(*buf, at, value),
            Stmt::If { cond, then, els } => {
                let c = self.truth(cond)?;
                Ok(Op::If(c, self.scope(then)?, self.scope(els)?))
            }
            Stmt::Tile { .. } => msg("a tile that is in no list"),
            Stmt::While { cond, body } => {
                let c = self.truth(cond)?;
                Ok(Op::While(c, self.scope(body)?))
            }
            Stmt::With { sym, value, extent, body } => {
                let (v, extent) = (self.index_value(value)?, self.ix(*extent)?);
                let (s, body) = self.scoped(|c| Ok((c.define_sym(*sym)?, c.block(body)?)))?;
                Ok(Op::With(s, v, extent, body))
            }
            Stmt::Define { sym, value, lo, hi } => self.define(*sym, value, *lo, *hi),
            Stmt::Prefetch { .. } => Ok(Op::Nothing),
            Stmt::Check { cond, status } => Ok(Op::Check(self.truth(cond)?, *status)),
            Stmt::Foreign(f) => Ok(Op::Foreign(f.clone())),
            Stmt::Call(k) => self.call(*k),
        }
    }
    fn for_loop(&mut self, kind: LoopKind, var: Sym, (lo, hi): (Dim, Dim), body: &[Stmt]) -> Res<Op> {
        // Registers of a single-vector loop are vectors, which later loops with as many lanes read.
        let trips = lo.as_const().zip(hi.as_const()).and_then(|(a, z)| z.checked_sub(a));
        let one_vector = matches!(kind, LoopKind::Vec(n) if trips == Some(i64::from(n)));
        let (lo, hi) = (self.ix(lo)?, self.ix(hi)?);
        let mark = self.undo.len();
        let var = self.define_sym(var)?;
        let lane = match kind {
            LoopKind::Vec(0) => return msg("a vector loop without lanes"),
            LoopKind::Vec(n) => Some((self.push_vec(n), n)),
            _ => None,
        };
        let body = self.block(body)?;
        if lane.is_some() {
            self.vecs.pop();
        }
        if one_vector {
            self.syms[var] = false;
        } else {
            self.back_to(mark);
        }
        Ok(Op::For { var, lo, hi, lane, body })
    }
    fn value(&mut self, reg: Reg, value: &Expr) -> Res<Op> {
        let (v, ty) = self.expr(value)?;
        let Some(lanes) = self.vecs.last().copied() else {
            return Ok(Op::Let(self.define_reg(reg, ty, Def::Value)?, v));
        };
        let base = self.cells;
        self.cells += lanes as usize;
        self.define_reg(reg, ty, Def::Lanes { base, lanes })?;
        Ok(Op::LetLane(base, self.vecs.len() - 1, v))
    }
    fn accumulators(&mut self, reg: Reg, lanes: u32, shape: &[u32], init: &Expr) -> Res<Op> {
        let (v, ty) = self.expr(init)?;
        let n = shape.iter().chain([&lanes]).try_fold(1usize, |n, d| n.checked_mul(*d as usize));
        let Some(n) = n.filter(|n| *n > 0 && *n <= 1 << 20) else {
            return msg(format!("{reg} has {shape:?} accumulators of {lanes} lanes"));
        };
        let base = self.cells;
        self.cells += n;
        self.define_reg(reg, ty, Def::Acc { base, lanes, shape: shape.to_vec() })?;
        let slot = self.vecs.iter().rposition(|n| *n == lanes);
        Ok(Op::Acc { base, count: n, lane: slot.map(|s| (s, lanes as usize)), init: v })
    }
    fn set(&mut self, reg: Reg, at: &[Dim], value: &Expr) -> Res<Op> {
        let Def::Acc { lanes, .. } = self.def(reg) else {
            return msg(format!("{reg} is not an accumulator"));
        };
        let sweep = (lanes > 1 && !self.vecs.contains(&lanes)).then(|| (self.push_vec(lanes), lanes));
        let (value, ty) = self.expr(value)?;
        let (cell, want, _) = self.cell(reg, at, None)?;
        if sweep.is_some() {
            self.vecs.pop();
        }
        same(ty, want, "an accumulator's value")?;
        Ok(Op::Set { cell, value, sweep })
    }
    fn store(&mut self, buf: Buf, at: &[Dim], value: &Expr) -> Res<Op> {
        let access = self.access(buf, at)?;
        let (v, ty) = self.expr(value)?;
        same(ty, access.ty.compute(), "a stored value")?;
        Ok(match ty {
            ElemType::Str => Op::StoreText(access, v),
            ElemType::C128 => Op::StorePair(access, v),
            _ => Op::Store(access, v),
        })
    }
    fn define(&mut self, sym: Sym, value: &Expr, lo: Dim, hi: Option<Dim>) -> Res<Op> {
        let (v, ty) = self.expr(value)?;
        integer(ty, "a symbol's value")?;
        let (lo, hi) = (self.ix(lo)?, hi.map(|d| self.ix(d)).transpose()?);
        let m = self.m;
        let moves = |s: Slot| m.slots.get(s).is_some_and(|d| d.offset.contains(sym) || d.size.contains(sym));
        let depends = |b: Buf| {
            m.bufs.get(b).is_some_and(|d| {
                d.dims.iter().any(|d| d.contains(sym)) || matches!(d.place, Place::Arena(s) if moves(s))
            })
        };
        let stale = m.bufs.keys().filter(|b| depends(*b) || storage(m, *b).is_ok_and(depends));
        let stale = stale.map(|b| b.as_u32() as usize).collect();
        Ok(Op::Define { sym: self.define_sym(sym)?, value: v, lo, hi, stale })
    }
    fn call(&mut self, k: Kernel) -> Res<Op> {
        if self.in_kernel {
            return msg("a call inside a kernel");
        }
        let i = k.as_u32() as usize;
        let Some(data) = self.m.kernels.get(k) else { return msg(format!("there is no kernel {k}")) };
        if self.kernels[i].is_none() {
            self.in_kernel = true;
            let ops = self.scope(&data.body);
            self.in_kernel = false;
            self.kernels[i] = Some(ops.map_err(|e| in_kernel(&data.name, e))?);
        }
        Ok(Op::Call(i))
    }
    fn push_vec(&mut self, n: u32) -> usize {
        self.vecs.push(n);
        self.depth = self.depth.max(self.vecs.len());
        self.vecs.len() - 1
    }
    pub(super) fn def(&self, r: Reg) -> Def {
        self.regs.get(r.as_u32() as usize).cloned().unwrap_or(Def::None)
    }
    pub(super) fn access(&mut self, buf: Buf, at: &[Dim]) -> Res<Access> {
        let Some(d) = self.m.bufs.get(buf) else { return msg(format!("there is no buffer {buf}")) };
        if d.dims.len() != at.len() {
            return msg(format!(
                "{buf} \"{}\" of rank {} is indexed with {} subscripts",
                d.name,
                d.dims.len(),
                at.len()
            ));
        }
        let at = at.iter().map(|d| self.ix(*d)).collect::<Res<_>>()?;
        Ok(Access { buf: buf.as_u32() as usize, ty: d.ty, bits: self.m.element_bits(buf), at })
    }
    /// A value that `With` binds, as i64.
    pub(super) fn index_value(&mut self, value: &Expr) -> Res<Node> {
        let (v, ty) = self.expr(value)?;
        integer(ty, "an index")?;
        Ok(if ty == ElemType::I64 { v } else { Node::Cast(ty, ElemType::I64, Box::new(v)) })
    }
    /// The location of an accumulator, its type and its lanes.
    pub(super) fn cell(&mut self, reg: Reg, at: &[Dim], lane: Option<Dim>) -> Res<(Cell, ElemType, u32)> {
        let (Some(data), Def::Acc { base, lanes, shape }) = (self.m.regs.get(reg), self.def(reg)) else {
            return msg(format!("{reg} is not an accumulator here"));
        };
        if shape.len() != at.len() {
            return msg(format!("{reg} of shape {shape:?} is indexed with {} subscripts", at.len()));
        }
        let lane = match lane {
            Some(d) => LaneIx::At(self.ix(d)?),
            None if lanes == 1 => LaneIx::At(Ix::Const(0)),
            None => match self.vecs.iter().rposition(|n| *n == lanes) {
                Some(slot) => LaneIx::Slot(slot),
                None => {
                    return msg(format!("{reg} with {lanes} lanes is used outside a vector loop of as many"));
                }
            },
        };
        let at = shape.iter().zip(at).map(|(n, d)| Ok((*n, self.ix(*d)?))).collect::<Res<Vec<_>>>()?;
        let flat = at.iter().try_fold(0usize, |i, (n, x)| match x {
            Ix::Const(c) if (0..i64::from(*n)).contains(c) => Some(i * *n as usize + *c as usize),
            _ => None,
        });
        let cell = match (flat, lane) {
            (Some(i), LaneIx::At(Ix::Const(l))) if (0..i64::from(lanes)).contains(&l) => {
                Cell::Fixed(base + i * lanes as usize + l as usize)
            }
            (Some(i), LaneIx::Slot(s)) => Cell::Lane(base + i * lanes as usize, s),
            (_, lane) => Cell::At(Box::new(CellAt { base, lanes: lanes as usize, at, lane })),
        };
        Ok((cell, data.ty, lanes))
    }
    fn sym(&self, s: Sym) -> Res<usize> {
        let i = s.0 as usize;
        match self.syms.get(i) {
            Some(true) => Ok(i),
            Some(false) => msg(format!("symbol {} has no value here", self.m.syms.unique_name(s))),
            None => msg(format!("there is no symbol s{i}")),
        }
    }
    pub(super) fn ix(&self, d: Dim) -> Res<Ix> {
        let View::Sum { terms, constant } = d.view() else {
            return Ok(d.as_const().map_or(Ix::Overflow, Ix::Const));
        };
        if let Some(s) = d.as_sym() {
            return Ok(Ix::Sym(self.sym(s)?));
        }
        let affine: Option<Vec<(i64, Sym)>> = terms
            .iter()
            .map(|(k, atoms)| match atoms.as_slice() {
                [Atom::Sym(s)] => Some((*k, *s)),
                _ => None,
            })
            .collect();
        if let Some(v) = affine {
            return Ok(Ix::Affine(
                constant,
                v.into_iter().map(|(k, s)| Ok((k, self.sym(s)?))).collect::<Res<_>>()?,
            ));
        }
        let list = |v: &[Dim]| v.iter().map(|d| self.ix(*d)).collect::<Res<Box<[Ix]>>>();
        let factor = |a: &Atom| {
            Ok(match a {
                Atom::Sym(s) => Factor::Sym(self.sym(*s)?),
                Atom::FloorDiv(a, b) => Factor::Div(self.ix(*a)?, self.ix(*b)?),
                Atom::Mod(a, b) => Factor::Mod(self.ix(*a)?, self.ix(*b)?),
                Atom::Min(v) => Factor::Min(list(v)?),
                Atom::Max(v) => Factor::Max(list(v)?),
            })
        };
        let terms = terms
            .iter()
            .map(|(k, atoms)| Ok((*k, atoms.iter().map(factor).collect::<Res<_>>()?)))
            .collect::<Res<_>>()?;
        Ok(Ix::Poly(constant, terms))
    }
}

pub(super) fn same(found: ElemType, expected: ElemType, what: &str) -> Res<()> {
    if found == expected {
        Ok(())
    } else {
        msg(format!("{what} is {}, expected {}", found.short(), expected.short()))
    }
}

pub(super) fn integer(t: ElemType, what: &str) -> Res<()> {
    if t.is_int() || t == ElemType::Bool {
        Ok(())
    } else {
        msg(format!("{what} is {}, expected an integer", t.short()))
    }
}

pub(super) fn number(t: ElemType) -> Res<()> {
    if t == ElemType::Str || t.is_complex() { msg(format!("elements of type {t}")) } else { Ok(()) }
}

pub(super) fn compute(t: ElemType) -> Res<()> {
    number(t)?;
    if t.compute() == t { Ok(()) } else { msg(format!("{t} is not a compute type")) }
}
