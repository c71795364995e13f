//! Panels of a non-constant operand, packed by the task that uses them: contractions of a few rows.

use super::panels::MASKED_ROWS;
use super::{Packing, Tile};
use crate::nest::{Kernel, Module, Stmt};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::machine::{L1, slots};
use crate::passes::nest::schedule::rows::Slots;
use crate::passes::nest::schedule::tiles::{self, Panels};
use crate::sym::{Dim, Sym};

/// True if tasks should pack the panels, which then stay in the first-level cache until all rows have used
/// them: for few rows, storing them to memory and loading them again takes longer.
pub(super) fn pays(m: &mut Module, p: &Contraction, t: &Tile<Packing>) -> bool {
    let (Packing::Kernel(panels), [(_, steps)]) = (&t.panels, &p.reduction[..]) else { return false };
    let bytes = steps.as_const().and_then(|s| s.checked_mul(t.nr * i64::from(m.bufs[p.b.0].ty.bytes()?)));
    let fits = bytes.is_some_and(|b| b <= L1 / 2);
    fits && t.rows().as_const().is_some_and(|r| r <= MASKED_ROWS) && panels.come_alone(m, p)
}

/// A contraction each of whose panels is packed directly before its rows are computed.
pub(super) fn emit(m: &mut Module, k: Kernel, p: &Contraction, tile: Tile<Packing>) -> Vec<Stmt> {
    let zero = Dim::constant(0);
    let steps = p.reduction.first().map_or(zero, |r| r.1);
    let name = format!("{}.panel", m.kernels[k].name);
    let count = tile.n_extent.ceil_div(tile.nr);
    let number = m.syms.loop_var("p", zero, count);
    // The panels of all batches in sequence, divided by the slots of scratch.
    let nest: Vec<(Sym, Dim)> = tile.batch.iter().copied().chain([(number, count)]).collect();
    let total = m.syms.simplify(Dim::product(nest.iter().map(|l| l.1)));
    let slots = Slots::new(m, slots(total, None));
    let buf = m.temp(name, m.bufs[p.b.0].ty, vec![slots.count.into(), steps, tile.nr.into()]);
    let mut convert = vec![];
    let t = tile.read_from(|packing| {
        if let Packing::Task(panels) = packing {
            convert = panels.one(m, p, number.into(), (buf, vec![slots.own.into()])).unwrap_or_default();
        }
        Panels::Private { buf, part: slots.own, of_b: true }
    });
    let results = tiles::of_panel(m, p, &t, number.into(), t.rows());
    let body = convert.into_iter().chain(results).collect();
    let share = slots.share_of(m, &nest, total, body);
    slots.around(vec![share])
}
