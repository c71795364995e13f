//! Conv and ConvTranspose, in the form that the contraction schedule recognises.
//!
//! Versions 1, 11 and 22 differ in types, and 11 made the defaults of strides and dilations explicit. Padding
//! is a map kernel into a padded copy, so that the inner loops have no conditions. ConvTranspose is in
//! `transposed`.

pub mod clip;
mod transposed;

use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;

/// Attributes of both operators and of pooling.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Sizes, if the attribute gives them.
    pub kernel: Option<Vec<i64>>,
    /// One per spatial axis.
    pub strides: Option<Vec<i64>>,
    /// One per spatial axis.
    pub dilations: Option<Vec<i64>>,
    /// Begins, then ends.
    pub pads: Option<Vec<i64>>,
    /// How pads are determined.
    pub auto: Auto,
}

/// `auto_pad`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Auto {
    NotSet,
    Valid,
    SameUpper,
    SameLower,
}

/// A convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Geometry.
    pub window: Window,
    /// Number of groups.
    pub group: i64,
    /// ConvTranspose: `output_padding`, `output_shape`.
    pub transpose: Option<Transposed>,
}

/// `output_padding` and `output_shape`.
pub type Transposed = (Option<Vec<i64>>, Option<Vec<i64>>);

/// One spatial axis with known values.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Kernel size.
    pub kernel: i64,
    /// Stride.
    pub stride: i64,
    /// Dilation.
    pub dilation: i64,
    /// Pad before.
    pub before: Dim,
    /// Pad after.
    pub after: Dim,
}

impl Axis {
    /// The extent of the dilated kernel.
    pub fn extent(&self) -> i64 {
        self.dilation * (self.kernel - 1) + 1
    }
}

impl Window {
    /// Reads the common attributes.
    pub fn parse(a: &mut Attrs) -> Result<Window> {
        let autos = [
            ("NOTSET", Auto::NotSet),
            ("VALID", Auto::Valid),
            ("SAME_UPPER", Auto::SameUpper),
            ("SAME_LOWER", Auto::SameLower),
        ];
        let auto = a.choice("auto_pad", "NOTSET", &autos);
        let list = |a: &mut Attrs, name: &str, least: i64| -> Result<Option<Vec<i64>>> {
            let v = a.ints_opt(name);
            match v.as_ref().is_some_and(|v| v.iter().any(|x| *x < least)) {
                true => a.error(format!("attribute \"{name}\" has a value below {least}")).fail(),
                false => Ok(v),
            }
        };
        Ok(Window {
            kernel: list(a, "kernel_shape", 1)?,
            strides: list(a, "strides", 1)?,
            dilations: list(a, "dilations", 1)?,
            pads: list(a, "pads", i64::from(i32::MIN))?,
            auto,
        })
    }
    /// The axes over `kernel` and an input of `spatial` size; `Err` names an attribute of the wrong length.
    pub fn axes(&self, kernel: &[i64], spatial: &[Dim]) -> std::result::Result<Vec<Axis>, String> {
        let n = spatial.len();
        let check = |v: &Option<Vec<i64>>, want: usize, name: &str| match v {
            Some(v) if v.len() != want => {
                Err(format!("attribute \"{name}\" has {} values, the input {n} spatial dimensions", v.len()))
            }
            _ => Ok(()),
        };
        check(&self.strides, n, "strides")?;
        check(&self.dilations, n, "dilations")?;
        check(&self.pads, 2 * n, "pads")?;
        if kernel.len() != n {
            return Err(format!("the kernel has {} dimensions, the input {n} spatial ones", kernel.len()));
        }
        let pick = |v: &Option<Vec<i64>>, i: usize| v.as_ref().map_or(1, |v| v[i]);
        Ok((0..n)
            .map(|i| {
                let mut a = Axis {
                    kernel: kernel[i],
                    stride: pick(&self.strides, i),
                    dilation: pick(&self.dilations, i),
                    before: Dim::constant(0),
                    after: Dim::constant(0),
                };
                match (self.auto, &self.pads) {
                    (Auto::NotSet, Some(p)) => {
                        (a.before, a.after) = (Dim::constant(p[i]), Dim::constant(p[n + i]))
                    }
                    (Auto::SameUpper | Auto::SameLower, _) => {
                        let out = spatial[i].ceil_div(a.stride);
                        let total = ((out - 1) * a.stride + a.extent() - spatial[i]).max(0);
                        let half = total.floor_div(2);
                        (a.before, a.after) = if self.auto == Auto::SameUpper {
                            (half, total - half)
                        } else {
                            (total - half, half)
                        };
                    }
                    _ => {}
                }
                a
            })
            .collect())
    }
}

