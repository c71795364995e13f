//! The size of an object by contents (`--emit sizes`): weights by the CPU levels that read them, code by
//! level, tables.

use super::assemble::{Defined, Unit, Variant};
use super::object::build;
use crate::diag::{Failure, Result};
use crate::nest::BufData;
use object::read::{File, Object as _, ObjectSection as _};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Number of functions that are listed by name.
const LARGEST: usize = 10;

/// The report. `constants` has the sizes in bytes of the model's constants after graph passes, by name.
pub fn print(unit: &Unit, constants: &HashMap<&str, u64>) -> Result<String> {
    let model: u64 = constants.values().sum();
    let bug = |e: String| Failure::bug("sizes", e);
    let (product, made, _) = build(unit, false)?;
    let name = |d: &Defined| {
        String::from_utf8_lossy(&product.object.symbol(product.function_symbol(d.id)).name).into_owned()
    };
    let functions: Vec<(String, u64)> = made.defined.iter().map(|d| (name(d), d.size.into())).collect();
    let bytes = product.object.write().map_err(|e| bug(e.to_string()))?;
    let file = File::parse(&*bytes).map_err(|e| bug(e.to_string()))?;
    let weights = unit.weights.size;
    let i = unit.interface;
    let mut out = format!("sizes v1 {}\n", i.name);
    let mut row = |depth: usize, what: &str, n: u64, note: String| {
        let width = 40 - 2 * depth;
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}{what:<width$} {n:>14}{note}", "  ".repeat(depth));
    };
    let inside = if i.weights.external { 0 } else { weights };
    row(0, "object", bytes.len() as u64 + inside, String::new());
    let ratio = if model > 0 {
        format!("  {:.3} of the model's constants", weights as f64 / model as f64)
    } else {
        String::new()
    };
    row(0, if i.weights.external { "weights, in a file" } else { "weights" }, weights, ratio);
    for (levels, n) in readers(unit) {
        row(1, &format!("read by {levels}"), n, String::new());
    }
    for (why, (n, of)) in larger(unit, constants) {
        row(2, why, n, format!("  {of} in the model"));
    }
    let code: u64 = functions.iter().map(|f| f.1).sum();
    row(0, "code", code, format!("  {} functions", functions.len()));
    let mut by_level: BTreeMap<Option<usize>, (u64, usize)> = BTreeMap::new();
    for d in &made.defined {
        let sum = by_level.entry(d.variant).or_default();
        *sum = (sum.0 + u64::from(d.size), sum.1 + 1);
    }
    for (v, (n, count)) in by_level.iter().filter(|_| unit.variants.len() > 1) {
        let what =
            v.map_or("of all levels".to_owned(), |v| format!("of level {}", unit.variants[v].level.short()));
        row(1, &what, *n, format!("  {count} functions"));
    }
    let of = |f: &dyn Fn(&str) -> bool| -> u64 {
        file.sections().filter(|s| s.name().is_ok_and(f)).map(|s| s.size()).sum()
    };
    let unwind = |n: &str| matches!(n, ".eh_frame" | "__eh_frame" | ".pdata" | ".xdata");
    let debug = |n: &str| n.starts_with(".debug_") || n.starts_with("__debug_");
    let data = |n: &str| {
        !unwind(n)
            && !debug(n)
            && [".data", ".rodata", ".rdata", "__const", "__data"].iter().any(|p| n.starts_with(p))
    };
    row(0, "description of the interface", of(&data), String::new());
    row(0, "unwind information", of(&unwind), String::new());
    if of(&debug) > 0 {
        row(0, "debug information", of(&debug), String::new());
    }
    let mut largest = functions;
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    out += "largest functions\n";
    for (f, n) in largest.iter().take(LARGEST) {
        let _ = writeln!(out, "{n:>14}  {f}");
    }
    Ok(out)
}

/// Weights that are stored larger than they are in the model, because it is faster: by the reason, their
/// bytes and those in the model.
fn larger(unit: &Unit, constants: &HashMap<&str, u64>) -> BTreeMap<&'static str, (u64, u64)> {
    let parts = &unit.weights.parts;
    let mut seen = vec![false; parts.len()];
    let mut out: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    for v in &unit.variants {
        for (k, data) in stored(unit, v) {
            if std::mem::replace(&mut seen[k], true) {
                continue;
            }
            // Passes append what they have done to the name of the constant.
            let ends = data.name.rmatch_indices('.').map(|m| m.0);
            let stems = std::iter::once(data.name.len()).chain(ends).map(|n| &data.name[..n]);
            let Some(of) = stems.into_iter().find_map(|s| constants.get(s)).copied() else { continue };
            let n = parts[k].data.byte_len();
            let why = if data.name.contains(".winograd") {
                "of Winograd's convolutions"
            } else if data.ty.is_float() && n >= 2 * of {
                "converted to floats"
            } else {
                "padded to groups and panels"
            };
            if n > of {
                let sum = out.entry(why).or_default();
                *sum = (sum.0 + n, sum.1 + of);
            }
        }
    }
    out
}

/// The constants of a variant, and which part of the weights each is. Buffers with equal contents share one
/// part.
fn stored<'a>(unit: &'a Unit, v: &'a Variant) -> impl Iterator<Item = (usize, &'a BufData)> {
    let part = |at: i64| unit.weights.parts.partition_point(|p| p.offset <= at as u64).checked_sub(1);
    v.m.bufs.iter().filter_map(move |(b, data)| Some((part(v.weights.offset(b)?)?, data)))
}

/// Bytes of the weights by the levels that read them. Weights of a single level are in a separate row.
fn readers(unit: &Unit) -> BTreeMap<String, u64> {
    let parts = &unit.weights.parts;
    let mut levels: Vec<Vec<String>> = vec![vec![]; parts.len()];
    let mut seen = vec![];
    for v in &unit.variants {
        seen.clear();
        seen.resize(parts.len(), false);
        for (k, _) in stored(unit, v) {
            if !std::mem::replace(&mut seen[k], true) {
                levels[k].push(v.level.name.clone());
            }
        }
    }
    let mut out: BTreeMap<String, u64> = BTreeMap::new();
    for (p, levels) in parts.iter().zip(levels) {
        let who =
            if levels.len() == unit.variants.len() { "every level".to_owned() } else { levels.join(", ") };
        *out.entry(who).or_default() += p.data.byte_len();
    }
    out
}
