//! Strides of accesses along loop variables.

use crate::nest::{Buf, Module};
use crate::sym::{Dim, Sym};

/// The stride of an access along a variable, in elements.
pub fn stride(m: &Module, buf: Buf, at: &[Dim], s: Sym) -> Option<i64> {
    m.linear(buf, at).linear_in(s)?.0.as_const()
}

/// The loop variable along which a store is contiguous.
pub fn unit_stride_var(m: &Module, buf: Buf, at: &[Dim], loops: &[(Sym, Dim)]) -> Option<Sym> {
    loops.iter().rev().map(|l| l.0).find(|s| stride(m, buf, at, *s) == Some(1))
}
