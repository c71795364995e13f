//! Statements -> control flow. One kernel, one function.

use super::expr::Val;
use crate::codegen::frame::{Frame, Word};
use crate::codegen::weights::Layout;
use crate::codegen::wide;
use crate::codegen::{Map, Set};
use crate::diag::{Failure, Result};
use crate::nest::bounds::Bounds;
use crate::nest::foreign::DECODE_IMAGE;
use crate::nest::{Buf, Expr, Kernel, LoopKind, Module, Reg, Status, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{self, I32, I64};
use cranelift_codegen::ir::{AbiParam, Block, BlockArg, ExtFuncData, ExternalName, FuncRef, Function, InstBuilder, MemFlagsData, Signature, Type, UserExternalName, UserFuncName, Value};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

/// Functions of libm, or others that the object does not have, that a function calls; the number is the index in the user name space 1.
#[derive(Clone, Debug, Default)]
pub struct Libm {
    /// Names in order of first use.
    pub names: Vec<&'static str>,
}

/// A kernel as Cranelift IR.
pub struct KernelCode {
    /// The function.
    pub func: Function,
    /// What it calls.
    pub libm: Libm,
    /// True if the code keeps accumulators in registers in a written order (compile without optimisation).
    pub tile: bool,
    /// Wide tiles that it calls; the number is the index in the user name space [`TILE_NAMESPACE`].
    pub tiles: Vec<wide::Func>,
}

/// Name space of libm functions in `UserExternalName`.
pub const LIBM_NAMESPACE: u32 = 1;

/// Name space of wide tiles in `UserExternalName`.
pub const TILE_NAMESPACE: u32 = 3;

/// What a register stands for.
pub(super) enum Slot {
    Value(Val),
    Acc { vars: Vec<Variable>, ty: ElemType, lanes: u32, shape: Vec<u32> },
}

#[derive(Default)]
pub(super) struct Scope {
    pub dims: Map<Dim, Value>,
    pub ptrs: Map<(Buf, Dim), Value>,
    pub loads: Map<(Buf, Dim, bool), Value>,
    pub splats: Map<Value, Value>,
    pub syms: Vec<Sym>,
}

/// The vector loop we are in.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub sym: Sym,
    /// The variable at lane 0 of the current part: itself, or a number where the loop is one vector.
    pub base: Dim,
    /// Which four lanes of a longer vector.
    pub part: u32,
    /// Set while an expression is emitted lane by lane.
    pub lane: Option<u32>,
}

pub(super) struct Emit<'a, 'b> {
    pub m: &'a Module,
    pub frame_plan: &'a Frame,
    pub weights: &'a Layout,
    pub isa: &'a dyn TargetIsa,
    pub b: FunctionBuilder<'b>,
    pub frame: Value,
    pub scopes: Vec<Scope>,
    pub regs: Map<Reg, Slot>,
    /// Values of loop variables.
    pub vars: Map<Sym, Value>,
    /// Unrolled variables: what stands for them.
    pub unrolled: Map<Sym, Dim>,
    pub lanes: Option<Lanes>,
    pub words: Map<Word, Value>,
    pub fails: Map<Status, Block>,
    pub libm: Libm,
    pub libm_refs: Map<&'static str, FuncRef>,
    pub tile: bool,
    /// Vectors of tiles that are not Cranelift's.
    pub wide: Option<wide::Isa>,
    pub tiles: Vec<wide::Func>,
    /// Statements, by where they stand, that are no tile.
    misfits: Set<(usize, usize)>,
    /// What is known of integers, where constants are sure to be what they are now: indices inside their bounds are not
    /// checked.
    pub bounds: Option<Bounds>,
}

/// `(frame, begin, end) -> status`.
pub fn signature(isa: &dyn TargetIsa) -> Signature {
    let mut s = Signature::new(isa.default_call_conv());
    s.params = vec![AbiParam::new(I64); 3];
    s.returns = vec![AbiParam::new(I32)];
    s
}

