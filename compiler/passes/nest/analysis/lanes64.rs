//! 64-bit elements: nests that contain any are scheduled for vectors of half as many lanes, including their
//! other elements.

use crate::nest::{BinOp, Expr, Module, Reg, Stmt, UnOp, patterns, visit};
use crate::sym::{Dim, Sym, SymKind};
use crate::tensor::ElemType;
use std::collections::HashMap;

/// True for such types.
pub(crate) fn is(t: ElemType) -> bool {
    matches!(t, ElemType::F64 | ElemType::I64 | ElemType::U64)
}

/// Lanes of a vector of 64-bit elements on a level with `lanes` lanes of 32 bits. `halves`: the level has
/// vectors of such elements. Other code processes four lanes at a time and splits longer vectors.
pub(crate) fn lanes(lanes: i64, halves: bool) -> i64 {
    if halves { lanes / 2 } else { (lanes / 2).max(4).min(lanes) }
}

/// True for an index that 32 bits hold.
fn fits(m: &Module, d: Dim) -> bool {
    let r = m.syms.range(d);
    matches!((r.lo, r.hi), (Some(lo), Some(hi)) if i32::try_from(lo).is_ok() && i32::try_from(hi).is_ok())
}

/// True if 64-bit values are loaded, computed or stored. Indices that are compared with each other or
/// converted to 32 bits do not count, nor do run-time sizes, nor integers that are only compared with
/// positions ([`Positions`]).
pub(crate) fn has(m: &Module, body: &[Stmt]) -> bool {
    let mut found = false;
    visit::walk(body, &mut |s| {
        found |= match s {
            Stmt::Store { buf, .. } => is(m.bufs[*buf].ty),
            Stmt::Let { reg, .. } | Stmt::Acc { reg, .. } => is(m.regs[*reg].ty),
            _ => false,
        };
    });
    let (mut long, mut near, mut positions) = (0, 0, Positions::new(m));
    visit::walk_exprs(body, &mut |e| {
        long += usize::from(positions.is_long(e));
        match e {
            // Lanes compute the 32-bit value of an index directly.
            Expr::Cast(ElemType::I32 | ElemType::F32, x) if let Expr::Index(d) = &**x => {
                near += usize::from(positions.varies(d) && fits(m, *d))
            }
            Expr::Let { reg, value, .. } => near += positions.define(*reg, value),
            Expr::Bin(op, a, b) if op.is_comparison() => near += positions.compared(a, b),
            _ => {}
        }
    });
    found || long > near
}

/// 64-bit integers that are sums of indices, constants and elements of 32 bits, such as the position of a
/// query plus the number of keys before it. If the elements do not depend on the loops of the indices that
/// they are compared with, lanes of 32 bits compare the positions, and integer registers hold the elements.
struct Positions<'a> {
    m: &'a Module,
    /// The symbols of the elements that each register depends on.
    regs: HashMap<Reg, Vec<Sym>>,
}

/// The symbols of the indices and of the elements in a sum, and the number of 64-bit values in it.
#[derive(Default)]
struct Terms {
    indices: Vec<Sym>,
    elements: Vec<Sym>,
    long: usize,
}

