//! Placement of the constants of a tile.
//!
//! The builder defines each constant once, in a register at the entry. If the accumulators of a tile fill the
//! registers, the coefficients of an activation after its loops would spill accumulators in every step. If
//! not all constants fit, they are rematerialized at their uses: as operands read from the literals after the
//! code (AVX-512 broadcasts one element, AVX2 reads whole vectors), or in registers loaded just before.
//! Innermost loops with free registers load their constants before they begin.

use super::live::{self, pressure};
use crate::codegen::tile::ir::{Bin, Block, Class, Func, Line, Literal, Node, Op, Value};
use crate::codegen::{Map, Set};

/// Vector registers reserved for temporaries of instruction forms.
const SPARE: usize = 1;
/// The same if arithmetic reads registers only: loads need some, too.
const SPARE_FOR_LOADS: usize = 4;

/// Mask registers.
const MASKS: usize = 7;

/// Rematerializes tables and constants if registers do not suffice; `folds`: instructions read constants from
/// memory.
pub(super) fn place(f: &mut Func, folds: bool) {
    if !f.width.masks_are_vectors() {
        let masks = made(f, |op| matches!(op, Op::FirstLanes(_) | Op::SomeLanes(_)));
        place_near_uses(f, Class::Mask, &masks, &Map::default(), MASKS);
    }
    let (tables, constants) = (made(f, |op| matches!(op, Op::Table(_))), constants(f));
    let registers = f.width.registers() - SPARE;
    place_near_uses(f, Class::Vector, &tables, &constants, registers);
    place_constants(f, folds);
}

/// Values of the entry that would cause spills in a loop are defined near their uses: before an innermost
/// loop, or once in a block. `others` do not count, since they move, too.
fn place_near_uses(
    f: &mut Func,
    class: Class,
    values: &Map<Value, Op>,
    others: &Map<Value, Op>,
    registers: usize,
) {
    if values.is_empty() {
        return;
    }
    let most = pressure(f, class, &|v| others.contains_key(v));
    if most.iter().max().is_none_or(|n| *n <= registers) {
        return;
    }
    let mut inside = vec![false; f.blocks.len()];
    for (head, latch) in innermost(&f.blocks) {
        let own = used(&f.blocks[head..=latch], values);
        inside[head..=latch].fill(make_before(f, (head, latch), values, own));
    }
    for i in (0..f.blocks.len()).filter(|i| !inside[*i]) {
        let mut copies = Copies::new(values);
        let mut out = vec![];
        for mut n in std::mem::take(&mut f.blocks[i].nodes) {
            if n.def.is_some_and(|d| values.contains_key(&d)) {
                continue;
            }
            n.args.iter_mut().for_each(|v| *v = copies.of(f, *v, &mut out));
            out.push(n);
        }
        copies.hand_over(f, i, &mut out);
        f.blocks[i].nodes = out;
    }
}

/// The values that the entry defines with operations accepted by `keep`.
fn made(f: &Func, keep: impl Fn(&Op) -> bool) -> Map<Value, Op> {
    let nodes = f.blocks.first().map_or(&[][..], |b| &b.nodes);
    nodes.iter().filter(|n| keep(&n.op)).filter_map(|n| Some((n.def?, n.op))).collect()
}

fn constants(f: &Func) -> Map<Value, Op> {
    made(f, |op| op.is_constant())
}

/// The values of `originals` that the blocks use, in the order of their first uses.
fn used(blocks: &[Block], originals: &Map<Value, Op>) -> Vec<Value> {
    let (mut own, mut seen) = (vec![], Set::default());
    let args = blocks.iter().flat_map(|b| b.nodes.iter().flat_map(|n| &n.args).chain(&b.jump_args));
    own.extend(args.filter(|v| originals.contains_key(v) && seen.insert(**v)));
    own
}

/// Defines copies before a loop, and uses them in it. False if there is no block before it.
fn make_before(
    f: &mut Func,
    (head, latch): (usize, usize),
    originals: &Map<Value, Op>,
    own: impl IntoIterator<Item = Value>,
) -> bool {
    let Some(before) = f.blocks[head].preds.iter().copied().find(|p| *p < head) else { return false };
    let (mut copies, mut nodes) = (Copies::new(originals), vec![]);
    own.into_iter().for_each(|v| {
        copies.of(f, v, &mut nodes);
    });
    let end = f.blocks[before].nodes.len() - 1;
    f.blocks[before].nodes.splice(end..end, nodes);
    for b in &mut f.blocks[head..=latch] {
        let args = b.nodes.iter_mut().flat_map(|n| &mut n.args).chain(&mut b.jump_args);
        args.for_each(|v| *v = copies.made.get(v).copied().unwrap_or(*v));
    }
    true
}

