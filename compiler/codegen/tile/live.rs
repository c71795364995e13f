//! Liveness of the vectors of a tile.

use crate::codegen::tile::ir::{Block, Class, Func, Value};

/// Maximum number of live vectors in each block, without constants.
pub(super) fn pressure(f: &Func, constant: &dyn Fn(&Value) -> bool) -> Vec<usize> {
    let live_out = at_ends(f, constant);
    let most = |(b, live): (&Block, Vec<bool>)| along(f, b, live, constant).0.into_iter().max().unwrap_or(0);
    f.blocks.iter().zip(live_out).map(most).collect()
}

/// Number of live vectors at each instruction of a block, without constants.
pub(super) fn at_nodes(f: &Func, block: usize, constant: &dyn Fn(&Value) -> bool) -> Vec<usize> {
    let live_out = at_ends(f, constant).swap_remove(block);
    along(f, &f.blocks[block], live_out, constant).0
}

/// The vectors that are live at the end of each block.
pub(super) fn at_ends(f: &Func, constant: &dyn Fn(&Value) -> bool) -> Vec<Vec<bool>> {
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
            let at_entry = along(f, b, live, constant).1;
            if at_entry != live_in[i] {
                live_in[i] = at_entry;
                changed = true;
            }
        }
    }
    live_out
}

/// The number of live vectors at each instruction of a block, including its results and operands, and the
/// vectors that are live at its entry, given those at its end.
pub(super) fn along(
    f: &Func,
    b: &Block,
    mut live: Vec<bool>,
    constant: &dyn Fn(&Value) -> bool,
) -> (Vec<usize>, Vec<bool>) {
    let counts = |v: &Value| f.classes[v.0 as usize] == Class::Vector && !constant(v);
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
        node.args.iter().for_each(|v| begin(v, &mut live, &mut n));
        at[i] = n.max(behind);
    }
    b.params.iter().for_each(|v| end(v, &mut live, &mut n));
    (at, live)
}
