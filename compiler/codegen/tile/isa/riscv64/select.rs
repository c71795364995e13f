//! Instruction selection: constants and elements in floating-point and integer registers, scheduling of
//! products, permutations of lanes.

use super::memory::NEAR_BASES;
use super::{order, scalars};
use crate::codegen::Map;
use crate::codegen::tile::ir::{Bits, Class, Func, Node, Op, Pred, Un, Value};
use crate::codegen::tile::isa::node;

/// Selects instruction forms.
pub(super) fn forms(f: &mut Func) {
    swaps(f);
    unordered(f);
    let elements = scalars::elements(&f.blocks);
    for b in &mut f.blocks {
        NEAR_BASES.add(b, &mut f.classes);
        order::products(b, &elements, &mut f.classes);
    }
    let taken = scalars::place_elements(f, &elements);
    scalars::place_numbers(f, taken);
    scalars::place_integers(f);
    products(f);
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
                        let v = Value::fresh(&mut f.classes, Class::Vector);
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
                        let d = Value::fresh(&mut f.classes, Class::Mask);
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
