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
use crate::sym::{Atom, Dim, SymKind, SymTable, View};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I64};
use cranelift_codegen::ir::{InstBuilder, Value};

/// Upper bound of the magnitude of a dim and of all sums in it, given the legal values of its symbols.
fn magnitude(syms: &SymTable, d: Dim) -> f64 {
    let View::Sum { terms, constant } = d.view() else {
        return d.as_const().map_or(f64::INFINITY, |c| (c as f64).abs());
    };
    let many = |v: &[Dim]| v.iter().map(|x| magnitude(syms, *x)).fold(0.0, f64::max);
    let atom = |a: &Atom| match a {
        Atom::Sym(s) => {
            let r = syms.declared_range(*s);
            let hi = r.hi.unwrap_or(if syms.kind(*s) == SymKind::Derived { i64::MAX } else { MAX_DIM });
            (hi as f64).max(-(r.lo.unwrap_or(i64::MIN) as f64))
        }
        Atom::FloorDiv(x, y) | Atom::Mod(x, y) => many(&[*x, *y]),
        Atom::Min(v) | Atom::Max(v) => many(v),
    };
    terms.iter().fold((constant as f64).abs(), |sum, (c, atoms)| {
        sum + atoms.iter().map(atom).product::<f64>() * (*c as f64).abs()
    })
}

impl Entry<'_> {
    /// Reads and checks the dim params.
    pub(super) fn dims(&self, e: &mut Emit, dims: Value) -> Result<()> {
        for (k, d) in self.interface.dim_params.iter().enumerate() {
            let v = self.load(e, dims, 8 * k as i32);
            let most = d.hi.unwrap_or(MAX_DIM);
            let lo = e.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, v, d.lo);
            let hi = e.b.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, v, most);
            let ok = e.b.ins().band(lo, hi);
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
    /// Computes the derived sizes, except those of dim params that this module lacks: constants are folded in
    /// a separate module with the symbols of the whole model.
    pub(super) fn derived(&self, e: &mut Emit) -> Result<()> {
        for (s, d) in self.m.syms.derived() {
            if !d.syms().iter().all(|t| e.vars.contains_key(t)) {
                continue;
            }
            self.bounded(e, *d, &format!("size {}", quoted(self.m.syms.name(*s))))?;
            let v = e.dim(*d)?;
            e.vars.insert(*s, v);
        }
        Ok(())
    }
    /// Checks the conditions on the dim params.
    pub(super) fn checks(&self, e: &mut Emit) -> Result<()> {
        for s in &self.m.driver {
            if let Stmt::Check { cond, status } = s
                && early(self, s)
            {
                s.dims().into_iter().try_for_each(|d| self.bounded(e, d, "a size that a check compares"))?;
                let c = e.truth(cond)?;
                self.check(e, c, cond, *status)?;
            }
        }
        let (i, m) = (self.interface, self.m);
        let bits = |b: &Buf| Dim::product(m.bufs[*b].dims.iter().copied()) * i64::from(m.element_bits(*b));
        let kinds = [("input", &m.inputs), ("output", &m.outputs)];
        let tensors = kinds.into_iter().flat_map(|(what, list)| {
            list.iter().map(move |b| (format!("{what} {}", quoted(&m.bufs[*b].name)), bits(b)))
        });
        for (name, d) in tensors
            .chain([("the workspace".to_owned(), i.workspace)])
            .filter(|(_, d)| !m.syms.at_run_time(*d))
        {
            self.bounded(e, d, &name)?;
        }
        Ok(())
    }
    /// Checks that 64-bit arithmetic yields the value of a dim, unless the bounds of its symbols imply it.
    fn bounded(&self, e: &mut Emit, d: Dim, name: &str) -> Result<()> {
        if magnitude(&self.m.syms, d) >= (1i64 << 62) as f64 {
            let ok = e.fits(d)?;
            e.require_plain(
                ok,
                Check::new(Status::Dim, format!("{name} would be larger than memory can be")),
            )?;
        }
        Ok(())
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
        let (given, after) = (e.b.create_block(), e.b.create_block());
        e.b.ins().brif(out_dims, given, &[], after, &[]);
        e.b.switch_to_block(given);
        e.b.seal_block(given);
        e.push();
        // All sizes are reported before a capacity fails the call.
        let mut fits = vec![];
        for (k, dims, t) in dynamic {
            let list = self.load(e, out_dims, 8 * k as i32);
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
            fits.push((result, t));
        }
        for (ok, t) in fits {
            self.fits(e, ok, t)?;
        }
        e.pop();
        e.b.ins().jump(after, &[]);
        e.b.switch_to_block(after);
        e.b.seal_block(after);
        Ok(())
    }
    /// Returns an error unless `ok`: the caller's capacity of an output suffices.
    pub(in crate::codegen::clif) fn fits(&self, e: &mut Emit, ok: Value, t: &Tensor) -> Result<()> {
        let (row, shown) = self.words().capacity(t);
        e.require_check(ok, row, &mut |e| Ok((shown.iter().map(|d| e.dim(*d)).collect::<Result<_>>()?, None)))
    }
}
