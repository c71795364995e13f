//! One test for each file under tests/cases: a model in ONNX textual syntax with directives as comments.
//!
//! ```text
//! # emit: graph, nest            snapshots of these outputs (any kind of --emit but obj)
//! # stop-after: lower            snapshot of the IR after a pass
//! # error                        compiling fails: snapshot of the findings
//! # run: 3                       runs the model with this seed: code in memory against the unoptimised code, and with
//!                                --math strict one CPU level against another, bit by bit
//! # dim: N=4                     like --dim
//! # target: aarch64-unknown-linux-gnu
//! # cpu: x86-64-v2,x86-64-v4     like --cpu; for x86-64 one level, x86-64-v3, unless said otherwise
//! # alias: present=past          like --alias
//! # custom: com.example:Scale=my_scale    like --custom; such a case cannot run
//! # size: P=3                    for runs, like --size; a size of an input is 5 unless it is given
//! # dim-expressions            like --dim-expressions
//! # ignore-output-types        like --ignore-output-types
//! # opt: 0                       like -O
//! # math: fast                   like --math
//! # tiles: y, z                  kernels that leave all arithmetic of floats to tiles: their Cranelift IR has none
//! ```
//!
//! A file `nest/PASS/NAME.nest` is a module as text that one nest pass gets: the snapshot shows what it makes
//! of it. The interpreter must compute the same before and after. Directives stand before the text, behind a
//! semicolon:
//!
//! ```text
//! ; target: aarch64-unknown-linux-gnu
//! ; cpu: x86-64-v3               the level, x86-64-v3 unless said otherwise
//! ; dim: N=5                     a size for the interpreter
//! ; math: fast
//! ; const w : f32[8, 3] 7        the constant #w: numbers made from a seed
//! ; const p = panels of w by 32  the constant #p: rows of the matrix #w in panels, w[r, c] at [r / 32, c, r % 32]
//! ; same                         the pass changes nothing
//! ```
//!
//! A file `tile/NAME.tile` is a function of the tile IR as text, as `--emit tiles` prints it: it reads back as it
//! stands, and the snapshot shows what each machine of `; machines: avx2, avx512, neon` selects for it.
//!
//! Snapshots lie beside the case. `INSTA_UPDATE=always cargo test --test cases` writes them.

#[path = "cases/nest.rs"]
mod nest;
#[path = "cases/tile.rs"]
mod tile;

use libtest_mimic::{Arguments, Failed, Trial};
use onnxc::arrays::Array;
use onnxc::codegen::interface::{Interface, Kind};
use onnxc::io_descriptors::Input;
use onnxc::onnx::Source;
use onnxc::options::{Math, OptLevel, Options};
use onnxc::pipeline::{self, Stopped};
use onnxc::run::{Runner, compare};
use onnxc::target::Target;
use onnxc::tensor::ElemType;
use std::path::{Path, PathBuf};

