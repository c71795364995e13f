//! The driver's statements -> control flow of `call`: sizes defined at run time, conditions, loops, kernel
//! calls.
//!
//! Run-time sizes and addresses are kept in the frame, where kernels read them. The driver reloads the values
//! that a statement needs right before it, so that loops and branches need no block parameters. After a size
//! is defined, everything that depends on it is updated: pointers of slots, and the dims of outputs, which
//! are checked against the caller's capacity. It is also checked that no size in bits reaches 2^62, so that
//! positions can be computed without overflow.

use super::entry::Entry;
use super::func::{Emit, Scope};
use crate::codegen::faults::{Check, quoted};
use crate::codegen::frame::{Word, base_of};
use crate::diag::Result;
use crate::nest::foreign::{DECODE_IMAGE, Foreign, Function};
use crate::nest::{Buf, Expr, Kernel, LoopKind, Slot, Status, Stmt, visit};
use crate::sym::{Dim, Sym, SymKind};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Value};
use std::collections::{BTreeSet, HashSet};

/// An output whose sizes depend on data.
pub(super) struct Sized {
    /// Its number.
    index: u32,
    dims: Vec<Dim>,
    /// The run-time sizes in its dims.
    syms: BTreeSet<Sym>,
    /// The caller's capacity (a copy), and the list to which the sizes are written.
    capacity: Value,
    list: Value,
}

/// One `call` under construction.
pub(super) struct Driver<'a, 'm> {
    pub(super) entry: &'a Entry<'m>,
    /// The frame.
    pub frame: Value,
    /// Stack memory for the context of tasks.
    pub ctx: Value,
    /// The caller's `exec`.
    pub exec: Value,
    /// The caller's `on_node`, in objects that trace.
    pub(super) hook: Option<Value>,
    workspace: Value,
    /// Size of the workspace in bytes.
    end: Value,
    outputs: Vec<Sized>,
    slots: Vec<(Slot, BTreeSet<Sym>)>,
    /// Sizes in bits with their symbols and buffers.
    sizes: Vec<(Dim, BTreeSet<Sym>, Buf)>,
    /// Run-time sizes that are defined here.
    known: HashSet<Sym>,
    /// True inside an `if` or a `while`, whose checks the entry does not make.
    nested: bool,
}

