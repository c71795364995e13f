//! Panels of a contraction's operand B: how tiles read it, and the rearrangement of constants.

use super::depends;
use crate::nest::schedule;
use crate::nest::{Buf, Kernel, Layout, Module, Place};
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::machine::{L2, LINE, PAGE};
use crate::passes::nest::analysis::shape::relocate;
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::pack;
use crate::passes::nest::schedule::tiles::{self, Panels, is_deep};
use crate::sym::{Answer, Dim, Sym, SymKind};
use crate::target::Facts;
use crate::tensor::{ConstData, consts::Remap};
use std::sync::Arc;

/// Bytes of weights that exceed the caches of one core.
const LARGE: u64 = 2 * L2 as u64;

/// B as panels.
pub(crate) struct Packed {
    /// The panels.
    pub buf: Buf,
    /// Leading subscripts that depend on loops around the nest.
    pub outer: Vec<Dim>,
    /// Batch loops that they depend on.
    pub own: Vec<Sym>,
    /// True if the panels exceed the cache.
    pub large: bool,
    /// Elements per cache line.
    pub line: i64,
}

/// Panels of a constant that have no buffer yet.
#[derive(Clone)]
pub(crate) struct ConstPanels {
    name: String,
    data: Arc<ConstData>,
    outer: Vec<Dim>,
    own: Vec<Sym>,
    line: i64,
}

impl ConstPanels {
    /// True if the panels exceed the cache.
    fn large(&self) -> bool {
        self.data.byte_len() > LARGE
    }
    /// Creates the buffer of the panels.
    pub fn place(self, m: &mut Module) -> Packed {
        let large = self.large();
        Packed {
            buf: m.constant(self.name, self.data),
            outer: self.outer,
            own: self.own,
            large,
            line: self.line,
        }
    }
}

/// How tiles read B.
pub(crate) enum Packing {
    /// In place.
    InPlace,
    /// As constant panels.
    Constant(ConstPanels),
    /// As panels that a kernel packs.
    Kernel(pack::Panels),
    /// As panels that a task packs, one at a time.
    Task(pack::Panels),
}

impl Packing {
    /// Turns panels packed by a kernel into panels packed by tasks.
    pub(super) fn staged(self) -> Packing {
        match self {
            Packing::Kernel(panels) => Packing::Task(panels),
            other => other,
        }
    }
    /// Adds the kernel or constant with the panels of contraction `k`.
    pub fn apply(self, m: &mut Module, k: Kernel, p: &Contraction) -> Panels {
        match self {
            Packing::InPlace => Panels::InPlace,
            Packing::Constant(panels) => Panels::Packed(panels.place(m)),
            Packing::Kernel(panels) | Packing::Task(panels) => {
                let own = panels.own.iter().map(|b| b.0).collect();
                let buf = panels.apply(m, k, p);
                Panels::Packed(Packed { buf, outer: vec![], own, large: false, line: 1 })
            }
        }
    }
}

impl tiles::Source for Packing {
    fn large(&self) -> bool {
        matches!(self, Packing::Constant(c) if c.large())
    }
    fn constant(&self, _: &Module) -> Option<(u64, i64)> {
        if let Packing::Constant(c) = self { Some((c.data.byte_len(), c.line)) } else { None }
    }
    fn describe(&self, _: &Module, columns: i64) -> schedule::Packing {
        match self {
            Packing::InPlace => schedule::Packing::InPlace,
            Packing::Constant(c) => schedule::Packing::Constant { columns, bytes: c.data.byte_len() },
            Packing::Kernel(_) => schedule::Packing::Kernel { columns },
            Packing::Task(_) => schedule::Packing::Task { columns },
        }
    }
}

/// The columns of a contraction, in panels.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// The loop over them.
    pub n: Sym,
    /// Their number.
    pub extent: Dim,
    /// Columns of a panel.
    pub nr: i64,
}

/// Minimum rows for which B is packed if that converts its elements, which each tile of rows would do
/// otherwise, or if the reduction has many steps, whose rows would share few sets of the second-level cache.
const PACKED_ROWS: i64 = 24;

/// Rows, if their number is known.
fn constant_rows(p: &Contraction) -> i64 {
    let own = p.loops.iter().filter(|l| p.is_only_of_a(l.0));
    own.filter_map(|l| l.1.as_const()).fold(1, i64::saturating_mul)
}

/// True if a run-time number of rows is at least the number of steps: the share of packing falls with both.
fn has_rows_for_steps(m: &Module, p: &Contraction) -> bool {
    let rows = Dim::product(p.loops.iter().filter(|l| p.is_only_of_a(l.0)).map(|l| l.1));
    let steps = Dim::product(p.reduction.iter().map(|d| d.1));
    rows.as_const().is_none() && m.syms.le(steps, rows) == Answer::Yes
}

