//! Windows and filter banks of signal processing: HannWindow, HammingWindow, BlackmanWindow, MelWeightMatrix.
//!
//! Spec: <https://onnx.ai/onnx/operators/onnx__HannWindow.html>, `HammingWindow`, `BlackmanWindow`,
//! `MelWeightMatrix`. One version each, 17. Values are computed in float64.

use super::support::runtime;
use super::{Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, UnOp};
use crate::sym::Dim;
use crate::tensor::ElemType;
use std::f64::consts::PI;

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    kind: Kind,
    periodic: bool,
    elem: ElemType,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Hann,
    Hamming,
    Blackman,
    Mel,
}

impl Operator for Windows {
    const OPS: &'static [&'static str] =
        &["HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"];
    fn parse(a: &mut Attrs) -> Result<Self> {
        let kind = match a.op() {
            "HannWindow" => Kind::Hann,
            "HammingWindow" => Kind::Hamming,
            "BlackmanWindow" => Kind::Blackman,
            _ => Kind::Mel,
        };
        let elem = a.elem_type_opt("output_datatype").unwrap_or(ElemType::F32);
        if !elem.is_float() && !elem.is_int() {
            return a
                .error("attribute \"output_datatype\" is not a number's type")
                .found_expected(elem.to_string(), "a floating-point or integer type")
                .fail();
        }
        Ok(Windows { kind, periodic: kind == Kind::Mel || a.flag("periodic", true), elem })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let one = |cx: &InferCx, i: usize, what: &str| -> Result<Dim> {
            match cx.need_dims(i, what)?[..] {
                [d] => Ok(d),
                _ => cx.error(codes::OP_SHAPE, format!("{what} must be a scalar")).fail(),
            }
        };
        let sizes: &[usize] = if self.kind == Kind::Mel { &[1, 0] } else { &[0] };
        if sizes.iter().any(|i| runtime::late(cx, *i)) {
            let dims = cx.sizes(0, sizes.len(), None);
            cx.set(0, self.elem, dims);
            return Ok(());
        }
        let dims = if self.kind == Kind::Mel {
            vec![one(cx, 1, "dft_length")?.floor_div(2) + 1, one(cx, 0, "num_mel_bins")?]
        } else {
            vec![one(cx, 0, "the size")?]
        };
        for d in &dims {
            cx.syms.require_at_most(Dim::constant(0), *d);
        }
        cx.set(0, self.elem, dims);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let y = cx.output(0);
        let (dims, to) = (cx.dims(y), cx.elem(y).compute());
        let inputs: Vec<Buf> = cx.inputs.iter().flatten().copied().collect();
        // If one of them is known only at run time, both sizes of the result are.
        let late = (0..inputs.len().min(2))
            .any(|i| cx.dims_value(i).is_none() && (i == 0 || self.kind == Kind::Mel));
        if late {
            let size = runtime::entry(cx, inputs[0], 0);
            cx.define(dims[dims.len() - 1], size);
            if self.kind == Kind::Mel {
                // Floor division also below 0, which fits no shape.
                let length = runtime::entry(cx, inputs[1], 0);
                cx.define(dims[0], (length.max(runtime::int(-2)) + runtime::int(2)) / runtime::int(2));
            }
        }
        if self.kind == Kind::Mel {
            filters(cx, &inputs);
            return Ok(());
        }
        cx.map(y, |_, at| {
            let v = self.value(at[0], if self.periodic { dims[0] } else { dims[0] - 1 });
            Expr::cast(ElemType::F64, to, v)
        });
        Ok(())
    }
}

fn number(v: f64) -> Expr {
    Expr::num(ElemType::F64, v)
}

fn wide(d: Dim) -> Expr {
    Expr::cast(ElemType::I64, ElemType::F64, Expr::index(d))
}

