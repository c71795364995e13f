//! Random tests for as long as you like: `fuzz --seconds N --seed S [KIND ...]`, all kinds in turn if none is
//! named.
//!
//! | kind | what is made | what must hold |
//! |---|---|---|
//! | `bytes` | damaged model files | compiled or refused, in time and memory; never a panic |
//! | `graphs` | graphs of fixed sizes | every optimisation and CPU level gives what the interpreter gives |
//! | `nests` | loop nests | passes and code keep the meaning |
//! | `sizes` | graphs with symbols, called with sizes from 0 on | what the same graph gives with these sizes fixed |
//! | `calls` | sizes below 0, too little room, hostile values | a status, and no stray access |
//!
//! Items are checked in child processes with every buffer against inaccessible pages, so that a signal is a
//! finding like others. What is found is made smaller and written to `--out` (default: `target/fuzz`). `fuzz
//! --replay FILE ...` checks files again: the part of the name before the first `-` is the kind.

mod call;
#[allow(dead_code)]
#[path = "../../tests/nest_fuzz/check.rs"]
mod check;
mod checks;
#[path = "../../tests/nest_fuzz/contractions.rs"]
mod contractions;
mod damage;
#[path = "../../tests/nest_fuzz/exprs.rs"]
mod exprs;
mod generate;
mod graph;
mod items;
mod memory;
#[allow(dead_code)]
#[path = "../../tests/nest_fuzz/modules.rs"]
mod modules;
mod processes;
#[allow(dead_code)]
#[path = "../../tests/nest_fuzz/seeds.rs"]
mod seeds;
mod shrink;

use checks::{KINDS, Kind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

struct Arguments {
    seconds: u64,
    seed: u64,
    out: PathBuf,
    kinds: Vec<Kind>,
    most: usize,
}

const USAGE: &str =
    "fuzz [--seconds N] [--seed S] [--out FOLDER] [--classes MOST] [bytes|graphs|nests|sizes|calls ...]
fuzz --replay FILE ...";

fn arguments(list: &[String]) -> Option<Arguments> {
    let mut a = Arguments {
        seconds: 60,
        seed: 1,
        out: Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fuzz"),
        kinds: vec![],
        most: 20,
    };
    let mut list = list.iter();
    while let Some(x) = list.next() {
        match x.as_str() {
            "--seconds" => a.seconds = list.next()?.parse().ok()?,
            "--seed" => a.seed = list.next()?.parse().ok()?,
            "--classes" => a.most = list.next()?.parse().ok()?,
            "--out" => a.out = list.next()?.into(),
            kind => a.kinds.push(Kind::find(kind)?),
        }
    }
    if a.kinds.is_empty() {
        a.kinds = KINDS.map(|k| k.0).to_vec();
    }
    Some(a)
}

fn main() -> ExitCode {
    let list: Vec<String> = std::env::args().skip(1).collect();
    match list.first().map(String::as_str) {
        Some("--child") => return processes::child(&list[1..]),
        Some("--try") => return processes::try_one(&list[1..]),
        Some("--replay") => return replay(&list[1..]),
        _ => {}
    }
    let Some(a) = arguments(&list) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let share = Duration::from_secs((a.seconds / a.kinds.len() as u64).max(1));
    let mut found = 0;
    for kind in &a.kinds {
        found += fuzz(*kind, &a, Instant::now() + share);
    }
    ExitCode::from(u8::from(found > 0))
}

/// Checks items until the time is over; how many are at fault.
fn fuzz(kind: Kind, a: &Arguments, until: Instant) -> usize {
    let mut classes = BTreeMap::new();
    let run = processes::run(kind, a.seed, until, |seed, what| {
        // One of a class is made smaller; the others are counted.
        let n = classes.entry(shrink::class(what)).or_insert(0u64);
        *n += 1;
        if *n > 1 || classes.len() > a.most {
            return;
        }
        let (name, bytes, what) = shrink::shrink(kind, seed, what, Duration::from_secs(60));
        let stored = std::fs::create_dir_all(&a.out).and_then(|()| std::fs::write(a.out.join(&name), &bytes));
        println!(
            "{}, seed {seed}: {}\n    {}{}",
            kind.name(),
            what.lines().next().unwrap_or_default(),
            a.out.join(&name).display(),
            if stored.is_err() { " (cannot be written)" } else { "" }
        );
        if kind != Kind::Bytes {
            println!(
                "{}",
                String::from_utf8_lossy(&bytes)
                    .lines()
                    .take(40)
                    .map(|l| format!("    {l}\n"))
                    .collect::<String>()
            );
        }
    });
    println!(
        "{}: {} items, {} calls, {} results, {} refused, {} findings",
        kind.name(),
        run.items,
        run.done.calls,
        run.done.results,
        run.done.refused,
        run.findings
    );
    for (class, n) in classes.iter().filter(|c| *c.1 > 1) {
        println!("    {n} times: {class}");
    }
    run.findings
}

/// Checks files, each in a process of its own.
fn replay(files: &[String]) -> ExitCode {
    let mut bad = 0;
    for f in files {
        match processes::verdict_of_file(Path::new(f)) {
            Some(what) => {
                bad += 1;
                println!("{f}: {what}");
            }
            None => println!("{f}: ok"),
        }
    }
    ExitCode::from(u8::from(bad > 0))
}
