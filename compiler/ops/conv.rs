//! Conv and ConvTranspose, in the form that the contraction schedule recognises.
//!
//! Versions 1, 11 and 22 differ in types, and in that 11 made the defaults of strides and dilations explicit.
//! Padding is a map kernel into a padded copy, so that the inner loops have no conditions; ConvTranspose is
//! split by the phases of its strides, each a convolution of stride 1.

use super::matmul::product_sum;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;

/// Attributes of both operators and of pooling.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Sizes, where the attribute gives them.
    pub kernel: Option<Vec<i64>>,
    /// One for each spatial axis.
    pub strides: Option<Vec<i64>>,
    /// One for each spatial axis.
    pub dilations: Option<Vec<i64>>,
    /// Begins, then ends.
    pub pads: Option<Vec<i64>>,
    /// How pads are found.
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

/// One spatial axis, all known.
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
    /// Size that the kernel covers.
    pub fn extent(&self) -> i64 {
        self.dilation * (self.kernel - 1) + 1
    }
}

impl Window {
    /// Reads the common attributes.
    pub fn parse(a: &mut Attrs) -> Result<Window> {
        let auto = match a.choice("auto_pad", "NOTSET", &["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])?.as_str() {
            "VALID" => Auto::Valid,
            "SAME_UPPER" => Auto::SameUpper,
            "SAME_LOWER" => Auto::SameLower,
            _ => Auto::NotSet,
        };
        let list = |a: &mut Attrs, name: &str, least: i64| -> Result<Option<Vec<i64>>> {
            let v = a.ints_opt(name)?;
            match v.as_ref().is_some_and(|v| v.iter().any(|x| *x < least)) {
                true => a.error(format!("attribute \"{name}\" has a value below {least}")).fail(),
                false => Ok(v),
            }
        };
        Ok(Window { kernel: list(a, "kernel_shape", 1)?, strides: list(a, "strides", 1)?, dilations: list(a, "dilations", 1)?, pads: list(a, "pads", i64::from(i32::MIN))?, auto })
    }
    /// The axes over `kernel` and an input of `spatial` size; `Err` names the attribute of the wrong length.
    pub fn axes(&self, kernel: &[i64], spatial: &[Dim]) -> std::result::Result<Vec<Axis>, String> {
        let n = spatial.len();
        let check = |v: &Option<Vec<i64>>, want: usize, name: &str| match v {
            Some(v) if v.len() != want => Err(format!("attribute \"{name}\" has {} values, the input {n} spatial dimensions", v.len())),
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
                let mut a = Axis { kernel: kernel[i], stride: pick(&self.strides, i), dilation: pick(&self.dilations, i), before: Dim::constant(0), after: Dim::constant(0) };
                match (self.auto, &self.pads) {
                    (Auto::NotSet, Some(p)) => (a.before, a.after) = (Dim::constant(p[i]), Dim::constant(p[n + i])),
                    (Auto::SameUpper | Auto::SameLower, _) => {
                        let out = spatial[i].ceil_div(a.stride);
                        let total = ((out - 1) * a.stride + a.extent() - spatial[i]).max(0);
                        let half = total.floor_div(2);
                        (a.before, a.after) = if self.auto == Auto::SameUpper { (half, total - half) } else { (total - half, half) };
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
        let group = a.int("group", 1)?;
        if group < 1 {
            return a.error("attribute \"group\" must be positive").fail();
        }
        let transpose = if a.op() == "ConvTranspose" { Some((a.ints_opt("output_padding")?, a.ints_opt("output_shape")?)) } else { None };
        Ok(Conv { window, group, transpose })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let dims = self.shape(cx, 0, 1, 2)?;
        cx.set(0, cx.tensor(0)?.elem, dims);
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
        let src = padded(cx, x, &axes, None);
        let g = self.group;
        let per_group = dy[1].floor_div(g);
        let depth: Vec<Dim> = dw[1..].to_vec();
        let ty = cx.elem(y).compute();
        let bias = cx.input_opt(2);
        // Groups are a loop of their own: weights and input share it, and it divides nothing.
        let mut out = vec![dy[0], Dim::constant(g), per_group];
        out.extend_from_slice(&dy[2..]);
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let (group, oc) = (o[1], o[1] * per_group + o[2]);
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let mut at = vec![o[0], group * dw[1] + r[0]];
                    at.extend(axes.iter().enumerate().map(|(i, a)| o[3 + i] * a.stride + r[1 + i] * a.dilation));
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

/// A sum with the bias of its output channel.
pub(super) fn with_bias(k: &KernelBuilder, sum: Expr, bias: Option<Buf>, channel: Dim) -> Expr {
    match bias {
        Some(b) => sum + k.load(b, &[channel]),
        None => sum,
    }
}

impl Conv {
    /// Shape of the result; the numbers of the inputs with image, weights and bias.
    pub fn shape(&self, cx: &mut InferCx, x: usize, w: usize, bias: usize) -> Result<Vec<Dim>> {
        let (x, w) = (cx.tensor(x)?.clone(), cx.tensor(w)?.clone());
        if x.rank() < 3 || w.rank() != x.rank() {
            return cx.error(codes::OP_SHAPE, "the input must have batch, channel and spatial dimensions, and the weights as many").fail();
        }
        let g = self.group;
        let axes = self.axes(cx, &x.dims[2..], &w.dims[2..])?;
        let channels = if self.transpose.is_some() {
            cx.require_eq(w.dims[0], x.dims[1], "the weights do not fit the input's channels")?;
            w.dims[1] * g
        } else {
            cx.require_eq(w.dims[1] * g, x.dims[1], "the weights do not fit the input's channels and the groups")?;
            cx.require_eq(w.dims[0].modulo(g), Dim::constant(0), "the output channels do not divide into the groups")?;
            w.dims[0]
        };
        if let Some(b) = cx.tensor_opt(bias)? {
            if b.rank() != 1 {
                return cx.error(codes::OP_SHAPE, "the bias must have one dimension").found_expected(format!("rank {}", b.rank()), "rank 1").fail();
            }
            cx.require_eq(b.count(), channels, "the bias does not fit the output channels")?;
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
                for (d, (a, extra)) in x.dims[2..].iter().zip(axes.iter().zip(self.output_padding(axes.len()))) {
                    let out = (*d - 1) * a.stride + a.extent() + extra - a.before - a.after;
                    dims.push(self.size(cx, out)?);
                }
            }
        }
        Ok(dims)
    }
}

/// A copy of `x` with pads of `fill` (0 if `None`) around the spatial dims, or `x` itself without pads.
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
    let syms = cx.m.syms.clone();
    cx.map(out, |k, at| {
        let mut from = at[..2].to_vec();
        let mut inside: Option<Expr> = None;
        for (i, a) in axes.iter().enumerate() {
            let p = at[2 + i] - a.before;
            from.push(p);
            for (need, c) in [(!syms.is_nonneg(-a.before), Expr::cmp_index(BinOp::Ge, p, 0)), (!syms.is_nonneg(-a.after), Expr::cmp_index(BinOp::Lt, p, dims[2 + i]))] {
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
        if d.as_const().is_some_and(|d| d < 0) {
            return cx.error(codes::OP_SHAPE, "the kernel is larger than the padded input").fail();
        }
        if !cx.syms.is_nonneg(d) {
            cx.syms.require_at_most(Dim::constant(0), d);
        }
        Ok(d)
    }
    fn output_padding(&self, n: usize) -> Vec<i64> {
        self.transpose.as_ref().and_then(|t| t.0.clone()).filter(|p| p.len() == n).unwrap_or_else(|| vec![0; n])
    }
    fn axes(&self, cx: &InferCx, spatial: &[Dim], weights: &[Dim]) -> Result<Vec<Axis>> {
        let Some(kernel) = weights.iter().map(|d| d.as_const().filter(|k| *k > 0)).collect::<Option<Vec<_>>>() else {
            return cx.error(codes::DYNAMIC_VALUE, "the kernel's size must be known at compile time").fail();
        };
        if self.window.kernel.as_ref().is_some_and(|k| *k != kernel) {
            return cx.error(codes::OP_ATTRIBUTE, format!("attribute \"kernel_shape\" {:?} contradicts the weights", self.window.kernel)).fail();
        }
        self.geometry(&kernel, spatial).map_err(|m| cx.error(codes::OP_ATTRIBUTE, m).into())
    }
    /// Axes with pads; for ConvTranspose those that `output_shape` and `auto_pad` imply.
    pub fn geometry(&self, kernel: &[i64], spatial: &[Dim]) -> std::result::Result<Vec<Axis>, String> {
        if self.transpose.is_none() {
            return self.window.axes(kernel, spatial);
        }
        let plain = Window { auto: Auto::NotSet, ..self.window.clone() };
        let mut axes = plain.axes(kernel, spatial)?;
        let (n, Some((padding, shape))) = (axes.len(), &self.transpose) else { return Ok(axes) };
        if padding.as_ref().is_some_and(|p| p.len() != n || p.iter().any(|p| *p < 0)) {
            return Err(format!("attribute \"output_padding\" {padding:?} must have {n} values, none below 0"));
        }
        if shape.as_ref().is_some_and(|s| s.len() != n && s.len() != n + 2) {
            return Err(format!("attribute \"output_shape\" {shape:?} must have {n} values"));
        }
        let extra = self.output_padding(axes.len());
        let same = matches!(self.window.auto, Auto::SameUpper | Auto::SameLower);
        for (i, a) in axes.iter_mut().enumerate() {
            let full = (spatial[i] - 1) * a.stride + a.extent() + extra[i];
            let want = match shape {
                // output_shape may or may not name batch and channels.
                Some(s) => s.get(s.len().wrapping_sub(spatial.len()) + i).map(|v| Dim::constant(*v)),
                None if same => Some(spatial[i] * a.stride),
                None => None,
            };
            if let Some(want) = want {
                let total = full - want;
                let half = total.floor_div(2);
                (a.before, a.after) = if self.window.auto == Auto::SameUpper { (half, total - half) } else { (total - half, half) };
            } else if self.window.auto == Auto::Valid {
                (a.before, a.after) = (Dim::constant(0), Dim::constant(0));
            }
        }
        Ok(axes)
    }
    /// y[o] = sum over k of x[(o + before - k * dilation) / stride] where that divides and is inside.
    ///
    /// With o + before = stride * q + phase only the taps k = phase + stride * j count: each phase is a convolution of
    /// stride 1 with a part of the kernel, and all of them are one contraction. It fills a buffer of whole strides, from
    /// which the result is cut where it does not begin and end with one. An axis with stride and dilation, or with pads
    /// that only run time knows, is spread with zeros instead, and convolved with the mirrored kernel.
    fn lower_transpose(&self, cx: &mut LowerCx, axes: &[Axis]) -> Result<()> {
        let (x, w, y) = (cx.input(0), cx.input(1), cx.output(0));
        let (dy, elem) = (cx.dims(y), cx.elem(x));
        let split: Option<Vec<Phases>> = axes.iter().zip(&dy[2..]).map(|(a, d)| Phases::of(a, *d)).collect();
        let Some(split) = split else {
            let phases: Vec<Phases> = axes.iter().zip(&dy[2..]).map(|(a, d)| Phases { stride: 1, taps: a.kernel, dilation: a.dilation, first: Dim::constant(0), count: *d, cut: Dim::constant(0) }).collect();
            let spread = spread(cx, x, axes, &dy, elem);
            self.phases(cx, spread, w, y, &phases);
            return Ok(());
        };
        let dx = cx.dims(x);
        let reach: Vec<Axis> = split.iter().zip(&dx[2..]).map(|(p, d)| Axis { kernel: p.taps, stride: 1, dilation: p.dilation, before: Dim::constant((p.taps - 1) * p.dilation) - p.first, after: p.first + p.count - *d }).collect();
        let src = padded(cx, x, &reach, None);
        // Taps beyond the kernel are 0.
        let dw = cx.dims(w);
        let ends: Vec<Axis> = split.iter().zip(axes).map(|(p, a)| Axis { kernel: 1, stride: 1, dilation: 1, before: Dim::constant(0), after: Dim::constant(p.taps * p.stride - a.kernel) }).collect();
        let w = if dw.len() == dy.len() { padded(cx, w, &ends, None) } else { w };
        let whole: Vec<Dim> = dy[..2].iter().copied().chain(split.iter().map(|p| p.count * p.stride)).collect();
        let direct = split.iter().all(|p| p.cut == Dim::constant(0)) && whole == dy;
        let out = if direct { y } else { cx.temp("strides", elem, whole) };
        self.phases(cx, src, w, out, &split);
        if !direct {
            cx.map(y, |k, at| {
                let from: Vec<Dim> = at[..2].iter().copied().chain(at[2..].iter().zip(&split).map(|(o, p)| *o + p.cut)).collect();
                k.load(out, &from)
            });
        }
        Ok(())
    }
    /// The contraction over channels and the taps of each phase.
    fn phases(&self, cx: &mut LowerCx, src: Buf, w: Buf, out: Buf, axes: &[Phases]) {
        let (ds, dw, dy) = (cx.dims(src), cx.dims(w), cx.dims(out));
        let ty = cx.elem(out).compute();
        let g = self.group;
        let (ci, co) = (ds[1].floor_div(g), dw[1]);
        let bias = cx.input_opt(2);
        let n = axes.len();
        // Batch, group, channel, then phase and position of each axis.
        let mut loops = vec![dy[0], Dim::constant(g), co];
        loops.extend(axes.iter().map(|a| Dim::constant(a.stride)));
        loops.extend(axes.iter().map(|a| a.count));
        let depth: Vec<Dim> = std::iter::once(ci).chain(axes.iter().map(|a| Dim::constant(a.taps))).collect();
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &loops, |k, o| {
                let (group, oc) = (o[1], o[1] * co + o[2]);
                let (phase, place) = (&o[3..3 + n], &o[3 + n..]);
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let ic = group * ci + r[0];
                    let (mut at, mut wt) = (vec![o[0], ic], vec![ic, o[2]]);
                    for (i, a) in axes.iter().enumerate() {
                        at.push(place[i] + r[1 + i] * a.dilation);
                        wt.push(phase[i] + (Dim::constant(a.taps - 1) - r[1 + i]) * a.stride);
                    }
                    let (a, b) = (k.load(src, &at), k.load(w, &wt));
                    k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                });
                let v = with_bias(k, Expr::acc(acc), bias, oc);
                let mut to = vec![o[0], oc];
                to.extend(axes.iter().enumerate().map(|(i, a)| place[i] * a.stride + phase[i]));
                k.store(out, &to, v);
            });
        });
    }
}

/// One axis of a transposed convolution, by phases of its stride.
struct Phases {
    stride: i64,
    /// Taps of the kernel in each phase.
    taps: i64,
    dilation: i64,
    /// First input element q that the last tap of the first stride reads.
    first: Dim,
    /// Whole strides that cover the result.
    count: Dim,
    /// Where in the first of them the result begins.
    cut: Dim,
}

impl Phases {
    fn of(a: &Axis, size: Dim) -> Option<Phases> {
        if a.stride > 1 && (a.dilation > 1 || a.before.as_const().is_none()) {
            return None;
        }
        let s = a.stride;
        let first = a.before.floor_div(s);
        let count = (a.before + size - 1).floor_div(s) - first + 1;
        let taps = if s == 1 { a.kernel } else { (a.kernel + s - 1) / s };
        Some(Phases { stride: s, taps, dilation: if s == 1 { a.dilation } else { 1 }, first, count, cut: a.before - first * s })
    }
}

/// spread[j] = x[(j + before - (extent - 1)) / stride] where that divides and is inside, else 0.
fn spread(cx: &mut LowerCx, x: Buf, axes: &[Axis], dy: &[Dim], elem: crate::tensor::ElemType) -> Buf {
    let dims = cx.dims(x);
    let mut wide = dims[..2].to_vec();
    wide.extend(axes.iter().zip(&dy[2..]).map(|(a, d)| *d + (a.extent() - 1)));
    let out = cx.temp("spread", elem, wide);
    let ty = elem.compute();
    cx.map(out, |k, at| {
        let mut from = at[..2].to_vec();
        let mut inside = Expr::bool(true);
        for (i, a) in axes.iter().enumerate() {
            let p = at[2 + i] + a.before - (a.extent() - 1);
            let q = p.floor_div(a.stride);
            from.push(q);
            inside = inside.and(Expr::cmp_index(BinOp::Ge, p, 0)).and(Expr::cmp_index(BinOp::Lt, q, dims[2 + i]));
            if a.stride > 1 {
                inside = inside.and(Expr::cmp_index(BinOp::Eq, p.modulo(a.stride), 0));
            }
        }
        let v = k.load(x, &from);
        Expr::select(inside, v, Expr::num(ty, 0.0))
    });
    out
}

