//! Contractions as operators write them: matrix products, convolutions and pooling, some with an activation
//! behind; of bytes, too, whose sums are i32 and whose results are quantized again.

use crate::modules::Gen;
use onnxc::diag::Origin;
use onnxc::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use onnxc::sym::Dim;
use onnxc::tensor::{ConstData, ElemType as T};
use std::sync::Arc;

impl Gen {
    fn contracted(&mut self) -> T {
        self.r.of(&[T::F32, T::F32, T::F32, T::F32, T::F32, T::F16, T::BF16, T::F64, T::I32, T::U8, T::I8])
    }
    pub fn matmul(&mut self) {
        let a = self.pick(2, |t| t.is_float() || matches!(t, T::I32 | T::U8 | T::I8));
        let stored = self.m.bufs[a].ty;
        let da = self.dims(a);
        let (ta, tb) = (self.r.chance(20), self.r.chance(40));
        let (r, batch) = (da.len(), da[..da.len() - 2].to_vec());
        let (m, depth) = if ta { (da[r - 1], da[r - 2]) } else { (da[r - 2], da[r - 1]) };
        let n = self.size();
        let own = self.r.chance(50);
        let mut db = if own { batch.clone() } else { vec![] };
        db.extend(if tb { [n, depth] } else { [depth, n] });
        let other = self.other(stored);
        let b = self.source(other, &db, None);
        let mut out = batch.clone();
        out.extend([m, n]);
        let (ty, stored) = sums_of(stored);
        let exact = self.exact(a) && !ty.is_float();
        let bias = if self.r.chance(40) { Some(self.source(stored, &[n], None)) } else { None };
        let y = self.out(stored, &out, exact);
        self.m.kernel("matmul", &Origin::default(), |k| {
            k.nest(LoopKind::Par, &out, |k, at| {
                let (batch, row, col) = (&at[..r - 2], at[r - 2], at[r - 1]);
                let acc = k.acc(Expr::num(ty, 0.0));
                k.nest(LoopKind::Seq, &[depth], |k, d| {
                    let mut ia = batch.to_vec();
                    ia.extend(if ta { [d[0], row] } else { [row, d[0]] });
                    let mut ib = if own { batch.to_vec() } else { vec![] };
                    ib.extend(if tb { [col, d[0]] } else { [d[0], col] });
                    let (va, vb) = (term(k, a, &ia), term(k, b, &ib));
                    k.set(acc, product_sum(ty, va, vb, Expr::acc(acc)));
                });
                let v = match bias {
                    Some(c) => Expr::acc(acc) + k.load_broadcast(c, at),
                    None => Expr::acc(acc),
                };
                k.store(y, at, v);
            });
        });
        self.behind(y, other);
    }
    /// What stands behind a contraction with weights of a type.
    fn behind(&mut self, y: Buf, weights: T) {
        if !byte(weights) || self.r.chance(30) {
            return self.relu(y);
        }
        let (dims, to) = (self.dims(y), self.r.of(&[T::U8, T::I8]));
        let q = self.out(to, &dims, true);
        let zero = self.r.of(&[0.0, 3.0, -128.0]);
        let (scale, by) = (self.r.of(&[0.0078125, 0.013]), self.r.of(&[1.0, 0.37]));
        // Scales of channels follow from constants.
        let along =
            dims.iter().position(|d| d.as_const().is_some_and(|n| n > 1)).filter(|_| self.r.chance(50));
        let scales = along.map(|d| {
            let n = dims[d].as_const().unwrap_or(1);
            let values: Vec<f32> = (0..n).map(|i| 0.01 + i as f32 * 0.003).collect();
            (d, self.m.constant("scales", Arc::new(ConstData::f32s(vec![n], &values))))
        });
        self.m.map(q, &Origin::default(), |k, at| {
            let each = scales.map_or(Expr::f32(1.0), |(d, b)| k.load(b, &[at[d]]));
            let v = Expr::cast(T::I32, T::F32, k.load(y, at)) * (Expr::f32(scale) * each / Expr::f32(by));
            requantized(to, v, zero)
        });
        if self.r.chance(40) {
            let z = self.out(to, &dims, true);
            self.m.map(z, &Origin::default(), |k, at| k.load(q, at).max(Expr::int(to, 5)));
        }
        if self.r.chance(40) {
            let z = self.out(to, &dims, true);
            let (s, t, u) = self.r.of(&[(0.5, 0.25, 0.5), (0.0123, 0.0457, 0.0311), (0.1, 0.1, 0.1)]);
            self.m.map(z, &Origin::default(), |k, at| {
                let term = |k: &KernelBuilder, zero: i64, s: f32| {
                    Expr::cast(
                        T::I32,
                        T::F32,
                        Expr::cast(to, T::I32, k.load(q, at)) - Expr::int(T::I32, zero),
                    ) * Expr::f32(s)
                };
                requantized(to, (term(k, 3, s) + term(k, -7, t)) / Expr::f32(u), 2.0)
            });
        }
    }
    /// Bytes are multiplied by bytes of either sign.
    fn other(&mut self, t: T) -> T {
        if byte(t) { self.r.of(&[T::I8, T::I8, T::U8]) } else { t }
    }
    /// An activation, now and then: what epilogues are made of.
    fn relu(&mut self, x: Buf) {
        if !self.r.chance(40) {
            return;
        }
        let x = if self.r.chance(35) { self.view_of(x) } else { x };
        let (dims, ty, exact) = (self.dims(x), self.m.bufs[x].ty, self.exact(x));
        let y = self.out(ty, &dims, exact);
        self.m.map(y, &Origin::default(), |k, at| k.load(x, at).max(Expr::num(ty.compute(), 0.0)));
    }
    pub fn conv(&mut self) {
        let stored = self.contracted();
        let spatial = 1 + self.r.below(2);
        let group = self.r.of(&[1, 1, 1, 2, 3]);
        let (ci, co) = (self.r.between(1, 5), self.r.of(&[1, 2, 3, 4, 7, 8, 16]));
        let (fill, (ty, result)) = (stored.compute(), sums_of(stored));
        let latest = self.values.last().map(|v| v.buf).filter(|b| {
            self.r.0 & 4 == 0
                && self.m.bufs[*b].ty == stored
                && self.dims(*b).len() == 2 + spatial
                && self.dims(*b)[1].as_const().is_some_and(|c| c > 0)
        });
        let (x, ci, group) = match latest {
            Some(b) => (b, self.dims(b)[1].as_const().unwrap_or(1), 1),
            None => {
                let mut dims = vec![self.size(), Dim::constant(ci * group)];
                dims.extend((0..spatial).map(|_| self.size()));
                (self.source(stored, &dims, None), ci, group)
            }
        };
        let dx = self.dims(x);
        let (kernel, stride, dilation) = (self.r.between(1, 3), self.r.between(1, 2), self.r.between(1, 2));
        // Enough padding that there is at least one window.
        let pad = (kernel - 1) * dilation;
        let pad = if self.r.chance(30) && dx[2..].iter().all(|d| d.as_const().is_some_and(|c| c > pad)) {
            0
        } else {
            pad
        };
        let depthwise = ci == 1;
        let mut dw = vec![Dim::constant(co * group), Dim::constant(ci)];
        dw.extend((0..spatial).map(|_| Dim::constant(kernel)));
        let other = self.other(stored);
        let w = self.source(other, &dw, None);
        self.values.pop();
        let src = if pad == 0 {
            x
        } else {
            let mut wide = dx[..2].to_vec();
            wide.extend(dx[2..].iter().map(|d| *d + 2 * pad));
            let b = self.m.temp("padded", stored, wide);
            self.m.map(b, &Origin::default(), |k, at| {
                let mut from = at[..2].to_vec();
                let mut inside = Expr::bool(true);
                for i in 2..at.len() {
                    from.push(at[i] - pad);
                    inside = inside.and(Expr::cmp_index(BinOp::Ge, at[i] - pad, 0)).and(Expr::cmp_index(
                        BinOp::Lt,
                        at[i] - pad,
                        dx[i],
                    ));
                }
                Expr::select(inside, k.load(x, &from), Expr::num(fill, 0.0))
            });
            b
        };
        let wide = self.dims(src);
        let mut dy = vec![dx[0], Dim::constant(co * group)];
        dy.extend(wide[2..].iter().map(|d| (*d - ((kernel - 1) * dilation + 1)).floor_div(stride) + 1));
        let bias = if self.r.chance(50) { Some(self.source(result, &[dy[1]], None)) } else { None };
        let exact = self.exact(x) && !ty.is_float();
        let y = self.out(result, &dy, exact);
        let mut out = vec![dy[0], Dim::constant(group), Dim::constant(co)];
        out.extend_from_slice(&dy[2..]);
        let depth = dw[1..].to_vec();
        // Pooling has no weights: the same windows, their largest value.
        let pool = depthwise && co == 1 && self.r.chance(50);
        self.m.kernel("conv", &Origin::default(), |k| {
            k.nest(LoopKind::Par, &out, |k, o| {
                let (g, oc) = (o[1], o[1] * co + o[2]);
                let acc = k.acc(if pool { Scalar::lowest(ty).into() } else { Expr::num(ty, 0.0) });
                k.nest(LoopKind::Seq, &depth, |k, r| {
                    let mut at = vec![o[0], g * ci + r[0]];
                    at.extend((0..spatial).map(|i| o[3 + i] * stride + r[1 + i] * dilation));
                    let mut wt = vec![oc];
                    wt.extend_from_slice(r);
                    let (a, b) = (term(k, src, &at), term(k, w, &wt));
                    if pool {
                        k.update(BinOp::Max, acc, a);
                    } else {
                        k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
                    }
                });
                let v = Expr::acc(acc);
                let v = match bias {
                    Some(b) => v + k.load(b, &[oc]),
                    None => v,
                };
                let mut to = vec![o[0], oc];
                to.extend_from_slice(&o[3..]);
                k.store(y, &to, v);
            });
        });
        self.behind(y, other);
    }
}

/// A number quantized to bytes.
fn requantized(to: T, v: Expr, zero: f64) -> Expr {
    let (lo, hi) = (Scalar::lowest(to).to_f64(), Scalar::highest(to).to_f64());
    let v = Expr::un(UnOp::Round, v) + Expr::num(T::F32, zero);
    Expr::cast(T::F32, to, v.max(Expr::num(T::F32, lo)).min(Expr::num(T::F32, hi)))
}

fn byte(t: T) -> bool {
    matches!(t, T::U8 | T::I8)
}

/// Compute and storage type of sums of products of a type.
fn sums_of(stored: T) -> (T, T) {
    if byte(stored) { (T::I32, T::I32) } else { (stored.compute(), stored) }
}

/// An operand, extended if it is a byte.
fn term(k: &KernelBuilder, b: Buf, at: &[Dim]) -> Expr {
    let v = k.load(b, at);
    if byte(k.m.bufs[b].ty) { Expr::cast(k.m.bufs[b].ty, T::I32, v) } else { v }
}

fn product_sum(ty: T, a: Expr, b: Expr, acc: Expr) -> Expr {
    if ty.is_float() { Expr::fma(a, b, acc) } else { a * b + acc }
}
