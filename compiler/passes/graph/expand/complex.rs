//! Arithmetic operators on complex numbers, as operators on their real and imaginary parts.
//!
//! | operator | becomes |
//! |---|---|
//! | Col2Im, GridSample, Resize, Upsample | the operator on each part: it computes sums with real factors |
//! | NonZero | positions where either part is not zero |
//! | Unique | Unique of pairs: they are ordered by the real part first, as in numpy |

use super::{Make, NodeSpec};
use crate::diag::{Failure, Result};
use crate::graph::{Graph, Node, NodeData, Value};
use crate::ops::complex::Complex;
use crate::ops::{AttrValue, Op, Operand};
use crate::tensor::ElemType;

/// True if the operator has a rule and its first operand is complex.
pub(in crate::passes::graph) fn applies(node: &NodeData, operands: &[Option<Operand>]) -> bool {
    let complex =
        operands.first().and_then(|o| o.as_ref()?.ty.as_tensor()).is_some_and(|t| t.elem.is_complex());
    complex
        && node.schema.domain.is_empty()
        && matches!(node.schema.name, "Col2Im" | "GridSample" | "NonZero" | "Resize" | "Unique" | "Upsample")
}

pub(super) fn expand(g: &mut Graph, n: Node) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let mut make = Make::at(g, n);
    let Some(Some(x)) = node.inputs.first().copied() else {
        return Err(Failure::bug("complex", "no operand"));
    };
    let results = match node.schema.name {
        "NonZero" => {
            let flags = parts(&mut make, x)
                .map(|p| make.with("Cast", vec![("to", AttrValue::Int(ElemType::Bool as i64))], &[p]));
            let [re, im] = flags;
            let any = make.op("Or", &[re, im]);
            vec![make.op("NonZero", &[any])]
        }
        "Unique" => unique(&mut make, &node, x),
        _ => vec![either(&mut make, &node, x)],
    };
    make.define_all(&node.outputs, results);
    make.finish()
}

/// A view of complex numbers as pairs, or of pairs as complex numbers.
fn view(make: &mut Make, of: Complex, x: Value) -> Value {
    make.place(Op::Complex(of), of.schema(), NodeSpec::new(vec![Some(x)], 1))[0]
}

/// Real and imaginary parts.
fn parts(make: &mut Make, x: Value) -> [Value; 2] {
    let pairs = view(make, Complex::Parts, x);
    let mut part = |i| {
        let i = make.integer(i);
        make.with("Gather", vec![("axis", AttrValue::Int(-1))], &[pairs, i])
    };
    [part(0), part(1)]
}

/// The operator applied to the real and to the imaginary parts. A value for positions without an element is
/// added to the real part only.
fn either(make: &mut Make, node: &NodeData, x: Value) -> Value {
    let mut pair = vec![];
    let last = make.ints(&[-1]);
    for (i, part) in parts(make, x).into_iter().enumerate() {
        let mut inputs = node.inputs.clone();
        inputs[0] = Some(part);
        let attrs =
            node.attrs.iter().filter(|(name, _)| i == 0 || name != "extrapolation_value").cloned().collect();
        let y = make.parsed(node.schema, NodeSpec::new(inputs, 1).attrs(attrs));
        pair.push(make.op("Unsqueeze", &[y[0], last]));
    }
    let pairs = make.with("Concat", vec![("axis", AttrValue::Int(-1))], &pair);
    view(make, Complex::Join, pairs)
}

/// Slices along an axis, or pairs if there is none, are ordered element by element.
fn unique(make: &mut Make, node: &NodeData, x: Value) -> Vec<Value> {
    let mut pairs = view(make, Complex::Parts, x);
    let axis = match node.int("axis") {
        Some(a) => a - i64::from(a < 0),
        None => {
            let rows = make.ints(&[-1, 2]);
            pairs = make.op("Reshape", &[pairs, rows]);
            0
        }
    };
    let mut attrs = vec![("axis", AttrValue::Int(axis))];
    attrs.extend(node.attr("sorted").map(|v| ("sorted", v.clone())));
    let mut results = make.node("Unique", attrs, vec![Some(pairs)], 4);
    results[0] = view(make, Complex::Join, results[0]);
    results
}
