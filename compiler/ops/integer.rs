//! Matrix products of quantized operands: MatMulInteger, QLinearMatMul, and of com.microsoft QGemm,
//! MatMulIntegerToFloat and DynamicQuantizeMatMul.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__MatMulInteger.html>, `QLinearMatMul` (10; 21: 8-bit floats and
//! 16-bit scales), <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>.
//!
//! An **integer contraction** is a `par` nest over the result around
//!
//! ```text
//! acc %s: i32 = 0
//! seq k..: %s = Cast(i32, A[..]) * Cast(i32, B[..]) + %s      -- A, B: u8 or i8, nothing but the loads
//! store ...
//! ```
//!
//! (`conv` in its integer form has one `seq` loop for the channels and one per spatial axis.) A schedule can
//! recognise it and use dot-product instructions (`passes/nest/quantize/integer_dot`). Zero points are
//! handled outside, because `sum (a - za)(b - zb) = sum ab - zb * sum a - za * sum (b - zb)`: the sums of
//! constant weights are constants, and those of `a` are needed only if `zb` is not zero. All of it is exact
//! modulo 2^32, as the specification requires.

use super::quantize::{all_zero, dynamic, dynamic_range, quantized};
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Buf, Expr, KernelBuilder, LoopKind, Module};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Integer {
    MatMulInteger,
    QLinearMatMul,
    QGemm { alpha: f32, trans_a: bool, trans_b: bool },
    ToFloat,
    Dynamic,
}

/// The roles of the operator's inputs; 99 means none.
struct Roles {
    b: usize,
    scales: (usize, usize),
    zeros: (usize, usize),
    bias: usize,
    y: (usize, usize),
}

const NONE: usize = 99;

impl Integer {
    fn roles(&self) -> Roles {
        match self {
            Integer::MatMulInteger => {
                Roles { b: 1, scales: (NONE, NONE), zeros: (2, 3), bias: NONE, y: (NONE, NONE) }
            }
            Integer::QLinearMatMul => Roles { b: 3, scales: (1, 4), zeros: (2, 5), bias: NONE, y: (6, 7) },
            Integer::QGemm { .. } => Roles { b: 3, scales: (1, 4), zeros: (2, 5), bias: 6, y: (7, 8) },
            Integer::ToFloat => Roles { b: 1, scales: (2, 3), zeros: (4, 5), bias: 6, y: (NONE, NONE) },
            Integer::Dynamic => Roles { b: 1, scales: (NONE, 2), zeros: (NONE, 3), bias: 4, y: (NONE, NONE) },
        }
    }
    fn trans(&self) -> (bool, bool) {
        match self {
            Integer::QGemm { trans_a, trans_b, .. } => (*trans_a, *trans_b),
            _ => (false, false),
        }
    }
}

