//! Makes what was found smaller, for as long as the same thing is wrong with it.

use crate::checks::Kind;
use crate::items;
use crate::processes::verdict;
use std::time::{Duration, Instant};

/// What two findings of one cause have in common: the words without numbers.
pub fn class(what: &str) -> String {
    let line = what.lines().next().unwrap_or_default();
    // Sizes and levels stand before the last colon or so; they change while an item shrinks.
    let words = line.split(|c: char| !c.is_alphabetic()).filter(|w| w.len() > 3 && !w.starts_with("native"));
    let tail: Vec<&str> = words.collect();
    tail.iter().rev().take(6).rev().copied().collect::<Vec<_>>().join(" ")
}

/// File name, bytes and verdict of the smallest item that is found within the time.
pub fn shrink(kind: Kind, seed: u64, what: &str, most: Duration) -> (String, Vec<u8>, String) {
    let until = Instant::now() + most;
    let wanted = class(what);
    let same = |bytes: &[u8]| verdict(kind, bytes).filter(|w| class(w) == wanted);
    let (bytes, what) = match kind {
        Kind::Graphs | Kind::Sizes | Kind::Calls => {
            let mut best = (items::graph(kind, seed), what.to_owned());
            'again: loop {
                for g in best.0.smaller() {
                    if Instant::now() > until {
                        break 'again;
                    }
                    if let Some(w) = same(g.text().as_bytes()) {
                        best = (g, w);
                        continue 'again;
                    }
                }
                break;
            }
            (best.0.text().into_bytes(), best.1)
        }
        Kind::Nests => {
            let mut best = (items::item(kind, seed), what.to_owned());
            for steps in 1..7 {
                let bytes = format!("seed {seed} steps {steps}\n").into_bytes();
                if let Some(w) = verdict(kind, &bytes) {
                    best = (bytes, w);
                    break;
                }
            }
            let listing: String = best.1.lines().map(|l| format!("# {l}\n")).collect();
            (([best.0, listing.into_bytes()]).concat(), best.1)
        }
        Kind::Bytes => {
            let mut best = (items::item(kind, seed), what.to_owned());
            let mut part = best.0.len() / 2;
            while part > 0 && Instant::now() < until {
                let mut at = 0;
                while at < best.0.len() && Instant::now() < until {
                    let mut less = best.0.clone();
                    less.drain(at..(at + part).min(less.len()));
                    match same(&less) {
                        Some(w) => best = (less, w),
                        None => at += part,
                    }
                }
                part /= 2;
            }
            best
        }
    };
    let ending = match kind {
        Kind::Bytes if std::str::from_utf8(&bytes).is_ok() => "onnxtxt",
        Kind::Bytes => "onnx",
        Kind::Nests => "txt",
        _ => "onnxtxt",
    };
    (format!("{}-{seed}.{ending}", kind.name()), bytes, what)
}
