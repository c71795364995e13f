//! Interpreter: what a module means, statement by statement. The reference for generated code and for folding.
//!
//! Everything is checked: subscripts against shapes, sizes of views and slots, trip counts of `vec` loops, types of
//! operands, scopes. Modules of every stage run. Statements are first compiled to trees in which symbols, registers and
//! accumulators are numbered slots; buffers get their shape when they are first used, because run-time symbols may
//! change it. Scratch and outputs begin with all bits set (NaN for floats), so that reading what was never written
//! shows.
//!
//! A register that a `vec` loop of one vector defines has a value for each lane, and later `vec` loops of as many lanes
//! in the same block read their lane of it.
//!
//! `Fma` rounds once. Functions of f32 are computed in f64 and rounded. [`eval_unop`], [`eval_binop`] and [`eval_cast`]
//! are the same arithmetic on single values.

mod scalar;
mod text;

pub use scalar::{eval_binop, eval_cast, eval_unop, from_storage, to_storage};

use super::*;
use crate::sym::{Atom, View};
use scalar::{bin_f32, bin_f64, f32_of};
use std::collections::HashMap;
use std::fmt;
use text::Texts;

/// What a run left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of the outputs in signature order.
    pub outputs: Vec<Vec<u8>>,
    /// Their dimensions.
    pub dims: Vec<Vec<i64>>,
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The module left with a status: what generated code returns.
    Status(Status),
    /// The module breaks a rule of the IR, or the inputs do not fit it.
    Message(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Status(s) => write!(f, "status {s:?}"),
            Stop::Message(m) => f.write_str(m),
        }
    }
}

impl std::error::Error for Stop {}

type Res<T> = std::result::Result<T, Box<Stop>>;

#[cold]
fn msg<T>(m: impl Into<String>) -> Res<T> {
    Err(Box::new(Stop::Message(m.into())))
}

#[cold]
fn leave<T>(s: Status) -> Res<T> {
    Err(Box::new(Stop::Status(s)))
}

/// Runs the driver of a module with values for its dim params and the bytes of its inputs, in signature order.
pub fn run(m: &Module, dims: &[(Sym, i64)], inputs: &[&[u8]]) -> std::result::Result<Outcome, Stop> {
    run_boxed(m, dims, inputs).map_err(|e| *e)
}

fn run_boxed(m: &Module, dims: &[(Sym, i64)], inputs: &[&[u8]]) -> Res<Outcome> {
    let n = m.syms.len();
    let mut st = State {
        m,
        inputs,
        vars: vec![0; n],
        set: vec![false; n],
        regs: vec![0; m.regs.len()],
        cells: vec![],
        lanes: vec![],
        shapes: (0..m.bufs.len()).map(|_| None).collect(),
        mem: (0..=m.bufs.len()).map(|_| Region::Unused).collect(),
        texts: Texts::default(),
    };
    let bound = m.syms.iter().filter_map(|s| Some((s, m.syms.bound_value(s)?)));
    for (s, v) in bound.chain(dims.iter().copied()) {
        let i = s.0 as usize;
        if i >= n {
            return msg(format!("there is no symbol s{i}"));
        }
        if m.syms.kind(s) != crate::sym::SymKind::Loop && !m.syms.declared_range(s).contains(v) {
            return leave(Status::Dim);
        }
        (st.vars[i], st.set[i]) = (v, true);
    }
    if let Some(s) = m.dim_params.iter().find(|s| !st.set.get(s.0 as usize).copied().unwrap_or(false)) {
        return msg(format!("dim param s{} has no value", s.0));
    }
    if inputs.len() != m.inputs.len() {
        return msg(format!("found {} inputs, expected {}", inputs.len(), m.inputs.len()));
    }
    for b in &m.inputs {
        st.resolve(b.as_u32() as usize)?;
    }
    let mut c = Compiler {
        m,
        syms: st.set.clone(),
        regs: vec![Def::None; m.regs.len()],
        undo: vec![],
        cells: 0,
        vecs: vec![],
        depth: 0,
        kernels: (0..m.kernels.len()).map(|_| None).collect(),
        in_kernel: false,
    };
    let driver = c.block(&m.driver)?;
    st.cells = vec![0; c.cells];
    st.lanes = vec![0; c.depth];
    st.block(&driver, &c.kernels)?;
    let mut out = Outcome { outputs: vec![], dims: vec![] };
    for b in &m.outputs {
        let s = st.shape(b.as_u32() as usize)?;
        let (region, base, len, dims) = (s.region, s.base, s.len, s.dims.clone());
        if m.bufs[*b].ty == ElemType::Str {
            out.outputs.push(st.encoded(region, base, len / onnxc_runtime::texts::SIZE)?);
            out.dims.push(dims);
            continue;
        }
        match st.mem[region].bytes().get(base..base + len) {
            Some(bytes) => out.outputs.push(bytes.to_vec()),
            None => return msg(format!("output {b} is not in memory")),
        }
        out.dims.push(dims);
    }
    Ok(out)
}

