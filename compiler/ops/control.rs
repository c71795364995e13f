//! If, Loop and Scan. They are defined by their subgraphs, which an operator does not see:
//! `passes/graph/control` infers them and `passes/lower/control` lowers them. This file has their attributes.
//!
//! | operator | versions |
//! |---|---|
//! | If | 1, 11, 13, 16, 19, 21, 23, 24, 25: differ in types only |
//! | Loop | 1, 11, 13, 16, 19, 21, 23, 24, 25: differ in types only |
//! | Scan | 8: a batch dimension, `sequence_lens`, `directions`; 9: axes and directions of inputs and outputs; 11: negative axes |
//!
//! Loop: the condition that the body computes ends the loop even if the node gives no initial condition, as
//! in ONNX's own evaluator.

use super::{Attrs, Elements, InferCx, LowerCx, Operator};
use crate::diag::{Failure, Result};

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Control {
    /// Results that are tables of sequences (`bundle`).
    If {
        tables: Vec<usize>,
    },
    /// Carried values that are tables.
    Loop {
        tables: Vec<usize>,
    },
    Scan(Scan),
}

/// Attributes of Scan; lists are empty if all entries are 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// Number of scanned operands.
    pub n_scanned: usize,
    /// The scanned dimension of each.
    pub input_axes: Vec<i64>,
    /// Operands that are scanned from the end.
    pub input_reversed: Vec<bool>,
    /// The dimension of iterations in each scan output.
    pub output_axes: Vec<i64>,
    /// Scan outputs that are filled from the end.
    pub output_reversed: Vec<bool>,
    /// Version 8: dimension 0 of all operands is the batch, and `sequence_lens` precedes the operands.
    pub batched: bool,
}

impl Operator for Control {
    const OPS: &'static [&'static str] = &["If", "Loop", "Scan"];
    fn elements(_op: &str) -> Elements {
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        let needed: &[&str] = if a.op() == "If" { &["then_branch", "else_branch"] } else { &["body"] };
        if let Some(n) = needed.iter().find(|n| !a.subgraphs().iter().any(|s| s == *n)) {
            return a.error(format!("{} needs the graph {n}", a.op())).fail();
        }
        let directions = |a: &mut Attrs, name: &str| -> Result<Vec<bool>> {
            let v = a.ints(name);
            if v.iter().any(|d| *d != 0 && *d != 1) {
                return a.error(format!("attribute \"{name}\" must hold 0 (forward) or 1 (reverse)")).fail();
            }
            Ok(v.into_iter().map(|d| d == 1).collect())
        };
        Ok(match a.op() {
            "If" => Control::If { tables: vec![] },
            "Loop" => Control::Loop { tables: vec![] },
            _ => {
                let batched = a.since() < 9;
                let n = a.int_required("num_scan_inputs");
                let given = a.n_inputs() - usize::from(batched);
                let Some(n_scanned) = usize::try_from(n).ok().filter(|n| *n >= 1 && *n <= given) else {
                    return a.error(format!("num_scan_inputs is {n}, the node has {given} operands")).fail();
                };
                let input_reversed =
                    directions(a, if batched { "directions" } else { "scan_input_directions" })?;
                let output_reversed = if batched { vec![] } else { directions(a, "scan_output_directions")? };
                let axes = |a: &mut Attrs, name: &str| if batched { vec![] } else { a.ints(name) };
                let (input_axes, output_axes) = (axes(a, "scan_input_axes"), axes(a, "scan_output_axes"));
                if [input_axes.len(), input_reversed.len()].iter().any(|n| *n != 0 && *n != n_scanned) {
                    return a
                        .error(format!(
                            "there are {n_scanned} scanned inputs: axes and directions must be as many"
                        ))
                        .fail();
                }
                Control::Scan(Scan {
                    n_scanned,
                    input_axes,
                    input_reversed,
                    output_axes,
                    output_reversed,
                    batched,
                })
            }
        })
    }
    fn infer(&self, _: &mut InferCx) -> Result<()> {
        Err(Failure::bug("infer", "subgraphs are the business of the pass"))
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        cx.bug("subgraphs are the business of the pass")
    }
}
