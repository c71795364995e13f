//! `onnxc run`, `onnxc verify` and `onnxc bench`: a model through the JIT, with the code generator that
//! writes objects.

#[cfg(feature = "cli")]
mod library;
mod state;

use crate::arrays::Array;
use crate::codegen::header::status_text;
use crate::codegen::interface::Tensor;
use crate::diag::{Error, Failure, Result, codes};
use crate::io_descriptors::{self, Input};
use crate::jit::{Bound, Loaded, Stopped};
use crate::nest::Module;
use crate::pipeline::Compiled;
use crate::random;
use crate::sym::{Dim, Sym};
use crate::target::{Level, Target};
use crate::tensor::ElemType;
use onnxc_runtime::pool::Pool;
use onnxc_runtime::value::Descriptor;
use std::collections::HashMap;

/// A model ready to be called.
pub struct Runner {
    compiled: Compiled,
    /// Which of the levels runs.
    best: usize,
    code: Loaded,
    /// Sizes that are in no input: how many positions of a state are in use.
    chosen: HashMap<Sym, i64>,
    /// The inputs as they are given: of a state in place, what is in use.
    given: Vec<Tensor>,
    /// The functions of custom operators, which `code` calls.
    #[cfg(feature = "cli")]
    _library: Option<libloading::Library>,
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
    /// Compiles for this machine: the highest CPU level of the target that it has.
    pub fn new(compiled: Compiled) -> Result<Runner> {
        let host = Target::host()?;
        let best = compiled.target.levels.iter().rposition(|l| {
            l.runs_on(host.lowest()) && host.triple.architecture == compiled.target.triple.architecture
        });
        let Some(best) = best else {
            return Error::new(codes::TARGET, "this machine can not run code for that target")
                .found_expected(compiled.target.cpu(), "a CPU level that this machine has, or native")
                .fail();
        };
        let (Some(module), Some(level)) = (compiled.modules.get(best), compiled.target.levels.get(best))
        else {
            return Err(Failure::bug("run", "a model without code"));
        };
        let target = Target { levels: vec![level.clone()], ..host };
        let code = Loaded::for_target(module, &compiled.interface, &target)?;
        Ok(Runner {
            compiled,
            best,
            code,
            chosen: HashMap::new(),
            given: vec![],
            #[cfg(feature = "cli")]
            _library: None,
        })
    }
    /// The same for a model whose custom operators are functions of a shared library.
    #[cfg(feature = "cli")]
    pub fn with_library(mut compiled: Compiled, library: Option<&std::path::Path>) -> Result<Runner> {
        let library = library.map(|p| library::open(p, &mut compiled.interface)).transpose()?;
        Ok(Runner { _library: library, ..Runner::new(compiled)? })
    }
    /// Sizes, by name, for dimensions that are in no input; 0 unless they are chosen.
    pub fn choose(&mut self, named: &[(String, i64)]) -> Result<()> {
        self.chosen = random::named_sizes(&self.compiled.interface, named)?;
        Ok(())
    }
    /// The nests of the code that runs.
    pub fn module(&self) -> &Module {
        &self.compiled.modules[self.best]
    }
    /// The CPU level of the code that runs.
    pub fn level(&self) -> &Level {
        &self.compiled.target.levels[self.best]
    }
    /// The model.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }
    /// Runs the model on inputs in graph order. An output that is no tensor is several arrays
    /// ([`crate::io_descriptors`]).
    pub fn run(&self, inputs: &[Input]) -> Result<Vec<Array>> {
        self.run_with(inputs, &HashMap::new())
    }
    /// The same, with room for outputs whose sizes follow from data: one that suffices saves the calls that
    /// find it out.
    pub fn run_with(&self, inputs: &[Input], room: &HashMap<String, Vec<i64>>) -> Result<Vec<Array>> {
        let i = &self.compiled.interface;
        let sizes = self.sizes(inputs)?;
        let described = self.descriptors(inputs)?;
        let (shapes, outputs, values) = self.called(&bytes(inputs, &described), &sizes, room)?;
        let mut out = vec![];
        for (((t, dims), data), parts) in i.outputs.iter().zip(shapes).zip(outputs).zip(values) {
            match &t.described {
                None => out.push(Array { name: t.name.clone(), ty: t.ty, dims, data }),
                Some(_) => out.extend(parts),
            }
        }
        Ok(self.trimmed(out, &sizes))
    }
    /// Descriptors of the inputs that are no tensors, in order.
    fn descriptors<'a>(&self, inputs: &'a [Input]) -> Result<Vec<Descriptor<'a>>> {
        let list = self.compiled.interface.inputs.iter().zip(inputs);
        list.filter_map(|(t, x)| {
            if let Input::Members(m) = x { Some(io_descriptors::descriptor(t, m.as_deref())) } else { None }
        })
        .collect()
    }
    /// One call; shapes and bytes of the outputs.
    fn called(
        &self,
        data: &[&[u8]],
        sizes: &HashMap<Sym, i64>,
        room: &HashMap<String, Vec<i64>>,
    ) -> Result<Called> {
        let i = &self.compiled.interface;
        let dims = self.dims(sizes);
        let data = &self.placed(data, sizes)?;
        let data: &[&[u8]] = &data.iter().map(|d| &**d).collect::<Vec<_>>();
        // The model's own checks say more than sizes that are none.
        self.code.workspace(&dims).map_err(status_error)?;
        let shapes = self.output_shapes(sizes)?;
        let names: Vec<Option<&str>> =
            i.outputs.iter().map(|t| t.described.as_ref().map(|_| t.name.as_str())).collect();
        // Too small a capacity tells the sizes that are needed, of one output more each time.
        let least = |t: &Tensor| {
            room.get(&t.name).filter(|d| d.len() == t.dims.len()).cloned().unwrap_or(vec![0; t.dims.len()])
        };
        let mut capacity: Vec<Vec<i64>> =
            i.outputs.iter().map(|t| if t.from_data(&i.syms) { least(t) } else { vec![] }).collect();
        loop {
            let mut have = capacity.clone();
            let mut outputs = vec![];
            for ((t, (_, n)), list) in i.outputs.iter().zip(&shapes).zip(&have) {
                outputs.push(vec![0u8; if list.is_empty() { *n } else { bytes_of(t, list)? }]);
            }
            match self.code.call_named(data, &mut outputs, &dims, &mut have, &names) {
                Err(e)
                    if e.status == 4
                        && have
                            .iter()
                            .flatten()
                            .zip(capacity.iter().flatten())
                            .any(|(need, room)| need > room) =>
                {
                    for (room, need) in capacity.iter_mut().flatten().zip(have.iter().flatten()) {
                        *room = (*room).max(*need);
                    }
                }
                Err(e) => return Err(status_error(e)),
                Ok(values) => {
                    let mut out = vec![];
                    for ((t, (dims, _)), (list, data)) in
                        i.outputs.iter().zip(shapes).zip(have.into_iter().zip(&mut outputs))
                    {
                        let dims = if list.is_empty() { dims } else { list };
                        if t.described.is_some() {
                            data.truncate(io_descriptors::SIZE);
                        } else if t.ty != ElemType::Str {
                            data.truncate(bytes_of(t, &dims)?);
                        }
                        out.push(dims);
                    }
                    return Ok((out, outputs, values));
                }
            }
        }
    }
    /// The model bound to inputs in graph order and to outputs of its own, to be called many times. With a
    /// pool its loops run as tasks.
    pub fn bind<'a>(&'a self, inputs: &'a [Input], pool: Option<&'a Pool>) -> Result<Bound<'a>> {
        let i = &self.compiled.interface;
        let sizes = self.sizes(inputs)?;
        let described = self.descriptors(inputs)?;
        let data = bytes(inputs, &described);
        let (shapes, outputs) = if i.outputs.iter().any(|t| t.from_data(&i.syms)) {
            let (shapes, outputs, _) = self.called(&data, &sizes, &HashMap::new())?;
            let bytes = |((t, dims), data): ((&Tensor, &Vec<i64>), &Vec<u8>)| {
                if t.described.is_some() { Ok(data.len()) } else { bytes_of(t, dims) }
            };
            let sizes = i.outputs.iter().zip(&shapes).zip(&outputs).map(bytes).collect::<Result<_>>()?;
            (shapes, sizes)
        } else {
            self.output_shapes(&sizes)?.into_iter().unzip::<_, _, Vec<_>, Vec<usize>>()
        };
        let room: Vec<Vec<i64>> = i
            .outputs
            .iter()
            .zip(shapes)
            .map(|(t, s)| if t.from_data(&i.syms) { s } else { vec![] })
            .collect();
        let data = self.placed(&data, &sizes)?;
        let data: Vec<&[u8]> = data.iter().map(|d| &**d).collect();
        let mut least = 0;
        loop {
            let mut bound = Bound::new(
                &self.code,
                self.module(),
                &data,
                &outputs,
                &self.dims(&sizes),
                room.clone(),
                pool,
                least,
            )
            .map_err(status_error)?;
            if i.heap > 0
                && let Err(e) = bound.call()
                && e.workspace > bound.workspace_size()
            {
                least = e.workspace.max(bound.workspace_size().saturating_mul(2));
                continue;
            }
            return Ok(bound.keeping(described));
        }
    }
    /// Shapes and bytes of the outputs; empty where they follow from data.
    fn output_shapes(&self, sizes: &HashMap<Sym, i64>) -> Result<Vec<(Vec<i64>, usize)>> {
        let i = &self.compiled.interface;
        let eval = |t: &Tensor, k: usize, d: Dim| {
            let v = d.eval(&|s| sizes.get(&s).copied());
            v.filter(|v| *v >= 0).ok_or_else(|| {
                let found = v.map_or("no number".into(), |v| v.to_string());
                let e = Error::new(
                    codes::RUN_INPUT,
                    format!("output \"{}\" dimension {k} has no valid size for these inputs", t.name),
                );
                Failure::from(e.found_expected(found, format!("{} >= 0", d.display(&i.syms))))
            })
        };
        let shape = |t: &Tensor| {
            if t.described.is_some() {
                return Ok((vec![], io_descriptors::SIZE));
            }
            if t.from_data(&i.syms) {
                return Ok((vec![], 0));
            }
            let dims =
                t.dims.iter().enumerate().map(|(k, d)| eval(t, k, *d)).collect::<Result<Vec<i64>>>()?;
            let n = bytes_of(t, &dims)?;
            Ok((dims, n))
        };
        i.outputs.iter().map(shape).collect()
    }
    /// Values of the dim params in signature order.
    fn dims(&self, sizes: &HashMap<Sym, i64>) -> Vec<i64> {
        self.compiled.interface.dim_params.iter().map(|p| sizes.get(&p.sym).copied().unwrap_or(0)).collect()
    }
    /// Values of the dim params from the shapes of the inputs, which must fit the model.
    pub fn sizes(&self, inputs: &[Input]) -> Result<HashMap<Sym, i64>> {
        let i = &self.compiled.interface;
        let mut sizes: HashMap<Sym, i64> = HashMap::new();
        // Where a size was seen first.
        let mut seen: HashMap<Sym, (&str, usize)> = HashMap::new();
        let mut errors = vec![];
        for (t, a) in self.inputs().into_iter().zip(inputs) {
            let Input::Array(a) = a else { continue };
            let expected = crate::tensor::TensorType::new(t.ty, t.dims.clone()).display(&i.syms);
            let mut ok = t.ty == a.ty && t.dims.len() == a.dims.len();
            let mut clash = None;
            if ok {
                for (k, (d, n)) in t.dims.iter().zip(&a.dims).enumerate() {
                    if let Some(s) = d.as_sym() {
                        let first = *sizes.entry(s).or_insert(*n);
                        let (name, at) = *seen.entry(s).or_insert((&t.name, k));
                        if first != *n {
                            ok = false;
                            clash = Some(format!(
                                "input \"{name}\" dimension {at} is {first}, input \"{}\" dimension {k} is \
                                    {n}: they are both {}",
                                t.name,
                                i.syms.name(s)
                            ));
                        }
                    }
                }
                ok &= t
                    .dims
                    .iter()
                    .zip(&a.dims)
                    .all(|(d, n)| d.eval(&|s| sizes.get(&s).copied()).is_none_or(|v| v == *n));
            }
            ok &= t.ty != ElemType::Str || a.to_strings().is_some();
            if !ok {
                let e = Error::new(codes::RUN_INPUT, format!("input \"{}\" does not fit", t.name))
                    .found_expected(format!("{}{:?}", a.ty, a.dims), expected);
                errors.push(if let Some(c) = clash { e.note(c) } else { e });
            }
        }
        for (s, n) in &self.chosen {
            sizes.entry(*s).or_insert(*n);
        }
        if !errors.is_empty() {
            return Err(Failure::Errors(errors));
        }
        self.capacities(&mut sizes)?;
        Ok(sizes)
    }
    /// Fills up named arrays with random ones ([`random`]) for the inputs that are not among them. Their
    /// symbolic sizes are those that were named, else those of the arrays given, else the least that the
    /// model's conditions allow. Where two or more are open, the model is called to see whether it takes
    /// them: sizes that are compared while it runs (a mask as long as past and present together) are in no
    /// condition.
    pub fn fill(&self, given: Vec<Array>, named: &[(String, i64)], seed: u64) -> Result<Vec<Array>> {
        let i = &self.compiled.interface;
        let mut fixed = HashMap::new();
        for t in self.inputs().into_iter().filter(|t| t.described.is_none()) {
            let dims =
                given.iter().find(|a| io_descriptors::belongs(t, &a.name)).map_or(&[][..], |a| &a.dims);
            fixed.extend(t.dims.iter().zip(dims).filter_map(|(d, n)| Some((d.as_sym()?, *n))));
        }
        fixed.extend(random::named_sizes(i, named)?);
        let sizes = random::sizes(i, &fixed);
        let first = self.filled(given.clone(), &sizes, seed)?;
        if i.dim_params.iter().filter(|p| !fixed.contains_key(&p.sym)).count() < 2 || self.takes(&first) {
            return Ok(first);
        }
        for more in random::neighbours(i, &fixed, &sizes) {
            let inputs = self.filled(given.clone(), &more, seed)?;
            if self.takes(&inputs) {
                return Ok(inputs);
            }
        }
        // The call says what is wrong with the first ones.
        Ok(first)
    }
    fn filled(&self, mut given: Vec<Array>, sizes: &HashMap<Sym, i64>, seed: u64) -> Result<Vec<Array>> {
        let ranges = random::ranges(&self.compiled.unscheduled, sizes);
        for (k, t) in self.inputs().into_iter().enumerate() {
            if !given.iter().any(|g| io_descriptors::belongs(t, &g.name)) {
                given.extend(random::arrays(
                    t,
                    sizes,
                    ranges.get(k).copied().flatten(),
                    seed.wrapping_add(k as u64),
                )?);
            }
        }
        Ok(given)
    }
    /// False where the model refuses inputs for what is in them, or for their sizes.
    fn takes(&self, inputs: &[Array]) -> bool {
        let refused = |e: &Error| e.code == codes::RUN_STATUS || e.code == codes::RUN_INPUT;
        match self.order_inputs(inputs.to_vec()).and_then(|x| self.run(&x)) {
            Err(Failure::Errors(list)) => !list.iter().any(refused),
            _ => true,
        }
    }
    /// Puts named arrays into graph order; without names, in the order given.
    pub fn order_inputs(&self, given: Vec<Array>) -> Result<Vec<Input>> {
        let i = &self.compiled.interface;
        let mut out = vec![];
        let mut missing = vec![];
        let named = given.iter().any(|a| !a.name.is_empty());
        for (k, t) in i.inputs.iter().enumerate() {
            if t.described.is_some() {
                out.push(io_descriptors::gather(t, &given)?);
                continue;
            }
            let found = if named {
                given.iter().find(|a| a.name == t.name).or_else(|| given.iter().find(|a| a.name == t.ident))
            } else {
                given.get(k)
            };
            match found {
                Some(a) => out.push(Input::Array(a.clone())),
                None => missing.push(format!(
                    "{} : {}",
                    t.name,
                    crate::tensor::TensorType::new(t.ty, t.dims.clone()).display(&i.syms)
                )),
            }
        }
        if missing.is_empty() {
            return Ok(out);
        }
        Error::new(codes::RUN_INPUT, "inputs are missing")
            .found_expected(
                if given.is_empty() {
                    "no inputs".into()
                } else {
                    given.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", ")
                },
                missing.join("; "),
            )
            .help("give each as --input name=file.npy, or make them with --random 1")
            .fail()
    }
}

