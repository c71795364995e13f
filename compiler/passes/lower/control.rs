//! Lowering of If, Loop and Scan to branches and loops of the driver.
//!
//! Results of branches and loop-carried values have a buffer outside the body. If their sizes are known only
//! inside, the buffer has separate size symbols, which the body redefines before it copies its result there.
//! The redefinition moves the memory and loses its contents (`passes/nest/memory/place_memory/dynamic`).
//! Inside a body, a carried value is therefore viewed with sizes that are defined once, at the start of the
//! body; so is a result after the operator.

mod branch;

use super::append_buffers::{Chain, GrowableBuffer, Next};
use super::collect::Collected;
use super::{Frame, Lower, explain, insert_checks};
use crate::diag::{Failure, Origin, Result};
use crate::graph::{Graph, Node, Value};
use crate::nest::{BinOp, Buf, Expr, Place, Status, Stmt};
use crate::ops::control::{Control, Scan};
use crate::ops::support::cx::MAX_SIZE;
use crate::ops::{Known, LowerCx};
use crate::passes::graph::control::{axis, is_true, known_truth};
use crate::sym::{Dim, Range, Sym, SymKind};
use crate::tensor::{ElemType, TensorType};
use std::collections::HashSet;

/// A value that lives outside a body and is written in it.
pub(super) struct Held {
    pub buf: Buf,
    /// The size symbols of dimensions that change, which bodies redefine.
    pub sizes: Vec<Option<Sym>>,
    /// The growable buffer of which it is a prefix, if it is appended to.
    pub growable: Option<GrowableBuffer>,
}

/// The iteration of a body.
struct Turn {
    /// Number of the iteration: a buffer, and the symbol that denotes it inside.
    at: Buf,
    it: Sym,
}

pub(super) fn size_symbol(l: &mut Lower, hint: &str) -> Sym {
    l.m.syms.fresh_number(hint, Range::new(0, MAX_SIZE))
}

pub(super) fn define(l: &mut Lower, sym: Sym, value: impl Into<Dim>) {
    let r = l.m.syms.declared_range(sym);
    let stmt = Stmt::Define {
        sym,
        value: Expr::Index(value.into()),
        lo: Dim::constant(r.lo.unwrap_or(i64::MIN)),
        hi: r.hi.map(Dim::constant),
    };
    l.m.driver.push(stmt);
    l.defined.insert(sym);
}

fn scalar(l: &Lower, b: Buf) -> Expr {
    Expr::Load { buf: b, at: vec![Dim::constant(0); l.m.bufs[b].dims.len()] }
}

