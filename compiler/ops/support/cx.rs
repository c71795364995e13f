//! The contexts of operators during inference and lowering: they contain operands, never the graph.

use crate::diag::{Code, Error, Origin, Result, codes};
use crate::nest::{self, BinOp, Buf, Expr, KernelBuilder, Module, Status, Stmt};
use crate::ops::from_end;
use crate::sym::{Answer, Dim, Range, Sym, SymKind, SymTable};
use crate::tensor::{ConstData, ElemType, TensorType, ValueType};
use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

/// The contents of a value, as far as they are known at compile time.
#[derive(Clone, Debug, Default)]
pub enum Known {
    /// Unknown.
    #[default]
    No,
    /// Constant data.
    Const(Arc<ConstData>),
    /// An integer tensor of known shape as expressions over dims, in row-major order. Shape arithmetic is
    /// folded through these.
    Dims(Vec<Dim>),
}

/// An operand as `infer` sees it.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Name of the value, for messages.
    pub name: String,
    /// Type.
    pub ty: ValueType,
    /// Contents.
    pub known: Known,
}

/// Inference of one node.
pub struct InferCx<'a> {
    /// Symbols. Unproven equalities are recorded here and checked at run time.
    pub syms: &'a mut SymTable,
    /// The node.
    pub origin: &'a Origin,
    /// Operands; `None` for omitted optional ones.
    pub inputs: &'a [Option<Operand>],
    /// Version of the operator in force.
    pub since: i64,
    /// Names of the outputs.
    pub names: Vec<String>,
    /// Shapes that the model declares for its outputs, over sizes known at entry. They are not proven: an
    /// operator that uses one must check it at run time ([`InferCx::size`]).
    pub declared: Vec<Option<Vec<Dim>>>,
    /// Results: type and contents of each output.
    pub outputs: Vec<Option<(ValueType, Known)>>,
    failure: OnceCell<Error>,
}

/// The type of an operand that is missing, until the error about it is reported.
static NO_TENSOR: LazyLock<TensorType> = LazyLock::new(|| TensorType::new(ElemType::F32, []));

/// An error with the types of the operands.
pub fn with_operands(e: Error, inputs: &[Option<Operand>], syms: &SymTable) -> Error {
    let given = inputs.iter().enumerate().filter_map(|(i, o)| Some((i, o.as_ref()?)));
    given.fold(e, |e, (i, o)| e.row(format!("input {i} \"{}\"", o.name), o.ty.display(syms)))
}

