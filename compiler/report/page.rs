//! The HTML page: sections, tables, style.

use super::{Data, Group, Row, escape, flow, groups, memory, roofline, short};
use crate::bench::print::{bytes, time};
use crate::codegen::interface::Tensor;
use crate::graph::Def;
use crate::tensor::TensorType;
use std::fmt::Write;

/// Most rows of the table of constants.
const CONSTANTS: usize = 30;

const STYLE: &str = include_str!("style.css");

/// The page as text.
pub fn html(d: &Data) -> String {
    let rows = d.rows();
    let groups = groups(&d.compiled.model.graph, d.module);
    let mut o = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    // Nothing may be loaded, whatever a model's names contain.
    o += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
        'unsafe-inline'\">\n";
    o += "<meta name=\"viewport\" content=\"width=device-width\">\n";
    let name = std::path::Path::new(&d.name)
        .file_name()
        .map_or(d.name.clone(), |n| n.to_string_lossy().into_owned());
    let _ =
        writeln!(o, "<title>{} - onnxc</title>\n<style>\n{STYLE}</style>\n</head>\n<body>", escape(&name));
    let _ = writeln!(o, "<h1>{}</h1>", escape(&name));
    o += "<nav><a href=\"#summary\">Summary</a> <a href=\"#kernels\">Kernels</a> <a \
        href=\"#roof\">Roofline</a> \
          <a href=\"#plan\">Memory</a> <a href=\"#constants\">Constants</a> <a \
          href=\"#flow\">Graph</a></nav>\n";
    summary(&mut o, d, &rows, &groups);
    kernels(&mut o, d, &rows);
    section(&mut o, "roof", "Roofline");
    o += &roofline::svg(d, &rows).map_or_else(
        || "<p>No kernel was timed with known arithmetic.</p>\n".into(),
        |svg| {
            format!(
                "{svg}<p>Each disc is a kernel; its area is its share of the time. The lines are the limits \
                    of this machine: \
                 the peak of multiply-adds, and the bandwidth of what holds the working set (solid) and of \
                 memory (dashed).</p>\n"
            )
        },
    );
    section(&mut o, "plan", "Memory plan");
    o += &memory::svg(d)
        .unwrap_or_else(|| "<p>No buffer lies in the workspace, or sizes depend on data.</p>\n".into());
    constants(&mut o, d);
    section(&mut o, "flow", "Graph");
    o += "<p>Boxes are groups of nodes that run together: one kernel, and those that pack or pad for it. \
        The bar in the head of a \
          box is its share of the time.</p>\n";
    o += "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" \
        refX=\"7\" refY=\"4\" \
          markerWidth=\"7\" markerHeight=\"7\" orient=\"auto-start-reverse\"><path d=\"M0 0L8 4L0 \
          8z\"/></marker></defs></svg>\n";
    o += &flow::svg(d, &groups, &rows);
    o += "</section>\n";
    let _ = writeln!(o, "<footer>onnxc {}</footer>\n</body>\n</html>", env!("CARGO_PKG_VERSION"));
    o
}

/// A number with three digits and a unit.
fn count(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2} G", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e3 => format!("{:.2} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// Ends a section and begins the next one.
fn section(o: &mut String, id: &str, title: &str) {
    if o.contains("<section") {
        *o += "</section>\n";
    }
    let _ = writeln!(o, "<section id=\"{id}\">\n<h2>{title}</h2>");
}

fn row(o: &mut String, what: &str, value: &str) {
    let _ = writeln!(o, "<tr><th scope=\"row\">{what}</th><td>{value}</td></tr>");
}

fn summary(o: &mut String, d: &Data, rows: &[Row], groups: &[Group]) {
    section(o, "summary", "Summary");
    let (c, i) = (d.compiled, &d.compiled.interface);
    *o += "<table class=\"facts\">\n";
    let ty = |t: &Tensor| match &t.described {
        Some(x) => x.text(t.ty.onnx_name()),
        None => TensorType::new(t.ty, t.dims.clone()).display(&i.syms).to_string(),
    };
    let list = |l: &[Tensor]| {
        l.iter()
            .map(|t| format!("<code>{}</code> {}", escape(&t.name), escape(&ty(t))))
            .collect::<Vec<_>>()
            .join("<br>")
    };
    row(o, "inputs", &list(&i.inputs));
    row(o, "outputs", &list(&i.outputs));
    if !i.dim_params.is_empty() {
        let sizes: Vec<String> = i
            .dim_params
            .iter()
            .map(|p| {
                let at = d.sizes.get(&p.sym).map_or(String::new(), |v| format!(" = {v}"));
                let hi = p.hi.map_or("any size".into(), |h| format!("at most {h}"));
                format!("<code>{}</code>{at} (from {}, {hi})", escape(&p.name), p.lo)
            })
            .collect();
        row(o, "dimensions", &sizes.join("<br>"));
    }
    row(o, "target", &escape(&format!("{}, {}", i.target, i.cpu)));
    let nodes: usize = groups.iter().map(|g| g.nodes.len()).sum();
    let fused = groups.iter().filter(|g| !g.kernels.is_empty()).count();
    row(o, "nodes", &format!("{nodes} in {fused} groups of {} kernels", rows.len()));
    row(o, "weights", &bytes(c.weights.size as f64));
    let workspace =
        d.eval(i.workspace).map_or(escape(&i.workspace.display(&i.syms).to_string()), |w| bytes(w as f64));
    row(o, "workspace", &workspace);
    let total = rows.iter().try_fold((0.0, 0.0), |s, r| r.amounts.map(|a| (s.0 + a.flops, s.1 + a.bytes)));
    if let Some((flops, moved)) = total {
        row(o, "a call", &format!("{} operations, at least {} moved", count(flops), bytes(moved)));
    }
    if let Some(b) = d.bench {
        let threads = b.machine.threads;
        let s = if threads == 1 { "" } else { "s" };
        row(
            o,
            "time",
            &format!("{} at best, {} median, {threads} thread{s}", time(b.times.min), time(b.times.median)),
        );
        let peak =
            format!("{:.1} GFLOP/s, {:.1} GB/s from memory", b.machine.flops / 1e9, b.machine.memory / 1e9);
        row(o, "this machine", &peak);
    }
    *o += "</table>\n";
}

