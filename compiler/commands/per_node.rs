//! `onnxc verify --per-node`: compares every tensor of the main graph with a reference, to find the first
//! wrong node.
//!
//! The model is compiled with its inner tensors as outputs (`--tap`). The reference is either ONNX Runtime or
//! the onnx package, run by the user's Python on a copy of the model in which all tensors are outputs, or an
//! .npz file of arrays.

use super::{given_inputs, runner, source};
use crate::arrays::{self, Array};
use crate::cli::values::Reference;
use crate::cli::{MessageFormat, VerifyArgs};
use crate::diag::{Error, Failure, Findings, Origin, Result, codes, limits};
use crate::onnx::proto::ValueInfoProto;
use crate::onnx::{ImportOptions, Source, decode, sort};
use crate::options::Options;
use crate::passes::graph::tap;
use crate::run::Runner;
use crate::tensor::ElemType;
use prost::Message;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("reference.py");

/// Result of comparing one tensor.
struct Row {
    tensor: String,
    origin: Origin,
    shape: String,
    result: Outcome,
}

enum Outcome {
    /// The reference lacks the tensor.
    Absent,
    /// The reference has this other type or shape.
    Unlike(String),
    Compared(Difference),
}

struct Difference {
    max_abs: f64,
    /// Relative to the largest magnitude in the reference.
    max_rel: f64,
    /// Units in the last place; `None` if the elements are not floats.
    ulp: Option<u64>,
    cosine: f64,
    outside: usize,
    count: usize,
}

impl Row {
    fn is_bad(&self) -> bool {
        match &self.result {
            Outcome::Absent => false,
            Outcome::Unlike(_) => true,
            Outcome::Compared(d) => d.outside > 0,
        }
    }
}

/// The tensors to compare: the taps, and all results of nodes with their nodes, in order.
struct Plan {
    taps: Vec<String>,
    nodes: Vec<(String, Origin)>,
    /// Most taps of one program.
    most: usize,
}

/// Runs the command for one set of inputs: `set`, arrays of test data, or else the inputs of the command
/// line.
pub fn per_node(a: &VerifyArgs, set: Option<Vec<Array>>) -> Result<()> {
    let src = source(&a.model)?;
    let plan = plan(&src, a)?;
    // A program has a bounded number of arguments, so many tensors take several programs.
    let parts: Vec<&[String]> =
        if plan.taps.is_empty() { vec![&[]] } else { plan.taps.chunks(plan.most).collect() };
    let scratch = Scratch::new()?;
    let mut known: Option<(Vec<Array>, HashMap<String, Array>)> = None;
    let mut rows: Vec<Row> = vec![];
    for part in parts {
        let r = runner(
            &src,
            &a.common,
            Options { cpu: Some(a.cpu.clone()), opt: a.opt(), taps: part.to_vec(), ..Options::default() },
            a.custom_library.as_deref(),
        )?;
        let (inputs, want) = match &known {
            Some(k) => k,
            None => {
                let inputs = made(a, &r, set.clone())?;
                let want = reference(a, &src, &plan.taps, &inputs, scratch.path())?;
                known.insert((inputs, want))
            }
        };
        let room = want.iter().map(|(n, a)| (n.clone(), a.dims.clone())).collect();
        for x in r.run_with(&r.order_inputs(inputs.clone())?, &room)? {
            // Every program also returns the outputs of the model.
            if !rows.iter().any(|r| r.tensor == x.name) {
                let origin =
                    plan.nodes.iter().find(|n| n.0 == x.name).map_or_else(Origin::default, |n| n.1.clone());
                rows.push(Row {
                    shape: format!("{}{:?}", x.ty, x.dims),
                    result: outcome(&x, want.get(&x.name), a),
                    origin,
                    tensor: x.name,
                });
            }
        }
    }
    let place = |r: &Row| plan.nodes.iter().position(|n| n.0 == r.tensor).unwrap_or(usize::MAX);
    rows.sort_by_key(place);
    report(a, rows)
}

