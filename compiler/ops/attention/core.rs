//! The common part of all attention operators: scores as one contraction, a guarded softmax over rows, and a
//! second contraction with the values. Masks and biases are map kernels in between, so that they are fused
//! into the store of the scores.

use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Scalar, UnOp};
use crate::ops::LowerCx;
use crate::ops::matmul::product_sum;
use crate::sym::Dim;
use crate::tensor::ElemType;

/// The layout of queries, keys or values in a buffer.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// [batch, head, position, element]
    Heads,
    /// [batch, position, hidden]; heads of `size` elements are consecutive from `offset` on.
    Hidden {
        /// Elements per head.
        size: Dim,
        /// Position of the first head.
        offset: Dim,
    },
    /// [batch, position, head, part, element], with several parts (queries, keys, values) in one buffer.
    Parts(i64),
    /// [part, batch, head, position, element]
    Stacked(i64),
}

/// Queries, keys or values.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The buffer.
    pub buf: Buf,
    /// Its layout.
    pub form: Form,
}

impl Operand {
    /// An operand of rank 3 or 4, with the layout given by its shape.
    pub fn of_rank(cx: &LowerCx, buf: Buf, size: Dim) -> Operand {
        let form = if cx.dims(buf).len() == 4 {
            Form::Heads
        } else {
            Form::Hidden { size, offset: Dim::constant(0) }
        };
        Operand { buf, form }
    }
    /// The subscripts of an element.
    pub fn at(&self, b: Dim, head: Dim, position: Dim, element: Dim) -> Vec<Dim> {
        match self.form {
            Form::Heads => vec![b, head, position, element],
            Form::Hidden { size, offset } => vec![b, position, head * size + element + offset],
            Form::Parts(p) => vec![b, position, head, Dim::constant(p), element],
            Form::Stacked(p) => vec![Dim::constant(p), b, head, position, element],
        }
    }
    /// Reads an element.
    pub fn load(&self, k: &KernelBuilder, b: Dim, head: Dim, position: Dim, element: Dim) -> Expr {
        k.load(self.buf, &self.at(b, head, position, element))
    }
}

/// Sizes of one attention.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Batch.
    pub batch: Dim,
    /// Heads of keys and values.
    pub kv_heads: Dim,
    /// Query heads per key head.
    pub shared: Dim,
    /// Positions of queries.
    pub queries: Dim,
    /// Positions of keys and values.
    pub keys: Dim,
    /// Elements of a query and of a key.
    pub size: Dim,
    /// Elements of a value.
    pub value_size: Dim,
}

impl Sizes {
    /// Query heads.
    pub fn heads(&self) -> Dim {
        self.kv_heads * self.shared
    }
    /// Shape of the scores.
    pub fn scores(&self) -> Vec<Dim> {
        vec![self.batch, self.heads(), self.queries, self.keys]
    }
}

/// Computes scale * q . k for all pairs, [batch, head, query, key].
pub fn scores(cx: &mut LowerCx, s: &Sizes, q: Operand, key: Operand, scale: Expr, ty: ElemType) -> Buf {
    let out = cx.temp("scores", ty, s.scores());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[s.batch, s.kv_heads, s.shared, s.queries, s.keys], |k, o| {
            let head = o[1] * s.shared + o[2];
            let acc = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[s.size], |k, r| {
                let (a, b) = (q.load(k, o[0], head, o[3], r[0]), key.load(k, o[0], o[1], o[4], r[0]));
                k.set(acc, product_sum(ty, a, b, Expr::acc(acc)));
            });
            k.store(out, &[o[0], head, o[3], o[4]], Expr::acc(acc) * scale);
        });
    });
    out
}

/// limit * tanh(x / limit)
pub fn softcap(ty: ElemType, x: Expr, limit: f64) -> Expr {
    Expr::un(UnOp::Tanh, x / Expr::num(ty, limit)) * Expr::num(ty, limit)
}

/// -inf
pub fn masked(ty: ElemType) -> Expr {
    Scalar::lowest(ty).into()
}

/// Computes a value for a row, given its indices.
pub type Sink<'a> = &'a dyn Fn(&mut KernelBuilder, &[Dim]) -> Expr;