impl Operator for Conv {
    const OPS: &'static [&'static str] = &["Conv", "ConvTranspose"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let window = Window::parse(a)?;
        let group = a.int("group", 1);
        a.require(group >= 1, "attribute \"group\" must be positive")?;
        let transpose = if a.op() == "ConvTranspose" {
            Some((a.ints_opt("output_padding"), a.ints_opt("output_shape")))
        } else {
            None
        };
        Ok(Conv { window, group, transpose })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let dims = self.shape(cx, 0, 1, 2)?;
        cx.set(0, cx.tensor(0).elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, w, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (dx, dw, dy) = (cx.dims(x), cx.dims(w), cx.dims(y));
        let kernel: Vec<i64> = dw[2..].iter().filter_map(|d| d.as_const()).collect();
        let Ok(axes) = self.geometry(&kernel, &dx[2..]) else { return cx.bug("the geometry changed") };
        if self.transpose.is_some() {
            return self.lower_transpose(cx, &axes);
        }
        let (w, axes) = clip::clipped(cx, 1, axes, &dx[2..], &dy[2..]);
        let dw = cx.dims(w);
        let src = padded(cx, x, &axes, None);
        let g = self.group;
        let per_group = dy[1].floor_div(g);
        if let (Some(times), Some(1)) = (per_group.as_const().filter(|t| *t > 1), dw[1].as_const())
            && g > 1
        {
            self.lower_multiplied(cx, src, w, &axes, times);
            return Ok(());
        }
        let depth: Vec<Dim> = dw[1..].to_vec();
        let ty = cx.elem(y).compute();
        let bias = cx.input_opt(2);
        // Groups are a separate loop, shared by weights and input, so that no division is needed.
        let mut out = vec![dy[0], Dim::constant(g), per_group];
        out.extend_from_slice(&dy[2..]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let (group, oc) = (o[1], o[1] * per_group + o[2]);
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let mut at = vec![o[0], group * dw[1] + r[0]];
                    at.extend(
                        axes.iter().enumerate().map(|(i, a)| o[3 + i] * a.stride + r[1 + i] * a.dilation),
                    );
                    let mut wt = vec![oc];
                    wt.extend_from_slice(r);
                    let (a, b) = (k.load(src, &at), k.load(w, &wt));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let v = with_bias(k, Expr::acc(acc), bias, oc);
                let mut to = vec![o[0], oc];
                to.extend_from_slice(&o[3..]);
                k.store(y, &to, v);
            });
        });
        Ok(())
    }
}

impl Conv {
    /// A depthwise convolution with several results per channel. The result index is moved to the batch, so
    /// that image and result have equal channels; a map restores the order.
    fn lower_multiplied(&self, cx: &mut LowerCx, src: Buf, w: Buf, axes: &[Axis], times: i64) {
        let (y, g) = (cx.output(0), Dim::constant(self.group));
        let (dw, dy, elem) = (cx.dims(w), cx.dims(y), cx.elem(y));
        let (ty, bias, depth) = (elem.compute(), cx.input_opt(2), dw[2..].to_vec());
        let shape =
            |batch: Dim| -> Vec<Dim> { [batch, g].into_iter().chain(dy[2..].iter().copied()).collect() };
        let apart = cx.temp("apart", elem, shape(dy[0] * times));
        let loops: Vec<Dim> =
            [dy[0], Dim::constant(times), g].into_iter().chain(dy[2..].iter().copied()).collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &loops, |k, o| {
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let mut at = vec![o[0], o[2]];
                    at.extend(axes.iter().enumerate().map(|(i, a)| o[3 + i] * a.stride + r[i] * a.dilation));
                    let mut wt = vec![o[2] * times + o[1], Dim::constant(0)];
                    wt.extend_from_slice(r);
                    let (a, b) = (k.load(src, &at), k.load(w, &wt));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let mut to = vec![o[0] * times + o[1], o[2]];
                to.extend_from_slice(&o[3..]);
                k.store(apart, &to, Expr::acc(acc));
            });
        });
        cx.map(y, |k, at| {
            let from: Vec<Dim> = [at[0] * times + at[1].modulo(times), at[1].floor_div(times)]
                .into_iter()
                .chain(at[2..].iter().copied())
                .collect();
            let v = k.load(apart, &from);
            with_bias(k, v, bias, at[1])
        });
    }
}

