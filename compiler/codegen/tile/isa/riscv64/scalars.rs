//! Uniform values that instructions read from another register file: elements of memory and constants from
//! floating-point registers, integers from integer registers. They occupy no vector register.

use super::registers::FLOATS;
use super::table;
use crate::codegen::tile::ir::{Bin, Block, Class, Form, Func, Line, Node, Number, Op, Value};
use crate::codegen::tile::isa::{node, used_otherwise};
use crate::codegen::{Map, Set};

/// The form of an instruction with a floating-point register in place of an argument.
fn with_scalar(n: &Node, argument: usize, f: u8) -> Option<(Op, Vec<Value>)> {
    match (n.op, n.args.as_slice(), argument) {
        (Op::Fma { neg, bits }, &[_, y, z], 0) => Some((Op::FmaScalar { neg, bits, f }, vec![z, y])),
        (Op::Fma { neg, bits }, &[x, _, z], 1) => Some((Op::FmaScalar { neg, bits, f }, vec![z, x])),
        (Op::Bin(op, bits), &[_, y], 0) => {
            table::bin_scalar(op, true)?;
            Some((Op::BinScalar { op, bits, f, reversed: true }, vec![y]))
        }
        (Op::Bin(op, bits), &[x, _], 1) => {
            table::bin_scalar(op, false)?;
            Some((Op::BinScalar { op, bits, f, reversed: false }, vec![x]))
        }
        _ => None,
    }
}

/// True if an instruction has such a form for the argument, and no other argument is equal or satisfies
/// `also`.
fn may_be_scalar(n: &Node, argument: usize, also: &dyn Fn(Value) -> bool) -> bool {
    let other = |(i, v): (usize, &Value)| i != argument && (also(*v) || n.args.get(argument) == Some(v));
    // The addend of a multiply-add must be a vector.
    let factors = if matches!(n.op, Op::Fma { .. }) { 2 } else { n.args.len() };
    with_scalar(n, argument, 0).is_some()
        && !n.args.iter().enumerate().take(factors).any(other)
        && (factors == n.args.len() || n.args.last() != n.args.get(argument))
}

/// Broadcast loads whose uses are all instructions of the same block with a scalar form.
pub(super) fn elements(blocks: &[Block]) -> Set<Value> {
    let mut found: Map<Value, usize> = Map::default();
    for (i, b) in blocks.iter().enumerate() {
        for n in &b.nodes {
            if let (Op::Broadcast(Form::B32 | Form::B64), Some(d), []) = (n.op, n.def, n.args.as_slice()) {
                found.insert(d, i);
            }
        }
    }
    for (i, b) in blocks.iter().enumerate() {
        for n in &b.nodes {
            for k in 0..n.args.len() {
                let v = n.args[k];
                // Of two candidates, the second one remains a vector.
                let also = |o: Value| k == 0 && found.contains_key(&o);
                if found.get(&v).is_some_and(|own| *own != i) || !may_be_scalar(n, k, &also) {
                    found.remove(&v);
                }
            }
        }
        b.jump_args.iter().for_each(|v| _ = found.remove(v));
    }
    found.into_keys().collect()
}

/// Assigns elements to registers while there are free ones; the others remain vectors. Returns the number of
/// registers in use.
pub(super) fn place_elements(f: &mut Func, elements: &Set<Value>) -> usize {
    let mut most = 0;
    for b in &mut f.blocks {
        let mut last: Map<Value, usize> = Map::default();
        for (i, n) in b.nodes.iter().enumerate() {
            last.extend(n.args.iter().filter(|v| elements.contains(v)).map(|v| (*v, i)));
        }
        let mut free: Vec<usize> = (0..FLOATS.len()).rev().collect();
        let mut held: Map<Value, usize> = Map::default();
        for i in 0..b.nodes.len() {
            let n = &mut b.nodes[i];
            if let (Op::Broadcast(form), Some(d)) = (n.op, n.def)
                && elements.contains(&d)
                && last.contains_key(&d)
                && let Some(at) = free.pop()
            {
                most = most.max(at + 1);
                held.insert(d, at);
                (n.op, n.def) = (Op::Element(form, FLOATS[at]), None);
                continue;
            }
            let Some((k, v)) = n.args.iter().copied().enumerate().find(|a| held.contains_key(&a.1)) else {
                continue;
            };
            if let Some(new) = with_scalar(n, k, FLOATS[held[&v]]) {
                (n.op, n.args) = new;
            }
            if last.get(&v) == Some(&i)
                && let Some(at) = held.remove(&v)
            {
                // Reuse the least recently used registers first, since pending instructions may use the
                // others.
                free.insert(0, at);
            }
        }
    }
    most
}

