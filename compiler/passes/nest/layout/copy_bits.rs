//! copy_bits: stores of small floats and of booleans whose value is only loaded, selected and indexed copy
//! bits. They access the buffers through views of integers of the same size: floats are not converted to f32
//! and back, and booleans move like bytes. Logic of loaded booleans is arithmetic of integers (`logic`).

mod logic;

use crate::diag::Result;
use crate::nest::interp::to_storage;
use crate::nest::{Buf, Expr, Kernel, Module, Scalar, Stmt, visit};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// Rewrites all kernels.
pub fn run(m: &mut Module) -> Result<()> {
    let mut views = HashMap::new();
    for k in m.kernels.keys().collect::<Vec<Kernel>>() {
        let mut some = false;
        visit::walk(&m.kernels[k].body, &mut |s| {
            some |= matches!(s, Stmt::Store { buf, value, .. } if moves(m, m.bufs[*buf].ty, value)
                || logic::is_logic(m, m.bufs[*buf].ty, value))
        });
        if some {
            let body = std::mem::take(&mut m.kernels[k].body);
            m.kernels[k].body = body.into_iter().map(|s| stmt(m, s, &mut views)).collect();
        }
    }
    Ok(())
}

/// The integer type of the size of a boolean, or of a float that arithmetic converts.
fn bits(t: ElemType) -> Option<ElemType> {
    match (t == ElemType::Bool || t.is_float() && t.compute() != t, t.bits()) {
        (true, 16) => Some(ElemType::U16),
        (true, 8) => Some(ElemType::U8),
        _ => None,
    }
}

fn moves(m: &Module, t: ElemType, e: &Expr) -> bool {
    let mut loads = false;
    bits(t).is_some() && is_move(m, t, e, &mut loads) && loads
}

fn is_move(m: &Module, t: ElemType, e: &Expr, loads: &mut bool) -> bool {
    match e {
        Expr::Load { buf, .. } => {
            *loads = true;
            m.bufs[*buf].ty == t
        }
        Expr::Const(_) => true,
        Expr::Select(_, a, b) => is_move(m, t, a, loads) && is_move(m, t, b, loads),
        Expr::With { body, .. } | Expr::Let { body, .. } => is_move(m, t, body, loads),
        _ => false,
    }
}

/// The view of a buffer of such elements as integers.
fn view(m: &mut Module, buf: Buf, views: &mut HashMap<Buf, Buf>) -> Buf {
    let d = &m.bufs[buf];
    let (Some(ty), dims, layout) = (bits(d.ty), d.dims.clone(), d.layout.clone()) else { return buf };
    *views.entry(buf).or_insert_with(|| {
        let v = m.view_as(buf, ty, dims);
        m.bufs[v].layout = layout;
        v
    })
}

fn stmt(m: &mut Module, s: Stmt, views: &mut HashMap<Buf, Buf>) -> Stmt {
    s.rewrite(&mut |s| match s {
        Stmt::Store { buf, at, value } if moves(m, m.bufs[buf].ty, &value) => {
            let value = moved(m, m.bufs[buf].ty, value, views);
            Stmt::Store { buf: view(m, buf, views), at, value }
        }
        Stmt::Store { buf, at, value } if logic::is_logic(m, m.bufs[buf].ty, &value) => {
            let value = logic::of_bytes(m, value, views);
            Stmt::Store { buf: view(m, buf, views), at, value }
        }
        s => s,
    })
}

fn moved(m: &mut Module, t: ElemType, e: Expr, views: &mut HashMap<Buf, Buf>) -> Expr {
    let mut b = |m: &mut Module, e: Box<Expr>| Box::new(moved(m, t, *e, views));
    match e {
        Expr::Load { buf, at } => Expr::Load { buf: view(m, buf, views), at },
        Expr::Const(c) => Scalar { ty: bits(t).unwrap_or(t), bits: to_storage(t, c) }.into(),
        Expr::Select(c, x, y) => Expr::Select(c, b(m, x), b(m, y)),
        Expr::With { sym, value, extent, body } => Expr::With { sym, value, extent, body: b(m, body) },
        Expr::Let { reg, value, body } => Expr::Let { reg, value, body: b(m, body) },
        e => e,
    }
}
