//! The item of each kind for a seed.

use crate::checks::Kind;
use crate::damage::damage;
use crate::exprs::Rng;
use crate::generate::generate;
use crate::graph::Graph;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Steps of the longest module.
const STEPS: u64 = 6;
/// Calls of a graph with symbols.
const CALLS: usize = 10;

pub fn graph(kind: Kind, seed: u64) -> Graph {
    generate(seed, if kind == Kind::Graphs { 1 } else { CALLS })
}

/// The bytes of an item.
pub fn item(kind: Kind, seed: u64) -> Vec<u8> {
    match kind {
        Kind::Graphs | Kind::Sizes | Kind::Calls => graph(kind, seed).text().into_bytes(),
        Kind::Nests => format!("seed {seed} steps {}\n", 1 + seed % STEPS).into_bytes(),
        Kind::Bytes => {
            let mut r = Rng(seed);
            let all = models();
            let k = r.below(all.len());
            all.get(k).map_or_else(Vec::new, |m| damage(m, &mut r))
        }
    }
}

/// Models of the repository that get damaged.
fn models() -> &'static [Vec<u8>] {
    static MODELS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = vec![];
        for folder in ["examples", "tests/cases"] {
            collect(&root.join(folder), &mut files);
        }
        files.sort();
        files.iter().filter_map(|f| std::fs::read(f).ok()).filter(|b| !b.is_empty()).collect()
    })
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    for e in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let p = e.path();
        if p.is_dir() {
            collect(&p, out);
        } else if p.extension().is_some_and(|x| x == "onnx" || x == "onnxtxt") {
            out.push(p);
        }
    }
}
