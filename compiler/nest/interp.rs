//! Interpreter: the semantics of the IR, statement by statement. The reference for generated code and for
//! constant folding.
//!
//! Everything is checked: subscripts against shapes, sizes of views and slots, trip counts of `vec` loops,
//! types of operands, scopes. Modules of every stage run. Statements are first compiled to trees with
//! numbered slots for symbols, registers and accumulators. The shape of a buffer is computed on first use,
//! since run-time symbols may change it. Scratch and outputs are initialised with all bits set (NaN for
//! floats), so that reads of uninitialised elements are visible.
//!
//! A register defined in a single-vector `vec` loop has a value per lane; later `vec` loops with as many
//! lanes in the same block read their lane of it.
//!
//! `Fma` rounds once. Functions of f32 are computed in f64 and rounded. [`eval_unop`], [`eval_binop`] and
//! [`eval_cast`] are the same arithmetic on single values.

mod code;
mod compile;
mod execute;
mod memory;
mod numbers;
mod pairs;
mod scalar;
mod text;

pub use scalar::{eval_binop, eval_cast, eval_operation, eval_unop, from_storage, to_storage};

use super::*;
use compile::{Compiler, Def};
use memory::{Region, Shape};
use numbers::Numbers;
use std::fmt;
use text::Span;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of the outputs in signature order.
    pub outputs: Vec<Vec<u8>>,
    /// Their dimensions.
    pub dims: Vec<Vec<i64>>,
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The module left with a status: what generated code returns.
    Status(Status),
    /// The module breaks a rule of the IR, or the inputs do not fit it.
    Message(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Status(s) => write!(f, "status {s:?}"),
            Stop::Message(m) => f.write_str(m),
        }
    }
}

impl std::error::Error for Stop {}

type Res<T> = std::result::Result<T, Box<Stop>>;

#[cold]
fn msg<T>(m: impl Into<String>) -> Res<T> {
    Err(Box::new(Stop::Message(m.into())))
}

#[cold]
fn leave<T>(s: Status) -> Res<T> {
    Err(Box::new(Stop::Status(s)))
}

/// Runs the driver of a module with values for its dim params and the bytes of its inputs, in signature
/// order.
pub fn run(m: &Module, dims: &[(Sym, i64)], inputs: &[&[u8]]) -> std::result::Result<Outcome, Stop> {
    run_boxed(m, dims, inputs).map_err(|e| *e)
}

fn run_boxed(m: &Module, dims: &[(Sym, i64)], inputs: &[&[u8]]) -> Res<Outcome> {
    let n = m.syms.len();
    let mut st = State {
        m,
        inputs,
        vars: vec![0; n],
        set: vec![false; n],
        regs: vec![0; m.regs.len()],
        cells: vec![],
        lanes: vec![],
        shapes: (0..m.bufs.len()).map(|_| None).collect(),
        mem: (0..=m.bufs.len()).map(|_| Region::Unused).collect(),
        texts: Numbers::default(),
        pairs: Numbers::default(),
    };
    let bound = m.syms.iter().filter_map(|s| Some((s, m.syms.bound_value(s)?)));
    for (s, v) in bound.chain(dims.iter().copied()) {
        let i = s.0 as usize;
        if i >= n {
            return msg(format!("there is no symbol s{i}"));
        }
        if m.syms.kind(s) != crate::sym::SymKind::Loop && !m.syms.declared_range(s).contains(v) {
            return leave(Status::Dim);
        }
        (st.vars[i], st.set[i]) = (v, true);
    }
    for (s, d) in m.syms.derived() {
        if let Some(v) = d.eval(&|t| st.set[t.0 as usize].then(|| st.vars[t.0 as usize])) {
            (st.vars[s.0 as usize], st.set[s.0 as usize]) = (v, true);
        }
    }
    if let Some(s) = m.dim_params.iter().find(|s| !st.set.get(s.0 as usize).copied().unwrap_or(false)) {
        return msg(format!("dim param s{} has no value", s.0));
    }
    if inputs.len() != m.inputs.len() {
        return msg(format!("found {} inputs, expected {}", inputs.len(), m.inputs.len()));
    }
    for b in &m.inputs {
        st.resolve(b.as_u32() as usize)?;
    }
    let mut c = Compiler {
        m,
        syms: st.set.clone(),
        regs: vec![Def::None; m.regs.len()],
        undo: vec![],
        cells: 0,
        vecs: vec![],
        depth: 0,
        kernels: (0..m.kernels.len()).map(|_| None).collect(),
        in_kernel: false,
    };
    let driver = c.block(&m.driver)?;
    st.cells = vec![0; c.cells];
    st.lanes = vec![0; c.depth];
    st.block(&driver, &c.kernels)?;
    let mut out = Outcome { outputs: vec![], dims: vec![] };
    for b in &m.outputs {
        let s = st.shape(b.as_u32() as usize)?;
        let (region, base, len, dims) = (s.region, s.base, s.len, s.dims.clone());
        if m.bufs[*b].ty == ElemType::Str {
            out.outputs.push(st.encoded(region, base, len / onnxc_runtime::texts::SIZE)?);
            out.dims.push(dims);
            continue;
        }
        match st.mem[region].bytes().get(base..base + len) {
            Some(bytes) => out.outputs.push(bytes.to_vec()),
            None => return msg(format!("output {b} is not in memory")),
        }
        out.dims.push(dims);
    }
    Ok(out)
}

fn in_kernel(name: &str, e: Box<Stop>) -> Box<Stop> {
    match *e {
        Stop::Message(m) => Box::new(Stop::Message(format!("kernel \"{name}\": {m}"))),
        _ => e,
    }
}

struct State<'a> {
    m: &'a Module,
    inputs: &'a [&'a [u8]],
    vars: Vec<i64>,
    /// Symbols that have a value, loop variables aside.
    set: Vec<bool>,
    regs: Vec<u64>,
    cells: Vec<u64>,
    lanes: Vec<u32>,
    shapes: Vec<Option<Shape>>,
    /// One region for each buffer that owns memory; the last one is the workspace.
    mem: Vec<Region<'a>>,
    texts: Numbers<Span>,
    pairs: Numbers<u128>,
}
