//! BatchNormalization, LayerNormalization, InstanceNormalization, GroupNormalization, RMSNormalization,
//! LpNormalization, MeanVarianceNormalization.
//!
//! | BatchNormalization | |
//! |---|---|
//! | 1, 6 | `is_test` must be set; `spatial`, `consumed_inputs` |
//! | 7 | `spatial = 0` normalises every activation by itself |
//! | 9 | |
//! | 14, 15 | `training_mode`: normalises by the batch, and updates the running mean and variance |

use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, LoopKind, Reg, UnOp};
use crate::ops::from_end;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Normalize {
    Batch {
        epsilon: f32,
        momentum: f32,
        training: bool,
        spatial: bool,
    },
    /// Layer normalization, or RMS normalization (no mean, no bias). `stash` is the type of mean and
    /// deviation.
    Layer {
        axis: i64,
        epsilon: f32,
        rms: bool,
        stash: ElemType,
    },
    Instance {
        epsilon: f32,
    },
    Group {
        groups: i64,
        epsilon: f32,
    },
    Lp {
        axis: i64,
        p: i64,
    },
    MeanVariance {
        axes: Vec<i64>,
    },
}

impl Operator for Normalize {
    const OPS: &'static [&'static str] = &[
        "BatchNormalization",
        "LayerNormalization",
        "RMSNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("consumed_inputs");
        let momentum = a.float("momentum", 0.9);
        let stash = a.elem_type_opt("stash_type").unwrap_or(ElemType::F32);
        if !matches!(stash, ElemType::F32 | ElemType::F16 | ElemType::BF16 | ElemType::F64) {
            return a
                .error(format!("stash_type is {stash}"))
                .found_expected(stash.to_string(), "a floating-point type")
                .fail();
        }
        let epsilon = a.float("epsilon", 1e-5);
        Ok(match a.op() {
            "BatchNormalization" => {
                let test = a.flag("is_test", false);
                let training = a.flag("training_mode", false) || a.since() < 7 && !test;
                Normalize::Batch { epsilon, momentum, training, spatial: a.flag("spatial", true) }
            }
            "LayerNormalization" => Normalize::Layer { axis: a.int("axis", -1), epsilon, rms: false, stash },
            "RMSNormalization" => Normalize::Layer { axis: a.int("axis", -1), epsilon, rms: true, stash },
            "InstanceNormalization" => Normalize::Instance { epsilon },
            "GroupNormalization" => Normalize::Group { groups: a.int_required("num_groups"), epsilon },
            "MeanVarianceNormalization" => {
                Normalize::MeanVariance { axes: a.ints_opt("axes").unwrap_or_else(|| vec![0, 2, 3]) }
            }
            _ => Normalize::Lp { axis: a.int("axis", -1), p: a.int("p", 2) },
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        match self {
            Normalize::Batch { training, .. } => {
                let updates = *training && cx.since >= 14;
                if !updates && (*training || cx.outputs.len() > 1) {
                    return cx
                        .error(codes::OP_FEATURE, "BatchNormalization in training mode is not supported yet")
                        .help("export the model in evaluation mode")
                        .fail();
                }
                if t.rank() < 2 && cx.since >= 9 && t.rank() == 0 {
                    return cx.error(codes::OP_SHAPE, "the input must have a batch dimension").fail();
                }
                self.per_channel(cx, &t.dims, 4)?;
                if updates {
                    cx.require(
                        t.rank() >= 2,
                        codes::OP_SHAPE,
                        "the input must have batch and channel dimensions",
                    )?;
                    for (k, i) in [(1, 3), (2, 4)] {
                        let s = cx.tensor(i).clone();
                        cx.set(k, s.elem, s.dims);
                    }
                }
            }
            Normalize::Instance { .. } => {
                cx.require(
                    t.rank() >= 3,
                    codes::OP_SHAPE,
                    "the input must have batch, channel and spatial dimensions",
                )?;
                self.per_channel(cx, &t.dims, 2)?;
            }
            Normalize::Group { groups, .. } => {
                cx.require(
                    t.rank() >= 3 && *groups >= 1,
                    codes::OP_SHAPE,
                    "GroupNormalization needs rank 3 or more and a positive number of groups",
                )?;
                cx.require_eq(
                    t.dims[1].modulo(*groups),
                    Dim::constant(0),
                    "the channels do not divide into the groups",
                );
                let n = if cx.since < 21 { Dim::constant(*groups) } else { t.dims[1] };
                for i in 1..3 {
                    let d = cx.tensor(i).count();
                    cx.require_eq(d, n, "scale and bias do not fit");
                }
            }
            Normalize::Layer { axis, stash, rms, .. } => {
                let axis = cx.axis(*axis, t.rank())?;
                for i in 1..cx.inputs.len() {
                    if let Some(s) = cx.tensor_opt(i).cloned() {
                        let otherwise = "scale and bias must broadcast to the input";
                        cx.require_broadcast_to(&s.dims, &t.dims, otherwise)?;
                    }
                }
                let reduced: Vec<Dim> = t
                    .dims
                    .iter()
                    .enumerate()
                    .map(|(i, d)| if i < axis { *d } else { Dim::constant(1) })
                    .collect();
                cx.set(1, *stash, reduced.clone());
                cx.set(2, *stash, reduced);
                if *rms {
                    // The result has the type of the scale.
                    cx.set(0, cx.tensor(1).elem, t.dims);
                    return Ok(());
                }
            }
            Normalize::Lp { axis, p } => {
                cx.axis(*axis, t.rank())?;
                cx.require(matches!(p, 1 | 2), codes::OP_ATTRIBUTE, "attribute \"p\" must be 1 or 2")?;
            }
            Normalize::MeanVariance { axes } => {
                for a in axes {
                    cx.axis(*a, t.rank())?;
                }
            }
        }
        cx.set(0, t.elem, t.dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        match self {
            Normalize::Batch { epsilon, momentum, training: true, .. } => {
                lower_batch_training(cx, *epsilon, *momentum)
            }
            Normalize::Batch { epsilon, spatial, .. } => lower_batch(cx, *epsilon, *spatial),
            Normalize::Layer { axis, epsilon, rms, .. } => lower_layer(cx, *axis, *epsilon, *rms),
            Normalize::Instance { epsilon } => lower_group(cx, None, *epsilon),
            Normalize::Group { groups, epsilon } => lower_group(cx, Some(*groups), *epsilon),
            Normalize::Lp { axis, p } => lower_lp(cx, *axis, *p),
            Normalize::MeanVariance { axes } => lower_mean_variance(cx, axes),
        }
    }
}

impl Normalize {
    fn per_channel(&self, cx: &mut InferCx, dims: &[Dim], operands: usize) -> Result<()> {
        let channels = match self {
            Normalize::Batch { spatial: false, .. } => Dim::product(dims[1..].iter().copied()),
            _ => dims.get(1).copied().unwrap_or(Dim::constant(1)),
        };
        for i in 1..=operands {
            let t = cx.tensor(i).clone();
            // Without `spatial` the operands have the shape of one image, or are flat.
            if t.rank() != 1
                && !(matches!(self, Normalize::Batch { spatial: false, .. }) && t.rank() + 1 == dims.len())
            {
                let e = cx.error(codes::OP_SHAPE, format!("input {i} has rank {}", t.rank()));
                return e
                    .found_expected(format!("rank {}", t.rank()), "one value for each channel, rank 1")
                    .fail();
            }
            cx.require_eq(t.count(), channels, &format!("input {i} does not fit the channels"));
        }
        Ok(())
    }
}

/// y = x * (scale / sqrt(var + eps)) + (bias - mean * scale / sqrt(var + eps)): the factors are folded if
/// they are constant.
fn lower_batch(cx: &mut LowerCx, epsilon: f32, spatial: bool) -> Result<()> {
    let (x, y) = (cx.input(0), cx.output(0));
    let p: Vec<Buf> = (1..5).map(|i| cx.input(i)).collect();
    let ty = cx.elem(x).compute();
    let dims = cx.dims(p[0]);
    let pty = cx.elem(p[0]).compute();
    let factor = cx.temp("scale", pty, dims.clone());
    let shift = cx.temp("shift", pty, dims);
    // Mean and variance may have a different type than scale and bias.
    let get = |k: &crate::nest::KernelBuilder, i: usize, at: &[Dim]| {
        Expr::cast(k.m.bufs[p[i]].ty.compute(), pty, k.load(p[i], at))
    };
    let f = |k: &crate::nest::KernelBuilder, at: &[Dim]| {
        get(k, 0, at) / Expr::un(UnOp::Sqrt, get(k, 3, at) + Expr::num(pty, f64::from(epsilon)))
    };
    cx.map(factor, |k, at| f(k, at));
    cx.map(shift, |k, at| get(k, 1, at) - get(k, 2, at) * f(k, at));
    let spatial = spatial || cx.dims(x).len() <= 2;
    let per = if spatial {
        vec![factor, shift]
    } else {
        let inner = cx.dims(x)[1..].to_vec();
        vec![cx.m.view(factor, inner.clone()), cx.m.view(shift, inner)]
    };
    cx.map(y, |k, at| {
        let c: Vec<Dim> =
            if !spatial { at[1..].to_vec() } else { vec![at.get(1).copied().unwrap_or_default()] };
        let load = |k: &crate::nest::KernelBuilder, b: Buf| Expr::cast(pty, ty, k.load(b, &c));
        Expr::fma(k.load(x, at), load(k, per[0]), load(k, per[1]))
    });
    Ok(())
}

/// Normalizes by the (population) mean and variance of the batch, and moves the running ones towards them by
/// 1 - momentum.
fn lower_batch_training(cx: &mut LowerCx, epsilon: f32, momentum: f32) -> Result<()> {
    let (x, scale, bias) = (cx.input(0), cx.input(1), cx.input(2));
    let dims = cx.dims(x);
    let ty = cx.elem(x).compute();
    let running = [(cx.input(3), cx.output_opt(1)), (cx.input(4), cx.output_opt(2))];
    let y = cx.output_opt(0);
    let row: Vec<Dim> = dims[..1].iter().chain(&dims[2..]).copied().collect();
    let n = Dim::product(row.iter().copied());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &dims[1..2], |k, c| {
            let at = |r: &[Dim]| -> Vec<Dim> { [r[0], c[0]].iter().chain(&r[1..]).copied().collect() };
            let get = |k: &crate::nest::KernelBuilder, b: Buf| {
                Expr::cast(k.m.bufs[b].ty.compute(), ty, k.load(b, c))
            };
            let count = Expr::count(ty, n);
            let (mean, square) = moments(k, x, ty, &row, &count, &at);
            let var = k.let_(Expr::acc(square) / count);
            if let Some(y) = y {
                let factor =
                    get(k, scale) / Expr::un(UnOp::Sqrt, var.clone() + Expr::num(ty, f64::from(epsilon)));
                let (factor, shift) = (k.let_(factor), k.let_(get(k, bias)));
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let v = (k.load(x, &at(r)) - mean.clone()) * factor.clone() + shift.clone();
                    k.store(y, &at(r), v);
                });
            }
            for ((old, new), batch) in running.into_iter().zip([mean.clone(), var]) {
                if let Some(new) = new {
                    let v = get(k, old) * Expr::num(ty, f64::from(momentum))
                        + batch * Expr::num(ty, 1.0 - f64::from(momentum));
                    let v = Expr::cast(ty, k.m.bufs[new].ty.compute(), v);
                    k.store(new, c, v);
                }
            }
        });
    });
    Ok(())
}

