//! Gather, GatherElements, GatherND: reads at positions given by other tensors.
//!
//! Indices are in -n..n. An index out of range is a status (`ONNXC_E_INDEX`) at run time, and an error if it
//! is constant. Negative indices are also accepted before version 11, which did not allow them.

use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Gather {
    Gather(i64),
    Elements(i64),
    Nd { batch_dims: i64 },
}

impl Operator for Gather {
    const OPS: &'static [&'static str] = &["Gather", "GatherElements", "GatherND"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "Gather" => Gather::Gather(a.int("axis", 0)),
            "GatherElements" => Gather::Elements(a.int("axis", 0)),
            _ => Gather::Nd { batch_dims: a.int("batch_dims", 0) },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let (t, i) = (cx.tensor(0).clone(), cx.tensor(1).clone());
        match self {
            Gather::Gather(axis) => {
                let axis = cx.axis(*axis, t.rank())?;
                let dims: Vec<Dim> =
                    t.dims[..axis].iter().chain(&i.dims).chain(&t.dims[axis + 1..]).copied().collect();
                let known = match (cx.dims_value(0), cx.ints_value(1)) {
                    (Some(v), Some(at)) if t.rank() == 1 && i.rank() <= 1 => {
                        let n = v.len() as i64;
                        let pick = |j: i64| v.get(usize::try_from(from_end(j, n)).ok()?).copied();
                        match at.into_iter().map(pick).collect::<Option<Vec<_>>>() {
                            Some(v) => Known::Dims(v),
                            None => return cx.error(codes::OP_SHAPE, "an index is out of range").fail(),
                        }
                    }
                    _ => Known::No,
                };
                cx.set_known(0, t.elem, dims, known);
            }
            Gather::Elements(axis) => {
                let axis = cx.axis(*axis, t.rank())?;
                cx.require(
                    i.rank() == t.rank(),
                    codes::OP_SHAPE,
                    "data and indices must have the same rank",
                )?;
                for d in (0..t.rank()).filter(|d| *d != axis) {
                    cx.syms.require_at_most(i.dims[d], t.dims[d]);
                }
                cx.set(0, t.elem, i.dims.clone());
            }
            Gather::Nd { batch_dims } => {
                let b = usize::try_from(*batch_dims).ok().filter(|b| *b < i.rank().min(t.rank()));
                let (Some(b), Some(last)) = (b, i.dims.last().and_then(|d| d.as_const())) else {
                    return cx
                        .error(
                            codes::OP_SHAPE,
                            "batch_dims must be smaller than both ranks, and the \
                        last dimension of the indices a number",
                        )
                        .fail();
                };
                let last = last as usize;
                if last == 0 || b + last > t.rank() {
                    return cx
                        .error(
                            codes::OP_SHAPE,
                            format!(
                                "indices of {last} positions do not fit data \
                        of rank {} with {b} batch dimensions",
                                t.rank()
                            ),
                        )
                        .fail();
                }
                for d in 0..b {
                    cx.require_eq(i.dims[d], t.dims[d], "the batch dimensions differ");
                }
                let dims: Vec<Dim> =
                    i.dims[..i.rank() - 1].iter().chain(&t.dims[b + last..]).copied().collect();
                cx.set(0, t.elem, dims);
            }
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, i, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (from, idx) = (cx.dims(x), cx.dims(i));
        let known = cx.ints_value(1);
        let axis_of = |a: i64| from_end(a, from.len() as i64) as usize;
        match self {
            Gather::Gather(axis) => {
                let axis = axis_of(*axis);
                let r = idx.len();
                // A single constant index is a plain window.
                if let Some([one]) = known.as_deref() {
                    let n = from[axis];
                    let at0 = if *one < 0 { n + *one } else { Dim::constant(*one) };
                    if cx.m.syms.in_range(at0, n) {
                        cx.map(y, |k, at| {
                            let src: Vec<Dim> =
                                at[..axis].iter().chain([&at0]).chain(&at[axis + r..]).copied().collect();
                            k.load(x, &src)
                        });
                        return Ok(());
                    }
                }
                cx.map(y, |k, at| {
                    let pos = k.load(i, &at[axis..axis + r]);
                    index(k, i, pos, from[axis], |k, j| {
                        let src: Vec<Dim> =
                            at[..axis].iter().chain([&j]).chain(&at[axis + r..]).copied().collect();
                        k.load(x, &src)
                    })
                });
            }
            Gather::Elements(axis) => {
                let axis = axis_of(*axis);
                cx.map(y, |k, at| {
                    let pos = k.load(i, at);
                    index(k, i, pos, from[axis], |k, j| {
                        let mut src = at.to_vec();
                        src[axis] = j;
                        k.load(x, &src)
                    })
                });
            }
            Gather::Nd { batch_dims } => {
                let (batch, outer) = (*batch_dims as usize, idx.len() - 1);
                let count = idx[outer].as_const().unwrap_or(0) as usize;
                cx.map(y, |k, at| {
                    let element = Nd { data: x, indices: i, from: &from, at, outer, batch, count };
                    element.load(k, at[..batch].to_vec())
                });
            }
        }
        Ok(())
    }
}

/// One element of GatherND's result.
struct Nd<'a> {
    data: Buf,
    indices: Buf,
    /// The shape of the data.
    from: &'a [Dim],
    /// The position in the result: that of a list of indices, then that of an element behind it.
    at: &'a [Dim],
    /// Dimensions of a list's position.
    outer: usize,
    batch: usize,
    /// Indices in a list.
    count: usize,
}

impl Nd<'_> {
    /// Loads the element whose position begins with `src`.
    fn load(&self, k: &mut KernelBuilder, mut src: Vec<Dim>) -> Expr {
        let done = src.len() - self.batch;
        if done == self.count {
            src.extend_from_slice(&self.at[self.outer..]);
            return k.load(self.data, &src);
        }
        let mut ix = self.at[..self.outer].to_vec();
        ix.push(Dim::from(done));
        let pos = k.load(self.indices, &ix);
        index(k, self.indices, pos, self.from[src.len()], |k, j| {
            src.push(j);
            self.load(k, src)
        })
    }
}

/// Uses an integer, which may count from the end, as an index.
pub fn index(
    k: &mut KernelBuilder,
    indices: Buf,
    pos: Expr,
    n: Dim,
    body: impl FnOnce(&mut KernelBuilder, Dim) -> Expr,
) -> Expr {
    let pos = from_start(k, indices, pos, n);
    k.with_index(pos, n, body)
}

/// The same position counted from the start, as i64.
pub fn from_start(k: &mut KernelBuilder, indices: Buf, pos: Expr, n: Dim) -> Expr {
    let ty = k.m.bufs[indices].ty.compute();
    let pos = Expr::cast(ty, ElemType::I64, pos);
    if ty.is_unsigned_int() {
        return pos;
    }
    k.shared(pos, |_, p| {
        Expr::select(
            Expr::bin(BinOp::Lt, p.clone(), Expr::int(ElemType::I64, 0)),
            p.clone() + Expr::index(n),
            p,
        )
    })
}
