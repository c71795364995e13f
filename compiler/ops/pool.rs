//! Pooling: MaxPool, AveragePool, LpPool and their global forms.
//!
//! | operator | versions |
//! |---|---|
//! | MaxPool | 8: `Indices`, `storage_order`; 10: `ceil_mode`, `dilations`; 12: 8-bit integers |
//! | AveragePool | 7: `count_include_pad`; 10: `ceil_mode`; 19: `dilations` |
//! | LpPool | 1: `p` is a float; 2; 18: `ceil_mode`, `dilations` |
//!
//! With `ceil_mode` the last window must start inside the input or its left padding. What the average divides by:
//! the elements inside the input, or with `count_include_pad` inside input and padding.

use super::conv::{Axis, Window, padded};
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Expr, LoopKind, Scalar, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// What a window becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Kind {
    Max { column_major: bool },
    Average { include_pad: bool },
    Lp(f32),
}

/// A pooling operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What it computes.
    pub kind: Kind,
    /// Geometry; `None` for the global forms.
    pub window: Option<Window>,
    /// Rounds the output size up.
    pub ceil: bool,
}

impl Operator for Pool {
    const OPS: &'static [&'static str] = &["MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let global = a.op().starts_with("Global");
        let kind = match a.op() {
            "MaxPool" => Kind::Max { column_major: a.flag("storage_order", false)? },
            "GlobalMaxPool" => Kind::Max { column_major: false },
            "AveragePool" => Kind::Average { include_pad: a.flag("count_include_pad", false)? },
            "GlobalAveragePool" => Kind::Average { include_pad: false },
            _ if a.since() == 1 => Kind::Lp(a.float("p", 2.0)?),
            _ => Kind::Lp(a.int("p", 2)? as f32),
        };
        let window = if global { None } else { Some(Window::parse(a)?) };
        Ok(Pool { kind, window, ceil: a.flag("ceil_mode", false)? })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0)?.clone();
        if t.rank() < 2 || (t.rank() < 3 && self.window.is_some()) {
            return cx.error(codes::OP_SHAPE, "the input must have batch, channel and spatial dimensions").fail();
        }
        let mut dims = t.dims[..2].to_vec();
        match &self.window {
            None => dims.resize(t.rank(), Dim::constant(1)),
            Some(w) => {
                let Some(kernel) = &w.kernel else { return cx.error(codes::OP_ATTRIBUTE, "attribute \"kernel_shape\" is missing").fail() };
                let axes = w.axes(kernel, &t.dims[2..]).map_err(|m| crate::diag::Failure::from(cx.error(codes::OP_ATTRIBUTE, m)))?;
                for (d, a) in t.dims[2..].iter().zip(&axes) {
                    let n = cx.syms.simplify(self.out_size(*d, a));
                    if n.as_const().is_some_and(|n| n < 0) {
                        return cx.error(codes::OP_SHAPE, "the window is larger than the padded input").fail();
                    }
                    if !cx.syms.is_nonneg(n) {
                        cx.syms.require_at_most(Dim::constant(0), n);
                    }
                    dims.push(n);
                }
            }
        }
        cx.set(0, t.elem, dims.clone());
        if let Kind::Max { .. } = self.kind {
            cx.set(1, ElemType::I64, dims);
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let from = cx.dims(x);
        let spatial = from[2..].to_vec();
        let Some(w) = &self.window else { return self.lower_global(cx) };
        let Some(axes) = w.kernel.as_ref().and_then(|k| w.axes(k, &spatial).ok()) else { return cx.bug("the geometry changed") };
        let out = cx.dims(y);
        let ty = cx.elem(x).compute();
        let init = self.init(ty);
        // Rounding up can reach beyond the padding.
        let reach: Vec<Axis> = axes
            .iter()
            .enumerate()
            .map(|(i, a)| {
                let need = (out[2 + i] - 1) * a.stride + a.extent() - spatial[i] - a.before;
                let after = if self.ceil { cx.m.syms.simplify(need.max(a.after)) } else { a.after };
                Axis { after, ..a.clone() }
            })
            .collect();
        let kernel: Vec<Dim> = axes.iter().map(|a| Dim::constant(a.kernel)).collect();
        let kind = self.kind;
        let src = padded(cx, x, &reach, Some(init.into()));
        if let (Kind::Max { column_major }, Some(indices)) = (kind, cx.output_opt(1)) {
            return lower_max_with_indices(cx, &axes, column_major, indices);
        }
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let acc = k.acc(init.into());
                k.nest(LoopKind::Seq, &kernel, |k, r| {
                    let mut at = o[..2].to_vec();
                    at.extend(axes.iter().enumerate().map(|(i, a)| o[2 + i] * a.stride + r[i] * a.dilation));
                    let v = k.load(src, &at);
                    let v = self.term(k, ty, v);
                    k.update(self.op(), acc, v);
                });
                let count = match kind {
                    Kind::Average { include_pad } => Dim::product(axes.iter().enumerate().map(|(i, a)| in_window(a, o[2 + i], spatial[i], include_pad))),
                    _ => Dim::constant(1),
                };
                let v = self.finish(ty, Expr::acc(acc), k.m.syms.simplify(count));
                k.store(y, o, v);
            });
        });
        Ok(())
    }
}