fn lower_layer(cx: &mut LowerCx, axis: i64, epsilon: f32, rms: bool) -> Result<()> {
    let (x, y, scale) = (cx.input(0), cx.output_opt(0), cx.input(1));
    let bias = if rms { None } else { cx.input_opt(2) };
    let (mean_out, inv_out) = (cx.output_opt(1), cx.output_opt(2));
    let dims = cx.dims(x);
    let axis = from_end(axis, dims.len() as i64) as usize;
    let ty = cx.elem(x).compute();
    let n = Dim::product(dims[axis..].iter().copied());
    let (outer, row) = (dims[..axis].to_vec(), dims[axis..].to_vec());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &outer, |k, o| {
            let at = |r: &[Dim]| -> Vec<Dim> { o.iter().chain(r).copied().collect() };
            let count = Expr::count(ty, n);
            let mean = (!rms).then(|| {
                let sum = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &row, |k, r| {
                    let v = k.load(x, &at(r));
                    k.update(BinOp::Add, sum, v);
                });
                k.let_(Expr::acc(sum) / count.clone())
            });
            let square = k.acc(Expr::num(ty, 0.0));
            let centred = |k: &crate::nest::KernelBuilder, r: &[Dim]| match &mean {
                Some(m) => k.load(x, &at(r)) - m.clone(),
                None => k.load(x, &at(r)),
            };
            k.nest(LoopKind::Seq, &row, |k, r| {
                let v = centred(k, r);
                let v = k.let_(v);
                k.set(square, Expr::fma(v.clone(), v, Expr::acc(square)));
            });
            let inv = k.let_(
                Expr::num(ty, 1.0)
                    / Expr::un(UnOp::Sqrt, Expr::acc(square) / count + Expr::num(ty, f64::from(epsilon))),
            );
            let single: Vec<Dim> = at(&vec![Dim::constant(0); row.len()]);
            let statistics = |k: &mut crate::nest::KernelBuilder| {
                for (b, v) in [(mean_out, mean.clone()), (inv_out, Some(inv.clone()))] {
                    if let (Some(b), Some(v)) = (b, v) {
                        let v = Expr::cast(ty, k.m.bufs[b].ty.compute(), v);
                        k.store(b, &single, v);
                    }
                }
            };
            let Some(y) = y else { return statistics(k) };
            k.nest(LoopKind::Seq, &row, |k, r| {
                let operand = |k: &crate::nest::KernelBuilder, b: Buf| {
                    Expr::cast(k.m.bufs[b].ty.compute(), ty, k.load_broadcast(b, &at(r)))
                };
                let mut v = centred(k, r) * inv.clone() * operand(k, scale);
                if let Some(b) = bias {
                    v = v + operand(k, b);
                }
                let v = Expr::cast(ty, k.m.bufs[y].ty.compute(), v);
                k.store(y, &at(r), v);
            });
            statistics(k);
        });
    });
    Ok(())
}

