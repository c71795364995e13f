//! Accumulation of f16 products in f16 (FEAT_FP16). A function may allow that a few products of f16 are
//! accumulated in f16 ([`Func::halves`]). A loop with at most that many steps then carries accumulators of
//! eight f16, which combine two adjacent vectors of a row, and multiplies unconverted operands. After the
//! loop they are added in f32 to the initial values. Long reductions consist of nested loops.
//!
//! The error of a sum of f16 grows with the partial sums that are rounded: the products of an iteration are
//! added up for themselves, and their sum then to that of the iterations before. Registers hold the former;
//! the latter wait in memory, in the shade of the products.

use super::near;
use crate::codegen::tile::ir::Bits::B32;
use crate::codegen::tile::ir::{Bin, Block, Class, Form, Func, Line, Mem, Node, Number, Op, Un, Value};
use crate::codegen::tile::isa::node;
use crate::codegen::{Map, Set};
use crate::nest::{HALVES, HALVES_IN_SEQUENCE};

/// Bytes of four elements.
const FOUR: i32 = 8;
/// Products of an iteration that are added up for themselves.
const APART: usize = 4;

/// A reduction step: the element of a row, and four adjacent elements of a row of columns.
#[derive(Clone, Copy)]
struct Step {
    /// Index of the instruction.
    at: usize,
    element: Value,
    vector: Value,
}

/// An accumulator that a loop carries.
struct Sum {
    /// Index of the loop parameter.
    param: usize,
    /// Its value after an iteration.
    end: Value,
    steps: Vec<Step>,
}

/// A loop of one block.
struct Loop {
    head: usize,
    enter: usize,
    latch: usize,
    exit: usize,
}

/// Replaces f32 accumulators by f16 ones where a function allows it.
pub(super) fn sums(f: &mut Func) {
    for head in 0..f.blocks.len() {
        if let Some(l) = find(f, head) {
            rewrite(f, &l);
        }
    }
}

/// The loop of a block that branches to itself, if its trip count is constant.
fn find(f: &Func, head: usize) -> Option<Loop> {
    let b = &f.blocks[head];
    let &[latch, exit] = b.succs.as_slice() else { return None };
    let back = &f.blocks[latch];
    let empty = matches!(back.nodes.as_slice(), [n] if n.op == Op::Jump);
    if !empty || back.succs != [head] || f.blocks[exit].preds != [head] || !f.blocks[exit].params.is_empty() {
        return None;
    }
    let enter = b.preds.iter().copied().find(|p| *p != latch)?;
    (b.preds.len() == 2 && f.blocks[enter].succs == [head]).then_some(Loop { head, enter, latch, exit })
}

/// Trip count of a loop whose counter begins at 0.
fn iterations(f: &Func, l: &Loop) -> Option<i64> {
    let b = &f.blocks[l.head];
    let last = b.nodes.last()?;
    let (Op::BranchLess(Some(end)), [next]) = (last.op, last.args.as_slice()) else { return None };
    let made = |v: Value| f.blocks.iter().flat_map(|b| &b.nodes).find(|n| n.def == Some(v));
    let step = made(*next)?;
    let (Op::AddImm(by), [counter]) = (step.op, step.args.as_slice()) else { return None };
    let at = b.params.iter().position(|p| p == counter)?;
    let first = made(*f.blocks[l.enter].jump_args.get(at)?)?;
    (first.op == Op::Int(0) && by > 0 && f.blocks[l.latch].jump_args.get(at) == Some(next))
        .then(|| (i64::from(end) + i64::from(by) - 1) / i64::from(by))
}

/// The accumulators of a loop that only add products of f16.
fn carried(f: &Func, l: &Loop) -> Vec<Sum> {
    let b = &f.blocks[l.head];
    let mut made: Map<Value, usize> = Map::default();
    let mut used: Map<Value, usize> = Map::default();
    for (i, n) in b.nodes.iter().enumerate() {
        if n.op.is_memory() && n.def.is_none() && !matches!(n.op, Op::Prefetch { .. }) {
            return vec![];
        }
        made.extend(n.def.map(|d| (d, i)));
        n.args.iter().for_each(|v| *used.entry(*v).or_default() += 1);
    }
    let half = |v: Value, op: Op| {
        made.get(&v).map(|i| &b.nodes[*i]).is_some_and(|n| {
            let address = |i: &usize| matches!(b.nodes[*i].op, Op::Add | Op::AddImm(_));
            let place = |m: Mem| m.index.is_none() && made.get(&m.base).is_none_or(address);
            n.op == op && n.args.is_empty() && n.mem.is_some_and(place)
        })
    };
    // The product that uses a value as its addend.
    let adds: Map<Value, usize> = b
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| n.op == Op::Fma { neg: false, bits: B32 } && n.args.len() == 3)
        .map(|(i, n)| (n.args[2], i))
        .collect();
    // Values that other blocks read, and their number of uses.
    let mut read: Map<Value, usize> = Map::default();
    for (i, o) in f.blocks.iter().enumerate() {
        let nodes = o.nodes.iter().filter(|_| i != l.head).flat_map(|n| &n.args);
        nodes.chain(&o.jump_args).for_each(|v| *read.entry(*v).or_default() += 1);
    }
    let mut found = vec![];
    for (param, first) in b.params.iter().enumerate() {
        let (mut end, mut steps) = (*first, vec![]);
        while let (Some(at), Some(1), None) = (adds.get(&end).copied(), used.get(&end), read.get(&end)) {
            let (x, y) = (b.nodes[at].args[0], b.nodes[at].args[1]);
            let (element, vector) = if half(x, Op::Broadcast(Form::F16)) { (x, y) } else { (y, x) };
            let factors = half(element, Op::Broadcast(Form::F16)) && half(vector, Op::Load(Form::F16));
            let Some(sum) = b.nodes[at].def.filter(|_| factors) else { break };
            steps.push(Step { at, element, vector });
            end = sum;
        }
        let back = f.blocks[l.latch].jump_args.get(param) == Some(&end);
        if !steps.is_empty() && back && !used.contains_key(&end) && !read.contains_key(first) {
            found.push(Sum { param, end, steps });
        }
    }
    // One that becomes two.
    found.retain(|s| f.blocks[l.latch].jump_args.iter().filter(|v| **v == s.end).count() == 1);
    found
}

