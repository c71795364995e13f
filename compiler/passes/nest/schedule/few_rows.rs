//! Contractions of few rows with a non-constant B: a 1x1 convolution of an image with channels first, a
//! product with a computed matrix. Packing B loads and stores each of its elements, which is not profitable
//! for few products, so tiles read B in place, whatever the stride of its rows is.

use crate::nest::Module;
use crate::passes::nest::analysis::form::Form;
use crate::passes::nest::analysis::machine::L1;
use crate::passes::nest::analysis::strides::stride;
use crate::passes::nest::schedule::contract::{Axes, Packing, Product};
use crate::passes::nest::schedule::{Plan, Request, tiles};

/// Maximum bytes of a strip of columns that stays in the first-level cache between tiles of rows, though its
/// lines share sets, and maximum rows that read it there. Measured with 256- and 512-bit vectors, planes and
/// matrices of 1536 to 16384 columns, reductions of 32 to 2048: 1.04 to 3.2 times as fast.
const STRIP: i64 = L1 / 3;
const ROWS: i64 = 64;

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
    // If the number of columns is a run-time value, the last ones are masked.
    let masked = facts.caps.masks && columns.extent.as_const().is_none() && p.product == Product::Fma;
    let whole_vectors = masked || columns.extent.modulo(i64::from(facts.lanes)).as_const() == Some(0);
    let of_floats = matches!(p.product, Product::Fma | Product::Double) && p.is_plain();
    if m.is_constant(p.b.0) || !lies_in_rows || !whole_vectors || !of_floats {
        return None;
    }
    let once = axes.most <= tiles::rows_of_panel(columns.nr, axes.most, facts);
    let bytes = columns.nr * i64::from(m.bufs[p.b.0].ty.bytes()?);
    let stays = extent.as_const().and_then(|n| n.checked_mul(bytes)).is_some_and(|strip| strip <= STRIP);
    (once || axes.most <= ROWS && stays).then(|| Box::new(axes.tiled(m, request, Packing::InPlace)) as _)
}