/// The mean, and the sum of squared deviations from it, over the elements at `at(r)` for r in `row`.
fn moments(
    k: &mut crate::nest::KernelBuilder,
    x: Buf,
    ty: ElemType,
    row: &[Dim],
    count: &Expr,
    at: &dyn Fn(&[Dim]) -> Vec<Dim>,
) -> (Expr, Reg) {
    let sum = k.acc(Expr::num(ty, 0.0));
    k.nest(LoopKind::Seq, row, |k, r| {
        let v = k.load(x, &at(r));
        k.update(BinOp::Add, sum, v);
    });
    let mean = k.let_(Expr::acc(sum) / count.clone());
    let square = k.acc(Expr::num(ty, 0.0));
    k.nest(LoopKind::Seq, row, |k, r| {
        let v = k.load(x, &at(r)) - mean.clone();
        let v = k.let_(v);
        k.set(square, Expr::fma(v.clone(), v, Expr::acc(square)));
    });
    (mean, square)
}

/// Instance normalization is group normalization with one channel per group.
fn lower_group(cx: &mut LowerCx, groups: Option<i64>, epsilon: f32) -> Result<()> {
    let (x, y, scale, bias) = (cx.input(0), cx.output(0), cx.input(1), cx.input(2));
    let dims = cx.dims(x);
    let ty = cx.elem(x).compute();
    let (n, c) = (dims[0], dims[1]);
    let g = groups.map_or(c, Dim::constant);
    let per = c.floor_div(g);
    let row: Vec<Dim> = std::iter::once(per).chain(dims[2..].iter().copied()).collect();
    let count = Dim::product(row.iter().copied());
    // GroupNormalization 18 has one scale per group, later versions one per channel.
    let by_group = groups.is_some() && cx.since < 21;
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[n, g], |k, o| {
            let at = |r: &[Dim]| -> Vec<Dim> {
                [o[0], o[1] * per + r[0]].iter().chain(&r[1..]).copied().collect()
            };
            let count = Expr::count(ty, count);
            let (mean, square) = moments(k, x, ty, &row, &count, &at);
            let inv = k.let_(
                Expr::num(ty, 1.0)
                    / Expr::un(UnOp::Sqrt, Expr::acc(square) / count + Expr::num(ty, f64::from(epsilon))),
            );
            k.nest(LoopKind::Seq, &row, |k, r| {
                let ch = if by_group { o[1] } else { o[1] * per + r[0] };
                let v = (k.load(x, &at(r)) - mean.clone()) * inv.clone() * k.load(scale, &[ch])
                    + k.load(bias, &[ch]);
                k.store(y, &at(r), v);
            });
        });
    });
    Ok(())
}

