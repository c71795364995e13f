//! Base registers near loads. A load of a vector whose displacement is in bytes is one operation on every
//! core, one with a displacement in elements two on some, and one of two vectors three; displacements in
//! bytes reach 256 bytes in both directions ([`is_near`]). Where several loads are further away from their
//! base, another register with an address in the middle of them is worth the addition that makes it.

use super::memory::is_near;
use crate::codegen::Map;
use crate::codegen::tile::ir::{Block, Class, Form, Func, Mem, Node, Op, Value};
use crate::codegen::tile::isa::node;
use crate::codegen::tile::live;

/// Bytes that displacements from one base reach.
const REACH: i32 = 512;
/// Operations that a base has to save, one of which is its own.
const ENOUGH: usize = 2;
/// Maximum bases of a block: they are registers.
const MOST: usize = 16;
/// Live vectors up to which a block gets bases. More of them are accumulators, whose products take longer than
/// the loads, and leave the register allocator no choice.
const VECTORS: usize = 28;
/// Displacements of loads of two vectors.
const OF_PAIRS: std::ops::RangeInclusive<i32> = -1024..=1008;
/// Instructions before the first load at which its base is made.
const EARLY: usize = 4;

/// A load: its displacement, and its instruction.
type Load = (i32, usize);

/// A base to make.
struct Base {
    of: Value,
    /// Distance from the old one.
    distance: i32,
    loads: Vec<usize>,
}

/// Adds bases to the blocks of a function.
pub(super) fn blocks(f: &mut Func) {
    let wanted = |b: &Block| b.nodes.iter().filter_map(loaded_far).count() >= ENOUGH;
    if !f.blocks.iter().any(wanted) {
        return;
    }
    for (i, vectors) in live::pressure(f, &|_| false).into_iter().enumerate() {
        if vectors <= VECTORS {
            add(&mut f.blocks[i], &mut f.classes);
        }
    }
}

/// Adds bases to a block.
fn add(b: &mut Block, classes: &mut Vec<Class>) {
    let mut far: Map<Value, Vec<Load>> = Map::default();
    let mut order: Vec<Value> = vec![];
    for (i, n) in b.nodes.iter().enumerate() {
        if let Some(m) = loaded_far(n) {
            far.entry(m.base)
                .or_insert_with(|| {
                    order.push(m.base);
                    vec![]
                })
                .push((m.disp, i));
        }
    }
    let all = order.into_iter().flat_map(|base| bases(base, far.remove(&base).unwrap_or_default()));
    let bases: Vec<Base> = all.take(MOST).collect();
    let mut made: Vec<(usize, Node)> = vec![];
    for base in bases {
        let Some(first) = base.loads.iter().min() else { continue };
        let defined = b.nodes.iter().position(|n| n.def == Some(base.of)).map_or(0, |i| i + 1);
        // Behind what the entry receives.
        let defined = defined.max(usize::from(b.nodes.first().is_some_and(|n| n.op == Op::Args)));
        let register = Value::fresh(classes, Class::Int);
        let line = b.nodes[*first].line;
        let address = Node {
            mem: Some(Mem::at(base.of, base.distance)),
            ..node(Op::Address, vec![], Some(register), line)
        };
        made.push((first.saturating_sub(EARLY).max(defined), address));
        for i in base.loads {
            if let Some(m) = &mut b.nodes[i].mem {
                *m = Mem::at(register, m.disp - base.distance);
            }
        }
    }
    made.sort_by_key(|m| std::cmp::Reverse(m.0));
    made.into_iter().for_each(|(at, n)| b.nodes.insert(at, n));
}

/// The place of a load of vectors in memory order, without an index, that is far from its base.
fn loaded_far(n: &Node) -> Option<Mem> {
    let loads = matches!(n.op, Op::Load(Form::B32 | Form::B64) | Op::LoadFirst(Form::B32 | Form::B64, _));
    n.mem.filter(|m| loads && m.index.is_none() && !m.each && n.args.is_empty() && !is_near(m.disp.into()))
}

/// The bases that are worth it for loads from one base.
fn bases(of: Value, mut loads: Vec<Load>) -> Vec<Base> {
    loads.sort_unstable();
    let mut out = vec![];
    let mut rest = loads.as_slice();
    while let Some((first, _)) = rest.first() {
        let (group, behind) =
            rest.split_at(rest.iter().take_while(|l| l.0.wrapping_sub(*first) < REACH).count());
        rest = behind;
        if saved(group) >= ENOUGH {
            let distance = first.saturating_add(REACH / 2);
            out.push(Base { of, distance, loads: group.iter().map(|l| l.1).collect() });
        }
    }
    out
}

/// Operations that displacements in bytes save: one for each load, or for two of adjacent vectors, which
/// might have been one instruction; two where this needs an address.
fn saved(group: &[Load]) -> usize {
    let mut saved = 0;
    let mut i = 0;
    while i < group.len() {
        let both = group.get(i + 1).is_some_and(|next| next.0 - group[i].0 == 16);
        saved += 1 + usize::from(both && !OF_PAIRS.contains(&group[i].0));
        i += 1 + usize::from(both);
    }
    saved
}
