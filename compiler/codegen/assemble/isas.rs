//! Cranelift's code generators of a CPU level, and which of them compiles a function.

use crate::diag::Result;
use crate::target::{Level, Target};
use cranelift_codegen::ir::{Function, Opcode};
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};

/// Bytes of veneers and constants that may be pending in a function with compressed instructions of riscv64.
///
/// The buffer of Cranelift's machine code compares deadlines with the largest island that could follow. Once
/// that comes near the 2 KiB that a compressed jump reaches, it emits an island after every instruction, and
/// the jump around it by a veneer, which overwrites the register that prologues and epilogues of large frames
/// compute with: the code is wrong (0.135). Jumps of four bytes reach 1 MiB and need no veneer. The rest of
/// the 2 KiB is for the largest instruction.
const MOST_PENDING: usize = 1024;
/// Bytes of a veneer of riscv64.
const VENEER: usize = 8;

/// The code generators of a CPU level.
pub(super) struct Isas {
    all: Pair,
    /// The same without compressed instructions, if the level has them.
    uncompressed: Option<Pair>,
}

struct Pair {
    plain: OwnedTargetIsa,
    optimising: OwnedTargetIsa,
}

impl Isas {
    pub(super) fn new(target: &Target, level: &Level, pic: bool) -> Result<Self> {
        let pair = |l: &Level| -> Result<Pair> {
            Ok(Pair { plain: target.isa(l, false, pic)?, optimising: target.isa(l, true, pic)? })
        };
        let uncompressed = level.uncompressed().map(|l| pair(&l)).transpose()?;
        Ok(Isas { all: pair(level)?, uncompressed })
    }
    /// The one for facts of the level.
    pub(super) fn facts(&self) -> &dyn TargetIsa {
        &*self.all.optimising
    }
    /// The one that compiles a function. Tiles are not optimised, which would undo their order.
    pub(super) fn of(&self, func: &Function, tile: bool) -> &dyn TargetIsa {
        let pair = match &self.uncompressed {
            Some(u) if most_pending(func) > MOST_PENDING => u,
            _ => &self.all,
        };
        if tile { &*pair.plain } else { &*pair.optimising }
    }
}

/// Bytes that may be pending at some place of a function: veneers of its branches, and constants.
fn most_pending(func: &Function) -> usize {
    let dfg = &func.dfg;
    let mut bytes: usize = dfg.constants.iter().map(|(_, c)| c.len()).sum();
    for inst in func.layout.blocks().flat_map(|b| func.layout.block_insts(b)) {
        let data = &dfg.insts[inst];
        let branches = data.branch_destination(&dfg.jump_tables, &dfg.exception_tables).len();
        let constant = matches!(data.opcode(), Opcode::Iconst | Opcode::F32const | Opcode::F64const);
        bytes += branches * VENEER + if constant { size_of::<u64>() } else { 0 };
    }
    bytes
}

#[cfg(test)]
mod tests;