/// The tensors that `--tap` names, or all.
fn plan(src: &Source, a: &VerifyArgs) -> Result<Plan> {
    let model = crate::onnx::read(
        src,
        &ImportOptions {
            dims: a.common.dims.clone(),
            dim_expressions: a.common.dim_expressions,
            capacities: None,
            customs: a.common.customs.clone(),
        },
    )?;
    if !model.errors.is_empty() {
        return Err(Failure::Errors(model.errors));
    }
    let mut findings = Findings::default();
    let patterns = if a.taps.is_empty() { vec!["all".to_owned()] } else { a.taps.clone() };
    let taps = tap::choose(&model, &patterns, &mut findings);
    findings.check()?;
    let own = model.graph.inputs.len() + model.graph.outputs.len();
    let most = (limits::PARAMETERS.value as usize).saturating_sub(own).max(1);
    Ok(Plan { taps, nodes: tap::tensors(&model), most })
}

fn made(a: &VerifyArgs, r: &Runner, set: Option<Vec<Array>>) -> Result<Vec<Array>> {
    match set {
        Some(x) => Ok(x),
        None => r.fill(given_inputs(r, &a.inputs)?, &a.sizes, a.random.unwrap_or(1)),
    }
}

/// A folder that is removed when the command ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("onnxc-verify-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))?;
        Ok(Scratch(path))
    }
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that is left among the temporary files does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn reference(
    a: &VerifyArgs,
    src: &Source,
    names: &[String],
    inputs: &[Array],
    dir: &Path,
) -> Result<HashMap<String, Array>> {
    let (kind, package) = match &a.reference {
        Reference::File(p) => {
            return Ok(arrays::read_npz(p)?.into_iter().map(|a| (a.name.clone(), a)).collect());
        }
        Reference::OnnxRuntime => ("onnxruntime", "onnxruntime"),
        Reference::Onnx => ("onnx", "onnx"),
    };
    let file = |name: &str| dir.join(name);
    let write = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).map_err(|e| Failure::Io(path.display().to_string(), e.to_string()))
    };
    let mut m = decode::decode(src)?.model;
    sort::sort(&mut m, &Origin::file(&src.name), &mut Findings::default());
    if let Some(g) = &mut m.graph {
        // Tensors inside inlined functions have names that do not occur in the file.
        let own: HashSet<&str> = g.node.iter().flat_map(|n| n.output.iter().map(String::as_str)).collect();
        let names: Vec<String> = names.iter().filter(|n| own.contains(n.as_str())).cloned().collect();
        g.output.extend(names.iter().map(|n| ValueInfoProto { name: Some(n.clone()), ..Default::default() }));
    }
    write(&file("model.onnx"), &m.encode_to_vec())?;
    write(&file("reference.py"), SCRIPT.as_bytes())?;
    arrays::write_all(&file("inputs.npz"), &inputs.iter().collect::<Vec<_>>())?;
    let folder = src.folder.clone().unwrap_or_else(|| dir.to_owned());
    let folder = folder.canonicalize().unwrap_or(folder);
    let mut command = Command::new(&a.python);
    command
        .arg(file("reference.py"))
        .arg(kind)
        .arg(file("model.onnx"))
        .arg(folder)
        .arg(file("inputs.npz"))
        .arg(file("outputs.npz"));
    let out = match super::with_progress(&format!("onnxc: running {package}"), || Ok(command.output()))? {
        Ok(out) => out,
        Err(e) => {
            let e = Error::new(
                codes::OPTION,
                format!("--reference {kind} needs Python, which does not start: {e}"),
            );
            return e
                .found_expected(
                    a.python.display().to_string(),
                    format!("a Python with the package {package}"),
                )
                .help("name it with --python")
                .fail();
        }
    };
    if out.status.code() == Some(3) {
        let missing = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        let e = Error::new(codes::OPTION, format!("--reference {kind}: Python has no package \"{missing}\""))
            .row("python", a.python.display().to_string());
        return e
            .help(format!(
                "{} -m pip install {package}, or name another Python with --python",
                a.python.display()
            ))
            .fail();
    }
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        let last: Vec<&str> = said.lines().rev().take(6).collect::<Vec<_>>().into_iter().rev().collect();
        let e = Error::new(codes::VERIFY_FAILED, format!("{package} does not run the model"))
            .at(&Origin::file(&src.name));
        return last
            .into_iter()
            .fold(e, |e, l| e.note(l))
            .help("--reference onnx or a saved .npz file are other references")
            .fail();
    }
    Ok(arrays::read_npz(&file("outputs.npz"))?.into_iter().map(|a| (a.name.clone(), a)).collect())
}