/// Signature of a function that the object does not have.
pub fn imported_signature(isa: &dyn TargetIsa, name: &str) -> Signature {
    let mut s = Signature::new(isa.default_call_conv());
    if name == DECODE_IMAGE {
        s.params = [I64, I64, I32, I64, I64].map(AbiParam::new).to_vec();
        s.returns = vec![AbiParam::new(I32)];
    } else {
        let n = if matches!(name, "pow" | "fmod" | "atan2") { 2 } else { 1 };
        s.params = vec![AbiParam::new(types::F64); n];
        s.returns = vec![AbiParam::new(types::F64)];
    }
    s
}

/// Emits one kernel; `embedded`: constants are part of the object, not a file that somebody may change.
pub fn kernel(m: &Module, k: Kernel, frame_plan: &Frame, weights: &Layout, embedded: bool, isa: &dyn TargetIsa, wide: Option<wide::Isa>) -> Result<KernelCode> {
    let mut func = Function::with_name_signature(UserFuncName::user(0, k.as_u32()), signature(isa));
    let mut fcx = FunctionBuilderContext::new();
    let b = FunctionBuilder::new(&mut func, &mut fcx);
    let (mut e, p) = Emit::start(m, frame_plan, weights, isa, b);
    e.wide = wide;
    e.bounds = embedded.then(|| {
        let mut b = Bounds::default();
        b.learn(m, &m.kernels[k].body);
        b
    });
    e.load_words(&m.kernels[k].body)?;
    let own = super::private::find(m, k);
    match m.kernels[k].body.as_slice() {
        _ if let Some(own) = &own => {
            e.vars.insert(own.part, p[1]);
            e.counted(own.var, p[1], p[2], 1, own.body)?;
        }
        [Stmt::For { kind: LoopKind::Par, var, body, .. }] => e.counted(*var, p[1], p[2], 1, body)?,
        body => e.block(body)?,
    }
    let ok = e.b.ins().iconst(I32, 0);
    e.b.ins().return_(&[ok]);
    e.fail_blocks();
    let (libm, tile, tiles) = (e.libm.clone(), e.tile, std::mem::take(&mut e.tiles));
    e.b.seal_all_blocks();
    e.b.finalize(isa.frontend_config());
    Ok(KernelCode { func, libm, tile, tiles })
}

impl<'a, 'b> Emit<'a, 'b> {
    /// Opens a function; its parameters, of which the first is the frame.
    pub fn start(m: &'a Module, frame_plan: &'a Frame, weights: &'a Layout, isa: &'a dyn TargetIsa, mut b: FunctionBuilder<'b>) -> (Self, Vec<Value>) {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        let params = b.block_params(entry).to_vec();
        let frame = params[0];
        let e = Emit {
            m,
            frame_plan,
            weights,
            isa,
            b,
            frame,
            scopes: vec![Scope::default()],
            regs: Map::default(),
            vars: Map::default(),
            unrolled: Map::default(),
            lanes: None,
            words: Map::default(),
            fails: Map::default(),
            libm: Libm::default(),
            libm_refs: Map::default(),
            tile: false,
            wide: None,
            tiles: vec![],
            misfits: Set::default(),
            bounds: None,
        };
        (e, params)
    }
}

