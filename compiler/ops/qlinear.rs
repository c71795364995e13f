//! QLinear operators of com.microsoft: ONNX operators on quantized tensors with one scale each. The operands
//! are dequantized, the operator runs in f32, and its result is quantized. Fusion eliminates the f32 tensors
//! of elementwise ones.
//!
//! Spec: <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>. One version each.
//! ONNX Runtime computes some of them with fixed-point numbers and tables, so its results may differ by one
//! step.

use super::quantize::{centred, quantized};
use super::{Attrs, InferCx, Known, LowerCx, Op, Operand, Operator};
use crate::diag::{Result, codes};
use crate::nest::{Buf, Expr, KernelBuilder};
use crate::sym::Dim;
use crate::tensor::{ElemType, TensorType, ValueType};

/// The inner operator and its version.
#[derive(Clone, Debug)]
pub struct QLinear {
    op: Box<Op>,
    since: i64,
    form: Form,
    /// True if images have their channels last.
    channels_last: bool,
}

/// The arrangement of the operands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Unary,
    Binary,
    /// The result's scale and zero point, followed by any number of operands.
    Variadic,
}

/// An operand: the numbers of the inputs for tensor, scale and zero point.
type Quantized = (usize, usize, usize);

impl QLinear {
    fn operands(&self, inputs: usize) -> Vec<Quantized> {
        match self.form {
            Form::Unary => vec![(0, 1, 2)],
            Form::Binary => vec![(0, 1, 2), (3, 4, 5)],
            Form::Variadic => (2..inputs).step_by(3).map(|i| (i, i + 1, i + 2)).collect(),
        }
    }
    /// Scale and zero point of the result.
    fn result(&self) -> (usize, usize) {
        match self.form {
            Form::Unary => (3, 4),
            Form::Binary => (6, 7),
            Form::Variadic => (0, 1),
        }
    }
    /// Dimensions in the order of the inner operator.
    fn inside<T: Copy>(&self, d: &[T]) -> Vec<T> {
        match d {
            [n, spatial @ .., c] if self.channels_last => {
                [*n, *c].into_iter().chain(spatial.iter().copied()).collect()
            }
            d => d.to_vec(),
        }
    }
    /// The inverse of [`QLinear::inside`].
    fn outside<T: Copy>(&self, d: &[T]) -> Vec<T> {
        match d {
            [n, c, spatial @ ..] if self.channels_last => {
                [*n].into_iter().chain(spatial.iter().copied()).chain([*c]).collect()
            }
            d => d.to_vec(),
        }
    }
}

impl Operator for QLinear {
    const OPS: &'static [&'static str] = &[
        "com.microsoft:QLinearAdd",
        "com.microsoft:QLinearMul",
        "com.microsoft:QLinearSigmoid",
        "com.microsoft:QLinearLeakyRelu",
        "com.microsoft:QLinearGlobalAveragePool",
        "com.microsoft:QLinearAveragePool",
        "com.microsoft:QLinearConcat",
        "com.microsoft:QLinearSoftmax",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let name = a.op().trim_start_matches("QLinear");
        let form = match name {
            "Add" | "Mul" => Form::Binary,
            "Concat" => Form::Variadic,
            _ => Form::Unary,
        };
        let channels_last = a.flag("channels_last", false);
        let opset = if name == "Softmax" { a.int_required("opset") } else { 19 };
        let mut inner = match a.of(name, opset) {
            Some(i) => i,
            None => {
                return a
                    .error(format!("attribute \"opset\" is {opset}"))
                    .found_expected(opset.to_string(), "a version that has Softmax")
                    .fail();
            }
        };
        let since = inner.since();
        Ok(QLinear { op: Box::new(super::parse(&mut inner)?), since, form, channels_last })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let operands = self.operands(cx.inputs.len());
        let (_, zero) = self.result();
        if self.form == Form::Variadic && !cx.inputs.len().wrapping_sub(2).is_multiple_of(3) {
            return cx
                .error(
                    codes::OP_ARITY,
                    "QLinearConcat takes a tensor, a scale and a zero point for each operand",
                )
                .fail();
        }
        let mut inner = vec![];
        for (x, s, z) in &operands {
            let t = cx.require_type(*x, |t| matches!(t, ElemType::I8 | ElemType::U8), "int8 or uint8")?;
            cx.require_type(*s, |t| t == ElemType::F32, "float")?;
            if cx.has(*z) {
                cx.require_type(*z, |u| u == t, t.onnx_name())?;
            }
            let dims = cx.tensor(*x).dims.clone();
            if self.channels_last && dims.len() < 3 {
                return cx
                    .error(codes::OP_SHAPE, "an image needs batch, spatial and channel dimensions")
                    .fail();
            }
            inner.push(Some(Operand {
                name: cx.operand(*x)?.name.clone(),
                ty: ValueType::Tensor(TensorType::new(ElemType::F32, self.inside(&dims))),
                known: Known::No,
            }));
        }
        let (scale, zero_point) = self.result();
        for i in operands.iter().flat_map(|o| [o.1, o.2]).chain([scale, zero_point]) {
            if cx.tensor_opt(i).is_some_and(|t| t.dims.iter().any(|d| d.as_const() != Some(1))) {
                return cx.error(codes::OP_SHAPE, format!("input {i} must have one element")).fail();
            }
        }
        cx.require_type(scale, |t| t == ElemType::F32, "float")?;
        let elem = match cx.tensor_opt(zero) {
            Some(t) => t.elem,
            None => cx.tensor(operands.first().map_or(0, |o| o.0)).elem,
        };
        let mut sub = InferCx::new(cx.syms, cx.origin, &inner, self.since);
        self.op.infer(&mut sub)?;
        let out = sub.outputs.into_iter().next().flatten();
        match out {
            Some((ValueType::Tensor(t), _)) => cx.set(0, elem, self.outside(&t.dims)),
            _ => return cx.error(codes::OP_FEATURE, "the operator has no tensor as its result").fail(),
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let y = cx.output(0);
        if self.form == Form::Variadic {
            return self.concat(cx, y);
        }
        let mut inputs = vec![];
        for (i, (x, s, z)) in self.operands(cx.inputs.len()).into_iter().enumerate() {
            let (x, s, z) = (cx.input(x), cx.input(s), cx.input_opt(z));
            let dims = self.inside(&cx.dims(x));
            let t = cx.temp(&format!("operand{i}"), ElemType::F32, dims);
            cx.map(t, |k, at| {
                let v = centred(k, x, &self.outside(at), z.map(|z| (z, origin(k, z))));
                v * k.load(s, &origin(k, s))
            });
            inputs.push(Some(t));
        }
        let dims = self.inside(&cx.dims(y));
        let out = cx.temp("result", ElemType::F32, dims);
        let out = self.lower_on(cx, &inputs, out)?;
        cx.map_result(self.result(), y, |k, at| k.load(out, &self.inside(at)));
        Ok(())
    }
}

