//! Contractions for which Strassen's algorithm is profitable.

use super::{BLOCK, COLUMN_RATIO, LEAST, PANEL, SUMS, V_BYTES};
use crate::nest::{Buf, Expr, KernelBuilder, Module, Place};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, depends};
use crate::passes::nest::analysis::machine::THREADS;
use crate::passes::nest::analysis::strides::stride;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// A product with constant weights.
pub(super) struct Layer {
    pub parts: Contraction,
    /// Loops over rows, outermost first, and how many rows there are.
    pub loops: Vec<(Sym, Dim)>,
    pub rows: Dim,
    /// Columns.
    pub n: (Sym, i64),
    /// The reduction.
    pub k: (Sym, i64),
    /// Steps of a block of half the reduction.
    pub block: i64,
    /// Minimum and maximum rows for which it is profitable, if the number of rows is a run-time value that
    /// the driver has to test.
    pub asks: Option<(i64, i64)>,
}

/// The layer of a contraction; `None` if the algorithm does not apply or is not profitable.
pub(super) fn layer(m: &Module, parts: Contraction) -> Option<Layer> {
    if parts.product != ProductKind::Fma || parts.is_exact(m) {
        return None;
    }
    let [(k, depth)] = parts.reduction.as_slice() else { return None };
    let (k, depth) = (*k, depth.as_const()?);
    let of_b: Vec<(Sym, Dim)> = parts.loops.iter().copied().filter(|l| depends(&parts.b.1, l.0)).collect();
    let [(n, columns)] = of_b.as_slice() else { return None };
    let (n, columns) = (*n, columns.as_const()?);
    if depends(&parts.a.1, n) || columns % (2 * PANEL) != 0 || depth % 32 != 0 {
        return None;
    }
    let owner = m.storage(parts.b.0);
    if !matches!(m.bufs[owner].place, Place::Const(_))
        || m.bufs[parts.a.0].ty != ElemType::F32
        || stride(m, parts.a.0, &parts.a.1, k) != Some(1)
    {
        return None;
    }
    let loops: Vec<(Sym, Dim)> = parts.loops.iter().copied().filter(|l| l.0 != n).collect();
    let rows = Dim::product(loops.iter().map(|l| l.1));
    // One of eight products is saved. The additions on P cost a share that decreases with the reduction,
    // those on A one that decreases with the columns, and a few percent are overhead: the remainder must be
    // positive.
    if SUMS * (8 * columns + 5 * depth) > depth * columns {
        return None;
    }
    let block = (1..=BLOCK / 16)
        .rev()
        .map(|b| 16 * b)
        .find(|b| depth / 2 % b == 0)
        .filter(|b| 4 * b >= BLOCK || 2 * b == depth)?;
    let (range, least, most) = (m.syms.range(rows), LEAST * least_groups(columns), V_BYTES / (7 * depth));
    if range.hi.is_some_and(|h| h < least) || range.lo.is_some_and(|l| l > most) {
        return None;
    }
    // This test comes last, since it reads all weights; several threads share it.
    if !columns_are_alike(m, &parts.b, (k, n), columns)? {
        return None;
    }
    let sure = range.lo.is_some_and(|l| l >= least) && range.hi.is_some_and(|h| h <= most);
    Some(Layer {
        rows,
        loops,
        n: (n, columns),
        k: (k, depth),
        block,
        asks: (!sure).then_some((least, most)),
        parts,
    })
}

/// Whether columns that are added to each other have similar magnitudes. `None` if the constant is not a
/// matrix stored in whole rows and columns.
fn columns_are_alike(
    m: &Module,
    (b, at): &(Buf, Vec<Dim>),
    (k, n): (Sym, Sym),
    columns: i64,
) -> Option<bool> {
    let Place::Const(data) = &m.bufs[m.storage(*b)].place else { return None };
    let (down, along) = (stride(m, *b, at, k)?, stride(m, *b, at, n)?);
    let first = m.linear(*b, at).subst(&mut |s| (s == k || s == n).then(|| Dim::constant(0))).as_const()?;
    let mut most = vec![0f32; usize::try_from(columns).ok()?];
    // Elements after which the columns repeat, and adjacent elements of the same column.
    let period = if along > down { i64::MAX } else { down };
    let mut i = -first;
    data.f32_pieces(&mut |mut piece| {
        while !piece.is_empty() {
            let at = i.rem_euclid(period);
            let room = if along == 1 { period - at } else { along - at % along };
            let run = if i < 0 { -i } else { room.min(period - at) };
            let (now, rest) =
                piece.split_at(usize::try_from(run).map_or(piece.len(), |n| n.min(piece.len())));
            let column = most.get_mut(usize::try_from(at / along).unwrap_or(usize::MAX)..);
            match column {
                Some(column) if i >= 0 && along == 1 => {
                    column.iter_mut().zip(now).for_each(|(m, x)| *m = m.max(x.abs()));
                }
                Some([column, ..]) if i >= 0 => *column = now.iter().fold(*column, |m, x| m.max(x.abs())),
                _ => {}
            }
            i += now.len() as i64;
            piece = rest;
        }
    })?;
    let panel = PANEL as usize;
    Some(
        most.chunks_exact(2 * panel)
            .all(|c| (0..panel).all(|i| c[i].max(c[panel + i]) <= COLUMN_RATIO * c[i].min(c[panel + i]))),
    )
}

impl Layer {
    /// True if the row sums of this layer equal those of `other`, whenever `other` computes them.
    pub fn reads_as(&self, other: &Layer) -> bool {
        let extents = |l: &Layer| l.loops.iter().map(|l| l.1).collect::<Vec<Dim>>();
        let of = |s: Sym| {
            if s == self.k.0 {
                Some(other.k.0)
            } else {
                self.loops.iter().zip(&other.loops).find(|(a, _)| a.0 == s).map(|(_, b)| b.0)
            }
        };
        let at = |d: &Dim| d.subst(&mut |s| of(s).map(Dim::sym));
        let (a, b) = (&self.parts.a, &other.parts.a);
        a.0 == b.0
            && self.k.1 == other.k.1
            && self.asks == other.asks
            && extents(self) == extents(other)
            && a.1.iter().map(at).eq(b.1.iter().copied())
    }
    /// True if every row has a partner.
    pub fn is_even(&self, m: &Module) -> bool {
        m.syms.simplify(self.rows.modulo(2)).as_const() == Some(0)
    }
    /// An element of the left operand.
    pub fn left(&self, kb: &KernelBuilder, (r, c): (Dim, Dim)) -> Expr {
        let put = |s: Sym| if s == self.k.0 { Some(c) } else { self.row(r, s) };
        let at: Vec<Dim> = self.parts.a.1.iter().map(|d| d.subst(&mut |s| put(s))).collect();
        kb.load(self.parts.a.0, &at)
    }
    /// The value of loop variable `s` in row `r`.
    pub fn row(&self, r: Dim, s: Sym) -> Option<Dim> {
        let i = self.loops.iter().position(|l| l.0 == s)?;
        let inner = Dim::product(self.loops[i + 1..].iter().map(|l| l.1));
        let q = r.floor_div(inner);
        Some(if i == 0 { q } else { q.modulo(self.loops[i].1) })
    }
}

/// Minimum number of groups of rows, so that threads can share them.
pub(super) fn least_groups(columns: i64) -> i64 {
    let panels = columns / (2 * PANEL);
    if panels < 4 * THREADS && panels % THREADS != 0 { 2 } else { 1 }
}
