//! `onnxc inspect`: the contents and requirements of a model: interface, sizes, operators, weights, memory,
//! arithmetic.

use super::check::type_text;
use super::{source, warn, with_progress};
use crate::bench::count;
use crate::bench::print::bytes;
use crate::cli::InspectArgs;
use crate::diag::Result;
use crate::graph::{Def, Graph};
use crate::nest::visit;
use crate::onnx::ImportOptions;
use crate::options::Options;
use crate::pipeline::{self, Compiled};
use crate::random;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Everything that is printed.
struct Findings {
    producer: String,
    ir_version: i64,
    opsets: Vec<(String, i64)>,
    /// Operator, version -> number of nodes, including nested graphs.
    operators: BTreeMap<(String, u32), usize>,
    /// Element type -> tensors, elements, bytes.
    weights: BTreeMap<String, (usize, u64, u64)>,
    /// The sizes for which amounts are counted.
    sizes: Vec<(String, i64)>,
    workspace: Option<i64>,
    /// Bytes.
    stack: u64,
    amounts: Option<count::Amounts>,
}

/// Runs the command.
pub fn inspect(a: &InspectArgs) -> Result<()> {
    let src = source(&a.model)?;
    let options = a.common.apply(Options { cpu: a.cpu.clone(), ..Options::default() });
    let c = with_progress(&format!("onnxc: reading {}", src.name), || pipeline::compile(&src, &options))?;
    warn(&c, a.common.message_format);
    // The graph of the file: passes replace operators and drop dead nodes.
    let file = crate::onnx::read(
        &src,
        &ImportOptions {
            dims: options.dims.clone(),
            dim_expressions: options.dim_expressions,
            capacities: None,
            customs: options.customs.clone(),
        },
    )?;
    let sizes = random::sizes(&c.interface, &random::named_sizes(&c.interface, &a.sizes)?);
    let mut f = Findings {
        producer: file.producer.clone(),
        ir_version: file.ir_version,
        opsets: file.opsets.clone(),
        operators: BTreeMap::new(),
        weights: BTreeMap::new(),
        sizes: c
            .interface
            .dim_params
            .iter()
            .filter_map(|p| Some((p.name.clone(), *sizes.get(&p.sym)?)))
            .collect(),
        workspace: c.interface.syms.expanded(c.interface.workspace).eval(&|s| sizes.get(&s).copied()),
        stack: c.clock.step("generate code", || crate::emit::stack(&c))?,
        amounts: None,
    };
    f.graph(&file.graph);
    if let Some(m) = c.modules.last() {
        let each = count::scheduled(&c.unscheduled, m, &visit::calls(&m.driver), &sizes);
        f.amounts = each.into_iter().try_fold(count::Amounts::default(), |sum, x| Some(sum + x?));
    }
    if a.json {
        println!("{}", f.json(&src.name, &c))
    } else {
        print!("{}", f.text(&src.name, &c))
    }
    Ok(())
}

