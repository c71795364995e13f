//! Splits loops into digits: if subscripts of a map contain quotients and remainders of a loop variable by a
//! divisor of its extent (DepthToSpace, shuffled channels, windows of an image), two loops replace the one.
//! The accesses are then linear, and require no division.

use crate::nest::{Module, Stmt, visit};
use crate::passes::nest::analysis::shape::{loop_like, par_loops, peel, wrap};
use crate::sym::{Dim, Sym};

/// Maximum digits: a loop may be split by several divisors.
const MOST: usize = 6;

/// The map with split loops; `None` if no loop is split. Other divisions remain.
pub(crate) fn split(m: &mut Module, body: &[Stmt]) -> Option<Vec<Stmt>> {
    let mut split = None;
    for _ in 0..MOST {
        match once(m, split.as_deref().unwrap_or(body)) {
            Some(next) => split = Some(next),
            None => break,
        }
    }
    split
}

/// True if splitting the outer loops of `body` removes all divisions from a subscript.
pub(crate) fn removes(m: &Module, body: &[Stmt], subscript: Dim) -> bool {
    let (loops, _) = par_loops(body);
    let mut all = true;
    subscript.divisions(&mut |x, y| all &= divided_loop(m, &loops, (x, y)).is_some());
    all
}

/// The loop that a division splits: its variable is divided by a proper divisor of its extent.
fn divided_loop(m: &Module, loops: &[(Sym, Dim)], (x, y): (Dim, Dim)) -> Option<usize> {
    let i = x.as_sym().and_then(|s| loops.iter().position(|l| l.0 == s))?;
    let extent = loops[i].1;
    let proper = extent.floor_div(y) * y == extent && extent != y;
    (proper && (m.syms.is_pos(y) || divides(extent, y))).then_some(i)
}

fn once(m: &mut Module, body: &[Stmt]) -> Option<Vec<Stmt>> {
    let nest = peel(body);
    let mut found: Option<(usize, Dim)> = None;
    for d in dims(&nest.body) {
        d.divisions(&mut |x, y| {
            found = found.or_else(|| Some((divided_loop(m, &nest.loops, (x, y))?, y)));
        });
    }
    let (i, y) = found?;
    let (var, hi) = nest.loops[i];
    let zero = Dim::constant(0);
    let (high, low) = (loop_like(m, var, zero, hi.floor_div(y)), loop_like(m, var, zero, y));
    let digits = Dim::sym(high) * y + low;
    let body: Vec<Stmt> = nest
        .body
        .iter()
        .cloned()
        .map(|s| {
            s.map_dims(&mut |d| {
                if d.contains(var) {
                    m.syms.simplify(d.subst(&mut |s| (s == var).then_some(digits)))
                } else {
                    d
                }
            })
        })
        .collect();
    // If divisions by other values remain, the split would save nothing.
    let mut left = false;
    dims(&body)
        .into_iter()
        .for_each(|d| d.divisions(&mut |x, _| left |= x.contains(high) && x.contains(low)));
    if left {
        return None;
    }
    let mut loops: Vec<(Sym, Dim)> = nest.loops.clone();
    loops.splice(i..=i, [(high, hi.floor_div(y)), (low, y)]);
    Some(wrap(&loops, body))
}

/// True if `y` divides `x` exactly for all values. A divisor of 0 implies loops without iterations.
fn divides(x: Dim, y: Dim) -> bool {
    let mut none = true;
    x.floor_div(y).divisions(&mut |_, _| none = false);
    none
}

/// All dims in the subscripts of statements.
fn dims(body: &[Stmt]) -> Vec<Dim> {
    let mut out = vec![];
    visit::walk(body, &mut |s| out.extend(s.dims()));
    out
}