/// The address of a loaded value.
fn place(b: &Block, v: Value) -> Option<Mem> {
    b.nodes.iter().find(|n| n.def == Some(v)).and_then(|n| n.mem)
}

/// True if accumulator `b` multiplies the same elements by the vectors following those of `a`.
fn beside(block: &Block, a: &Sum, b: &Sum) -> bool {
    a.steps.len() == b.steps.len()
        && a.steps.iter().zip(&b.steps).all(|(x, y)| {
            let places = (place(block, x.vector), place(block, y.vector));
            let (Some(m), Some(n)) = places else { return false };
            x.element == y.element && m.base == n.base && n.disp.wrapping_sub(m.disp) == FOUR
        })
}

/// The combined register of two adjacent accumulators.
struct Pair {
    first: Sum,
    second: Option<Sum>,
    /// The loop parameter that replaces theirs.
    carried: Value,
}

fn rewrite(f: &mut Func, l: &Loop) {
    let Some(turns) = iterations(f, l) else { return };
    let mut left = carried(f, l);
    left.retain(|s| {
        let most = if s.steps.len() >= APART { HALVES } else { HALVES_IN_SEQUENCE };
        turns.saturating_mul(s.steps.len() as i64) <= most
    });
    if left.is_empty() {
        return;
    }
    let mut pairs = vec![];
    while !left.is_empty() {
        let first = left.remove(0);
        let next = left.iter().position(|s| beside(&f.blocks[l.head], &first, s));
        let second = next.map(|i| left.remove(i));
        pairs.push(Pair { first, second, carried: Value::fresh(&mut f.classes, Class::Vector) });
    }
    let line = f.blocks[l.head].nodes.first().map_or(Line::default(), |n| n.line);
    let begins = f.blocks[l.enter].jump_args.clone();
    let ends = products(f, l, &pairs);
    // What the loop carries.
    let zero = Value::fresh(&mut f.classes, Class::Vector);
    let enter = &mut f.blocks[l.enter].nodes;
    enter.insert(enter.len().saturating_sub(1), node(Op::Const(Number::Word(0)), vec![], Some(zero), line));
    let gone: Set<usize> =
        pairs.iter().flat_map(|p| p.second.iter().chain([&p.first])).map(|s| s.param).collect();
    let keep = |of: &mut Vec<Value>| {
        let mut i = 0;
        of.retain(|_| {
            i += 1;
            !gone.contains(&(i - 1))
        });
    };
    keep(&mut f.blocks[l.head].params);
    keep(&mut f.blocks[l.enter].jump_args);
    keep(&mut f.blocks[l.latch].jump_args);
    for (p, end) in pairs.iter().zip(&ends) {
        f.blocks[l.head].params.push(p.carried);
        f.blocks[l.enter].jump_args.push(zero);
        f.blocks[l.latch].jump_args.push(*end);
    }
    // After the loop.
    let constants: Set<Value> = f
        .blocks
        .iter()
        .flat_map(|b| &b.nodes)
        .filter(|n| matches!(n.op, Op::Const(x) if x.is_zero()))
        .filter_map(|n| n.def)
        .collect();
    let mut after = vec![];
    let mut put: Map<Value, Value> = Map::default();
    for (p, end) in pairs.iter().zip(&ends) {
        for (upper, sum) in [(false, Some(&p.first)), (true, p.second.as_ref())] {
            let Some(sum) = sum else { continue };
            let part = Value::fresh(&mut f.classes, Class::Vector);
            after.push(node(Op::Un(Un::Whole { upper }, B32), vec![*end], Some(part), line));
            let begin = begins[sum.param];
            let whole = if constants.contains(&begin) {
                part
            } else {
                let whole = Value::fresh(&mut f.classes, Class::Vector);
                after.push(node(Op::Bin(Bin::Add, B32), vec![begin, part], Some(whole), line));
                whole
            };
            put.insert(sum.end, whole);
        }
    }
    for b in &mut f.blocks {
        let args = b.nodes.iter_mut().flat_map(|n| &mut n.args);
        for v in args.chain(&mut b.jump_args) {
            *v = put.get(v).copied().unwrap_or(*v);
        }
    }
    f.blocks[l.exit].nodes.splice(0..0, after);
}

