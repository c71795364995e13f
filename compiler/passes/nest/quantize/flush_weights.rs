//! flush_weights: flushes subnormal numbers among the constant factors of contractions to 0.
//!
//! Trained weights that decay towards 0 end up subnormal. Many CPUs take a hundred times as long for a
//! product with a subnormal number, and a vector has many lanes: one such weight in a hundred makes a matrix
//! product 40 times as slow. Each weight changes by less than 2^-126. `--math strict` disables the pass.
//! Constants with any other reader do not change.

use crate::diag::Result;
use crate::nest::{Buf, Kernel, Math, Module, Place};
use crate::passes::nest::analysis::form::ProductKind;
use crate::passes::nest::analysis::shape::Uses;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    if m.math == Math::Strict {
        return Ok(());
    }
    let uses = Uses::new(m);
    let flushed: Vec<(Buf, Arc<ConstData>)> = m
        .bufs
        .iter()
        .filter_map(|(b, d)| {
            let Place::Const(c) = &d.place else { return None };
            (d.ty == ElemType::F32 && uses.readers(b).iter().all(|k| is_factor(m, *k, b)))
                .then(|| Some((b, c.without_subnormals()?)))?
        })
        .collect();
    for (b, c) in flushed {
        m.bufs[b].place = Place::Const(c);
    }
    Ok(())
}

/// True if a kernel is a contraction that reads a constant only as a factor.
fn is_factor(m: &Module, k: Kernel, b: Buf) -> bool {
    m.form(k).contraction().is_some_and(|c| {
        c.product == ProductKind::Fma && !c.epilogue.iter().flat_map(|s| s.loads()).any(|r| m.storage(r) == b)
    })
}
