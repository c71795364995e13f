//! The keys of an attention of a few query rows: each block packs a panel of keys directly before the scores
//! that read it.
//!
//! If one block has all query rows of a head, it reads each panel once. Panels that a kernel packs beforehand
//! would be stored to memory and loaded again, which takes as long as the attention itself. If the number of
//! rows is a run-time value, the driver chooses.

use crate::nest::{Body, Expr, Kernel, KernelData, Module, Stmt, visit};
use crate::passes::nest::analysis::form::Contraction;
use crate::passes::nest::analysis::machine::L1;
use crate::passes::nest::schedule::contract::{Columns, Packing, packing};
use crate::passes::nest::schedule::pack::{self, Site};
use crate::passes::nest::schedule::tiles::{self, Panels, Tile};
use crate::sym::{Dim, Sym};

/// Lanes of the longest vectors. A panel has one or two of them: wider ones take as long (2 to 28 rows, heads
/// of 32 to 256, 77 to 2048 keys), and few keys would leave the last one nearly empty.
const LANES: i64 = 16;

/// When blocks pack keys.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum When {
    Never,
    Always,
    /// If there are few rows at run time.
    Few,
}

impl When {
    /// The choice for `rows` query rows in blocks of `height`, and `keys` keys. If there are as many keys as
    /// rows, few rows have few keys, whose packing takes no time.
    pub fn of(m: &Module, rows: Dim, height: i64, keys: Dim) -> When {
        let range = m.syms.range(rows);
        match (range.lo, range.hi) {
            (_, Some(most)) if most <= height => When::Always,
            (Some(least), _) if least > height => When::Never,
            _ if rows == keys => When::Never,
            _ => When::Few,
        }
    }
}

/// Panels of keys that blocks pack.
pub(super) struct Keys {
    panels: pack::Panels,
}

impl Keys {
    /// The keys, and scratch for a panel of each piece. `part`: the loop over pieces of the attention, and
    /// their number. `None` if keys are read in place, several iterations of the loops `batch` share keys, the
    /// reduction is long, or blocks are not transposed in registers.
    pub fn new(
        m: &mut Module,
        site: &Site,
        p: &Contraction,
        (part, pieces, batch): (Sym, Dim, &[(Sym, Dim)]),
        of: Columns,
    ) -> Option<(Keys, Panels)> {
        let ty = m.bufs[p.b.0].ty;
        let [(_, steps)] = p.reduction[..] else { return None };
        let row = steps.as_const()?.max(1) * i64::from(ty.bytes()?);
        let nr = of.nr.min(2 * LANES).min(L1 / 2 / row / LANES * LANES);
        if nr == 0 {
            return None;
        }
        let Packing::Kernel(panels) = packing(m, site, p, batch, Columns { nr, ..of })? else { return None };
        let apart = batch.iter().all(|b| panels.own.iter().any(|o| o.0 == b.0));
        if !apart || !panels.come_alone(m, p) {
            return None;
        }
        let name = format!("{}.panel", m.bufs[p.b.0].name);
        let buf = m.temp(name, ty, vec![pieces, steps, nr.into()]);
        Some((Keys { panels }, Panels::Private { buf, part, of_b: true }))
    }
    /// The columns of the scores, in panels.
    pub fn columns(&self) -> Columns {
        self.panels.columns
    }
    /// The scores of a block, which has `count` rows, for the first `panels` of keys.
    pub fn scores(
        &self,
        m: &mut Module,
        p: &Contraction,
        t: &Tile,
        (count, panels): (Dim, Dim),
    ) -> Vec<Stmt> {
        let number = m.syms.loop_var("p", Dim::constant(0), panels);
        let packed = match t.panels {
            Panels::Private { buf, part, .. } => {
                self.panels.one(m, p, number.into(), (buf, vec![part.into()]))
            }
            _ => None,
        };
        let scores = tiles::of_panel(m, p, t, number.into(), count);
        vec![Stmt::seq(number, panels, packed.into_iter().flatten().chain(scores).collect())]
    }
}

/// A kernel without a body that the driver calls in place of `k` if `cond` holds.
pub(super) fn instead(m: &mut Module, k: Kernel, cond: Expr) -> Kernel {
    let data = &m.kernels[k];
    let name = format!("{}.few", data.name);
    let few = KernelData { name, scheduled: true, body: Body::default(), ..data.clone() };
    let few = m.kernels.push(few);
    let choice = Stmt::If { cond, then: vec![Stmt::Call(few)], els: vec![Stmt::Call(k)] };
    visit::splice_call(&mut m.driver, k, false, vec![choice]);
    few
}
