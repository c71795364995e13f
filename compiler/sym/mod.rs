//! Symbolic dimensions.
//!
//! A model has one scope of `dim_param` names. A [`Dim`] is an integer expression over them, over loop
//! variables and over sizes that generated code defines at run time. Expressions are kept in canonical form,
//! a polynomial whose atoms are symbols, floor divisions, remainders, minima and maxima. Equal expressions
//! are therefore one node, and comparing them costs nothing. Invariants:
//!
//! 1. Arithmetic is exact over the integers: i64 overflow, division by zero and oversized expressions give an
//!    absorbing poison ([`Dim::is_overflow`]), never a wrapped number and never a panic.
//! 2. Simplification holds for every integer value of the symbols (see `simplify`). Facts about ranges enter
//!    through [`SymTable`] only, and its answers are sound: Yes and No are proofs, Unknown is not. Proof
//!    effort is bounded.
//! 3. Order and hash are structural, hence the same in every thread and process.

mod bounds;
pub mod broadcast;
pub mod clamps;
mod door;
mod expr;
mod growth;
mod memo;
mod simplify;
mod table;
pub mod text;
mod upper;

pub use bounds::Simplifier;
pub use expr::{Atom, Dim, Sym, Term, View};
pub use table::{Answer, Condition, Range, Scope, Source, SymKind, SymTable};
