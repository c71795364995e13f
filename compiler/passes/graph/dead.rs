//! drop_dead: removes nodes whose results nobody uses.

use crate::diag::Result;
use crate::graph::{Graph, Model};

/// Runs the pass.
pub fn run(model: &mut Model) -> Result<()> {
    sweep(&mut model.graph);
    Ok(())
}

fn sweep(g: &mut Graph) {
    let mut used = g.use_counts();
    let mut kept = vec![];
    for n in g.order.iter().rev().copied() {
        let node = &g.nodes[n];
        if node.outputs.iter().flatten().any(|v| used[*v] > 0) {
            kept.push(n);
            continue;
        }
        node.inputs.iter().flatten().for_each(|v| used[*v] -= 1);
        for (_, sub) in &node.subgraphs {
            sub.captures.iter().for_each(|(o, _)| used[*o] -= 1);
        }
    }
    kept.reverse();
    g.order = kept;
}
