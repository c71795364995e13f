//! Loop-carried values that grow at their end: data of sequences that a body inserts into, tables of those
//! that it appends to, and slices that a loop collects (`collect`).
//!
//! Such a value is a prefix of a growable buffer, and an iteration stores its additions after it. The
//! existing elements are moved only when something no longer fits. Then that buffer gets one and a half times
//! the required size, and the contents of all growable buffers of the loop, which may be moved, are copied to
//! temporary memory and back. The number of copied elements is therefore a small multiple of the number of
//! added ones, for any number of iterations.

use super::control::{Held, define, size_symbol};
use super::{Frame, Lower};
use crate::diag::{Failure, Result};
use crate::graph::{Def, Graph, Node, Value};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Place, Stmt};
use crate::ops::bundle::{Bundle, store_row};
use crate::ops::support::cx::MAX_SIZE;
use crate::ops::{Known, Op};
use crate::sym::{Dim, Range, Sym};
use crate::tensor::TensorType;
use std::collections::HashSet;

/// A buffer with spare capacity.
pub(super) struct GrowableBuffer {
    buf: Buf,
    /// Capacity in elements.
    size: Sym,
}

/// The insertions that compute the next value of a carried value, in order; `None` if other nodes compute it.
pub(super) type Chain = Option<Vec<Node>>;

/// The next value of a held value.
pub(super) enum Next {
    /// A new value.
    Value(Buf),
    /// The current value with additions at its end.
    Appended(Appended),
}

/// The additions of an iteration.
pub(super) struct Appended {
    /// Number of elements before.
    pub old: Dim,
    /// Sizes afterwards.
    pub dims: Vec<Dim>,
    pub pieces: Vec<Piece>,
}

pub(super) enum Piece {
    /// All elements of a buffer, stored from this position on.
    Elements(Dim, Buf),
    /// A row of a table: its index, the offset of the member, the member's sizes.
    Row(Dim, Dim, Vec<Dim>),
}

/// The insertions that lead from a carried input to its output.
fn chain(f: &Frame, out: Value, input: Value, table: bool) -> Chain {
    let mut list = vec![];
    let mut v = out;
    while v != input {
        let Def::Node(n, k) = f.g.values[v].def else { return None };
        let node = &f.g.nodes[n];
        let appends = !table || node.inputs.get(3).copied().flatten().is_none();
        if !matches!(node.op, Op::Bundle(Bundle::Insert))
            || k != u32::from(!table)
            || !appends
            || f.uses[v] != 1
        {
            return None;
        }
        list.push(n);
        v = node.inputs.get(usize::from(!table)).copied().flatten()?;
    }
    list.reverse();
    Some(list)
}

fn operand(g: &Graph, n: Node, i: usize) -> Result<Value> {
    g.nodes[n]
        .inputs
        .get(i)
        .copied()
        .flatten()
        .ok_or_else(|| Failure::bug("lower", "an insertion without a member"))
}