fn main() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files = vec![];
    find(&dir, &mut files);
    files.sort();
    let trials = files
        .into_iter()
        .map(|f| {
            let name = f.strip_prefix(&dir).expect("inside").with_extension("").display().to_string();
            Trial::test(name, move || {
                match f.extension().and_then(|x| x.to_str()) {
                    Some("nest") => nest::case(&f),
                    Some("tile") => tile::case(&f),
                    _ => case(&f),
                }
                .map_err(Failed::from)
            })
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn find(dir: &Path, out: &mut Vec<PathBuf>) {
    for e in std::fs::read_dir(dir).expect("tests/cases").flatten() {
        let p = e.path();
        if p.is_dir() {
            find(&p, out);
        } else if p.extension().is_some_and(|x| x == "onnxtxt" || x == "nest" || x == "tile") {
            out.push(p);
        }
    }
}

fn case(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut options =
        Options { verify: true, target: Some("x86_64-unknown-linux-gnu".into()), ..Options::default() };
    let mut cpu = None;
    let mut emits: Vec<String> = vec![];
    let mut tiles: Vec<String> = vec![];
    let (mut stops, mut seeds, mut sizes, mut error) = (vec![], vec![], vec![], false);
    for l in text.lines().filter_map(|l| l.strip_prefix('#')) {
        let (key, value) = l.split_once(':').map_or((l.trim(), ""), |(k, v)| (k.trim(), v.trim()));
        match key {
            "tiles" => tiles.extend(value.split(',').map(|s| s.trim().to_owned())),
            "emit" => emits.extend(value.split(',').map(|s| s.trim().to_owned())),
            "stop-after" => stops.extend(value.split(',').map(|s| s.trim().to_owned())),
            "error" => error = true,
            "dim-expressions" => options.dim_expressions = true,
            "ignore-output-types" => options.ignore_output_types = true,
            "run" => seeds.extend(value.split(',').filter_map(|s| s.trim().parse::<u64>().ok())),
            "dim" => options.dims.push(onnxc::sym::text::parse_dim_option(value)?),
            "alias" => {
                options.aliases.extend(value.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())))
            }
            "size" => {
                sizes.extend(value.split_once('=').and_then(|(n, v)| Some((n.to_owned(), v.parse().ok()?))))
            }
            "custom" => options.customs.push(onnxc::options::custom(value)?),
            "target" => options.target = Some(value.to_owned()),
            "cpu" => cpu = Some(value.to_owned()),
            "math" => {
                options.math = match value {
                    "strict" => Math::Strict,
                    "fast" => Math::Fast,
                    _ => return Err(format!("--math {value}")),
                }
            }
            "opt" => {
                options.opt = match value {
                    "0" => OptLevel::O0,
                    "1" => OptLevel::O1,
                    _ => OptLevel::O2,
                }
            }
            _ => {}
        }
    }
    // One level, so that snapshots show everything once.
    let x86 = options.target.as_ref().is_some_and(|t| t.starts_with("x86_64"));
    options.cpu = cpu.or_else(|| x86.then(|| "x86-64-v3".into()));
    let source =
        Source { name: format!("{stem}.onnxtxt"), bytes: text.clone().into_bytes().into(), folder: None };
    if error {
        return match pipeline::run(&source, &options) {
            Ok(_) => Err("the case compiles, but it says `# error`".into()),
            Err(e) => snapshot(path, &stem, "error", &e.to_string()),
        };
    }
    for s in stops {
        let o = Options { stop_after: Some(s.clone()), ..options.clone() };
        let text = match pipeline::run(&source, &o).map_err(|e| e.to_string())? {
            Stopped::Graph(m) => onnxc::graph::print::print(&m),
            Stopped::Nest(m) => onnxc::nest::print::print(&m),
            Stopped::Levels(l) => {
                onnxc::emit::levels(l.iter().map(|(l, m)| (l, m)), &onnxc::nest::print::print)
            }
            Stopped::Done(_) => return Err(format!("there is no pass {s}")),
        };
        snapshot(path, &stem, &s, &text)?;
    }
    let c = pipeline::compile(&source, &options).map_err(|e| e.to_string())?;
    for e in &emits {
        let kind = onnxc::emit::find(e).map_err(|e| e.to_string())?;
        let text = onnxc::emit::to_text(&c, kind).map_err(|e| e.to_string())?;
        snapshot(path, &stem, e, &text)?;
    }
    for kernel in &tiles {
        all_in_tiles(&c, kernel)?;
    }
    for seed in seeds {
        run(&source, &options, &sizes, seed)?;
        strict(&source, &options, &sizes, seed)?;
    }
    Ok(())
}

/// No arithmetic of floats outside tiles.
fn all_in_tiles(c: &pipeline::Compiled, kernel: &str) -> Result<(), String> {
    let kind = onnxc::emit::find("clif").map_err(|e| e.to_string())?;
    let text = onnxc::emit::to_text(c, kind).map_err(|e| e.to_string())?;
    let head = format!(".{kernel}");
    let function = text.split("\n; ").find(|f| f.lines().next().is_some_and(|l| l.ends_with(&head)));
    let function = function.ok_or_else(|| format!("there is no kernel {kernel}"))?;
    let arithmetic = ["fma ", "fmul ", "fadd ", "fsub ", "fdiv "];
    match function.lines().find(|l| arithmetic.iter().any(|a| l.contains(&format!("= {a}")))) {
        Some(line) => Err(format!("kernel {kernel} computes outside tiles: {}", line.trim())),
        None => Ok(()),
    }
}