impl<'a, 'm> Driver<'a, 'm> {
    /// The state before the first statement. `out_dims` is the caller's argument.
    pub fn new(
        entry: &'a Entry<'m>,
        e: &mut Emit,
        [frame, ctx, exec, workspace, out_dims, end]: [Value; 6],
    ) -> Result<Self> {
        let m = entry.m;
        let late = |d: Dim| -> BTreeSet<Sym> {
            d.syms().into_iter().filter(|s| m.syms.kind(*s) == SymKind::Runtime).collect()
        };
        let mut outputs = vec![];
        for (k, t) in entry.interface.outputs.iter().enumerate() {
            let syms: BTreeSet<Sym> = t.dims.iter().flat_map(|d| late(*d)).collect();
            if syms.is_empty() {
                continue;
            }
            let missing = Check::new(
                Status::Null,
                format!("the list of the dimensions of output {} is NULL", quoted(&t.name)),
            );
            let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, out_dims, 0);
            e.require_plain(ok, missing.clone())?;
            let list = entry.load(e, out_dims, 8 * k as i32);
            let ok = e.b.ins().icmp_imm_s(IntCC::NotEqual, list, 0);
            e.require_plain(ok, missing)?;
            let capacity = entry.slot(e, 8 * t.dims.len() as u32);
            for i in 0..t.dims.len() as i32 {
                let v = entry.load(e, list, 8 * i);
                entry.store(e, v, capacity, 8 * i);
            }
            outputs.push(Sized { index: k as u32, dims: t.dims.clone(), syms, capacity, list });
        }
        let hook = entry.interface.trace.then(|| entry.hook(e, exec));
        let slots = m.slots.iter().map(|(s, d)| (s, late(d.offset))).filter(|x| !x.1.is_empty()).collect();
        let mut seen: HashSet<Dim> = HashSet::new();
        let mut sizes = vec![];
        for b in used(entry) {
            let d = &m.bufs[b];
            let bits = d.count() * i64::from(m.element_bits(b));
            if m.syms.at_run_time(bits)
                && seen.insert(bits)
                && m.syms.range(bits).hi.is_none_or(|h| h >= 1 << 62)
            {
                sizes.push((bits, late(bits), b));
            }
        }
        Ok(Driver {
            entry,
            frame,
            ctx,
            exec,
            hook,
            workspace,
            end,
            outputs,
            slots,
            sizes,
            known: HashSet::new(),
            nested: false,
        })
    }
    /// Emits statements in order.
    pub fn block(&mut self, e: &mut Emit, body: &[Stmt]) -> Result<()> {
        let mut fresh = BTreeSet::new();
        let around = e.b.srcloc();
        for (i, s) in body.iter().enumerate() {
            e.locate(s);
            self.refresh(e, &s.loads(), &s.dims())?;
            if let (Some(x), Some(sink)) = (s.expr(), &mut e.sink) {
                sink.near = self.entry.near(x);
            }
            match s {
                Stmt::Check { cond, status } => {
                    if self.nested || !early(self.entry, s) {
                        let c = e.truth(cond)?;
                        self.entry.check(e, c, cond, *status)?;
                    }
                }
                Stmt::Define { sym, .. } if self.entry.m.end == Some(*sym) => {
                    let end = self.end;
                    self.define(e, *sym, end)?;
                }
                Stmt::Define { sym, value, lo, hi } => {
                    let v = self.checked(e, *sym, value, (*lo, *hi))?;
                    self.define(e, *sym, v)?;
                    fresh.insert(*sym);
                    // Sizes that are defined by consecutive statements are handled together.
                    if !matches!(body.get(i + 1), Some(Stmt::Define { .. })) {
                        self.follow(e, &std::mem::take(&mut fresh))?;
                    }
                }
                Stmt::Call(k) => self.kernel(e, *k)?,
                Stmt::Foreign(f) => self.foreign(e, f)?,
                Stmt::If { cond, then, els } => self.branch(e, cond, [then, els])?,
                Stmt::While { cond, body } => {
                    let (head, inner, done) = (e.b.create_block(), e.b.create_block(), e.b.create_block());
                    e.b.ins().jump(head, &[]);
                    e.b.switch_to_block(head);
                    self.refresh(e, &s.loads(), &s.dims())?;
                    let c = e.truth(cond)?;
                    e.b.ins().brif(c, inner, &[], done, &[]);
                    e.b.switch_to_block(inner);
                    e.b.seal_block(inner);
                    self.inner(e, body)?;
                    e.b.ins().jump(head, &[]);
                    e.b.seal_block(head);
                    e.b.switch_to_block(done);
                    e.b.seal_block(done);
                }
                _ => return e.bug("a kernel statement in the driver"),
            }
        }
        e.b.set_srcloc(around);
        Ok(())
    }
    /// The value of a size, after a check that it is in its range.
    fn checked(
        &mut self,
        e: &mut Emit,
        sym: Sym,
        value: &Expr,
        (lo, hi): (Dim, Option<Dim>),
    ) -> Result<Value> {
        let v = e.value(value)?.v;
        let low = e.dim(lo)?;
        let mut ok = e.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, v, low);
        if let Some(h) = hi {
            let high = e.dim(h)?;
            let below = e.b.ins().icmp(IntCC::SignedLessThanOrEqual, v, high);
            ok = e.b.ins().band(ok, below);
        }
        let (row, shown) = self.range(sym, value, lo, hi);
        e.require_check(ok, row, &mut |e| {
            let bounds = shown.iter().map(|d| e.dim(*d));
            Ok(([Ok(v)].into_iter().chain(bounds).collect::<Result<_>>()?, None))
        })?;
        Ok(v)
    }
    fn branch(&mut self, e: &mut Emit, cond: &Expr, bodies: [&[Stmt]; 2]) -> Result<()> {
        let c = e.truth(cond)?;
        let (t, f, done) = (e.b.create_block(), e.b.create_block(), e.b.create_block());
        e.b.ins().brif(c, t, &[], f, &[]);
        for (block, body) in [t, f].into_iter().zip(bodies) {
            e.b.switch_to_block(block);
            e.b.seal_block(block);
            self.inner(e, body)?;
            e.b.ins().jump(done, &[]);
        }
        e.b.switch_to_block(done);
        e.b.seal_block(done);
        Ok(())
    }
    /// Stores the value of a size in the frame.
    fn define(&mut self, e: &mut Emit, sym: Sym, v: Value) -> Result<()> {
        let Some(at) = self.entry.frame.offset(Word::Sym(sym)) else {
            return e.bug("a size that is not in the frame");
        };
        self.entry.store(e, v, self.frame, at);
        self.known.insert(sym);
        Ok(())
    }
    /// The check for a size out of its range, with the bounds that the message shows.
    fn range(&self, sym: Sym, value: &Expr, lo: Dim, hi: Option<Dim>) -> (Check, Vec<Dim>) {
        let m = self.entry.m;
        let mut shown = vec![];
        let mut bound = |d: Dim| {
            d.as_const().map_or_else(
                || {
                    shown.push(d);
                    "%lld".to_owned()
                },
                |c| c.to_string(),
            )
        };
        let text = match hi {
            Some(h) => format!(
                "size {} is %lld: it must be from {} to {}",
                quoted(m.syms.name(sym)),
                bound(lo),
                bound(h)
            ),
            None => format!("size {} is %lld: it must be at least {}", quoted(m.syms.name(sym)), bound(lo)),
        };
        let source = m.reasons.of_size(sym).map(|r| (r.source.node.clone(), r.source.op.clone()));
        let (node, op) = source.unwrap_or_else(|| self.entry.near(value));
        (Check::new(Status::Dim, text).with_values(1 + shown.len()).at((&node, &op)), shown)
    }
    /// Emits a body. Sizes that it defines are undefined after it.
    fn inner(&mut self, e: &mut Emit, body: &[Stmt]) -> Result<()> {
        let (known, nested) = (self.known.clone(), std::mem::replace(&mut self.nested, true));
        self.block(e, body)?;
        (self.known, self.nested) = (known, nested);
        Ok(())
    }
    /// Drops cached values that another path may have changed, and loads the values that the next statement
    /// needs.
    pub(super) fn refresh(&self, e: &mut Emit, loads: &[Buf], dims: &[Dim]) -> Result<()> {
        let m = self.entry.m;
        e.scopes = vec![Scope::default()];
        e.vars.retain(|s, _| m.syms.kind(*s) != SymKind::Runtime);
        e.words.retain(|w, _| !matches!(w, Word::Slot(_) | Word::Sym(_)));
        let mut syms: BTreeSet<Sym> = dims.iter().flat_map(|d| d.syms()).collect();
        for b in loads {
            syms.extend(m.bufs[*b].dims.iter().flat_map(|d| d.syms()));
            let Some((w, _)) = base_of(m, self.entry.frame, self.entry.weights, *b) else {
                return e.bug(format!("buffer {} has no place", m.bufs[*b].name));
            };
            if !e.words.contains_key(&w) {
                let v = self.word(e, w)?;
                e.words.insert(w, v);
            }
        }
        for s in syms {
            if m.syms.kind(s) == SymKind::Runtime {
                let v = self.word(e, Word::Sym(s))?;
                e.vars.insert(s, v);
            }
        }
        Ok(())
    }
    fn word(&self, e: &mut Emit, w: Word) -> Result<Value> {
        match self.entry.frame.offset(w) {
            Some(at) => Ok(self.entry.load(e, self.frame, at)),
            None => e.bug(format!("{w:?} is not in the frame")),
        }
    }
    /// Updates everything that depends on sizes that have just been defined.
    fn follow(&mut self, e: &mut Emit, fresh: &BTreeSet<Sym>) -> Result<()> {
        let due = |known: &HashSet<Sym>, syms: &BTreeSet<Sym>| {
            syms.iter().any(|s| fresh.contains(s)) && syms.iter().all(|s| known.contains(s))
        };
        for (bits, syms, buf) in &self.sizes {
            if due(&self.known, syms) {
                self.refresh(e, &[], &[*bits])?;
                let ok = e.fits(*bits)?;
                let name = quoted(&self.entry.m.bufs[*buf].name);
                e.require_plain(
                    ok,
                    Check::new(Status::Capacity, format!("{name} would be larger than memory can be")),
                )?;
            }
        }
        for (slot, syms) in &self.slots {
            if due(&self.known, syms) {
                let offset = self.entry.m.slots[*slot].offset;
                self.refresh(e, &[], &[offset])?;
                let v = e.dim(offset)?;
                let p = e.b.ins().iadd(self.workspace, v);
                let Some(at) = self.entry.frame.offset(Word::Slot(*slot)) else {
                    return e.bug("a slot that is not in the frame");
                };
                self.entry.store(e, p, self.frame, at);
            }
        }
        for o in &self.outputs {
            if due(&self.known, &o.syms) {
                self.refresh(e, &[], &o.dims)?;
                let mut ok = e.b.ins().iconst(I8, 1);
                for (i, d) in o.dims.iter().enumerate() {
                    let room = self.entry.load(e, o.capacity, 8 * i as i32);
                    let n = e.dim(*d)?;
                    // The check of a size itself follows its definition, and the caller must not be given a
                    // negative dim.
                    if d.as_sym().is_none() {
                        let sound = e.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, n, 0);
                        let row = Check::new(
                            Status::Dim,
                            format!(
                                "output {} dimension {i} would be %lld",
                                quoted(&self.entry.interface.outputs[o.index as usize].name)
                            ),
                        )
                        .with_values(1);
                        e.require_check(sound, row, &mut |_| Ok((vec![n], None)))?;
                    }
                    let enough = e.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, room, n);
                    ok = e.b.ins().band(ok, enough);
                    self.entry.store(e, n, o.list, 8 * i as i32);
                }
                let t = &self.entry.interface.outputs[o.index as usize];
                self.entry.fits(e, ok, t)?;
                let n = e.dim(Dim::product(o.dims.iter().copied()))?;
                let empty = e.b.ins().icmp_imm_s(IntCC::Equal, n, 0);
                let given = e.b.ins().icmp_imm_s(IntCC::NotEqual, e.words[&Word::Output(o.index)], 0);
                let ok = e.b.ins().bor(empty, given);
                e.require_plain(ok, Check::new(Status::Null, format!("output {} is NULL", quoted(&t.name))))?;
            }
        }
        Ok(())
    }
    /// Calls an external function. It gets whole buffers, and no task runs concurrently.
    fn foreign(&self, e: &mut Emit, f: &Foreign) -> Result<()> {
        if let Function::Custom(n) = f.function {
            return self.custom(e, n, f);
        }
        let m = self.entry.m;
        let (&[from], &[to]) = (&f.from[..], &f.to[..]) else { return e.bug("a call with other buffers") };
        let result = to;
        let dims = m.bufs[to].dims.clone();
        let size = m.bufs[from].count();
        self.refresh(e, &[from, to], &dims)?;
        let base = |e: &mut Emit, b: Buf| -> Result<Value> {
            match base_of(m, self.entry.frame, self.entry.weights, b) {
                Some((w, 0)) => Ok(e.words[&w]),
                Some((w, o)) => Ok(e.b.ins().iadd_imm_s(e.words[&w], o)),
                None => e.bug(format!("buffer {} has no place", m.bufs[b].name)),
            }
        };
        let (from, to) = (base(e, from)?, base(e, to)?);
        let size = e.dim(size)?;
        let (format, shape, pixels) = match f.function {
            Function::ImageShape(p) => (p, to, e.b.ins().iconst(I64, 0)),
            Function::ImagePixels(p) => {
                let shape = self.entry.slot(e, 8 * dims.len() as u32);
                for (i, d) in dims.iter().enumerate() {
                    let v = e.dim(*d)?;
                    self.entry.store(e, v, shape, 8 * i as i32);
                }
                (p, shape, to)
            }
            Function::Custom(_) => return e.bug("a custom operator is no decoder"),
        };
        let format = e.b.ins().iconst(I32, format as i64);
        let status = e.call_imported(DECODE_IMAGE, &[from, size, format, shape, pixels]);
        let ok = e.b.ins().icmp_imm_s(IntCC::Equal, status, 0);
        let row = Check::new(
            Status::Value,
            format!("{} cannot be made: the bytes are no image of the format", quoted(&m.bufs[result].name)),
        );
        e.require_plain(ok, row)
    }
    /// Runs a kernel, either directly or as tasks of the caller's `parallel_for`.
    fn kernel(&self, e: &mut Emit, k: Kernel) -> Result<()> {
        let data = &self.entry.m.kernels[k];
        let trip = match data.body.as_slice() {
            [Stmt::For { kind: LoopKind::Par, lo, hi, .. }] => Some(*hi - *lo),
            _ => None,
        };
        let dims: Vec<Dim> = trip.into_iter().chain([data.work]).collect();
        self.refresh(e, &[], &dims)?;
        let n = match trip {
            Some(d) => e.dim(d)?,
            None => e.b.ins().iconst(I64, 1),
        };
        let exec = self.exec;
        let of = (&data.origin, data.name.as_str());
        if let Some(hook) = self.hook {
            self.entry.tell(e, [hook, exec], of, false)?;
        }
        self.entry.launch(e, k, n, trip, [self.frame, self.ctx, exec])?;
        if let Some(hook) = self.hook {
            self.entry.tell(e, [hook, exec], of, true)?;
        }
        Ok(())
    }
}

/// True for a check at the top level of the driver that depends on dim params only: the entry makes it first.
pub(super) fn early(entry: &Entry, s: &Stmt) -> bool {
    matches!(s, Stmt::Check { .. })
        && s.loads().is_empty()
        && !s.dims().into_iter().any(|d| entry.m.syms.at_run_time(d))
}

/// Buffers that the driver and its kernels access, and the outputs.
fn used(entry: &Entry) -> BTreeSet<Buf> {
    let m = entry.m;
    let mut out: BTreeSet<Buf> = m.outputs.iter().copied().collect();
    visit::walk(&m.driver, &mut |s| match s {
        Stmt::Call(k) => {
            out.extend(visit::loads(&m.kernels[*k].body));
            out.extend(visit::stores(&m.kernels[*k].body));
        }
        s => out.extend(s.loads().into_iter().chain(s.writes())),
    });
    out
}
