//! Gates: images whose channels a kernel multiplies by factors (squeeze-and-excite) only for a contraction.
//!
//! Register tiles multiply the vectors of operand B by the factor of their step instead, which is the same for
//! all rows and columns of a tile. The image is then read once and not stored again. If all sizes are known,
//! `gate_weights` applies the factors to the weights.

use crate::nest::key::Writer;
use crate::nest::{BinOp, Buf, Expr, Kernel, Math, Module};
use crate::passes::nest::analysis::form::{Contraction, ProductKind, depends};
use crate::passes::nest::analysis::shape::{Map, is_temp};
use crate::passes::nest::analysis::uses::Uses;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// An image with factors.
#[derive(Debug)]
struct Gate {
    /// The kernel that multiplies, and the contraction that reads the product.
    map: Kernel,
    reader: Kernel,
    image: Buf,
    factor: (Buf, Vec<Dim>),
    /// The variable of the factor's subscripts for each dimension of the image.
    cover: Vec<Option<Sym>>,
}

/// The gates of a module.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    /// By the buffer of the product.
    of: HashMap<Buf, Gate>,
}

impl Gates {
    /// Finds them. Products are rounded in another order.
    pub fn new(m: &Module, uses: &Uses) -> Gates {
        if m.math == Math::Strict {
            return Gates::default();
        }
        let found = uses.order.iter().filter_map(|k| gate(m, uses, *k));
        Gates { of: found.collect() }
    }
    /// Writes into a key what the schedule of a kernel that accesses `b` depends on.
    pub fn key(&self, b: Buf, w: &mut Writer) {
        w.put([u64::from(self.of.contains_key(&b))]);
    }
    /// Moves the factors of an operand of `p`, the contraction of kernel `k`, into `p`; returns the kernel
    /// that multiplied.
    pub fn fuse(&self, m: &Module, k: Kernel, p: &mut Contraction) -> Option<Kernel> {
        if p.product != ProductKind::Fma || !p.is_plain() {
            return None;
        }
        let (operand, other) =
            if self.of.contains_key(&p.a.0) { (&mut p.a, p.b.0) } else { (&mut p.b, p.a.0) };
        let g = self.of.get(&operand.0).filter(|g| g.reader == k && operand.0 != other)?;
        let at = |s: Sym| g.cover.iter().zip(&operand.1).find(|(c, _)| **c == Some(s)).map(|(_, d)| *d);
        let factor: Vec<Dim> = g.factor.1.iter().map(|d| d.subst(&mut |s| at(s))).collect();
        // An epilogue that reads the product needs it in memory.
        if m.bufs[other].ty != ElemType::F32 || p.epilogue.iter().any(|s| s.loads().contains(&operand.0)) {
            return None;
        }
        operand.0 = g.image;
        p.gate = Some((g.factor.0, factor));
        Some(g.map)
    }
}

/// True if the factors of a contraction's steps, if it has any, are the same for all iterations of `s`.
pub(crate) fn is_fixed(p: &Contraction, s: Sym) -> bool {
    p.gate.as_ref().is_none_or(|(_, at)| !depends(at, s))
}

/// The gate that map `k` computes.
fn gate(m: &Module, uses: &Uses, k: Kernel) -> Option<(Buf, Gate)> {
    let map: &Map = m.form(k).map()?;
    let t = map.buf;
    let plain = |b: Buf| m.bufs[b].ty == ElemType::F32 && m.storage(b) == b;
    let ([_], [reader], true) = (uses.writers(t), uses.readers(t), is_temp(m, t) && plain(t)) else {
        return None;
    };
    let Expr::Bin(BinOp::Mul, x, y) = &map.value else { return None };
    let (image, factor) = [(x, y), (y, x)].into_iter().find_map(|(image, factor)| {
        let (Expr::Load { buf, at }, Expr::Load { buf: of, at: from }) = (&**image, &**factor) else {
            return None;
        };
        // The map reads the image at its own position, and the factors at few positions.
        let (t, i) = (&m.bufs[t], &m.bufs[*buf]);
        let same = *at == map.at && i.dims == t.dims && i.layout == t.layout;
        (same && plain(*buf) && plain(*of) && from != at).then(|| (*buf, (*of, from.clone())))
    })?;
    let fits = *reader != k && !uses.pinned(t) && !uses.viewed(t) && uses.may_move(m, k, *reader);
    let cover = map.cover(m).filter(|_| fits)?;
    Some((t, Gate { map: k, reader: *reader, image, factor, cover }))
}
