//! The checks of a call before it computes: sizes, conditions on them, the weights file, the workspace, the
//! capacity of outputs.

use super::{Entry, MAX_DIM};
use crate::codegen::clif::driver::early;
use crate::codegen::clif::fault::{EXEC_SIZE, EXEC_WORKSPACE};
use crate::codegen::clif::func::Emit;
use crate::codegen::faults::{self, Check, general, quoted};
use crate::codegen::frame::Word;
use crate::codegen::interface::Tensor;
use crate::codegen::weights_file::{self, PLANS_AT, SIZE_AT};
use crate::diag::Result;
use crate::nest::{BinOp, Buf, Expr, Place, Status, Stmt};
use crate::sym::{Atom, Dim, Sym, SymKind, SymTable, View};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I64};
use cranelift_codegen::ir::{InstBuilder, Value};
use std::collections::{HashMap, HashSet};

/// The magnitude from which 64-bit arithmetic with a size is not trusted.
const LIMIT: f64 = (1i64 << 62) as f64;

/// Upper bounds of magnitudes, if dim params have their legal values and at most `most`.
struct Magnitudes<'a> {
    syms: &'a SymTable,
    most: i64,
    derived: HashMap<Sym, f64>,
}

impl Magnitudes<'_> {
    fn new(syms: &SymTable, most: i64) -> Magnitudes<'_> {
        let mut all = Magnitudes { syms, most, derived: HashMap::new() };
        for (s, d) in syms.derived() {
            let of = all.of(*d);
            all.derived.insert(*s, of);
        }
        all
    }
    /// Upper bound of the magnitude of a dim and of all sums in it.
    fn of(&self, d: Dim) -> f64 {
        let View::Sum { terms, constant } = d.view() else {
            return d.as_const().map_or(f64::INFINITY, |c| (c as f64).abs());
        };
        let many = |v: &[Dim]| v.iter().map(|x| self.of(*x)).fold(0.0, f64::max);
        let atom = |a: &Atom| match a {
            Atom::Sym(s) => self.of_sym(*s),
            Atom::FloorDiv(x, y) | Atom::Mod(x, y) => many(&[*x, *y]),
            Atom::Min(v) | Atom::Max(v) => many(v),
        };
        terms.iter().fold((constant as f64).abs(), |sum, (c, atoms)| {
            sum + atoms.iter().map(atom).product::<f64>() * (*c as f64).abs()
        })
    }
    fn of_sym(&self, s: Sym) -> f64 {
        let r = self.syms.declared_range(s);
        let hi = match (self.derived.get(&s), self.syms.kind(s)) {
            (Some(of), _) => of.min(r.hi.unwrap_or(i64::MAX) as f64),
            (None, SymKind::Derived) => r.hi.unwrap_or(i64::MAX) as f64,
            (None, SymKind::Runtime) => r.hi.unwrap_or(MAX_DIM) as f64,
            (None, _) => r.hi.unwrap_or(MAX_DIM).min(self.most) as f64,
        };
        hi.max(-(r.lo.unwrap_or(i64::MIN) as f64))
    }
    fn exceed(&self, d: Dim) -> bool {
        self.of(d) >= LIMIT
    }
}

/// What is known about the sizes of a module at entry.
pub(super) struct Bounds<'a> {
    of: Magnitudes<'a>,
    /// A condition under which all sizes fit; `None` if they always do, or it is not known.
    small: Option<Value>,
}

