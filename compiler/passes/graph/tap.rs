//! add_taps: makes inner tensors that the user selects outputs (`--tap`). It runs after sequences, optionals
//! and maps have become tensors, and before unused nodes are dropped.

use crate::diag::{Error, Findings, Origin, Result, codes};
use crate::graph::{Def, Model, Node, Value};
use std::collections::HashMap;

/// The name that selects every tensor.
const ALL: &str = "all";
/// Number of candidates that an error lists.
const SHOWN: usize = 8;

/// True if `name` matches a pattern, in which `*` matches any text and `?` any character.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (p, s): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut i, mut j) = (0, 0);
    // The last star, and the end of the text that it matches.
    let mut star = None;
    while j < s.len() {
        match p.get(i) {
            Some('*') => {
                star = Some((i, j));
                i += 1;
            }
            Some(c) if *c == '?' || *c == s[j] => {
                i += 1;
                j += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    i = at + 1;
                    j = taken + 1;
                }
                None => return false,
            },
        }
    }
    p[i..].iter().all(|c| *c == '*')
}

/// Names of the values that nodes of the main graph define, with their nodes, in the order of the file.
pub fn tensors(model: &Model) -> Vec<(String, Origin)> {
    let g = &model.graph;
    let of = |n: &Node| {
        g.nodes[*n]
            .outputs
            .iter()
            .flatten()
            .map(|v| (g.values[*v].name.clone(), g.nodes[*n].origin.clone()))
            .collect::<Vec<_>>()
    };
    g.order.iter().flat_map(of).filter(|n| !n.0.is_empty()).collect()
}

/// The names that match patterns, except those of outputs. A pattern without a match is an error.
pub fn choose(model: &Model, patterns: &[String], findings: &mut Findings) -> Vec<String> {
    let names: Vec<String> = tensors(model).into_iter().map(|t| t.0).collect();
    for p in patterns {
        if p != ALL && !names.iter().any(|n| n == p || matches(p, n)) {
            let mut near: Vec<(f64, &String)> = names.iter().map(|n| (strsim::jaro(p, n), n)).collect();
            near.sort_by(|a, b| b.0.total_cmp(&a.0));
            let near: Vec<&str> = near.iter().take(SHOWN).map(|n| n.1.as_str()).collect();
            let e = Error::new(codes::OPTION, format!("--tap: no node of the main graph computes \"{p}\""))
                .at(&model.origin);
            findings.push(
                e.found_expected(p.clone(), format!("e.g. {}", near.join(", ")))
                    .help("`onnxc model.onnx --emit graph -o -` prints the names"),
            );
        }
    }
    let wanted = |n: &String| patterns.iter().any(|p| p == ALL || p == n || matches(p, n));
    names.into_iter().filter(|n| wanted(n) && !model.graph.output_names.contains(n)).collect()
}

/// Runs the pass.
pub fn run(model: &mut Model, findings: &mut Findings) -> Result<()> {
    let g = &mut model.graph;
    let by_name: HashMap<&str, Value> = g
        .values
        .iter()
        .filter(|(_, d)| matches!(d.def, Def::Node(..)))
        .map(|(v, d)| (d.name.as_str(), v))
        .collect();
    let mut found = vec![];
    for name in &model.taps {
        match by_name.get(name.as_str()) {
            Some(v) => found.push((*v, name.clone())),
            None => {
                let e = Error::remark(
                    codes::NO_EFFECT,
                    format!("--tap: \"{name}\" is no tensor, or a constant: it does not become an output"),
                )
                .at(&model.origin);
                findings.push(e.found_expected(name.clone(), "a tensor that a node computes"));
            }
        }
    }
    for (v, name) in found {
        g.outputs.push(v);
        g.output_names.push(name);
        g.output_elems.push(None);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, name, is) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("/l?/*/out", "/l3/x/y/out", true),
            ("", "a", false),
            ("a?", "a", false),
            ("**b", "aab", true),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }
}
