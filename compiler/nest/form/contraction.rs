//! Contractions: reductions of products of two operands (MatMul, Conv), including those that passes emit.

use super::loops::{Loops, Sum, depends, first_store, par_loops, seq_loops, sum};
use crate::nest::{BinOp, Buf, DotKind, Expr, Module, Reg, Stmt, visit};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// The parts of a contraction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contraction {
    /// The `par` nest.
    pub loops: Loops,
    /// The accumulator.
    pub acc: Reg,
    /// The `seq` nest.
    pub reduction: Loops,
    /// Factors.
    pub a: (Buf, Vec<Dim>),
    /// See `a`.
    pub b: (Buf, Vec<Dim>),
    /// If B is a sum or a difference of two elements of its buffer: the second one.
    pub with: Option<(BinOp, Vec<Dim>)>,
    /// A factor of each step, the same for all rows and columns. Schedules move it here, see `gates`.
    pub gate: Option<(Buf, Vec<Dim>)>,
    /// The lines that each row prefetches during its reduction, beginning at this element. The last subscript
    /// advances with the row.
    pub prefetch: Option<(Buf, Vec<Dim>)>,
    /// The initial value, if it is not zero.
    pub start: Option<Expr>,
    /// `Let` statements and the store.
    pub epilogue: Vec<Stmt>,
    /// True if the kernel contains nothing else.
    pub whole: bool,
    /// The type of the products.
    pub product: ProductKind,
}

impl Contraction {
    /// True if each step has one element of each operand, and there are no prefetches.
    pub fn is_plain(&self) -> bool {
        self.with.is_none() && self.prefetch.is_none()
    }
    /// The position of the result.
    pub fn store(&self) -> Option<(Buf, Vec<Dim>)> {
        first_store(&self.epilogue)
    }
    /// True for a loop that only A depends on: rows of a product.
    pub fn is_only_of_a(&self, s: Sym) -> bool {
        depends(&self.a.1, s) && !depends(&self.b.1, s)
    }
    /// True for a loop that only B depends on: columns of a product.
    pub fn is_only_of_b(&self, s: Sym) -> bool {
        depends(&self.b.1, s) && !depends(&self.a.1, s)
    }
    /// True for a loop that both operands depend on: the batch of a product, the groups of a convolution.
    pub fn is_of_both(&self, s: Sym) -> bool {
        depends(&self.a.1, s) && depends(&self.b.1, s)
    }
    /// True for accumulations that must be exact, so that algorithms with other factors do not apply: those
    /// known to hold integers, and those converted to an integer, where the smallest error is visible.
    pub fn is_exact(&self, m: &Module) -> bool {
        let rounded = |e: &Expr| matches!(e, Expr::Cast(t, x) if t.is_int() && x.is_acc(self.acc));
        m.regs[self.acc].whole.is_some() || visit::any_expr(&self.epilogue, &mut |e| rounded(e))
    }
}

/// A reduction step.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) enum ProductKind {
    /// Of floats.
    Fma,
    /// Of floats of 64 bits.
    Double,
    /// Of bytes as floats, and floats.
    Extended,
    /// Products of groups; if `swapped`, the unsigned bytes are those of B.
    Dot {
        /// What a group is.
        group: DotKind,
        /// A and B are exchanged.
        swapped: bool,
    },
    /// Products of single bytes, extended, which `exact_sums` and `integer_dot` rewrite.
    Bytes,
}