/// Softmax over the last dimension. If `guard`, a row of only -inf becomes 0. `sink` is an additional term of
/// the sum.
pub fn softmax(cx: &mut LowerCx, x: Buf, guard: bool, sink: Option<Sink>) -> Buf {
    let dims = cx.dims(x);
    let (rows, row) = dims.split_at(dims.len() - 1);
    let ty = cx.elem(x).compute();
    let y = cx.temp("probabilities", ty, dims.clone());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, rows, |k, o| {
            let at = |r: &[Dim]| -> Vec<Dim> { o.iter().chain(r).copied().collect() };
            let sink = sink.map(|f| {
                let v = f(k, o);
                k.let_(v)
            });
            let top = k.acc(sink.clone().unwrap_or(masked(ty)));
            k.nest(LoopKind::Seq, row, |k, r| {
                let v = k.load(x, &at(r));
                k.update(BinOp::Max, top, v);
            });
            // exp(-inf - 0) is 0, while exp(-inf - -inf) is NaN.
            let dead = Expr::bin(BinOp::Eq, Expr::acc(top), masked(ty));
            let base = if guard {
                k.let_(Expr::select(dead, Expr::num(ty, 0.0), Expr::acc(top)))
            } else {
                Expr::acc(top)
            };
            let first = sink.map_or(Expr::num(ty, 0.0), |s| Expr::un(UnOp::Exp, s - base.clone()));
            let sum = k.acc(first);
            k.nest(LoopKind::Seq, row, |k, r| {
                let v = Expr::un(UnOp::Exp, k.load(x, &at(r)) - base.clone());
                let v = k.let_(v);
                k.store(y, &at(r), v.clone());
                k.update(BinOp::Add, sum, v);
            });
            let one = Expr::num(ty, 1.0);
            let empty = Expr::bin(BinOp::Eq, Expr::acc(sum), Expr::num(ty, 0.0));
            let total = if guard { Expr::select(empty, one.clone(), Expr::acc(sum)) } else { Expr::acc(sum) };
            let scale = k.let_(one / total);
            k.nest(LoopKind::Seq, row, |k, r| {
                let v = k.load(y, &at(r)) * scale.clone();
                k.store(y, &at(r), v);
            });
        });
    });
    y
}

/// Computes y = probabilities . values.
pub fn values(cx: &mut LowerCx, s: &Sizes, probabilities: Buf, value: Operand, y: Operand) {
    let ty = cx.elem(y.buf).compute();
    let own = cx.elem(probabilities).compute();
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[s.batch, s.kv_heads, s.shared, s.queries, s.value_size], |k, o| {
            let head = o[1] * s.shared + o[2];
            let acc = k.acc(Expr::num(ty, 0.0));
            k.nest(LoopKind::Seq, &[s.keys], |k, r| {
                let a = Expr::cast(own, ty, k.load(probabilities, &[o[0], head, o[3], r[0]]));
                let b = value.load(k, o[0], o[1], r[0], o[4]);
                let bty = k.m.type_of(&b);
                k.set(acc, product_sum(ty, a, Expr::cast(bty, ty, b), Expr::acc(acc)));
            });
            k.store(y.buf, &y.at(o[0], head, o[3], o[4]), Expr::acc(acc));
        });
    });
}

/// The past and new keys (or values) in one buffer [batch, head, position, element] of shape `dims`:
/// `wanted`, or a temporary. Without a past and if the result is not used, the new ones alone.
pub fn present(
    cx: &mut LowerCx,
    name: &str,
    wanted: Option<Buf>,
    past: Option<Buf>,
    new: Operand,
    dims: [Dim; 4],
) -> Operand {
    if wanted.is_none() && past.is_none() {
        return new;
    }
    let [batch, heads, positions, size] = dims;
    let out = match wanted {
        Some(b) => b,
        None => {
            let elem = cx.elem(new.buf);
            cx.temp(name, elem, dims.to_vec())
        }
    };
    let before = past.map_or(Dim::constant(0), |p| cx.dims(p)[2]);
    // Two copies: a select per element would be slower than memory.
    if let Some(p) = past {
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[batch, heads, before, size], |k, at| {
                let v = k.load(p, at);
                k.store(out, at, v);
            });
        });
    }
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &[batch, heads, positions - before, size], |k, at| {
            let v = new.load(k, at[0], at[1], at[2], at[3]);
            k.store(out, &[at[0], at[1], at[2] + before, at[3]], v);
        });
    });
    Operand { buf: out, form: Form::Heads }
}