/// Adds the bias of the output channel to a sum.
pub(super) fn with_bias(k: &KernelBuilder, sum: Expr, bias: Option<Buf>, channel: Dim) -> Expr {
    match bias {
        Some(b) => sum + k.load(b, &[channel]),
        None => sum,
    }
}

impl Conv {
    /// The shape of the result, given the numbers of the inputs for image, weights and bias.
    pub fn shape(&self, cx: &mut InferCx, x: usize, w: usize, bias: usize) -> Result<Vec<Dim>> {
        let (x, w) = (cx.tensor(x).clone(), cx.tensor(w).clone());
        cx.require(
            x.rank() >= 3 && w.rank() == x.rank(),
            codes::OP_SHAPE,
            "the input must have batch, channel and spatial dimensions, and the weights as many",
        )?;
        let g = self.group;
        let axes = self.axes(cx, &x.dims[2..], &w.dims[2..])?;
        let channels = if self.transpose.is_some() {
            cx.require_eq(w.dims[0], x.dims[1], "the weights do not fit the input's channels");
            w.dims[1] * g
        } else {
            cx.require_eq(
                w.dims[1] * g,
                x.dims[1],
                "the weights do not fit the input's channels and the groups",
            );
            cx.require_eq(
                w.dims[0].modulo(g),
                Dim::constant(0),
                "the output channels do not divide into the groups",
            );
            w.dims[0]
        };
        if let Some(b) = cx.tensor_opt(bias) {
            if b.rank() != 1 {
                return cx
                    .error(codes::OP_SHAPE, "the bias must have one dimension")
                    .found_expected(format!("rank {}", b.rank()), "rank 1")
                    .fail();
            }
            cx.require_eq(b.count(), channels, "the bias does not fit the output channels");
        }
        let mut dims = vec![x.dims[0], channels];
        match &self.transpose {
            None => {
                for (d, a) in x.dims[2..].iter().zip(&axes) {
                    let out = match self.window.auto {
                        Auto::SameUpper | Auto::SameLower => d.ceil_div(a.stride),
                        _ => (*d + a.before + a.after - a.extent()).floor_div(a.stride) + 1,
                    };
                    dims.push(self.size(cx, out)?);
                }
            }
            Some(_) => {
                for (d, (a, extra)) in
                    x.dims[2..].iter().zip(axes.iter().zip(self.output_padding(axes.len())))
                {
                    let out = (*d - 1) * a.stride + a.extent() + extra - a.before - a.after;
                    dims.push(self.size(cx, out)?);
                }
            }
        }
        Ok(dims)
    }
}

/// A copy of `x` with pads of `fill` (0 if `None`) around the spatial dims, or `x` itself if there are no
/// pads.
pub fn padded(cx: &mut LowerCx, x: Buf, axes: &[Axis], fill: Option<Expr>) -> Buf {
    let zero = Dim::constant(0);
    if axes.iter().all(|a| a.before == zero && a.after == zero) {
        return x;
    }
    let dims = cx.dims(x);
    let elem = cx.elem(x);
    let mut wide = dims[..2].to_vec();
    wide.extend(dims[2..].iter().zip(axes).map(|(d, a)| *d + a.before + a.after));
    let out = cx.temp("padded", elem, wide);
    let fill = fill.unwrap_or(Expr::num(elem.compute(), 0.0));
    cx.map(out, |k, at| {
        let mut from = at[..2].to_vec();
        let mut inside: Option<Expr> = None;
        for (i, a) in axes.iter().enumerate() {
            let p = at[2 + i] - a.before;
            from.push(p);
            for (need, c) in [
                (!k.m.syms.is_nonneg(-a.before), Expr::cmp_index(BinOp::Ge, p, 0)),
                (!k.m.syms.is_nonneg(-a.after), Expr::cmp_index(BinOp::Lt, p, dims[2 + i])),
            ] {
                if need {
                    inside = Some(match inside {
                        None => c,
                        Some(o) => o.and(c),
                    });
                }
            }
        }
        let v = k.load(x, &from);
        match inside {
            Some(c) => Expr::select(c, v, fill),
            None => v,
        }
    });
    out
}

