//! Base registers near loads. A load of a vector whose displacement is in bytes is one operation on every
//! core, one with a displacement in elements two on some, and one of two vectors three; displacements in
//! bytes reach 256 bytes in both directions ([`is_near`]).

use super::memory::is_near;
use crate::codegen::tile::ir::{Block, Class, Form, Func, Mem, Node, Op};
use crate::codegen::tile::isa::bases::{Far, Rule};
use crate::codegen::tile::live;

/// Operations that a base has to save, one of which is its own.
const ENOUGH: usize = 2;
/// Live vectors up to which a block gets bases. More of them are accumulators, whose products take longer
/// than the loads, and leave the register allocator no choice.
const VECTORS: usize = 28;
/// Displacements of loads of two vectors.
const OF_PAIRS: std::ops::RangeInclusive<i32> = -1024..=1008;
const RULE: Rule = Rule { far: loaded_far, reach: 512, worth: |loads| saved(loads) >= ENOUGH, most: 16 };

/// Adds bases to the blocks of a function.
pub(super) fn blocks(f: &mut Func) {
    let wanted = |b: &Block| b.nodes.iter().filter_map(loaded_far).count() >= ENOUGH;
    if !f.blocks.iter().any(wanted) {
        return;
    }
    for (i, vectors) in live::pressure(f, Class::Vector, &|_| false).into_iter().enumerate() {
        if vectors <= VECTORS {
            RULE.add(&mut f.blocks[i], &mut f.classes);
        }
    }
}

/// The place of a load of vectors in memory order, without an index, that is far from its base.
fn loaded_far(n: &Node) -> Option<Mem> {
    let loads = matches!(n.op, Op::Load(Form::B32 | Form::B64) | Op::LoadFirst(Form::B32 | Form::B64, _));
    n.mem.filter(|m| loads && m.index.is_none() && !m.each && n.args.is_empty() && !is_near(m.disp.into()))
}

/// Operations that displacements in bytes save: one for each load, or for two of adjacent vectors, which
/// might have been one instruction; two where this needs an address.
fn saved(group: &[Far]) -> usize {
    let mut saved = 0;
    let mut i = 0;
    while i < group.len() {
        let both = group.get(i + 1).is_some_and(|next| next.0 - group[i].0 == 16);
        saved += 1 + usize::from(both && !OF_PAIRS.contains(&group[i].0));
        i += 1 + usize::from(both);
    }
    saved
}
