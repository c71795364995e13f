//! Gathers of packed weights (tied embeddings): kernels that read elements at loaded indices read the packed
//! words, scales and zero points, so that the object stores the weights once.

use super::WIDTH;
use crate::nest::{BinOp, Buf, Expr, Kernel, Module, Stmt, visit};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// A constant and its packed form, by column and element (or block).
pub(super) struct Packed {
    /// The constant in row-major order: a row is a column of the product.
    pub from: Buf,
    /// Elements from row to row.
    pub row: i64,
    /// Columns.
    pub columns: i64,
    /// Packed elements per row.
    pub elements: i64,
    pub kind: Kind,
}

/// The kind of packed data.
pub(super) enum Kind {
    /// Words `[panel][word][column]` of elements of `bits` bits; `flip`: signed elements with inverted sign
    /// bit.
    Words { to: Buf, bits: i64, flip: bool },
    /// `[panel][block][column]`.
    Table { to: Buf },
}

/// Redirects gathering kernels to the packed data.
pub(super) fn share(m: &mut Module, packed: &[Packed]) {
    for k in visit::calls(&m.driver) {
        if m.kernels[k].scheduled || !reads(m, k, packed) || !gathers(&m.kernels[k].body) {
            continue;
        }
        let body = std::mem::take(&mut m.kernels[k].body);
        let mut map = |e: Expr| {
            e.rewrite(&mut |e| match e {
                Expr::Load { buf, at } => moved(m, packed, buf, &at).unwrap_or(Expr::Load { buf, at }),
                e => e,
            })
        };
        let body: Vec<Stmt> = body.into_iter().map(|s| s.map_exprs(&mut map)).collect();
        m.kernels[k].body = body.into();
    }
}

fn reads(m: &Module, k: Kernel, packed: &[Packed]) -> bool {
    visit::loads(&m.kernels[k].body).into_iter().any(|b| packed.iter().any(|p| p.from == m.storage(b)))
}

/// True if a load has an index that comes from memory.
pub(super) fn gathers(body: &[Stmt]) -> bool {
    visit::any_expr(body, &mut |e| matches!(e, Expr::With { .. }))
}

/// The load of the same element from the packed data, if it provably is there.
fn moved(m: &mut Module, packed: &[Packed], buf: Buf, at: &[Dim]) -> Option<Expr> {
    let (from, ty) = (m.storage(buf), m.bufs[buf].ty);
    let p = packed.iter().find(|p| p.from == from)?;
    let i = m.linear(buf, at);
    let [n, e] = [i.floor_div(p.row), i.modulo(p.row)].map(|d| m.syms.simplify(d));
    if !m.syms.in_range(n, Dim::constant(p.columns)) || !m.syms.in_range(e, Dim::constant(p.elements)) {
        return None;
    }
    let (panel, lane) = (n.floor_div(WIDTH), n.modulo(WIDTH));
    match p.kind {
        Kind::Table { to } => Some(Expr::Load { buf: to, at: vec![panel, e, lane] }),
        Kind::Words { to, bits, flip } => {
            if i64::from(ty.bits()) != bits {
                return None;
            }
            let per = 32 / bits;
            let plain = match bits {
                2 => ElemType::U2,
                4 => ElemType::U4,
                _ => ElemType::U8,
            };
            let dims = [(p.columns + WIDTH - 1) / WIDTH, (p.elements + per - 1) / per, WIDTH, per]
                .map(Dim::constant);
            let view = m.view_as(to, if flip { plain } else { ty }, dims.to_vec());
            let inside = e.modulo(per);
            // `words::position`
            let place = inside.modulo(4) * (8 / bits) + inside.floor_div(4);
            let v = Expr::Load { buf: view, at: vec![panel, e.floor_div(per), lane, place] };
            if !flip {
                return Some(v);
            }
            let int = ElemType::I32;
            let v =
                Expr::bin(BinOp::Sub, Expr::cast(plain.compute(), int, v), Expr::int(int, 1 << (bits - 1)));
            Some(Expr::cast(int, ty.compute(), v))
        }
    }
}
