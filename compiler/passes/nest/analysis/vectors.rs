//! The vector operations that a nest requires, along any of its loops, collected in one walk over its
//! statements.

use crate::nest::form::is_straight;
use crate::nest::{Buf, Expr, Module, Stmt, visit};
use crate::passes::nest::analysis::lanes64;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Requirements of a nest.
pub(crate) struct Needs<'a> {
    /// It has values of 64 bits.
    pub long: bool,
    /// It has neither accumulators nor loops.
    pub straight: bool,
    /// Some loads may be under a condition that differs between lanes.
    pub conditional: bool,
    /// Number of elementary functions.
    pub elementary: usize,
    /// Loads; if the nest has inner loops, only the loads in these.
    pub loads: Vec<(Buf, &'a [Dim])>,
    /// Stores.
    pub stores: Vec<(Buf, &'a [Dim])>,
    /// Everything computed and stored has a vector form, and only loops control execution.
    vectors: bool,
    /// Bounds of the inner loops.
    bounds: Vec<Dim>,
}

impl<'a> Needs<'a> {
    /// The requirements of a body.
    pub fn of(m: &Module, body: &'a [Stmt]) -> Needs<'a> {
        let long = lanes64::has(m, body);
        let mut n = Needs {
            long,
            straight: is_straight(body),
            conditional: visit::any_expr(body, &mut chooses_loads),
            elementary: 0,
            loads: vec![],
            stores: vec![],
            vectors: !long || lanes64::suit(m, body),
            bounds: vec![],
        };
        let mut inner: Vec<Sym> = vec![];
        visit::walk(body, &mut |s| {
            n.vectors &= n.has_vectors(m, s);
            match s {
                Stmt::For { var, lo, hi, .. } => {
                    inner.push(*var);
                    n.bounds.extend([*lo, *hi]);
                }
                Stmt::Store { buf, at, .. } => n.stores.push((*buf, at)),
                _ => {}
            }
        });
        visit::walk_exprs(body, &mut |e| match e {
            Expr::Load { buf, at } => n.loads.push((*buf, at)),
            Expr::Un(op, a) => n.elementary += usize::from(op.is_elementary(m.type_of(a))),
            _ => {}
        });
        let repeated = |at: &[Dim]| at.iter().any(|d| inner.iter().any(|s| d.contains(*s)));
        n.loads.retain(|(_, at)| inner.is_empty() || repeated(at));
        n
    }
    /// False if vectors along the loop cannot compute the nest.
    pub fn may_run_along(&self, var: Sym) -> bool {
        self.vectors && !self.bounds.iter().any(|d| d.contains(var))
    }
    /// True for elements that fill a lane.
    pub fn is_word(&self, t: ElemType) -> bool {
        t.bits() == 32 || self.long && lanes64::is(t)
    }
    fn has_vectors(&self, m: &Module, s: &Stmt) -> bool {
        use ElemType::{Bool, F32, I32, U32};
        let long = |t: ElemType| self.long && lanes64::is(t);
        let (place, stored) = match s {
            Stmt::Store { buf, .. } => {
                let t = m.bufs[*buf].ty;
                (self.is_word(t) || is_short(t) || t == Bool, true)
            }
            Stmt::Acc { reg, .. } => {
                let t = m.regs[*reg].ty;
                (matches!(t, F32 | I32) || long(t), false)
            }
            Stmt::If { .. } | Stmt::While { .. } | Stmt::With { .. } | Stmt::Check { .. } => (false, false),
            _ => (true, false),
        };
        place
            && s.expr().map(|e| m.type_of(e)).is_none_or(|t| {
                matches!(t, F32 | I32 | U32 | Bool) || long(t) || stored && is_short(t) && t.is_int()
            })
    }
}

/// True for a select between loaded values.
fn chooses_loads(e: &Expr) -> bool {
    let loads = |e: &Expr| e.any(&mut |e| matches!(e, Expr::Load { .. }));
    matches!(e, Expr::Select(_, a, b) if loads(a) || loads(b))
}

/// True for 8-bit and 16-bit elements, which are extended when they are loaded.
pub(crate) fn is_short(t: ElemType) -> bool {
    use ElemType::{BF16, F16, I8, I16, U8, U16};
    matches!(t, U8 | I8 | U16 | I16 | BF16 | F16)
}