impl Operator for Integer {
    const OPS: &'static [&'static str] = &[
        "MatMulInteger",
        "QLinearMatMul",
        "com.microsoft:QGemm",
        "com.microsoft:MatMulIntegerToFloat",
        "com.microsoft:DynamicQuantizeMatMul",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "MatMulInteger" => Integer::MatMulInteger,
            "QLinearMatMul" => Integer::QLinearMatMul,
            "QGemm" => Integer::QGemm {
                alpha: a.float("alpha", 1.0),
                trans_a: a.flag("transA", false),
                trans_b: a.flag("transB", false),
            },
            "MatMulIntegerToFloat" => Integer::ToFloat,
            _ => Integer::Dynamic,
        })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let r = self.roles();
        let (a, b) = (cx.tensor(0).clone(), cx.tensor(r.b).clone());
        cx.require(a.rank() != 0 && b.rank() != 0, codes::OP_SHAPE, "matrices are multiplied, not scalars")?;
        if matches!(self, Integer::QGemm { .. }) && (a.rank() != 2 || b.rank() != 2) {
            return cx.error(codes::OP_SHAPE, "QGemm multiplies matrices").fail();
        }
        let (ta, tb) = self.trans();
        let ((m, ka), (n, kb)) = (rows_and_depth(&a.dims, ta), columns_and_depth(&b.dims, tb));
        cx.require_eq(ka, kb, "the inner dimensions differ");
        let batch =
            cx.broadcast(&[&a.dims[..a.rank().saturating_sub(2)], &b.dims[..b.rank().saturating_sub(2)]])?;
        for (i, size, what) in [
            (r.zeros.0, m, "rows"),
            (r.zeros.1, n, "columns"),
            (r.scales.0, m, "rows"),
            (r.scales.1, n, "columns"),
        ] {
            let Some(t) = cx.tensor_opt(i).cloned() else { continue };
            if t.dims.iter().all(|d| d.as_const() == Some(1)) {
                continue;
            }
            let Some(size) = size else {
                return cx
                    .error(codes::OP_SHAPE, format!("input {i} must be a scalar: a vector has no {what}"))
                    .fail();
            };
            let along = match t.rank() {
                1 => t.dims[0],
                n if what == "rows" => t.dims[n - 2],
                n => t.dims[n - 1],
            };
            cx.require_repeatable(
                along,
                size,
                &format!("input {i} must have one value for all or one for each of the {what}"),
            );
        }
        let dims: Vec<Dim> = batch.into_iter().chain(m).chain(n).collect();
        if let Some(t) = cx.tensor_opt(r.bias).cloned() {
            let shape = cx.broadcast(&[&dims, &t.dims])?;
            for (x, y) in shape.iter().zip(&dims) {
                cx.require_eq(*x, *y, "the bias must broadcast to the result");
            }
        }
        let elem = match self {
            Integer::MatMulInteger => ElemType::I32,
            Integer::QLinearMatMul => cx.tensor(7).elem,
            Integer::QGemm { .. } => cx.tensor_opt(8).map_or(ElemType::F32, |t| t.elem),
            Integer::ToFloat => cx.tensor(2).elem,
            Integer::Dynamic => ElemType::F32,
        };
        if matches!(self, Integer::QGemm { .. }) && cx.has(7) != cx.has(8) {
            return cx.error(codes::OP_ARITY, "QGemm takes y_scale and y_zero_point together").fail();
        }
        cx.set(0, elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let r = self.roles();
        let (x, b, y) = (cx.input(0), cx.input(r.b), cx.output(0));
        let (ta, tb) = self.trans();
        let mut scales = (cx.input_opt(r.scales.0), cx.input_opt(r.scales.1));
        let mut zeros = (cx.input_opt(r.zeros.0), cx.input_opt(r.zeros.1));
        let a = if let Integer::Dynamic = self {
            let (scale, zero) = dynamic_range(cx, x);
            let dims = cx.dims(x);
            let q = cx.temp("quantized", ElemType::U8, dims);
            cx.map(q, |k, at| dynamic(k, x, at, scale, zero));
            (scales.0, zeros.0) = (Some(scale), Some(zero));
            q
        } else {
            x
        };
        let (b, zb) = signed_weights(cx.m, b, zeros.1.take());
        let p = Product { a, b, za: zeros.0.take(), zb, ta, tb };
        let bias = cx.input_opt(r.bias);
        let out = (cx.input_opt(r.y.0), cx.input_opt(r.y.1));
        let (to, alpha) = (cx.elem(y), if let Integer::QGemm { alpha, .. } = self { *alpha } else { 1.0 });
        p.lower(cx, y, |k, place, acc| {
            let ty = k.m.type_of(&acc);
            // An integer bias has the scale of the sum.
            let (bias_int, bias_float) = match bias {
                Some(b) if k.m.bufs[b].ty.is_int() => (Some(b), None),
                b => (None, b),
            };
            let at = place.at.clone();
            let total = match bias_int {
                Some(b) => acc + k.load_broadcast(b, &at),
                None => acc,
            };
            let (Some(sa), Some(sb)) = scales else { return total };
            let mut scale = place.row_value(k, sa) * place.column_value(k, sb);
            if alpha != 1.0 {
                scale = Expr::f32(alpha) * scale;
            }
            let v = Expr::cast(ty, ElemType::F32, total);
            match out {
                (Some(sy), Some(zy)) => requantized(k, v, scale, sy, zy, to),
                _ => {
                    let v = v * scale;
                    match bias_float {
                        Some(b) => v + k.load_broadcast(b, &at),
                        None => v,
                    }
                }
            }
        });
        Ok(())
    }
}

