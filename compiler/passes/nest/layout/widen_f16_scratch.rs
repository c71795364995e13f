//! widen_f16_scratch: scratch of a 16-bit float type holds f32 if kernels read its elements repeatedly.
//!
//! Arithmetic is in f32 in any case. An element is then converted once, when it is stored, instead of in each
//! step of a contraction, a window or a row, and passes that require f32 (Winograd's transform, broadcasts
//! from memory) apply. Buffers between maps are read once and keep their type; so do inputs, outputs and
//! weights.
//!
//! Between operators of one 16-bit type, results are not rounded, whether they share a kernel or not. A
//! conversion from another type rounds: the result of such a kernel keeps its type.

use crate::diag::Result;
use crate::nest::form::read_in_loops;
use crate::nest::{Buf, Module, Place, visit};
use crate::tensor::ElemType;
use std::collections::HashSet;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    let mut again: HashSet<Buf> = HashSet::new();
    let mut keep: HashSet<Buf> = HashSet::new();
    for k in visit::calls(&m.driver) {
        let body = &m.kernels[k].body;
        let (loads, stores) = (visit::loads(body), visit::stores(body));
        for b in loads.iter().chain(&stores).filter(|b| m.is_recast(**b)) {
            keep.insert(m.storage(*b));
        }
        for t in stores.into_iter().map(|b| m.storage(b)) {
            let ty = m.bufs[t].ty;
            if loads.iter().any(|b| !matches!(m.bufs[*b].ty, x if x == ty || x == ElemType::Bool)) {
                keep.insert(t);
            }
        }
        again.extend(read_in_loops(body).into_iter().map(|b| m.storage(b)));
    }
    let half = |b: &Buf| {
        matches!(m.bufs[*b].ty, ElemType::F16 | ElemType::BF16) && matches!(m.bufs[*b].place, Place::Temp)
    };
    let chosen: HashSet<Buf> = again.into_iter().filter(|b| half(b) && !keep.contains(b)).collect();
    for b in m.bufs.keys().collect::<Vec<_>>() {
        if chosen.contains(&m.storage(b)) {
            m.bufs[b].ty = ElemType::F32;
        }
    }
    Ok(())
}