impl Windows {
    fn value(&self, i: Dim, n: Dim) -> Expr {
        let cos = |turns: f64| Expr::un(UnOp::Cos, wide(i) * number(2.0 * PI * turns) / wide(n));
        match self.kind {
            Kind::Hamming => number(25.0 / 46.0) - cos(1.0) * number(21.0 / 46.0),
            Kind::Blackman => cos(1.0) * number(-0.5) + cos(2.0) * number(0.08) + number(0.42),
            // sin^2(x) = (1 - cos(2 x)) / 2
            _ => number(0.5) - cos(1.0) * number(0.5),
        }
    }
}

/// Values shared by the mel filters.
struct Bank {
    low: Expr,
    step: Expr,
    /// (dft_length + 1) / sample_rate, unevaluated: the product is rounded down as a whole.
    length: Expr,
    rate: Expr,
}

impl Bank {
    fn new(k: &mut KernelBuilder, inputs: &[Buf], filters: Dim) -> Bank {
        let scalar = |k: &KernelBuilder, b: Buf| {
            let at = vec![Dim::constant(0); k.m.bufs[b].dims.len()];
            Expr::cast(k.m.bufs[b].ty.compute(), ElemType::F64, k.load(b, &at))
        };
        let mel = |hertz: Expr| {
            Expr::un(UnOp::Log1p, hertz / number(700.0)) * number(2595.0 / std::f64::consts::LN_10)
        };
        let (low, high) = (mel(scalar(k, inputs[3])), mel(scalar(k, inputs[4])));
        let low = k.let_(low);
        let step = k.let_((high - low.clone()) / wide(filters + 2));
        let length = k.let_(scalar(k, inputs[1]) + number(1.0));
        let rate = scalar(k, inputs[2]);
        Bank { low, step, length, rate: k.let_(rate) }
    }
    /// The spectrogram bin of filter edge `i`, an integer.
    fn edge(&self, i: Dim) -> Expr {
        let mel = wide(i) * self.step.clone() + self.low.clone();
        let hertz = Expr::un(UnOp::Expm1, mel * number(std::f64::consts::LN_10 / 2595.0)) * number(700.0);
        Expr::un(UnOp::Floor, self.length.clone() * hertz / self.rate.clone())
    }
}

/// Stores the filters. Their edges are computed once.
fn filters(cx: &mut LowerCx, inputs: &[Buf]) {
    let y = cx.output(0);
    let (dims, to) = (cx.dims(y), cx.elem(y).compute());
    let edges = cx.temp("edges", ElemType::F64, vec![dims[1] + 2]);
    cx.kernel(|k| {
        let bank = Bank::new(k, inputs, dims[1]);
        k.nest(LoopKind::Par, &[dims[1] + 2], |k, at| k.store(edges, at, bank.edge(at[0])));
    });
    cx.map(y, |k, at| {
        let [left, centre, right] = [0, 1, 2].map(|i| k.load(edges, &[at[1] + i]));
        let v = k.shared(left, |k, left| {
            k.shared(centre, |k, centre| k.shared(right, |_, right| weight(wide(at[0]), left, centre, right)))
        });
        Expr::cast(ElemType::F64, to, v)
    });
}

/// The weight of bin `j` in a filter with these edges.
fn weight(j: Expr, left: Expr, centre: Expr, right: Expr) -> Expr {
    let le = |a: &Expr, b: &Expr| Expr::bin(BinOp::Le, a.clone(), b.clone());
    let lt = |a: &Expr, b: &Expr| Expr::bin(BinOp::Lt, a.clone(), b.clone());
    let eq = |a: &Expr, b: &Expr| Expr::bin(BinOp::Eq, a.clone(), b.clone());
    let falling = (right.clone() - j.clone()) / (right.clone() - centre.clone());
    let rising = (j.clone() - left.clone()) / (centre.clone() - left.clone());
    let peak = Expr::select(eq(&j, &centre), number(1.0), number(0.0));
    let before = Expr::select(
        eq(&left, &centre),
        peak,
        Expr::select(le(&left, &j).and(le(&j, &centre)), rising, number(0.0)),
    );
    Expr::select(le(&centre, &j).and(lt(&j, &right)), falling, before)
}
