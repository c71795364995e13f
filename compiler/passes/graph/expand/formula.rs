//! Formulas: values with arithmetic operators, each of which adds a node.
//!
//! `f.term(x) * (1.0 - f.term(y))` adds a Sub and a Mul, in the order in which Rust evaluates the operands.
//! Numbers have the type that the formula was made with.

use super::Make;
use crate::graph::Value;
use crate::tensor::ElemType;
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Adds nodes for terms.
trait Build {
    fn op(&self, name: &str, inputs: &[Value]) -> Value;
    fn number(&self, v: f64) -> Value;
    fn cast(&self, v: Value, from: ElemType, to: ElemType) -> Value;
}

/// A builder of one formula.
pub(super) struct Formula<'m, 'g> {
    /// The type of numbers.
    elem: ElemType,
    make: RefCell<&'m mut Make<'g>>,
}

impl<'m, 'g> Formula<'m, 'g> {
    pub(super) fn new(make: &'m mut Make<'g>, elem: ElemType) -> Self {
        Formula { elem, make: RefCell::new(make) }
    }
    pub(super) fn term(&self, v: Value) -> Term<'_> {
        Term { of: self, v }
    }
}

impl Build for Formula<'_, '_> {
    fn op(&self, name: &str, inputs: &[Value]) -> Value {
        self.make.borrow_mut().op(name, inputs)
    }
    fn number(&self, v: f64) -> Value {
        self.make.borrow_mut().number(self.elem, v)
    }
    fn cast(&self, v: Value, from: ElemType, to: ElemType) -> Value {
        self.make.borrow_mut().cast(v, from, to)
    }
}

/// A value in a formula.
#[derive(Clone, Copy)]
pub(super) struct Term<'f> {
    of: &'f dyn Build,
    pub(super) v: Value,
}

/// A term, or a number in place of one.
#[derive(Clone, Copy)]
pub(super) enum Operand<'f> {
    Term(Term<'f>),
    Number(f64),
}

impl<'f> From<Term<'f>> for Operand<'f> {
    fn from(t: Term<'f>) -> Self {
        Operand::Term(t)
    }
}

impl From<f64> for Operand<'_> {
    fn from(v: f64) -> Self {
        Operand::Number(v)
    }
}

impl<'f> Term<'f> {
    /// A unary operator.
    pub(super) fn op(self, name: &str) -> Term<'f> {
        Term { v: self.of.op(name, &[self.v]), ..self }
    }
    /// A binary operator.
    pub(super) fn with(self, name: &str, other: impl Into<Operand<'f>>) -> Term<'f> {
        let other = self.like(other.into());
        Term { v: self.of.op(name, &[self.v, other]), ..self }
    }
    /// `a` where this condition is true, else `b`.
    pub(super) fn select(self, a: impl Into<Operand<'f>>, b: impl Into<Operand<'f>>) -> Term<'f> {
        let (a, b) = (self.like(a.into()), self.like(b.into()));
        Term { v: self.of.op("Where", &[self.v, a, b]), ..self }
    }
    pub(super) fn above(self, other: impl Into<Operand<'f>>) -> Term<'f> {
        self.with("Greater", other)
    }
    pub(super) fn below(self, other: impl Into<Operand<'f>>) -> Term<'f> {
        self.with("Less", other)
    }
    pub(super) fn equal(self, other: impl Into<Operand<'f>>) -> Term<'f> {
        self.with("Equal", other)
    }
    pub(super) fn square(self) -> Term<'f> {
        self * self
    }
    pub(super) fn cast(self, from: ElemType, to: ElemType) -> Term<'f> {
        Term { v: self.of.cast(self.v, from, to), ..self }
    }
    /// The product with a number, which is the term itself if the number is 1.
    pub(super) fn scaled(self, by: f64) -> Term<'f> {
        if by == 1.0 { self } else { self * by }
    }
    fn like(self, o: Operand<'f>) -> Value {
        match o {
            Operand::Term(t) => t.v,
            Operand::Number(v) => self.of.number(v),
        }
    }
}

macro_rules! operators {
    ($($of:ident $method:ident $name:literal,)*) => {
        $(
            impl<'f, O: Into<Operand<'f>>> $of<O> for Term<'f> {
                type Output = Term<'f>;
                fn $method(self, other: O) -> Term<'f> {
                    self.with($name, other)
                }
            }
            impl<'f> $of<Term<'f>> for f64 {
                type Output = Term<'f>;
                fn $method(self, other: Term<'f>) -> Term<'f> {
                    Term { v: other.of.number(self), ..other }.with($name, other)
                }
            }
        )*
    };
}

operators! {
    Add add "Add",
    Sub sub "Sub",
    Mul mul "Mul",
    Div div "Div",
}

impl<'f> Neg for Term<'f> {
    type Output = Term<'f>;
    fn neg(self) -> Term<'f> {
        self.op("Neg")
    }
}