/// Elements of the window at output position `o` that count.
fn in_window(a: &Axis, o: Dim, n: Dim, include_pad: bool) -> Dim {
    let start = o * a.stride - a.before;
    let (lo, hi) = if include_pad { (-a.before, n + a.after) } else { (Dim::constant(0), n) };
    // First and one past the last tap inside [lo, hi).
    let first = (lo - start).ceil_div(a.dilation).max(0);
    let end = (hi - start).ceil_div(a.dilation).min(a.kernel);
    end - first
}

impl Pool {
    fn out_size(&self, d: Dim, a: &Axis) -> Dim {
        let span = d + a.before + a.after - a.extent();
        if !self.ceil {
            return span.floor_div(a.stride) + 1;
        }
        // The last window must start inside the input or the padding before it.
        (span.ceil_div(a.stride) + 1).min((d + a.before - 1).floor_div(a.stride) + 1)
    }
    fn init(&self, ty: ElemType) -> Scalar {
        match self.kind {
            Kind::Max { .. } => Scalar::lowest(ty),
            _ => Scalar::from_f64(ty, 0.0),
        }
    }
    fn op(&self) -> BinOp {
        if matches!(self.kind, Kind::Max { .. }) { BinOp::Max } else { BinOp::Add }
    }
    fn term(&self, k: &mut crate::nest::KernelBuilder, ty: ElemType, v: Expr) -> Expr {
        match self.kind {
            Kind::Lp(p) if p == 1.0 => Expr::un(UnOp::Abs, v),
            Kind::Lp(p) if p == 2.0 => k.shared(v, |_, v| v.clone() * v),
            Kind::Lp(p) => Expr::bin(BinOp::Pow, Expr::un(UnOp::Abs, v), Expr::num(ty, f64::from(p))),
            _ => v,
        }
    }
    fn finish(&self, ty: ElemType, v: Expr, count: Dim) -> Expr {
        match self.kind {
            Kind::Average { .. } => match count.as_const() {
                Some(n) => v / Expr::num(ty, n as f64),
                None => v / Expr::cast(ElemType::I64, ty, Expr::index(count)),
            },
            Kind::Lp(p) if p == 1.0 => v,
            Kind::Lp(p) if p == 2.0 => Expr::un(UnOp::Sqrt, v),
            Kind::Lp(p) => Expr::bin(BinOp::Pow, v, Expr::num(ty, 1.0 / f64::from(p))),
            _ => v,
        }
    }
    fn lower_global(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let from = cx.dims(x);
        let spatial = from[2..].to_vec();
        let ty = cx.elem(x).compute();
        let out = cx.dims(y);
        let init = self.init(ty);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let acc = k.acc(init.into());
                k.nest(LoopKind::Seq, &spatial, |k, r| {
                    let at: Vec<Dim> = o[..2].iter().chain(r).copied().collect();
                    let v = k.load(x, &at);
                    let v = self.term(k, ty, v);
                    k.update(self.op(), acc, v);
                });
                let v = self.finish(ty, Expr::acc(acc), Dim::product(spatial.iter().copied()));
                k.store(y, o, v);
            });
        });
        Ok(())
    }
}

/// `Indices` are positions in the unpadded input, flattened over all dims (spatial ones column-major on request).
fn lower_max_with_indices(cx: &mut LowerCx, axes: &[Axis], column_major: bool, indices: crate::nest::Buf) -> Result<()> {
    let (x, y) = (cx.input(0), cx.output(0));
    let (from, out) = (cx.dims(x), cx.dims(y));
    let ty = cx.elem(x).compute();
    let i64_ = ElemType::I64;
    let kernel: Vec<Dim> = axes.iter().map(|a| Dim::constant(a.kernel)).collect();
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &out, |k, o| {
            let best = k.acc(Scalar::lowest(ty).into());
            let pos = k.acc(Expr::int(i64_, -1));
            k.nest(LoopKind::Seq, &kernel, |k, r| {
                let mut at = o[..2].to_vec();
                let mut inside = Expr::bool(true);
                for (i, a) in axes.iter().enumerate() {
                    let p = o[2 + i] * a.stride + r[i] * a.dilation - a.before;
                    inside = inside.and(Expr::cmp_index(BinOp::Ge, p, 0)).and(Expr::cmp_index(BinOp::Lt, p, from[2 + i]));
                    at.push(p);
                }
                let spatial = Dim::product(from[2..].iter().copied());
                let mut order: Vec<usize> = (2..from.len()).collect();
                if column_major {
                    order.reverse();
                }
                let inner = order.iter().fold(Dim::constant(0), |s, d| s * from[*d] + at[*d]);
                let flat = (at[0] * from[1] + at[1]) * spatial + inner;
                let v = k.load(x, &at);
                let then = k.block(|k| {
                    let v = k.let_(v);
                    let better = Expr::bin(BinOp::Or, Expr::bin(BinOp::Gt, v.clone(), Expr::acc(best)), Expr::bin(BinOp::Lt, Expr::acc(pos), Expr::int(i64_, 0)));
                    let better = k.let_(better);
                    k.set(pos, Expr::select(better.clone(), Expr::index(flat), Expr::acc(pos)));
                    k.set(best, Expr::select(better, v, Expr::acc(best)));
                });
                k.push(crate::nest::Stmt::If { cond: inside, then, els: vec![] });
            });
            k.store(y, o, Expr::acc(best));
            k.store(indices, o, Expr::acc(pos));
        });
    });
    Ok(())
}
