//! `onnxc report`: one HTML page about a model that shows without a network, scripts or other files: the
//! graph with its fused kernels, the memory plan over time, a roofline, times and sizes. Pictures are SVG
//! inside the page; what a mark stands for is its `<title>`, which browsers show under the pointer.

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
    /// The node that it is called after.
    pub origin: String,
    /// Shortest time in seconds, where it was measured.
    pub time: Option<f64>,
    /// What it does.
    pub amounts: Option<Amounts>,
}

/// What the page shows.
pub struct Data<'a> {
    /// File of the model.
    pub name: String,
    /// The model.
    pub compiled: &'a Compiled,
    /// Its nests on the level that was measured.
    pub module: &'a Module,
    /// Sizes of symbolic dimensions, everywhere on the page.
    pub sizes: HashMap<Sym, i64>,
    /// Times, unless nothing was to be run.
    pub bench: Option<&'a bench::Report>,
}

impl Data<'_> {
    /// The kernels. Where they could be timed one by one there is a time for each call.
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
    /// A size, where these sizes tell it.
    fn eval(&self, d: crate::sym::Dim) -> Option<i64> {
        self.module.syms.expanded(d).eval(&|s| self.sizes.get(&s).copied())
    }
}

/// Text within HTML.
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

/// A name that fits: its end, which tells nodes of one network apart.
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