fn lower_lp(cx: &mut LowerCx, axis: i64, p: i64) -> Result<()> {
    let (x, y) = (cx.input(0), cx.output(0));
    let dims = cx.dims(x);
    let axis = from_end(axis, dims.len() as i64) as usize;
    let ty = cx.elem(x).compute();
    let outer: Vec<Dim> = dims[..axis].iter().chain(&dims[axis + 1..]).copied().collect();
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &outer, |k, o| {
            let at =
                |r: Dim| -> Vec<Dim> { o[..axis].iter().chain([&r]).chain(&o[axis..]).copied().collect() };
            let sum = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[dims[axis]], |k, r| {
                let v = k.load(x, &at(r[0]));
                let v = if p == 1 { Expr::un(UnOp::Abs, v) } else { k.shared(v, |_, v| v.clone() * v) };
                k.update(BinOp::Add, sum, v);
            });
            let norm = k.let_(if p == 1 { Expr::acc(sum) } else { Expr::un(UnOp::Sqrt, Expr::acc(sum)) });
            let zero = Expr::bin(BinOp::Eq, norm.clone(), Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[dims[axis]], |k, r| {
                let v = Expr::select(zero.clone(), Expr::num(ty, 0.0), k.load(x, &at(r[0])) / norm.clone());
                k.store(y, &at(r[0]), v);
            });
        });
    });
    Ok(())
}

