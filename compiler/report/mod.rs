//! `onnxc report`: a self-contained HTML page about a model, without scripts or external resources. It shows
//! the graph with its fused kernels, the memory plan over time, a roofline, times and sizes. Pictures are
//! inline SVG, and each mark is explained by its `<title>`, which browsers show as a tooltip.

mod flow;
mod group;
mod memory;
mod page;
mod roofline;

pub use group::{Group, groups};
pub use page::html;

use crate::bench;
use crate::bench::count::Amounts;
use crate::nest::{Module, visit};
use crate::pipeline::Compiled;
use crate::sym::Sym;
use std::collections::HashMap;

/// A kernel in the order of the calls.
#[derive(Clone, Debug)]
pub struct Row {
    /// Symbol of the object.
    pub kernel: String,
    /// The node that it is named after.
    pub origin: String,
    /// Shortest time in seconds, if it was measured.
    pub time: Option<f64>,
    /// Its amounts of work.
    pub amounts: Option<Amounts>,
}

/// The contents of the page.
pub struct Data<'a> {
    /// File of the model.
    pub name: String,
    /// The model.
    pub compiled: &'a Compiled,
    /// Its nests for the CPU level that was measured.
    pub module: &'a Module,
    /// Values of symbolic dimensions, used on the whole page.
    pub sizes: HashMap<Sym, i64>,
    /// Times, unless the model was not run.
    pub bench: Option<&'a bench::Report>,
}

impl Data<'_> {
    /// The kernels, with a time per call if they could be timed one by one.
    pub fn rows(&self) -> Vec<Row> {
        let m = self.module;
        let calls = visit::calls(&m.driver);
        let amounts = bench::count::scheduled(&self.compiled.unscheduled, m, &calls, &self.sizes);
        let nodes = self.bench.and_then(|b| b.nodes.as_ref()).filter(|n| n.len() == calls.len());
        let row = |(i, (k, amounts)): (usize, (&crate::nest::Kernel, Option<Amounts>))| {
            let d = &m.kernels[*k];
            let time = nodes.map(|n| n[i].times.min);
            Row { kernel: d.name.clone(), origin: d.origin.short(), time, amounts }
        };
        calls.iter().zip(amounts).enumerate().map(row).collect()
    }
    /// The value of a size, if the page's sizes determine it.
    fn eval(&self, d: crate::sym::Dim) -> Option<i64> {
        self.module.syms.expanded(d).eval(&|s| self.sizes.get(&s).copied())
    }
}

/// Escapes text for HTML.
fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A shortened name: its end, which distinguishes the nodes of a network.
fn short(s: &str, most: usize) -> String {
    let n = s.chars().count();
    if n <= most {
        s.to_owned()
    } else {
        format!("\u{2026}{}", s.chars().skip(n + 1 - most).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_text() {
        assert_eq!(escape("<script>\"a\"&'b'\n"), "&lt;script&gt;&quot;a&quot;&amp;&#39;b&#39;\u{fffd}");
        assert_eq!(short("abcdef", 4), "\u{2026}def");
        assert_eq!(short("abcd", 4), "abcd");
    }
}