/// Copies of tables or constants for a part of a function.
struct Copies<'a> {
    originals: &'a Map<Value, Op>,
    made: Map<Value, Value>,
}

impl<'a> Copies<'a> {
    fn new(originals: &'a Map<Value, Op>) -> Self {
        Copies { originals, made: Map::default() }
    }
    /// The copy of an original, defined on first use; other values are returned unchanged.
    fn of(&mut self, f: &mut Func, v: Value, nodes: &mut Vec<Node>) -> Value {
        match self.made.get(&v) {
            Some(copy) => *copy,
            None => self.another(f, v, nodes),
        }
    }
    /// A new copy, which later uses share.
    fn another(&mut self, f: &mut Func, v: Value, nodes: &mut Vec<Node>) -> Value {
        let Some(op) = self.originals.get(&v) else { return v };
        let (node, copy) = fresh(f, *op, v);
        nodes.push(node);
        self.made.insert(v, copy);
        copy
    }
    /// Copies of values that block `i` (with nodes `out`) passes to its successor are defined before its
    /// jump.
    fn hand_over(&mut self, f: &mut Func, i: usize, out: &mut Vec<Node>) {
        let mut handed = std::mem::take(&mut f.blocks[i].jump_args);
        let mut nodes = vec![];
        handed.iter_mut().for_each(|v| *v = self.of(f, *v, &mut nodes));
        f.blocks[i].jump_args = handed;
        let end = out.len() - 1;
        out.splice(end..end, nodes);
    }
}

/// Rematerializes constants.
fn place_constants(f: &mut Func, folds: bool) {
    let constants = constants(f);
    if constants.is_empty() {
        return;
    }
    let pressure = pressure(f, Class::Vector, &|v| constants.contains_key(v));
    if !folds {
        return place_near(f, &constants, &pressure);
    }
    let registers = f.width.registers() - SPARE;
    if pressure.iter().max().copied().unwrap_or(0) + constants.len() <= registers {
        return;
    }
    // An innermost loop keeps constants in registers if it has enough of them.
    let mut inside = vec![false; f.blocks.len()];
    for (head, latch) in innermost(&f.blocks) {
        let own = used(&f.blocks[head..=latch], &constants);
        let most = pressure[head..=latch].iter().max().copied().unwrap_or(0);
        let fits = most + own.len() <= registers;
        inside[head..=latch].fill(fits && make_before(f, (head, latch), &constants, own));
    }
    for i in (0..f.blocks.len()).filter(|i| !inside[*i]) {
        let nodes = std::mem::take(&mut f.blocks[i].nodes);
        let mut out = Vec::with_capacity(nodes.len() + nodes.len() / 4);
        for mut n in nodes {
            if n.def.is_some_and(|d| constants.contains_key(&d)) {
                continue;
            }
            fold(&mut n, &constants);
            let mut copies = Copies::new(&constants);
            n.args.iter_mut().for_each(|v| *v = copies.another(f, *v, &mut out));
            out.push(n);
        }
        Copies::new(&constants).hand_over(f, i, &mut out);
        f.blocks[i].nodes = out;
    }
}

/// The same if arithmetic reads registers only. The addend of a multiply-add is overwritten, so that copying
/// a constant costs as much as loading it. Of the other constants, an innermost loop keeps as many as it has
/// free registers.
fn place_near(f: &mut Func, constants: &Map<Value, Op>, pressure: &[usize]) {
    let registers = f.width.registers() - SPARE_FOR_LOADS;
    for (head, latch) in innermost(&f.blocks) {
        let mut own: Vec<(Value, usize)> = vec![];
        for n in f.blocks[head..=latch].iter().flat_map(|b| &b.nodes) {
            for (k, v) in n.args.iter().enumerate().filter(|(_, v)| constants.contains_key(v)) {
                let counts = usize::from(k != overwritten(n));
                match own.iter_mut().find(|o| o.0 == *v) {
                    Some(o) => o.1 += counts,
                    None => own.push((*v, counts)),
                }
            }
        }
        let most = pressure[head..=latch].iter().max().copied().unwrap_or(0);
        own.retain(|o| o.1 > 0);
        own.sort_by_key(|o| std::cmp::Reverse(o.1));
        own.truncate(registers.saturating_sub(most));
        make_before(f, (head, latch), constants, own.into_iter().map(|o| o.0));
    }
    for i in 0..f.blocks.len() {
        let kept = kept_between_uses(f, i, constants, registers);
        let mut copies = Copies::new(constants);
        let mut out = Vec::with_capacity(f.blocks[i].nodes.len() * 5 / 4);
        for (at, mut n) in std::mem::take(&mut f.blocks[i].nodes).into_iter().enumerate() {
            if n.def.is_some_and(|d| constants.contains_key(&d)) {
                continue;
            }
            let sum = overwritten(&n);
            for (k, v) in n.args.iter_mut().enumerate() {
                *v = match (kept.contains(&(at, *v)), k != sum) {
                    (true, true) => copies.of(f, *v, &mut out),
                    (false, true) => copies.another(f, *v, &mut out),
                    (_, false) => Copies::new(constants).another(f, *v, &mut out),
                };
            }
            out.push(n);
        }
        Copies::new(constants).hand_over(f, i, &mut out);
        f.blocks[i].nodes = out;
    }
}

