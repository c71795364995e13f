//! Statements -> control flow. Statements that fit a tile become a call of it.

use super::func::{Emit, NoTile, Slot, TILE_NAMESPACE};
use crate::codegen::tile;
use crate::diag::Result;
use crate::nest::{Buf, LoopKind, Status, Stmt};
use crate::sym::Dim;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{
    AbiParam, ExtFuncData, ExternalName, InstBuilder, Signature, SourceLoc, UserExternalName,
};
use cranelift_codegen::isa::CallConv;

/// Arguments of a tile that take no longer than the branch around a loop without iterations.
const FEW_ARGS: usize = 6;

impl Emit<'_, '_> {
    /// Drops cached loads that a store may change.
    pub(super) fn forget_loads(&mut self, b: Buf) {
        let b = self.m.storage(b);
        let m = self.m;
        for s in &mut self.scopes {
            s.loads.retain(|(x, ..), _| !m.overlaps(*x, b));
        }
    }
    pub fn block(&mut self, body: &[Stmt]) -> Result<()> {
        let (outer, around) = (self.misfit, self.b.srcloc());
        let r = self.tiles_or_statements(body);
        self.misfit = outer;
        self.b.set_srcloc(around);
        r
    }
    /// Sets the source line of the code emitted from here on.
    pub(super) fn locate(&mut self, s: &Stmt) {
        if let Some(line) = self.lines.and_then(|l| l.of(s)) {
            self.b.set_srcloc(SourceLoc::new(line));
        }
    }
    fn tiles_or_statements(&mut self, body: &[Stmt]) -> Result<()> {
        if let Some(first) = body.first() {
            self.locate(first);
        }
        if self.wide_tile(body)? {
            return Ok(());
        }
        let enclosing = self.misfit;
        for s in body {
            self.locate(s);
            if body.len() == 1 || !self.wide_tile(std::slice::from_ref(s))? {
                self.stmt(s)?;
            }
            self.misfit = enclosing;
        }
        Ok(())
    }
    /// Emits a call of a tile if the statements fit one.
    pub(super) fn wide_tile(&mut self, body: &[Stmt]) -> Result<bool> {
        let Some(vectors) = self.vectors.filter(|_| self.lanes.is_none()) else { return Ok(false) };
        let body = if let [Stmt::Tile { body }] = body { body } else { body };
        // A copy of statements that are not a tile is none either.
        let key = (body.as_ptr() as usize, body.len());
        if let Some(reason) = self.misfits.get(&key) {
            self.misfit = Some(*reason).filter(|r| *r != tile::NOT_INSIDE).or(self.misfit);
            return Ok(false);
        }
        let setting =
            tile::Setting { m: self.m, vectors, substitute: &|d| self.substituted(d), lines: self.lines };
        let tile = match tile::translate(setting, body) {
            Ok(tile) => tile,
            Err(reason) => {
                self.misfits.insert(key, reason);
                // If statements only lack their context, the reason of the enclosing statements is reported.
                if reason != tile::NOT_INSIDE {
                    self.misfit = Some(reason);
                }
                let reason = self.misfit.unwrap_or(reason);
                if let [Stmt::For { kind: LoopKind::Vec(_), var, .. }] = body {
                    self.no_tiles.push(NoTile { var: *var, reason });
                }
                return Ok(false);
            }
        };
        match body {
            [Stmt::For { kind: LoopKind::Seq | LoopKind::Par, lo, hi, .. }] if tile.args.len() > FEW_ARGS => {
                self.unless_empty(*hi - *lo, |e| e.call_tile(tile, body))?;
            }
            _ => self.call_tile(tile, body)?,
        }
        Ok(true)
    }
    /// Emits code that runs only if a loop has iterations.
    fn unless_empty(&mut self, trip: Dim, emit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let trip = self.m.syms.simplify(self.substituted(trip));
        if self.m.syms.is_pos(trip) {
            return emit(self);
        }
        let n = self.dim(trip)?;
        let any = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, n, 0);
        self.only_if(any, emit)
    }
    /// Emits a call of a tile, and the check of its result.
    fn call_tile(&mut self, tile: tile::Tile, body: &[Stmt]) -> Result<()> {
        let pointers = tile.args.iter().filter_map(|a| match a {
            tile::Arg::Pointer { buf, linear, size } => Some((*buf, *linear, *size)),
            tile::Arg::Number(_) => None,
        });
        self.series(&pointers.collect::<Vec<_>>())?;
        let args = tile
            .args
            .iter()
            .map(|a| match a {
                tile::Arg::Pointer { buf, linear, size } => self.pointer(*buf, *linear, *size),
                tile::Arg::Number(d) => self.dim(*d),
            })
            .collect::<Result<Vec<_>>>()?;
        let mut sig = Signature::new(CallConv::SystemV);
        sig.params = vec![AbiParam::new(I64); args.len()];
        if tile.checks.is_some() {
            sig.returns = vec![AbiParam::new(I32)];
        }
        let signature = self.b.import_signature(sig);
        let index = self.tiles.len() as u32;
        self.tiles.push(tile.func);
        let name =
            self.b.func.declare_imported_user_function(UserExternalName { namespace: TILE_NAMESPACE, index });
        let f = self.b.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: true,
            patchable: false,
        });
        let call = self.b.ins().call(f, &args);
        if let Some(outside) = self.b.inst_results(call).first().copied() {
            let ok = self.b.ins().icmp_imm_s(IntCC::Equal, outside, 0);
            let status =
                if tile.checks == Some(tile::Check::Divisor) { Status::Value } else { Status::Index };
            self.require(ok, status);
        }
        crate::nest::visit::stores(body).into_iter().for_each(|b| self.forget_loads(b));
        Ok(())
    }
    pub(super) fn stmt(&mut self, s: &Stmt) -> Result<()> {
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
            Stmt::Tile { body } => self.block(body),
            // Only tiles use it.
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
                // Either branch may have stored.
                self.scopes.iter_mut().for_each(|s| s.loads.clear());
                Ok(())
            }
            Stmt::While { cond, body } => {
                let (head, inner, done) =
                    (self.b.create_block(), self.b.create_block(), self.b.create_block());
                self.b.ins().jump(head, &[]);
                self.b.switch_to_block(head);
                self.push();
                self.scopes.iter_mut().for_each(|s| s.loads.clear());
                let c = self.truth(cond)?;
                // The exit is the first successor, as in counted loops.
                let over = self.b.ins().icmp_imm_s(IntCC::Equal, c, 0);
                self.b.ins().brif(over, done, &[], inner, &[]);
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
            Stmt::Define { .. } | Stmt::Call(_) | Stmt::Foreign(_) => {
                self.bug("a driver statement inside a kernel")
            }
        }
    }
}
