//! Reports of `onnxc bench` as text and as JSON.

use super::count::Amounts;
use super::{Machine, Node, Report};
use serde_json::{Value, json};

/// A time in a suitable unit.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.3} us", s * 1e6),
        s => format!("{:.1} ns", s * 1e9),
    }
}

/// Bytes in a suitable unit.
pub fn bytes(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.2} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.2} kB", n / 1e3),
        n => format!("{n:.0} B"),
    }
}

fn threads(n: usize) -> String {
    format!("{n} thread{}", if n == 1 { "" } else { "s" })
}

/// The machine's limits.
pub fn machine(m: &Machine) -> String {
    format!(
        "machine, {}: {:.1} GFLOP/s of {}-bit multiply-adds, {:.1} GB/s read from memory\n",
        threads(m.threads),
        m.flops / 1e9,
        m.vector_bits,
        m.memory / 1e9
    )
}

/// The machine's limits as JSON.
pub fn machine_json(m: &Machine) -> Value {
    json!({"threads": m.threads, "vector_bits": m.vector_bits, "flops": m.flops, "memory": m.memory})
}

/// The report as text.
pub fn text(r: &Report) -> String {
    let dims: Vec<String> = r.dims.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let dims = if dims.is_empty() { String::new() } else { format!(" ({})", dims.join(", ")) };
    let mut out = format!("{}{dims}, {}, {}\n", r.model, r.cpu, threads(r.machine.threads));
    out += &format!(
        "  {} per call at best, median {}, {} calls\n",
        time(r.times.min),
        time(r.times.median),
        r.times.calls
    );
    match r.amounts {
        Some(a) => {
            let (flops, rate) = (a.flops / r.times.min, a.bytes / r.times.min);
            // The peak for this mix of types.
            let peak = if a.lanes > 0.0 { r.machine.flops * a.flops / a.lanes } else { r.machine.flops };
            out += &format!(
                "  {:.1} GFLOP/s of {:.1} ({:.1} % of the peak of {}-bit multiply-adds)\n",
                flops / 1e9,
                peak / 1e9,
                flops / peak * 100.0,
                r.machine.vector_bits
            );
            out += &format!(
                "  {:.1} GB/s of {:.1} ({:.1} % of the bandwidth for a working set of {})",
                rate / 1e9,
                r.bandwidth / 1e9,
                rate / r.bandwidth * 100.0,
                bytes(r.working_set as f64)
            );
            out += &format!(
                ", {:.1} % of memory's {:.1}\n",
                rate / r.machine.memory * 100.0,
                r.machine.memory / 1e9
            );
        }
        None => {
            out += "  operations and bytes are not known before the run\n";
            out += &format!("  {}", machine(&r.machine));
        }
    }
    if let Some(why) = r.no_nodes {
        out += &format!("  no times of kernels: {why}\n");
    }
    if let Some(nodes) = &r.nodes {
        out += &table(r, nodes);
    }
    out
}

fn table(r: &Report, nodes: &[Node]) -> String {
    let total: f64 = nodes.iter().map(|n| n.times.min).sum();
    let mut out = format!("\n  kernels one by one: {} together\n\n", time(total));
    out += "        time   share       ops      bytes   op/byte   GFLOP/s  of \
        limit  bound    operator             node\n";
    let mut order: Vec<&Node> = nodes.iter().collect();
    order.sort_by(|a, b| b.times.min.total_cmp(&a.times.min));
    for n in order {
        let t = n.times.min;
        let amounts = match n.amounts {
            Some(a) => {
                let (limit, compute) = r.limit(a);
                let ops = if a.flops >= 1e6 {
                    format!("{:.2} M", a.flops / 1e6)
                } else {
                    format!("{:.2} k", a.flops / 1e3)
                };
                let bound = if compute { "compute" } else { "memory" };
                format!(
                    "{ops:>10} {:>10} {:>9.2} {:>9.2} {:>7.1} %  {bound:<7}",
                    bytes(a.bytes),
                    intensity(a),
                    a.flops / t / 1e9,
                    limit / t * 100.0
                )
            }
            None => format!("{:>10} {:>10} {:>9} {:>9} {:>9}  {:<7}", "-", "-", "-", "-", "-", "-"),
        };
        out += &format!("{:>12} {:>5.1} % {amounts}  {:<20} {}\n", time(t), t / total * 100.0, n.op, n.name);
    }
    out
}

fn intensity(a: Amounts) -> f64 {
    if a.bytes > 0.0 { a.flops / a.bytes } else { 0.0 }
}

/// The report as JSON: seconds, operations, bytes.
pub fn json(r: &Report) -> Value {
    let amounts = |a: Option<Amounts>, t: f64| {
        a.map(|a| {
            let (limit, compute) = r.limit(a);
            json!({"flops": a.flops, "bytes": a.bytes, "intensity": intensity(a),
                "flops_per_second": a.flops / t, "bytes_per_second": a.bytes / t,
                "roofline": limit / t, "bound": if compute { "compute" } else { "memory" }})
        })
    };
    let total: f64 = r.nodes.iter().flatten().map(|n| n.times.min).sum();
    let node = |n: &Node| {
        json!({"kernel": n.kernel, "node": n.name, "op": n.op, "min": n.times.min, "median": n.times.median,
            "calls": n.times.calls,
            "share": n.times.min / total, "amounts": amounts(n.amounts, n.times.min)})
    };
    json!({
        "model": r.model,
        "cpu": r.cpu,
        "dims": r.dims.iter().map(|(n, v)| (n.clone(), json!(v))).collect::<serde_json::Map<_, _>>(),
        "min": r.times.min,
        "median": r.times.median,
        "calls": r.times.calls,
        "amounts": amounts(r.amounts, r.times.min),
        "peak_fraction": r.amounts.map(|a| a.lanes / r.times.min / r.machine.flops),
        "memory_fraction": r.amounts.map(|a| a.bytes / r.times.min / r.machine.memory),
        "machine": machine_json(&r.machine),
        "working_set": r.working_set,
        "working_set_bandwidth": r.bandwidth,
        "nodes": r.nodes.as_ref().map(|l| l.iter().map(node).collect::<Vec<_>>()),
        "no_nodes": r.no_nodes,
    })
}