fn snapshot(path: &Path, stem: &str, kind: &str, text: &str) -> Result<(), String> {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path.parent().unwrap_or(Path::new(".")));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let name = format!("{stem}.{kind}");
    settings
        .bind(|| std::panic::catch_unwind(|| insta::assert_snapshot!(name.clone(), text)))
        .map_err(|_| format!("the snapshot {name} differs"))
}

/// Optimised code against unoptimised code, on the same numbers.
fn run(source: &Source, options: &Options, sizes: &[(String, i64)], seed: u64) -> Result<(), String> {
    let text = |e: onnxc::diag::Failure| e.to_string();
    let build = |opt| {
        let o = Options { opt, target: None, cpu: Some("native".into()), ..options.clone() };
        runner(source, &o, sizes).map_err(text)
    };
    let (plain, fast) = (build(OptLevel::O0)?, build(OptLevel::O2)?);
    let inputs = random_inputs(&plain.compiled().interface, sizes, seed);
    let (want, got) = (plain.run(&inputs).map_err(text)?, fast.run(&inputs).map_err(text)?);
    let narrow = fast.compiled().unscheduled.kernels.values().any(|k| k.narrow);
    for (g, w) in got.iter().zip(&want) {
        // Fused kernels round 16-bit results once, where separate ones round several times.
        let (rtol, atol) = match w.ty {
            _ if options.math == Math::Fast => (3e-2, 3e-2),
            // Activations of 8 bits.
            _ if narrow => (1e-2, 1e-2),
            ElemType::F16 | ElemType::BF16 => (4e-3, 1e-3),
            _ => (1e-4, 1e-5),
        };
        let c = compare(g, w, rtol, atol).map_err(text)?;
        if c.outside > 0 {
            return Err(format!("output {} differs between -O0 and -O2: {c:?}", c.name));
        }
    }
    Ok(())
}

/// With `--math strict` levels with vectors of 8 and of 16 lanes, with dot products of bytes and without,
/// give the same bits.
fn strict(source: &Source, options: &Options, sizes: &[(String, i64)], seed: u64) -> Result<(), String> {
    let text = |e: onnxc::diag::Failure| e.to_string();
    let build = |cpu: &str| {
        let o = Options { math: Math::Strict, target: None, cpu: Some(cpu.into()), ..options.clone() };
        runner(source, &o, sizes).map_err(text)
    };
    let host = Target::host().map_err(text)?;
    let has = |cpu: &&str| Target::new(None, Some(cpu)).is_ok_and(|t| t.lowest().runs_on(host.lowest()));
    let levels = ["x86-64-v3", "x86-64-v3-vnni", "x86-64-v4"].into_iter().filter(has);
    let runners = levels.map(build).collect::<Result<Vec<_>, _>>()?;
    let Some((short, others)) = runners.split_first() else { return Ok(()) };
    let inputs = random_inputs(&short.compiled().interface, sizes, seed);
    let want = short.run(&inputs).map_err(text)?;
    for other in others {
        let got = other.run(&inputs).map_err(text)?;
        if let Some((g, w)) = got.iter().zip(&want).find(|(g, w)| g.dims != w.dims || g.data != w.data) {
            let differ = g.to_f64s().into_iter().zip(w.to_f64s()).find(|(a, b)| a.to_bits() != b.to_bits());
            return Err(format!(
                "output {} of {} differs between levels with --math strict: {differ:?}",
                g.name,
                other.level().name
            ));
        }
    }
    Ok(())
}

fn runner(source: &Source, options: &Options, sizes: &[(String, i64)]) -> onnxc::diag::Result<Runner> {
    let mut r = pipeline::compile(source, options).and_then(Runner::new)?;
    r.choose(sizes)?;
    Ok(r)
}

