//! Liveness of the values of a class in a tile.

use crate::codegen::tile::ir::{Block, Class, Func, Value};

/// Maximum number of live values of a class in each block, without constants.
pub(super) fn pressure(f: &Func, class: Class, constant: &dyn Fn(&Value) -> bool) -> Vec<usize> {
    let counts = |v: &Value| f.classes[v.0 as usize] == class && !constant(v);
    let live_out = at_ends(f, &counts);
    let most = |(b, live): (&Block, Vec<bool>)| along(b, live, &counts).0.into_iter().max().unwrap_or(0);
    f.blocks.iter().zip(live_out).map(most).collect()
}

/// Number of live vectors at each instruction of a block, without constants.
pub(super) fn at_nodes(f: &Func, block: usize, constant: &dyn Fn(&Value) -> bool) -> Vec<usize> {
    let counts = |v: &Value| f.classes[v.0 as usize] == Class::Vector && !constant(v);
    let live_out = at_ends(f, &counts).swap_remove(block);
    along(&f.blocks[block], live_out, &counts).0
}

/// The values accepted by `counts` that are live at the end of each block.
pub(super) fn at_ends(f: &Func, counts: &dyn Fn(&Value) -> bool) -> Vec<Vec<bool>> {
    let none = vec![false; f.classes.len()];
    let mut live_in: Vec<Vec<bool>> = vec![none.clone(); f.blocks.len()];
    let mut live_out = live_in.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for (i, b) in f.blocks.iter().enumerate().rev() {
            let mut live = none.clone();
            for s in &b.succs {
                live.iter_mut().zip(&live_in[*s]).for_each(|(l, x)| *l |= *x);
            }
            live_out[i].clone_from(&live);
            let at_entry = along(b, live, counts).1;
            if at_entry != live_in[i] {
                live_in[i] = at_entry;
                changed = true;
            }
        }
    }
    live_out
}

/// The number of live values at each instruction of a block, including its results and operands, and the
/// values that are live at its entry, given those at its end; only values that `counts` accepts.
pub(super) fn along(
    b: &Block,
    mut live: Vec<bool>,
    counts: &dyn Fn(&Value) -> bool,
) -> (Vec<usize>, Vec<bool>) {
    let mut n = live.iter().filter(|l| **l).count();
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
    let mut at = vec![0; b.nodes.len()];
    for (i, node) in b.nodes.iter().enumerate().rev() {
        let behind = n;
        if let Some(d) = &node.def {
            end(d, &mut live, &mut n);
        }
        node.values().for_each(|v| begin(&v, &mut live, &mut n));
        at[i] = n.max(behind);
    }
    b.params.iter().for_each(|v| end(v, &mut live, &mut n));
    (at, live)
}
