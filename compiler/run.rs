//! `onnxc run` and `onnxc verify`: a model through the JIT, with the code generator that writes objects.

use crate::arrays::Array;
use crate::diag::{Error, Failure, Result, codes};
use crate::jit::Loaded;
use crate::pipeline::Compiled;
use crate::sym::{Dim, Sym};
use crate::target::Target;
use std::collections::HashMap;

/// A model ready to be called.
pub struct Runner {
    compiled: Compiled,
    code: Loaded,
}

/// How an output compares with its reference.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Output.
    pub name: String,
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Largest difference relative to the reference's largest magnitude.
    pub max_rel: f64,
    /// Elements outside the tolerance.
    pub outside: usize,
    /// Elements.
    pub count: usize,
}

impl Runner {
    /// Compiles for this machine: the highest CPU level that it has.
    pub fn new(compiled: Compiled) -> Result<Runner> {
        let host = Target::host()?.lowest().rank;
        let best = compiled.target.levels.iter().rposition(|l| l.rank <= host).unwrap_or(0);
        let Some(module) = compiled.modules.get(best) else { return Err(Failure::bug("run", "a model without code")) };
        let code = Loaded::new(module, &compiled.interface)?;
        Ok(Runner { compiled, code })
    }
    /// The model.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }
    /// Runs the model on inputs in graph order.
    pub fn run(&self, inputs: &[Array]) -> Result<Vec<Array>> {
        let i = &self.compiled.interface;
        let sizes = self.sizes(inputs)?;
        let eval = |d: &Dim| d.eval(&|s| sizes.get(&s).copied()).filter(|v| *v >= 0).ok_or_else(|| Failure::from(Error::new(codes::RUN_INPUT, "an output has no valid size for these inputs")));
        let mut shapes = vec![];
        let mut outputs = vec![];
        for t in &i.outputs {
            let dims = t.dims.iter().map(eval).collect::<Result<Vec<i64>>>()?;
            let n = crate::tensor::count(&dims).and_then(|n| t.ty.bytes_for(n)).ok_or_else(|| Failure::from(Error::new(codes::RUN_INPUT, "an output is too large")))?;
            outputs.push(vec![0u8; n as usize]);
            shapes.push(dims);
        }
        let dims: Vec<i64> = i.dim_params.iter().map(|p| sizes.get(&p.sym).copied().unwrap_or(0)).collect();
        let data: Vec<&[u8]> = inputs.iter().map(|a| a.data.as_slice()).collect();
        self.code.call(&data, &mut outputs, &dims).map_err(|s| Failure::from(Error::new(codes::RUN_STATUS, format!("the model returned status {s}: {}", status_text(s)))))?;
        Ok(i.outputs.iter().zip(shapes).zip(outputs).map(|((t, dims), data)| Array { name: t.name.clone(), ty: t.ty, dims, data }).collect())
    }
    /// Dim params from the shapes of the inputs, which must fit the model.
    fn sizes(&self, inputs: &[Array]) -> Result<HashMap<Sym, i64>> {
        let i = &self.compiled.interface;
        let mut sizes: HashMap<Sym, i64> = HashMap::new();
        let mut errors = vec![];
        for (t, a) in i.inputs.iter().zip(inputs) {
            let expected = crate::tensor::TensorType::new(t.ty, t.dims.clone()).display(&i.syms);
            let mut ok = t.ty == a.ty && t.dims.len() == a.dims.len();
            if ok {
                for (d, n) in t.dims.iter().zip(&a.dims) {
                    if let Some(s) = d.as_sym() {
                        ok &= *sizes.entry(s).or_insert(*n) == *n;
                    }
                }
                ok &= t.dims.iter().zip(&a.dims).all(|(d, n)| d.eval(&|s| sizes.get(&s).copied()).is_none_or(|v| v == *n));
            }
            if !ok {
                errors.push(Error::new(codes::RUN_INPUT, format!("input \"{}\" does not fit", t.name)).found_expected(format!("{}{:?}", a.ty, a.dims), expected));
            }
        }
        if errors.is_empty() { Ok(sizes) } else { Err(Failure::Errors(errors)) }
    }
    /// Puts named arrays into graph order; without names, in the order given.
    pub fn order_inputs(&self, given: Vec<Array>) -> Result<Vec<Array>> {
        let i = &self.compiled.interface;
        let mut out = vec![];
        let mut missing = vec![];
        let named = given.iter().any(|a| !a.name.is_empty());
        for (k, t) in i.inputs.iter().enumerate() {
            let found = if named { given.iter().find(|a| a.name == t.name).or_else(|| given.iter().find(|a| a.name == t.ident)) } else { given.get(k) };
            match found {
                Some(a) => out.push(a.clone()),
                None => missing.push(format!("{} : {}", t.name, crate::tensor::TensorType::new(t.ty, t.dims.clone()).display(&i.syms))),
            }
        }
        if missing.is_empty() {
            return Ok(out);
        }
        Error::new(codes::RUN_INPUT, "inputs are missing")
            .found_expected(given.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", "), missing.join("; "))
            .help("give each as --input name=file.npy")
            .fail()
    }
}

/// Text of a status code.
pub fn status_text(s: i32) -> &'static str {
    match s {
        0 => "ok",
        1 => "null pointer",
        2 => "bad alignment",
        3 => "a dimension is negative, above its bound, or inconsistent",
        4 => "buffer too small",
        5 => "an index is out of range",
        6 => "bad value (integer division by zero)",
        7 => "weights do not match",
        8 => "cancelled",
        9 => "abi mismatch",
        _ => "unknown status",
    }
}

/// Compares an output with its reference: `|got - want| <= atol + rtol * |want|`, NaN equal to NaN.
pub fn compare(got: &Array, want: &Array, rtol: f64, atol: f64) -> Result<Comparison> {
    if got.dims != want.dims || got.ty != want.ty {
        return Error::new(codes::VERIFY_FAILED, format!("output \"{}\" has another type or shape", got.name))
            .found_expected(format!("{}{:?}", got.ty, got.dims), format!("{}{:?}", want.ty, want.dims))
            .fail();
    }
    let (a, b) = (got.to_f64s(), want.to_f64s());
    let scale = b.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
    let mut c = Comparison { name: got.name.clone(), max_abs: 0.0, max_rel: 0.0, outside: 0, count: a.len() };
    for (x, y) in a.iter().zip(&b) {
        if x == y || x.is_nan() && y.is_nan() {
            continue;
        }
        let d = (x - y).abs();
        let d = if d.is_nan() { f64::INFINITY } else { d };
        c.max_abs = c.max_abs.max(d);
        if d > atol + rtol * y.abs() {
            c.outside += 1;
        }
    }
    c.max_rel = if scale > 0.0 { c.max_abs / scale } else { c.max_abs };
    Ok(c)
}
