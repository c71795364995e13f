//! The graph as a picture: groups from top to bottom in execution order with their nodes inside, and the
//! values that flow between groups. Values that skip groups are arcs at the side, so the picture needs no
//! layout algorithm and works for thousands of nodes.

use super::{Data, Group, Row, escape, short};
use crate::graph::{Def, Graph, Value};
use crate::ops::Known;
use std::collections::HashMap;
use std::fmt::Write;

const LEFT: f64 = 20.0;
const WIDTH: f64 = 640.0;
const LINE: f64 = 17.0;
const HEAD: f64 = 22.0;
const GAP: f64 = 16.0;
/// Largest width of the arcs.
const ARCS: f64 = 260.0;

/// A box of the picture.
struct Place {
    top: f64,
    bottom: f64,
}

/// The picture as SVG.
pub fn svg(d: &Data, groups: &[Group], rows: &[Row]) -> String {
    let g = &d.compiled.model.graph;
    let total: f64 = rows.iter().filter_map(|r| r.time).sum();
    let mut body = String::new();
    let mut y = 10.0;
    let mut places = vec![];
    // The inputs are the first box and the outputs the last one.
    let inputs: Vec<String> = g.inputs.iter().map(|v| label(d, g, *v)).collect();
    places.push(terminal(&mut body, &mut y, "input", &inputs));
    for group in groups {
        places.push(draw(&mut body, &mut y, d, group, rows, total));
    }
    let outputs: Vec<String> =
        g.outputs.iter().zip(&g.output_names).map(|(v, n)| format!("{n} {}", ty(d, g, *v))).collect();
    places.push(terminal(&mut body, &mut y, "output", &outputs));
    edges(&mut body, d, g, groups, &places);
    let width = LEFT + WIDTH + ARCS;
    format!(
        "<svg id=\"graph\" role=\"img\" aria-label=\"graph with fused kernels\" width=\"{width}\" \
            height=\"{:.0}\" \
         viewBox=\"0 0 {width} {:.0}\">\n{body}</svg>\n",
        y + 4.0,
        y + 4.0
    )
}

fn terminal(o: &mut String, y: &mut f64, class: &str, lines: &[String]) -> Place {
    let top = *y;
    let height = 8.0 + LINE * lines.len().max(1) as f64;
    let _ = writeln!(
        o,
        "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{top:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
            rx=\"{:.0}\"/>",
        height.min(24.0) / 2.0
    );
    for (i, l) in lines.iter().enumerate() {
        let at = top + 4.0 + LINE * (i as f64 + 0.75);
        let _ = writeln!(o, "<text x=\"{:.0}\" y=\"{at:.0}\">{}</text>", LEFT + 14.0, escape(&short(l, 90)));
    }
    *y += height + GAP;
    Place { top, bottom: top + height }
}

fn draw(o: &mut String, y: &mut f64, d: &Data, group: &Group, rows: &[Row], total: f64) -> Place {
    let g = &d.compiled.model.graph;
    let top = *y;
    let height = HEAD + LINE * group.nodes.len() as f64 + if group.nodes.is_empty() { 0.0 } else { 6.0 };
    let kernels: Vec<&Row> = group.kernels.iter().filter_map(|k| rows.get(*k)).collect();
    let time = kernels.iter().map(|r| r.time).sum::<Option<f64>>().filter(|_| !kernels.is_empty());
    let share = time.filter(|_| total > 0.0).map(|t| t / total);
    let class = if kernels.is_empty() { "group free" } else { "group" };
    let _ = writeln!(o, "<g class=\"{class}\">");
    let list: Vec<&str> = kernels.iter().map(|r| r.kernel.as_str()).collect();
    let title = if list.is_empty() {
        "no kernel: views of buffers, and what is known at compile time".into()
    } else {
        list.join("\n")
    };
    let _ = writeln!(
        o,
        "<title>{}</title><rect x=\"{LEFT}\" y=\"{top:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
            rx=\"6\"/>",
        escape_lines(&title)
    );
    if let Some(s) = share {
        let _ = writeln!(
            o,
            "<rect class=\"share\" x=\"{LEFT}\" y=\"{top:.0}\" width=\"{:.1}\" height=\"{HEAD}\" rx=\"6\"/>",
            WIDTH * s
        );
    }
    // The main kernel stores the result. The others of the group pack and pad for it.
    let main = kernels.iter().max_by(|a, b| a.time.partial_cmp(&b.time).unwrap_or(std::cmp::Ordering::Equal));
    let head = match (main, kernels.len()) {
        (None, _) => "no kernel".to_owned(),
        (Some(r), 1) => r.kernel.clone(),
        (Some(r), n) => format!("{} and {} more kernel{}", r.kernel, n - 1, if n == 2 { "" } else { "s" }),
    };
    let _ = writeln!(
        o,
        "<text class=\"head\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
        LEFT + 10.0,
        top + 15.0,
        escape(&short(&head, 60))
    );
    if let (Some(t), Some(s)) = (time, share) {
        let text = format!("{} · {:.1} %", crate::bench::print::time(t), s * 100.0);
        let _ = writeln!(
            o,
            "<text class=\"time\" x=\"{:.0}\" y=\"{:.0}\">{text}</text>",
            LEFT + WIDTH - 10.0,
            top + 15.0
        );
    }
    for (i, n) in group.nodes.iter().enumerate() {
        let data = &g.nodes[*n];
        let at = top + HEAD + LINE * (i as f64 + 0.75);
        let result = data.outputs.iter().flatten().next().map_or(String::new(), |v| label(d, g, *v));
        let bodies = if data.subgraphs.is_empty() { "" } else { " { … }" };
        let _ = writeln!(
            o,
            "<text x=\"{:.0}\" y=\"{at:.0}\"><tspan class=\"op\">{}{bodies}</tspan> {}</text>\
             <text class=\"type\" x=\"{:.0}\" y=\"{at:.0}\">{}</text>",
            LEFT + 22.0,
            escape(data.schema.name),
            escape(&short(&data.origin.name, 46_usize.saturating_sub(data.schema.name.len()).max(8))),
            LEFT + WIDTH - 10.0,
            escape(&short(&result, 44))
        );
    }
    let _ = writeln!(o, "</g>");
    *y += height + GAP;
    Place { top, bottom: top + height }
}

