//! Row kernels: sequential loops over the elements of a row, with values in between (softmax, normalization),
//! and scans along them.

use super::loops::{Loops, Map, par_loops, seq_loops};
use crate::nest::{BinOp, Expr, LoopKind, Reg, Stmt};
use crate::sym::Dim;

/// The parts of a row kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    /// The `par` nest.
    pub loops: Loops,
    /// The body, in order.
    pub parts: Vec<Part>,
}

/// A statement of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// An accumulator, a value, an update or a store, once per row.
    Once(Stmt),
    /// A loop over elements.
    Each(Elements),
}

/// One or several nested loops over the elements of a row, whose body is straight-line code.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Elements {
    /// The loops.
    pub loops: Loops,
    /// Values, updates of accumulators, stores.
    pub body: Vec<Stmt>,
}

/// The nest as a row kernel, including contractions, windows and scans.
pub(crate) fn rows(body: &[Stmt]) -> Option<Rows> {
    let (loops, inside) = par_loops(body);
    let part = |s: &Stmt| match s {
        Stmt::Acc { lanes: 1, .. } | Stmt::Let { .. } | Stmt::Set { .. } | Stmt::Store { .. } => {
            Some(Part::Once(s.clone()))
        }
        s => {
            let (loops, body) = seq_loops(s)?;
            Some(Part::Each(Elements::new(loops, body)?))
        }
    };
    Some(Rows { loops, parts: inside.iter().map(part).collect::<Option<_>>()? })
}

impl Rows {
    /// A map as rows along its innermost loop.
    pub fn of_map(map: &Map) -> Option<Rows> {
        let (row, outer) = map.loops.split_last()?;
        let store = Stmt::Store { buf: map.buf, at: map.at.clone(), value: map.value.clone() };
        let elements = Elements { loops: vec![*row], body: vec![store] };
        Some(Rows { loops: outer.to_vec(), parts: vec![Part::Each(elements)] })
    }
    /// The loops over elements.
    pub fn elements(&self) -> impl Iterator<Item = &Elements> {
        self.parts.iter().filter_map(|p| if let Part::Each(e) = p { Some(e) } else { None })
    }
    /// True if a loop over elements changes an accumulator.
    pub fn reduces(&self) -> bool {
        self.elements().any(Elements::reduces)
    }
    /// The computation of a row, as statements.
    pub fn body(&self) -> Vec<Stmt> {
        self.parts.iter().map(Part::statement).collect()
    }
}

impl Part {
    /// The statement.
    pub fn statement(&self) -> Stmt {
        match self {
            Part::Once(s) => s.clone(),
            Part::Each(e) => e.statement(),
        }
    }
}

impl Elements {
    /// Loops around a body, if that is straight-line code.
    pub fn new(loops: Loops, body: &[Stmt]) -> Option<Elements> {
        let straight =
            body.iter().all(|s| matches!(s, Stmt::Let { .. } | Stmt::Set { .. } | Stmt::Store { .. }));
        straight.then(|| Elements { loops, body: body.to_vec() })
    }
    /// The number of elements, if a single loop runs over them and it is known.
    pub fn count(&self) -> Option<i64> {
        if let [(_, n)] = self.loops[..] { n.as_const() } else { None }
    }
    /// True if the loop updates accumulators.
    pub fn reduces(&self) -> bool {
        self.body.iter().any(|s| matches!(s, Stmt::Set { .. }))
    }
    /// True if elements are stored.
    pub fn stores(&self) -> bool {
        self.body.iter().any(|s| matches!(s, Stmt::Store { .. }))
    }
    /// Every accumulator that the loop updates, with its operation, which may be reassociated (except for the
    /// rounding of floats). `None` if an accumulator is updated in another way, or read elsewhere.
    pub fn reductions(&self) -> Option<Vec<(Reg, BinOp)>> {
        let changes = self.body.iter().filter(|s| matches!(s, Stmt::Set { .. }));
        let found = changes.map(reduction).collect::<Option<Vec<_>>>()?;
        let mut read = false;
        for s in &self.body {
            let own = if let Stmt::Set { reg, .. } = s { Some(*reg) } else { None };
            if let Some(e) = s.expr() {
                e.walk(&mut |e| {
                    read |= found.iter().any(|(reg, _)| Some(*reg) != own && e.is_acc(*reg));
                });
            }
        }
        (!read).then_some(found)
    }
    /// The loops as a statement.
    pub fn statement(&self) -> Stmt {
        let nest = |body: Vec<Stmt>, (var, hi): &(_, Dim)| vec![Stmt::seq(*var, *hi, body)];
        self.loops.iter().rev().fold(self.body.clone(), nest).remove(0)
    }
}

/// The operation that combines an accumulator with an element.
fn reduction(s: &Stmt) -> Option<(Reg, BinOp)> {
    let Stmt::Set { reg, at, value } = s else { return None };
    let own = |e: &Expr| matches!(e, Expr::Acc { reg: r, .. } if r == reg);
    let free = |e: &Expr| !e.any(&mut |e| own(e));
    let op = match value {
        Expr::Bin(op @ (BinOp::Max | BinOp::Min), a, b) if own(a) && free(b) => *op,
        Expr::Bin(op @ (BinOp::Add | BinOp::Mul), a, b) if own(a) && free(b) || free(a) && own(b) => *op,
        Expr::Fma(a, b, c) if own(c) && free(a) && free(b) => BinOp::Add,
        _ => return None,
    };
    at.is_empty().then_some((*reg, op))
}

/// A loop that updates accumulators and stores in each step: CumSum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scan {
    /// The body of the loop.
    pub step: Vec<Stmt>,
}

/// The nest as a scan: accumulators, then the loop.
pub(crate) fn scan(body: &[Stmt]) -> Option<Scan> {
    let (_, [accs @ .., Stmt::For { kind: LoopKind::Seq, body: step, .. }]) = par_loops(body) else {
        return None;
    };
    let elements = Elements::new(vec![], step)?;
    let scans = accs.iter().all(|s| matches!(s, Stmt::Acc { lanes: 1, .. }))
        && elements.reduces()
        && elements.stores();
    scans.then_some(Scan { step: elements.body })
}