impl<'a> Lower<'a> {
    pub(super) fn control(&mut self, f: &mut Frame<'a>, n: Node, op: &Control) -> Result<()> {
        match op {
            Control::If { tables } => self.branch(f, n, tables),
            Control::Loop { tables } => self.repeat(f, n, tables),
            Control::Scan(s) => self.scan(f, n, s),
        }
    }
    fn graph(&self, f: &Frame<'a>, n: Node, name: &str) -> Result<&'a Graph> {
        Graph::body(&f.g.nodes[n].subgraphs, name)
            .ok_or_else(|| Failure::bug("lower", format!("no graph {name}")))
    }
    /// The frame of a body, with buffers for the values that it captures as tensors.
    fn enter(&mut self, f: &mut Frame<'a>, sub: &'a Graph) -> Result<Frame<'a>> {
        let mut inner = Frame::new(sub);
        for (o, v) in &sub.captures {
            // Values with known contents are stored where they are needed.
            if matches!(sub.values[*v].known, Known::No) && inner.uses[*v] > 0 {
                inner.bufs[*v] = Some(self.value(f, *o)?);
            }
        }
        Ok(inner)
    }
    /// Collects the statements that `write` adds to the driver as a body, with the checks of the body's
    /// conditions.
    fn body(&mut self, sub: &Graph, write: impl FnOnce(&mut Self) -> Result<()>) -> Result<Vec<Stmt>> {
        let outer = std::mem::take(&mut self.m.driver);
        let known: HashSet<Sym> = self.defined.clone();
        let r = write(self);
        let mut list = std::mem::replace(&mut self.m.driver, outer);
        insert_checks(&mut list, &sub.conditions, &self.m.syms, &known);
        explain(&mut self.m, &sub.conditions);
        self.defined = known;
        r.map(|()| list)
    }
    /// Copies between buffers with equal numbers of elements, in the shape of the second.
    fn move_to(&mut self, from: Buf, to: Buf) {
        let dims = self.m.bufs[to].dims.clone();
        let from = self.m.shaped(from, dims);
        self.copy(from, to);
    }
    /// A buffer for a value of type `t`. Its dimensions in `varies` get size symbols, whose first values are
    /// `first`.
    pub(super) fn hold(&mut self, name: &str, t: &TensorType, varies: &[bool], first: &[Dim]) -> Held {
        let mut dims = t.dims.clone();
        let mut sizes = vec![];
        for d in 0..t.rank() {
            sizes.push(varies[d].then(|| {
                let s = size_symbol(self, &format!("{name}_{d}"));
                dims[d] = s.into();
                s
            }));
        }
        for (s, v) in sizes.iter().zip(first) {
            if let Some(s) = s {
                define(self, *s, *v);
            }
        }
        let buf = self.m.temp(name, t.elem, dims);
        if varies.contains(&true) {
            self.resized.insert(buf);
        }
        Held { buf, sizes, growable: None }
    }
    /// Gives held values the sizes of new ones, all at the same time, and then their contents.
    pub(super) fn renew(&mut self, list: &[(&Held, Next)]) {
        let aside = self.make_room(list);
        for (h, next) in list {
            let dims = match next {
                Next::Value(from) => self.m.bufs[*from].dims.clone(),
                Next::Appended(a) => a.dims.clone(),
            };
            for (s, d) in h.sizes.iter().zip(dims) {
                if let Some(s) = s {
                    define(self, *s, d);
                }
            }
        }
        for (from, room, n) in aside {
            self.copy_part(from, room, Dim::constant(0), n);
        }
        for (h, next) in list {
            match next {
                Next::Value(from) => self.move_to(*from, h.buf),
                Next::Appended(a) => self.append(h, a),
            }
        }
    }
    /// A table without rows gets the number of columns of another one, if that is constant.
    fn with_columns(&mut self, b: Buf, columns: Dim) -> Buf {
        match self.m.bufs[b].dims[..] {
            [len, own] if len.as_const() == Some(0) && own != columns && columns.as_const().is_some() => {
                self.m.view(b, vec![len, columns])
            }
            _ => b,
        }
    }
    /// Makes the contents of `b` the result `v` of a node, under the sizes of `v`, which are defined or
    /// checked.
    fn result(&mut self, f: &mut Frame<'a>, origin: &Origin, v: Value, b: Buf) -> Result<()> {
        let t = self.tensor(f, v)?;
        let have = self.m.bufs[b].dims.clone();
        let mut cx = LowerCx {
            m: &mut self.m,
            origin,
            since: 1,
            inputs: &[],
            known: &[],
            defined: &mut self.defined,
            outputs: vec![],
        };
        for (d, h) in t.dims.iter().zip(&have) {
            if d != h {
                cx.define(*d, Expr::Index(*h));
            }
        }
        let b = self.m.shaped(b, t.dims);
        match f.bufs[v] {
            Some(to) if to != b => self.copy(b, to),
            _ => f.bufs[v] = Some(b),
        }
        Ok(())
    }

    // ---- Loop and Scan ----