/// The products of a loop in f16; returns the accumulators after an iteration.
fn products(f: &mut Func, l: &Loop, pairs: &[Pair]) -> Vec<Value> {
    let classes = &mut f.classes;
    let b = &mut f.blocks[l.head];
    let lanes = lanes(b, pairs);
    let position: Map<Value, usize> =
        b.nodes.iter().enumerate().filter_map(|(i, n)| Some((n.def?, i))).collect();
    let mut nodes: Vec<Vec<Node>> = b.nodes.iter().map(|n| vec![n.clone()]).collect();
    let mut held: Map<Mem, Value> = Map::default();
    let mut columns: Map<(Value, bool), Value> = Map::default();
    let mut ends = vec![];
    let mut totals = vec![];
    for p in pairs {
        let apart = p.first.steps.len() >= APART;
        let mut sum = (!apart).then_some(p.carried);
        for (i, x) in p.first.steps.iter().enumerate() {
            let (Some((at, count, lane)), Some(near)) = (lanes.get(&x.element), place(b, x.vector)) else {
                continue;
            };
            let line = b.nodes[x.at].line;
            let load = |op: Op, mem: Mem, def: Value| Node {
                op,
                args: vec![],
                mem: Some(mem),
                literal: None,
                def: Some(def),
                line,
            };
            let holder = *held.entry(*at).or_insert_with(|| {
                let def = Value::fresh(classes, Class::Vector);
                let op = match count {
                    8 => Op::Load(Form::B32),
                    4 => Op::LoadFirst(Form::B32, 2),
                    2 => Op::LoadFirst(Form::B32, 1),
                    // In the lower half of a lane of 32 bits.
                    _ => Op::LoadFirst(Form::U16, 1),
                };
                // At the start of the block, or behind what computes its address.
                match position.get(&at.base) {
                    Some(i) => nodes[*i].push(load(op, *at, def)),
                    None => nodes[0].insert(0, load(op, *at, def)),
                }
                def
            });
            let vector = *columns.entry((x.vector, p.second.is_some())).or_insert_with(|| {
                let def = Value::fresh(classes, Class::Vector);
                let op = if p.second.is_some() { Op::Load(Form::B32) } else { Op::LoadFirst(Form::B32, 2) };
                if let Some(i) = position.get(&x.vector) {
                    nodes[*i].push(load(op, near, def));
                }
                def
            });
            let def = Value::fresh(classes, Class::Vector);
            nodes[x.at].clear();
            let (op, args) = match sum {
                Some(sum) => (Op::FmaHalves { lane: *lane }, vec![sum, vector, holder]),
                None => (Op::MulHalves { lane: *lane }, vec![vector, holder]),
            };
            nodes[x.at].push(node(op, args, Some(def), line));
            if let Some(y) = p.second.as_ref().and_then(|s| s.steps.get(i)) {
                nodes[y.at].clear();
            }
            sum = Some(def);
        }
        let Some(sum) = sum else { continue };
        if apart {
            let total = Value::fresh(classes, Class::Vector);
            totals.push(node(Op::BinHalves(Bin::Add), vec![p.carried, sum], Some(total), Line::default()));
            ends.push(total);
        } else {
            ends.push(sum);
        }
    }
    // Before the exit.
    if let Some(last) = nodes.last_mut() {
        last.splice(0..0, totals);
    }
    b.nodes = nodes.into_iter().flatten().collect();
    // Remove loads without uses.
    let used: Set<Value> = b.nodes.iter().flat_map(|n| n.args.iter().copied()).collect();
    let dead = |n: &Node| {
        matches!(n.op, Op::Broadcast(Form::F16) | Op::Load(Form::F16))
            && n.def.is_some_and(|d| !used.contains(&d))
    };
    b.nodes.retain(|n| !dead(n));
    ends
}

/// The elements of a block's products: the address and number of elements loaded together, and the lane of
/// each.
fn lanes(b: &Block, pairs: &[Pair]) -> Map<Value, (Mem, usize, u8)> {
    // Elements of rows by base: displacements and values.
    let mut rows: Map<Value, Vec<(i32, Value)>> = Map::default();
    let mut seen: Set<Value> = Set::default();
    for s in pairs.iter().flat_map(|p| &p.first.steps) {
        if let (true, Some(m)) = (seen.insert(s.element), place(b, s.element)) {
            rows.entry(m.base).or_default().push((m.disp, s.element));
        }
    }
    let mut found = Map::default();
    for (base, mut list) in rows {
        list.sort_unstable();
        let places: Vec<i32> = list.iter().map(|e| e.0).collect();
        for w in near::windows(&places, 2, &[8, 4, 2]) {
            let at = Mem::at(base, w.first);
            for (i, lane) in w.elements {
                found.insert(list[i].1, (at, w.count, lane));
            }
        }
    }
    found
}