fn outcome(got: &Array, want: Option<&Array>, a: &VerifyArgs) -> Outcome {
    let Some(want) = want else { return Outcome::Absent };
    if got.dims != want.dims || got.ty != want.ty {
        return Outcome::Unlike(format!("{}{:?}", want.ty, want.dims));
    }
    if let (Some(x), Some(y)) = (got.to_strings(), want.to_strings()) {
        let outside = x.iter().zip(&y).filter(|(x, y)| x != y).count();
        let differ = if outside > 0 { f64::INFINITY } else { 0.0 };
        return Outcome::Compared(Difference {
            max_abs: differ,
            max_rel: differ,
            ulp: None,
            cosine: if outside > 0 { 0.0 } else { 1.0 },
            outside,
            count: x.len(),
        });
    }
    Outcome::Compared(difference(got.ty, &got.to_f64s(), &want.to_f64s(), a))
}

/// Counts elements that differ by more than `atol + rtol * max(|reference|, rms)`: a sum whose terms cancel
/// is only as exact as its terms. Integers must be equal, except that 8-bit ones, which are rounded reals,
/// may differ by 1.
fn difference(ty: ElemType, got: &[f64], want: &[f64], a: &VerifyArgs) -> Difference {
    let finite = || want.iter().filter(|x| x.is_finite());
    let count = finite().count().max(1) as f64;
    let rms = (finite().map(|x| x * x).sum::<f64>() / count).sqrt();
    let largest = finite().fold(0.0f64, |m, x| m.max(x.abs()));
    let float = ty.is_float() || ty.is_complex();
    let exact = if ty.bits() == 8 && ty != ElemType::Bool { 1.0 } else { 0.0 };
    let (mut d, mut dot, mut norms) = (
        Difference {
            max_abs: 0.0,
            max_rel: 0.0,
            ulp: float.then_some(0),
            cosine: 1.0,
            outside: 0,
            count: got.len(),
        },
        0.0,
        (0.0, 0.0),
    );
    for (x, y) in got.iter().zip(want) {
        if x.is_finite() && y.is_finite() {
            dot += x * y;
            norms = (norms.0 + x * x, norms.1 + y * y);
        }
        if x == y || x.is_nan() && y.is_nan() {
            continue;
        }
        let by = (x - y).abs();
        let by = if by.is_nan() { f64::INFINITY } else { by };
        d.max_abs = d.max_abs.max(by);
        d.ulp = d.ulp.map(|u| u.max(ulps(ty, *x, *y)));
        let most = if float { a.atol + a.rtol * y.abs().max(rms) } else { exact };
        d.outside += usize::from(by > most);
    }
    d.max_rel = if largest > 0.0 { d.max_abs / largest } else { d.max_abs };
    d.cosine = if norms.0 > 0.0 && norms.1 > 0.0 {
        dot / (norms.0 * norms.1).sqrt()
    } else {
        f64::from(u8::from(norms.0 == norms.1))
    };
    d
}

/// The distance between two numbers in units in the last place of the type.
fn ulps(ty: ElemType, x: f64, y: f64) -> u64 {
    let key = |v: f64| -> i64 {
        let (bits, sign) = match ty {
            ElemType::F64 | ElemType::C128 => (v.to_bits(), 1u64 << 63),
            ElemType::F16 => (u64::from(half::f16::from_f64(v).to_bits()), 1 << 15),
            ElemType::BF16 => (u64::from(half::bf16::from_f64(v).to_bits()), 1 << 15),
            _ => (u64::from((v as f32).to_bits()), 1 << 31),
        };
        let magnitude = (bits & (sign - 1)) as i64;
        if bits & sign == 0 { magnitude } else { -magnitude }
    };
    key(x).abs_diff(key(y))
}