// ---- Code ----

/// An index expression with numbered symbols.
enum Ix {
    Const(i64),
    Sym(usize),
    /// `c + sum(k * sym)`.
    Affine(i64, Box<[(i64, usize)]>),
    Poly(i64, Box<[(i64, Box<[Factor]>)]>),
    Overflow,
}

enum Factor {
    Sym(usize),
    Div(Ix, Ix),
    Mod(Ix, Ix),
    Min(Box<[Ix]>),
    Max(Box<[Ix]>),
}

impl Ix {
    /// `None` on overflow and division by zero.
    #[inline]
    fn eval(&self, vars: &[i64]) -> Option<i64> {
        match self {
            Ix::Const(c) => Some(*c),
            Ix::Sym(s) => vars.get(*s).copied(),
            Ix::Affine(c, terms) => {
                let mut sum = *c;
                for (k, s) in terms {
                    sum = sum.checked_add(k.checked_mul(*vars.get(*s)?)?)?;
                }
                Some(sum)
            }
            Ix::Poly(c, terms) => {
                let mut sum = *c;
                for (k, factors) in terms {
                    let mut p = *k;
                    for f in factors {
                        p = p.checked_mul(f.eval(vars)?)?;
                    }
                    sum = sum.checked_add(p)?;
                }
                Some(sum)
            }
            Ix::Overflow => None,
        }
    }
}

impl Factor {
    fn eval(&self, vars: &[i64]) -> Option<i64> {
        match self {
            Factor::Sym(s) => vars.get(*s).copied(),
            Factor::Div(a, b) => {
                let (a, b) = (a.eval(vars)?, b.eval(vars)?);
                let q = a.checked_div(b)?;
                Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
            }
            Factor::Mod(a, b) => {
                let (a, b) = (a.eval(vars)?, b.eval(vars)?);
                let r = a.checked_rem(b)?;
                Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
            }
            Factor::Min(v) => v.iter().try_fold(i64::MAX, |m, x| Some(m.min(x.eval(vars)?))),
            Factor::Max(v) => v.iter().try_fold(i64::MIN, |m, x| Some(m.max(x.eval(vars)?))),
        }
    }
}

struct Access {
    buf: usize,
    ty: ElemType,
    /// From one element to the next.
    bits: u32,
    at: Box<[Ix]>,
}

/// Where an accumulator's value is.
enum Cell {
    Fixed(usize),
    /// Plus the current lane in a lane slot.
    Lane(usize, usize),
    At(Box<CellAt>),
}

struct CellAt {
    base: usize,
    lanes: usize,
    /// Extents and subscripts.
    at: Vec<(u32, Ix)>,
    lane: LaneIx,
}

enum LaneIx {
    Slot(usize),
    At(Ix),
}

/// An expression; values are bits as in [`Scalar`].
enum Node {
    Const(u64),
    Reg(usize),
    Acc(Cell),
    Horizontal { op: BinOp, ty: ElemType, cell: Cell, lanes: usize },
    Index(Ix),
    Load(Box<Access>),
    Un(UnOp, ElemType, Box<Node>),
    Bin32(BinOp, Box<(Node, Node)>),
    Compare32(BinOp, Box<(Node, Node)>),
    Bin(BinOp, ElemType, Box<(Node, Node)>),
    Fma(bool, Box<(Node, Node, Node)>),
    Dot(Box<(Node, Node, Node)>),
    Dot2(Box<(Node, Node, Node)>),
    Select(Box<(Node, Node, Node)>),
    Cast(ElemType, ElemType, Box<Node>),
    LoadText(Box<Access>),
    Text(TextOp, Vec<Node>),
    CompareText(BinOp, Box<(Node, Node)>),
    Let(usize, Box<(Node, Node)>),
    With(usize, Ix, Box<(Node, Node)>),
}

enum Op {
    /// `lane`: slot and number of lanes of a `vec` loop.
    For {
        var: usize,
        lo: Ix,
        hi: Ix,
        lane: Option<(usize, u32)>,
        body: Vec<Op>,
    },
    Let(usize, Node),
    /// A register of a `vec` loop: first cell, lane slot.
    LetLane(usize, usize, Node),
    /// Accumulators begin. `lane`: slot and number of lanes of the `vec` loop around, where each iteration has its own.
    Acc {
        base: usize,
        count: usize,
        lane: Option<(usize, usize)>,
        init: Node,
    },
    /// `sweep`: outside `vec` loops all lanes are set, each from its own values.
    Set {
        cell: Cell,
        value: Node,
        sweep: Option<(usize, u32)>,
    },
    Store(Access, Node),
    StoreText(Access, Node),
    If(Node, Vec<Op>, Vec<Op>),
    While(Node, Vec<Op>),
    With(usize, Node, Ix, Vec<Op>),
    /// `stale`: buffers whose shape depends on the symbol.
    Define {
        sym: usize,
        value: Node,
        lo: Ix,
        hi: Option<Ix>,
        stale: Vec<usize>,
    },
    Check(Node, Status),
    /// A hint.
    Nothing,
    Call(usize),
    Foreign(Foreign),
}

