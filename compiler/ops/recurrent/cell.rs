//! Loop nests of one direction: first the part that does not depend on the state, for all steps at once, then
//! the steps.
//!
//! ```text
//! kernel projection   par t, b, n   acc = sum over i of X[t, b, i] * W[n, i];  in[t, b, n] = acc + bias[n]
//! kernel steps        par b, h      state = initial state
//!                     seq t
//!                       par b, n    acc = sum over k of state[b, k] * R[n, k];  product[b, n] = acc
//!                       par b, h    gates from in[t, b, ..], product[b, ..];  state[b, h], Y[t, b, h] = ...
//!                     par b, h      last state = state
//! ```
//!
//! Both sums are contractions in the form of `matmul`, the second one with the rows of all gates adjacent in
//! `n`, and the gates are a map: a step consists of nests that other operators use as well. The state is one
//! scratch buffer that each step overwrites, because no nest both reads it across units and writes it.

use super::super::LowerCx;
use super::super::matmul::product_sum;
use super::{Direction, Kind, Recurrent};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind};
use crate::sym::Dim;
use crate::tensor::consts::Remap;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// One direction of one node.
struct Cell<'a> {
    op: &'a Recurrent,
    direction: &'a Direction,
    /// Index of the direction.
    d: Dim,
    ty: ElemType,
    batch: Dim,
    hidden: Dim,
    /// Recurrence weights, and the position of this direction's.
    r: (Buf, Vec<Dim>),
    /// The contribution of the input to the gates, including biases: `[steps, batch, gates * hidden]`.
    projection: Buf,
    /// The contribution of the state to the gates: `[batch, gates * hidden]`.
    product: Buf,
    /// Hidden and cell state (LSTM) or reset state (GRU): `[batch, hidden]`.
    state: Buf,
    second: Option<Buf>,
    bias: Option<Buf>,
    lengths: Option<Buf>,
    peepholes: Option<Buf>,
    y: Option<Buf>,
}

/// Emits the kernels of direction `d`.
pub fn lower(cx: &mut LowerCx, op: &Recurrent, d: usize, direction: &Direction) {
    let (x, w, r) = (cx.input(0), cx.input(1), cx.input(2));
    let (bias, lengths, peepholes) = (cx.input_opt(3), cx.input_opt(4), cx.input_opt(7));
    let initial = [cx.input_opt(5), cx.input_opt(6)];
    let (y, last) = (cx.output_opt(0), [cx.output_opt(1), cx.output_opt(2)]);
    let (dx, dr) = (cx.dims(x), cx.dims(r));
    let (steps, batch) = if op.batch_first { (dx[1], dx[0]) } else { (dx[0], dx[1]) };
    let hidden = op.hidden.map_or(dr[2], Dim::constant);
    let rows = hidden * op.kind.gates();
    let ty = cx.elem(x).compute();
    let name = |s: &str| if d == 0 { s.to_owned() } else { format!("{s}.{d}") };
    let projection = cx.temp(&name("projection"), ty, op.step(steps, batch, rows));
    let product = cx.temp(&name("product"), ty, vec![batch, rows]);
    let state = cx.temp(&name("state"), ty, vec![batch, hidden]);
    let second = match op.kind {
        Kind::Lstm { .. } => Some(cx.temp(&name("cell"), ty, vec![batch, hidden])),
        Kind::Gru { linear_before_reset: false } => Some(cx.temp(&name("reset"), ty, vec![batch, hidden])),
        _ => None,
    };
    let r = recurrence(cx, r, d);
    let cell = Cell {
        op,
        direction,
        d: Dim::from(d),
        ty,
        batch,
        hidden,
        r,
        projection,
        product,
        state,
        second,
        bias,
        lengths,
        peepholes,
        y,
    };
    let sum = bias.map(|b| {
        let sum = cx.temp(&name("bias"), ty, vec![rows]);
        cx.map(sum, |k, at| cell.bias_before(k, b, at[0], rows));
        sum
    });
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &op.step(steps, batch, rows), |k, at| {
            let acc = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &dx[2..], |k, i| {
                let v = product_sum(
                    ty,
                    k.load(x, &[at[0], at[1], i[0]]),
                    k.load(w, &[cell.d, at[2], i[0]]),
                    Expr::acc(acc),
                );
                k.set(acc, v);
            });
            let v = match sum {
                Some(b) => Expr::acc(acc) + k.load(b, &[at[2]]),
                None => Expr::acc(acc),
            };
            k.store(projection, at, v);
        });
    });
    let states: Vec<(Buf, Option<Buf>, Option<Buf>)> = match op.kind {
        Kind::Lstm { .. } => [Some(state), second]
            .into_iter()
            .flatten()
            .zip(initial)
            .zip(last)
            .map(|((s, i), l)| (s, i, l))
            .collect(),
        _ => vec![(state, initial[0], last[0])],
    };
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[batch, hidden], |k, at| {
            for (s, initial, _) in &states {
                let v = match initial {
                    Some(i) => k.load(*i, &op.states(cell.d, at[0], at[1])),
                    None => Expr::num(ty, 0.0),
                };
                k.store(*s, at, v);
            }
        });
        k.range(LoopKind::Seq, "t", 0, steps, |k, t| {
            let time = if direction.reverse { steps - 1 - t } else { t };
            match op.kind {
                Kind::Rnn => cell.rnn(k, time),
                Kind::Gru { linear_before_reset } => cell.gru(k, time, linear_before_reset),
                Kind::Lstm { input_forget } => cell.lstm(k, time, input_forget),
            }
        });
        if states.iter().any(|s| s.2.is_some()) {
            k.nest(LoopKind::Par, &[batch, hidden], |k, at| {
                for (s, _, last) in &states {
                    if let Some(last) = last {
                        let v = k.load(*s, at);
                        k.store(*last, &op.states(cell.d, at[0], at[1]), v);
                    }
                }
            });
        }
    });
}

