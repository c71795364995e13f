//! Permutations of elements: Transpose, DepthToSpace, SpaceToDepth, Tile.
//!
//! SpaceToDepth 28 adds `mode`. Tile 1 repeats one axis, given by two scalar inputs; 6 and later have a
//! repeat count per axis.

use super::support::runtime;
use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::Expr;
use crate::ops::from_end;
use crate::sym::Dim;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Permute {
    Transpose(Option<Vec<i64>>),
    DepthToSpace { block: i64, crd: bool },
    SpaceToDepth { block: i64, crd: bool },
    Tile,
}

impl Operator for Permute {
    const OPS: &'static [&'static str] = &["Transpose", "DepthToSpace", "SpaceToDepth", "Tile"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        match a.op() {
            "Transpose" => return Ok(Permute::Transpose(a.ints_opt("perm"))),
            "Tile" => return Ok(Permute::Tile),
            _ => {}
        }
        let block = a.int_required("blocksize");
        a.require(block >= 1, "attribute \"blocksize\" must be positive")?;
        let crd = a.choice("mode", "DCR", &[("DCR", false), ("CRD", true)]);
        let to_space = a.op() == "DepthToSpace";
        Ok(if to_space { Permute::DepthToSpace { block, crd } } else { Permute::SpaceToDepth { block, crd } })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let dims = match self {
            Permute::Transpose(perm) => {
                let perm = match perm {
                    Some(p) => p.iter().map(|a| cx.axis(*a, t.rank())).collect::<Result<Vec<_>>>()?,
                    None => (0..t.rank()).rev().collect(),
                };
                let mut sorted = perm.clone();
                sorted.sort_unstable();
                cx.require(
                    sorted == (0..t.rank()).collect::<Vec<_>>(),
                    codes::OP_ATTRIBUTE,
                    "attribute \"perm\" is not a permutation of the axes",
                )?;
                perm.iter().map(|a| t.dims[*a]).collect()
            }
            Permute::Tile if cx.since > 1 && runtime::late(cx, 1) => {
                cx.require(
                    runtime::need_length(cx, 1, "repeats")? == t.rank(),
                    codes::OP_SHAPE,
                    "Tile needs one repeat count for every axis",
                )?;
                cx.sizes(0, t.rank(), None)
            }
            Permute::Tile => {
                let reps = repeats(cx)?;
                t.dims.iter().zip(reps).map(|(d, r)| *d * r).collect()
            }
            Permute::DepthToSpace { block, .. } | Permute::SpaceToDepth { block, .. } => {
                let [n, c, h, w] = t.dims[..] else {
                    return cx.error(codes::OP_SHAPE, "the input must have rank 4").fail();
                };
                let (b, bb) = (*block, block * block);
                if matches!(self, Permute::SpaceToDepth { .. }) {
                    cx.require_eq(h.modulo(b), Dim::constant(0), "the height is not a multiple of blocksize");
                    cx.require_eq(w.modulo(b), Dim::constant(0), "the width is not a multiple of blocksize");
                    vec![n, c * bb, h.floor_div(b), w.floor_div(b)]
                } else {
                    cx.require_eq(
                        c.modulo(bb),
                        Dim::constant(0),
                        "the number of channels is not a multiple of blocksize squared",
                    );
                    vec![n, c.floor_div(bb), h * b, w * b]
                }
            }
        };
        cx.set(0, t.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let dims = cx.dims(x);
        match self {
            Permute::Transpose(perm) => {
                let r = dims.len() as i64;
                let perm: Vec<usize> = match perm {
                    Some(p) => p.iter().map(|a| from_end(*a, r) as usize).collect(),
                    None => (0..dims.len()).rev().collect(),
                };
                cx.map(y, |k, at| {
                    let mut from = vec![Dim::constant(0); perm.len()];
                    perm.iter().zip(at).for_each(|(a, i)| from[*a] = *i);
                    k.load(x, &from)
                });
            }
            Permute::Tile => {
                if let Some(list) = runtime::late_operand(cx, 1).filter(|_| cx.since > 1) {
                    let out = cx.dims(y);
                    cx.define_all(&out, |k| {
                        let times = runtime::sizes(k, list);
                        let own: Vec<Expr> = dims.iter().map(|d| Expr::index(*d)).collect();
                        let each = times.into_iter().zip(own).map(|(r, n)| {
                            // Keeps products from overflowing.
                            runtime::check(
                                k,
                                runtime::le(r.clone(), runtime::int(super::support::cx::MAX_SIZE)),
                            );
                            r * n
                        });
                        each.collect()
                    });
                }
                let out = cx.dims(y);
                cx.map(y, |k, at| {
                    let from: Vec<Dim> = at
                        .iter()
                        .zip(dims.iter().zip(&out))
                        .map(|(i, (d, o))| if d == o { *i } else { i.modulo(*d) })
                        .collect();
                    k.load(x, &from)
                });
            }
            Permute::DepthToSpace { block: b, crd } => {
                let c = dims[1].floor_div(b * b);
                cx.map(y, |k, at| {
                    let (bh, bw) = (at[2].modulo(*b), at[3].modulo(*b));
                    let channel =
                        if *crd { at[1] * (b * b) + bh * *b + bw } else { (bh * *b + bw) * c + at[1] };
                    k.load(x, &[at[0], channel, at[2].floor_div(*b), at[3].floor_div(*b)])
                });
            }
            Permute::SpaceToDepth { block: b, crd } => {
                let c = dims[1];
                cx.map(y, |k, at| {
                    let (block, channel) = if *crd {
                        (at[1].modulo(b * b), at[1].floor_div(b * b))
                    } else {
                        (at[1].floor_div(c), at[1].modulo(c))
                    };
                    k.load(
                        x,
                        &[at[0], channel, at[2] * *b + block.floor_div(*b), at[3] * *b + block.modulo(*b)],
                    )
                });
            }
        }
        Ok(())
    }
}

fn repeats(cx: &InferCx) -> Result<Vec<Dim>> {
    let rank = cx.tensor(0).rank();
    if cx.since == 1 {
        // Both have the type of the input, so they may be floats.
        let one = |i: usize, what: &str| match cx.constant(i) {
            Some(c) => c
                .scalar()
                .filter(|v| v.fract() == 0.0)
                .map(|v| Dim::constant(v as i64))
                .ok_or_else(|| cx.error(codes::OP_SHAPE, format!("{what} must be an integer"))),
            None => match cx.dims_value(i).as_deref() {
                Some([d]) => Ok(*d),
                _ => Err(cx.error(codes::DYNAMIC_VALUE, format!("{what} is only known at run time"))),
            },
        };
        let (n, axis) = (one(1, "the number of tiles")?, one(2, "the axis")?);
        let Some(axis) = axis.as_const() else {
            return cx.error(codes::DYNAMIC_VALUE, "the axis is only known at run time").fail();
        };
        let mut v = vec![Dim::constant(1); rank];
        v[cx.axis(axis, rank)?] = n;
        return Ok(v);
    }
    let v = cx.need_dims(1, "the repeats")?;
    cx.require(
        v.len() == rank && !v.iter().any(|d| d.as_const().is_some_and(|d| d < 0)),
        codes::OP_SHAPE,
        "Tile needs one repeat count, not negative, for every axis",
    )?;
    Ok(v)
}
