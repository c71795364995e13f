//! How accesses move through memory with a loop variable.

use crate::nest::{Buf, Module};
use crate::sym::{Dim, Sym};

/// How far an access moves with a variable, in elements.
pub fn stride(m: &Module, buf: Buf, at: &[Dim], s: Sym) -> Option<i64> {
    m.linear(buf, at).linear_in(s)?.0.as_const()
}

/// The loop variable along which a store runs through memory element by element.
pub fn unit_stride_var(m: &Module, buf: Buf, at: &[Dim], loops: &[(Sym, Dim)]) -> Option<Sym> {
    loops.iter().rev().map(|l| l.0).find(|s| stride(m, buf, at, *s) == Some(1))
}
