//! Hoists indices that are uniform across the lanes of vectors out of a store.

use crate::nest::{Expr, Stmt};
use crate::passes::nest::analysis::lanes64;
use crate::passes::nest::analysis::shape::ParNest;
use crate::sym::{Dim, Sym};

/// Hoists indices that are uniform across lanes out of a store, each once. Those in an arm of a select stay,
/// since they may be out of range if the arm is not taken.
pub(super) fn hoist(nest: &mut ParNest, var: Sym) -> Vec<(Sym, Expr, Dim)> {
    let mut shared = Hoist { var, outside: vec![], kept: vec![] };
    if let [Stmt::Store { value, .. }] = nest.body.as_mut_slice() {
        let whole = std::mem::replace(value, Expr::f32(0.0));
        *value = shared.take(whole);
    }
    shared.outside
}

struct Hoist {
    /// The loop whose iterations are the lanes.
    var: Sym,
    /// Hoisted indices: the symbol, its value, and its bound.
    outside: Vec<(Sym, Expr, Dim)>,
    /// Symbols of indices that are not hoisted.
    kept: Vec<Sym>,
}

impl Hoist {
    fn take(&mut self, e: Expr) -> Expr {
        let mut each = |e: Box<Expr>| Box::new(self.take(*e));
        match e {
            Expr::Un(op, a) => Expr::Un(op, each(a)),
            Expr::Cast(t, a) => Expr::Cast(t, each(a)),
            Expr::Bin(op, a, b) => Expr::Bin(op, each(a), each(b)),
            Expr::Fma(a, b, c) => Expr::Fma(each(a), each(b), each(c)),
            Expr::Select(c, a, b) => Expr::Select(each(c), a, b),
            Expr::Let { reg, value, body } => Expr::Let { reg, value: each(value), body: each(body) },
            Expr::With { sym, value, extent, body } => {
                let value = self.take(*value);
                let mut inside = lanes64::depends(&value, self.var) || extent.contains(self.var);
                // Values bound inside the expression cannot be hoisted.
                let mut own = vec![];
                value.walk(&mut |e| match e {
                    Expr::Let { reg, .. } => own.push(*reg),
                    Expr::Reg(r) => inside |= !own.contains(r),
                    Expr::Acc { .. } => inside = true,
                    _ => {}
                });
                value.clone().map_dims(&mut |d| {
                    inside |= self.kept.iter().any(|s| d.contains(*s));
                    d
                });
                if inside || self.kept.iter().any(|s| extent.contains(*s)) {
                    self.kept.push(sym);
                    return Expr::With {
                        sym,
                        value: Box::new(value),
                        extent,
                        body: Box::new(self.take(*body)),
                    };
                }
                let body = match self.outside.iter().find(|o| o.1 == value && o.2 == extent) {
                    Some((same, ..)) => body.subst(&|s| (s == sym).then(|| Dim::sym(*same))),
                    None => {
                        self.outside.push((sym, value, extent));
                        *body
                    }
                };
                self.take(body)
            }
            e => e,
        }
    }
}
