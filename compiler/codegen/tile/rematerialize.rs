//! Where the constants of a tile are.
//!
//! The builder makes each constant once, in a register at the entry. A tile whose sums fill the registers has
//! none to spare for the coefficients of an activation that runs behind its loops: they would push sums out
//! to memory in every step. Where all do not fit, constants go to where they are used: operands that
//! instructions read from behind the code (AVX-512 broadcasts one element, AVX2 reads whole vectors), or
//! registers that are filled just before; innermost loops with registers to spare fill theirs before they
//! begin.

use crate::codegen::tile::ir::{Bin, Block, Class, Func, Line, Node, Number, Op, Value};
use crate::codegen::{Map, Set};

/// Vector registers that are kept for what instruction forms need on the way.
const SPARE: usize = 1;
/// The same where arithmetic reads registers only: loads need some, too.
const SPARE_FOR_LOADS: usize = 4;

/// Moves tables and constants where registers do not suffice; `folds`: instructions read constants from
/// memory.
pub(super) fn place(f: &mut Func, folds: bool) {
    place_tables(f);
    place_constants(f, folds);
}

/// Tables that would push what lives in a loop out to memory are read where they are used: before an
/// innermost loop, or once in a block.
fn place_tables(f: &mut Func) {
    let made = |keep: &dyn Fn(&Op) -> bool| -> Map<Value, Op> {
        let nodes = f.blocks.first().map_or(&[][..], |b| &b.nodes);
        nodes.iter().filter(|n| keep(&n.op)).filter_map(|n| Some((n.def?, n.op))).collect()
    };
    let tables = made(&|op| matches!(op, Op::Table(_)));
    let constants = made(&|op| matches!(op, Op::Const(_)));
    let most = pressure(f, &|v| constants.contains_key(v));
    if tables.is_empty() || most.iter().max().is_none_or(|n| *n <= f.width.registers() - SPARE) {
        return;
    }
    let mut inside = vec![false; f.blocks.len()];
    for (head, latch) in innermost(&f.blocks) {
        let Some(before) = f.blocks[head].preds.iter().copied().find(|p| *p < head) else { continue };
        inside[head..=latch].fill(true);
        let mut copies = Copies { tables: &tables, of: Map::default() };
        let mut nodes = vec![];
        for i in head..=latch {
            let mut block = std::mem::take(&mut f.blocks[i]);
            let args = block.nodes.iter_mut().flat_map(|n| &mut n.args).chain(&mut block.jump_args);
            args.for_each(|v| copies.put(f, v, &mut nodes));
            f.blocks[i] = block;
        }
        let end = f.blocks[before].nodes.len() - 1;
        f.blocks[before].nodes.splice(end..end, nodes);
    }
    for i in (0..f.blocks.len()).filter(|i| !inside[*i]) {
        let mut copies = Copies { tables: &tables, of: Map::default() };
        let mut out = vec![];
        for mut n in std::mem::take(&mut f.blocks[i].nodes) {
            if n.def.is_some_and(|d| tables.contains_key(&d)) {
                continue;
            }
            n.args.iter_mut().for_each(|v| copies.put(f, v, &mut out));
            out.push(n);
        }
        let mut handed = std::mem::take(&mut f.blocks[i].jump_args);
        let mut nodes = vec![];
        handed.iter_mut().for_each(|v| copies.put(f, v, &mut nodes));
        let end = out.len() - 1;
        out.splice(end..end, nodes);
        (f.blocks[i].jump_args, f.blocks[i].nodes) = (handed, out);
    }
}

/// Copies of tables for a part of a function.
struct Copies<'a> {
    tables: &'a Map<Value, Op>,
    of: Map<Value, Value>,
}

impl Copies<'_> {
    /// Puts the copy in the place of a table; the first time a node makes it.
    fn put(&mut self, f: &mut Func, v: &mut Value, nodes: &mut Vec<Node>) {
        let Some(op) = self.tables.get(v) else { return };
        *v = *self.of.entry(*v).or_insert_with(|| {
            let (node, copy) = fresh(f, *op);
            nodes.push(node);
            copy
        });
    }
}