impl Findings {
    fn graph(&mut self, g: &Graph) {
        for n in &g.order {
            let node = &g.nodes[*n];
            let name = crate::ops::dotted(node.schema.domain, node.schema.name);
            *self.operators.entry((name, node.schema.since as u32)).or_default() += 1;
            node.subgraphs.iter().for_each(|(_, g)| self.graph(g));
        }
        for d in g.values.values() {
            if let Def::Const(c) = &d.def {
                let e = self.weights.entry(c.elem().to_string()).or_default();
                let n: u64 = c.dims().iter().map(|d| (*d).max(0) as u64).product();
                *e = (e.0 + 1, e.1 + n, e.2 + c.elem().bytes_for(n).unwrap_or(0));
            }
        }
    }
    fn nodes(&self) -> usize {
        self.operators.values().sum()
    }
    fn text(&self, name: &str, c: &Compiled) -> String {
        let i = &c.interface;
        let mut o = format!("{name}: IR version {}", self.ir_version);
        self.opsets
            .iter()
            .for_each(|(d, v)| o += &format!(", {} {v}", if d.is_empty() { "ai.onnx" } else { d }));
        o += &if self.producer.is_empty() { "\n".into() } else { format!(", from {}\n", self.producer) };
        let width = i.inputs.iter().chain(&i.outputs).map(|t| t.name.chars().count()).max().unwrap_or(0);
        for (what, list) in [("inputs", &i.inputs), ("outputs", &i.outputs)] {
            o += &format!("\n{what}\n");
            list.iter().for_each(|t| o += &format!("  {:width$}  {}\n", t.name, type_text(i, t)));
        }
        if !i.dim_params.is_empty() {
            o += "\ndimensions\n";
            i.dim_params.iter().for_each(|p| {
                o += &format!(
                    "  {}  {}\n",
                    p.name,
                    p.hi.map_or(format!("from {}", p.lo), |hi| format!("{} to {hi}", p.lo))
                )
            });
        }
        o += &format!("\n{} nodes\n", self.nodes());
        let mut rows: Vec<_> = self.operators.iter().collect();
        rows.sort_by_key(|(op, n)| (std::cmp::Reverse(**n), (*op).clone()));
        rows.iter().for_each(|((op, v), n)| o += &format!("  {n:>6}  {op} {v}\n"));
        o += "\nconstants\n";
        for (ty, (tensors, n, size)) in &self.weights {
            o += &format!("  {ty:<10} {tensors:>6} tensors  {n:>12} elements  {:>10}\n", bytes(*size as f64));
        }
        let kernels = c.modules.last().map_or(0, |m| visit::calls(&m.driver).len());
        o += &format!(
            "\nobject for {} ({}): {kernels} kernels, weights {}\n",
            i.target,
            i.cpu,
            bytes(c.weights.size as f64)
        );
        o += &format!("workspace: {} bytes\n", i.workspace.display(&i.syms));
        o += &format!("stack: at most {} bytes, without the caller's functions and libm\n", self.stack);
        if !self.sizes.is_empty() {
            let list: Vec<String> = self.sizes.iter().map(|(n, v)| format!("{n}={v}")).collect();
            o += &format!(
                "at {}{}\n",
                list.join(" "),
                self.workspace.map_or(String::new(), |w| format!(": workspace {}", bytes(w as f64)))
            );
        }
        o += &match self.amounts {
            Some(a) => format!("a call: {:.3} GFLOP, at least {} moved\n", a.flops / 1e9, bytes(a.bytes)),
            None => "a call: arithmetic depends on data\n".into(),
        };
        o
    }
    fn json(&self, name: &str, c: &Compiled) -> Value {
        let i = &c.interface;
        let list = |l: &[crate::codegen::interface::Tensor]| {
            l.iter()
                .map(|t| json!({ "name": t.name, "ident": t.ident, "type": type_text(i, t) }))
                .collect::<Vec<_>>()
        };
        let opsets = self.opsets.iter().map(|(d, v)| json!({ "domain": d, "version": v }));
        let dimensions = i.dim_params.iter().map(|p| json!({ "name": p.name, "min": p.lo, "max": p.hi }));
        let operators =
            self.operators.iter().map(|((op, v), n)| json!({ "operator": op, "version": v, "nodes": n }));
        let constants = self
            .weights
            .iter()
            .map(|(ty, (t, n, b))| json!({ "type": ty, "tensors": t, "elements": n, "bytes": b }));
        let sizes = self.sizes.iter().map(|(n, v)| (n.clone(), json!(v)));
        json!({
            "file": name, "ir_version": self.ir_version, "producer": self.producer,
            "opsets": opsets.collect::<Vec<_>>(),
            "inputs": list(&i.inputs), "outputs": list(&i.outputs),
            "dimensions": dimensions.collect::<Vec<_>>(),
            "nodes": self.nodes(),
            "operators": operators.collect::<Vec<_>>(),
            "constants": constants.collect::<Vec<_>>(),
            "target": i.target, "cpu": i.cpu, "weights_bytes": c.weights.size,
            "workspace": i.workspace.display(&i.syms).to_string(),
            "sizes": sizes.collect::<serde_json::Map<_, _>>(),
            "workspace_bytes": self.workspace, "stack_bytes": self.stack,
            "flops": self.amounts.map(|a| a.flops), "bytes": self.amounts.map(|a| a.bytes),
        })
    }
}