/// Constants defined by the entry or a block.
fn numbers(f: &Func) -> Map<Value, Number> {
    let nodes = f.blocks.iter().flat_map(|b| &b.nodes);
    nodes.filter_map(|n| if let Op::Const(x) = n.op { Some((n.def?, x)) } else { None }).collect()
}

/// Uses of constants for which every use satisfies `can`.
fn wanted(f: &Func, all: &Map<Value, Number>, can: &dyn Fn(&Node, usize) -> bool) -> Vec<(Number, usize)> {
    let otherwise = used_otherwise(&f.blocks, can);
    let mut counts: Vec<(Number, usize)> = vec![];
    for v in f.blocks.iter().flat_map(|b| &b.nodes).flat_map(|n| &n.args) {
        let Some(x) = all.get(v).filter(|_| !otherwise.contains(v)) else { continue };
        match counts.iter_mut().find(|c| c.0 == *x) {
            Some(c) => c.1 += 1,
            None => counts.push((*x, 1)),
        }
    }
    counts.sort_by_key(|c| std::cmp::Reverse(c.1));
    counts
}

/// Assigns constants to the remaining registers, the most used ones first.
pub(super) fn place_numbers(f: &mut Func, taken: usize) {
    let all = numbers(f);
    let none = |v: Value| all.contains_key(&v);
    let can = |n: &Node, k: usize| may_be_scalar(n, k, &none);
    let otherwise = used_otherwise(&f.blocks, &can);
    let chosen: Vec<(Number, u8)> =
        wanted(f, &all, &can).iter().map(|c| c.0).zip(FLOATS[taken..].iter().copied()).collect();
    let held: Map<Value, u8> = all
        .iter()
        .filter(|(v, _)| !otherwise.contains(v))
        .filter_map(|(v, x)| Some((*v, chosen.iter().find(|c| c.0 == *x)?.1)))
        .collect();
    for b in &mut f.blocks {
        b.nodes.retain(|n| n.def.is_none_or(|d| !held.contains_key(&d)));
        for n in &mut b.nodes {
            let found = n.args.iter().enumerate().find_map(|(k, v)| Some((k, *held.get(v)?)));
            if let Some(new) = found.and_then(|(k, register)| with_scalar(n, k, register)) {
                (n.op, n.args) = new;
            }
        }
    }
    let made =
        chosen.iter().map(|(x, register)| node(Op::Number(*x, *register), vec![], None, Line::default()));
    at_entry(f, made.collect());
}

/// Inserts instructions after those that define the parameters.
fn at_entry(f: &mut Func, nodes: Vec<Node>) {
    let Some(entry) = f.blocks.first_mut() else { return };
    let at = entry.nodes.iter().position(|n| !matches!(n.op, Op::Args | Op::StackArg(_))).unwrap_or(0);
    entry.nodes.splice(at..at, nodes);
}

/// The form of an instruction with an integer register in place of an argument.
fn with_int(n: &Node, argument: usize, int: Value) -> Option<(Op, Vec<Value>)> {
    let (Op::Bin(op, bits), &[x, y]) = (n.op, n.args.as_slice()) else { return None };
    table::bin_int(op)?;
    let swaps = !matches!(op, Bin::ISub | Bin::Shl | Bin::Shr | Bin::Sar);
    match argument {
        1 => Some((Op::BinInt(op, bits), vec![x, int])),
        0 if swaps => Some((Op::BinInt(op, bits), vec![y, int])),
        _ => None,
    }
}

/// Assigns integers to integer registers.
pub(super) fn place_integers(f: &mut Func) {
    let all = numbers(f);
    let can = |n: &Node, k: usize| {
        with_int(n, k, Value(0)).is_some()
            && n.args.iter().enumerate().all(|(i, v)| i == k || !all.contains_key(v))
    };
    let otherwise = used_otherwise(&f.blocks, &can);
    let mut made: Vec<(Number, Value)> = vec![];
    for (x, _) in wanted(f, &all, &can) {
        let v = Value::fresh(&mut f.classes, Class::Int);
        made.push((x, v));
    }
    let held: Map<Value, Value> = all
        .iter()
        .filter(|(v, _)| !otherwise.contains(v))
        .filter_map(|(v, x)| Some((*v, made.iter().find(|c| c.0 == *x)?.1)))
        .collect();
    for b in &mut f.blocks {
        b.nodes.retain(|n| n.def.is_none_or(|d| !held.contains_key(&d)));
        for n in &mut b.nodes {
            let found = n.args.iter().enumerate().find_map(|(k, v)| Some((k, *held.get(v)?)));
            if let Some(new) = found.and_then(|(k, int)| with_int(n, k, int)) {
                (n.op, n.args) = new;
            }
        }
    }
    let ints = made.iter().map(|(x, v)| {
        let x = super::constants::as_int(*x);
        node(Op::Int(x), vec![], Some(*v), Line::default())
    });
    let ints = ints.collect();
    at_entry(f, ints);
}
