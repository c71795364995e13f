//! drop_dead: removes nodes whose results are not used.

use crate::diag::Result;
use crate::graph::{Def, Graph, Model};

/// Runs the pass.
pub fn run(model: &mut Model) -> Result<()> {
    sweep(&mut model.graph);
    Ok(())
}

fn sweep(g: &mut Graph) {
    let mut used = g.use_counts();
    let mut kept = vec![];
    for n in g.order.iter().rev().copied() {
        let node = &mut g.nodes[n];
        if node.outputs.iter().flatten().any(|v| used[*v] > 0) {
            for (_, sub) in &mut node.subgraphs {
                sweep(sub);
                // Values that are no longer used inside are no longer captured.
                let inner = sub.use_counts();
                sub.captures.retain(|(o, v)| {
                    if inner[*v] == 0 {
                        used[*o] -= 1;
                    }
                    inner[*v] > 0
                });
                for (v, d) in sub.values.iter_mut() {
                    if matches!(d.def, Def::Capture) && !sub.captures.iter().any(|(_, c)| *c == v) {
                        d.def = Def::Unused;
                    }
                }
            }
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
