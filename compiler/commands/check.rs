//! `onnxc check`: all errors and warnings of a model.

use super::{source, warn, with_progress};
use crate::cli::{CheckArgs, MessageFormat};
use crate::codegen::interface::{Interface, Tensor};
use crate::diag::Result;
use crate::options::Options;
use crate::pipeline::{self, Compiled};
use crate::tensor::TensorType;
use serde_json::{Value, json};

/// Runs the command.
pub fn check(a: &CheckArgs) -> Result<()> {
    let options = a.common.apply(Options::default());
    let src = source(&a.model)?;
    let c = with_progress(&format!("onnxc: checking {}", src.name), || pipeline::compile(&src, &options))?;
    warn(&c, a.common.message_format);
    match a.common.message_format {
        MessageFormat::Text => print!("{}", text(&src.name, &c)),
        MessageFormat::Json => println!("{}", as_json(&src.name, &c)),
    }
    Ok(())
}

/// `float[N, 3]`, `seq(float)`.
pub fn type_text(i: &Interface, t: &Tensor) -> String {
    match &t.described {
        Some(d) => d.text(t.ty.onnx_name()),
        None => TensorType::new(t.ty, t.dims.clone()).display(&i.syms).to_string(),
    }
}

fn kernels(c: &Compiled) -> usize {
    c.modules.first().map_or(0, |m| crate::nest::visit::calls(&m.driver).len())
}

fn text(name: &str, c: &Compiled) -> String {
    let i = &c.interface;
    let show = |what: &str, t: &Tensor| format!("  {what} {} : {}\n", t.name, type_text(i, t));
    let inputs: String = i.inputs.iter().map(|t| show("input ", t)).collect();
    let outputs: String = i.outputs.iter().map(|t| show("output", t)).collect();
    let (nodes, weights, workspace) =
        (c.model.graph.order.len(), c.weights.size, i.workspace.display(&i.syms));
    format!(
        "{name}: ok\n{inputs}{outputs}  {nodes} nodes, {} kernels, weights {weights} bytes, workspace \
            {workspace} bytes\n",
        kernels(c)
    )
}

fn as_json(name: &str, c: &Compiled) -> Value {
    let i = &c.interface;
    let list = |l: &[Tensor]| {
        l.iter().map(|t| json!({ "name": t.name, "type": type_text(i, t) })).collect::<Vec<_>>()
    };
    json!({
        "file": name, "ok": true, "inputs": list(&i.inputs), "outputs": list(&i.outputs),
        "nodes": c.model.graph.order.len(), "kernels": kernels(c), "weights_bytes": c.weights.size,
        "workspace_bytes": i.workspace.display(&i.syms).to_string(),
    })
}