impl QLinear {
    /// Operands with the result's quantization are moved; the others are requantized separately.
    fn concat(&self, cx: &mut LowerCx, y: Buf) -> Result<()> {
        let elem = cx.elem(y);
        let same = |cx: &LowerCx, a: usize, b: usize| {
            cx.constant(a)
                .zip(cx.constant(b))
                .is_some_and(|(a, b)| a.elem() == b.elem() && a.bytes() == b.bytes())
        };
        let mut inputs = vec![];
        for (i, (x, s, z)) in self.operands(cx.inputs.len()).into_iter().enumerate() {
            if same(cx, s, 0) && same(cx, z, 1) {
                inputs.push(Some(cx.input(x)));
                continue;
            }
            let (x, s, z) = (cx.input(x), cx.input(s), cx.input_opt(z));
            let dims = cx.dims(x);
            let t = cx.temp(&format!("operand{i}"), elem, dims);
            cx.map_result((0, 1), t, |k, at| {
                let v = centred(k, x, at, z.map(|z| (z, origin(k, z))));
                v * k.load(s, &origin(k, s))
            });
            inputs.push(Some(t));
        }
        self.lower_on(cx, &inputs, y).map(|_| ())
    }
    /// Lowers the inner operator on plain operands. Returns the buffer of its result, which is `out` or a new
    /// one.
    fn lower_on(&self, cx: &mut LowerCx, inputs: &[Option<Buf>], out: Buf) -> Result<Buf> {
        let known = vec![Known::No; inputs.len()];
        let mut sub = LowerCx {
            m: cx.m,
            origin: cx.origin,
            since: self.since,
            inputs,
            known: &known,
            defined: cx.defined,
            outputs: vec![Some(out)],
        };
        self.op.lower(&mut sub)?;
        Ok(sub.outputs.into_iter().next().flatten().unwrap_or(out))
    }
}

impl LowerCx<'_> {
    /// Stores a quantized map; `result` are the numbers of the inputs with scale and zero point.
    fn map_result(
        &mut self,
        result: (usize, usize),
        out: Buf,
        value: impl FnOnce(&mut KernelBuilder, &[Dim]) -> Expr,
    ) {
        let (s, z, to) = (self.input(result.0), self.input_opt(result.1), self.elem(out));
        self.map(out, |k, at| {
            let q = value(k, at) / k.load(s, &origin(k, s));
            let zero = z.map(|z| Expr::cast(to, ElemType::F32, k.load(z, &origin(k, z))));
            quantized(ElemType::F32, to, q, zero)
        });
    }
}

/// The position of the single element.
fn origin(k: &KernelBuilder, b: Buf) -> Vec<Dim> {
    vec![Dim::constant(0); k.m.bufs[b].dims.len()]
}
