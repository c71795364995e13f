//! Indices that a nest reads from memory, and accesses that step over elements: what lanes read then are gathers.
//!
//! An index out of range reads nothing that it should not: it becomes 0, and a mask that loops carry on remembers it. The
//! tile returns whether that mask has a lane.

use super::access::Access;
use super::builder::Count;
use super::ir::{Bin, Bits, Form, Mem, Op, Pred, Value};
use super::tile::{Fit, Translate, Val, outside};
use crate::nest::{Expr, Module, Reg};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// An index read from memory.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// As lanes count.
    value: Value,
    /// As an integer, where all lanes agree.
    first: Option<Value>,
}

impl Translate<'_> {
    /// Binds an index for an expression.
    pub(super) fn with_index(&mut self, sym: Sym, value: &Expr, extent: Dim, body: &Expr) -> Fit<Val> {
        if !self.m.syms.is_pos(extent) {
            return Err("an index into what may be empty");
        }
        let uniform = !self.varies(value);
        let index = self.value(value)?;
        let to = if self.b.is_long() { ElemType::I64 } else { ElemType::I32 };
        let index = self.cast(to, index)?.v;
        let bits = self.b.index_bits();
        let extent = self.substituted(extent);
        let limit = match self.count(extent)? {
            Count::Fixed(n) if bits == Bits::B32 && i32::try_from(n).is_err() => return Err("an index beyond 32 bits"),
            Count::Fixed(n) => self.index_number(n),
            Count::Run(_) if bits == Bits::B32 => return Err("an index whose limit run time knows"),
            Count::Run(n) => self.b.splat(n),
        };
        let out = self.b.ucmp(Pred::Le, limit, index, bits);
        let zero = self.index_number(0);
        let value = self.b.select(out, zero, index, bits);
        let out = match self.mask {
            Some(k) => self.b.masks(Op::MaskAnd, k, out),
            None => out,
        };
        if let Some(v) = self.accs.get(&outside()).and_then(|a| a.values.first().copied()) {
            let v = self.b.masks(Op::MaskOr, v, out);
            self.accs.entry(outside()).and_modify(|a| a.values = vec![v]);
        }
        let first = uniform.then(|| self.b.first(value));
        self.bound.insert(sym, Bound { value, first });
        // What was read at another index is something else.
        let before = self.loaded.clone();
        let r = self.value(body);
        self.loaded = before;
        self.bound.remove(&sym);
        r
    }
    /// True if lanes may differ in the value of an expression.
    pub(super) fn varies(&self, e: &Expr) -> bool {
        let differs = |d: &Dim| self.lane.is_some_and(|l| d.contains(l.sym)) || self.bound.iter().any(|(s, b)| b.first.is_none() && d.contains(*s));
        let mut inner: Vec<Reg> = vec![];
        let mut hit = false;
        e.walk(&mut |e| {
            hit |= match e {
                Expr::Index(d) => differs(d) || self.put.values().any(differs) && d.as_const().is_none(),
                Expr::Load { at, .. } => at.iter().any(differs) || self.put.values().any(differs) && at.iter().any(|d| d.as_const().is_none()),
                Expr::Let { reg, .. } => {
                    inner.push(*reg);
                    false
                }
                Expr::Reg(r) => !inner.contains(r),
                Expr::Acc { .. } | Expr::With { .. } => true,
                _ => false,
            }
        });
        hit
    }
    /// True if an access is more than a pointer that loops move: lanes that are not neighbours, indices from memory.
    pub(super) fn is_gather(&self, a: &Access, form: Form) -> bool {
        !matches!(a.lane, 0 | 1) && !self.is_every_second(a, form) || !a.bound.is_empty()
    }
    /// What lanes read at such an access.
    pub(super) fn gathered(&mut self, a: &Access, form: Form) -> Fit<Value> {
        let size = i64::from(form.bytes());
        let mut mem = self.mem(a)?;
        let agree = a.bound.iter().all(|b| self.bound.get(&b.0).is_some_and(|b| b.first.is_some()));
        if agree && matches!(a.lane, 0 | 1) {
            let mut base = self.b.address(mem);
            for (s, c) in &a.bound {
                let Some(first) = self.bound.get(s).and_then(|b| b.first) else { return Err(NO_INDEX) };
                let Some(step) = c.as_const().and_then(|c| c.checked_mul(size)).and_then(|c| i32::try_from(c).ok()) else { return Err("an index with a stride that run time knows") };
                let step = self.b.mul_imm(first, step);
                base = self.b.add(base, step);
            }
            mem = Mem { base, index: None, disp: 0 };
            return self.load_at(a, form, mem);
        }
        if !matches!(form, Form::Whole | Form::Double) {
            return Err("a load of short elements that are no neighbours");
        }
        let bits = self.b.index_bits();
        let most = |m: &Module| m.syms.range(Dim::product(m.bufs[a.storage].dims.iter().copied())).hi;
        // Where only lanes step apart, they do so by numbers that are known.
        let near = a.bound.is_empty() && i32::try_from(a.lane.saturating_mul(16)).is_ok();
        if bits == Bits::B32 && !near && most(self.m).is_none_or(|n| i32::try_from(n).is_err()) {
            return Err("a distance beyond 32 bits");
        }
        let mut index = None;
        let mut add = |t: &mut Self, x: Value, step: Value, one: bool| {
            let x = if one { x } else { t.index_op(Bin::IMul, x, step) };
            index = Some(match index {
                Some(i) => t.index_op(Bin::IAdd, i, x),
                None => x,
            });
        };
        for (s, c) in &a.bound {
            let Some(b) = self.bound.get(s).copied() else { return Err(NO_INDEX) };
            let step = match self.count(*c)? {
                Count::Fixed(c) => self.index_number(c),
                Count::Run(_) if bits == Bits::B32 => return Err("an index with a stride that run time knows"),
                Count::Run(v) => self.b.splat(v),
            };
            add(self, b.value, step, c.as_const() == Some(1));
        }
        if a.lane != 0 {
            let (iota, step) = (self.b.iota(), self.index_number(a.lane));
            add(self, iota, step, a.lane == 1);
        }
        let Some(index) = index else { return Err(NO_INDEX) };
        Ok(self.b.gather(form, index, mem, self.mask))
    }
}

const NO_INDEX: &str = "an index without a value";