/// Moves constants.
fn place_constants(f: &mut Func, folds: bool) {
    let constants: Map<Value, Number> = f.blocks.first().map_or_else(Map::default, |b| {
        b.nodes
            .iter()
            .filter_map(|n| if let (Op::Const(x), Some(d)) = (n.op, n.def) { Some((d, x)) } else { None })
            .collect()
    });
    if constants.is_empty() {
        return;
    }
    let pressure = pressure(f, &|v| constants.contains_key(v));
    if !folds {
        return place_near(f, &constants, &pressure);
    }
    let registers = f.width.registers() - SPARE;
    if pressure.iter().max().copied().unwrap_or(0) + constants.len() <= registers {
        return;
    }
    // An innermost loop keeps constants in registers if it has enough of them.
    let loops = innermost(&f.blocks);
    let mut inside = vec![None; f.blocks.len()];
    for (head, latch) in loops {
        let mut own: Vec<Value> = vec![];
        for b in &f.blocks[head..=latch] {
            for v in b.nodes.iter().flat_map(|n| &n.args).chain(&b.jump_args) {
                if constants.contains_key(v) && !own.contains(v) {
                    own.push(*v);
                }
            }
        }
        let before = f.blocks[head].preds.iter().copied().find(|p| *p < head);
        let most = pressure[head..=latch].iter().max().copied().unwrap_or(0);
        let (Some(before), true) = (before, most + own.len() <= registers) else { continue };
        let mut copies: Map<Value, Value> = Map::default();
        for v in own {
            let c = fresh(f, Op::Const(constants[&v]));
            copies.insert(v, c.1);
            let end = f.blocks[before].nodes.len() - 1;
            f.blocks[before].nodes.insert(end, c.0);
        }
        inside[head..=latch].fill(Some(()));
        for b in &mut f.blocks[head..=latch] {
            b.nodes
                .iter_mut()
                .flat_map(|n| &mut n.args)
                .chain(&mut b.jump_args)
                .for_each(|v| *v = copies.get(v).copied().unwrap_or(*v));
        }
    }
    for i in (0..f.blocks.len()).filter(|i| inside[*i].is_none()) {
        let nodes = std::mem::take(&mut f.blocks[i].nodes);
        let mut out = Vec::with_capacity(nodes.len() + nodes.len() / 4);
        for mut n in nodes {
            if n.def.is_some_and(|d| constants.contains_key(&d)) {
                continue;
            }
            fold(&mut n, &constants);
            for k in 0..n.args.len() {
                if let Some(x) = constants.get(&n.args[k]) {
                    let c = fresh(f, Op::Const(*x));
                    out.push(c.0);
                    n.args[k] = c.1;
                }
            }
            out.push(n);
        }
        hand_over(f, i, &constants, &mut out);
        f.blocks[i].nodes = out;
    }
}