/// How tiles read B: in place if its rows are laid out like panels, else packed.
pub(crate) fn packing(
    m: &Module,
    site: &pack::Site,
    p: &Contraction,
    batch: &[(Sym, Dim)],
    columns: Columns,
) -> Option<Packing> {
    let Columns { n, extent, nr } = columns;
    let constant = m.is_constant(p.b.0);
    let along = |s: Sym| stride(m, p.b.0, &p.b.1, s);
    // A constant that is a single panel.
    let panel = extent.as_const() == Some(nr) && p.reduction.last().is_some_and(|d| along(d.0) == Some(nr));
    let near = p
        .reduction
        .last()
        .and_then(|d| along(d.0))
        .is_some_and(|s| (0..PAGE / if p.product == ProductKind::Double { 8 } else { 4 }).contains(&s));
    // Taps of an image: panels would hold each element once for each tap.
    let taps = p.reduction.len() > 1 && m.is_constant(p.a.0);
    let known = extent.as_const().is_some() && constant_rows(p) <= MASKED_ROWS && !has_rows_for_steps(m, p);
    let runs = match p.product {
        ProductKind::Fma if taps || known => runs_in_vectors(extent, site.facts),
        _ => fills_vectors(extent, site.facts),
    };
    if (!constant || panel)
        && !(constant_rows(p) >= PACKED_ROWS && (pack::converts(m, p, site.facts) || is_deep(m, p, nr)))
        && (p.reduction.len() == 1 && near || taps)
        && along(n) == Some(1)
        && runs
    {
        return Some(Packing::InPlace);
    }
    if p.with.is_some() {
        return None;
    }
    // Panels are `[outer subscripts ..][batch that B depends on ..][panel][reduction ..][nr]`.
    let own: Vec<(Sym, Dim)> = batch.iter().copied().filter(|b| depends(&p.b.1, b.0)).collect();
    if constant && !m.is_recast(p.b.0) {
        return constant_panels(m, p, &own, (n, extent), nr).map(Packing::Constant);
    }
    let known = |s: Sym| {
        s == n || own.iter().chain(&p.reduction).any(|l| l.0 == s) || m.syms.kind(s) != SymKind::Loop
    };
    if !p.b.1.iter().flat_map(|d| d.syms()).all(known) {
        return None;
    }
    let (name, dims) = (packed_name(m, p), packed_dims(p, &own, extent, nr));
    Some(Packing::Kernel(pack::Panels::new(m, site, p, pack::Shape { name, dims, own, columns })))
}

/// Maximum rows for which B is read with masks at the ends of its rows instead of packed.
pub(super) const MASKED_ROWS: i64 = 28;

/// True if columns are whole vectors.
fn fills_vectors(extent: Dim, facts: Facts) -> bool {
    extent.modulo(i64::from(facts.lanes)).as_const() == Some(0)
}

/// True if columns are whole vectors, or the last one can be masked.
pub(crate) fn runs_in_vectors(extent: Dim, facts: Facts) -> bool {
    facts.caps.masks || fills_vectors(extent, facts)
}

fn packed_name(m: &Module, p: &Contraction) -> String {
    format!("{}.packed", m.bufs[p.b.0].name)
}

/// Dims of panels, except for the subscripts of loops around the nest.
fn packed_dims(p: &Contraction, own: &[(Sym, Dim)], n_extent: Dim, nr: i64) -> Vec<Dim> {
    let own = own.iter().map(|b| b.1);
    own.chain([n_extent.ceil_div(nr)])
        .chain(p.reduction.iter().map(|d| d.1))
        .chain([Dim::constant(nr)])
        .collect()
}

/// The panels of a constant B, see [`packing`]; `own`: the batch loops that it depends on.
pub(crate) fn constant_panels(
    m: &Module,
    p: &Contraction,
    own: &[(Sym, Dim)],
    (n, n_extent): (Sym, Dim),
    nr: i64,
) -> Option<ConstPanels> {
    let storage = m.storage(p.b.0);
    let Place::Const(c) = &m.bufs[storage].place else { return None };
    if m.bufs[storage].layout != Layout::RowMajor || m.is_recast(p.b.0) {
        return None;
    }
    let at = if p.b.0 == storage {
        p.b.1.clone()
    } else {
        relocate(m, &m.bufs[p.b.0].dims, &p.b.1, &m.bufs[storage].dims)
    };
    let mut vars: Vec<Sym> = own.iter().map(|b| b.0).collect();
    vars.push(n);
    vars.extend(p.reduction.iter().map(|d| d.0));
    // Subscripts by loops around the nest stay as they are.
    let picked = |d: &Dim| d.as_const().is_none() && !vars.iter().any(|v| d.contains(*v));
    let outer: Vec<Dim> = at.iter().copied().filter(picked).collect();
    let extents: Vec<Dim> =
        at.iter().zip(c.dims()).filter(|x| picked(x.0)).map(|x| Dim::constant(*x.1)).collect();
    let (mut offset, mut coeff) = (vec![], vec![]);
    let mut next = 0;
    for d in &at {
        let mut rest = *d;
        let mut row = vec![0; outer.len()];
        if picked(d) {
            row[next] = 1;
            next += 1;
            rest = Dim::constant(0);
        }
        for v in &vars {
            let (c, r) = rest.linear_in(*v)?;
            row.push(c.as_const()?);
            rest = r;
        }
        let panel = outer.len() + own.len();
        let lane = row[panel];
        row[panel] = lane * nr;
        row.push(lane);
        offset.push(rest.as_const()?);
        coeff.push(row);
    }
    let dims: Vec<i64> = extents
        .into_iter()
        .chain(packed_dims(p, own, n_extent, nr))
        .map(|d| d.as_const())
        .collect::<Option<_>>()?;
    let data = ConstData::remap(c.clone(), Remap { dims, offset, coeff })?;
    let line = LINE / m.bufs[p.b.0].ty.bytes().map_or(4, i64::from);
    Some(ConstPanels {
        name: packed_name(m, p),
        data: Arc::new(data),
        outer,
        own: own.iter().map(|b| b.0).collect(),
        line,
    })
}