impl Emit<'_, '_> {
    pub fn bug<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Failure::bug("codegen", message))
    }
    /// Memory that nothing else in the program traps on.
    pub fn flags(&self) -> MemFlagsData {
        MemFlagsData::new().with_notrap()
    }
    /// Reads every word of the frame that the kernel needs.
    fn load_words(&mut self, body: &[Stmt]) -> Result<()> {
        let mut need = vec![];
        for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
            match crate::codegen::frame::base_of(self.m, self.frame_plan, self.weights, b) {
                Some((w, _)) => need.push(w),
                None => return self.bug(format!("buffer {} has no place", self.m.bufs[b].name)),
            }
        }
        let mut syms = std::collections::BTreeSet::new();
        let mut dims = vec![];
        visit::walk(body, &mut |s| {
            s.clone().map_dims(&mut |d| {
                dims.push(d);
                d
            });
        });
        dims.iter().for_each(|d| syms.extend(d.syms()));
        need.extend(syms.into_iter().filter(|s| crate::codegen::frame::is_frame_sym(self.m, *s)).map(Word::Sym));
        for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
            for d in &self.m.bufs[b].dims {
                need.extend(d.syms().into_iter().map(Word::Sym));
            }
        }
        for w in need {
            if self.words.contains_key(&w) {
                continue;
            }
            let Some(offset) = self.frame_plan.offset(w) else { return self.bug(format!("{w:?} is not in the frame")) };
            let flags = self.flags().with_readonly().with_can_move();
            let v = self.b.ins().load(I64, flags, self.frame, offset);
            self.words.insert(w, v);
            if let Word::Sym(s) = w {
                self.vars.insert(s, v);
            }
        }
        Ok(())
    }
    /// The block that leaves with a status.
    pub fn fail(&mut self, s: Status) -> Block {
        if let Some(b) = self.fails.get(&s) {
            return *b;
        }
        let b = self.b.create_block();
        self.fails.insert(s, b);
        b
    }
    /// Leaves with a status unless `ok` (an i8 truth value).
    pub fn require(&mut self, ok: Value, s: Status) {
        let fail = self.fail(s);
        let go = self.b.create_block();
        self.b.ins().brif(ok, go, &[], fail, &[]);
        self.b.switch_to_block(go);
        self.b.seal_block(go);
    }
    pub fn push(&mut self) {
        self.scopes.push(Scope::default());
    }
    pub fn pop(&mut self) {
        if let Some(s) = self.scopes.pop() {
            for v in s.syms {
                self.vars.remove(&v);
            }
        }
    }
    /// Writes the blocks that leave with a status.
    pub fn fail_blocks(&mut self) {
        let mut fails: Vec<(Status, Block)> = self.fails.drain().collect();
        fails.sort_by_key(|f| f.0 as u8);
        for (status, block) in fails {
            self.b.switch_to_block(block);
            self.b.set_cold_block(block);
            let s = self.b.ins().iconst(I32, i64::from(status as u8));
            self.b.ins().return_(&[s]);
        }
    }
    /// A store may change what was loaded before.
    fn forget_loads(&mut self, b: Buf) {
        let b = self.m.storage(b);
        let m = self.m;
        for s in &mut self.scopes {
            s.loads.retain(|(x, ..), _| !m.overlaps(*x, b));
        }
    }
    pub fn block(&mut self, body: &[Stmt]) -> Result<()> {
        if self.wide_tile(body)? {
            return Ok(());
        }
        let mut i = 0;
        while i < body.len() {
            // A tile among others: accumulators, what sums them up, their store.
            let n = tile_at(&body[i..]);
            if n > 1 && n < body.len() && is_closed(&body[i..], n) && self.wide_tile(&body[i..i + n])? {
                i += n;
                continue;
            }
            let s = &body[i];
            if body.len() == 1 || !self.wide_tile(std::slice::from_ref(s))? {
                self.stmt(s)?;
            }
            i += 1;
        }
        Ok(())
    }
    /// Calls a wide tile for statements that fit one.
    fn wide_tile(&mut self, body: &[Stmt]) -> Result<bool> {
        let Some(isa) = self.wide.filter(|_| self.lanes.is_none()) else { return Ok(false) };
        // A copy of what was no tile is none either.
        let key = (body.as_ptr() as usize, body.len());
        if self.misfits.contains(&key) {
            return Ok(false);
        }
        let Ok(tile) = wide::translate(self.m, isa, body, &|d| self.substituted(d)) else {
            self.misfits.insert(key);
            return Ok(false);
        };
        let args = tile
            .args
            .iter()
            .map(|a| match a {
                wide::Arg::Pointer { buf, linear, size } => self.pointer(*buf, *linear, *size),
                wide::Arg::Number(d) => self.dim(*d),
            })
            .collect::<Result<Vec<_>>>()?;
        let mut sig = Signature::new(CallConv::SystemV);
        sig.params = vec![AbiParam::new(I64); args.len()];
        let signature = self.b.import_signature(sig);
        let index = self.tiles.len() as u32;
        self.tiles.push(tile.func);
        let name = self.b.func.declare_imported_user_function(UserExternalName { namespace: TILE_NAMESPACE, index });
        let f = self.b.import_function(ExtFuncData { name: ExternalName::user(name), signature, colocated: true, patchable: false });
        self.b.ins().call(f, &args);
        crate::nest::visit::stores(body).into_iter().for_each(|b| self.forget_loads(b));
        Ok(true)
    }
    fn stmt(&mut self, s: &Stmt) -> Result<()> {
        match s {
            Stmt::For { kind, var, lo, hi, body } => self.for_(*kind, *var, *lo, *hi, body),
            Stmt::Let { reg, value } => {
                let v = self.value(value)?;
                self.regs.insert(*reg, Slot::Value(v));
                Ok(())
            }
            Stmt::Acc { reg, lanes, shape, init } => self.declare_acc(*reg, *lanes, shape, init),
            Stmt::Set { reg, at, value } => {
                let v = self.value(value)?;
                self.set_acc(*reg, at, v)
            }
            Stmt::Store { buf, at, value } => {
                self.store(*buf, at, value)?;
                self.forget_loads(*buf);
                Ok(())
            }
            // A hint of the wide tiles.
            Stmt::Prefetch { .. } => Ok(()),
            Stmt::If { cond, then, els } => {
                let c = self.truth(cond)?;
                let (t, f, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
                self.b.ins().brif(c, t, &[], f, &[]);
                for (block, body) in [(t, then), (f, els)] {
                    self.b.switch_to_block(block);
                    self.b.seal_block(block);
                    self.push();
                    self.block(body)?;
                    self.pop();
                    self.b.ins().jump(done, &[]);
                }
                self.b.switch_to_block(done);
                self.b.seal_block(done);
                // Either arm may have stored.
                self.scopes.iter_mut().for_each(|s| s.loads.clear());
                Ok(())
            }
            Stmt::While { cond, body } => {
                let (head, inner, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
                self.b.ins().jump(head, &[]);
                self.b.switch_to_block(head);
                self.push();
                self.scopes.iter_mut().for_each(|s| s.loads.clear());
                let c = self.truth(cond)?;
                self.b.ins().brif(c, inner, &[], done, &[]);
                self.b.switch_to_block(inner);
                self.b.seal_block(inner);
                self.block(body)?;
                self.b.ins().jump(head, &[]);
                self.b.seal_block(head);
                self.pop();
                self.b.switch_to_block(done);
                self.b.seal_block(done);
                self.scopes.iter_mut().for_each(|s| s.loads.clear());
                Ok(())
            }
            Stmt::With { sym, value, extent, body } => {
                let shadowed = self.bind(*sym, value, *extent)?;
                let r = self.block(body);
                self.unbind(*sym, shadowed);
                r
            }
            Stmt::Check { cond, status } => {
                let c = self.truth(cond)?;
                self.require(c, *status);
                Ok(())
            }
            Stmt::Define { .. } | Stmt::Call(_) | Stmt::Foreign(_) => self.bug("a driver statement inside a kernel"),
        }
    }
    fn for_(&mut self, kind: LoopKind, var: Sym, lo: Dim, hi: Dim, body: &[Stmt]) -> Result<()> {
        let (lo, hi) = (self.substituted(lo), self.substituted(hi));
        match kind {
            LoopKind::Unroll => {
                let (Some(a), Some(z)) = (lo.as_const(), hi.as_const()) else { return self.bug("an unrolled loop without constant bounds") };
                for i in a..z {
                    self.unrolled.insert(var, Dim::constant(i));
                    self.block(body)?;
                }
                self.unrolled.remove(&var);
                Ok(())
            }
            LoopKind::Seq | LoopKind::Par => {
                if let (Some(a), Some(z)) = (lo.as_const(), hi.as_const())
                    && z <= a
                {
                    return Ok(());
                }
                let (a, z) = (self.dim(lo)?, self.dim(hi)?);
                self.counted(var, a, z, 1, body)
            }
            LoopKind::Vec(n) => {
                if self.lanes.is_some() {
                    return self.bug("nested vector loops");
                }
                self.vector(var, lo, hi, n, body)
            }
        }
    }
    /// A vector loop: whole vectors, four lanes after four lanes, then the lanes of the last, partial one.
    fn vector(&mut self, var: Sym, lo: Dim, hi: Dim, n: u32, body: &[Stmt]) -> Result<()> {
        let step = i64::from(n);
        let trip = self.m.syms.simplify(hi - lo);
        if !n.is_multiple_of(4) {
            return self.bug(format!("vectors of {n} lanes"));
        }
        if let (Some(a), Some(t)) = (lo.as_const(), trip.as_const()) {
            let whole = t.max(0) / step * step;
            if whole == step {
                // Straight code: what it computes stays known for the vectors that follow.
                self.parts(var, lo, n, body)?;
            } else if whole > 0 {
                let (a, z) = (self.dim(lo)?, self.dim(lo + whole)?);
                self.counted(var, a, z, step, body)?;
            }
            return match t.max(0) - whole {
                0 => Ok(()),
                rest => self.partial(var, Dim::constant(a + whole), rest, body),
            };
        }
        let (a, z) = (self.dim(lo)?, self.dim(hi)?);
        if trip.modulo(step).as_const() == Some(0) {
            return self.counted(var, a, z, step, body);
        }
        let count = self.b.ins().isub(z, a);
        let whole = self.floored_to(count, step);
        let end = self.b.ins().iadd(a, whole);
        self.counted(var, a, end, step, body)?;
        if !self.has_lanes(body) {
            return self.counted(var, end, z, 1, body);
        }
        // Accumulators have lanes: each of what is left belongs to a lane of its own.
        self.vars.insert(var, end);
        self.push_sym(var);
        for l in 0..n - 1 {
            let (some, next) = (self.b.create_block(), self.b.create_block());
            let at = self.b.ins().iadd_imm_s(end, i64::from(l));
            let exists = self.b.ins().icmp(IntCC::SignedLessThan, at, z);
            self.b.ins().brif(exists, some, &[], next, &[]);
            self.b.switch_to_block(some);
            self.b.seal_block(some);
            self.push();
            self.lane(var, Dim::sym(var), l, body)?;
            self.pop();
            self.b.ins().jump(next, &[]);
            self.b.switch_to_block(next);
            self.b.seal_block(next);
        }
        self.pop();
        self.scopes.iter_mut().for_each(|s| s.loads.clear());
        Ok(())
    }
    /// n - n mod step for a count; counts below 0 become 0.
    fn floored_to(&mut self, n: Value, step: i64) -> Value {
        let zero = self.b.ins().iconst(I64, 0);
        let n = self.b.ins().smax(n, zero);
        if step & (step - 1) == 0 {
            return self.b.ins().band_imm_s(n, -step);
        }
        let d = self.b.ins().iconst(I64, step);
        let q = self.b.ins().udiv(n, d);
        self.b.ins().imul_imm_s(q, step)
    }
    /// One whole vector.
    fn parts(&mut self, var: Sym, base: Dim, n: u32, body: &[Stmt]) -> Result<()> {
        for part in 0..n / 4 {
            self.lanes = Some(Lanes { sym: var, base: base + i64::from(4 * part), part, lane: None });
            self.block(body)?;
        }
        self.lanes = None;
        Ok(())
    }
    /// One lane of a vector that begins at `base`.
    fn lane(&mut self, var: Sym, base: Dim, l: u32, body: &[Stmt]) -> Result<()> {
        self.lanes = Some(Lanes { sym: var, base: base + i64::from(l / 4 * 4), part: l / 4, lane: Some(l % 4) });
        let r = self.block(body);
        self.lanes = None;
        r
    }
    /// The last, partial vector, of a length known now.
    fn partial(&mut self, var: Sym, base: Dim, rest: i64, body: &[Stmt]) -> Result<()> {
        for part in 0..rest as u32 / 4 {
            self.lanes = Some(Lanes { sym: var, base: base + i64::from(4 * part), part, lane: None });
            self.block(body)?;
        }
        self.lanes = None;
        (rest as u32 / 4 * 4..rest as u32).try_for_each(|l| self.lane(var, base, l, body))
    }
    /// True if a body reads or sets accumulators that have lanes.
    fn has_lanes(&self, body: &[Stmt]) -> bool {
        let laned = |r: &Reg| matches!(self.regs.get(r), Some(Slot::Acc { lanes, .. }) if *lanes > 1);
        let mut found = false;
        crate::nest::visit::walk(body, &mut |s| {
            if let Stmt::Set { reg, .. } = s {
                found |= laned(reg);
            }
        });
        crate::nest::visit::walk_exprs(body, &mut |e| {
            if let Expr::Acc { reg, lane: None, .. } = e {
                found |= laned(reg);
            }
        });
        found
    }
    fn push_sym(&mut self, var: Sym) {
        self.scopes.push(Scope { syms: vec![var], ..Scope::default() });
    }
    /// `for var in (a..z).step_by(step)`, vectors of `step` lanes if it is not 1, tested at the top: a carried value then has one use, which lets loads sink
    /// into its operands.
    fn counted(&mut self, var: Sym, a: Value, z: Value, step: i64, body: &[Stmt]) -> Result<()> {
        self.hoist(body)?;
        // Inside, nothing loaded outside may be reused after a store inside.
        let stored = crate::nest::visit::stores(body);
        stored.into_iter().for_each(|b| self.forget_loads(b));
        let (head, inner, done) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let i = self.b.append_block_param(head, I64);
        self.b.ins().jump(head, &[BlockArg::from(a)]);
        self.b.switch_to_block(head);
        let more = self.b.ins().icmp(IntCC::SignedLessThan, i, z);
        self.b.ins().brif(more, inner, &[], done, &[]);
        self.b.switch_to_block(inner);
        self.b.seal_block(inner);
        self.vars.insert(var, i);
        self.push_sym(var);
        if step > 1 {
            self.parts(var, Dim::sym(var), step as u32, body)?;
        } else {
            self.block(body)?;
        }
        let next = self.b.ins().iadd_imm_s(i, step);
        self.b.ins().jump(head, &[BlockArg::from(next)]);
        self.pop();
        self.b.seal_block(head);
        self.b.switch_to_block(done);
        self.b.seal_block(done);
        Ok(())
    }
    fn declare_acc(&mut self, reg: Reg, lanes: u32, shape: &[u32], init: &Expr) -> Result<()> {
        let ty = self.m.regs[reg].ty;
        // Vectors of four lanes, those of one accumulator side by side.
        let n: u32 = shape.iter().product::<u32>() * lanes.div_ceil(4);
        let saved = self.lanes.take();
        let v = self.value(init)?;
        self.lanes = saved;
        let clif = self.acc_type(ty, lanes)?;
        let v = if lanes > 1 { self.b.ins().splat(clif, v.v) } else { v.v };
        let vars: Vec<Variable> = (0..n).map(|_| self.b.declare_var(clif)).collect();
        for x in &vars {
            self.b.def_var(*x, v);
        }
        if lanes > 1 {
            self.tile = true;
        }
        self.regs.insert(reg, Slot::Acc { vars, ty, lanes, shape: shape.to_vec() });
        Ok(())
    }
    fn acc_type(&self, ty: ElemType, lanes: u32) -> Result<Type> {
        let s = super::convert::scalar_type(ty);
        match lanes {
            1 => Ok(s),
            n if n.is_multiple_of(4) && s == types::F32 => Ok(types::F32X4),
            n if n.is_multiple_of(4) && s == types::I32 => Ok(types::I32X4),
            _ => self.bug(format!("no vectors of {lanes} x {ty}")),
        }
    }
    /// The variable of one accumulator: of the four lanes that are being emitted, if it has lanes.
    pub fn acc(&self, reg: Reg, at: &[Dim]) -> Result<(Variable, ElemType, u32)> {
        self.acc_part(reg, at, self.lanes.map_or(0, |l| l.part))
    }
    /// The variable of four lanes of one accumulator.
    pub fn acc_part(&self, reg: Reg, at: &[Dim], part: u32) -> Result<(Variable, ElemType, u32)> {
        let Some(Slot::Acc { vars, ty, lanes, shape }) = self.regs.get(&reg) else { return self.bug(format!("{reg} is not an accumulator")) };
        let mut i = 0;
        for (d, n) in at.iter().zip(shape) {
            let Some(c) = self.substituted(*d).as_const() else { return self.bug("an accumulator subscript is not a number") };
            if c < 0 || c >= i64::from(*n) {
                return self.bug("an accumulator subscript is out of range");
            }
            i = i * *n as usize + c as usize;
        }
        let part = if *lanes > 1 { part } else { 0 };
        match vars.get(i * lanes.div_ceil(4) as usize + part as usize) {
            Some(v) => Ok((*v, *ty, *lanes)),
            None => self.bug("an accumulator subscript is out of range"),
        }
    }
    fn set_acc(&mut self, reg: Reg, at: &[Dim], v: Val) -> Result<()> {
        let (var, ty, lanes) = self.acc(reg, at)?;
        let v = if let (true, false, Some(l)) = (lanes > 1, v.vec, self.lanes.and_then(|l| l.lane)) {
            let whole = self.b.use_var(var);
            self.b.ins().insertlane(whole, v.v, l as u8)
        } else if lanes > 1 && !v.vec {
            let t = self.acc_type(ty, lanes)?;
            self.b.ins().splat(t, v.v)
        } else if lanes == 1 && v.vec {
            return self.bug("a vector for a scalar accumulator");
        } else {
            v.v
        };
        self.b.def_var(var, v);
        Ok(())
    }
    /// Calls a function that the object does not have: of libm, or what [`crate::nest::Foreign`] calls.
    pub fn call_imported(&mut self, name: &'static str, args: &[Value]) -> Value {
        let r = match self.libm_refs.get(name) {
            Some(r) => *r,
            None => {
                let signature = self.b.import_signature(imported_signature(self.isa, name));
                let index = self.libm.names.len() as u32;
                self.libm.names.push(name);
                let name_ref = self.b.func.declare_imported_user_function(UserExternalName { namespace: LIBM_NAMESPACE, index });
                let r = self.b.import_function(ExtFuncData { name: ExternalName::user(name_ref), signature, colocated: false, patchable: false });
                self.libm_refs.insert(name, r);
                r
            }
        };
        let call = self.b.ins().call(r, args);
        self.b.inst_results(call)[0]
    }
}

/// How many statements from the first on belong to its accumulators: up to the next ones, or to a loop behind their store.
fn tile_at(body: &[Stmt]) -> usize {
    let unrolled = |s: &Stmt| matches!(s, Stmt::For { kind: LoopKind::Unroll, .. });
    match body.first() {
        Some(Stmt::Acc { .. }) => (1..body.len()).find(|i| matches!(body[*i], Stmt::Acc { .. }) || unrolled(&body[*i - 1]) && !unrolled(&body[*i])).unwrap_or(body.len()),
        _ => 1,
    }
}

/// True if nobody behind the first `n` statements reads or sets what these define.
fn is_closed(body: &[Stmt], n: usize) -> bool {
    let own = |r: Reg| body[..n].iter().any(|s| matches!(s, Stmt::Acc { reg, .. } | Stmt::Let { reg, .. } if *reg == r));
    let mut closed = true;
    visit::walk(&body[n..], &mut |s| closed &= !matches!(s, Stmt::Set { reg, .. } if own(*reg)));
    visit::walk_exprs(&body[n..], &mut |e| closed &= !matches!(e, Expr::Reg(r) | Expr::Acc { reg: r, .. } | Expr::Horizontal { reg: r, .. } if own(*r)));
    closed
}
