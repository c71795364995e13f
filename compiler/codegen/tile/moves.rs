//! Removes moves of the register allocator whose destination holds the value already.
//!
//! A value that a loop reads from its spill slot is stored back to that slot before the next iteration,
//! though nothing has changed it: regalloc2 places the moves of each block edge by itself. The next load
//! waits for that store. This pass computes which registers and slots hold the same value at each point, a
//! forward dataflow problem whose states are sets of equal pairs, and drops moves between equal ones.

use super::regalloc::Alloc;
use crate::codegen::Set;
use regalloc2::{
    Allocation, Block, Edit, Function as _, Inst, InstOrEdit, MachineEnv, OperandKind, Output, ProgPoint,
};

/// Most moves of a function that is examined; the states of larger ones take long to compute.
const MOST_MOVES: usize = 4096;

/// Registers and slots that hold the same value: the first of a pair is the smaller one.
type Pairs = Set<(Allocation, Allocation)>;

fn pair(a: Allocation, b: Allocation) -> (Allocation, Allocation) {
    if a.bits() < b.bits() { (a, b) } else { (b, a) }
}

/// Removes redundant moves from the result of the allocation of `f`.
pub(super) fn remove_redundant(f: &Alloc, env: &MachineEnv, out: &mut Output) {
    let spills = out.edits.iter().any(|(_, Edit::Move { from, to })| from.is_stack() || to.is_stack());
    if !spills || out.edits.len() > MOST_MOVES {
        return;
    }
    let scratch: Vec<Allocation> =
        env.scratch_by_class.iter().flatten().map(|r| Allocation::reg(*r)).collect();
    let walk = Walk { f, out, scratch: &scratch };
    let n = f.num_blocks();
    // None: not reached so far.
    let mut entry: Vec<Option<Pairs>> = vec![None; n];
    entry[0] = Some(Pairs::default());
    let mut changed = true;
    while changed {
        changed = false;
        for b in 0..n {
            let Some(mut state) = entry[b].clone() else { continue };
            walk.block(b, &mut state, &mut |_| {});
            for s in f.block_succs(Block::new(b)) {
                let to = &mut entry[s.index()];
                let before = to.as_ref().map(Set::len);
                match to {
                    None => *to = Some(state.clone()),
                    Some(known) => known.retain(|p| state.contains(p)),
                }
                changed |= to.as_ref().map(Set::len) != before;
            }
        }
    }
    let mut redundant: Set<usize> = Set::default();
    for (b, state) in entry.into_iter().enumerate() {
        if let Some(mut state) = state {
            walk.block(b, &mut state, &mut |i| {
                redundant.insert(i);
            });
        }
    }
    let mut i = 0;
    out.edits.retain(|_| {
        i += 1;
        !redundant.contains(&(i - 1))
    });
}

/// A function with its allocation.
struct Walk<'a> {
    f: &'a Alloc,
    out: &'a Output,
    /// Registers that instructions may overwrite without an operand.
    scratch: &'a [Allocation],
}

impl Walk<'_> {
    /// Advances a state over a block; calls `redundant` with the index of each redundant move.
    fn block(&self, b: usize, state: &mut Pairs, redundant: &mut dyn FnMut(usize)) {
        let b = Block::new(b);
        let first = ProgPoint::before(self.f.block_insns(b).first());
        let mut edit = self.out.edits.partition_point(|e| e.0 < first);
        for x in self.out.block_insts_and_edits(self.f, b) {
            match x {
                InstOrEdit::Inst(i) => self.inst(i, state),
                InstOrEdit::Edit(Edit::Move { from, to }) => {
                    if from == to || state.contains(&pair(*from, *to)) {
                        redundant(edit);
                    } else {
                        moved(*from, *to, state);
                    }
                    edit += 1;
                }
            }
        }
    }
    fn inst(&self, i: Inst, state: &mut Pairs) {
        if state.is_empty() {
            return;
        }
        let operands = self.f.inst_operands(i).iter().zip(self.out.inst_allocs(i));
        let defined = operands.filter(|(o, _)| o.kind() == OperandKind::Def).map(|(_, a)| *a);
        let clobbered = self.f.inst_clobbers(i).into_iter().map(Allocation::reg);
        let written: Vec<Allocation> = defined.chain(clobbered).chain(self.scratch.iter().copied()).collect();
        state.retain(|(a, b)| !written.contains(a) && !written.contains(b));
    }
}

/// The state after a move.
fn moved(from: Allocation, to: Allocation, state: &mut Pairs) {
    state.retain(|(a, b)| *a != to && *b != to);
    let equal: Vec<Allocation> = state
        .iter()
        .filter_map(|(a, b)| match (*a == from, *b == from) {
            (true, _) => Some(*b),
            (_, true) => Some(*a),
            _ => None,
        })
        .collect();
    state.insert(pair(from, to));
    state.extend(equal.into_iter().map(|a| pair(a, to)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::tile::{isa, regalloc, select, text};

    /// A loop that reads more pointers than there are registers.
    fn loop_over(pointers: usize) -> String {
        let params: Vec<String> = (0..=pointers).map(|i| format!("v{i}")).collect();
        let (sum, i, first) = (100, 101, 200);
        let mut f = format!("tile avx512 ({})\nblock 0\n  args\n", params.join(", "));
        for p in 6..=pointers {
            f += &format!("  v{p}: int = stack_arg.{}\n", p - 6);
        }
        f += "  v90: vector = const.word.0\n  v91: int = int.0\n  jump -> 1 (v91, v90)\n";
        f += &format!("block 1 (v{i}: int, v{sum}: vector)\n");
        let mut last = sum;
        for p in 1..=pointers {
            let (x, s) = (first + 2 * p, first + 2 * p + 1);
            f += &format!("  v{x}: vector = load.b32 [v{p} + 4*v{i}]\n");
            f += &format!("  v{s}: vector = bin.add.b32 v{x} v{last}\n");
            last = s;
        }
        f += &format!("  v92: int = add_imm.16 v{i}\n  branch_less v92 v0 -> 2 3\n");
        f += &format!("block 2\n  jump -> 1 (v92, v{last})\nblock 3\n  store.b32 v{last} [v1]\n  ret\n");
        f
    }

    #[test]
    fn a_loop_does_not_store_what_it_only_reads() {
        let f = text::parse(&loop_over(20)).unwrap();
        let machine = isa::machine(f.width);
        let (alloc, out) = regalloc::allocate(select(&f).unwrap(), machine).unwrap();
        let (mut reloads, mut stores) = (0, 0);
        for b in [1, 2] {
            for x in out.block_insts_and_edits(&alloc, Block::new(b)) {
                if let InstOrEdit::Edit(Edit::Move { from, to }) = x {
                    reloads += usize::from(from.is_stack());
                    stores += usize::from(to.is_stack());
                }
            }
        }
        assert!(reloads > 0, "the loop needs no slot");
        assert_eq!(stores, 0);
    }
}