/// `v * scale / sy` rounded and saturated to the type of the zero point `zy`.
pub fn requantized(k: &KernelBuilder, v: Expr, scale: Expr, sy: Buf, zy: Buf, to: ElemType) -> Expr {
    let q = v * (scale / first(k, sy));
    let f = ElemType::F32;
    if to.is_int() {
        let zero = Expr::cast(to, f, first(k, zy));
        return quantized(f, to, q, Some(zero));
    }
    super::cast::saturated(to, q + first(k, zy))
}

/// Constant weights of unsigned bytes and their zero point as signed bytes, both 128 less: the difference is
/// the same, and more dot products take signed weights. Others are returned as they are.
pub fn signed_weights(m: &mut Module, w: Buf, zero: Option<Buf>) -> (Buf, Option<Buf>) {
    let read = |b: Buf| m.constant_as_read(b).filter(|c| c.elem() == ElemType::U8);
    let less = |c: &ConstData| {
        let bytes: Vec<u8> = c.bytes().iter().map(|v| v ^ 0x80).collect();
        ConstData::new(ElemType::I8, c.dims().to_vec(), bytes).map(Arc::new)
    };
    let large = read(w).filter(|c| c.bytes().iter().any(|v| *v >= 0x80));
    let Some(weights) = large.and_then(|c| less(&c)) else { return (w, zero) };
    let zeros = match zero {
        Some(z) => read(z).and_then(|c| less(&c)),
        None => ConstData::new(ElemType::I8, vec![], vec![0x80]).map(Arc::new),
    };
    let Some(zeros) = zeros else { return (w, zero) };
    let name = m.bufs[w].name.clone();
    let of_zero = format!("{name}.zero");
    let zero = m.constant(of_zero, zeros);
    (m.constant(name, weights), Some(zero))
}

/// The one element of a buffer.
pub fn first(k: &KernelBuilder, b: Buf) -> Expr {
    k.load(b, &vec![Dim::constant(0); k.m.bufs[b].dims.len()])
}

/// The subscript of a dimension that is broadcast if its size is 1.
pub fn repeated(k: &KernelBuilder, i: Dim, size: Dim) -> Dim {
    match size.as_const() {
        Some(1) => Dim::constant(0),
        _ if k.m.syms.in_range(i, size) => i,
        _ => i * crate::sym::broadcast::stride_factor(size),
    }
}

/// Rows of a left operand, if it has any, and its depth.
fn rows_and_depth(d: &[Dim], trans: bool) -> (Option<Dim>, Dim) {
    match d {
        [.., m, k] => {
            if trans {
                (Some(*k), *m)
            } else {
                (Some(*m), *k)
            }
        }
        d => (None, d.first().copied().unwrap_or_default()),
    }
}

/// Columns of a right operand, if it has any, and its depth.
fn columns_and_depth(d: &[Dim], trans: bool) -> (Option<Dim>, Dim) {
    let (k, n) = match rows_and_depth(d, trans) {
        (Some(k), n) => (k, Some(n)),
        (None, k) => (k, None),
    };
    (n, k)
}

/// A product of two integer (or 8-bit float) operands.
struct Product {
    a: Buf,
    b: Buf,
    za: Option<Buf>,
    zb: Option<Buf>,
    ta: bool,
    tb: bool,
}