fn kernels(o: &mut String, d: &Data, rows: &[Row]) {
    section(o, "kernels", "Kernels");
    match d.bench {
        None => *o += "<p>Nothing was run (--no-run).</p>\n",
        Some(b) => {
            if let Some(why) = b.no_nodes {
                let _ = writeln!(o, "<p>No times: {}.</p>", escape(why));
            }
        }
    }
    let total: f64 = rows.iter().filter_map(|r| r.time).sum();
    let mut order: Vec<(usize, &Row)> = rows.iter().enumerate().collect();
    order.sort_by(|a, b| b.1.time.unwrap_or(0.0).total_cmp(&a.1.time.unwrap_or(0.0)));
    *o += "<div class=\"scroll\"><table \
        class=\"list\">\n<thead><tr><th>#</th><th>kernel</th><th>node</th><th>time</th><th>share</th>\
           <th>operations</th><th>bytes</th><th>op/byte</th><th>GFLOP/s</th><th>of \
           limit</th></tr></thead>\n<tbody>\n";
    for (k, r) in order {
        let (mut t, mut bar) = ("-".to_owned(), "<td class=\"bar\"></td>".to_owned());
        if let Some(x) = r.time {
            let share = if total > 0.0 { x / total * 100.0 } else { 0.0 };
            t = time(x);
            bar = format!(
                "<td class=\"bar\"><svg width=\"120\" height=\"12\" aria-hidden=\"true\"><rect \
                    width=\"{:.1}\" height=\"12\"/></svg> {share:.1} %</td>",
                share * 1.2
            );
        }
        let amounts = r.amounts.map_or_else(
            || "<td>-</td><td>-</td><td>-</td>".to_owned(),
            |a| {
                let intensity = if a.bytes > 0.0 { a.flops / a.bytes } else { 0.0 };
                format!("<td>{}</td><td>{}</td><td>{intensity:.2}</td>", count(a.flops), bytes(a.bytes))
            },
        );
        let rates = match (r.amounts, r.time, d.bench) {
            (Some(a), Some(x), Some(b)) if x > 0.0 => {
                let (limit, compute) = b.limit(a);
                let bound = if compute { "arithmetic" } else { "memory" };
                format!(
                    "<td>{:.2}</td><td title=\"bound by {bound}\">{:.0} %</td>",
                    a.flops / x / 1e9,
                    limit / x * 100.0
                )
            }
            _ => "<td>-</td><td>-</td>".to_owned(),
        };
        let _ = writeln!(
            o,
            "<tr><td>{k}</td><td title=\"{0}\"><code>{1}</code></td><td \
                title=\"{2}\">{3}</td><td>{t}</td>{bar}{amounts}{rates}</tr>",
            escape(&r.kernel),
            escape(&short(&r.kernel, 40)),
            escape(&r.origin),
            escape(&short(&r.origin, 48))
        );
    }
    *o += "</tbody></table></div>\n";
}

/// The largest constants of the graph.
fn constants(o: &mut String, d: &Data) {
    section(o, "constants", "Constants");
    let g = &d.compiled.model.graph;
    let mut list: Vec<(u64, String, String)> = g
        .values
        .values()
        .filter_map(|v| {
            let Def::Const(c) = &v.def else { return None };
            let n: u64 = c.dims().iter().map(|d| (*d).max(0) as u64).product();
            let dims: Vec<String> = c.dims().iter().map(i64::to_string).collect();
            Some((c.elem().bytes_for(n)?, v.name.clone(), format!("{}[{}]", c.elem(), dims.join(", "))))
        })
        .collect();
    list.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let all: u64 = list.iter().map(|c| c.0).sum();
    let _ = writeln!(
        o,
        "<p>{} constants of the graph, {}. The object holds {} of weights: packed, for all its CPU \
            levels.</p>",
        list.len(),
        bytes(all as f64),
        bytes(d.compiled.weights.size as f64)
    );
    *o += "<table class=\"list\">\n<thead><tr><th>bytes</th><th>share</th><th>constant</th><th>type</th></tr>\
           </thead>\n<tbody>\n";
    for (size, name, ty) in list.iter().take(CONSTANTS) {
        let share = if all > 0 { *size as f64 / all as f64 * 100.0 } else { 0.0 };
        let _ = writeln!(
            o,
            "<tr><td>{}</td><td class=\"bar\"><svg width=\"120\" height=\"12\" aria-hidden=\"true\"><rect \
                width=\"{:.1}\" height=\"12\"/></svg> {share:.1} %</td>\
             <td title=\"{}\"><code>{}</code></td><td>{}</td></tr>",
            bytes(*size as f64),
            share * 1.2,
            escape(name),
            escape(&short(name, 60)),
            escape(ty)
        );
    }
    *o += "</tbody></table>\n";
    if list.len() > CONSTANTS {
        let rest: u64 = list[CONSTANTS..].iter().map(|c| c.0).sum();
        let _ = writeln!(o, "<p>{} more, {}.</p>", list.len() - CONSTANTS, bytes(rest as f64));
    }
}