impl<'a> Positions<'a> {
    fn new(m: &'a Module) -> Positions<'a> {
        Positions { m, regs: HashMap::new() }
    }
    /// True for an index that differs between iterations of a loop.
    fn varies(&self, d: &Dim) -> bool {
        d.syms().into_iter().any(|s| self.m.syms.kind(s) == SymKind::Loop)
    }
    /// True for an expression that needs 64 bits, disregarding its operands.
    fn is_long(&self, e: &Expr) -> bool {
        match e {
            Expr::Load { buf, .. } => is(self.m.bufs[*buf].ty),
            Expr::Cast(t, _) => is(*t),
            Expr::Const(c) => is(c.ty),
            Expr::Let { reg, .. } | Expr::Reg(reg) => is(self.m.regs[*reg].ty),
            Expr::Index(d) => self.varies(d),
            _ => false,
        }
    }
    /// Adds the terms of a sum; false for any other expression.
    fn sum(&self, e: &Expr, out: &mut Terms) -> bool {
        out.long += usize::from(self.is_long(e));
        match e {
            Expr::Const(c) => c.ty == ElemType::I64,
            Expr::Index(d) => {
                out.indices.extend(d.syms());
                true
            }
            Expr::Reg(r) => self.regs.get(r).map(|own| out.elements.extend(own)).is_some(),
            Expr::Cast(ElemType::I64, x) => match &**x {
                Expr::Load { buf, at } if self.m.bufs[*buf].ty == ElemType::I32 => {
                    out.elements.extend(at.iter().flat_map(|d| d.syms()));
                    true
                }
                _ => false,
            },
            Expr::Bin(BinOp::Add | BinOp::Sub, a, b) => self.sum(a, out) && self.sum(b, out),
            _ => false,
        }
    }
    /// Records the value of a register; the number of 64-bit values that this covers.
    fn define(&mut self, reg: Reg, value: &Expr) -> usize {
        let mut terms = Terms::default();
        if self.m.regs[reg].ty != ElemType::I64 || !self.sum(value, &mut terms) || !terms.indices.is_empty() {
            return 0;
        }
        self.regs.insert(reg, terms.elements);
        terms.long + 1
    }
    /// The number of 64-bit values in a comparison of positions.
    fn compared(&self, a: &Expr, b: &Expr) -> usize {
        let mut terms = Terms::default();
        let sums = self.sum(a, &mut terms) && self.sum(b, &mut terms);
        let apart = !terms.elements.iter().any(|s| terms.indices.contains(s));
        let varies = matches!((a, b), (Expr::Index(_), Expr::Index(_))) || !terms.indices.is_empty();
        if sums && apart && varies { terms.long } else { 0 }
    }
}

/// True if every operation of a nest with 64-bit values has a vector form. This includes its other values,
/// since a single scalar operation prevents vectorization.
pub(crate) fn suit(m: &Module, body: &[Stmt]) -> bool {
    let mut fits = true;
    let (mut indices, mut masked) = (vec![], vec![]);
    visit::walk_exprs(body, &mut |e| {
        if let Expr::With { sym, extent, .. } = e {
            indices.push(*sym);
            // An index out of range is replaced by 0 before it is reported, unless element 0 may not exist.
            if !m.syms.is_pos(*extent) {
                masked.push(*sym);
            }
        }
    });
    let reads = |at: &[Dim], list: &[Sym]| at.iter().any(|d| list.iter().any(|s| d.contains(*s)));
    visit::walk_exprs(body, &mut |e| {
        fits &= match e {
            // Gathers exist for elements of whole bytes. Gathers of single bytes under a mask take longer
            // than scalar loads.
            Expr::Load { buf, at } => match m.bufs[*buf].ty.bits() {
                8 => !reads(at, &masked),
                16 | 32 | 64 => true,
                _ => !reads(at, &indices),
            },
            Expr::Un(op, a) => unary(*op, m.type_of(a)),
            Expr::Bin(op, a, _) => {
                binary(*op, m.type_of(a))
                    || patterns::constant_power(e).is_some()
                    || patterns::constant_divisor(e).is_some()
            }
            Expr::Text(..) | Expr::Address(_) => false,
            _ => true,
        }
    });
    fits
}

/// True if an expression may differ between the iterations of a loop.
pub(crate) fn depends(e: &Expr, var: Sym) -> bool {
    let (mut hit, mut own) = (false, vec![]);
    e.walk(&mut |e| {
        hit |= match e {
            Expr::Load { at, .. } => at.iter().any(|d| d.contains(var)),
            Expr::Index(d) | Expr::With { extent: d, .. } => d.contains(var),
            Expr::Let { reg, .. } => {
                own.push(*reg);
                false
            }
            Expr::Reg(r) => !own.contains(r),
            Expr::Acc { .. } | Expr::Horizontal { .. } | Expr::Text(..) => true,
            _ => false,
        }
    });
    hit
}

fn unary(op: UnOp, t: ElemType) -> bool {
    let plain = op.is_plain_float() || matches!(op, UnOp::Bits(_));
    match t {
        ElemType::F32 | ElemType::F64 => plain || op.is_elementary(t),
        ElemType::Bool => op == UnOp::Not,
        _ => matches!(op, UnOp::Neg | UnOp::Abs | UnOp::Sign | UnOp::BitNot | UnOp::Bits(_)),
    }
}

fn binary(op: BinOp, t: ElemType) -> bool {
    match op {
        BinOp::Div if t.is_float() => true,
        BinOp::Div | BinOp::Rem | BinOp::Mod => !(t.is_float() || matches!(t, ElemType::U32 | ElemType::U64)),
        BinOp::Pow | BinOp::Atan2 => false,
        _ => true,
    }
}
