//! A picture of the memory plan: workspace addresses over the calls of the kernels. Each buffer is a
//! rectangle that extends from the first kernel that uses it to the last.

use super::{Data, escape};
use crate::bench::print::bytes;
use crate::nest::{Place, visit};
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 74.0;

/// A buffer in the workspace.
struct Life {
    name: String,
    offset: i64,
    size: i64,
    first: usize,
    last: usize,
}

/// The picture as SVG; `None` if no buffer is in the workspace.
pub fn svg(d: &Data) -> Option<String> {
    let m = d.module;
    let calls = visit::calls(&m.driver);
    // First and last use of each storage, in one pass over the kernels.
    let mut uses: std::collections::HashMap<_, (usize, usize)> = std::collections::HashMap::new();
    for (i, k) in calls.iter().enumerate() {
        let body = &m.kernels[*k].body;
        for b in visit::loads(body).into_iter().chain(visit::stores(body)) {
            let e = uses.entry(m.storage(b)).or_insert((i, i));
            e.1 = i;
        }
    }
    let mut lives = vec![];
    for (b, data) in m.bufs.iter() {
        let (Place::Arena(s), Some((first, last))) = (&data.place, uses.get(&b)) else { continue };
        let slot = &m.slots[*s];
        let (Some(offset), Some(size)) = (d.eval(slot.offset), d.eval(slot.size)) else { continue };
        lives.push(Life { name: data.name.clone(), offset, size, first: *first, last: *last });
    }
    lives.retain(|l| l.size > 0);
    let top = lives.iter().map(|l| l.offset + l.size).max()?;
    let (n, top) = (calls.len().max(1) as f64, top as f64);
    let x = |k: usize| LEFT + k as f64 / n * WIDTH;
    let y = |a: f64| 10.0 + HEIGHT * (1.0 - a / top);
    let mut o = format!(
        "<svg id=\"memory\" role=\"img\" aria-label=\"memory plan over time\" width=\"{:.0}\" \
            height=\"{:.0}\" viewBox=\"0 0 {:.0} {:.0}\">\n",
        LEFT + WIDTH + 10.0,
        HEIGHT + 46.0,
        LEFT + WIDTH + 10.0,
        HEIGHT + 46.0
    );
    for i in 0..=4 {
        let a = top * f64::from(i) / 4.0;
        let _ = writeln!(
            o,
            "<path class=\"grid\" d=\"M{LEFT} {:.1}H{:.0}\"/><text class=\"axis end\" x=\"{:.0}\" \
                y=\"{:.1}\">{}</text>",
            y(a),
            LEFT + WIDTH,
            LEFT - 6.0,
            y(a) + 4.0,
            bytes(a)
        );
    }
    for (i, l) in lives.iter().enumerate() {
        let (left, right) = (x(l.first), x(l.last + 1));
        let (low, high) = (y(l.offset as f64), y((l.offset + l.size) as f64));
        // Adjacent buffers get distant hues.
        let hue = (i * 137) % 360;
        let kernel = |k: usize| calls.get(k).map_or("", |k| m.kernels[*k].name.as_str());
        let _ = writeln!(
            o,
            "<rect class=\"buffer\" x=\"{left:.1}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                fill=\"hsl({hue} 60% 62%)\">\
             <title>{}: {} at {}\nfrom {} to {}</title></rect>",
            (right - left).max(1.0),
            (low - high).max(0.8),
            escape(&l.name),
            bytes(l.size as f64),
            l.offset,
            escape(kernel(l.first)),
            escape(kernel(l.last))
        );
    }
    // The bytes in use at each time: a lower bound for every plan.
    let used: Vec<i64> = {
        let mut change = vec![0i64; calls.len() + 1];
        for l in &lives {
            change[l.first] += l.size;
            change[l.last + 1] -= l.size;
        }
        change
            .iter()
            .scan(0, |sum, c| {
                *sum += c;
                Some(*sum)
            })
            .collect()
    };
    let mut line = String::new();
    for (k, u) in used.iter().take(calls.len()).enumerate() {
        let _ =
            write!(line, "{}{:.1} {:.1}H{:.1}", if k == 0 { "M" } else { "L" }, x(k), y(*u as f64), x(k + 1));
    }
    let most = used.iter().max().copied().unwrap_or(0);
    let _ = writeln!(
        o,
        "<path class=\"live\" d=\"{line}\"><title>in use: at most {}</title></path>",
        bytes(most as f64)
    );
    let _ = writeln!(
        o,
        "<text class=\"axis\" x=\"{LEFT}\" y=\"{:.0}\">kernel 0</text><text class=\"axis end\" x=\"{:.0}\" \
            y=\"{:.0}\">kernel {}</text>\n</svg>",
        HEIGHT + 30.0,
        LEFT + WIDTH,
        HEIGHT + 30.0,
        calls.len().saturating_sub(1)
    );
    let _ = writeln!(
        o,
        "<p>{} buffers in {}; at most {} are in use at once (the line).</p>",
        lives.len(),
        bytes(top),
        bytes(most as f64)
    );
    Some(o)
}
