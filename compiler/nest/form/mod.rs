//! Forms: the classification of nests. This is the only module that recognises them by their statements;
//! passes and schedules query it. [`super::Body`] caches the form of each kernel.
//!
//! ```text
//! contraction          par .. { acc = 0; seq .. { acc += a * b }; lets; store }
//! window               par .. { acc = c; seq .. { acc = op(acc, element) }; lets; store }
//! pooled contraction   par .. { acc = c; seq .. { sum of products; lets; acc = op(acc, ..) }; lets; store }
//! row reduction        par .. { loops over the elements of a row, one of which reduces; lets; stores }
//! scan                 par .. { acc; seq { acc = f(acc, element); store } }
//! map                  par .. { store }
//! gather               a map that reads elements at positions from memory
//! chain                seq .. { nests } ..
//! nests                loops around several nests
//! ```
//!
//! Some nests have several forms: each contraction is a window, and each window a row reduction. [`Form`] is
//! the first of them in this order; [`window`], [`rows`] and others match one form only.

pub(crate) mod compound;
mod contraction;
mod convolution;
mod images;
mod loops;
mod rows;
mod slide;
mod window;

use compound::{is_chain, is_compound};
pub(crate) use contraction::{ByteSum, Contraction, ProductKind, byte_sum, extended};
pub(crate) use convolution::{Convolution, loop_or_zero};
pub(crate) use images::{Images, Sampled};
pub(crate) use loops::{
    Digit, Loops, Map, ParNest, Stored, as_map, cover, depends, digits, first_store, is_straight, par_loops,
    peel, read_in_loops, seq_loops, seq_vars, stored, wrap,
};
pub(crate) use rows::{Elements, Part, Rows, Scan, rows, scan};
pub(crate) use slide::Slide;
pub(crate) use window::{PooledContraction, Window, window};

use super::{Expr, Stmt};

/// The form of a nest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// Reductions of products of two operands: MatMul, Conv.
    Contraction(Box<Contraction>),
    /// Reductions of single elements: pooling, sums.
    Window(Box<Window>),
    /// A window whose elements are contractions.
    PooledContraction(Box<PooledContraction>),
    /// Loops over the elements of a row, with a reduction among them: softmax, normalization.
    RowReduction(Box<Rows>),
    /// A loop that updates an accumulator and stores in each step: CumSum.
    Scan(Box<Scan>),
    /// One expression for each element.
    Map(Box<Map>),
    /// A map that reads at computed positions.
    Gather(Box<Map>),
    /// A sequence of steps, each of parallel nests: a recurrence.
    Chain,
    /// Parallel nests inside other loops.
    Nests,
    /// None of these.
    Other,
}

impl Form {
    /// The form of a nest.
    pub fn of(body: &[Stmt]) -> Form {
        if let Some(map) = as_map(body) {
            let gathers = map.value.any(&mut |e| matches!(e, Expr::With { .. }));
            return if gathers { Form::Gather(Box::new(map)) } else { Form::Map(Box::new(map)) };
        }
        let sums = || {
            contraction::contraction(body)
                .map(|c| Form::Contraction(Box::new(c)))
                .or_else(|| Some(Form::PooledContraction(Box::new(window::pooled_contraction(body)?))))
                .or_else(|| Some(Form::Window(Box::new(window(body)?))))
        };
        let loops = || {
            scan(body)
                .map(|s| Form::Scan(Box::new(s)))
                .or_else(|| Some(Form::RowReduction(Box::new(rows(body).filter(Rows::reduces)?))))
        };
        match sums().or_else(loops) {
            Some(form) => form,
            None if is_chain(body) => Form::Chain,
            None if is_compound(body) => Form::Nests,
            None => Form::Other,
        }
    }
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Form::Contraction(_) => "contraction",
            Form::Window(_) => "window",
            Form::PooledContraction(_) => "pooled contraction",
            Form::RowReduction(_) => "row reduction",
            Form::Scan(_) => "scan",
            Form::Map(_) => "map",
            Form::Gather(_) => "gather",
            Form::Chain => "chain",
            Form::Nests => "nests",
            Form::Other => "other",
        }
    }
    /// The map or gather.
    pub fn map(&self) -> Option<&Map> {
        if let Form::Map(map) | Form::Gather(map) = self { Some(map) } else { None }
    }
    /// The contraction, in the form that operators write.
    pub fn contraction(&self) -> Option<&Contraction> {
        if let Form::Contraction(c) = self { Some(&**c).filter(|c| c.is_plain()) } else { None }
    }
    /// The pooled contraction.
    pub fn pooled_contraction(&self) -> Option<&PooledContraction> {
        if let Form::PooledContraction(p) = self { Some(p) } else { None }
    }
    /// The window, including contractions.
    pub fn window(&self) -> Option<Window> {
        match self {
            Form::Window(w) => Some((**w).clone()),
            Form::Contraction(c) => Window::of_contraction(c),
            _ => None,
        }
    }
    /// True for a kernel of parallel nests inside other loops.
    pub fn is_compound(&self) -> bool {
        matches!(self, Form::Chain | Form::Nests)
    }
}
