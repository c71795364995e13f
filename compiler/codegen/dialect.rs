//! Dims as expressions of the header and the Rust module.

use super::interface::{DimParam, Interface};
use crate::sym::{Atom, Dim, Sym, View};

/// The syntax of dims in a language.
pub(super) struct Dialect<'a> {
    /// Prefix of helper names.
    pub call: &'a str,
    /// A number.
    pub number: &'a dyn Fn(i64) -> String,
    /// A dim param.
    pub param: &'a dyn Fn(&DimParam) -> String,
}

impl Dialect<'_> {
    /// Nested calls of `add`, `mul`, `floordiv`, `floormod`, `min`, `max`, each of which is exact or has no
    /// value. Dims that depend on data have no value either.
    pub fn dim(&self, i: &Interface, d: Dim) -> String {
        match d.view() {
            View::Const(c) => (self.number)(c),
            View::Overflow => self.fold("floordiv", [(self.number)(0), (self.number)(0)]),
            View::Sum { terms, constant } => {
                let rest = if constant == 0 { None } else { Some((self.number)(constant)) };
                self.fold("add", terms.iter().map(|(c, atoms)| self.term(i, *c, atoms)).chain(rest))
            }
        }
    }
    fn term(&self, i: &Interface, c: i64, atoms: &[Atom]) -> String {
        let factor = if c == 1 { None } else { Some((self.number)(c)) };
        self.fold("mul", factor.into_iter().chain(atoms.iter().map(|a| self.atom(i, a))))
    }
    fn atom(&self, i: &Interface, a: &Atom) -> String {
        match a {
            Atom::Sym(s) => self.sym(i, *s),
            Atom::FloorDiv(x, y) => self.fold("floordiv", [self.dim(i, *x), self.dim(i, *y)]),
            Atom::Mod(x, y) => self.fold("floormod", [self.dim(i, *x), self.dim(i, *y)]),
            Atom::Min(v) => self.fold("min", v.iter().map(|d| self.dim(i, *d))),
            Atom::Max(v) => self.fold("max", v.iter().map(|d| self.dim(i, *d))),
        }
    }
    fn sym(&self, i: &Interface, s: Sym) -> String {
        match i.dim_params.iter().find(|p| p.sym == s) {
            Some(p) => (self.param)(p),
            None => self.fold("floordiv", [(self.number)(0), (self.number)(0)]),
        }
    }
    /// A left-associative chain of calls.
    pub fn fold(&self, op: &str, args: impl IntoIterator<Item = String>) -> String {
        args.into_iter()
            .reduce(|a, b| format!("{}{op}({a}, {b})", self.call))
            .unwrap_or_else(|| (self.number)(1))
    }
}
