//! Sizes and positions that overflow 63 bits: a fault of the model, reported with the node that computes
//! them.

use super::{Module, Stmt, visit};
use crate::diag::{Error, Origin, Result, codes};
use crate::sym::Dim;
use std::collections::BTreeSet;

/// Fails if a kernel has a loop, an index or a position in memory that overflows. All of them are reported,
/// once per node.
pub fn check(m: &Module) -> Result<()> {
    let mut errors: Vec<Error> = vec![];
    let mut seen = BTreeSet::new();
    for k in visit::calls(&m.driver) {
        let k = &m.kernels[k];
        let mut found = None;
        visit::walk(&k.body, &mut |s| {
            if any_overflow(s) {
                found.get_or_insert("a size or an index".to_owned());
            }
            s.accesses(&mut |b, at| {
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
