//! Instruction selection: memory operands and the forms of fused multiply-add.

use super::table::may_read_memory;
use crate::codegen::Map;
use crate::codegen::tile::ir::{Bin, Bits, Block, Form, Mem, Op, Value};

/// Folds loads of whole vectors of `lane` bits each with a single use into that use, and if `each` is true
/// also loads of one element for all lanes; selects FMA forms by the operand that dies.
pub(super) fn forms(blocks: &mut [Block], lane: Bits, each: bool) {
    let form = if lane == Bits::B64 { Form::B64 } else { Form::B32 };
    let mut uses: Map<Value, (usize, usize)> = Map::default();
    let mut defined: Map<Value, usize> = Map::default();
    let mut at = 0;
    for (i, b) in blocks.iter().enumerate() {
        b.params.iter().for_each(|p| {
            defined.insert(*p, i);
        });
        let mut used = |v: Value, at: usize| {
            let u = uses.entry(v).or_default();
            *u = (u.0 + 1, at);
        };
        for n in &b.nodes {
            n.args.iter().for_each(|v| used(*v, at));
            if let Some(m) = &n.mem {
                used(m.base, at);
                if let Some((x, _)) = m.index {
                    used(x, at);
                }
            }
            if let Some(d) = n.def {
                defined.insert(d, i);
            }
            at += 1;
        }
        b.jump_args.iter().for_each(|v| used(*v, at));
    }
    at = 0;
    for (bi, b) in blocks.iter_mut().enumerate() {
        // Loads since the last store, which a use may fold, and whether they are of one element.
        let mut loads: Map<Value, (usize, bool)> = Map::default();
        let mut gone = vec![];
        for i in 0..b.nodes.len() {
            let dies = |v: Value| uses.get(&v).is_some_and(|u| u.1 == at + i) && defined.get(&v) == Some(&bi);
            if let (Op::Fma { neg, bits }, &[x, y, z]) = (b.nodes[i].op, b.nodes[i].args.as_slice()) {
                let (op, args) = if !dies(z) && dies(x) {
                    (Op::Fma213 { neg, bits }, vec![x, y, z])
                } else if !dies(z) && dies(y) {
                    (Op::Fma213 { neg, bits }, vec![y, x, z])
                } else {
                    (Op::Fma231 { neg, bits }, vec![z, x, y])
                };
                b.nodes[i].op = op;
                b.nodes[i].args = args;
            }
            if let (Op::Fma { neg, bits }, &[x, y]) = (b.nodes[i].op, b.nodes[i].args.as_slice()) {
                b.nodes[i].op = Op::Fma213 { neg, bits };
                b.nodes[i].args = if !dies(x) && dies(y) { vec![y, x] } else { vec![x, y] };
            }
            let once = |v: &Value| uses.get(v).is_some_and(|u| u.0 == 1);
            match b.nodes[i].op {
                Op::Load(f) | Op::Broadcast(f) if f == form && b.nodes[i].args.is_empty() => {
                    let broadcasts = matches!(b.nodes[i].op, Op::Broadcast(_));
                    if let Some(d) = b.nodes[i].def.filter(|_| each || !broadcasts) {
                        loads.insert(d, (i, broadcasts));
                    }
                }
                Op::Store(_) | Op::StoreScalar(_) | Op::StoreLane(..) | Op::Scatter(_) => loads.clear(),
                op if may_read_memory(op) && b.nodes[i].literal.is_none() => {
                    let of_lanes = lanes(b.nodes[i].op) == Some(lane);
                    let load = |v: &Value| loads.get(v).copied().filter(|l| once(v) && (of_lanes || !l.1));
                    // Factors of a sum may be exchanged.
                    if let (Op::Fma231 { .. }, &[z, x, y]) = (b.nodes[i].op, b.nodes[i].args.as_slice())
                        && load(&y).is_none()
                        && load(&x).is_some_and(|l| l.1)
                    {
                        b.nodes[i].args = vec![z, y, x];
                    }
                    let load = b.nodes[i].args.last().and_then(load);
                    if let (Some((l, each)), Some(mem)) = (load, load.and_then(|l| b.nodes[l.0].mem)) {
                        b.nodes[i].args.pop();
                        b.nodes[i].mem = Some(Mem { each, ..mem });
                        gone.push(l);
                    }
                }
                _ => {}
            }
        }
        at += b.nodes.len();
        let mut i = 0;
        b.nodes.retain(|_| {
            i += 1;
            !gone.contains(&(i - 1))
        });
    }
}

/// The bits of the lanes of an operation whose memory operand may be one element for all lanes.
fn lanes(op: Op) -> Option<Bits> {
    match op {
        Op::Dot(_) | Op::Dot2 | Op::Permute2 => Some(Bits::B32),
        Op::Fma231 { bits, .. } | Op::Fma213 { bits, .. } => Some(bits),
        // They read whole vectors at any length.
        Op::Bin(Bin::MulAddPairs | Bin::MulAddBytes | Bin::AddWords, _) => None,
        Op::Bin(_, bits) => Some(bits),
        _ => None,
    }
}
