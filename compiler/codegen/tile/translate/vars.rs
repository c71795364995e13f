//! The variables that the statements of a tile bind, by kind.

use crate::nest::{Expr, LoopKind, Module, Stmt, visit};
use crate::sym::{Answer, Dim, Sym};

pub(super) struct Vars {
    /// Of all loops.
    pub loops: Vec<Sym>,
    pub unrolled: Vec<Sym>,
    /// Of vector loops.
    pub vectors: Vec<Sym>,
    /// Of vector loops that are a single vector.
    pub lanes_of_one: Vec<Sym>,
    /// Of indices loaded from memory.
    pub withs: Vec<Sym>,
}

impl Vars {
    pub fn of(m: &Module, body: &[Stmt]) -> Vars {
        let (mut loops, mut unrolled, mut vectors) = (vec![], vec![], vec![]);
        let (mut lanes_of_one, mut withs) = (vec![], vec![]);
        visit::walk(body, &mut |s| {
            let Stmt::For { kind, var, lo, hi, .. } = s else { return };
            loops.push(*var);
            match kind {
                LoopKind::Unroll => unrolled.push(*var),
                LoopKind::Vec(n) => {
                    vectors.push(*var);
                    if m.syms.le(*hi - *lo, Dim::from(*n)) == Answer::Yes {
                        lanes_of_one.push(*var);
                    }
                }
                _ => {}
            }
        });
        visit::walk_exprs(body, &mut |e| {
            if let Expr::With { sym, .. } = e {
                withs.push(*sym);
            }
        });
        Vars { loops, unrolled, vectors, lanes_of_one, withs }
    }
    /// True if a dim depends on a loop.
    pub fn loop_in(&self, d: Dim) -> bool {
        self.loops.iter().any(|s| d.contains(*s))
    }
    /// True if a dim depends on a loaded index.
    pub fn with_in(&self, d: Dim) -> bool {
        self.withs.iter().any(|s| d.contains(*s))
    }
}
