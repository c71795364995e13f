//! Unrolling beyond the schedule, on machines with few elements per vector.

use super::Translate;
use crate::codegen::Map;
use crate::codegen::tile::isa;
use crate::nest::{BinOp, Buf, Expr, LoopKind, Module, Reg, Stmt};
use crate::tensor::ElemType;

/// Maximum statements after unrolling a loop.
const STATEMENTS: i64 = 64;
/// Maximum iterations of an unrolled loop: the taps of a window.
const ITERATIONS: i64 = 9;
/// Maximum operations of an iteration with several vectors.
const OPERATIONS: usize = 64;
/// Minimum stores of a longer body with two vectors.
const STORES: usize = 8;
/// Maximum registers of its two vectors.
const LIVE: usize = 30;

/// What unrolling depends on.
#[derive(Clone, Copy)]
pub(super) struct Unroll<'a> {
    pub m: &'a Module,
    /// What is computed of f16 only may be computed in f16: two vectors are one then, if they alternate.
    pub halves: bool,
}

impl Translate<'_> {
    pub(super) fn unroll(&self) -> Unroll<'_> {
        Unroll { m: self.m, halves: self.b.has_halves() }
    }
    /// True for short inner loops that are unrolled completely.
    pub(super) fn written_out(&self, kind: LoopKind, trip: Option<i64>, body: &[Stmt]) -> bool {
        let (LoopKind::Seq | LoopKind::Par, Some(n @ 2..=ITERATIONS)) = (kind, trip) else { return false };
        let inside = !self.active.is_empty() || !self.deeper.is_empty();
        inside
            && isa::machine(self.b.width()).unrolls()
            && self.statements(body).is_some_and(|s| s * n <= STATEMENTS)
    }
    /// Number of statements of a body after unrolling its loops, if these are short.
    fn statements(&self, body: &[Stmt]) -> Option<i64> {
        let mut sum = 0;
        for s in body {
            sum += match s {
                Stmt::For { kind, lo, hi, body, .. } => {
                    let trip = (self.substituted(*hi) - self.substituted(*lo)).as_const()?;
                    let copies = match kind {
                        LoopKind::Vec(n) if trip <= i64::from(*n) => 1,
                        LoopKind::Vec(_) => return None,
                        LoopKind::Unroll => trip,
                        LoopKind::Seq | LoopKind::Par if trip <= ITERATIONS => trip,
                        LoopKind::Seq | LoopKind::Par | LoopKind::Private => return None,
                    };
                    copies * self.statements(body)?
                }
                Stmt::Tile { body } => self.statements(body)?,
                Stmt::If { .. } => return None,
                _ => 1,
            };
        }
        Some(sum)
    }
}

/// True if a statement reads what an earlier one has stored.
pub(super) fn reads_back(m: &Module, body: &[Stmt]) -> bool {
    let mut stored: Vec<Buf> = vec![];
    let mut found = false;
    for s in body {
        if let Some(e) = s.expr() {
            e.walk(&mut |e| {
                if let Expr::Load { buf, .. } = e {
                    found |= stored.iter().any(|b| m.overlaps(*b, m.storage(*buf)));
                }
            });
        }
        if let Stmt::Store { buf, .. } = s {
            stored.push(m.storage(*buf));
        }
    }
    found
}

impl Unroll<'_> {
    /// True for long bodies of many stores and few values at a time: two vectors of each fit into the
    /// registers if their statements alternate, and pairs of vectors are stored together.
    pub fn alternates(self, body: &[Stmt]) -> bool {
        let stores = body.iter().filter(|s| matches!(s, Stmt::Store { .. })).count();
        let is_plain = body.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Store { .. }));
        let live = most_live(body);
        let fits = if self.halves && self.is_of_halves(body) {
            live <= LIVE
        } else {
            stores >= STORES && 2 * live <= LIVE
        };
        is_plain && fits && !reads_back(self.m, body)
    }
    /// True for sums, differences and limits of f16.
    fn is_of_halves(self, body: &[Stmt]) -> bool {
        let is_half = |b: &Buf| self.m.bufs[*b].ty == ElemType::F16;
        let mut all = true;
        for s in body {
            all &= !matches!(s, Stmt::Store { buf, .. } if !is_half(buf));
            s.expr().into_iter().for_each(|e| {
                e.walk(&mut |e| {
                    all &= match e {
                        Expr::Load { buf, .. } => is_half(buf),
                        Expr::Bin(op, ..) => {
                            matches!(op, BinOp::Add | BinOp::Sub | BinOp::Min | BinOp::Max)
                        }
                        e => matches!(e, Expr::Const(_) | Expr::Reg(_) | Expr::Let { .. }),
                    }
                })
            });
        }
        all
    }
    /// Vectors per iteration of a loop with this body.
    pub fn vectors(self, body: &[Stmt]) -> i64 {
        let mut operations = 0;
        for s in body {
            match s {
                Stmt::Let { .. } | Stmt::Set { .. } | Stmt::Store { .. } | Stmt::Acc { .. } => {}
                // Bodies with loops or branches are long enough.
                _ => return 1,
            }
            if let Some(e) = s.expr() {
                e.walk(&mut |_| operations += 1);
            }
        }
        match operations {
            n if 8 * n <= OPERATIONS => 8,
            n if 4 * n <= OPERATIONS => 4,
            n if 2 * n <= OPERATIONS => 2,
            _ if self.alternates(body) => 2,
            _ => 1,
        }
    }
}

/// Most registers in use at once.
fn most_live(body: &[Stmt]) -> usize {
    let mut last: Map<Reg, usize> = Map::default();
    for (i, s) in body.iter().enumerate() {
        let mut used = |e: &Expr| {
            if let Expr::Reg(r) = e {
                last.insert(*r, i);
            }
        };
        s.expr().into_iter().for_each(|e| e.walk(&mut used));
    }
    let (mut live, mut most) = (0, 0);
    for (i, s) in body.iter().enumerate() {
        if let Stmt::Let { reg, .. } = s {
            live += usize::from(last.contains_key(reg));
            most = most.max(live);
        }
        live = live.saturating_sub(last.values().filter(|at| **at == i).count());
    }
    most
}
