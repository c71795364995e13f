//! What the fuzz program found once (tests/corpus) and a few items of each kind that are the same every time.
//! Each is checked as `examples/fuzz` does it, with every buffer against inaccessible pages; a signal ends
//! this process, and the last line of its output names the item.

#[path = "../examples/fuzz/call.rs"]
mod call;
#[allow(dead_code)]
#[path = "nest_fuzz/check.rs"]
mod check;
#[allow(dead_code)]
#[path = "../examples/fuzz/checks.rs"]
mod checks;
#[path = "nest_fuzz/contractions.rs"]
mod contractions;
#[path = "../examples/fuzz/damage.rs"]
mod damage;
#[path = "nest_fuzz/exprs.rs"]
mod exprs;
#[path = "../examples/fuzz/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../examples/fuzz/graph.rs"]
mod graph;
#[path = "../examples/fuzz/items.rs"]
mod items;
#[allow(dead_code)]
#[path = "../examples/fuzz/memory.rs"]
mod memory;
#[allow(dead_code)]
#[path = "nest_fuzz/modules.rs"]
mod modules;
#[allow(dead_code)]
#[path = "nest_fuzz/seeds.rs"]
mod seeds;

use checks::{KINDS, Kind};
use std::path::{Path, PathBuf};

/// Seeds of each kind.
const SEEDS: u64 = 25;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the corpus")
        .flatten()
        .map(|e| e.path())
        .filter(|p| !p.ends_with("README.md"))
        .collect();
    all.sort();
    all
}

#[test]
fn what_was_found_stays_right() {
    let mut wrong = vec![];
    let all = files();
    for f in &all {
        let name = f.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        eprintln!("{name}");
        let kind =
            Kind::find(name.split('-').next().unwrap_or_default()).expect("a name that begins with a kind");
        if let Err(e) = checks::check(kind, &std::fs::read(f).expect("readable")) {
            wrong.push(format!("{name}: {e}"));
        }
    }
    assert!(!all.is_empty() && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_few_items_of_each_kind() {
    let mut wrong = vec![];
    for (kind, name) in KINDS {
        let (mut results, mut refused) = (0, 0);
        for seed in 0..SEEDS {
            eprintln!("{name} {seed}");
            match checks::check(kind, &items::item(kind, seed)) {
                Ok(d) => (results, refused) = (results + d.results, refused + d.refused),
                Err(e) => wrong.push(format!("{name} {seed}: {e}")),
            }
        }
        // Generators that make nothing that runs would find nothing; most damaged files are refused.
        let enough = if kind == Kind::Bytes { results + refused } else { results };
        assert!(enough > SEEDS / 4, "{name}: {results} results, {refused} refused");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