fn random_inputs(i: &Interface, sizes: &[(String, i64)], seed: u64) -> Vec<Input> {
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut out = vec![];
    for t in &i.inputs {
        // Every parameter is 5, unless a directive or its bounds say otherwise.
        let size = |s| {
            let p = i.dim_params.iter().find(|p| p.sym == s)?;
            let given = sizes.iter().find(|d| d.0 == p.name).map(|d| d.1);
            Some(given.unwrap_or(5.clamp(p.lo, p.hi.unwrap_or(i64::MAX))))
        };
        out.push(match &t.described {
            None => Input::Array(numbers.array(
                &t.name,
                t.ty,
                t.dims.iter().map(|d| d.eval(&size).unwrap_or(1)).collect(),
            )),
            Some(d) if d.kind == Kind::Map => {
                let keys = [7i64, 0, 3].iter().flat_map(|k| k.to_le_bytes()).collect();
                Input::Members(Some(vec![
                    Array { name: "keys".into(), ty: ElemType::I64, dims: vec![3], data: keys },
                    numbers.array("values", t.ty, vec![3]),
                ]))
            }
            // Sizes that are not the same in all members are 2, 3 and 4.
            Some(d) => {
                let count = if d.kind == Kind::Sequence { 3 } else { 1 };
                let dims = |k: i64| {
                    d.dims
                        .clone()
                        .unwrap_or(vec![None; k as usize])
                        .iter()
                        .map(|n| n.unwrap_or(2 + k))
                        .collect()
                };
                Input::Members(Some((0..count).map(|k| numbers.array("member", t.ty, dims(k))).collect()))
            }
        });
    }
    out
}

/// A generator of random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn array(&mut self, name: &str, ty: ElemType, dims: Vec<i64>) -> Array {
        let n: i64 = dims.iter().product();
        if ty.is_packed() {
            let (bytes, used) = (ty.bytes_for(n as u64).unwrap_or(0), n as u32 * ty.bits() % 8);
            let mut data: Vec<u8> = (0..bytes).map(|_| (self.next() >> 33) as u8).collect();
            if let (Some(last), true) = (data.last_mut(), used > 0) {
                *last &= (1 << used) - 1;
            }
            return Array { name: name.to_owned(), ty, dims, data };
        }
        if ty == ElemType::Str {
            const WORDS: &[&str] = &[
                "a",
                "",
                "Hello, World",
                "b",
                " two  words ",
                "äÖß",
                "\u{3a3}\u{3a3}",
                "x,y,,z",
                "1.5e3",
                "日本語",
                "-7",
                "a b a",
                "😀\u{0}",
                "CAT",
            ];
            let list: Vec<&str> = (0..n).map(|_| WORDS[(self.next() >> 33) as usize % WORDS.len()]).collect();
            return Array { name: name.to_owned(), ty, dims, data: onnxc_runtime::texts::encode(&list) };
        }
        if let Some(part) = ty.part() {
            // Few values, so that some are equal, and zeros among them.
            let data = (0..2 * n).map(|_| ((self.next() >> 33) % 3) as f32 - 1.0);
            let data = data
                .flat_map(|x| {
                    if part == ElemType::F32 {
                        x.to_le_bytes().to_vec()
                    } else {
                        f64::from(x).to_le_bytes().to_vec()
                    }
                })
                .collect();
            return Array { name: name.to_owned(), ty, dims, data };
        }
        let data = (0..n)
            .flat_map(|_| {
                let r = self.next();
                let x = (r >> 40) as f32 / 8_388_608.0 - 1.0;
                match ty {
                    ElemType::F32 => x.to_le_bytes().to_vec(),
                    ElemType::F64 => f64::from(x).to_le_bytes().to_vec(),
                    ElemType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
                    ElemType::BF16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
                    ElemType::Bool => vec![(r >> 33) as u8 & 1],
                    t => ((r >> 33) % 4).to_le_bytes()[..t.bytes().unwrap_or(1) as usize].to_vec(),
                }
            })
            .collect();
        Array { name: name.to_owned(), ty, dims, data }
    }
}