/// The same where arithmetic reads registers only. What products are added to is overwritten: a copy of a
/// constant costs as much as the constant. Of the others an innermost loop keeps as many as it has registers
/// for.
fn place_near(f: &mut Func, constants: &Map<Value, Number>, pressure: &[usize]) {
    let registers = f.width.registers() - SPARE_FOR_LOADS;
    for (head, latch) in innermost(&f.blocks) {
        let mut own: Vec<(Value, usize)> = vec![];
        for n in f.blocks[head..=latch].iter().flat_map(|b| &b.nodes) {
            let sum = if matches!(n.op, Op::Fma { .. }) { 2 } else { n.args.len() };
            for (k, v) in n.args.iter().enumerate().filter(|(_, v)| constants.contains_key(v)) {
                let counts = usize::from(k != sum);
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
        let Some(before) = f.blocks[head].preds.iter().copied().find(|p| *p < head) else { continue };
        let mut copies: Map<Value, Value> = Map::default();
        for (v, _) in own {
            let c = fresh(f, Op::Const(constants[&v]));
            copies.insert(v, c.1);
            let end = f.blocks[before].nodes.len() - 1;
            f.blocks[before].nodes.insert(end, c.0);
        }
        for b in &mut f.blocks[head..=latch] {
            b.nodes
                .iter_mut()
                .flat_map(|n| &mut n.args)
                .chain(&mut b.jump_args)
                .for_each(|v| *v = copies.get(v).copied().unwrap_or(*v));
        }
    }
    for i in 0..f.blocks.len() {
        let nodes = std::mem::take(&mut f.blocks[i].nodes);
        let all: Set<Value> =
            nodes.iter().flat_map(|n| &n.args).filter(|v| constants.contains_key(v)).copied().collect();
        // Once for the block, or for each use.
        let once = pressure[i] + all.len() <= registers;
        let mut made: Map<Value, Value> = Map::default();
        let mut out = Vec::with_capacity(nodes.len() + nodes.len() / 4);
        for mut n in nodes {
            if n.def.is_some_and(|d| constants.contains_key(&d)) {
                continue;
            }
            let sum = if matches!(n.op, Op::Fma { .. }) { 2 } else { n.args.len() };
            for k in 0..n.args.len() {
                let v = n.args[k];
                let Some(x) = constants.get(&v) else { continue };
                let c = match made.get(&v) {
                    Some(c) if once && k != sum => *c,
                    _ => {
                        let c = fresh(f, Op::Const(*x));
                        out.push(c.0);
                        if k != sum {
                            made.insert(v, c.1);
                        }
                        c.1
                    }
                };
                n.args[k] = c;
            }
            out.push(n);
        }
        hand_over(f, i, constants, &mut out);
        f.blocks[i].nodes = out;
    }
}

/// Makes the constants that block `i`, whose nodes are `out`, hands over, each once.
fn hand_over(f: &mut Func, i: usize, constants: &Map<Value, Number>, out: &mut Vec<Node>) {
    let mut made: Map<Value, Value> = Map::default();
    for k in 0..f.blocks[i].jump_args.len() {
        let v = f.blocks[i].jump_args[k];
        let Some(x) = constants.get(&v) else { continue };
        let c = match made.get(&v) {
            Some(c) => *c,
            None => {
                let c = fresh(f, Op::Const(*x));
                out.insert(out.len() - 1, c.0);
                made.insert(v, c.1);
                c.1
            }
        };
        f.blocks[i].jump_args[k] = c;
    }
}

/// A constant of its own.
fn fresh(f: &mut Func, op: Op) -> (Node, Value) {
    f.classes.push(Class::Vector);
    let v = Value(f.classes.len() as u32 - 1);
    let node = Node { op, args: vec![], mem: None, literal: None, def: Some(v), line: Line::default() };
    (node, v)
}

/// Makes a constant the memory operand of an instruction, if it can have one there.
fn fold(n: &mut Node, constants: &Map<Value, Number>) {
    let known = |v: &Value| constants.get(v).copied();
    if n.mem.is_some() {
        return;
    }
    match (n.op, n.args.as_slice()) {
        // Reads whole vectors at any length.
        (Op::Bin(Bin::MulAddPairs, _), _) => {}
        (Op::Bin(op, bits), &[a, b]) => {
            // What is read has the size that the instruction expects.
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

/// Loops without loops inside: first and last block. Blocks of a loop stand together.
fn innermost(blocks: &[Block]) -> Vec<(usize, usize)> {
    let all: Vec<(usize, usize)> = blocks
        .iter()
        .enumerate()
        .flat_map(|(i, b)| b.succs.iter().filter(move |s| **s <= i).map(move |s| (*s, i)))
        .collect();
    all.iter().copied().filter(|l| !all.iter().any(|o| o != l && l.0 <= o.0 && o.1 <= l.1)).collect()
}

/// Most vectors that live at once in each block, constants aside.
fn pressure(f: &Func, constant: &dyn Fn(&Value) -> bool) -> Vec<usize> {
    let counts = |v: &Value| f.classes[v.0 as usize] == Class::Vector && !constant(v);
    let mut live_in: Vec<Vec<bool>> = vec![vec![false; f.classes.len()]; f.blocks.len()];
    let mut most = vec![0; f.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (i, b) in f.blocks.iter().enumerate().rev() {
            let mut live = vec![false; f.classes.len()];
            let mut n = 0;
            for s in &b.succs {
                for (l, x) in live.iter_mut().zip(&live_in[*s]) {
                    n += usize::from(*x && !*l);
                    *l |= *x;
                }
            }
            let begin = |v: &Value, live: &mut [bool], n: &mut usize| {
                if counts(v) && !std::mem::replace(&mut live[v.0 as usize], true) {
                    *n += 1;
                }
            };
            let end = |v: &Value, live: &mut [bool], n: &mut usize| {
                if std::mem::replace(&mut live[v.0 as usize], false) {
                    *n -= 1;
                }
            };
            b.jump_args.iter().for_each(|v| begin(v, &mut live, &mut n));
            let mut top = n;
            for node in b.nodes.iter().rev() {
                if let Some(d) = &node.def {
                    end(d, &mut live, &mut n);
                }
                node.args.iter().for_each(|v| begin(v, &mut live, &mut n));
                top = top.max(n);
            }
            b.params.iter().for_each(|v| end(v, &mut live, &mut n));
            most[i] = top;
            if live != live_in[i] {
                live_in[i] = live;
                changed = true;
            }
        }
    }
    most
}
