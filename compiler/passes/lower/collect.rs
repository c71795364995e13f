//! Scan outputs of loops: slices at their final positions in the result, or appended if their number is known
//! only at the end.

use super::Lower;
use super::append_buffers::{Appended, Next, Piece};
use super::control::Held;
use crate::diag::{Failure, Result};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Status, Stmt};
use crate::sym::{Dim, Sym};
use crate::tensor::TensorType;

/// The scan output of a loop.
pub(super) struct Collected {
    /// The buffer of the slices of all iterations.
    pub buf: Buf,
    /// The dimension along which slices are stacked.
    pub axis: usize,
    pub reversed: bool,
    /// The growing buffer, if the number of slices is unknown. Its first size is the number of slices.
    pub growing: Option<Held>,
}

impl<'a> Lower<'a> {
    /// Stores one slice.
    pub(super) fn collect(&mut self, c: &Collected, slice: Buf, it: Sym) {
        let dims = self.m.bufs[slice].dims.clone();
        let count = self.m.bufs[c.buf].dims[c.axis];
        let place = if c.reversed { count - 1 - it } else { it.into() };
        let (name, origin) = (
            self.m.bufs[c.buf].name.clone(),
            self.model.origin.element(format!("scan output \"{}\"", self.m.bufs[c.buf].name)),
        );
        let (to, axis) = (c.buf, c.axis);
        self.m.kernel(&name, &origin, |k| {
            k.nest(LoopKind::Par, &dims, |k, at| {
                let mut out = at.to_vec();
                out.insert(axis, place);
                let v = k.load(slice, at);
                k.store(to, &out, v);
            });
        });
    }
    /// The slices collected so far, with one more.
    pub(super) fn one_slice_more(&mut self, h: &Held, slice: Buf, it: Sym) -> Next {
        let dims = self.m.bufs[slice].dims.clone();
        // All slices must have the sizes of the first one.
        for (s, d) in h.sizes[1..].iter().zip(&dims) {
            if let Some(s) = s {
                let first = Expr::cmp_index(BinOp::Eq, it, 0);
                let same = Expr::cmp_index(BinOp::Eq, *s, *d);
                self.m
                    .driver
                    .push(Stmt::Check { cond: Expr::bin(BinOp::Or, first, same), status: Status::Value });
            }
        }
        let old = Dim::from(it) * Dim::product(dims.iter().copied());
        let all = std::iter::once(Dim::from(it) + 1).chain(dims).collect();
        Next::Appended(Appended { old, dims: all, pieces: vec![Piece::Elements(old, slice)] })
    }
    /// Chooses the buffer for slices, if possible `to`. `count`: the number of iterations, if it is known
    /// before the loop.
    pub(super) fn collector(
        &mut self,
        to: Option<Buf>,
        slice: &TensorType,
        name: &str,
        count: Option<Dim>,
        (axis, reversed): (usize, bool),
    ) -> Result<Collected> {
        if let (Some(n), true) = (count, self.known_outside(&slice.dims)) {
            let mut dims = slice.dims.clone();
            dims.insert(axis, n);
            let buf = match to {
                // Store directly to the output.
                Some(b) if self.m.bufs[b].dims == dims => b,
                _ => self.m.temp(name, slice.elem, dims),
            };
            return Ok(Collected { buf, axis, reversed, growing: None });
        }
        if reversed || axis != 0 {
            return Err(Failure::bug("lower", "a growing scan output along another axis"));
        }
        let dims: Vec<Dim> = std::iter::once(Dim::constant(0)).chain(slice.dims.iter().copied()).collect();
        let mut varies = vec![true];
        varies.extend(slice.dims.iter().map(|d| !self.known_outside(&[*d])));
        let zeros = vec![Dim::constant(0); dims.len()];
        let h = self.hold_growable(name, &TensorType::new(slice.elem, dims), &varies, &zeros);
        // Empty: the kernel stores no element, but defines the buffer that the first iteration copies.
        let ty = slice.elem.compute();
        self.m.map(h.buf, &self.model.origin.element(format!("scan output \"{name}\"")), |k, _| k.zero(ty));
        Ok(Collected { buf: h.buf, axis, reversed, growing: Some(h) })
    }
}