impl Conv {
    fn size(&self, cx: &mut InferCx, d: Dim) -> Result<Dim> {
        let d = cx.syms.simplify(d);
        cx.require(
            d.as_const().is_none_or(|d| d >= 0),
            codes::OP_SHAPE,
            "the kernel is larger than the padded input",
        )?;
        if !cx.syms.is_nonneg(d) {
            cx.syms.require_at_most(Dim::constant(0), d);
        }
        Ok(d)
    }
    fn output_padding(&self, n: usize) -> Vec<i64> {
        self.transpose
            .as_ref()
            .and_then(|t| t.0.clone())
            .filter(|p| p.len() == n)
            .unwrap_or_else(|| vec![0; n])
    }
    fn axes(&self, cx: &InferCx, spatial: &[Dim], weights: &[Dim]) -> Result<Vec<Axis>> {
        let Some(kernel) =
            weights.iter().map(|d| d.as_const().filter(|k| *k > 0)).collect::<Option<Vec<_>>>()
        else {
            return cx.error(codes::DYNAMIC_VALUE, "the kernel's size must be known at compile time").fail();
        };
        if self.window.kernel.as_ref().is_some_and(|k| *k != kernel) {
            return cx
                .error(
                    codes::OP_ATTRIBUTE,
                    format!("attribute \"kernel_shape\" {:?} contradicts the weights", self.window.kernel),
                )
                .fail();
        }
        self.geometry(&kernel, spatial).map_err(|m| cx.error(codes::OP_ATTRIBUTE, m).into())
    }
    /// Axes with pads; for ConvTranspose those implied by `output_shape` and `auto_pad`.
    pub fn geometry(&self, kernel: &[i64], spatial: &[Dim]) -> std::result::Result<Vec<Axis>, String> {
        if self.transpose.is_none() {
            return self.window.axes(kernel, spatial);
        }
        let plain = Window { auto: Auto::NotSet, ..self.window.clone() };
        let mut axes = plain.axes(kernel, spatial)?;
        let (n, Some((padding, shape))) = (axes.len(), &self.transpose) else { return Ok(axes) };
        if padding.as_ref().is_some_and(|p| p.len() != n || p.iter().any(|p| *p < 0)) {
            return Err(format!(
                "attribute \"output_padding\" {padding:?} must have {n} values, none below 0"
            ));
        }
        if shape.as_ref().is_some_and(|s| s.len() != n && s.len() != n + 2) {
            return Err(format!("attribute \"output_shape\" {shape:?} must have {n} values"));
        }
        let extra = self.output_padding(axes.len());
        let same = matches!(self.window.auto, Auto::SameUpper | Auto::SameLower);
        for (i, a) in axes.iter_mut().enumerate() {
            let full = (spatial[i] - 1) * a.stride + a.extent() + extra[i];
            let want = match shape {
                // output_shape may omit batch and channels.
                Some(s) => s.get(s.len().wrapping_sub(spatial.len()) + i).map(|v| Dim::constant(*v)),
                None if same => Some(spatial[i] * a.stride),
                None => None,
            };
            if let Some(want) = want {
                let total = full - want;
                let half = total.floor_div(2);
                (a.before, a.after) = if self.window.auto == Auto::SameUpper {
                    (half, total - half)
                } else {
                    (total - half, half)
                };
            } else if self.window.auto == Auto::Valid {
                (a.before, a.after) = (Dim::constant(0), Dim::constant(0));
            }
        }
        Ok(axes)
    }
}
