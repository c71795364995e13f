//! Cranelift's code generators of a CPU level, and which of them compiles a function.

use crate::diag::Result;
use crate::target::{Level, Target};
use cranelift_codegen::ir::{Block, Function, InstructionData};
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use rustc_hash::FxHashMap;

/// Bytes of veneers and constants that may be pending in a function with compressed instructions of riscv64.
///
/// The buffer of Cranelift's machine code compares deadlines with the largest island that could follow. Once
/// that comes near the 2 KiB that a compressed jump reaches, it emits an island after every instruction, and
/// the jump around it by a veneer, which overwrites the register that prologues and epilogues of large frames
/// compute with: the code is wrong (0.135). Jumps of four bytes reach 1 MiB and need no veneer. The rest of
/// the 2 KiB is for the largest instruction.
const MOST_PENDING: usize = 1536;
/// Bytes of a veneer of riscv64. The buffer counts one for every branch and every use of a constant.
const VENEER: usize = 8;
/// Instructions after which the buffer has emitted an island that resolves branches to known blocks, if as
/// many bytes as [`MOST_PENDING`] could be pending.
const WINDOW: usize = 1024;

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

/// The largest number of bytes that may be pending at some place of a function: veneers of branches to later
/// blocks, and everything that the last [`WINDOW`] instructions add.
fn most_pending(func: &Function) -> usize {
    let (dfg, layout) = (&func.dfg, &func.layout);
    // Cold blocks come last.
    let (cold, mut blocks): (Vec<Block>, Vec<Block>) = layout.blocks().partition(|b| layout.is_cold(*b));
    blocks.extend(cold);
    let place: FxHashMap<Block, usize> = blocks.iter().enumerate().map(|(i, b)| (*b, i)).collect();
    let mut ends = vec![0; blocks.len()];
    // Bytes of branches to later blocks, and of all that was added, before each instruction.
    let (mut open, mut added, mut most) = (0, 0, 0);
    let mut before = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        open -= ends[i];
        for inst in layout.block_insts(*block) {
            before.push((open, added));
            let data = &dfg.insts[inst];
            added += match data {
                InstructionData::UnaryImm { imm, .. } if i32::try_from(imm.bits()).is_err() => VENEER + 8,
                InstructionData::UnaryIeee64 { .. } => VENEER + 8,
                InstructionData::UnaryConst { constant_handle, .. } => {
                    VENEER + dfg.constants.get(*constant_handle).len()
                }
                _ => 0,
            };
            for target in data.branch_destination(&dfg.jump_tables, &dfg.exception_tables) {
                let to = place[&target.block(&dfg.value_lists)];
                // The next block is reached without a branch.
                if to != i + 1 {
                    added += VENEER;
                }
                if to > i + 1 {
                    open += VENEER;
                    ends[to] += VENEER;
                }
            }
            let (open, start) = before[before.len().saturating_sub(WINDOW)];
            most = most.max(open + added - start);
        }
    }
    most
}

#[cfg(test)]
mod tests;
