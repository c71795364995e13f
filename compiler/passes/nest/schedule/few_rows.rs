//! Contractions of few rows with a non-constant B: a 1x1 convolution of an image with channels first, a
//! product with a computed matrix. Packing B loads and stores each of its elements, which is not profitable
//! for few products, so tiles read B in place, whatever the stride of its rows is.

use crate::nest::Module;
use crate::passes::nest::analysis::form::{Form, ProductKind};
use crate::passes::nest::analysis::machine::L1;
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::contract::{Axes, Packing, runs_in_vectors};
use crate::passes::nest::schedule::{Plan, Request, tiles};
use crate::target::Facts;

/// Maximum bytes of a strip of columns that stays in the first-level cache between tiles of rows, though its
/// lines share sets, and maximum rows that read it there. Measured with 256- and 512-bit vectors, planes and
/// matrices of 1536 to 16384 columns, reductions of 32 to 2048: 1.04 to 3.2 times as fast.
const STRIP: i64 = L1 / 3;
const ROWS: i64 = 64;
/// Maximum tiles of rows that read B in place from the second-level cache. The same measurement, 512 to 2048
/// steps: four take 0.5 to 1.0 times as long as packing and reading panels, eight of six rows 1.2 to 1.5
/// times.
const READS: i64 = 4;

/// Chooses register tiles over B in place.
pub(crate) fn choose(m: &mut Module, request: &Request) -> Option<Box<dyn Plan>> {
    let Form::Contraction(p) = request.form else { return None };
    let [(depth, extent)] = p.reduction[..] else { return None };
    if m.is_constant(p.a.0) && m.is_constant(p.b.0) {
        return None;
    }
    let axes = Axes::of(m, request)?;
    let (p, columns, facts) = (&axes.p, axes.columns, axes.facts);
    let lies_in_rows =
        stride(m, p.b.0, &p.b.1, columns.n) == Some(1) && m.linear(p.b.0, &p.b.1).linear_in(depth).is_some();
    let of_floats = matches!(p.product, ProductKind::Fma | ProductKind::Double) && p.is_plain();
    let vectors = runs_in_vectors(columns.extent, facts);
    if m.is_constant(p.b.0) || !lies_in_rows || !vectors || !of_floats {
        return None;
    }
    let bytes = columns.nr * i64::from(m.bufs[p.b.0].ty.bytes()?);
    let stays = extent.as_const().and_then(|n| n.checked_mul(bytes)).is_some_and(|strip| strip <= STRIP);
    // Loops over rows outside those of a tile read B again.
    let reads = if axes.rows.is_empty() { READS } else { 1 };
    let few = axes.most <= reads * tiles::rows_of_panel(columns.nr, i64::MAX, facts);
    (few || axes.most <= ROWS && stays).then(|| Box::new(axes.tiled(m, request, Packing::InPlace)) as _)
}

/// Maximum rows that are few if only run time knows how many there are, or how long the sums are: reading B
/// in place twice costs less than packing it.
pub(crate) fn most_rows(facts: Facts) -> i64 {
    2 * tiles::rows_of_panel(2 * i64::from(facts.lanes), i64::MAX, facts)
}
