//! Loop-invariant code motion of broadcast sizes, of the masks of partial vectors with run-time lengths, and
//! of the positions that lanes read. In a short loop over short rows they would cost more than its work.

use super::Builder;
use crate::codegen::tile::ir::{Block, Mem, Node, Op, Value};
use crate::codegen::{Map, Set};

/// True for cheap operations without side effects that partial vectors repeat. Operations on masks are
/// excluded: a gather clobbers its own copy.
fn moves(op: Op) -> bool {
    matches!(op, Op::Splat(_) | Op::ICmp(..) | Op::UCmp(..))
}

/// True for a gather and for its own copy of a mask, which it clobbers.
fn is_for_gather(n: &Node) -> bool {
    matches!(n.op, Op::Gather(_)) || n.op == Op::MaskAnd && n.args.first() == n.args.get(1)
}

impl Builder {
    /// The next value: operations from here on can be declared as positions.
    pub fn next_value(&self) -> Value {
        Value(self.f.classes.len() as u32)
    }
    /// Operations since `first` compute positions, or load what is never stored: they have no side effects,
    /// and leave loops with invariant operands.
    pub fn are_positions(&mut self, first: Value) {
        self.positions.extend((first.0..self.next_value().0).map(Value));
    }
    fn may_move(&self, n: &Node) -> bool {
        moves(n.op) || n.def.is_some_and(|v| self.positions.contains(&v))
    }
    /// The operands of operations that leave the loop from block `head` to the current one.
    fn operands_of_invariants(&self, head: usize) -> Set<Value> {
        let blocks = &self.f.blocks[head..];
        let mut inside: Set<Value> = blocks.iter().flat_map(|b| b.params.iter().copied()).collect();
        let mut operands: Set<Value> = Set::default();
        for n in blocks.iter().flat_map(|b| &b.nodes) {
            if self.may_move(n) && !n.values().any(|v| inside.contains(&v)) {
                operands.extend(n.values());
            } else {
                inside.extend(n.def);
            }
        }
        operands
    }
    /// Which blocks every iteration of the loop from block `head` to the current one runs, if that matters:
    /// an address that another block accesses may exist only if it runs.
    fn always_run(&self, head: usize) -> Vec<bool> {
        let (blocks, last) = (&self.f.blocks[head..], self.f.blocks.len() - 1);
        let runs = |b: usize| {
            let mut seen = vec![false; blocks.len()];
            let mut open = vec![head];
            while let Some(i) = open.pop().filter(|i| *i != last) {
                let next =
                    blocks[i - head].succs.iter().copied().filter(|s| (head..=last).contains(s) && *s != b);
                for s in next {
                    if !std::mem::replace(&mut seen[s - head], true) {
                        open.push(s);
                    }
                }
            }
            !seen[last - head]
        };
        let accesses = |b: &Block| {
            b.nodes.iter().any(|n| n.mem.is_some() && n.def.is_some_and(|v| self.positions.contains(&v)))
        };
        blocks
            .iter()
            .enumerate()
            .map(|(i, b)| i == 0 || accesses(b) && (i + head == last || runs(i + head)))
            .collect()
    }
    /// Hoists invariant operations out of the loop that begins with block `head` and ends with the current
    /// block, and merges equal ones. `after` is renamed accordingly.
    pub(super) fn hoist(&mut self, head: usize, after: &mut [Value]) {
        let Some(before) = self.f.blocks[head].preds.first().copied() else { return };
        if !self.f.blocks[head..].iter().any(|b| b.nodes.iter().any(|n| self.may_move(n))) {
            return;
        }
        // A constant alone would only occupy a register.
        let operands = self.operands_of_invariants(head);
        let always = self.always_run(head);
        let positions = std::mem::take(&mut self.positions);
        let movable = |n: &Node, v: Value, always: bool| {
            moves(n.op)
                || positions.contains(&v)
                    && (always || n.mem.is_none())
                    && !is_for_gather(n)
                    && (!matches!(n.op, Op::Int(_)) || operands.contains(&v))
        };
        let mut out: Vec<Node> = vec![];
        let mut known: Map<(Op, Vec<Value>, Option<Mem>), Value> = Map::default();
        let mut inside: Set<Value> = Set::default();
        let mut same: Map<Value, Value> = Map::default();
        for (i, b) in self.f.blocks[head..].iter_mut().enumerate() {
            inside.extend(&b.params);
            let mut kept = Vec::with_capacity(b.nodes.len());
            for mut n in std::mem::take(&mut b.nodes) {
                let Some(def) = n.def else {
                    kept.push(n);
                    continue;
                };
                n.values_mut().for_each(|v| *v = same.get(v).copied().unwrap_or(*v));
                if !movable(&n, def, always[i]) || n.values().any(|v| inside.contains(&v)) {
                    inside.insert(def);
                    kept.push(n);
                } else if let Some(v) = known.get(&(n.op, n.args.clone(), n.mem)) {
                    same.insert(def, *v);
                } else {
                    known.insert((n.op, n.args.clone(), n.mem), def);
                    out.push(n);
                }
            }
            b.nodes = kept;
        }
        self.positions = positions;
        if !same.is_empty() {
            let own = |v: &mut Value| *v = same.get(v).copied().unwrap_or(*v);
            for b in &mut self.f.blocks[head..] {
                b.nodes.iter_mut().flat_map(Node::values_mut).chain(&mut b.jump_args).for_each(own);
            }
            after.iter_mut().for_each(own);
        }
        let nodes = &mut self.f.blocks[before].nodes;
        let jump = nodes.len().saturating_sub(1);
        nodes.splice(jump..jump, out);
    }
}
