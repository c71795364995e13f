//! Positions of the largest or smallest element: ArgMax, ArgMin, TopK of one result.

use super::runtime::{eq, or};
use crate::nest::{BinOp, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::sym::{Dim, SymTable};
use crate::tensor::ElemType;

/// Which element is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arg {
    /// The largest element, not the smallest.
    pub max: bool,
    /// The last of equal elements, not the first.
    pub last: bool,
    /// How NaN compares with numbers.
    pub nan: Nan,
}

/// The place of NaN in the order of floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nan {
    /// It is found before all numbers.
    First,
    /// It is found if there are no numbers.
    Last,
}

/// True if positions have 32 bits, as many as lanes of elements of this type.
pub fn has_positions(syms: &SymTable, ty: ElemType, n: Dim) -> bool {
    ty.bits() <= 32 && syms.range(n).hi.is_some_and(|n| n <= i64::from(i32::MAX))
}

/// Rows of as many elements have vectors.
const LEAST: i64 = 8;

/// Loads an element of a row or column.
type Element<'a> = &'a dyn Fn(&KernelBuilder, Dim) -> Expr;

impl Arg {
    /// The position of type `word` among `n` elements of type `ty`. `contiguous`: these are a row in memory.
    pub fn find(
        self,
        k: &mut KernelBuilder,
        (ty, word): (ElemType, ElemType),
        (n, contiguous): (Dim, bool),
        load: Element,
    ) -> Expr {
        let long = n.as_const().is_none_or(|n| n >= LEAST);
        let as_wide = word == ElemType::I32 || ty.bits() == word.bits();
        match contiguous && long && as_wide {
            true => self.of_row(k, (ty, word), n, load),
            false => self.of_column(k, (ty, word), n, load),
        }
    }
    /// The position of the value that a reduction finds: both loops have vectors.
    fn of_row(self, k: &mut KernelBuilder, (ty, word): (ElemType, ElemType), n: Dim, load: Element) -> Expr {
        let (op, least) = match self.max {
            true => (BinOp::Max, Scalar::lowest(ty)),
            false => (BinOp::Min, Scalar::highest(ty)),
        };
        let least = Expr::from(least);
        let best = k.acc(least.clone());
        k.nest(LoopKind::Seq, &[n], |k, r| {
            let mut v = load(k, r[0]);
            // The operations return NaN if either operand is.
            if ty.is_float() && self.nan == Nan::Last {
                let own = k.let_(v);
                v = Expr::select(is_nan(own.clone()), least, own);
            }
            k.update(op, best, v);
        });
        let best = k.let_(Expr::acc(best));
        let (op, none) = match self.last {
            true => (BinOp::Max, -1),
            false => (BinOp::Min, Scalar::highest(word).to_i64()),
        };
        let none = Expr::int(word, none);
        let pos = k.acc(none.clone());
        k.nest(LoopKind::Seq, &[n], |k, r| {
            let v = k.let_(load(k, r[0]));
            let mut here = eq(v.clone(), best.clone());
            if ty.is_float() && self.nan == Nan::First {
                here = or(here, is_nan(v));
            }
            k.update(op, pos, Expr::select(here, index(word, r[0]), none.clone()));
        });
        match self.nan {
            Nan::First => Expr::acc(pos),
            Nan::Last => {
                // No element equals the value if all are NaN.
                let end = if self.last { n - 1 } else { Dim::constant(0) };
                let missing = eq(Expr::acc(pos), none);
                Expr::select(missing, index(word, end), Expr::acc(pos))
            }
        }
    }
    /// Value and position from one element to the next. Each is read once, and vectors may run along other
    /// loops.
    fn of_column(
        self,
        k: &mut KernelBuilder,
        (ty, word): (ElemType, ElemType),
        n: Dim,
        load: Element,
    ) -> Expr {
        // Comparisons by which an element replaces the best one, and by which it does not.
        let (op, not) = match (self.max, self.last) {
            (true, false) => (BinOp::Gt, BinOp::Le),
            (true, true) => (BinOp::Ge, BinOp::Lt),
            (false, false) => (BinOp::Lt, BinOp::Ge),
            (false, true) => (BinOp::Le, BinOp::Gt),
        };
        let first = load(k, Dim::constant(0));
        let best = k.acc(first);
        let pos = k.acc(Expr::int(word, 0));
        k.nest(LoopKind::Seq, &[n], |k, r| {
            let v = k.let_(load(k, r[0]));
            let best_so_far = Expr::acc(best);
            let is_number = |e: &Expr| eq(e.clone(), e.clone());
            let better = Expr::bin(op, v.clone(), best_so_far.clone());
            // Comparisons with NaN are false.
            let better = match (self.nan, self.last) {
                _ if !ty.is_float() => better,
                (Nan::First, true) => or(better, is_nan(v.clone())),
                (Nan::First, false) => {
                    let not = Expr::bin(not, v.clone(), best_so_far.clone());
                    Expr::un(UnOp::Not, not).and(is_number(&best_so_far))
                }
                (Nan::Last, true) => or(better, is_nan(best_so_far)),
                (Nan::Last, false) => or(better, is_nan(best_so_far).and(is_number(&v))),
            };
            let better = k.let_(better);
            k.set(pos, Expr::select(better.clone(), index(word, r[0]), Expr::acc(pos)));
            k.set(best, Expr::select(better, v, Expr::acc(best)));
        });
        Expr::acc(pos)
    }
}

fn is_nan(e: Expr) -> Expr {
    Expr::un(UnOp::IsNan, e)
}

/// A position as a number.
pub fn index(word: ElemType, i: Dim) -> Expr {
    match i.as_const() {
        Some(n) => Expr::int(word, n),
        None => Expr::cast(ElemType::I64, word, Expr::index(i)),
    }
}