/// Requirements on operands keep the first error, so that `infer` need not leave at each of them; what it
/// infers afterwards is dropped ([`InferCx::check`]).
impl<'a> InferCx<'a> {
    /// The context of a node with unnamed outputs.
    pub fn new(
        syms: &'a mut SymTable,
        origin: &'a Origin,
        inputs: &'a [Option<Operand>],
        since: i64,
    ) -> InferCx<'a> {
        let (names, declared, outputs) = (vec![], vec![], vec![]);
        InferCx { syms, origin, inputs, since, names, declared, outputs, failure: OnceCell::new() }
    }
    /// The first error of a requirement, if there is one, else the result of `infer`.
    pub fn check(&mut self, inferred: Result<()>) -> Result<()> {
        self.failure.take().map_or(inferred, Error::fail)
    }
    /// Keeps an error, if it is the first one.
    pub fn fail(&self, e: Error) {
        // An error here says that there is an earlier one.
        let _ = self.failure.set(e);
    }
    /// An error about this node with the operands' types as rows.
    pub fn error(&self, code: Code, title: impl Into<String>) -> Error {
        with_operands(Error::new(code, title).at(self.origin), self.inputs, self.syms)
    }
    /// Fails unless `holds`; `otherwise` describes the error.
    pub fn require(&self, holds: bool, code: Code, otherwise: &str) -> Result<()> {
        if holds { Ok(()) } else { self.error(code, otherwise).fail() }
    }
    /// True if input `i` is given.
    pub fn has(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(|o| o.is_some())
    }
    /// Input `i`, which is required.
    pub fn operand(&self, i: usize) -> Result<&'a Operand> {
        match self.inputs.get(i).and_then(|o| o.as_ref()) {
            Some(o) => Ok(o),
            None => Err(self.error(codes::OP_ARITY, format!("input {i} is missing")).into()),
        }
    }
    /// Type of input `i`, which must be a tensor; a scalar if it is none.
    pub fn tensor(&self, i: usize) -> &'a TensorType {
        let tensor = match self.inputs.get(i).and_then(|o| o.as_ref()) {
            Some(o) => o.ty.as_tensor().ok_or((codes::OP_TYPE, "must be a tensor")),
            None => Err((codes::OP_ARITY, "is missing")),
        };
        tensor.unwrap_or_else(|(code, what)| {
            self.fail(self.error(code, format!("input {i} {what}")));
            &NO_TENSOR
        })
    }
    /// Type of input `i` if given.
    pub fn tensor_opt(&self, i: usize) -> Option<&'a TensorType> {
        self.has(i).then(|| self.tensor(i))
    }
    /// Constant contents of input `i` if known.
    pub fn constant(&self, i: usize) -> Option<Arc<ConstData>> {
        match &self.inputs.get(i)?.as_ref()?.known {
            Known::Const(c) => Some(c.clone()),
            _ => None,
        }
    }
    /// Contents of integer input `i` (rank 0 or 1) as dims, if known.
    pub fn dims_value(&self, i: usize) -> Option<Vec<Dim>> {
        let o = self.inputs.get(i)?.as_ref()?;
        match &o.known {
            Known::Dims(d) if o.ty.as_tensor().is_some_and(|t| t.rank() <= 1) => Some(d.clone()),
            Known::Const(c) if c.dims().len() <= 1 => {
                c.to_i64s().map(|v| v.into_iter().map(Dim::constant).collect())
            }
            _ => None,
        }
    }
    /// The same contents as plain integers.
    pub fn ints_value(&self, i: usize) -> Option<Vec<i64>> {
        match &self.inputs.get(i)?.as_ref()?.known {
            Known::Const(c) => c.to_i64s(),
            Known::Dims(d) => d.iter().map(|d| d.as_const()).collect(),
            Known::No => None,
        }
    }
    /// Contents that must be known at compile time; a run-time value is an error that gives the reason.
    pub fn need_ints(&self, i: usize, what: &str) -> Result<Vec<i64>> {
        self.ints_value(i).ok_or_else(|| self.run_time_value(i, what))
    }
    /// As [`InferCx::need_ints`], as dims.
    pub fn need_dims(&self, i: usize, what: &str) -> Result<Vec<Dim>> {
        self.dims_value(i).ok_or_else(|| self.run_time_value(i, what))
    }
    fn run_time_value(&self, i: usize, what: &str) -> crate::diag::Failure {
        self.error(codes::DYNAMIC_VALUE, format!("{what} (input {i}) is only known at run time"))
            .help(
                "make it an initializer, bind the dimensions it is computed from with --dim, or declare \
                the shape of the result in the model",
            )
            .into()
    }
    /// Resolves `axis` in `-rank..rank` to a nonnegative axis.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let r = rank as i64;
        if axis < -r || axis >= r {
            return Err(self
                .error(codes::OP_ATTRIBUTE, format!("axis {axis} is out of range for rank {rank}"))
                .into());
        }
        Ok(from_end(axis, r) as usize)
    }
    /// Fails unless the element type of input `i` is allowed.
    pub fn require_type(
        &self,
        i: usize,
        allowed: impl Fn(ElemType) -> bool,
        expected: &str,
    ) -> Result<ElemType> {
        let t = self.tensor(i).elem;
        if allowed(t) {
            return Ok(t);
        }
        Err(self
            .error(codes::OP_TYPE, format!("input {i} has element type {t}"))
            .found_expected(t.to_string(), expected)
            .into())
    }
    /// Requires that two dims are equal: an error if they cannot be, a run-time check if that is unknown.
    pub fn require_eq(&mut self, a: Dim, b: Dim, what: &str) {
        match self.syms.eq(a, b) {
            Answer::Yes => {}
            Answer::No => {
                let [found, expected] = [a, b].map(|d| d.display(self.syms).to_string());
                self.fail(self.error(codes::OP_SHAPE, what).found_expected(found, expected));
            }
            Answer::Unknown => self.syms.equate(a, b),
        }
    }
    /// Requires that a dim is 1 or equal to another, in the same way as [`InferCx::require_eq`].
    pub fn require_repeatable(&mut self, d: Dim, size: Dim, what: &str) {
        match (self.syms.eq(d, size), self.syms.eq(d, Dim::constant(1))) {
            (Answer::Yes, _) | (_, Answer::Yes) => {}
            (_, Answer::No) => self.require_eq(d, size, what),
            _ => self.syms.require_repeatable(d, size),
        }
    }
    /// The result of multidirectional broadcasting. Unproven conditions are recorded.
    pub fn broadcast(&mut self, shapes: &[&[Dim]]) -> Result<Vec<Dim>> {
        self.syms.broadcast(shapes).map_err(|m| {
            let (a, b) = (m.a.display(self.syms), m.b.display(self.syms));
            self.error(codes::OP_SHAPE, format!("the shapes do not broadcast: {a} against {b}")).into()
        })
    }
    /// Requires that one shape broadcasts to another one, which is unchanged.
    pub fn require_broadcast_to(&mut self, from: &[Dim], to: &[Dim], otherwise: &str) -> Result<()> {
        let shape = self.broadcast(&[to, from])?;
        self.require(shape.len() == to.len(), codes::OP_SHAPE, otherwise)?;
        shape.iter().zip(to).for_each(|(a, b)| self.require_eq(*a, *b, otherwise));
        Ok(())
    }
    /// A new symbol for a size that is known only at run time. `lower` defines it ([`LowerCx::define`]).
    pub fn fresh(&mut self, hint: &str) -> Sym {
        size_symbol(self.syms, hint)
    }
    /// Dimension `d` of `rank` of output `k`, which is known only at run time: the size that the model
    /// declares for an output of the graph, or a new symbol. `lower` defines the symbol, or checks the
    /// declared size ([`LowerCx::define`]).
    pub fn size(&mut self, k: usize, d: usize, rank: usize) -> Dim {
        match self.declared.get(k).and_then(|s| s.as_ref()).filter(|s| s.len() == rank) {
            Some(s) => s[d],
            None => {
                let hint = format!("{}_{d}", self.names.get(k).map_or("", |n| n.as_str()));
                self.fresh(&hint).into()
            }
        }
    }
    /// All dimensions of output `k` ([`InferCx::size`]). Together they hold at most `bound` elements, if that
    /// is known.
    pub fn sizes(&mut self, k: usize, rank: usize, bound: Option<Dim>) -> Vec<Dim> {
        let dims: Vec<Dim> = (0..rank).map(|d| self.size(k, d, rank)).collect();
        if let Some(b) = bound {
            self.bound(&dims, b);
        }
        dims
    }
    /// Records the bound of the product of these sizes, which `lower` promises to check.
    pub fn bound(&mut self, dims: &[Dim], bound: Dim) {
        let syms: Vec<Sym> = dims
            .iter()
            .filter_map(|d| d.as_sym())
            .filter(|s| self.syms.kind(*s) == SymKind::Runtime)
            .collect();
        // The other factors must be positive, since a factor of 0 would remove the bound of the rest.
        if !syms.is_empty() && dims.iter().all(|d| d.as_sym().is_some() || self.syms.is_pos(*d)) {
            self.syms.bound_product(&syms, bound);
        }
    }
    /// Sets output `k` to a tensor.
    pub fn set(&mut self, k: usize, elem: ElemType, dims: impl Into<Vec<Dim>>) {
        self.set_known(k, elem, dims, Known::No);
    }
    /// Sets output `k` to a tensor with known contents.
    pub fn set_known(&mut self, k: usize, elem: ElemType, dims: impl Into<Vec<Dim>>, known: Known) {
        self.set_type(k, ValueType::Tensor(TensorType::new(elem, dims)), known);
    }
    /// Sets output `k`.
    pub fn set_type(&mut self, k: usize, ty: ValueType, known: Known) {
        if self.failure.get().is_some() {
            return;
        }
        if self.outputs.len() <= k {
            self.outputs.resize(k + 1, None);
        }
        self.outputs[k] = Some((ty, known));
    }
}

