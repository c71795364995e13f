//! Sizes and positions that overflow 63 bits: a fault of the model, reported with the node that computes
//! them.

use super::{Buf, Module, Stmt, visit};
use crate::diag::{Error, Origin, Result, codes};
use crate::maps::Map;
use crate::sym::Dim;
use std::collections::BTreeSet;

/// Positions whose coefficients have a sum below this one, in bits, fit.
const FITS: f64 = (1u64 << 61) as f64;
/// As do those with at most so many atoms.
const FEW: u64 = 1 << 12;

/// Fails if a kernel has a loop, an index or a position in memory that overflows. All of them are reported,
/// once per node.
pub fn check(m: &Module) -> Result<()> {
    let mut errors: Vec<Error> = vec![];
    let mut seen = BTreeSet::new();
    let mut shapes: Map<Buf, Shape> = Map::default();
    for k in visit::calls(&m.driver) {
        let k = &m.kernels[k];
        let mut found = None;
        visit::walk(&k.body, &mut |s| {
            if any_overflow(s) {
                found.get_or_insert("a size or an index".to_owned());
            }
            s.accesses(&mut |b, at| {
                if shapes.entry(b).or_insert_with(|| Shape::of(m, b)).holds(at) {
                    return;
                }
                let bits = Dim::from(m.bufs[b].ty.bits() as usize);
                if (m.linear(b, at) * bits).is_overflow() {
                    let shown = if m.bufs[b].name.is_empty() { &k.name } else { &m.bufs[b].name };
                    found.get_or_insert(format!("a position in \"{shown}\""));
                }
            });
        });
        if let Some(what) = found
            && seen.insert(k.origin.to_string())
        {
            errors.push(error(&k.origin, &what).row("computes", format!("\"{}\"", k.name)));
        }
    }
    let driver = m.driver.iter().any(|s| !matches!(s, Stmt::Call(_)) && any_overflow(s));
    if driver && errors.is_empty() {
        errors.push(error(&Origin::default(), "a size that a check or a loop of the model needs"));
    }
    if errors.is_empty() { Ok(()) } else { Err(crate::diag::Failure::Errors(errors)) }
}

/// An upper bound of what becomes of a subscript in a position: forming positions only to see whether they
/// overflow takes longer than some passes, and they stay in memory.
struct Shape {
    /// Factor of the coefficients, including the bits of an element.
    scale: f64,
    /// Factor of the number of atoms.
    atoms: u64,
}

impl Shape {
    fn of(m: &Module, b: Buf) -> Shape {
        let d = &m.bufs[b];
        Shape {
            scale: d.dims.iter().fold(f64::from(d.ty.bits()), |n, d| n * d.magnitude().max(1.0)),
            atoms: d.dims.iter().fold(1, |n, d| u64::from(d.size().max(1)).saturating_mul(n)),
        }
    }
    /// True if a position certainly fits.
    fn holds(&self, at: &[Dim]) -> bool {
        at.iter().map(|d| d.magnitude()).sum::<f64>() * self.scale < FITS
            && at.iter().map(|d| u64::from(d.size().max(1))).sum::<u64>().saturating_mul(self.atoms) < FEW
    }
}

/// True if a dim of the statement itself overflows.
fn any_overflow(s: &Stmt) -> bool {
    let mut any = false;
    s.each_dim(&mut |d| any |= d.is_overflow());
    any
}

fn error(at: &Origin, what: &str) -> Error {
    let e = Error::new(codes::DIM_OVERFLOW, format!("{what} does not fit 63 bits"))
        .at(at)
        .found_expected("more than 2^63 - 1", "sizes, indices and positions in bits below 2^63");
    e.help(
        "bound or fix the dimensions: --dim 'N<=...' or --dim N=...; or correct the attribute or \
        constant that is so large",
    )
}