// ---- Statements and expressions -> code ----

#[derive(Clone)]
enum Def {
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

enum Undo {
    Reg(usize, Def),
    Sym(usize, bool),
}

struct Compiler<'a> {
    m: &'a Module,
    /// Symbols in scope.
    syms: Vec<bool>,
    regs: Vec<Def>,
    undo: Vec<Undo>,
    cells: usize,
    /// Lanes of the `vec` loops around; the position is the lane slot.
    vecs: Vec<u32>,
    depth: usize,
    kernels: Vec<Option<Vec<Op>>>,
    in_kernel: bool,
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
    fn block(&mut self, body: &[Stmt]) -> Res<Vec<Op>> {
        body.iter().map(|s| self.stmt(s)).collect()
    }
    fn stmt(&mut self, s: &Stmt) -> Res<Op> {
        Ok(match s {
            Stmt::For { kind, var, lo, hi, body } => {
                // Registers of a loop that is one vector are vectors: later loops of as many lanes read them.
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
                let Some(n) = n.filter(|n| *n > 0 && *n <= 1 << 20) else { return msg(format!("{reg} has {shape:?} accumulators of {lanes} lanes")) };
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
                if ty == ElemType::Str { Op::StoreText(access, v) } else { Op::Store(access, v) }
            }
            Stmt::If { cond, then, els } => {
                let c = self.truth(cond)?;
                Op::If(c, self.scope(then)?, self.scope(els)?)
            }
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
                let moves = |s: Slot| self.m.slots.get(s).is_some_and(|d| d.offset.contains(*sym) || d.size.contains(*sym));
                let depends = |b: Buf| self.m.bufs.get(b).is_some_and(|d| d.dims.iter().any(|d| d.contains(*sym)) || matches!(d.place, Place::Arena(s) if moves(s)));
                let stale = self.m.bufs.keys().filter(|b| depends(*b) || storage(self.m, *b).is_ok_and(depends)).map(|b| b.as_u32() as usize).collect();
                let sym = self.define_sym(*sym)?;
                Op::Define { sym, value: v, lo, hi, stale }
            }
            Stmt::Prefetch { .. } => Op::Nothing,
            Stmt::Check { cond, status } => Op::Check(self.truth(cond)?, *status),
            Stmt::Foreign(f) => Op::Foreign(*f),
            Stmt::Call(k) => {
                if self.in_kernel {
                    return msg("a call inside a kernel");
                }
                let i = k.as_u32() as usize;
                let Some(data) = self.m.kernels.get(*k) else { return msg(format!("there is no kernel {k}")) };
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
            return msg(format!("{buf} \"{}\" of rank {} is indexed with {} subscripts", d.name, d.dims.len(), at.len()));
        }
        if d.ty != ElemType::Str {
            number(d.ty)?;
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
    /// The place of an accumulator, its type and its lanes.
    fn cell(&mut self, reg: Reg, at: &[Dim], lane: Option<Dim>) -> Res<(Cell, ElemType, u32)> {
        let (Some(data), Def::Acc { base, lanes, shape }) = (self.m.regs.get(reg), self.def(reg)) else { return msg(format!("{reg} is not an accumulator here")) };
        if shape.len() != at.len() {
            return msg(format!("{reg} of shape {shape:?} is indexed with {} subscripts", at.len()));
        }
        let lane = match lane {
            Some(d) => LaneIx::At(self.ix(d)?),
            None if lanes == 1 => LaneIx::At(Ix::Const(0)),
            None => match self.vecs.iter().rposition(|n| *n == lanes) {
                Some(slot) => LaneIx::Slot(slot),
                None => return msg(format!("{reg} with {lanes} lanes is used outside a vector loop of as many")),
            },
        };
        let at = shape.iter().zip(at).map(|(n, d)| Ok((*n, self.ix(*d)?))).collect::<Res<Vec<_>>>()?;
        let flat = at.iter().try_fold(0usize, |i, (n, x)| match x {
            Ix::Const(c) if (0..i64::from(*n)).contains(c) => Some(i * *n as usize + *c as usize),
            _ => None,
        });
        let cell = match (flat, lane) {
            (Some(i), LaneIx::At(Ix::Const(l))) if (0..i64::from(lanes)).contains(&l) => Cell::Fixed(base + i * lanes as usize + l as usize),
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
                (if ty == ElemType::Str { Node::LoadText(Box::new(a)) } else { Node::Load(Box::new(a)) }, ty)
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
            Expr::Bin(op, a, b) => {
                let ((a, ty), (b, tb)) = (self.expr(a)?, self.expr(b)?);
                same(tb, ty, "the second operand")?;
                let both = Box::new((a, b));
                match (ty, op.is_comparison()) {
                    (ElemType::Str, true) => (Node::CompareText(*op, both), ElemType::Bool),
                    (ElemType::Str, false) => return msg(format!("{op:?} of texts")),
                    (ElemType::F32, true) => (Node::Compare32(*op, both), ElemType::Bool),
                    (ElemType::F32, false) if bin_f32(*op, 1.0, 1.0).is_none() => return msg(format!("{op:?} of floats")),
                    (ElemType::F64, false) if bin_f64(*op, 1.0, 1.0).is_none() => return msg(format!("{op:?} of floats")),
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
            Expr::Dot(a, b, c) => {
                let ((a, ta), (b, tb), (c, tc)) = (self.expr(a)?, self.expr(b)?, self.expr(c)?);
                for t in [ta, tb] {
                    same(t, ElemType::I32, "a factor of a dot product")?;
                }
                if tc == ElemType::F32 {
                    return Ok((Node::Dot2(Box::new((a, b, c))), tc));
                }
                same(tc, ElemType::I32, "the sum of dot4")?;
                (Node::Dot(Box::new((a, b, c))), tc)
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
                    TextOp::Of(b) if self.m.bufs.get(*b).is_some_and(|d| d.ty == ElemType::U8) => (ElemType::Str, &[]),
                    TextOp::Of(b) => return msg(format!("{b} as a text")),
                };
                let (nodes, types): (Vec<Node>, Vec<ElemType>) = v.iter().map(|e| self.expr(e)).collect::<Res<Vec<_>>>()?.into_iter().unzip();
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
        let View::Sum { terms, constant } = d.view() else { return Ok(d.as_const().map_or(Ix::Overflow, Ix::Const)) };
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
            return Ok(Ix::Affine(constant, v.into_iter().map(|(k, s)| Ok((k, self.sym(s)?))).collect::<Res<_>>()?));
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
        let terms = terms.iter().map(|(k, atoms)| Ok((*k, atoms.iter().map(factor).collect::<Res<_>>()?))).collect::<Res<_>>()?;
        Ok(Ix::Poly(constant, terms))
    }
}

fn in_kernel(name: &str, e: Box<Stop>) -> Box<Stop> {
    match *e {
        Stop::Message(m) => Box::new(Stop::Message(format!("kernel \"{name}\": {m}"))),
        _ => e,
    }
}

fn same(found: ElemType, expected: ElemType, what: &str) -> Res<()> {
    if found == expected { Ok(()) } else { msg(format!("{what} is {}, expected {}", found.short(), expected.short())) }
}

fn integer(t: ElemType, what: &str) -> Res<()> {
    if t.is_int() || t == ElemType::Bool { Ok(()) } else { msg(format!("{what} is {}, expected an integer", t.short())) }
}

fn number(t: ElemType) -> Res<()> {
    if matches!(t, ElemType::Str | ElemType::C64 | ElemType::C128) { msg(format!("elements of type {t}")) } else { Ok(()) }
}

fn compute(t: ElemType) -> Res<()> {
    number(t)?;
    if t.compute() == t { Ok(()) } else { msg(format!("{t} is not a compute type")) }
}

/// True if elements lie in row-major order, whatever the layout says about dimensions of size 1.
fn dense_in_order(dims: &[i64], strides: &[i64]) -> bool {
    let mut step = 1i64;
    dims.iter().zip(strides).rev().all(|(n, s)| {
        let ok = *n <= 1 || *s == step;
        step = step.saturating_mul((*n).max(1));
        ok
    })
}

/// The buffer that owns the memory.
fn storage(m: &Module, b: Buf) -> Res<Buf> {
    let mut s = b;
    for _ in 0..=m.bufs.len() {
        match m.bufs.get(s).map(|d| &d.place) {
            Some(Place::View(of)) => s = *of,
            Some(_) => return Ok(s),
            None => return msg(format!("there is no buffer {s}")),
        }
    }
    msg(format!("{b} is a view of itself"))
}

// ---- Running ----

enum Region<'a> {
    Unused,
    Input(&'a [u8]),
    Const(bytes::Bytes),
    Own(Vec<u8>),
}

impl Region<'_> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Region::Unused => &[],
            Region::Input(b) => b,
            Region::Const(b) => b,
            Region::Own(b) => b,
        }
    }
    /// As a writable region of at least `len` bytes.
    fn grow(&mut self, len: usize) {
        match self {
            Region::Own(v) if v.len() >= len => {}
            Region::Own(v) => v.resize(len, 0xff),
            r => *r = Region::Own(vec![0xff; len]),
        }
    }
}

/// A buffer's shape and place under the current values of symbols.
struct Shape {
    dims: Vec<i64>,
    strides: Vec<i64>,
    region: usize,
    /// First byte, and how many.
    base: usize,
    len: usize,
}

struct State<'a> {
    m: &'a Module,
    inputs: &'a [&'a [u8]],
    vars: Vec<i64>,
    /// Symbols that have a value, loop variables aside.
    set: Vec<bool>,
    regs: Vec<u64>,
    cells: Vec<u64>,
    lanes: Vec<u32>,
    shapes: Vec<Option<Shape>>,
    /// One region for each buffer that owns memory; the last one is the workspace.
    mem: Vec<Region<'a>>,
    texts: Texts,
}

impl State<'_> {
    fn dim(&self, d: Dim, what: &str) -> Res<i64> {
        let value = |s: Sym| self.set.get(s.0 as usize).copied().unwrap_or(false).then(|| self.vars[s.0 as usize]);
        match d.eval(&value) {
            Some(v) => Ok(v),
            None => msg(format!("{what} is {}, which has no value", d.display(&self.m.syms))),
        }
    }
    fn shape(&mut self, b: usize) -> Res<&Shape> {
        if self.shapes.get(b).is_none_or(Option::is_none) {
            self.resolve(b)?;
        }
        match self.shapes.get(b) {
            Some(Some(s)) => Ok(s),
            _ => msg("a buffer without a shape"),
        }
    }
    /// Dimensions, strides and bytes.
    fn geometry(&self, b: Buf) -> Res<(Vec<i64>, Vec<i64>, usize)> {
        let Some(d) = self.m.bufs.get(b) else { return msg(format!("there is no buffer {b}")) };
        let what = format!("a dimension of {b} \"{}\"", d.name);
        let dims = d.dims.iter().map(|x| self.dim(*x, &what)).collect::<Res<Vec<i64>>>()?;
        let bits = u64::from(self.m.element_bits(b));
        let len = crate::tensor::count(&dims).and_then(|n| n.checked_mul(bits)).map(|n| n.div_ceil(8)).filter(|n| *n <= i64::MAX as u64 / 16);
        let Some(len) = len.and_then(|n| usize::try_from(n).ok()) else { return msg(format!("{b} \"{}\" has dimensions {dims:?}", d.name)) };
        let order: Vec<usize> = match &d.layout {
            Layout::RowMajor => (0..dims.len()).collect(),
            Layout::Permuted(p) => {
                let mut sorted = p.clone();
                sorted.sort_unstable();
                if !sorted.iter().copied().eq(0..dims.len()) {
                    return msg(format!("{b} \"{}\" of rank {} has layout {p:?}", d.name, dims.len()));
                }
                p.clone()
            }
        };
        let mut strides = vec![0; dims.len()];
        let mut step = 1i64;
        for i in order.into_iter().rev() {
            strides[i] = step;
            step = step.saturating_mul(dims[i].max(1));
        }
        Ok((dims, strides, len))
    }
    /// Finds a buffer's shape and memory.
    fn resolve(&mut self, b: usize) -> Res<()> {
        let buf = Buf::from_u32(b as u32);
        let (dims, strides, len) = self.geometry(buf)?;
        let own = storage(self.m, buf)?;
        let o = &self.m.bufs[own];
        if own != buf {
            let (own_dims, own_strides, n) = self.geometry(own)?;
            if n != len {
                return msg(format!("{buf} of {len} bytes is a view of {own} \"{}\" of {n} bytes", o.name));
            }
            if !dense_in_order(&own_dims, &own_strides) && o.layout != self.m.bufs[buf].layout {
                return msg(format!("{buf} is a view of {own} \"{}\", which is not row-major", o.name));
            }
        }
        let mut region = own.as_u32() as usize;
        let mut base = 0;
        match &o.place {
            Place::Input(i) => match self.inputs.get(*i as usize) {
                Some(x) if x.len() == len || o.ty == ElemType::Str && x.len() >= len => self.mem[region] = Region::Input(x),
                Some(x) => return msg(format!("input {i} \"{}\" of dimensions {dims:?}: found {} bytes, expected {len}", o.name, x.len())),
                None => return msg(format!("there is no input {i}")),
            },
            Place::Const(c) => {
                if matches!(self.mem[region], Region::Unused) {
                    self.mem[region] = Region::Const(c.bytes());
                }
                let found = self.mem[region].bytes().len();
                if found != len && !(o.ty == ElemType::Str && found >= len) {
                    return msg(format!("constant {own} \"{}\" of dimensions {dims:?}: found {} bytes, expected {len}", o.name, self.mem[region].bytes().len()));
                }
            }
            Place::Output(_) | Place::Temp => {
                self.mem[region].grow(len);
            }
            Place::Arena(s) => {
                let Some(slot) = self.m.slots.get(*s) else { return msg(format!("there is no slot {s}")) };
                let (at, size) = (self.dim(slot.offset, "a slot's offset")?, self.dim(slot.size, "a slot's size")?);
                let all = self.dim(self.m.workspace, "the workspace")?;
                let fits = at >= 0 && size >= len as i64 && at.checked_add(size).is_some_and(|end| end <= all);
                if !fits {
                    return msg(format!("{own} \"{}\" of {len} bytes is in {s} of {size} bytes at {at} of a workspace of {all}", o.name));
                }
                region = self.mem.len() - 1;
                base = at as usize;
                self.mem[region].grow(all as usize);
            }
            Place::Pointer(_) => return msg(format!("{own} \"{}\" is behind an address", o.name)),
            Place::View(_) => return msg(format!("{buf} has no memory")),
        }
        self.shapes[b] = Some(Shape { dims, strides, region, base, len });
        Ok(())
    }
    #[cold]
    fn outside<T>(&self, a: &Access) -> Res<T> {
        let at: Vec<String> = a.at.iter().map(|x| x.eval(&self.vars).map_or("overflow".to_owned(), |v| v.to_string())).collect();
        let dims = self.shapes.get(a.buf).and_then(Option::as_ref).map(|s| s.dims.clone()).unwrap_or_default();
        let b = Buf::from_u32(a.buf as u32);
        let name = self.m.bufs.get(b).map_or("", |d| &d.name);
        msg(format!("{b} \"{name}\" is accessed at [{}], its dimensions are {dims:?}", at.join(", ")))
    }
    /// Region, first byte and element number of an access.
    #[inline]
    fn locate(&mut self, a: &Access) -> Res<(usize, usize, usize)> {
        if self.shapes[a.buf].is_none() {
            self.resolve(a.buf)?;
        }
        let Some(s) = &self.shapes[a.buf] else { return msg("a buffer without a shape") };
        let mut offset = 0i64;
        for ((x, n), step) in a.at.iter().zip(&s.dims).zip(&s.strides) {
            match x.eval(&self.vars) {
                Some(i) if (i as u64) < *n as u64 => offset += i * step,
                _ => return self.outside(a),
            }
        }
        Ok((s.region, s.base, offset as usize))
    }
    #[inline]
    fn load(&mut self, a: &Access) -> Res<u64> {
        let (region, base, i) = self.locate(a)?;
        let bytes = self.mem[region].bytes();
        if a.ty == ElemType::F32 {
            return match bytes.get(base + i * 4..).and_then(|b| b.first_chunk()) {
                Some(b) => Ok(u64::from(u32::from_le_bytes(*b))),
                None => self.outside(a),
            };
        }
        let bits = a.bits as usize;
        let at = base + i * bits / 8;
        let raw = match bits {
            64 => bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u64::from_le_bytes(*b)),
            32 => bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u64::from(u32::from_le_bytes(*b))),
            16 => bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u64::from(u16::from_le_bytes(*b))),
            8 => bytes.get(at).map(|b| u64::from(*b)),
            _ => bytes.get(at).map(|b| u64::from(*b) >> (i * bits % 8) & ((1 << bits) - 1)),
        };
        match raw {
            Some(raw) => Ok(from_storage(a.ty, raw).bits),
            None => self.outside(a),
        }
    }
    fn store(&mut self, a: &Access, v: u64) -> Res<()> {
        let (region, base, i) = self.locate(a)?;
        let raw = if a.ty == ElemType::F32 { v } else { to_storage(a.ty, Scalar { ty: a.ty.compute(), bits: v }) };
        let bits = a.bits as usize;
        let at = base + i * bits / 8;
        let Region::Own(bytes) = &mut self.mem[region] else {
            return msg(format!("a store to \"{}\", which is read-only", self.m.bufs[Buf::from_u32(a.buf as u32)].name));
        };
        let le = raw.to_le_bytes();
        if bits >= 8 {
            if let Some(to) = bytes.get_mut(at..at + bits / 8) {
                to.copy_from_slice(&le[..bits / 8]);
                return Ok(());
            }
        } else if let Some(to) = bytes.get_mut(at) {
            let (shift, mask) = (i * bits % 8, (1u8 << bits) - 1);
            *to = *to & !(mask << shift) | (le[0] & mask) << shift;
            return Ok(());
        }
        self.outside(a)
    }
    fn foreign(&mut self, f: &Foreign) -> Res<()> {
        let place = |s: &Shape| (s.region, s.base, s.base + s.len, s.dims.clone());
        let (region, first, end, _) = place(self.shape(f.from.as_u32() as usize)?);
        let from = self.mem[region].bytes().get(first..end).unwrap_or(&[]).to_vec();
        let (region, first, end, dims) = place(self.shape(f.to.as_u32() as usize)?);
        let Some(data) = f.function.run(&from, &dims) else { return leave(Status::Value) };
        match &mut self.mem[region] {
            Region::Own(bytes) if data.len() == end - first && end <= bytes.len() => bytes[first..end].copy_from_slice(&data),
            _ => return msg(format!("{} has no room for its result", f.function.name())),
        }
        Ok(())
    }
    #[inline]
    fn index(&self, x: &Ix) -> Res<i64> {
        match x.eval(&self.vars) {
            Some(v) => Ok(v),
            None => msg("an index expression overflows or divides by zero"),
        }
    }
    #[inline]
    fn cell(&self, c: &Cell) -> Res<usize> {
        match c {
            Cell::Fixed(i) => Ok(*i),
            Cell::Lane(i, slot) => Ok(i + self.lanes[*slot] as usize),
            Cell::At(c) => {
                let mut flat = 0;
                for (n, x) in &c.at {
                    let i = self.index(x)?;
                    if !(0..i64::from(*n)).contains(&i) {
                        return msg(format!("accumulator subscript {i} of {n}"));
                    }
                    flat = flat * *n as usize + i as usize;
                }
                let lane = match &c.lane {
                    LaneIx::Slot(s) => i64::from(self.lanes[*s]),
                    LaneIx::At(x) => self.index(x)?,
                };
                if !(0..c.lanes as i64).contains(&lane) {
                    return msg(format!("lane {lane} of {}", c.lanes));
                }
                Ok(c.base + flat * c.lanes + lane as usize)
            }
        }
    }
    fn block(&mut self, ops: &[Op], kernels: &[Option<Vec<Op>>]) -> Res<()> {
        for op in ops {
            match op {
                Op::For { var, lo, hi, lane, body } => {
                    let (lo, hi) = (self.index(lo)?, self.index(hi)?);
                    for i in lo..hi {
                        self.vars[*var] = i;
                        if let Some((slot, n)) = lane {
                            self.lanes[*slot] = (i.wrapping_sub(lo) as u64 % u64::from(*n)) as u32;
                        }
                        self.block(body, kernels)?;
                    }
                }
                Op::Let(r, e) => self.regs[*r] = self.eval(e)?,
                Op::LetLane(base, slot, e) => {
                    let v = self.eval(e)?;
                    self.cells[base + self.lanes[*slot] as usize] = v;
                }
                Op::Acc { base, count, lane, init } => {
                    let v = self.eval(init)?;
                    let cells = &mut self.cells[*base..base + count];
                    match lane {
                        Some((slot, n)) => cells.iter_mut().skip(self.lanes[*slot] as usize).step_by(*n).for_each(|c| *c = v),
                        None => cells.fill(v),
                    }
                }
                Op::Set { cell, value, sweep: None } => {
                    let v = self.eval(value)?;
                    let i = self.cell(cell)?;
                    self.cells[i] = v;
                }
                Op::Set { cell, value, sweep: Some((slot, n)) } => {
                    for l in 0..*n {
                        self.lanes[*slot] = l;
                        let v = self.eval(value)?;
                        let i = self.cell(cell)?;
                        self.cells[i] = v;
                    }
                }
                Op::Store(a, e) => {
                    let v = self.eval(e)?;
                    self.store(a, v)?;
                }
                Op::StoreText(a, e) => {
                    let v = self.eval(e)?;
                    self.store_text(a, v)?;
                }
                Op::If(c, then, els) => {
                    let c = self.eval(c)?;
                    self.block(if c != 0 { then } else { els }, kernels)?;
                }
                Op::While(c, body) => {
                    while self.eval(c)? != 0 {
                        self.block(body, kernels)?;
                    }
                }
                Op::With(s, v, extent, body) => {
                    let v = self.eval(v)? as i64;
                    if v < 0 || v >= self.index(extent)? {
                        return leave(Status::Index);
                    }
                    let outer = std::mem::replace(&mut self.vars[*s], v);
                    self.block(body, kernels)?;
                    self.vars[*s] = outer;
                }
                Op::Define { sym, value, lo, hi, stale } => {
                    let v = self.eval(value)? as i64;
                    let hi = hi.as_ref().map(|x| self.index(x)).transpose()?;
                    if v < self.index(lo)? || hi.is_some_and(|h| v > h) {
                        return leave(Status::Dim);
                    }
                    (self.vars[*sym], self.set[*sym]) = (v, true);
                    stale.iter().for_each(|b| self.shapes[*b] = None);
                }
                Op::Nothing => {}
                Op::Check(c, status) => {
                    if self.eval(c)? == 0 {
                        return leave(*status);
                    }
                }
                Op::Foreign(f) => self.foreign(f)?,
                Op::Call(k) => {
                    let Some(body) = &kernels[*k] else { return msg("a kernel without code") };
                    self.block(body, kernels).map_err(|e| in_kernel(&self.m.kernels[Kernel::from_u32(*k as u32)].name, e))?;
                }
            }
        }
        Ok(())
    }
    fn eval(&mut self, e: &Node) -> Res<u64> {
        Ok(match e {
            Node::Const(c) => *c,
            Node::Reg(r) => self.regs[*r],
            Node::Acc(c) => self.cells[self.cell(c)?],
            Node::Load(a) => return self.load(a),
            Node::LoadText(a) => return self.load_text(a),
            Node::Text(op, v) => return self.text_op(*op, v),
            Node::CompareText(op, p) => {
                let (a, b) = (self.eval(&p.0)?, self.eval(&p.1)?);
                u64::from(self.compare_texts(*op, a, b)?)
            }
            Node::Bin32(op, p) => {
                let (a, b) = (f32_of(self.eval(&p.0)?), f32_of(self.eval(&p.1)?));
                match bin_f32(*op, a, b) {
                    Some(v) => u64::from(v.to_bits()),
                    None => return msg(format!("{op:?} of floats")),
                }
            }
            Node::Fma(single, p) => {
                let (a, b, c) = (self.eval(&p.0)?, self.eval(&p.1)?, self.eval(&p.2)?);
                if *single { u64::from(f32_of(a).mul_add(f32_of(b), f32_of(c)).to_bits()) } else { f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits() }
            }
            Node::Dot(p) => {
                let (a, b, c) = (self.eval(&p.0)?, self.eval(&p.1)?, self.eval(&p.2)?);
                let products = (a as u32).to_le_bytes().into_iter().zip((b as u32).to_le_bytes()).map(|(x, y)| i32::from(x) * i32::from(y as i8));
                u64::from(products.fold(c as i32, i32::wrapping_add) as u32)
            }
            Node::Dot2(p) => {
                let (a, b, c) = (self.eval(&p.0)?, self.eval(&p.1)?, self.eval(&p.2)?);
                let half = |pair: u64, upper: bool| f32::from_bits(if upper { pair as u32 & 0xffff_0000 } else { (pair as u32) << 16 });
                let sum = half(a, true).mul_add(half(b, true), f32_of(c));
                u64::from(half(a, false).mul_add(half(b, false), sum).to_bits())
            }
            Node::Index(x) => self.index(x)? as u64,
            Node::Compare32(op, p) => {
                let (a, b) = (f32_of(self.eval(&p.0)?), f32_of(self.eval(&p.1)?));
                u64::from(op.holds(a, b))
            }
            Node::Un(op, ty, a) => {
                let bits = self.eval(a)?;
                eval_unop(*op, Scalar { ty: *ty, bits }).bits
            }
            Node::Bin(op, ty, p) => {
                let (a, b) = (self.eval(&p.0)?, self.eval(&p.1)?);
                self.binary(*op, *ty, a, b)?
            }
            Node::Select(p) => {
                let c = self.eval(&p.0)?;
                return self.eval(if c != 0 { &p.1 } else { &p.2 });
            }
            Node::Cast(from, to, a) => {
                let bits = self.eval(a)?;
                eval_cast(*to, Scalar { ty: *from, bits }).bits
            }
            Node::Let(r, p) => {
                let v = self.eval(&p.0)?;
                let outer = std::mem::replace(&mut self.regs[*r], v);
                let v = self.eval(&p.1)?;
                self.regs[*r] = outer;
                v
            }
            Node::With(s, extent, p) => {
                let v = self.eval(&p.0)? as i64;
                if v < 0 || v >= self.index(extent)? {
                    return leave(Status::Index);
                }
                let outer = std::mem::replace(&mut self.vars[*s], v);
                let v = self.eval(&p.1)?;
                self.vars[*s] = outer;
                v
            }
            Node::Horizontal { op, ty, cell, lanes } => {
                let i = self.cell(cell)?;
                let mut v = self.cells[i..i + lanes].to_vec();
                // Halves onto each other while there are two.
                while v.len() > 1 {
                    let keep = if v.len().is_multiple_of(2) { v.len() / 2 } else { 1 };
                    for (k, x) in v.split_off(keep).into_iter().enumerate() {
                        v[k % keep] = self.binary(*op, *ty, v[k % keep], x)?;
                    }
                }
                v.first().copied().unwrap_or(0)
            }
        })
    }
    fn binary(&self, op: BinOp, ty: ElemType, a: u64, b: u64) -> Res<u64> {
        match eval_binop(op, Scalar { ty, bits: a }, Scalar { ty, bits: b }) {
            Some(v) => Ok(v.bits),
            None if matches!(op, BinOp::Div | BinOp::Rem | BinOp::Mod) && b == 0 => leave(Status::Value),
            None => msg(format!("{op:?} of {}", ty.short())),
        }
    }
}