impl Entry<'_> {
    /// Reads and checks the dim params.
    pub(super) fn dims(&self, e: &mut Emit, dims: Value) -> Result<()> {
        for (k, d) in self.interface.dim_params.iter().enumerate() {
            let v = self.load(e, dims, 8 * k as i32);
            let most = d.hi.unwrap_or(MAX_DIM);
            // One comparison: values below `lo` wrap to large ones.
            let above = if d.lo == 0 { v } else { e.b.ins().iadd_imm_s(v, -d.lo) };
            let ok = e.b.ins().icmp_imm_s(IntCC::UnsignedLessThanOrEqual, above, most - d.lo);
            let (name, of) = self.words().param(Dim::sym(d.sym));
            let mut check =
                Check::new(Status::Dim, format!("{name} is %lld: it must be from {} to {most}", d.lo));
            check.values.push(of);
            e.require_check(ok, check, &mut |_| Ok((vec![v], None)))?;
            e.vars.insert(d.sym, v);
        }
        Ok(())
    }
    /// Returns an error unless `ok`, the condition of a check of the driver. For `Capacity`, the error
    /// reports the workspace size that would suffice.
    pub(in crate::codegen::clif) fn check(
        &self,
        e: &mut Emit,
        ok: Value,
        cond: &Expr,
        status: Status,
    ) -> Result<()> {
        let near = self.near(cond);
        let (row, shown) = match self.m.reasons.of_check(cond) {
            Some(r) => self.words().row(r, status),
            None => (Check::new(status, general(status)), vec![]),
        };
        let row = if row.node.is_empty() && row.op.is_empty() { row.at((&near.0, &near.1)) } else { row };
        e.require_check(ok, row, &mut |e| {
            let values = shown.iter().map(|d| e.dim(*d)).collect::<Result<Vec<_>>>()?;
            let needed = match (status, cond) {
                (Status::Capacity, Expr::Bin(BinOp::Le, used, end)) => match (&**used, &**end) {
                    (Expr::Index(used), Expr::Index(end)) => Some(self.needed(e, *used - *end)?),
                    _ => None,
                },
                _ => None,
            };
            Ok((values, needed))
        })
    }
    /// The workspace size, in bytes, for a call that lacks `missing` bytes.
    fn needed(&self, e: &mut Emit, missing: Dim) -> Result<Value> {
        let missing = e.dim(missing)?;
        let Some(end) = self.m.end else { return Ok(missing) };
        let end = match self.frame.offset(Word::Sym(end)) {
            Some(at) => {
                let frame = e.frame;
                self.load(e, frame, at)
            }
            None => return e.bug("the end of the workspace is not in the frame"),
        };
        Ok(e.b.ins().iadd(end, missing))
    }
    /// Name and operator of the node whose result an expression of the driver reads.
    pub(in crate::codegen::clif) fn near(&self, x: &Expr) -> (String, String) {
        let mut loads = vec![];
        x.walk(&mut |x| {
            if let Expr::Load { buf, .. } = x {
                loads.push(self.m.storage(*buf));
            }
        });
        let maker = loads.iter().find_map(|b| self.makers.get(b)).map(|k| &self.m.kernels[*k]);
        let input = || loads.iter().map(|b| &self.m.bufs[*b]).find(|b| matches!(b.place, Place::Input(_)));
        match (maker, input()) {
            _ if loads.is_empty() => Default::default(),
            (Some(k), _) => {
                let (node, op) = faults::node(&k.origin, &k.name);
                (node.to_owned(), op.to_owned())
            }
            (None, Some(b)) => (b.name.clone(), "input".into()),
            (None, None) => Default::default(),
        }
    }
    /// The bounds of sizes, and a condition on the dim params for which no size of this module overflows.
    ///
    /// The exact checks take tens of instructions each, a large part of a call of a small model.
    pub(super) fn bounds(&self, e: &mut Emit) -> Bounds<'_> {
        let syms = &self.m.syms;
        let derived = syms.derived().iter().map(|(_, d)| *d);
        let compared = self.m.driver.iter().filter(|s| early(self, s)).flat_map(|s| s.dims());
        let sizes = derived.chain(compared).chain(self.sizes().into_iter().map(|(_, d)| d));
        let fit = |of: &Magnitudes| sizes.clone().all(|d| !of.exceed(d));
        let of = Magnitudes::new(syms, i64::MAX);
        if fit(&of) {
            return Bounds { of, small: None };
        }
        let params = self.interface.dim_params.iter().filter_map(|d| e.vars.get(&d.sym).copied());
        let params: Vec<Value> = params.collect();
        let bits = (8..31).rev().find(|bits| fit(&Magnitudes::new(syms, (1 << bits) - 1)));
        let small = bits.zip(params.into_iter().reduce(|x, y| e.b.ins().bor(x, y)));
        let small = small.map(|(bits, all)| e.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, all, 1 << bits));
        Bounds { of, small }
    }
    /// Computes the derived sizes, except those of dim params that this module lacks: constants are folded in
    /// a separate module with the symbols of the whole model.
    pub(super) fn derived(&self, e: &mut Emit, bounds: &Bounds) -> Result<()> {
        for (s, d) in self.m.syms.derived() {
            if !d.syms().iter().all(|t| e.vars.contains_key(t)) {
                continue;
            }
            self.bounded(e, bounds, &[(format!("size {}", quoted(self.m.syms.name(*s))), *d)])?;
            let v = e.dim(*d)?;
            e.vars.insert(*s, v);
        }
        Ok(())
    }
    /// Checks the conditions on the dim params.
    pub(super) fn checks(&self, e: &mut Emit, bounds: &Bounds) -> Result<()> {
        for s in &self.m.driver {
            if let Stmt::Check { cond, status } = s
                && early(self, s)
            {
                let sizes = s.dims().into_iter().map(|d| ("a size that a check compares".to_owned(), d));
                self.bounded(e, bounds, &sizes.collect::<Vec<_>>())?;
                let c = e.truth(cond)?;
                self.check(e, c, cond, *status)?;
            }
        }
        self.bounded(e, bounds, &self.sizes())
    }
    /// The sizes of inputs and outputs in bits, and that of the workspace, with their names in errors. The
    /// first of equal sizes stands for all; those that run time defines are checked there.
    fn sizes(&self) -> Vec<(String, Dim)> {
        let (i, m) = (self.interface, self.m);
        let bits = |b: &Buf| m.bufs[*b].count() * i64::from(m.element_bits(*b));
        let kinds = [("input", &m.inputs), ("output", &m.outputs)];
        let tensors = kinds.into_iter().flat_map(|(what, list)| {
            list.iter().map(move |b| (format!("{what} {}", quoted(&m.bufs[*b].name)), bits(b)))
        });
        let mut seen = HashSet::new();
        tensors
            .chain([("the workspace".to_owned(), i.workspace)])
            .filter(|(_, d)| !m.syms.at_run_time(*d) && seen.insert(*d))
            .collect()
    }
    /// Checks that 64-bit arithmetic yields the values of dims, unless the bounds of their symbols or
    /// `bounds.small` imply it.
    fn bounded(&self, e: &mut Emit, bounds: &Bounds, sizes: &[(String, Dim)]) -> Result<()> {
        let sizes: Vec<_> = sizes.iter().filter(|(_, d)| bounds.of.exceed(*d)).collect();
        if sizes.is_empty() {
            return Ok(());
        }
        let exact = |e: &mut Emit| {
            sizes.iter().try_for_each(|(name, d)| {
                let ok = e.fits(*d)?;
                let text = format!("{name} would be larger than memory can be");
                e.require_plain(ok, Check::new(Status::Dim, text))
            })
        };
        match bounds.small {
            Some(small) => e.unless(small, exact),
            None => exact(e),
        }
    }
    /// Address `k` of the caller's list, which only a tensor without elements may lack.
    pub(super) fn address_of(
        &self,
        e: &mut Emit,
        list: Value,
        k: usize,
        (what, t): (&str, &Tensor),
    ) -> Result<Value> {
        let v = self.load(e, list, 8 * k as i32);
        let count = t.count();
        if count.as_const() == Some(0) || self.m.syms.at_run_time(count) {
            return Ok(v);
        }
        let null = Check::new(Status::Null, format!("{what} {} is NULL", quoted(&t.name)));
        if count.as_const().is_some() || self.m.syms.is_pos(count) {
            let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0);
            e.require_plain(ok, null)?;
            return Ok(v);
        }
        e.unless(v, |e| {
            let n = e.dim(count)?;
            let empty = e.b.ins().icmp_imm_s(IntCC::Equal, n, 0);
            e.require_plain(empty, null)
        })?;
        Ok(v)
    }
    /// Returns an error unless an address is a multiple of 64 and not NULL.
    pub(super) fn aligned(&self, e: &mut Emit, v: Value, what: &str) -> Result<()> {
        let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0);
        e.require_plain(ok, Check::new(Status::Null, format!("{what} is NULL")))?;
        let low = e.b.ins().band_imm_s(v, 63);
        let ok = e.b.ins().icmp_imm_s(IntCC::Equal, low, 0);
        e.require_plain(ok, Check::new(Status::Align, format!("the address of {what} is no multiple of 64")))
    }
    /// Compares the header of the weights file with the object's expectations.
    pub(super) fn weights_file(&self, e: &mut Emit, weights: Value) -> Result<()> {
        let w = &self.interface.weights;
        let file = quoted(&w.file);
        let equal = |e: &mut Emit, at: usize, want: &[u8]| {
            let mut differ = e.b.ins().iconst(I64, 0);
            for (k, word) in want.as_chunks::<8>().0.iter().enumerate() {
                let found = self.load(e, weights, (at + 8 * k) as i32);
                let want = e.b.ins().iconst(I64, i64::from_le_bytes(*word));
                let other = e.b.ins().bxor(found, want);
                differ = e.b.ins().bor(differ, other);
            }
            e.b.ins().icmp_imm_s(IntCC::Equal, differ, 0)
        };
        let (version, size) = (weights_file::VERSION, w.size);
        let ok = equal(e, 0, &weights_file::signature());
        let text = format!("the weights are no weights file of version {version}: expected {file}");
        e.require_plain(ok, Check::new(Status::Weights, text))?;
        let at = PLANS_AT + weights_file::PLAN * w.slot as usize;
        let ok = equal(e, at, &w.plan);
        let text = format!("the weights are those of another model or compilation: expected {file}");
        e.require_plain(ok, Check::new(Status::Weights, text))?;
        let found = self.load(e, weights, SIZE_AT as i32);
        let ok = e.b.ins().icmp_imm_s(IntCC::UnsignedGreaterThanOrEqual, found, size as i64);
        let text = format!("the weights have %lld bytes: those of {file} have {size}");
        let check = Check::new(Status::Weights, text).with_values(1);
        e.require_check(ok, check, &mut |_| Ok((vec![found], None)))
    }
    /// The size of the workspace: the caller's value, which has precedence (abi/README.md, rule 8), or else
    /// the result of `workspace_size`. The caller's value is checked before anything is written.
    pub(super) fn workspace_end(&self, e: &mut Emit, exec: Value) -> Result<Value> {
        // The memory at its end may have any size; it is checked when it is used.
        let heap = if self.m.end.is_some() { self.m.heap } else { 0 };
        let least = self.m.workspace - heap;
        if self.m.workspace.as_const() == Some(0) {
            return Ok(e.b.ins().iconst(I64, 0));
        }
        let usual = if self.m.end.is_some() { e.dim(self.m.workspace)? } else { e.b.ins().iconst(I64, 0) };
        let (has, large, told, done) =
            (e.b.create_block(), e.b.create_block(), e.b.create_block(), e.b.create_block());
        let end = e.b.append_block_param(done, I64);
        e.b.ins().brif(exec, has, &[], done, &[usual.into()]);
        e.b.switch_to_block(has);
        e.b.seal_block(has);
        let size = self.load(e, exec, 0);
        let known = e.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, size, EXEC_SIZE);
        e.b.ins().brif(known, large, &[], done, &[usual.into()]);
        e.b.switch_to_block(large);
        e.b.seal_block(large);
        let given = self.load(e, exec, EXEC_WORKSPACE);
        e.b.ins().brif(given, told, &[], done, &[usual.into()]);
        e.b.switch_to_block(told);
        e.b.seal_block(told);
        e.push();
        // More than 63 bits are clamped: that much always suffices.
        let most = e.b.ins().iconst(I64, i64::MAX);
        let given = e.b.ins().umin(given, most);
        let need = e.dim(least)?;
        let ok = e.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, given, need);
        let row = Check::new(Status::Capacity, "the workspace has %lld bytes, and these sizes take %lld")
            .with_values(2);
        e.require_check(ok, row, &mut |_| Ok((vec![given, need], Some(need))))?;
        let whole = e.b.ins().band_imm_s(given, !63);
        e.pop();
        e.b.ins().jump(done, &[whole.into()]);
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        Ok(end)
    }
    /// Checks the caller's capacities of outputs and writes back the actual sizes. A capacity that is too
    /// small is an error that reports the required sizes (abi/README.md, rule 10).
    pub(super) fn out_dims(&self, e: &mut Emit, out_dims: Value) -> Result<()> {
        let at_entry = |dims: &[Dim]| {
            dims.iter().any(|d| d.as_const().is_none()) && !dims.iter().any(|d| self.m.syms.at_run_time(*d))
        };
        let sized = |(k, b): (usize, &Buf)| (k, self.m.bufs[*b].dims.as_slice(), &self.interface.outputs[k]);
        let dynamic: Vec<(usize, &[Dim], &Tensor)> =
            self.m.outputs.iter().enumerate().map(sized).filter(|x| at_entry(x.1)).collect();
        if dynamic.is_empty() {
            return Ok(());
        }
        e.only_if(out_dims, |e| {
            // All sizes are reported before a capacity fails the call.
            let mut fits = vec![];
            for (k, dims, t) in dynamic {
                let list = self.load(e, out_dims, 8 * k as i32);
                fits.push((self.report_dims(e, list, dims)?, t));
            }
            fits.into_iter().try_for_each(|(ok, t)| self.fits(e, ok, t))
        })
    }
    /// Writes the sizes of an output into the caller's list, if there is one; the result is true if the list
    /// had no smaller ones.
    fn report_dims(&self, e: &mut Emit, list: Value, dims: &[Dim]) -> Result<Value> {
        let (some, next) = (e.b.create_block(), e.b.create_block());
        let result = e.b.append_block_param(next, I8);
        let yes = e.b.ins().iconst(I8, 1);
        e.b.ins().brif(list, some, &[], next, &[yes.into()]);
        e.b.switch_to_block(some);
        e.b.seal_block(some);
        e.push();
        let mut ok = yes;
        for (i, d) in dims.iter().enumerate() {
            let capacity = self.load(e, list, 8 * i as i32);
            let n = e.dim(*d)?;
            let enough = e.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, capacity, n);
            ok = e.b.ins().band(ok, enough);
            self.store(e, n, list, 8 * i as i32);
        }
        e.pop();
        e.b.ins().jump(next, &[ok.into()]);
        e.b.switch_to_block(next);
        e.b.seal_block(next);
        Ok(result)
    }
    /// Returns an error unless `ok`: the caller's capacity of an output suffices.
    pub(in crate::codegen::clif) fn fits(&self, e: &mut Emit, ok: Value, t: &Tensor) -> Result<()> {
        let (row, shown) = self.words().capacity(t);
        e.require_check(ok, row, &mut |e| Ok((shown.iter().map(|d| e.dim(*d)).collect::<Result<_>>()?, None)))
    }
}
