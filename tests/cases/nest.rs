//! Cases of one nest pass: text before, text after.

use super::{Numbers, snapshot};
use onnxc::arrays::Array;
use onnxc::nest::interp::{self, Outcome};
use onnxc::nest::verify::{verify, verify_for};
use onnxc::nest::{Math, Module, parse, print};
use onnxc::pipeline::{self, NEST_PASSES};
use onnxc::sym::Sym;
use onnxc::target::Target;
use onnxc::tensor::consts::Remap;
use onnxc::tensor::{ConstData, ElemType};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

struct Setting {
    target: String,
    cpu: String,
    math: Math,
    dims: Vec<(String, i64)>,
    constants: HashMap<String, Arc<ConstData>>,
    same: bool,
}

/// Runs the case of a file.
pub fn case(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    let pass = NEST_PASSES.iter().find(|p| p.name == name).ok_or(format!("there is no pass {name}"))?;
    let (head, body) = text.split_at(text.find("nest v1").ok_or("no module")?);
    let s = setting(head)?;
    let before = parse::parse(body, &|h| s.constants.get(h).cloned()).map_err(|e| e.to_string())?;
    let before = Module { math: s.math, ..before };
    verify(&before).map_err(|e| format!("before the pass: {e}"))?;
    let target = Target::new(Some(&s.target), Some(&s.cpu)).map_err(|e| e.to_string())?;
    let mut after = before.clone();
    (pass.run)(&mut after, target.lowest()).map_err(|e| e.to_string())?;
    let changed = print::print(&before) != print::print(&after);
    snapshot(path, &stem, "after", &print::print(&after))?;
    verify_for(&after, Some(&pipeline::limits(target.lowest())))
        .map_err(|e| format!("after the pass: {e}"))?;
    if changed == s.same {
        return Err(format!("the pass {}", if changed { "changes the module" } else { "changes nothing" }));
    }
    let (want, got) = (run(&before, &s.dims)?, run(&after, &s.dims)?);
    compare(&before, &want, &got)
}

fn setting(head: &str) -> Result<Setting, String> {
    let mut s = Setting {
        target: "x86_64-unknown-linux-gnu".into(),
        cpu: "x86-64-v3".into(),
        math: Math::Default,
        dims: vec![],
        constants: HashMap::new(),
        same: false,
    };
    for line in head.lines().filter_map(|l| l.strip_prefix(';')).map(str::trim) {
        if let Some(target) = line.strip_prefix("target: ") {
            s.target = target.to_owned();
        } else if let Some(cpu) = line.strip_prefix("cpu: ") {
            s.cpu = cpu.to_owned();
        } else if let Some(math) = line.strip_prefix("math: ") {
            s.math = if math == "fast" { Math::Fast } else { Math::Strict };
        } else if let Some((name, n)) = line.strip_prefix("dim: ").and_then(|d| d.split_once('=')) {
            s.dims.push((name.to_owned(), n.parse().map_err(|_| line)?));
        } else if let Some((name, rest)) = line.strip_prefix("const ").and_then(|d| d.split_once(" : ")) {
            s.constants.insert(name.to_owned(), Arc::new(constant(rest).ok_or(line)?));
        } else if let Some((name, rest)) = line.strip_prefix("const ").and_then(|d| d.split_once(" = ")) {
            let data = panels(rest, &s.constants).ok_or(line)?;
            s.constants.insert(name.to_owned(), Arc::new(data));
        } else if line == "same" {
            s.same = true;
        }
    }
    Ok(s)
}

/// `f32[8, 3] 7`: a type, sizes, a seed; with `, some subnormal` the first of every eight numbers is.
fn constant(text: &str) -> Option<ConstData> {
    let (ty, rest) = text.split_once('[')?;
    let (dims, seed) = rest.split_once(']')?;
    let (seed, subnormal) = seed.strip_suffix(", some subnormal").map_or((seed, false), |s| (s, true));
    let dims: Vec<i64> = dims
        .split(',')
        .filter(|d| !d.trim().is_empty())
        .map(|d| d.trim().parse().ok())
        .collect::<Option<_>>()?;
    let mut a = numbers(seed.trim().parse().ok()?, ElemType::from_short(ty.trim())?, dims);
    if subnormal {
        a.data.chunks_exact_mut(32).for_each(|c| c[..4].copy_from_slice(&1e-40f32.to_le_bytes()));
    }
    ConstData::new(a.ty, a.dims, a.data)
}

/// `panels of w by 32`, of a matrix that stands before.
fn panels(text: &str, constants: &HashMap<String, Arc<ConstData>>) -> Option<ConstData> {
    let (of, by) = text.strip_prefix("panels of ")?.split_once(" by ")?;
    let (of, by): (_, i64) = (constants.get(of)?, by.parse().ok()?);
    let [rows, columns] = *of.dims() else { return None };
    let map = Remap {
        dims: vec![(rows + by - 1) / by, columns, by],
        offset: vec![0, 0],
        coeff: vec![vec![by, 0, 1], vec![0, 1, 0]],
    };
    ConstData::remap(of.clone(), map)
}

fn numbers(seed: u64, ty: ElemType, dims: Vec<i64>) -> Array {
    Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).array("", ty, dims)
}

fn run(m: &Module, sizes: &[(String, i64)]) -> Result<Outcome, String> {
    let size = |s: Sym| sizes.iter().find(|d| d.0 == m.syms.name(s)).map(|d| d.1);
    let dims: Vec<(Sym, i64)> = m
        .dim_params
        .iter()
        .map(|s| Some((*s, size(*s)?)))
        .collect::<Option<_>>()
        .ok_or("a size has no `dim:`")?;
    let inputs = m.inputs.iter().enumerate().map(|(i, b)| {
        let d = &m.bufs[*b];
        let sizes =
            d.dims.iter().map(|x| x.eval(&size)).collect::<Option<Vec<_>>>().ok_or("a size of an input")?;
        Ok(numbers(i as u64 + 1, d.ty, sizes).data)
    });
    let inputs = inputs.collect::<Result<Vec<_>, String>>()?;
    interp::run(m, &dims, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>()).map_err(|e| e.to_string())
}

/// Floats within what another order of sums may do, everything else bit by bit.
fn compare(m: &Module, want: &Outcome, got: &Outcome) -> Result<(), String> {
    for ((b, w), g) in m.outputs.iter().zip(&want.outputs).zip(&got.outputs) {
        let ty = m.bufs[*b].ty;
        let array = |data: &[u8]| Array {
            name: String::new(),
            ty,
            dims: vec![data.len() as i64 * 8 / i64::from(ty.bits())],
            data: data.to_vec(),
        };
        let (rtol, atol) = if !ty.is_float() {
            (0.0, 0.0)
        } else if ty.bits() == 32 && m.math != Math::Fast && !m.kernels.values().any(|k| k.narrow) {
            (1e-4, 1e-5)
        } else {
            (2e-2, 2e-2)
        };
        let largest =
            array(w).to_f64s().into_iter().filter(|x| x.is_finite()).fold(1.0f64, |a, x| a.max(x.abs()));
        let c = onnxc::run::compare(&array(g), &array(w), rtol, atol * largest).map_err(|e| e.to_string())?;
        if c.outside > 0 {
            return Err(format!("output {} differs between before and after: {c:?}", m.bufs[*b].name));
        }
    }
    Ok(())
}
