//! Loop-invariant code motion of broadcast sizes and of the masks of partial vectors with run-time lengths.
//! In a short loop over short rows they would cost more than its work.

use super::Builder;
use crate::codegen::tile::ir::{Node, Op, Value};
use crate::codegen::{Map, Set};

/// True for cheap operations without side effects that partial vectors repeat. Operations on masks are
/// excluded: a gather clobbers its own copy.
fn moves(op: Op) -> bool {
    matches!(op, Op::Splat(_) | Op::ICmp(..))
}

impl Builder {
    /// Hoists invariant operations out of the loop that begins with block `head` and ends with the current
    /// block, and merges equal ones. `after` is renamed accordingly.
    pub(super) fn hoist(&mut self, head: usize, after: &mut [Value]) {
        let Some(before) = self.f.blocks[head].preds.first().copied() else { return };
        let mut out: Vec<Node> = vec![];
        let mut known: Map<(Op, Vec<Value>), Value> = Map::default();
        let mut inside: Set<Value> = Set::default();
        let mut same: Map<Value, Value> = Map::default();
        for b in &mut self.f.blocks[head..] {
            inside.extend(&b.params);
            if !b.nodes.iter().any(|n| moves(n.op)) {
                inside.extend(b.nodes.iter().filter_map(|n| n.def));
                continue;
            }
            let mut kept = Vec::with_capacity(b.nodes.len());
            for mut n in std::mem::take(&mut b.nodes) {
                let Some(def) = n.def else {
                    kept.push(n);
                    continue;
                };
                n.args.iter_mut().for_each(|v| *v = same.get(v).copied().unwrap_or(*v));
                if !moves(n.op) || n.args.iter().any(|v| inside.contains(v)) {
                    inside.insert(def);
                    kept.push(n);
                } else if let Some(v) = known.get(&(n.op, n.args.clone())) {
                    same.insert(def, *v);
                } else {
                    known.insert((n.op, n.args.clone()), def);
                    out.push(n);
                }
            }
            b.nodes = kept;
        }
        if !same.is_empty() {
            let own = |v: &mut Value| *v = same.get(v).copied().unwrap_or(*v);
            for b in &mut self.f.blocks[head..] {
                b.nodes.iter_mut().flat_map(|n| &mut n.args).chain(&mut b.jump_args).for_each(own);
            }
            after.iter_mut().for_each(own);
        }
        let nodes = &mut self.f.blocks[before].nodes;
        let jump = nodes.len().saturating_sub(1);
        nodes.splice(jump..jump, out);
    }
}
