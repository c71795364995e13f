//! half_products: scratch whose only readers are products with f16 becomes f16, for `--math fast` on CPU
//! levels with f16 arithmetic.
//!
//! `widen_f16_scratch` keeps operands of contractions in f32, so that each element is converted once. If a
//! level multiplies f16 and accumulates in f16 (at most [`HALVES`](crate::nest::HALVES) products), both
//! factors should be f16 in memory: scratch that such a product reads becomes f16 again if its other readers
//! are products with f16, too, or read each element once: epilogues of contractions (the sum of a residual
//! block) and maps (padding). Schedules and tiles select f16 arithmetic for contractions with two f16
//! factors.

use crate::diag::Result;
use crate::nest::{Buf, Kernel, Math, Module, visit};
use crate::passes::nest::analysis::form::{Contraction, Form, ProductKind};
use crate::passes::nest::analysis::shape::is_temp;
use crate::passes::nest::quantize::integer_dot::operands;
use crate::target::{Facts, Level};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

/// True if the pass, or f16 schedules without it, would apply to the module.
pub fn suit(m: &Module, facts: &Facts) -> bool {
    let narrow = narrow(m);
    let half = |b: Buf| m.bufs[b].ty == ElemType::F16 || narrow.contains(&m.storage(b));
    facts.caps.halves && contractions(m).iter().any(|(_, p)| half(p.a.0) && half(p.b.0))
}

/// Contractions of floats.
fn contractions(m: &Module) -> Vec<(Kernel, Contraction)> {
    operands::kernels(m)
        .into_iter()
        .filter_map(|k| {
            let p = m.form(k).contraction()?;
            (p.product == ProductKind::Fma && p.is_plain()).then(|| (k, p.clone()))
        })
        .collect()
}

/// Scratch that becomes f16.
fn narrow(m: &Module) -> HashSet<Buf> {
    let all = contractions(m);
    // The operands that a kernel's contraction multiplies by f16.
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
    let of: HashMap<Kernel, &Contraction> = all.iter().map(|(k, p)| (*k, p)).collect();
    for k in visit::calls(&m.driver) {
        let own = by_half.get(&k).map_or(&[][..], Vec::as_slice);
        let over_and_over = match of.get(&k) {
            Some(p) => vec![p.a.0, p.b.0],
            None if matches!(m.form(k), Form::Map(_)) => vec![],
            None => visit::loads(&m.kernels[k].body),
        };
        for b in over_and_over.into_iter().map(|b| m.storage(b)) {
            if !own.contains(&b) {
                fit.remove(&b);
            }
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