/// A value's name and type.
fn label(d: &Data, g: &Graph, v: Value) -> String {
    format!("{} {}", g.values[v].name, ty(d, g, v))
}

fn ty(d: &Data, g: &Graph, v: Value) -> String {
    let t = g.values[v].ty.as_ref().and_then(|t| t.as_tensor());
    t.map_or(String::new(), |t| t.display(&d.compiled.model.syms).to_string())
}

/// The values that flow from one box to another, each pair once. Boxes are numbered from the inputs on.
fn edges(o: &mut String, d: &Data, g: &Graph, groups: &[Group], places: &[Place]) {
    let at: HashMap<_, usize> =
        groups.iter().enumerate().flat_map(|(i, x)| x.nodes.iter().map(move |n| (*n, i + 1))).collect();
    let from = |v: Value| match g.values[v].def {
        // Sizes are not data.
        _ if !matches!(g.values[v].known, Known::No) => None,
        Def::Input(_) => Some(0),
        Def::Node(n, _) => at.get(&n).copied(),
        _ => None,
    };
    let mut between: Vec<((usize, usize), Vec<String>)> = vec![];
    let mut index: HashMap<(usize, usize), usize> = HashMap::new();
    let mut add = |v: Value, to: usize| {
        let Some(from) = from(v).filter(|f| *f != to) else { return };
        let i = *index.entry((from, to)).or_insert_with(|| {
            between.push(((from, to), vec![]));
            between.len() - 1
        });
        let text = label(d, g, v);
        if !between[i].1.contains(&text) {
            between[i].1.push(text);
        }
    };
    for (i, group) in groups.iter().enumerate() {
        group.nodes.iter().flat_map(|n| g.nodes[*n].inputs.iter().flatten()).for_each(|v| add(*v, i + 1));
    }
    g.outputs.iter().for_each(|v| add(*v, groups.len() + 1));
    for ((from, to), values) in &between {
        let title = escape_lines(&values.join("\n"));
        if *to == from + 1 {
            let (x, y0, y1) = (LEFT + WIDTH / 2.0, places[*from].bottom, places[*to].top);
            let _ = writeln!(
                o,
                "<path class=\"edge\" d=\"M{x:.0} {y0:.0}V{:.0}\" \
                    marker-end=\"url(#arrow)\"><title>{title}</title></path>",
                y1 - 1.0
            );
        } else {
            let (x, y0, y1) = (LEFT + WIDTH, places[*from].bottom - 6.0, places[*to].top + 8.0);
            // Longer arcs extend further out, within the available width.
            let reach = (18.0 * (y1 - y0).abs().sqrt()).min(1.3 * ARCS - 10.0);
            let out = x + reach;
            let _ = writeln!(
                o,
                "<path class=\"edge arc\" d=\"M{x:.0} {y0:.0}C{out:.0} {y0:.0} {out:.0} {y1:.0} {:.0} \
                    {y1:.0}\" \
                 marker-end=\"url(#arrow)\"><title>{title}</title></path>",
                x + 1.0
            );
        }
    }
}

/// Escapes a title but keeps its line breaks.
fn escape_lines(s: &str) -> String {
    s.lines().map(escape).collect::<Vec<_>>().join("\n")
}
