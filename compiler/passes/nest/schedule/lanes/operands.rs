//! The operands of sums: what the loops of a body load.

use crate::nest::{Buf, Stmt, visit};
use crate::sym::Dim;

/// A load: the buffer, and the subscripts.
pub(super) type Load<'a> = (Buf, &'a [Dim]);

/// The loops of a body, which compute sums of their terms or process the elements of a row.
pub(super) fn loops(body: &[Stmt]) -> impl Iterator<Item = &Stmt> {
    body.iter().filter(|s| matches!(s, Stmt::For { .. }))
}

/// The loads in the loops of a body.
pub(super) fn of_loops(body: &[Stmt]) -> Vec<Load<'_>> {
    let mut loads = vec![];
    for s in loops(body) {
        visit::each_load(std::slice::from_ref(s), &mut |buf, at| loads.push((buf, at)));
    }
    loads
}

/// The same for a body without branches whose loops have one step of a sum altogether; `None` for others.
pub(super) fn of_only_sum(body: &[Stmt]) -> Option<Vec<Load<'_>>> {
    let mut steps = 0;
    loops(body).for_each(|s| s.walk(&mut |s| steps += usize::from(matches!(s, Stmt::Set { .. }))));
    let branches = visit::any(body, &mut |s| matches!(s, Stmt::If { .. }));
    (steps == 1 && !branches).then(|| of_loops(body))
}