/// Bytes that stand for the inputs: elements, or a descriptor.
fn bytes<'a>(inputs: &'a [Input], described: &'a [Descriptor]) -> Vec<&'a [u8]> {
    let mut described = described.iter();
    let of = |x: &'a Input| match x {
        Input::Array(a) => a.data.as_slice(),
        Input::Members(_) => described.next().map_or(&[][..], |d| d.as_bytes()),
    };
    inputs.iter().map(of).collect()
}

/// A failed call as an error.
pub fn status_error(s: Stopped) -> Failure {
    let e = Error::new(
        codes::RUN_STATUS,
        format!("the model returned status {}: {}", s.status, status_text(s.status)),
    );
    if s.reason.is_empty() { e } else { e.row("check", s.reason) }.into()
}

fn bytes_of(t: &Tensor, dims: &[i64]) -> Result<usize> {
    let n = crate::tensor::count(dims).and_then(|n| t.ty.bytes_for(n)).and_then(|n| usize::try_from(n).ok());
    n.ok_or_else(|| {
        Failure::from(Error::new(codes::RUN_INPUT, format!("output \"{}\" is too large", t.name)))
    })
}

/// Shapes and bytes of the outputs, and the arrays in those that are no tensors.
type Called = (Vec<Vec<i64>>, Vec<Vec<u8>>, Vec<Vec<Array>>);

/// Compares an output with its reference: `|got - want| <= atol + rtol * |want|`, NaN equal to NaN.
pub fn compare(got: &Array, want: &Array, rtol: f64, atol: f64) -> Result<Comparison> {
    if got.dims != want.dims || got.ty != want.ty {
        return Error::new(
            codes::VERIFY_FAILED,
            format!("output \"{}\" has another type or shape", got.name),
        )
        .found_expected(format!("{}{:?}", got.ty, got.dims), format!("{}{:?}", want.ty, want.dims))
        .fail();
    }
    if let (Some(a), Some(b)) = (got.to_strings(), want.to_strings()) {
        let outside = a.iter().zip(&b).filter(|(x, y)| x != y).count();
        let differ = if outside > 0 { f64::INFINITY } else { 0.0 };
        return Ok(Comparison {
            name: got.name.clone(),
            max_abs: differ,
            max_rel: differ,
            outside,
            count: a.len(),
        });
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
