//! Instruction selection: constants and elements in floating-point and integer registers, scheduling of
//! products, permutations of lanes.

use super::{order, scalars};
use crate::codegen::tile::ir::{Bits, Block, Class, Func, Line, Node, Op, Pred, Un, Value};
use crate::codegen::{Map, Set};

/// Selects instruction forms.
pub(super) fn forms(f: &mut Func) {
    swaps(f);
    unordered(f);
    let elements = scalars::elements(&f.blocks);
    for b in &mut f.blocks {
        order::products(b, &elements);
    }
    let taken = scalars::place_elements(f, &elements);
    scalars::place_numbers(f, taken);
    scalars::place_integers(f);
    products(f);
}

/// An instruction without memory operand and literal.
pub(super) fn node(op: Op, args: Vec<Value>, def: Option<Value>, line: Line) -> Node {
    Node { op, args, mem: None, literal: None, def, line }
}

/// A fresh value of a class.
pub(super) fn fresh(f: &mut Func, c: Class) -> Value {
    f.classes.push(c);
    Value(f.classes.len() as u32 - 1)
}

/// Expands exchanges of lanes to permutations by an index vector.
fn swaps(f: &mut Func) {
    for i in 0..f.blocks.len() {
        let mut from: Map<Op, Value> = Map::default();
        let mut out = vec![];
        for mut n in std::mem::take(&mut f.blocks[i].nodes) {
            if let Op::Un(Un::Swap(k), bits) = n.op {
                let lane = bits_lanes(k, bits);
                let numbers = Op::LanesSwapped(lane, bits);
                let v = match from.get(&numbers) {
                    Some(v) => *v,
                    None => {
                        let v = fresh(f, Class::Vector);
                        out.push(node(numbers, vec![], Some(v), n.line));
                        from.insert(numbers, v);
                        v
                    }
                };
                n.op = Op::Permuted(bits);
                n.args.push(v);
            }
            out.push(n);
        }
        f.blocks[i].nodes = out;
    }
}

/// Expands unordered comparisons: each value is compared with itself.
fn unordered(f: &mut Func) {
    for i in 0..f.blocks.len() {
        let mut out = vec![];
        for n in std::mem::take(&mut f.blocks[i].nodes) {
            match (n.op, n.args.as_slice()) {
                (Op::Cmp(Pred::Unordered, _), &[a, b]) if a != b => {
                    let each = [a, b].map(|v| {
                        let d = fresh(f, Class::Mask);
                        out.push(node(n.op, vec![v, v], Some(d), n.line));
                        d
                    });
                    out.push(Node { op: Op::MaskOr, args: each.to_vec(), ..n });
                }
                _ => out.push(n),
            }
        }
        f.blocks[i].nodes = out;
    }
}

/// A distance in 32-bit lanes, converted to lanes of the given width.
fn bits_lanes(k: u8, bits: Bits) -> u8 {
    if bits == Bits::B64 { k / 2 } else { k }
}

/// The last use of each value, in the block that defines it.
struct LastUses {
    last: Map<Value, usize>,
    defined: Map<Value, usize>,
}

impl LastUses {
    fn of(f: &Func) -> LastUses {
        let mut u = LastUses { last: Map::default(), defined: Map::default() };
        let mut at = 0;
        for (i, b) in f.blocks.iter().enumerate() {
            u.defined.extend(b.params.iter().map(|p| (*p, i)));
            for n in &b.nodes {
                u.last.extend(n.args.iter().map(|v| (*v, at)));
                u.defined.extend(n.def.map(|d| (d, i)));
                at += 1;
            }
            u.last.extend(b.jump_args.iter().map(|v| (*v, at)));
        }
        u
    }
    fn dies(&self, v: Value, block: usize, at: usize) -> bool {
        self.last.get(&v) == Some(&at) && self.defined.get(&v) == Some(&block)
    }
}

/// Multiply-adds overwrite a dead operand: the addend, or a factor.
fn products(f: &mut Func) {
    let uses = LastUses::of(f);
    let mut at = 0;
    for (i, b) in f.blocks.iter_mut().enumerate() {
        for n in &mut b.nodes {
            if let (Op::Fma { neg, bits }, &[x, y, z]) = (n.op, n.args.as_slice()) {
                let dies = |v: Value| uses.dies(v, i, at) && n.args.iter().filter(|a| **a == v).count() == 1;
                (n.op, n.args) = if !dies(z) && dies(x) {
                    (Op::Fma213 { neg, bits }, vec![x, y, z])
                } else if !dies(z) && dies(y) {
                    (Op::Fma213 { neg, bits }, vec![y, x, z])
                } else {
                    (Op::Fma231 { neg, bits }, vec![z, x, y])
                };
            }
            at += 1;
        }
    }
}

/// Values with a use that `as_wanted` does not accept.
pub(super) fn used_otherwise(blocks: &[Block], as_wanted: &dyn Fn(&Node, usize) -> bool) -> Set<Value> {
    let mut out = Set::default();
    for b in blocks {
        for n in &b.nodes {
            out.extend(n.args.iter().enumerate().filter(|(i, _)| !as_wanted(n, *i)).map(|(_, v)| *v));
        }
        out.extend(b.jump_args.iter().copied());
    }
    out
}