impl ProductKind {
    /// Type of the accumulator.
    pub fn ty(self) -> ElemType {
        match self {
            ProductKind::Fma | ProductKind::Extended => ElemType::F32,
            ProductKind::Double => ElemType::F64,
            ProductKind::Dot { group, .. } => group.sum(),
            ProductKind::Bytes => ElemType::I32,
        }
    }
    /// The unit of panel widths: the same on all levels with at most that many lanes, so that they share
    /// panels; on levels with longer vectors, the number of lanes of the product's size.
    pub fn unit(self, lanes: u32) -> i64 {
        i64::from(lanes).max(if self == ProductKind::Double { 8 } else { 16 })
    }
    /// True if an instruction may multiply two rows of A by columns of B.
    pub fn pairs_rows(self) -> bool {
        matches!(self, ProductKind::Dot { group, .. } if group.is_long())
    }
    /// Unrolled reduction steps: as many as elements of a row in a vector, in groups of eight or four bytes.
    pub fn steps(self) -> i64 {
        if matches!(self, ProductKind::Dot { group, .. } if group.is_long()) { 2 } else { 4 }
    }
    /// The accumulator after one more product.
    pub fn step(self, a: Expr, b: Expr, sum: Expr) -> Expr {
        match self {
            ProductKind::Fma | ProductKind::Double => Expr::fma(a, b, sum),
            ProductKind::Extended => Expr::fma(extended(a), b, sum),
            ProductKind::Dot { group, swapped: false } => Expr::dot(group, a, b, sum),
            ProductKind::Dot { group, swapped: true } => Expr::dot(group, b, a, sum),
            ProductKind::Bytes => {
                Expr::cast(ElemType::I8, ElemType::I32, a) * Expr::cast(ElemType::I8, ElemType::I32, b) + sum
            }
        }
    }
    /// Matches a reduction step of this type.
    fn of(ty: ElemType, e: &Expr) -> Option<(ProductKind, [&Expr; 3])> {
        let byte = |e: &Expr| matches!(e, Expr::Cast(ElemType::I32, _));
        Some(match e {
            Expr::Fma(a, b, c) => match &**a {
                Expr::Cast(ElemType::F32, x) if byte(x) => match &**x {
                    Expr::Cast(_, a) => (ProductKind::Extended, [a, b, c]),
                    _ => return None,
                },
                _ if ty == ElemType::F64 => (ProductKind::Double, [a, b, c]),
                _ => (ProductKind::Fma, [a, b, c]),
            },
            Expr::Dot(group, a, b, c) => (ProductKind::Dot { group: *group, swapped: false }, [a, b, c]),
            Expr::Bin(BinOp::Add, p, c) => match &**p {
                Expr::Bin(BinOp::Mul, a, b) if byte(a) && byte(b) => match (&**a, &**b) {
                    (Expr::Cast(_, a), Expr::Cast(_, b)) => (ProductKind::Bytes, [a, b, c]),
                    _ => return None,
                },
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// The float of a byte.
pub(crate) fn extended(byte: Expr) -> Expr {
    Expr::Cast(ElemType::F32, Box::new(Expr::Cast(ElemType::I32, Box::new(byte))))
}

/// A contraction, including those that passes emit, in which B is a sum of two elements or rows prefetch.
pub(super) fn contraction(body: &[Stmt]) -> Option<Contraction> {
    let (loops, inside) = par_loops(body);
    let Sum { init, acc, steps, step, tail } = sum(inside)?;
    let (ask, r, value) = match step {
        [Stmt::Set { reg, value, .. }] => (None, reg, value),
        [Stmt::Prefetch { buf, at }, Stmt::Set { reg, value, .. }] => (Some((*buf, at.clone())), reg, value),
        _ => return None,
    };
    let (product, [a, b, c]) = ProductKind::of(init.ty, value)?;
    let (b, second) = match b {
        Expr::Bin(op @ (BinOp::Add | BinOp::Sub), x, y) if product == ProductKind::Fma => {
            (&**x, Some((*op, &**y)))
        }
        b => (b, None),
    };
    let (Expr::Load { buf: ba, at: ia }, Expr::Load { buf: bb, at: ib }, Expr::Acc { reg: rc, .. }) =
        (a, b, c)
    else {
        return None;
    };
    let with = match second {
        None => None,
        Some((op, Expr::Load { buf, at })) if buf == bb => Some((op, at.clone())),
        _ => return None,
    };
    let stores = tail.iter().filter(|s| matches!(s, Stmt::Store { .. })).count();
    if init.bits != 0 || init.ty != product.ty() || *r != acc || *rc != acc || stores != 1 {
        return None;
    }
    let (a, b, tail) = ((*ba, ia.clone()), (*bb, ib.clone()), tail.to_vec());
    Some(Contraction {
        loops,
        acc,
        reduction: steps,
        a,
        b,
        with,
        gate: None,
        prefetch: ask,
        start: None,
        epilogue: tail,
        whole: true,
        product,
    })
}

/// An integer reduction of products of two bytes, with any epilogue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByteSum {
    /// The sum.
    pub acc: Reg,
    /// Factors.
    pub a: (Buf, Vec<Dim>),
    /// See `a`.
    pub b: (Buf, Vec<Dim>),
    /// The `seq` nest.
    pub reduction: Loops,
}

/// The byte contraction that a nest begins with, if nothing else changes its accumulator.
pub(crate) fn byte_sum(m: &Module, body: &[Stmt]) -> Option<ByteSum> {
    let (_, inside) = par_loops(body);
    let [Stmt::Acc { reg, lanes: 1, shape, init: Expr::Const(zero) }, inner, ..] = inside else {
        return None;
    };
    if !shape.is_empty() || zero.bits != 0 || zero.ty != ElemType::I32 {
        return None;
    }
    let (depth, step) = seq_loops(inner)?;
    let [Stmt::Set { reg: r, value: Expr::Bin(BinOp::Add, product, sum), .. }] = step else { return None };
    let (Expr::Bin(BinOp::Mul, a, b), Expr::Acc { reg: old, .. }) = (&**product, &**sum) else { return None };
    let operand = |e: &Expr| match e {
        Expr::Cast(ElemType::I32, x) => match &**x {
            Expr::Load { buf, at } if matches!(m.bufs[*buf].ty, ElemType::U8 | ElemType::I8) => {
                Some((*buf, at.clone()))
            }
            _ => None,
        },
        _ => None,
    };
    let mut sets = 0;
    visit::walk(inside, &mut |s| sets += usize::from(matches!(s, Stmt::Set { reg: x, .. } if x == reg)));
    let alone = r == reg && old == reg && sets == 1;
    Some(ByteSum { acc: *reg, a: operand(a)?, b: operand(b)?, reduction: depth }).filter(|_| alone)
}
