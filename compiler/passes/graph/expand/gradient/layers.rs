//! Gradients of layers: matrix products, convolutions, pooling, normalizations, losses.

use super::{Back, Parts};
use crate::diag::Result;
use crate::graph::Value;
use crate::ops::AttrValue;
use crate::ops::from_end;
use crate::passes::graph::expand::NodeSpec;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Attributes of a convolution or pooling.
struct Window {
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
    group: i64,
}

/// Sizes along the dimensions of a window: of the result, the operand and the filters.
struct Sizes<'a> {
    from: &'a [Dim],
    to: &'a [Dim],
    kernel: &'a [Dim],
}

impl Back<'_, '_> {
    pub(super) fn global_average(&mut self) -> Value {
        let (d, x, y) = (self.d(), self.x(0), self.y(0));
        self.averaged(d, x, y)
    }
    /// The adjoint of the elements `x` whose means are `y`.
    pub(super) fn averaged(&mut self, d: Value, x: Value, y: Value) -> Value {
        let (all, left) = (self.op("Size", &[x]), self.op("Size", &[y]));
        let n = self.op("Div", &[all, left]);
        let elem = self.make.elem(x);
        let n = self.make.cast(n, ElemType::I64, elem);
        let (d, shape) = (self.op("Div", &[d, n]), self.shape(x));
        self.op("Expand", &[d, shape])
    }
    pub(super) fn dropout(&mut self) -> Result<Value> {
        let training = if self.since() >= 12 {
            !self.absent_or(2, 0)
        } else {
            self.since() < 7 && self.int("is_test", 0) == 0
        };
        if training {
            return self.error("it draws at random").fail();
        }
        Ok(self.d())
    }
    fn permuted(&mut self, v: Value, perm: Vec<i64>) -> Value {
        self.make.with("Transpose", vec![("perm", AttrValue::Ints(perm))], &[v])
    }
    /// Transposes the last two of `rank` dimensions.
    fn turned(&mut self, v: Value, rank: usize) -> Value {
        let mut perm: Vec<i64> = (0..rank as i64).collect();
        perm.swap(rank - 1, rank - 2);
        self.permuted(v, perm)
    }
    fn unsqueezed(&mut self, v: Value, axes: &[i64]) -> Value {
        let axes = self.make.ints(axes);
        self.op("Unsqueeze", &[v, axes])
    }
    pub(super) fn matmul(&mut self) -> Result<Parts> {
        let (mut d, a, b) = (self.d(), self.x(0), self.x(1));
        let (mut da, mut db, out) = (self.make.dims(a)?, self.make.dims(b)?, self.make.dims(self.y(0))?);
        let (mut wide_a, mut wide_b, mut dd) = (a, b, out);
        // A vector is treated as a matrix of one row or column.
        if db.len() == 1 {
            wide_b = self.unsqueezed(b, &[1]);
            db.push(Dim::constant(1));
            d = self.unsqueezed(d, &[-1]);
            dd.push(Dim::constant(1));
        }
        if da.len() == 1 {
            wide_a = self.unsqueezed(a, &[0]);
            da.insert(0, Dim::constant(1));
            d = self.unsqueezed(d, &[-2]);
            dd.insert(dd.len() - 1, Dim::constant(1));
        }
        let mut parts = vec![None, None];
        let batch = &dd[..dd.len() - 2];
        for (i, x, own) in [(0, a, da.clone()), (1, b, db.clone())] {
            if !self.wants(i) {
                continue;
            }
            let v = if i == 0 {
                let t = self.turned(wide_b, db.len());
                self.op("MatMul", &[d, t])
            } else {
                let t = self.turned(wide_a, da.len());
                self.op("MatMul", &[t, d])
            };
            let from: Vec<Dim> = batch.iter().chain(&own[own.len() - 2..]).copied().collect();
            // The widened operand has the sizes of `own`; the operand itself may have one dimension less.
            let extra = from.len() - own.len();
            let mut axes: Vec<i64> = (0..extra as i64).collect();
            for (j, (f, t)) in from[extra..].iter().zip(&own).enumerate() {
                match (self.syms.eq(*f, *t), t.as_const(), f.as_const()) {
                    (crate::sym::Answer::Yes, ..) => {}
                    (_, Some(1), _) => axes.push((extra + j) as i64),
                    (_, Some(_), _) | (_, _, Some(1)) => {}
                    _ => {
                        return self
                            .error("only run time knows whether a dimension is broadcast; bind it with --dim")
                            .fail();
                    }
                }
            }
            let v = self.summed(v, &axes);
            let shape = self.shape(x);
            parts[i] = Some(self.make.with("Reshape", vec![("allowzero", AttrValue::Int(1))], &[v, shape]));
        }
        Ok(parts)
    }
    pub(super) fn gemm(&mut self) -> Result<Parts> {
        let (d, a, b, y) = (self.d(), self.x(0), self.x(1), self.y(0));
        let (alpha, beta) = (self.float("alpha", 1.0), self.float("beta", 1.0));
        let (ta, tb) = (self.int("transA", 0), self.int("transB", 0));
        if self.int("broadcast", 0) != 0 {
            return self.error("it broadcasts as the first versions did").fail();
        }
        let mut parts = vec![None, None, None];
        let scaled = self.scaled(d, y, alpha);
        let product = |s: &mut Self, l: Value, r: Value, tl: i64, tr: i64| {
            s.make.with("Gemm", vec![("transA", AttrValue::Int(tl)), ("transB", AttrValue::Int(tr))], &[l, r])
        };
        if self.wants(0) {
            parts[0] = Some(if ta == 0 {
                product(self, scaled, b, 0, 1 - tb)
            } else {
                product(self, b, scaled, tb, 1)
            });
        }
        if self.wants(1) {
            parts[1] = Some(if tb == 0 {
                product(self, a, scaled, 1 - ta, 0)
            } else {
                product(self, scaled, a, 1, ta)
            });
        }
        if self.wants(2) {
            let (c, v) = (self.x(2), self.scaled(d, y, beta));
            parts[2] = Some(self.narrowed_from_result(v, c)?);
        }
        Ok(parts)
    }
    /// The attributes of a window over `n` dimensions.
    fn window(&self, n: usize) -> Result<Window> {
        if !matches!(self.text("auto_pad", "NOTSET").as_str(), "NOTSET" | "VALID") {
            return self.error("auto_pad must be written as pads").fail();
        }
        Ok(Window {
            strides: self.node.ints("strides").unwrap_or(vec![1; n]),
            dilations: self.node.ints("dilations").unwrap_or(vec![1; n]),
            pads: self.node.ints("pads").unwrap_or(vec![0; 2 * n]),
            group: 1,
        })
    }
    /// The transposed convolution of `d` and the filters `w`, from the result's sizes to those of the
    /// operand.
    fn transposed(&mut self, [d, w]: [Value; 2], window: &Window, sizes: Sizes<'_>) -> Result<Value> {
        let Sizes { from, to, kernel } = sizes;
        let Window { strides, dilations, pads, group } = window;
        let n = strides.len();
        let mut more = vec![];
        for i in 0..n {
            let reached =
                (from[i] - 1) * strides[i] - pads[i] - pads[n + i] + (kernel[i] - 1) * dilations[i] + 1;
            match self.syms.simplify(to[i] - reached).as_const() {
                Some(m) if m >= 0 => more.push(m),
                _ => return self.error("the sizes of the image must be known; bind them with --dim").fail(),
            }
        }
        let list = |v: &[i64]| AttrValue::Ints(v.to_vec());
        let attrs = vec![
            ("strides", list(strides)),
            ("dilations", list(dilations)),
            ("pads", list(pads)),
            ("group", AttrValue::Int(*group)),
            ("output_padding", AttrValue::Ints(more)),
        ];
        Ok(self.make.with("ConvTranspose", attrs, &[d, w]))
    }
    pub(super) fn conv(&mut self) -> Result<Parts> {
        let (d, x, w, y) = (self.d(), self.x(0), self.x(1), self.y(0));
        let (dx, dw, out) = (self.make.dims(x)?, self.make.dims(w)?, self.make.dims(y)?);
        let n = dx.len() - 2;
        let group = self.int("group", 1);
        let window = Window { group, ..self.window(n)? };
        let mut parts = vec![None, None, None];
        if self.wants(0) {
            let sizes = Sizes { from: &out[2..], to: &dx[2..], kernel: &dw[2..] };
            parts[0] = Some(self.transposed([d, w], &window, sizes)?);
        }
        let Window { strides, dilations, pads, .. } = window;
        if self.wants(1) {
            // Images take the role of channels: the result's adjoint slides over the operand.
            let spatial: Vec<i64> = (2..n as i64 + 2).collect();
            let order = |first: &[i64]| {
                first
                    .iter()
                    .copied()
                    .chain(spatial.iter().map(|s| s + first.len() as i64 - 2))
                    .collect::<Vec<i64>>()
            };
            let (batch, groups, rest) =
                (self.make.sizes(x, 0, 1), self.make.ints(&[group]), self.make.ints(&[-1]));
            let size = self.make.sizes(x, 2, n as i64 + 2);
            let shape =
                self.make.with("Concat", vec![("axis", AttrValue::Int(0))], &[batch, groups, rest, size]);
            let images = self.op("Reshape", &[x, shape]);
            let images = self.permuted(images, order(&[2, 1, 0]));
            let channels = self.make.sizes(w, 1, 2);
            let shape = self.make.with("Concat", vec![("axis", AttrValue::Int(0))], &[channels, rest, size]);
            let images = self.op("Reshape", &[images, shape]);
            let filters = self.permuted(d, order(&[1, 0]));
            let list = |v: &[i64]| AttrValue::Ints(v.to_vec());
            let attrs = vec![
                ("strides", list(&dilations)),
                ("dilations", list(&strides)),
                ("pads", list(&pads)),
                ("group", AttrValue::Int(group)),
            ];
            let v = self.make.with("Conv", attrs, &[images, filters]);
            let v = self.permuted(v, order(&[1, 0]));
            // If the strides do not divide the range, it slides too far.
            let (starts, axes, ends) =
                (self.make.ints(&vec![0; n]), self.make.ints(&spatial), self.make.sizes(w, 2, n as i64 + 2));
            parts[1] = Some(self.op("Slice", &[v, starts, ends, axes]));
        }
        if self.wants(2) {
            let axes: Vec<i64> = (0..n as i64 + 2).filter(|a| *a != 1).collect();
            let (v, b) = (self.summed(d, &axes), self.x(2));
            let shape = self.shape(b);
            parts[2] = Some(self.op("Reshape", &[v, shape]));
        }
        Ok(parts)
    }
    pub(super) fn max_pool(&mut self) -> Result<Value> {
        let (d, x) = (self.d(), self.x(0));
        if self.int("storage_order", 0) != 0 {
            return self.error("storage_order is 1").fail();
        }
        let kept = ["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"];
        let attrs: Vec<(String, AttrValue)> =
            self.node.attrs.iter().filter(|(n, _)| kept.contains(&n.as_str())).cloned().collect();
        let made = self.make.add("MaxPool", NodeSpec::new(vec![Some(x)], 2).attrs(attrs));
        let (shape, flat) = (self.shape(x), self.make.ints(&[-1]));
        Ok(self.scattered(d, made[1], x, flat, shape))
    }
    pub(super) fn average_pool(&mut self) -> Result<Value> {
        let (d, x, y) = (self.d(), self.x(0), self.y(0));
        let (dims, out) = (self.make.dims(x)?, self.make.dims(y)?);
        let n = dims.len() - 2;
        let window = self.window(n)?;
        let kernel = self.node.ints("kernel_shape").unwrap_or_default();
        if self.int("ceil_mode", 0) != 0
            || kernel.len() != n
            || window.pads.iter().any(|p| *p != 0) && self.int("count_include_pad", 0) == 0
        {
            return self.error("windows count differently many elements").fail();
        }
        // One filter of equal weights for every channel, with channels as images of one channel.
        let (one, flat) = (self.make.ints(&[1]), self.make.ints(&[-1]));
        let size = self.make.sizes(y, 2, n as i64 + 2);
        let shape = self.make.with("Concat", vec![("axis", AttrValue::Int(0))], &[flat, one, size]);
        let d = self.op("Reshape", &[d, shape]);
        let weight = self.number(x, 1.0 / kernel.iter().product::<i64>() as f64);
        let shape: Vec<i64> = [1, 1].into_iter().chain(kernel.iter().copied()).collect();
        let shape = self.make.ints(&shape);
        let kernel: Vec<Dim> = kernel.into_iter().map(Dim::constant).collect();
        let w = self.op("Expand", &[weight, shape]);
        let sizes = Sizes { from: &out[2..], to: &dims[2..], kernel: &kernel };
        let v = self.transposed([d, w], &window, sizes)?;
        let shape = self.shape(x);
        Ok(self.op("Reshape", &[v, shape]))
    }
    fn mean(&mut self, v: Value, axes: &[i64]) -> Value {
        let axes = self.make.ints(axes);
        self.op("ReduceMean", &[v, axes])
    }
    pub(super) fn layer_norm(&mut self) -> Result<Parts> {
        let (d, x, scale) = (self.d(), self.x(0), self.x(1));
        let dims = self.make.dims(x)?;
        let rank = dims.len() as i64;
        let axis = self.int("axis", -1);
        let axes: Vec<i64> = (from_end(axis, rank)..rank).collect();
        let eps = self.float("epsilon", f64::from(1e-5_f32));
        let mean = self.mean(x, &axes);
        let centred = self.op("Sub", &[x, mean]);
        let square = self.mul(centred, centred);
        let variance = self.mean(square, &axes);
        let eps = self.number(x, eps);
        let variance = self.op("Add", &[variance, eps]);
        let root = self.op("Sqrt", &[variance]);
        let normal = self.op("Div", &[centred, root]);
        let mut parts = vec![None, None, None];
        if self.wants(0) {
            let g = self.mul(d, scale);
            let both = self.mul(g, normal);
            let (level, slope) = (self.mean(g, &axes), self.mean(both, &axes));
            let slope = self.mul(normal, slope);
            let v = self.op("Sub", &[g, level]);
            let v = self.op("Sub", &[v, slope]);
            parts[0] = Some(self.op("Div", &[v, root]));
        }
        if self.wants(1) {
            let v = self.mul(d, normal);
            parts[1] = Some(self.narrowed(v, &dims, scale)?);
        }
        if self.wants(2) {
            let b = self.x(2);
            parts[2] = Some(self.narrowed(d, &dims, b)?);
        }
        Ok(parts)
    }
    pub(super) fn batch_norm(&mut self) -> Result<Parts> {
        if self.int("training_mode", 0) != 0
            || self.since() < 7 && self.int("is_test", 0) == 0
            || self.int("spatial", 1) == 0
            || self.wants(3)
            || self.wants(4)
        {
            return self.error("only that of inference is, and not by mean and variance").fail();
        }
        let (d, x) = (self.d(), self.x(0));
        let rank = self.make.dims(x)?.len() as i64;
        let behind: Vec<i64> = (1..rank - 1).collect();
        let others: Vec<i64> = (0..rank).filter(|a| *a != 1).collect();
        let eps = self.float("epsilon", f64::from(1e-5_f32));
        let column = |s: &mut Self, i: usize| -> Value {
            let v = s.x(i);
            if behind.is_empty() { v } else { s.unsqueezed(v, &behind) }
        };
        let (scale, mean, variance) = (column(self, 1), column(self, 3), column(self, 4));
        let eps = self.number(x, eps);
        let variance = self.op("Add", &[variance, eps]);
        let root = self.op("Sqrt", &[variance]);
        let mut parts = vec![None; 5];
        if self.wants(0) {
            let v = self.mul(d, scale);
            parts[0] = Some(self.op("Div", &[v, root]));
        }
        let centred = self.op("Sub", &[x, mean]);
        let normal = self.op("Div", &[centred, root]);
        let both = self.mul(d, normal);
        for (i, v) in [(1, both), (2, d)] {
            if self.wants(i) {
                let (sum, own) = (self.summed(v, &others), self.x(i));
                let shape = self.shape(own);
                parts[i] = Some(self.op("Reshape", &[sum, shape]));
            }
        }
        Ok(parts)
    }
    /// The adjoint of the scores; labels and weights have none.
    pub(super) fn loss(&mut self) -> Result<Parts> {
        if self.wants(2) {
            return self.error("the weights depend on xs").fail();
        }
        let (x, labels) = (self.x(0), self.x(1));
        let rank = self.make.dims(x)?.len() as i64;
        let cross = self.name() == "SoftmaxCrossEntropyLoss";
        let d = self.dy.first().copied().flatten();
        let mut total = None;
        if let Some(d) = d {
            let elem = self.make.elem(x);
            let of = self.make.elem(labels);
            let mut class = labels;
            let mut weight = self.filled_like_labels(labels, x);
            if let Some(skip) = self.node.int("ignore_index") {
                let skip = self.make.integer(skip);
                let skip = self.make.cast(skip, ElemType::I64, of);
                let ignored = self.op("Equal", &[labels, skip]);
                let zero = self.make.integer(0);
                let zero = self.make.cast(zero, ElemType::I64, of);
                class = self.op("Where", &[ignored, zero, labels]);
                let counted = self.op("Not", &[ignored]);
                weight = self.make.cast(counted, ElemType::Bool, elem);
            }
            if self.has(2) {
                let w = self.x(2);
                let own = self.op("Gather", &[w, class]);
                weight = self.mul(weight, own);
            }
            let pair = [self.number(x, 0.0), self.number(x, 1.0)];
            let mut both = vec![];
            for v in pair {
                both.push(self.unsqueezed(v, &[0]));
            }
            let values = self.make.with("Concat", vec![("axis", AttrValue::Int(0))], &both);
            let depth = self.make.sizes(x, 1, 2);
            let hot = self.make.with("OneHot", vec![("axis", AttrValue::Int(1))], &[class, depth, values]);
            let rest = if cross {
                let p = self.make.with("Softmax", vec![("axis", AttrValue::Int(1))], &[x]);
                self.op("Sub", &[p, hot])
            } else {
                self.op("Neg", &[hot])
            };
            let mut each = self.mul(weight, d);
            if self.text("reduction", "mean") == "mean" {
                let axes: Vec<i64> = (0..rank - 1).collect();
                let sum = self.summed(weight, &axes);
                each = self.op("Div", &[each, sum]);
            }
            let each = self.unsqueezed(each, &[1]);
            total = Some(self.mul(rest, each));
        }
        // The second result is the logarithm of the probabilities.
        if let Some(d) = self.dy.get(1).copied().flatten() {
            let p = self.make.with("Softmax", vec![("axis", AttrValue::Int(1))], &[x]);
            let sum = self.summed(d, &[1]);
            let v = self.mul(p, sum);
            let v = self.op("Sub", &[d, v]);
            total = Some(match total {
                Some(t) => self.op("Add", &[t, v]),
                None => v,
            });
        }
        Ok(vec![total, None, None])
    }
    /// Ones of the type of `x`, one per label.
    fn filled_like_labels(&mut self, labels: Value, x: Value) -> Value {
        let (one, shape) = (self.number(x, 1.0), self.shape(labels));
        self.op("Expand", &[one, shape])
    }
}
