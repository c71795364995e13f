//! What must hold of an item: a damaged file, a graph with sizes, a random nest.

use crate::call::{self, Built, End, Ready};
use crate::check;
use crate::exprs::Rng;
use crate::graph;
use crate::seeds;
use onnxc::diag::Failure;
use onnxc::nest::interp::Outcome;
use onnxc::options::{OptLevel, Options};
use onnxc::pipeline;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bytes,
    Graphs,
    Nests,
    Sizes,
    Calls,
}

pub const KINDS: [(Kind, &str); 5] = [
    (Kind::Bytes, "bytes"),
    (Kind::Graphs, "graphs"),
    (Kind::Nests, "nests"),
    (Kind::Sizes, "sizes"),
    (Kind::Calls, "calls"),
];

impl Kind {
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|k| k.0 == self).map_or("", |k| k.1)
    }
    pub fn find(name: &str) -> Option<Kind> {
        KINDS.iter().find(|k| k.1 == name).map(|k| k.0)
    }
}

/// What was done with an item.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub calls: u64,
    pub results: u64,
    pub refused: u64,
}

/// Seconds that the compiler may take, and for each MB of the file.
const SECONDS: u64 = 10;
const TOLERANCE: f64 = 1e-3;

/// Checks one item; the error says what is wrong.
pub fn check(kind: Kind, bytes: &[u8]) -> Result<Done, String> {
    let text = || std::str::from_utf8(bytes).map_err(|_| "this is no text".to_owned());
    let run = || match kind {
        Kind::Bytes => damaged(bytes),
        Kind::Graphs => every_level(text()?),
        Kind::Sizes => sizes(text()?),
        Kind::Calls => hostile(text()?),
        Kind::Nests => nest(text()?),
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|p| {
        let text =
            p.downcast_ref::<String>().cloned().or_else(|| p.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// A file, however broken, is compiled or refused, in time.
fn damaged(bytes: &[u8]) -> Result<Done, String> {
    let start = Instant::now();
    let options = Options { verify: true, stop_after: Some("place_memory".into()), ..Options::default() };
    let r = pipeline::run(&call::source("damaged", bytes), &options);
    let took = start.elapsed().as_secs();
    if took > SECONDS + SECONDS * (bytes.len() as u64 >> 20) {
        return Err(format!("{took} seconds for {} bytes", bytes.len()));
    }
    match r {
        Err(Failure::Bug(b)) => Err(format!("internal error in {}: {}", b.stage, b.message)),
        Err(_) => Ok(Done { refused: 1, ..Done::default() }),
        Ok(_) => Ok(Done { results: 1, ..Done::default() }),
    }
}

/// Optimisation and CPU levels that this machine runs.
fn variants() -> Vec<(OptLevel, Option<String>)> {
    let all = seeds::variants().into_iter();
    all.map(|(o, t)| (o, Some(t.lowest().name.clone()).filter(|n| !n.is_empty() && n != "native"))).collect()
}

/// The interpreter's result with sizes fixed. None: refused, or larger than what is tried.
fn reference(
    text: &str,
    sizes: &call::Sizes,
    inputs: &[Vec<u8>],
) -> Result<Option<(End, onnxc::nest::Module)>, String> {
    match call::fixed(text, sizes).map_err(|e| format!("sizes fixed: {e}"))? {
        Built::Good(m) => Ok(Some((call::interpreted(&m, inputs)?, m))),
        Built::Refused(_) => Ok(None),
    }
}

fn compared(m: &onnxc::nest::Module, want: &Outcome, got: &Outcome) -> Result<(), String> {
    check::compare(m, want, got, TOLERANCE)
}

/// A graph of fixed sizes at every level against the interpreter.
fn every_level(text: &str) -> Result<Done, String> {
    let (all, seed) = graph::calls(text);
    let mut done = Done::default();
    for sizes in &all {
        let module = match call::fixed(text, sizes)? {
            Built::Good(m) => m,
            Built::Refused(_) => {
                done.refused += 1;
                continue;
            }
        };
        let mut want = None;
        for (opt, cpu) in variants() {
            let level = format!("{opt:?} {}", cpu.as_deref().unwrap_or("native"));
            let ready =
                match Ready::new(text, sizes, opt, cpu.as_deref()).map_err(|e| format!("{level}: {e}"))? {
                    Built::Good(r) => r,
                    Built::Refused(e) => return Err(format!("{level}: refused after it was lowered: {e}")),
                };
            let params = ready.params(sizes);
            let Some(inputs) = ready.inputs(&params, seed) else { break };
            if want.is_none() {
                want = Some(call::interpreted(&module, &inputs)?);
            }
            for end in [true, false] {
                let got = ready.call(&params, &inputs, end).map_err(|e| format!("{level}: {e}"))?;
                done.calls += 1;
                agree(want.as_ref(), &got, &module).map_err(|e| format!("{level}: {e}"))?;
                done.results += u64::from(matches!(got, End::Done(_)));
            }
        }
    }
    Ok(done)
}

/// What of a module without passes stays when it is compiled: an index out of range that nothing but a size
/// follows from, or in a tensor without elements, may or may not be noticed.
fn unnoticed(want: &End, got: &End) -> bool {
    const INDEX: i32 = onnxc::nest::Status::Index as i32;
    match (want, got) {
        (End::Status(INDEX), End::Done(_)) => true,
        (End::Done(o), End::Status(INDEX)) => o.outputs.iter().any(Vec::is_empty),
        _ => false,
    }
}

fn agree(want: Option<&End>, got: &End, m: &onnxc::nest::Module) -> Result<(), String> {
    if want.is_some_and(|w| unnoticed(w, got)) {
        return Ok(());
    }
    match (want, got) {
        (_, End::Large) | (None | Some(End::Status(_) | End::Large), End::Status(_)) => Ok(()),
        (Some(End::Done(w)), End::Done(g)) => compared(m, w, g),
        (Some(End::Done(_)), End::Status(s)) => Err(format!("status {s}, where fixed sizes give a result")),
        (Some(End::Status(s)), End::Done(_)) => Err(format!("a result, where fixed sizes give status {s}")),
        (Some(End::Large), End::Done(_)) | (None, End::Done(_)) => Ok(()),
    }
}

/// True for results without elements of a graph that reshapes. A size of the shape that is 0 (or -1) for some
/// sizes only is a size where it is computed at run time; where it is known when the model is compiled, it
/// stands for another size.
fn reshapes_nothing(text: &str, end: &End) -> bool {
    text.contains("= Reshape") && matches!(end, End::Done(o) if o.outputs.iter().any(Vec::is_empty))
}

/// A graph with symbols, called with sizes, against the interpreter on the same graph with these sizes fixed.
fn sizes(text: &str) -> Result<Done, String> {
    let (all, seed) = graph::calls(text);
    let mut done = Done::default();
    let levels = variants();
    let (opt, cpu) = levels[seed as usize % levels.len()].clone();
    let level = format!("{opt:?} {}", cpu.as_deref().unwrap_or("native"));
    let ready = match Ready::new(text, &[], opt, cpu.as_deref()).map_err(|e| format!("{level}: {e}"))? {
        Built::Good(r) => r,
        Built::Refused(e) => {
            // What is a network for some sizes is one for symbols.
            for sizes in &all {
                if let Built::Good(ready) = Ready::new(text, sizes, OptLevel::O0, None)? {
                    let params = ready.params(sizes);
                    let Some(inputs) = ready.inputs(&params, seed) else { continue };
                    if let Some((want @ End::Done(_), _)) = reference(text, sizes, &inputs)?
                        && !reshapes_nothing(text, &want)
                    {
                        return Err(format!("refused for its symbols; with {sizes:?} it is not: {e}"));
                    }
                }
            }
            return Ok(Done { refused: 1, ..done });
        }
    };
    for sizes in &all {
        let params = ready.params(sizes);
        let Some(inputs) = ready.inputs(&params, seed) else { continue };
        eprintln!("call {level} {sizes:?}");
        let at = |e: String| format!("{level}, sizes {sizes:?}: {e}");
        let mut first = None;
        for end in [true, false] {
            let got = ready.call(&params, &inputs, end).map_err(at)?;
            done.calls += 1;
            if first.get_or_insert_with(|| got.clone()) != &got {
                return Err(at("other outputs in other memory".into()));
            }
        }
        let Some(got) = first else { continue };
        done.results += u64::from(matches!(got, End::Done(_)));
        let reference = reference(text, sizes, &inputs).map_err(at)?;
        match reference {
            None if matches!(got, End::Done(_)) && !reshapes_nothing(text, &got) => {
                return Err(at("a result, where fixed sizes are refused".into()));
            }
            None => {}
            Some((want, _)) if reshapes_nothing(text, &want) || reshapes_nothing(text, &got) => {}
            Some((want, m)) => agree(Some(&want), &got, &m).map_err(at)?,
        }
    }
    Ok(done)
}

/// Calls that no caller should make. They end with a status, and no access goes astray.
fn hostile(text: &str) -> Result<Done, String> {
    let (all, seed) = graph::calls(text);
    let mut done = Done::default();
    let levels = variants();
    let (opt, cpu) = levels[seed as usize % levels.len()].clone();
    let Built::Good(ready) = Ready::new(text, &[], opt, cpu.as_deref())? else {
        return Ok(Done { refused: 1, ..done });
    };
    let mut r = Rng(seed);
    let none: Vec<Vec<u8>> = ready.interface.inputs.iter().map(|_| vec![]).collect();
    for sizes in &all {
        // A size below 0, with buffers of nothing.
        let mut params = ready.params(sizes);
        if !params.is_empty() {
            let k = r.below(params.len());
            params[k] = r.of(&[-1, -2, -7, -64, -(1 << 31), -(1 << 40), i64::MIN, i64::MIN + 1]);
            eprintln!("call with {params:?}");
            let room: Vec<Vec<i64>> = ready.interface.outputs.iter().map(|t| vec![0; t.dims.len()]).collect();
            let status = ready
                .once(&params, &none, &room, 0, r.chance(50))
                .map_err(|e| format!("sizes {params:?}: {e}"))?
                .0;
            if status == 0 || ready.workspace(&params).is_ok() {
                return Err(format!(
                    "sizes {params:?} are taken: the call returns {status}, workspace_for {:?}",
                    ready.workspace(&params)
                ));
            }
            done.calls += 1;
            // Sizes of which nobody has buffers: only what the workspace takes is asked for.
            params[k] = r.of(&[1 << 31, 1 << 40, i64::MAX, i64::MAX - 1, (1 << 62) + 1]);
            let _ = ready.workspace(&params);
        }
        // Positions, counts and numbers that nobody expects.
        let params = ready.params(sizes);
        let Some(mut inputs) = ready.inputs(&params, seed) else { continue };
        for (t, data) in ready.interface.inputs.iter().zip(&mut inputs) {
            use onnxc::tensor::ElemType as T;
            let words: Vec<[u8; 8]> = match t.ty {
                T::I64 => [i64::MIN, i64::MAX, -1, 1 << 32, 1 << 62, -9, 1000].map(i64::to_le_bytes).to_vec(),
                _ => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX, f32::MIN_POSITIVE]
                    .map(|v| [v.to_le_bytes(), [0; 4]].concat().try_into().unwrap_or_default())
                    .to_vec(),
            };
            let n = if t.ty == T::I64 { 8 } else { 4 };
            if t.ty != T::Bool {
                for element in data.chunks_exact_mut(n) {
                    if r.chance(30) {
                        element.copy_from_slice(&r.of(&words)[..n]);
                    }
                }
            }
        }
        eprintln!("call with {params:?} and hostile values");
        ready
            .call(&params, &inputs, r.chance(50))
            .map_err(|e| format!("sizes {sizes:?} and hostile values: {e}"))?;
        done.calls += 1;
        // Less room than the outputs need, or a negative one.
        let Ok(bytes) = ready.workspace(&params) else { continue };
        if bytes > 1 << 28 {
            continue;
        }
        let calm = ready.inputs(&params, seed).unwrap_or_default();
        if let End::Done(o) = ready.call(&params, &calm, true)? {
            for _ in 0..3 {
                let room: Vec<Vec<i64>> = o
                    .dims
                    .iter()
                    .zip(&ready.interface.outputs)
                    .map(|(d, t)| {
                        d.iter()
                            .map(|n| {
                                if t.from_data(&ready.interface.syms) && r.chance(50) {
                                    r.of(&[0, n - 1, n / 2, -1, i64::MIN])
                                } else {
                                    *n
                                }
                            })
                            .collect()
                    })
                    .collect();
                if room.iter().zip(&o.dims).any(|(r, d)| r != d && call::count(r) >= call::count(d)) {
                    continue;
                }
                eprintln!("call with {params:?} and room for {room:?}");
                let status = ready
                    .once(&params, &calm, &room, bytes as usize, r.chance(50))
                    .map_err(|e| format!("sizes {sizes:?}, room for {room:?}: {e}"))?
                    .0;
                done.calls += 1;
                if status == 0 && room != o.dims {
                    return Err(format!("sizes {sizes:?}: the outputs {:?} fit into {room:?}", o.dims));
                }
                done.results += u64::from(status == 0);
            }
        }
    }
    Ok(done)
}

/// `seed 12 steps 3`: the interpreter before and after all passes against native code.
fn nest(text: &str) -> Result<Done, String> {
    let words: Vec<&str> = text.lines().next().unwrap_or_default().split_whitespace().collect();
    let ["seed", seed, "steps", steps] = words[..] else {
        return Err("this is no item of the kind nests".into());
    };
    let number = |s: &str| s.parse::<u64>().map_err(|e| e.to_string());
    seeds::check_seed(number(seed)?, number(steps)? as usize)
        .map_err(|w| format!("{}\n{}", w.what, w.module))?;
    Ok(Done { calls: seeds::variants().len() as u64, results: 1, refused: 0 })
}