/// (x - mean) / (sqrt(var) + 1e-9) over any axes.
fn lower_mean_variance(cx: &mut LowerCx, axes: &[i64]) -> Result<()> {
    let (x, y) = (cx.input(0), cx.output(0));
    let dims = cx.dims(x);
    let ty = cx.elem(x).compute();
    let inner: Vec<bool> =
        (0..dims.len() as i64).map(|d| axes.iter().any(|a| *a == d || *a + dims.len() as i64 == d)).collect();
    let of = |want: bool| -> Vec<Dim> {
        dims.iter().zip(&inner).filter(|(_, i)| **i == want).map(|(d, _)| *d).collect()
    };
    let (outer, row) = (of(false), of(true));
    let n = Dim::product(row.iter().copied());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &outer, |k, o| {
            let at = |r: &[Dim]| -> Vec<Dim> {
                let (mut o, mut r) = (o.iter(), r.iter());
                inner.iter().filter_map(|i| if *i { r.next() } else { o.next() }).copied().collect()
            };
            let count = Expr::count(ty, n);
            let (mean, square) = moments(k, x, ty, &row, &count, &at);
            let deviation = k.let_(Expr::un(UnOp::Sqrt, Expr::acc(square) / count) + Expr::num(ty, 1e-9));
            k.nest(LoopKind::Seq, &row, |k, r| {
                let v = (k.load(x, &at(r)) - mean.clone()) / deviation.clone();
                k.store(y, &at(r), v);
            });
        });
    });
    Ok(())
}