/// Largest value of a size defined at run time.
pub const MAX_SIZE: i64 = i32::MAX as i64;

fn size_symbol(syms: &mut SymTable, hint: &str) -> Sym {
    let s = syms.fresh(SymKind::Runtime, hint);
    syms.set_range(s, Range::new(0, MAX_SIZE));
    s
}

/// Lowering of one node.
pub struct LowerCx<'a> {
    /// The module under construction, to which kernels, temporaries and constants are added.
    pub m: &'a mut Module,
    /// The node.
    pub origin: &'a Origin,
    /// Version of the operator in force.
    pub since: i64,
    /// Buffers of the operands.
    pub inputs: &'a [Option<Buf>],
    /// Known contents of the operands.
    pub known: &'a [Known],
    /// Run-time sizes that have been defined.
    pub defined: &'a mut HashSet<Sym>,
    /// Buffers of the outputs, created from the inferred types; `None` for unused ones. An operator may
    /// replace one by another buffer with [`LowerCx::alias`].
    pub outputs: Vec<Option<Buf>>,
}

impl LowerCx<'_> {
    /// An error about this node.
    pub fn error(&self, code: Code, title: impl Into<String>) -> Error {
        Error::new(code, title).at(self.origin)
    }
    /// A bug: lowering met a case that inference should have rejected.
    pub fn bug<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(crate::diag::Failure::bug(format!("lower {}", self.origin.short()), message))
    }
    /// Buffer of input `i`, which must be given.
    pub fn input(&self, i: usize) -> Buf {
        match self.inputs.get(i).copied().flatten() {
            Some(b) => b,
            None => unreachable!("infer has checked that input {i} is given"),
        }
    }
    /// Buffer of input `i` if given.
    pub fn input_opt(&self, i: usize) -> Option<Buf> {
        self.inputs.get(i).copied().flatten()
    }
    /// Buffer of output `k`, which must be used.
    pub fn output(&self, k: usize) -> Buf {
        match self.outputs.get(k).copied().flatten() {
            Some(b) => b,
            None => unreachable!("output {k} is not wanted"),
        }
    }
    /// Buffer of output `k`, if it is used.
    pub fn output_opt(&self, k: usize) -> Option<Buf> {
        self.outputs.get(k).copied().flatten()
    }
    /// Shape of a buffer.
    pub fn dims(&self, b: Buf) -> Vec<Dim> {
        self.m.bufs[b].dims.clone()
    }
    /// Storage type of a buffer.
    pub fn elem(&self, b: Buf) -> ElemType {
        self.m.bufs[b].ty
    }
    /// Constant contents of input `i`.
    pub fn constant(&self, i: usize) -> Option<Arc<ConstData>> {
        match self.known.get(i)? {
            Known::Const(c) => Some(c.clone()),
            _ => None,
        }
    }
    /// Known integers of input `i` (rank 0 or 1) as dims.
    pub fn dims_value(&self, i: usize) -> Option<Vec<Dim>> {
        match self.known.get(i)? {
            Known::Dims(d) if self.input_opt(i).is_none_or(|b| self.m.bufs[b].dims.len() <= 1) => {
                Some(d.clone())
            }
            Known::Const(c) => c.to_i64s().map(|v| v.into_iter().map(Dim::constant).collect()),
            _ => None,
        }
    }
    /// Known integers of input `i`.
    pub fn ints_value(&self, i: usize) -> Option<Vec<i64>> {
        self.dims_value(i)?.into_iter().map(|d| d.as_const()).collect()
    }
    /// Lets the driver define the run-time size `dim` by an i64 expression, which may load from buffers. If
    /// the size is already known (declared by the model or defined by an earlier operator), the driver checks
    /// that it is equal.
    pub fn define(&mut self, dim: Dim, value: Expr) {
        let range = |m: &Module, s: Sym| m.syms.declared_range(s);
        match dim.as_sym().filter(|s| self.m.syms.kind(*s) == SymKind::Runtime && !self.defined.contains(s)) {
            Some(sym) => {
                self.defined.insert(sym);
                let r = range(self.m, sym);
                let lo = Dim::constant(r.lo.unwrap_or(i64::MIN));
                self.m.driver.push(Stmt::Define { sym, value, lo, hi: r.hi.map(Dim::constant) });
            }
            None => self.m.driver.push(Stmt::Check {
                cond: Expr::bin(BinOp::Eq, Expr::Index(dim), value),
                status: Status::Value,
            }),
        }
    }
    /// A new run-time number in `lo..=hi` with its definition: a position, a step.
    pub fn number(&mut self, hint: &str, value: Expr, lo: Option<i64>, hi: Option<i64>) -> Dim {
        let sym = self.m.syms.fresh_number(hint, Range { lo, hi });
        self.define(sym.into(), value);
        sym.into()
    }
    /// Run-time numbers computed by a small kernel: `write` stores them, as i64, to the buffer of `n`
    /// elements that it gets. Pass them to [`LowerCx::define`] as `Expr::Load` of the returned buffer.
    pub fn compute(&mut self, n: usize, write: impl FnOnce(&mut KernelBuilder, Buf)) -> Buf {
        let out = self.temp("sizes", ElemType::I64, vec![Dim::from(n)]);
        let k = self.kernel(|k| write(k, out));
        self.m.kernels[k].name = self.m.bufs[out].name.clone();
        out
    }
    /// As [`LowerCx::compute`], with the numbers as expressions, which become the sizes `dims`.
    pub fn define_all(&mut self, dims: &[Dim], values: impl FnOnce(&mut KernelBuilder) -> Vec<Expr>) {
        let list = self.compute(dims.len().max(1), |k, out| {
            for (i, v) in values(k).into_iter().enumerate() {
                k.store(out, &[Dim::from(i)], v);
            }
        });
        for (i, d) in dims.iter().enumerate() {
            self.define(*d, Expr::Load { buf: list, at: vec![Dim::from(i)] });
        }
    }
    /// Makes output `k` a view of `src` with the output's shape (Reshape, Identity, ...).
    pub fn alias(&mut self, k: usize, src: Buf) {
        let out = self.output(k);
        let dims = self.dims(out);
        self.outputs[k] = Some(self.m.shaped(src, dims));
    }
    /// A kernel that stores one expression for every element of `out`.
    pub fn map(&mut self, out: Buf, value: impl FnOnce(&mut KernelBuilder, &[Dim]) -> Expr) -> nest::Kernel {
        self.m.map(out, self.origin, value)
    }
    /// A kernel of any form.
    pub fn kernel(&mut self, write: impl FnOnce(&mut KernelBuilder)) -> nest::Kernel {
        let name =
            self.outputs.iter().flatten().next().map(|b| self.m.bufs[*b].name.clone()).unwrap_or_default();
        self.m.kernel(&name, self.origin, write)
    }
    /// A scratch buffer named after the first output.
    pub fn temp(&mut self, suffix: &str, ty: ElemType, dims: impl Into<Vec<Dim>>) -> Buf {
        let name =
            self.outputs.iter().flatten().next().map(|b| self.m.bufs[*b].name.clone()).unwrap_or_default();
        self.m.temp(format!("{name}.{suffix}"), ty, dims)
    }
}
