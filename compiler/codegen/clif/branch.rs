//! Branches around a part of the code that yields no values.

use super::func::Emit;
use crate::diag::Result;
use cranelift_codegen::ir::{Block, InstBuilder, Value};

impl Emit<'_, '_> {
    /// Emits `part`, which is executed if `cond` is not zero.
    pub fn only_if(&mut self, cond: Value, part: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (inside, next) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(cond, inside, &[], next, &[]);
        self.side(inside, next, part)
    }
    /// Emits `rare` in a cold block, which is executed if `usual` is zero.
    pub fn unless(&mut self, usual: Value, rare: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (inside, next) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(usual, next, &[], inside, &[]);
        self.b.set_cold_block(inside);
        self.side(inside, next, rare)
    }
    /// Emits `exit` in a cold block, which is executed if `bad` is not zero, and which `exit` ends.
    pub fn exit_if(&mut self, bad: Value, exit: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (out, go) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(bad, out, &[], go, &[]);
        self.b.set_cold_block(out);
        self.enter(out);
        exit(self)?;
        self.enter(go);
        Ok(())
    }
    /// A part of its own scope in block `inside`, and block `next` behind it.
    fn side(&mut self, inside: Block, next: Block, part: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.enter(inside);
        self.push();
        part(self)?;
        self.pop();
        self.b.ins().jump(next, &[]);
        self.enter(next);
        Ok(())
    }
    /// Continues in a block whose predecessors are all known.
    fn enter(&mut self, block: Block) {
        self.b.switch_to_block(block);
        self.b.seal_block(block);
    }
}