/// A position of the result.
struct Position {
    at: Vec<Dim>,
    batch: Vec<Dim>,
    row: Option<Dim>,
    column: Option<Dim>,
}

impl Position {
    fn new(at: &[Dim], has_row: bool, has_column: bool) -> Position {
        let mut batch = at.to_vec();
        let column = if has_column { batch.pop() } else { None };
        let row = if has_row { batch.pop() } else { None };
        Position { at: at.to_vec(), batch, row, column }
    }
    /// An element of an operand with the given last two subscripts; leading dimensions broadcast.
    fn element(&self, k: &KernelBuilder, buf: Buf, last: &[Dim]) -> Expr {
        let dims = &k.m.bufs[buf].dims;
        let own = dims.len() - last.len();
        let lead = own.saturating_sub(self.batch.len());
        let mut at = vec![Dim::constant(0); lead];
        for (d, i) in dims[lead..own].iter().zip(&self.batch[self.batch.len() - (own - lead)..]) {
            at.push(repeated(k, *i, *d));
        }
        at.extend_from_slice(last);
        k.load(buf, &at)
    }
    /// The scale or zero point of a row: a single value, a vector, or `[.., M, 1]`.
    fn row_value(&self, k: &KernelBuilder, buf: Buf) -> Expr {
        let (dims, zero) = (&k.m.bufs[buf].dims, Dim::constant(0));
        let many = |d: &Dim| d.as_const() != Some(1);
        match (self.row, dims.as_slice()) {
            (Some(i), [n]) if many(n) => k.load(buf, &[repeated(k, i, *n)]),
            (Some(i), [.., n, _]) if dims.iter().any(many) => {
                self.element(k, buf, &[if many(n) { repeated(k, i, *n) } else { zero }, zero])
            }
            _ => first(k, buf),
        }
    }
    /// The scale or zero point of a column: a single value, a vector, or `[.., 1, N]`.
    fn column_value(&self, k: &KernelBuilder, buf: Buf) -> Expr {
        let (dims, zero) = (&k.m.bufs[buf].dims, Dim::constant(0));
        let many = |d: &Dim| d.as_const() != Some(1);
        match (self.column, dims.as_slice()) {
            (Some(i), [n]) if many(n) => k.load(buf, &[repeated(k, i, *n)]),
            (Some(i), [.., _, n]) if dims.iter().any(many) => {
                self.element(k, buf, &[zero, if many(n) { repeated(k, i, *n) } else { zero }])
            }
            _ => first(k, buf),
        }
    }
}

