//! Compiles statements and expressions to the interpreter's code. Scopes and types are checked here, once for
//! all iterations.

use super::code::{Access, Cell, CellAt, Factor, Ix, LaneIx, Node, Op};
use super::memory::storage;
use super::scalar::{bin_f32, bin_f64};
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
    fn define_sym(&mut self, s: Sym) -> Res<usize> {
        let i = s.0 as usize;
        match self.syms.get_mut(i) {
            Some(b) => {
                self.undo.push(Undo::Sym(i, std::mem::replace(b, true)));
                Ok(i)
            }
            None => msg(format!("there is no symbol s{i}")),
        }
    }
    fn define_reg(&mut self, r: Reg, ty: ElemType, d: Def) -> Res<usize> {
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
    /// Statements with a scope of their own.
    fn scope(&mut self, body: &[Stmt]) -> Res<Vec<Op>> {
        let mark = self.undo.len();
        let ops = self.block(body);
        self.back_to(mark);
        ops
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
        Ok(match s {
            Stmt::For { kind, var, lo, hi, body } => {
                // Registers of a single-vector loop are vectors, which later loops with as many lanes read.
                let one_vector = matches!((kind, lo.as_const(), hi.as_const()), (LoopKind::Vec(n), Some(a), Some(z)) if z.checked_sub(a) == Some(i64::from(*n)));
                let (lo, hi) = (self.ix(*lo)?, self.ix(*hi)?);
                let mark = self.undo.len();
                let var = self.define_sym(*var)?;
                let lane = match kind {
                    LoopKind::Vec(0) => return msg("a vector loop without lanes"),
                    LoopKind::Vec(n) => Some((self.push_vec(*n), *n)),
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
                Op::For { var, lo, hi, lane, body }
            }
            Stmt::Let { reg, value } => {
                let (v, ty) = self.expr(value)?;
                match self.vecs.last().copied() {
                    None => Op::Let(self.define_reg(*reg, ty, Def::Value)?, v),
                    Some(lanes) => {
                        let base = self.cells;
                        self.cells += lanes as usize;
                        self.define_reg(*reg, ty, Def::Lanes { base, lanes })?;
                        Op::LetLane(base, self.vecs.len() - 1, v)
                    }
                }
            }
            Stmt::Acc { reg, lanes, shape, init } => {
                let (v, ty) = self.expr(init)?;
                let n = shape.iter().chain([lanes]).try_fold(1usize, |n, d| n.checked_mul(*d as usize));
                let Some(n) = n.filter(|n| *n > 0 && *n <= 1 << 20) else {
                    return msg(format!("{reg} has {shape:?} accumulators of {lanes} lanes"));
                };
                let base = self.cells;
                self.cells += n;
                self.define_reg(*reg, ty, Def::Acc { base, lanes: *lanes, shape: shape.clone() })?;
                let slot = self.vecs.iter().rposition(|n| n == lanes);
                Op::Acc { base, count: n, lane: slot.map(|s| (s, *lanes as usize)), init: v }
            }
            Stmt::Set { reg, at, value } => {
                let lanes = match self.def(*reg) {
                    Def::Acc { lanes, .. } => lanes,
                    _ => return msg(format!("{reg} is not an accumulator")),
                };
                let sweep = (lanes > 1 && !self.vecs.contains(&lanes)).then(|| (self.push_vec(lanes), lanes));
                let (value, ty) = self.expr(value)?;
                let (cell, want, _) = self.cell(*reg, at, None)?;
                if sweep.is_some() {
                    self.vecs.pop();
                }
                same(ty, want, "an accumulator's value")?;
                Op::Set { cell, value, sweep }
            }
            Stmt::Store { buf, at, value } => {
                let access = self.access(*buf, at)?;
                let (v, ty) = self.expr(value)?;
                same(ty, access.ty.compute(), "a stored value")?;
                match ty {
                    ElemType::Str => Op::StoreText(access, v),
                    ElemType::C128 => Op::StorePair(access, v),
                    _ => Op::Store(access, v),
                }
            }
            Stmt::If { cond, then, els } => {
                let c = self.truth(cond)?;
                Op::If(c, self.scope(then)?, self.scope(els)?)
            }
            Stmt::Tile { .. } => return msg("a tile that is in no list"),
            Stmt::While { cond, body } => {
                let c = self.truth(cond)?;
                Op::While(c, self.scope(body)?)
            }
            Stmt::With { sym, value, extent, body } => {
                let (v, extent) = (self.index_value(value)?, self.ix(*extent)?);
                let mark = self.undo.len();
                let s = self.define_sym(*sym)?;
                let body = self.block(body);
                self.back_to(mark);
                Op::With(s, v, extent, body?)
            }
            Stmt::Define { sym, value, lo, hi } => {
                let (v, ty) = self.expr(value)?;
                integer(ty, "a symbol's value")?;
                let (lo, hi) = (self.ix(*lo)?, hi.map(|d| self.ix(d)).transpose()?);
                let moves = |s: Slot| {
                    self.m.slots.get(s).is_some_and(|d| d.offset.contains(*sym) || d.size.contains(*sym))
                };
                let depends = |b: Buf| {
                    self.m.bufs.get(b).is_some_and(|d| {
                        d.dims.iter().any(|d| d.contains(*sym))
                            || matches!(d.place, Place::Arena(s) if moves(s))
                    })
                };
                let stale = self
                    .m
                    .bufs
                    .keys()
                    .filter(|b| depends(*b) || storage(self.m, *b).is_ok_and(depends))
                    .map(|b| b.as_u32() as usize)
                    .collect();
                let sym = self.define_sym(*sym)?;
                Op::Define { sym, value: v, lo, hi, stale }
            }
            Stmt::Prefetch { .. } => Op::Nothing,
            Stmt::Check { cond, status } => Op::Check(self.truth(cond)?, *status),
            Stmt::Foreign(f) => Op::Foreign(f.clone()),
            Stmt::Call(k) => {
                if self.in_kernel {
                    return msg("a call inside a kernel");
                }
                let i = k.as_u32() as usize;
                let Some(data) = self.m.kernels.get(*k) else {
                    return msg(format!("there is no kernel {k}"));
                };
                if self.kernels[i].is_none() {
                    self.in_kernel = true;
                    let ops = self.scope(&data.body);
                    self.in_kernel = false;
                    self.kernels[i] = Some(ops.map_err(|e| in_kernel(&data.name, e))?);
                }
                Op::Call(i)
            }
        })
    }
    fn push_vec(&mut self, n: u32) -> usize {
        self.vecs.push(n);
        self.depth = self.depth.max(self.vecs.len());
        self.vecs.len() - 1
    }
    fn def(&self, r: Reg) -> Def {
        self.regs.get(r.as_u32() as usize).cloned().unwrap_or(Def::None)
    }
    fn access(&mut self, buf: Buf, at: &[Dim]) -> Res<Access> {
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
    fn index_value(&mut self, value: &Expr) -> Res<Node> {
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
    fn truth(&mut self, e: &Expr) -> Res<Node> {
        let (n, ty) = self.expr(e)?;
        same(ty, ElemType::Bool, "a condition")?;
        Ok(n)
    }
    fn expr(&mut self, e: &Expr) -> Res<(Node, ElemType)> {
        Ok(match e {
            Expr::Const(s) => {
                compute(s.ty)?;
                let mask = if s.ty.bits() >= 64 { u64::MAX } else { (1 << s.ty.bits()) - 1 };
                (Node::Const(s.bits & mask), s.ty)
            }
            Expr::Reg(r) => match (self.def(*r), self.m.regs.get(*r)) {
                (Def::Value, Some(d)) => (Node::Reg(r.as_u32() as usize), d.ty),
                (Def::Lanes { base, lanes }, Some(d)) => match self.vecs.iter().rposition(|n| *n == lanes) {
                    Some(slot) => (Node::Acc(Cell::Lane(base, slot)), d.ty),
                    None => return msg(format!("{r} of a vector loop is used outside")),
                },
                _ => return msg(format!("{r} has no value here")),
            },
            Expr::Acc { reg, at, lane } => {
                let (cell, ty, _) = self.cell(*reg, at, *lane)?;
                (Node::Acc(cell), ty)
            }
            Expr::Horizontal { op, reg, at } => {
                let (cell, ty, lanes) = self.cell(*reg, at, Some(Dim::constant(0)))?;
                if op.is_comparison() {
                    return msg("lanes combined by a comparison");
                }
                (Node::Horizontal { op: *op, ty, cell, lanes: lanes as usize }, ty)
            }
            Expr::Address(_) => return msg("an address"),
            Expr::Index(d) => (Node::Index(self.ix(*d)?), ElemType::I64),
            Expr::Load { buf, at } => {
                let a = self.access(*buf, at)?;
                let ty = a.ty.compute();
                let a = Box::new(a);
                let load = match ty {
                    ElemType::Str => Node::LoadText(a),
                    ElemType::C128 => Node::LoadPair(a),
                    _ => Node::Load(a),
                };
                (load, ty)
            }
            Expr::Un(op, a) => {
                let (a, ty) = self.expr(a)?;
                let to = match op {
                    UnOp::IsNan | UnOp::IsInf => ElemType::Bool,
                    UnOp::Bits(t) if t.bits() != ty.bits() => return msg(format!("the bits of {ty} as {t}")),
                    UnOp::Bits(t) => {
                        compute(*t)?;
                        *t
                    }
                    _ => ty,
                };
                (Node::Un(*op, ty, Box::new(a)), to)
            }
            // Buffers are separate regions here: addresses can only be compared for the same buffer.
            Expr::Bin(op @ (BinOp::Eq | BinOp::Ne), a, b)
                if let (Expr::Address(a), Expr::Address(b)) = (&**a, &**b) =>
            {
                let same = self.m.storage(*a) == self.m.storage(*b);
                return self.expr(&Expr::Const(Scalar {
                    ty: ElemType::Bool,
                    bits: u64::from(same == (*op == BinOp::Eq)),
                }));
            }
            Expr::Bin(op, a, b) => {
                let ((a, ty), (b, tb)) = (self.expr(a)?, self.expr(b)?);
                same(tb, ty, "the second operand")?;
                let both = Box::new((a, b));
                match (ty, op.is_comparison()) {
                    (ElemType::Str, true) => (Node::CompareText(*op, both), ElemType::Bool),
                    (ElemType::Str, false) => return msg(format!("{op:?} of texts")),
                    (ElemType::F32, true) => (Node::Compare32(*op, both), ElemType::Bool),
                    (ElemType::F32, false) if bin_f32(*op, 1.0, 1.0).is_none() => {
                        return msg(format!("{op:?} of floats"));
                    }
                    (ElemType::F64, false) if bin_f64(*op, 1.0, 1.0).is_none() => {
                        return msg(format!("{op:?} of floats"));
                    }
                    (ElemType::F32, false) => (Node::Bin32(*op, both), ty),
                    (_, cmp) => (Node::Bin(*op, ty, both), if cmp { ElemType::Bool } else { ty }),
                }
            }
            Expr::Fma(a, b, c) => {
                let ((a, ty), (b, tb), (c, tc)) = (self.expr(a)?, self.expr(b)?, self.expr(c)?);
                same(tb, ty, "the second operand")?;
                same(tc, ty, "the third operand")?;
                if !ty.is_float() {
                    return msg(format!("fma of {ty}"));
                }
                (Node::Fma(ty == ElemType::F32, Box::new((a, b, c))), ty)
            }
            Expr::Dot(g, a, b, c) => {
                let ((a, ta), (b, tb), (c, tc)) = (self.expr(a)?, self.expr(b)?, self.expr(c)?);
                for t in [ta, tb] {
                    same(t, g.factor(), "a factor of a dot product")?;
                }
                same(tc, g.sum(), "the sum of a dot product")?;
                (Node::Dot(*g, Box::new((a, b, c))), tc)
            }
            Expr::Select(c, a, b) => {
                let c = self.truth(c)?;
                let ((a, ty), (b, tb)) = (self.expr(a)?, self.expr(b)?);
                same(tb, ty, "the second choice")?;
                (Node::Select(Box::new((c, a, b))), ty)
            }
            Expr::Cast(to, a) => {
                let (a, from) = self.expr(a)?;
                compute(*to)?;
                number(from)?;
                (if from == *to { a } else { Node::Cast(from, *to, Box::new(a)) }, *to)
            }
            Expr::Text(op, v) => {
                let (ty, operands): (ElemType, &[ElemType]) = match op {
                    TextOp::Len => (ElemType::I64, &[ElemType::Str]),
                    TextOp::Byte => (ElemType::U8, &[ElemType::Str, ElemType::I64]),
                    TextOp::Part => (ElemType::Str, &[ElemType::Str, ElemType::I64, ElemType::I64]),
                    TextOp::Of(b) if self.m.bufs.get(*b).is_some_and(|d| d.ty == ElemType::U8) => {
                        (ElemType::Str, &[])
                    }
                    TextOp::Of(b) => return msg(format!("{b} as a text")),
                };
                let (nodes, types): (Vec<Node>, Vec<ElemType>) =
                    v.iter().map(|e| self.expr(e)).collect::<Res<Vec<_>>>()?.into_iter().unzip();
                if types != operands {
                    return msg(format!("{op:?} of other operands"));
                }
                (Node::Text(*op, nodes), ty)
            }
            Expr::Let { reg, value, body } => {
                let (v, ty) = self.expr(value)?;
                let mark = self.undo.len();
                let r = self.define_reg(*reg, ty, Def::Value)?;
                let (b, ty) = self.expr(body)?;
                self.back_to(mark);
                (Node::Let(r, Box::new((v, b))), ty)
            }
            Expr::With { sym, value, extent, body } => {
                let (v, extent) = (self.index_value(value)?, self.ix(*extent)?);
                let mark = self.undo.len();
                let s = self.define_sym(*sym)?;
                let (b, ty) = self.expr(body)?;
                self.back_to(mark);
                (Node::With(s, extent, Box::new((v, b))), ty)
            }
        })
    }
    fn sym(&self, s: Sym) -> Res<usize> {
        let i = s.0 as usize;
        match self.syms.get(i) {
            Some(true) => Ok(i),
            Some(false) => msg(format!("symbol {} has no value here", self.m.syms.unique_name(s))),
            None => msg(format!("there is no symbol s{i}")),
        }
    }
    fn ix(&self, d: Dim) -> Res<Ix> {
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

fn same(found: ElemType, expected: ElemType, what: &str) -> Res<()> {
    if found == expected {
        Ok(())
    } else {
        msg(format!("{what} is {}, expected {}", found.short(), expected.short()))
    }
}

fn integer(t: ElemType, what: &str) -> Res<()> {
    if t.is_int() || t == ElemType::Bool {
        Ok(())
    } else {
        msg(format!("{what} is {}, expected an integer", t.short()))
    }
}

pub(super) fn number(t: ElemType) -> Res<()> {
    if t == ElemType::Str || t.is_complex() { msg(format!("elements of type {t}")) } else { Ok(()) }
}

fn compute(t: ElemType) -> Res<()> {
    number(t)?;
    if t.compute() == t { Ok(()) } else { msg(format!("{t} is not a compute type")) }
}