/// The recurrence weights of one direction. Constant ones are copied to a separate buffer, so that a
/// rearrangement copies no other direction.
fn recurrence(cx: &mut LowerCx, r: Buf, d: usize) -> (Buf, Vec<Dim>) {
    let alone = cx.constant(2).filter(|c| c.dims()[0] > 1).and_then(|c| {
        let coeff = vec![vec![0, 0], vec![1, 0], vec![0, 1]];
        let map = Remap { dims: c.dims()[1..].to_vec(), offset: vec![d as i64, 0, 0], coeff };
        ConstData::remap(c, map)
    });
    match alone {
        Some(c) => {
            let name = format!("{}.{d}", cx.m.bufs[r].name);
            (cx.m.constant(name, Arc::new(c)), vec![])
        }
        None => (r, vec![Dim::from(d)]),
    }
}

impl Cell<'_> {
    /// The part of the bias that is added in the projection.
    fn bias_before(&self, k: &KernelBuilder, b: Buf, n: Dim, rows: Dim) -> Expr {
        let (w, r) = (k.load(b, &[self.d, n]), k.load(b, &[self.d, rows + n]));
        match self.op.kind {
            // The bias of the hidden gate is multiplied by the reset gate.
            Kind::Gru { linear_before_reset: true } => {
                Expr::select(Expr::cmp_index(BinOp::Lt, n, self.hidden * 2), w.clone() + r, w)
            }
            _ => w + r,
        }
    }
    /// `product[b, n] = sum over k of from[b, k] * R[n, k]` for `n` in `gates` gates from `first` on.
    fn multiply(&self, k: &mut KernelBuilder, from: Buf, first: i64, gates: i64) {
        k.nest(LoopKind::Par, &[self.batch, self.hidden * gates], |k, at| {
            let row = at[1] + self.hidden * first;
            let acc = k.acc(Expr::num(self.ty, 0.0));
            k.nest(LoopKind::Seq, &[self.hidden], |k, i| {
                let weight = k.load(self.r.0, &[self.r.1.as_slice(), &[row, i[0]]].concat());
                let v = product_sum(self.ty, k.load(from, &[at[0], i[0]]), weight, Expr::acc(acc));
                k.set(acc, v);
            });
            k.store(self.product, &[at[0], row], Expr::acc(acc));
        });
    }
    fn units(&self, k: &mut KernelBuilder, f: impl FnOnce(&mut KernelBuilder, &[Dim])) {
        k.nest(LoopKind::Par, &[self.batch, self.hidden], f);
    }
    fn of_input(&self, k: &KernelBuilder, time: Dim, at: &[Dim], gate: i64) -> Expr {
        k.load(self.projection, &self.op.step(time, at[0], at[1] + self.hidden * gate))
    }
    fn of_state(&self, k: &KernelBuilder, at: &[Dim], gate: i64) -> Expr {
        k.load(self.product, &[at[0], at[1] + self.hidden * gate])
    }
    /// Activation `n` (f, g, h) of the clipped value.
    fn activate(&self, k: &mut KernelBuilder, n: usize, v: Expr) -> Expr {
        let v = match self.op.clip {
            Some(c) => v.max(Expr::num(self.ty, -f64::from(c))).min(Expr::num(self.ty, f64::from(c))),
            None => v,
        };
        let v = self.direction.activations[n].apply(k, self.ty, v);
        k.let_(v)
    }
    /// The new value of a state; beyond the sequence's length it is unchanged.
    fn inside(&self, k: &KernelBuilder, time: Dim, at: &[Dim], new: Expr, old: Buf) -> Expr {
        match self.within(k, time, at) {
            Some(c) => Expr::select(c, new, k.load(old, at)),
            None => new,
        }
    }
    /// The condition that the sequence has not ended, if sequences have lengths.
    fn within(&self, k: &KernelBuilder, time: Dim, at: &[Dim]) -> Option<Expr> {
        self.lengths.map(|b| {
            let n = Expr::cast(k.m.bufs[b].ty.compute(), ElemType::I64, k.load(b, &at[..1]));
            Expr::bin(BinOp::Lt, Expr::index(time), n)
        })
    }
    /// Stores the new hidden state and the output of the step, which is 0 beyond the sequence's length.
    fn finish(&self, k: &mut KernelBuilder, time: Dim, at: &[Dim], hidden: Expr) {
        let v = self.inside(k, time, at, hidden.clone(), self.state);
        k.store(self.state, at, v);
        if let Some(y) = self.y {
            let to =
                if self.op.batch_first { [at[0], time, self.d, at[1]] } else { [time, self.d, at[0], at[1]] };
            let v = match self.within(k, time, at) {
                Some(c) => Expr::select(c, hidden, Expr::num(self.ty, 0.0)),
                None => hidden,
            };
            k.store(y, &to, v);
        }
    }
    /// H = f(X W + H R + bias).
    fn rnn(&self, k: &mut KernelBuilder, time: Dim) {
        self.multiply(k, self.state, 0, 1);
        self.units(k, |k, at| {
            let sum = self.of_input(k, time, at, 0) + self.of_state(k, at, 0);
            let h = self.activate(k, 0, sum);
            self.finish(k, time, at, h);
        });
    }
    /// Gates z, r, h: H = (1 - z) * h + z * H.
    fn gru(&self, k: &mut KernelBuilder, time: Dim, linear_before_reset: bool) {
        let gate = |k: &mut KernelBuilder, at: &[Dim], n: i64| {
            let sum = self.of_input(k, time, at, n) + self.of_state(k, at, n);
            self.activate(k, 0, sum)
        };
        if linear_before_reset {
            self.multiply(k, self.state, 0, 3);
        } else if let Some(reset) = self.second {
            // The hidden gate reads the state multiplied by the reset gate.
            self.multiply(k, self.state, 0, 2);
            self.units(k, |k, at| {
                let r = gate(k, at, 1);
                let v = r * k.load(self.state, at);
                k.store(reset, at, v);
            });
            self.multiply(k, reset, 2, 1);
        }
        self.units(k, |k, at| {
            let mut product = self.of_state(k, at, 2);
            if linear_before_reset {
                if let Some(b) = self.bias {
                    product = product + k.load(b, &[self.d, at[1] + self.hidden * 5]);
                }
                product = gate(k, at, 1) * product;
            }
            let sum = self.of_input(k, time, at, 2) + product;
            let h = self.activate(k, 1, sum);
            let z = gate(k, at, 0);
            let old = k.load(self.state, at);
            let h = k.let_((Expr::num(self.ty, 1.0) - z.clone()) * h + z * old);
            self.finish(k, time, at, h);
        });
    }
    /// Gates i, o, f, c: C = f * C + i * c, H = o * h(C).
    fn lstm(&self, k: &mut KernelBuilder, time: Dim, input_forget: bool) {
        let Some(cell) = self.second else { return };
        self.multiply(k, self.state, 0, 4);
        self.units(k, |k, at| {
            // Peepholes: the gates i, o, f read the cell state.
            let sum = |k: &KernelBuilder, n: i64, cell: Option<&Expr>| {
                let v = self.of_input(k, time, at, n) + self.of_state(k, at, n);
                match (self.peepholes, cell) {
                    (Some(p), Some(c)) => v + k.load(p, &[self.d, at[1] + self.hidden * n]) * c.clone(),
                    _ => v,
                }
            };
            let old = k.load(cell, at);
            let old = k.let_(old);
            let i = sum(k, 0, Some(&old));
            let i = self.activate(k, 0, i);
            let f = if input_forget {
                Expr::num(self.ty, 1.0) - i.clone()
            } else {
                let f = sum(k, 2, Some(&old));
                self.activate(k, 0, f)
            };
            let c = sum(k, 3, None);
            let c = self.activate(k, 1, c);
            let new = k.let_(f * old + i * c);
            let o = sum(k, 1, Some(&new));
            let o = self.activate(k, 0, o);
            // Overwrites its input.
            k.store(self.product, &[at[0], at[1] + self.hidden], o);
            let new = self.inside(k, time, at, new, cell);
            k.store(cell, at, new);
        });
        // A separate nest, because it depends on the new cell state.
        self.units(k, |k, at| {
            let new = k.load(cell, at);
            let h = self.activate(k, 2, new);
            let h = k.let_(self.of_state(k, at, 1) * h);
            self.finish(k, time, at, h);
        });
    }
}