impl<'a> Lower<'a> {
    /// Determines the carried values that are appended to. `tables`: those that are tables, each followed by
    /// its data. The inserting nodes then do nothing.
    pub(super) fn chains(
        &mut self,
        inner: &mut Frame<'a>,
        first: &[(Value, Buf)],
        tables: &[usize],
    ) -> Result<Vec<Chain>> {
        let mut out = vec![];
        for (k, (v, b)) in first.iter().enumerate() {
            let y = inner.g.outputs[1 + k];
            let table = tables.contains(&k);
            let (t, next, have) = (self.tensor(inner, *v)?, self.tensor(inner, y)?, &self.m.bufs[*b].dims);
            // Rows have a constant length, whatever is appended.
            let even = !table
                || [t.dims[1], next.dims[1], have[1]]
                    .windows(2)
                    .all(|w| w[0] == w[1] && w[0].as_const().is_some());
            let varies = t.dims.iter().zip(have).any(|(d, h)| d != h);
            let known = !matches!(inner.g.values[y].known, Known::No)
                || !matches!(inner.g.values[*v].known, Known::No);
            let found = if even && !known { chain(inner, y, *v, table) } else { None };
            out.push(found.filter(|c| varies || c.is_empty()));
        }
        // Insertions after the first read the previous sequence. Either the whole sequence grows in place, or
        // the insertions copy.
        for t in tables {
            if out.get(*t) != out.get(t + 1) {
                out.iter_mut()
                    .skip(*t)
                    .take(2)
                    .filter(|c| c.as_ref().is_some_and(|c| c.len() > 1))
                    .for_each(|c| *c = None);
            }
        }
        for (k, c) in out.iter().enumerate() {
            for n in c.iter().flatten() {
                let which = usize::from(!tables.contains(&k));
                if let Some(v) = inner.g.nodes[*n].outputs.get(which).copied().flatten() {
                    inner.uses[v] = 0;
                }
            }
        }
        Ok(out)
    }
    /// As [`Lower::hold`], as the prefix of a growable buffer.
    pub(super) fn hold_growable(
        &mut self,
        name: &str,
        t: &TensorType,
        varies: &[bool],
        first: &[Dim],
    ) -> Held {
        let size = size_symbol(self, &format!("{name}_room"));
        define(self, size, Dim::product(first.iter().copied()));
        let buf = self.m.buf(name, t.elem, vec![Dim::sym(size)], Place::Growable);
        let mut held = self.hold(name, t, varies, first);
        // The held buffer becomes a view of the growable buffer's prefix.
        self.m.bufs[held.buf].place = Place::View(buf);
        self.resized.insert(buf);
        held.growable = Some(GrowableBuffer { buf, size });
        held
    }
    /// The additions of the insertions in `chain` to a carried value, whose next value is `v`.
    pub(super) fn appended(
        &mut self,
        inner: &mut Frame<'a>,
        v: Value,
        chain: &[Node],
        held: &HashSet<Buf>,
    ) -> Result<Next> {
        let dims = self.tensor(inner, v)?.dims;
        let mut pieces = vec![];
        let mut old = Dim::product(dims.iter().copied());
        for (k, n) in chain.iter().enumerate() {
            let (x, data) = (operand(inner.g, *n, 2)?, operand(inner.g, *n, 1)?);
            let (member, place) = (self.tensor(inner, x)?.dims, self.tensor(inner, data)?.count());
            if let [_, _] = dims[..] {
                let before = self.tensor(inner, operand(inner.g, *n, 0)?)?;
                pieces.push(Piece::Row(before.dims[0], place, member));
                old = if k == 0 { before.count() } else { old };
            } else {
                pieces.push(Piece::Elements(place, self.handed(inner, x, held)?));
                old = if k == 0 { place } else { old };
            }
        }
        Ok(Next::Appended(Appended { old, dims, pieces }))
    }
    /// Redefines capacities so that additions fit. If any capacity grows, the contents of all growable
    /// buffers are copied to memory that is not moved; the result lists these copies with their numbers of
    /// elements, to be copied back after all sizes are defined. If nothing grows, these numbers are 0.
    pub(super) fn make_room(&mut self, list: &[(&Held, Next)]) -> Vec<(Buf, Buf, Dim)> {
        let rooms: Vec<(&GrowableBuffer, &Appended)> =
            list.iter()
                .filter_map(|(h, n)| {
                    if let (Some(r), Next::Appended(a)) = (&h.growable, n) { Some((r, a)) } else { None }
                })
                .collect();
        let need = |a: &Appended| Dim::product(a.dims.iter().copied());
        let full = |(r, a): &(&GrowableBuffer, &Appended)| Expr::cmp_index(BinOp::Gt, need(a), r.size);
        let Some(any) = rooms.iter().map(full).reduce(|a, b| Expr::bin(BinOp::Or, a, b)) else {
            return vec![];
        };
        let grows = self.m.syms.fresh_number("grows", Range::new(0, 1));
        self.m.driver.push(Stmt::Define {
            sym: grows,
            value: Expr::select(any, Expr::index(1), Expr::index(0)),
            lo: Dim::constant(0),
            hi: Some(Dim::constant(1)),
        });
        self.defined.insert(grows);
        let mut aside = vec![];
        for (r, a) in &rooms {
            let n = Dim::sym(grows) * a.old;
            let name = format!("{}.aside", self.m.bufs[r.buf].name);
            let own = self.m.temp(name, self.m.bufs[r.buf].ty, vec![n]);
            self.copy_part(r.buf, own, Dim::constant(0), n);
            aside.push((own, r.buf, n));
        }
        for (r, a) in &rooms {
            let larger = Expr::index((need(a) + need(a).floor_div(2) + 16).min(Dim::constant(MAX_SIZE)));
            let value = Expr::select(full(&(*r, *a)), larger, Expr::index(r.size));
            self.m.driver.push(Stmt::Define {
                sym: r.size,
                value,
                lo: Dim::constant(0),
                hi: Some(Dim::constant(MAX_SIZE)),
            });
        }
        aside
    }
    /// Copies the first `n` elements to position `at` of a list.
    pub(super) fn copy_part(&mut self, from: Buf, to: Buf, at: Dim, n: Dim) {
        let name = self.m.bufs[to].name.clone();
        let origin = self.model.origin.element(format!("growing \"{name}\""));
        self.m.kernel(&name, &origin, |k| {
            k.nest(LoopKind::Par, &[n], |k, i| {
                let v = k.load(from, i);
                k.store(to, &[at + i[0]], v);
            });
        });
    }
    /// Stores the additions of an iteration, which fit.
    pub(super) fn append(&mut self, h: &Held, a: &Appended) {
        let Some(room) = &h.growable else { return };
        for p in &a.pieces {
            match p {
                Piece::Elements(at, x) => {
                    let n = self.m.bufs[*x].count();
                    if n.as_const() != Some(0) {
                        let flat = self.m.view(*x, vec![n]);
                        self.copy_part(flat, room.buf, *at, n);
                    }
                }
                Piece::Row(r, place, dims) => {
                    let name = self.m.bufs[room.buf].name.clone();
                    let origin = self.model.origin.element(format!("growing \"{name}\""));
                    self.m.kernel(&name, &origin, |k| store_row(k, h.buf, *r, Expr::index(*place), dims));
                }
            }
        }
    }
}
