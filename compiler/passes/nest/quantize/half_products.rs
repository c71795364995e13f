//! half_products: scratch that nothing but products with f16 read is f16, for `--math fast` on CPU levels
//! with arithmetic on f16.
//!
//! `widen_f16_scratch` keeps in f32 what contractions read over and over, so that it is converted once. Where
//! a level multiplies f16 and adds the products up as f16 ([`HALVES`](crate::nest::HALVES) of them at most),
//! both factors are to be in memory as f16: scratch becomes f16 again if all that reads it are contractions
//! whose other factor is f16. Schedules and tiles then see two factors of f16 and take it from there.

use crate::diag::Result;
use crate::nest::{Buf, Kernel, Math, Module, visit};
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::shape::is_temp;
use crate::passes::nest::quantize::integer_dot::operands;
use crate::target::{Facts, Level};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// True if the pass, or schedules without it, would find something.
pub fn suit(m: &Module, facts: &Facts) -> bool {
    let narrow = narrow(m);
    let half = |b: Buf| m.bufs[b].ty == ElemType::F16 || narrow.contains(&m.storage(b));
    facts.caps.halves && contractions(m).iter().any(|(_, p)| half(p.a.0) && half(p.b.0))
}

/// Sums of products of floats.
fn contractions(m: &Module) -> Vec<(Kernel, Contraction)> {
    operands::kernels(m)
        .into_iter()
        .filter_map(|k| {
            let p = m.form(k).contraction()?;
            (p.product == ProductKind::Fma && p.is_plain()).then(|| (k, p.clone()))
        })
        .collect()
}

/// Scratch that is to be f16.
fn narrow(m: &Module) -> HashSet<Buf> {
    let all = contractions(m);
    // What the contraction of a kernel multiplies by f16.
    let mut by_half: HashMap<Kernel, Vec<Buf>> = HashMap::new();
    for (k, p) in &all {
        for (x, other) in [(p.a.0, p.b.0), (p.b.0, p.a.0)] {
            if m.bufs[other].ty == ElemType::F16 {
                by_half.entry(*k).or_default().push(m.storage(x));
            }
        }
    }
    let mut fit: HashSet<Buf> = by_half
        .values()
        .flatten()
        .copied()
        .filter(|b| is_temp(m, *b) && m.bufs[*b].ty == ElemType::F32)
        .collect();
    for b in m.bufs.keys().filter(|b| m.is_recast(*b)) {
        fit.remove(&m.storage(b));
    }
    let epilogues: HashMap<Kernel, &Contraction> = all.iter().map(|(k, p)| (*k, p)).collect();
    for k in visit::calls(&m.driver) {
        let own = by_half.get(&k).map_or(&[][..], Vec::as_slice);
        for b in visit::loads(&m.kernels[k].body).into_iter().map(|b| m.storage(b)) {
            if !own.contains(&b) {
                fit.remove(&b);
            }
        }
        for b in epilogues.get(&k).map_or(vec![], |p| visit::loads(&p.epilogue)) {
            fit.remove(&m.storage(b));
        }
    }
    for b in visit::loads(&m.driver) {
        fit.remove(&m.storage(b));
    }
    fit
}

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if !level.facts.caps.halves || m.math != Math::Fast {
        return Ok(());
    }
    let narrow = narrow(m);
    for b in m.bufs.keys().collect::<Vec<_>>() {
        if narrow.contains(&m.storage(b)) {
            m.bufs[b].ty = ElemType::F16;
        }
    }
    Ok(())
}