    /// Creates the buffers of carried values from their first values. `list`: the value in the body, and the
    /// initial buffer.
    fn carry(&mut self, inner: &Frame<'a>, list: &[(Value, Buf)], chains: &[Chain]) -> Result<Vec<Held>> {
        let mut held = vec![];
        for (k, (v, first)) in list.iter().enumerate() {
            let t = self.tensor(inner, *v)?;
            let have = self.m.bufs[*first].dims.clone();
            let varies: Vec<bool> = (0..t.rank()).map(|d| t.dims[d] != have[d]).collect();
            let mut own = t.clone();
            own.dims.clone_from(&have);
            let name = &inner.g.values[*v].name;
            let grows = chains.get(k).is_some_and(Option::is_some) && varies.contains(&true);
            held.push(if grows {
                self.hold_growable(name, &own, &varies, &have)
            } else {
                self.hold(name, &own, &varies, &have)
            });
        }
        Ok(held)
    }
    fn temp_scalar(&mut self, name: &str, ty: ElemType) -> Buf {
        self.m.temp(name, ty, vec![])
    }
    /// The start of an iteration: defines its number and the sizes of carried values.
    fn begin(&mut self, inner: &mut Frame<'a>, turn: &Turn, held: &[Held], first_in: usize) -> Result<()> {
        let value = scalar(self, turn.at);
        self.m.driver.push(Stmt::Define { sym: turn.it, value, lo: Dim::constant(0), hi: None });
        self.defined.insert(turn.it);
        for (k, h) in held.iter().enumerate() {
            let v = inner.g.inputs[first_in + k];
            let t = self.tensor(inner, v)?;
            for (d, s) in h.sizes.iter().enumerate() {
                if let (Some(s), Some(x)) = (s, t.dims[d].as_sym()) {
                    define(self, x, *s);
                }
            }
            let b = if h.sizes.iter().all(|s| s.is_none()) { h.buf } else { self.m.view(h.buf, t.dims) };
            inner.bufs[v] = Some(b);
        }
        Ok(())
    }
    /// Copies a buffer to memory that is not moved when other sizes are redefined.
    fn settled(&mut self, b: Buf) -> Buf {
        let t = self.m.tensor_type(b);
        let own = self.m.temp(format!("{}.next", self.m.bufs[b].name), t.elem, t.dims);
        self.copy(b, own);
        own
    }
    /// The buffer of a result of a body, which shares no memory with carried values.
    pub(super) fn handed(&mut self, inner: &mut Frame<'a>, v: Value, held: &HashSet<Buf>) -> Result<Buf> {
        let b = self.value(inner, v)?;
        let owner = self.m.storage(b);
        let safe = !held.contains(&owner)
            && !self.resized.contains(&owner)
            && matches!(self.m.bufs[owner].place, Place::Temp | Place::Const(_) | Place::Input(_));
        Ok(if safe { b } else { self.settled(b) })
    }
    /// The end of an iteration: carried and collected values get their next values.
    fn end(
        &mut self,
        inner: &mut Frame<'a>,
        turn: &Turn,
        (held, chains): (&[Held], &[Chain]),
        first: usize,
        collected: &[Collected],
    ) -> Result<()> {
        let owners: HashSet<Buf> = held
            .iter()
            .map(|h| h.buf)
            .chain(collected.iter().map(|c| c.buf))
            .map(|b| self.m.storage(b))
            .collect();
        let mut done: Vec<(&Held, Next)> = vec![];
        for (k, h) in held.iter().enumerate() {
            let v = inner.g.outputs[first + k];
            match chains.get(k) {
                Some(Some(chain)) if h.growable.is_some() => {
                    let next = self.appended(inner, v, chain, &owners)?;
                    done.push((h, next));
                }
                // The value is unchanged.
                Some(Some(_)) => {}
                _ => {
                    let b = self.handed(inner, v, &owners)?;
                    done.push((h, Next::Value(b)));
                }
            }
        }
        for (j, c) in collected.iter().enumerate() {
            let v = inner.g.outputs[first + held.len() + j];
            match &c.growing {
                Some(h) => {
                    let slice = self.handed(inner, v, &owners)?;
                    let next = self.one_slice_more(h, slice, turn.it);
                    done.push((h, next));
                }
                None => {
                    let b = self.value(inner, v)?;
                    self.collect(c, b, turn.it);
                }
            }
        }
        self.renew(&done);
        Ok(())
    }
    /// True if all sizes are known outside the body.
    pub(super) fn known_outside(&self, dims: &[Dim]) -> bool {
        dims.iter().all(|d| {
            d.syms().into_iter().all(|s| self.m.syms.kind(s) != SymKind::Runtime || self.defined.contains(&s))
        })
    }
    fn repeat(&mut self, f: &mut Frame<'a>, n: Node, tables: &[usize]) -> Result<()> {
        let node = &f.g.nodes[n];
        let sub = self.graph(f, n, "body")?;
        let operand = |l: &mut Self, f: &mut Frame<'a>, i: usize| match node.inputs.get(i).copied().flatten()
        {
            Some(v) => l.value(f, v).map(Some),
            None => Ok(None),
        };
        let (limit, start) = (operand(self, f, 0)?, operand(self, f, 1)?);
        let mut inner = self.enter(f, sub)?;
        let carried = sub.inputs.len() - 2;
        let mut first = vec![];
        for k in 0..carried {
            let Some(b) = operand(self, f, 2 + k)? else {
                return Err(Failure::bug("lower", "a carried value is missing"));
            };
            let v = sub.inputs[2 + k];
            let b =
                if tables.contains(&k) { self.with_columns(b, self.tensor(&inner, v)?.dims[1]) } else { b };
            first.push((v, b));
        }
        let (at, go) = (self.temp_scalar("iteration", ElemType::I64), self.temp_scalar("go", ElemType::Bool));
        let it = match &sub.values[sub.inputs[0]].known {
            Known::Dims(d) => d.first().and_then(|d| d.as_sym()),
            _ => None,
        };
        let Some(it) = it else {
            return Err(Failure::bug("lower", "a loop without a number of its iteration"));
        };
        let turn = Turn { at, it };
        self.kernel(node, "start", |k, _| {
            k.store(at, &[], Expr::int(ElemType::I64, 0));
            let truth = start.map_or(Expr::bool(true), |b| scalar_in(k, b));
            k.store(go, &[], truth);
        });
        // The number of iterations is known before the loop if only that ends it.
        let first_cond = node.inputs.get(1).copied().flatten();
        let exact = is_true(sub, sub.outputs[0])
            && first_cond.is_none_or(|v| known_truth(&f.g.values[v].known) == Some(true));
        let scans: Vec<Value> = sub.outputs[1 + carried..].to_vec();
        let counted = limit.filter(|_| exact && !scans.is_empty());
        let count = counted.map(|b| self.trips(f, n, b, carried));
        let mut collected = vec![];
        let chains = self.chains(&mut inner, &first, tables)?;
        let held = self.carry(&inner, &first, &chains)?;
        for (j, v) in scans.iter().enumerate() {
            let t = self.tensor(&inner, *v)?;
            let to = node.outputs.get(carried + j).copied().flatten().and_then(|v| f.bufs[v]);
            collected.push(self.collector(to, &t, &sub.values[*v].name, count, (0, false))?);
        }
        for (h, (_, b)) in held.iter().zip(&first) {
            self.move_to(*b, h.buf);
        }
        let body = self.body(sub, |l| {
            l.begin(&mut inner, &turn, &held, 2)?;
            l.nodes(&mut inner)?;
            let more = l.value(&mut inner, sub.outputs[0])?;
            // Before carried values change, because the condition may be one of them.
            l.kernel(node, "step", |k, _| {
                k.store(at, &[], Expr::Load { buf: at, at: vec![] } + Expr::int(ElemType::I64, 1));
                let truth = scalar_in(k, more);
                k.store(go, &[], truth);
            });
            l.end(&mut inner, &turn, (&held, &chains), 1, &collected)
        })?;
        let mut cond = scalar(self, go);
        if let Some(b) = limit {
            cond = cond.and(Expr::bin(BinOp::Lt, scalar(self, at), scalar(self, b)));
        }
        self.m.driver.push(Stmt::While { cond, body });
        self.results(f, n, &held, &collected)
    }
    /// The number of iterations of a loop that ends after `limit` ones, a dimension of its first collected
    /// result, which follows `carried` others.
    fn trips(&mut self, f: &Frame<'a>, n: Node, limit: Buf, carried: usize) -> Dim {
        let node = &f.g.nodes[n];
        let result = node.outputs.get(carried).copied().flatten();
        let declared = result
            .and_then(|v| self.tensor(f, v).ok().map(|t| t.dims[0]))
            .filter(|d| self.known_outside(&[*d]));
        let known = node.inputs[0].is_some_and(|v| !matches!(f.g.values[v].known, Known::No));
        if let Some(d) = declared.filter(|_| known) {
            return d;
        }
        let s = size_symbol(self, "trips");
        let value = scalar(self, limit).max(Expr::int(ElemType::I64, 0));
        let hi = Some(Dim::constant(MAX_SIZE));
        self.m.driver.push(Stmt::Define { sym: s, value, lo: Dim::constant(0), hi });
        self.defined.insert(s);
        // A declared number is checked, and then assumed.
        if let Some(d) = declared {
            let cond = Expr::cmp_index(BinOp::Eq, d, s);
            self.m.driver.push(Stmt::Check { cond, status: Status::Value });
        }
        declared.unwrap_or(s.into())
    }
    fn results(&mut self, f: &mut Frame<'a>, n: Node, held: &[Held], collected: &[Collected]) -> Result<()> {
        let node = &f.g.nodes[n];
        let bufs = held.iter().map(|h| h.buf).chain(collected.iter().map(|c| c.buf));
        for (v, b) in node.outputs.iter().zip(bufs) {
            if let Some(v) = v.filter(|v| f.uses[*v] > 0) {
                self.result(f, &node.origin, v, b)?;
            }
        }
        Ok(())
    }
    fn kernel(
        &mut self,
        node: &crate::graph::NodeData,
        what: &str,
        write: impl FnOnce(&mut crate::nest::KernelBuilder, &()),
    ) {
        let name = format!("{}.{what}", node.origin.op);
        self.m.kernel(&name, &node.origin, |k| write(k, &()));
    }
    fn scan(&mut self, f: &mut Frame<'a>, n: Node, s: &Scan) -> Result<()> {
        let node = &f.g.nodes[n];
        let sub = self.graph(f, n, "body")?;
        let mut operands = vec![];
        for v in &node.inputs {
            let Some(v) = v else { return Err(Failure::bug("lower", "an operand of Scan is missing")) };
            operands.push(self.value(f, *v)?);
        }
        let mut inner = self.enter(f, sub)?;
        let carried = operands.len() - s.n_scanned;
        let first: Vec<(Value, Buf)> = (0..carried).map(|k| (sub.inputs[k], operands[k])).collect();
        let axes: Option<Vec<usize>> = operands[carried..]
            .iter()
            .enumerate()
            .map(|(j, b)| axis(s.input_axes.get(j).copied().unwrap_or(0), self.m.bufs[*b].dims.len()))
            .collect();
        let (Some(axes), Some(b0)) = (axes, operands.get(carried)) else {
            return Err(Failure::bug("lower", "an axis of Scan changed"));
        };
        let count = self.m.bufs[*b0].dims[axes[0]];
        let at = self.temp_scalar("iteration", ElemType::I64);
        let it = self.m.syms.fresh_number("iteration", Range::at_least(0));
        let turn = Turn { at, it };
        self.kernel(node, "start", |k, _| k.store(at, &[], Expr::int(ElemType::I64, 0)));
        let held = self.carry(&inner, &first, &[])?;
        let mut collected = vec![];
        for (j, v) in sub.outputs[carried..].iter().enumerate() {
            let t = self.tensor(&inner, *v)?;
            let to = node.outputs.get(carried + j).copied().flatten().and_then(|v| f.bufs[v]);
            let Some(a) = axis(s.output_axes.get(j).copied().unwrap_or(0), t.rank() + 1) else {
                return Err(Failure::bug("lower", "an axis of Scan changed"));
            };
            let reversed = s.output_reversed.get(j).copied().unwrap_or(false);
            collected.push(self.collector(to, &t, &sub.values[*v].name, Some(count), (a, reversed))?);
        }
        for (h, (_, b)) in held.iter().zip(&first) {
            self.move_to(*b, h.buf);
        }
        let body = self.body(sub, |l| {
            l.begin(&mut inner, &turn, &held, 0)?;
            for (j, a) in axes.iter().enumerate() {
                let v = sub.inputs[carried + j];
                if inner.uses[v] == 0 {
                    continue;
                }
                let x = operands[carried + j];
                let t = l.tensor(&inner, v)?;
                let slice = l.m.temp(sub.values[v].name.clone(), t.elem, t.dims);
                let place = if s.input_reversed.get(j).copied().unwrap_or(false) {
                    count - 1 - it
                } else {
                    it.into()
                };
                l.m.map(slice, &node.origin, |k, ix| {
                    let mut from = ix.to_vec();
                    from.insert(*a, place);
                    k.load(x, &from)
                });
                inner.bufs[v] = Some(slice);
            }
            l.nodes(&mut inner)?;
            l.end(&mut inner, &turn, (&held, &[]), 0, &collected)?;
            l.kernel(node, "step", |k, _| {
                k.store(at, &[], Expr::Load { buf: at, at: vec![] } + Expr::int(ElemType::I64, 1))
            });
            Ok(())
        })?;
        let cond = Expr::bin(BinOp::Lt, scalar(self, at), Expr::Index(count));
        self.m.driver.push(Stmt::While { cond, body });
        self.results(f, n, &held, &collected)
    }
}

fn scalar_in(k: &crate::nest::KernelBuilder, b: Buf) -> Expr {
    k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()])
}