/// The operand that an instruction overwrites: the addend.
fn overwritten(n: &Node) -> usize {
    if matches!(n.op, Op::Fma { .. }) { 2 } else { n.args.len() }
}

/// Uses of constants in a block, by instruction index, that reuse the copy of the previous use: as many as
/// registers allow, closest uses first.
fn kept_between_uses(
    f: &Func,
    block: usize,
    constants: &Map<Value, Op>,
    registers: usize,
) -> Set<(usize, Value)> {
    let nodes = &f.blocks[block].nodes;
    let mut last: Map<Value, usize> = Map::default();
    let mut gaps: Vec<(usize, usize, Value)> = vec![];
    for (at, n) in nodes.iter().enumerate() {
        let own = overwritten(n);
        for (_, v) in n.args.iter().enumerate().filter(|(k, v)| *k != own && constants.contains_key(v)) {
            if let Some(from) = last.insert(*v, at) {
                gaps.push((from, at, *v));
            }
        }
    }
    if gaps.is_empty() {
        return Set::default();
    }
    gaps.sort_by_key(|g| g.1 - g.0);
    let mut taken = live::at_nodes(f, block, &|v| constants.contains_key(v));
    let mut kept = Set::default();
    for (from, to, v) in gaps {
        if taken[from..=to].iter().all(|n| *n < registers) {
            taken[from..=to].iter_mut().for_each(|n| *n += 1);
            kept.insert((to, v));
        }
    }
    kept
}

/// Defines a new value by `op`, of the class of `original`.
fn fresh(f: &mut Func, op: Op, original: Value) -> (Node, Value) {
    let class = f.classes[original.0 as usize];
    let v = Value::fresh(&mut f.classes, class);
    let node = Node { op, args: vec![], mem: None, literal: None, def: Some(v), line: Line::default() };
    (node, v)
}

/// Folds a constant into the memory operand of an instruction, if possible.
fn fold(n: &mut Node, constants: &Map<Value, Op>) {
    let known = |v: &Value| match constants.get(v) {
        Some(Op::Const(x)) => Some(Literal::from(*x)),
        Some(Op::Literal(k, bits)) => Some(Literal::Passed(*k, *bits)),
        _ => None,
    };
    if n.mem.is_some() {
        return;
    }
    match (n.op, n.args.as_slice()) {
        // Reads whole vectors at any length.
        (Op::Bin(Bin::MulAddPairs | Bin::MulAddBytes | Bin::AddWords, _), _) => {}
        (Op::Bin(op, bits), &[a, b]) => {
            // The memory operand must have the size that the instruction expects.
            let known = |v: &Value| known(v).filter(|x| x.bits() == bits);
            if let Some(x) = known(&b) {
                (n.args, n.literal) = (vec![a], Some(x));
            } else if let (Some(x), true) = (known(&a), commutes(op)) {
                (n.args, n.literal) = (vec![b], Some(x));
            }
        }
        (Op::Fma { neg, bits }, &[a, b, c]) => {
            if let Some(x) = known(&c) {
                (n.args, n.literal) = (vec![a, b], Some(x));
            } else if let Some((x, y)) = known(&b).map(|x| (x, a)).or_else(|| known(&a).map(|x| (x, b))) {
                (n.op, n.args, n.literal) = (Op::Fma231 { neg, bits }, vec![c, y], Some(x));
            }
        }
        _ => {}
    }
}

fn commutes(op: Bin) -> bool {
    matches!(
        op,
        Bin::Add
            | Bin::Mul
            | Bin::And
            | Bin::Or
            | Bin::Xor
            | Bin::IAdd
            | Bin::IMul
            | Bin::IMin
            | Bin::IMax
            | Bin::UMin
            | Bin::UMax
    )
}

/// Loops without loops inside: first and last block. Blocks of a loop are together.
pub(super) fn innermost(blocks: &[Block]) -> Vec<(usize, usize)> {
    let all: Vec<(usize, usize)> = blocks
        .iter()
        .enumerate()
        .flat_map(|(i, b)| b.succs.iter().filter(move |s| **s <= i).map(move |s| (*s, i)))
        .collect();
    all.iter().copied().filter(|l| !all.iter().any(|o| o != l && l.0 <= o.0 && o.1 <= l.1)).collect()
}
