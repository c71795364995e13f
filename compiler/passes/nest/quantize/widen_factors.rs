//! widen_factors: elements of 16-bit floats that multiply rows of the other factor become f32 in scratch, on
//! levels that do not multiply vectors by a lane of another.
//!
//! Such a level has no register form of 16-bit floats: each element would be loaded into all lanes of a
//! vector and converted there by several instructions, once for each vector of columns, where an element of
//! f32 is an operand in memory (x86-64) or a float register (riscv64). `widen_f16_scratch` keeps scratch in
//! f32 in any case; this pass copies what it leaves, such as inputs. The rows themselves are converted with
//! all their lanes, when they are packed or loaded.

use crate::diag::Result;
use crate::nest::{Buf, Kernel, Module};
use crate::passes::nest::analysis::form::{Contraction, ProductKind};
use crate::passes::nest::analysis::strides::unit_stride_var;
use crate::passes::nest::quantize::integer_dot::operands;
use crate::sym::Dim;
use crate::target::Level;
use crate::tensor::ElemType;

/// Minimum uses of an element for which it is converted first.
const USES: i64 = 8;

/// Runs the pass.
pub fn run(m: &mut Module, level: &Level) -> Result<()> {
    if level.facts.caps.by_lane {
        return Ok(());
    }
    for k in operands::kernels(m) {
        let factor = m.form(k).contraction().and_then(|p| repeated(m, p));
        if let Some(x) = factor {
            widen(m, k, x);
        }
    }
    Ok(())
}

/// The factor whose elements multiply rows of the other one, if it is of 16-bit floats and each element is
/// used often.
fn repeated(m: &Module, p: &Contraction) -> Option<Buf> {
    let (out, at) = p.store().filter(|_| p.product == ProductKind::Fma && p.is_plain())?;
    let column = unit_stride_var(m, out, &at, &p.loops)?;
    let ((x, at), others) = if p.is_only_of_a(column) { (&p.b, &p.a.1) } else { (&p.a, &p.b.1) };
    let depends = |of: &[Dim], s| of.iter().any(|d| d.contains(s));
    let again = p.loops.iter().filter(|l| depends(others, l.0) && !depends(at, l.0));
    let uses = again.map(|l| l.1.as_const().unwrap_or(USES)).fold(1, i64::saturating_mul);
    let half = matches!(m.bufs[*x].ty, ElemType::F16 | ElemType::BF16);
    (half && !m.is_constant(*x) && !m.is_recast(*x) && uses >= USES).then_some(*x)
}

/// A kernel before `k` that copies a factor, which `k` reads instead.
fn widen(m: &mut Module, k: Kernel, x: Buf) {
    let (dims, layout) = (m.bufs[x].dims.clone(), m.bufs[x].layout.clone());
    let out = m.temp(format!("{}.f32", m.bufs[x].name), ElemType::F32, dims);
    m.bufs[out].layout = layout;
    let origin = m.kernels[k].origin.clone();
    let copy = m.map(out, &origin, |kb, at| kb.load(x, at));
    operands::before(m, k, copy, "f32");
    m.kernels[k].body.iter_mut().for_each(|s| s.rename(&|b| if b == x { out } else { b }));
}
