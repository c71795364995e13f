//! Where and Clip.
//!
//! | Clip | bounds |
//! |---|---|
//! | 1, 6 | attributes `min`, `max` |
//! | 11, 12, 13 | optional scalar inputs |

use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::Expr;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Select {
    Where,
    /// Bounds given by the attributes of old versions.
    Clip {
        min: Option<f32>,
        max: Option<f32>,
    },
}

impl Operator for Select {
    const OPS: &'static [&'static str] = &["Where", "Clip"];
    fn elements(op: &str) -> Elements {
        if op == "Where" { Elements::Any } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("consumed_inputs");
        Ok(match a.op() {
            "Where" => Select::Where,
            _ => Select::Clip { min: a.float_opt("min"), max: a.float_opt("max") },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        if *self != Select::Where {
            let t = cx.tensor(0);
            for i in 1..cx.inputs.len() {
                if let Some(b) = cx.tensor_opt(i)
                    && b.count().as_const() != Some(1)
                {
                    return cx.error(codes::OP_SHAPE, "the bounds of Clip must be scalars").fail();
                }
            }
            cx.set(0, t.elem, t.dims.clone());
            return Ok(());
        }
        let elem = cx.tensor(1).elem;
        let (c, a, b) = (cx.tensor(0), cx.tensor(1), cx.tensor(2));
        let shape = cx.broadcast(&[&c.dims, &a.dims, &b.dims])?;
        let known = match (cx.ints_value(0), cx.dims_value(1), cx.dims_value(2)) {
            (Some(c), Some(a), Some(b)) if shape.len() <= 1 => {
                // A size of 0 takes precedence over 1.
                let lengths = [c.len(), a.len(), b.len()];
                let n = if lengths.contains(&0) { 0 } else { c.len().max(a.len()).max(b.len()) };
                let pick = |i: usize| {
                    let s = |len: usize| if len == 1 { 0 } else { i };
                    let v = if c[s(c.len())] != 0 { &a } else { &b };
                    v.get(s(v.len())).copied()
                };
                (0..n).map(pick).collect::<Option<Vec<_>>>().map_or(Known::No, Known::Dims)
            }
            _ => Known::No,
        };
        cx.set_known(0, elem, shape, known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let out = cx.output(0);
        let ty = cx.elem(out).compute();
        match self {
            Select::Where => {
                let (c, a, b) = (cx.input(0), cx.input(1), cx.input(2));
                cx.map(out, |k, at| {
                    Expr::select(k.load_broadcast(c, at), k.load_broadcast(a, at), k.load_broadcast(b, at))
                });
            }
            Select::Clip { min, max } => {
                let x = cx.input(0);
                let bound = |cx: &LowerCx, i: usize, attr: Option<f32>| -> Option<Expr> {
                    let exact = |c: &crate::tensor::ConstData| {
                        if ty.is_float() {
                            c.scalar().map(|v| Expr::num(ty, v))
                        } else {
                            c.to_i64s().and_then(|v| v.first().map(|v| Expr::int(ty, *v)))
                        }
                    };
                    match (cx.constant(i).and_then(|c| exact(&c)), cx.input_opt(i)) {
                        (Some(v), _) => Some(v),
                        (None, Some(b)) => Some(Expr::Load {
                            buf: b,
                            at: vec![crate::sym::Dim::constant(0); cx.dims(b).len()],
                        }),
                        (None, None) => attr.map(|v| Expr::num(ty, f64::from(v))),
                    }
                };
                let (lo, hi) = (bound(cx, 1, *min), bound(cx, 2, *max));
                cx.map(out, |k, at| {
                    let mut v = k.load(x, at);
                    if let Some(lo) = lo {
                        v = v.max(lo);
                    }
                    if let Some(hi) = hi {
                        v = v.min(hi);
                    }
                    v
                });
            }
        }
        Ok(())
    }
}