fn report(a: &VerifyArgs, rows: Vec<Row>) -> Result<()> {
    let first = rows.iter().position(Row::is_bad);
    match a.common.message_format {
        MessageFormat::Json => {
            rows.iter().enumerate().for_each(|(k, r)| println!("{}", as_json(r, first == Some(k))))
        }
        MessageFormat::Text => print!("{}", text(&rows, first)),
    }
    let compared = rows.iter().filter(|r| !matches!(r.result, Outcome::Absent)).count();
    if compared == 0 {
        return Error::new(
            codes::VERIFY_FAILED,
            "the reference has none of the tensors: nothing was compared",
        )
        .fail();
    }
    let bad = rows.iter().filter(|r| r.is_bad()).count();
    let Some(r) = first.and_then(|k| rows.get(k)) else {
        if a.common.message_format == MessageFormat::Text {
            println!(
                "{compared} tensors compared, all within {} + {} * max(|reference|, rms)",
                a.atol, a.rtol
            );
        }
        return Ok(());
    };
    let e = Error::new(
        codes::VERIFY_FAILED,
        format!("\"{}\" is the first tensor beyond its tolerance", r.tensor),
    )
    .at(&r.origin)
    .row("tensor", format!("{} {}", r.tensor, r.shape));
    let e = match &r.result {
        Outcome::Compared(d) => e
            .row("elements beyond it", format!("{} of {}", d.outside, d.count))
            .row("largest difference", format!("{:.6e}, {:.3e} of the largest value", d.max_abs, d.max_rel)),
        Outcome::Unlike(want) => e.row("reference", want.clone()),
        Outcome::Absent => e,
    };
    e.row("tensors beyond theirs", format!("{bad} of {compared}"))
        .row("tolerance", format!("{} + {} * max(|reference|, rms)", a.atol, a.rtol))
        .fail()
}

fn as_json(r: &Row, first: bool) -> serde_json::Value {
    let o = &r.origin;
    let mut v = json!({ "tensor": r.tensor, "type": r.shape, "node": o.node, "name": o.name, "op": o.op,
        "ok": !r.is_bad(), "first": first });
    let more = match &r.result {
        Outcome::Absent => json!({ "reference": null }),
        Outcome::Unlike(want) => json!({ "reference": want }),
        Outcome::Compared(d) => {
            json!({ "max_abs": d.max_abs, "max_rel": d.max_rel, "ulp": d.ulp, "cosine": d.cosine,
                "outside": d.outside, "count": d.count })
        }
    };
    if let (Some(v), Some(more)) = (v.as_object_mut(), more.as_object()) {
        v.extend(more.clone());
    }
    v
}

fn text(rows: &[Row], first: Option<usize>) -> String {
    let mut lines: Vec<[String; 9]> = vec![
        ["", "node", "operator", "tensor", "type", "max abs", "of max", "ulp", "cosine"].map(String::from),
    ];
    for (k, r) in rows.iter().enumerate() {
        let mark = if first == Some(k) {
            "->"
        } else if r.is_bad() {
            "!"
        } else {
            ""
        };
        let node = r.origin.node.map_or(String::new(), |n| n.to_string());
        let [abs, rel, ulp, cosine] = match &r.result {
            Outcome::Absent => ["not in the reference".into(), String::new(), String::new(), String::new()],
            Outcome::Unlike(want) => {
                [format!("reference: {want}"), String::new(), String::new(), String::new()]
            }
            Outcome::Compared(d) => [
                format!("{:.2e}", d.max_abs),
                format!("{:.2e}", d.max_rel),
                d.ulp.map_or(String::new(), |u| u.to_string()),
                format!("{:.7}", d.cosine),
            ],
        };
        lines.push([
            mark.into(),
            node,
            r.origin.op.clone(),
            r.tensor.clone(),
            r.shape.clone(),
            abs,
            rel,
            ulp,
            cosine,
        ]);
    }
    let width: Vec<usize> = (0..9)
        .map(|c| lines.iter().map(|l| l[c].chars().count()).filter(|w| *w <= 48).max().unwrap_or(0))
        .collect();
    lines
        .iter()
        .map(|l| {
            l.iter()
                .zip(&width)
                .map(|(s, w)| format!("{s:w$}"))
                .collect::<Vec<_>>()
                .join("  ")
                .trim_end()
                .to_owned()
                + "\n"
        })
        .collect()
}