impl Product {
    /// Stores `finish` of the product for every element of `y`.
    fn lower(&self, cx: &mut LowerCx, y: Buf, finish: impl Fn(&mut KernelBuilder, &Position, Expr) -> Expr) {
        let (da, db, dy) = (cx.dims(self.a), cx.dims(self.b), cx.dims(y));
        let ((rows, depth), (columns, _)) = (rows_and_depth(&da, self.ta), columns_and_depth(&db, self.tb));
        let ints = cx.elem(self.a).is_int() && cx.elem(self.b).is_int();
        let za = self.za.filter(|z| !all_zero(cx.m, *z));
        let zb = self.zb.filter(|z| !all_zero(cx.m, *z));
        let of_b = za.filter(|_| ints).map(|_| self.column_sums(cx, depth, columns, zb));
        let of_a = zb.filter(|_| ints).map(|_| self.row_sums(cx, depth, rows));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &dy, |k, at| {
                let p = Position::new(at, rows.is_some(), columns.is_some());
                let acc = k.acc(Expr::num(if ints { ElemType::I32 } else { ElemType::F32 }, 0.0));
                k.nest(LoopKind::Seq, &[depth], |k, r| {
                    let (a, b) =
                        (same(k, self.left(k, &p, r[0]), ints), same(k, self.right(k, &p, r[0]), ints));
                    let v = if ints {
                        a * b + Expr::acc(acc)
                    } else {
                        let a = za.map_or(a.clone(), |z| a - same(k, p.row_value(k, z), false));
                        let b = zb.map_or(b.clone(), |z| b - same(k, p.column_value(k, z), false));
                        Expr::fma(a, b, Expr::acc(acc))
                    };
                    k.set(acc, v);
                });
                let mut total = Expr::acc(acc);
                if let (Some(z), Some(sums)) = (zb, of_a) {
                    let last: Vec<Dim> = p.row.into_iter().collect();
                    total = total - int(k, p.column_value(k, z)) * p.element(k, sums, &last);
                }
                if let (Some(z), Some(sums)) = (za, of_b) {
                    let last: Vec<Dim> = p.column.into_iter().collect();
                    total = total - int(k, p.row_value(k, z)) * p.element(k, sums, &last);
                }
                let v = finish(k, &p, total);
                k.store(y, at, v);
            });
        });
    }
    fn left(&self, k: &KernelBuilder, p: &Position, r: Dim) -> Expr {
        let last = match p.row {
            Some(m) if self.ta => vec![r, m],
            Some(m) => vec![m, r],
            None => vec![r],
        };
        int(k, p.element(k, self.a, &last))
    }
    fn right(&self, k: &KernelBuilder, p: &Position, r: Dim) -> Expr {
        let last = match p.column {
            Some(n) if self.tb => vec![n, r],
            Some(n) => vec![r, n],
            None => vec![r],
        };
        int(k, p.element(k, self.b, &last))
    }
    /// Sums of `b - zb` over the depth, per column.
    fn column_sums(&self, cx: &mut LowerCx, depth: Dim, columns: Option<Dim>, zb: Option<Buf>) -> Buf {
        let db = cx.dims(self.b);
        let dims: Vec<Dim> = db[..db.len().saturating_sub(2)].iter().copied().chain(columns).collect();
        sums(cx, "column_sums", &dims, &[depth], |k, at, r| {
            let p = Position::new(at, false, columns.is_some());
            let b = self.right(k, &p, r[0]);
            zb.map_or(b.clone(), |z| b - int(k, p.column_value(k, z)))
        })
    }
    /// Sums of `a` over the depth, per row.
    fn row_sums(&self, cx: &mut LowerCx, depth: Dim, rows: Option<Dim>) -> Buf {
        let da = cx.dims(self.a);
        let dims: Vec<Dim> = da[..da.len().saturating_sub(2)].iter().copied().chain(rows).collect();
        sums(cx, "row_sums", &dims, &[depth], |k, at, r| {
            let p = Position::new(at, rows.is_some(), false);
            self.left(k, &p, r[0])
        })
    }
}

/// A kernel that sums `value` over `depth` for each position of a new buffer of `dims`.
pub fn sums(
    cx: &mut LowerCx,
    name: &str,
    dims: &[Dim],
    depth: &[Dim],
    value: impl Fn(&KernelBuilder, &[Dim], &[Dim]) -> Expr,
) -> Buf {
    let out = cx.temp(name, ElemType::I32, dims.to_vec());
    cx.kernel(|k| {
        k.nest(LoopKind::Par, dims, |k, at| {
            let acc = k.acc(Expr::int(ElemType::I32, 0));
            k.nest(LoopKind::Seq, depth, |k, r| {
                let v = value(k, at, r) + Expr::acc(acc);
                k.set(acc, v);
            });
            k.store(out, at, Expr::acc(acc));
        });
    });
    out
}

/// Converts an operand to the type of the sum, which is float or integer.
fn same(k: &KernelBuilder, v: Expr, ints: bool) -> Expr {
    let t = k.m.type_of(&v);
    if ints || t.is_float() { v } else { Expr::cast(t, ElemType::F32, v) }
}

/// Converts 8-bit integers to i32; floats are unchanged.
pub fn int(k: &KernelBuilder, v: Expr) -> Expr {
    let t = k.m.type_of(&v);
    if t.is_float() { v } else { Expr::cast(t, ElemType::I32, v) }
}
