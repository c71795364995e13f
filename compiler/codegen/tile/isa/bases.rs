//! Base registers near accesses: where several are further away from their base than displacements reach,
//! another register with an address in the middle of them is worth the addition that makes it.

use super::node;
use crate::codegen::Map;
use crate::codegen::tile::ir::{Block, Class, Mem, Node, Op, Value};

/// Instructions before the first access at which its base is made.
const EARLY: usize = 4;

/// An access: its displacement, and its instruction.
pub(super) type Far = (i32, usize);

/// What is far on a machine.
pub(super) struct Rule {
    /// The memory operand of an instruction if it is out of reach.
    pub far: fn(&Node) -> Option<Mem>,
    /// Bytes that displacements from one base reach, half of them before it.
    pub reach: i32,
    /// Whether accesses that one base reaches, in ascending order, are worth it.
    pub worth: fn(&[Far]) -> bool,
    /// Maximum bases of a block: they are registers.
    pub most: usize,
}

/// A base to make.
struct Base {
    of: Value,
    /// Distance from the old one.
    distance: i32,
    accesses: Vec<usize>,
}

impl Rule {
    /// Adds bases to a block.
    pub fn add(&self, b: &mut Block, classes: &mut Vec<Class>) {
        let mut far: Map<Value, Vec<Far>> = Map::default();
        let mut order: Vec<Value> = vec![];
        for (i, n) in b.nodes.iter().enumerate() {
            if let Some(m) = (self.far)(n) {
                far.entry(m.base)
                    .or_insert_with(|| {
                        order.push(m.base);
                        vec![]
                    })
                    .push((m.disp, i));
            }
        }
        let all = order.into_iter().flat_map(|of| self.bases(of, far.remove(&of).unwrap_or_default()));
        let bases: Vec<Base> = all.take(self.most).collect();
        let mut made: Vec<(usize, Node)> = vec![];
        for base in bases {
            let Some(first) = base.accesses.iter().min() else { continue };
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
            for i in base.accesses {
                if let Some(m) = &mut b.nodes[i].mem {
                    *m = Mem::at(register, m.disp - base.distance);
                }
            }
        }
        made.sort_by_key(|m| std::cmp::Reverse(m.0));
        made.into_iter().for_each(|(at, n)| b.nodes.insert(at, n));
    }
    /// The bases that are worth it for accesses to one base.
    fn bases(&self, of: Value, mut accesses: Vec<Far>) -> Vec<Base> {
        accesses.sort_unstable();
        let mut out = vec![];
        let mut rest = accesses.as_slice();
        while let Some((first, _)) = rest.first() {
            let reached = rest.iter().take_while(|l| l.0.wrapping_sub(*first) < self.reach).count();
            let (group, behind) = rest.split_at(reached);
            rest = behind;
            if (self.worth)(group) {
                let distance = first.saturating_add(self.reach / 2);
                out.push(Base { of, distance, accesses: group.iter().map(|l| l.1).collect() });
            }
        }
        out
    }
}
