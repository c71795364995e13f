//! infer_shapes for If, Loop and Scan: types of results derived from those of the bodies.
//!
//! Conditions and facts that are recorded in a body hold only where it runs: the conditions are kept in the
//! subgraph, the facts are dropped. A size that differs between branches, or that changes between iterations,
//! is a run-time size of the result. The changing sizes of loop-carried values are found by iteration. The
//! body is inferred with the sizes of the first iteration. Sizes that come out different become run-time
//! sizes, and the body is inferred again until nothing changes.

mod branch;
mod scan;

use super::infer::{Hints, Role, infer_graph};
use crate::diag::{Error, Failure, Findings, Origin, Result, codes};
use crate::graph::{Def, Graph, Node, NodeData, Value};
use crate::ops::control::{Control, Scan};
use crate::ops::from_end;
use crate::ops::{InferCx, Known, Op, Operand};
use crate::sym::{Answer, Dim, SymKind, SymTable};
use crate::tensor::{ConstData, ElemType, TensorType, ValueType};
use std::sync::Arc;

pub(super) type Output = Option<(ValueType, Known)>;
/// Types and known contents of the results of a body without errors.
type Types = Option<Vec<(ValueType, Known)>>;
/// Results of a body, and for each carried value which of its sizes change.
type Settled = (Vec<(ValueType, Known)>, Vec<Vec<bool>>);

/// The values that a body carries: its results from `first_out` on are passed to its inputs from `first_in`
/// on in the next iteration.
struct Carried<'a> {
    first_in: usize,
    first_out: usize,
    /// Their types in the first iteration.
    types: &'a mut [TensorType],
    /// Those that are tables, which have no columns while they are empty.
    tables: &'a [usize],
}

/// The context of the node.
pub(super) struct Outer<'a> {
    /// Operands.
    pub operands: &'a [Option<Operand>],
    /// Names of the results.
    pub names: Vec<String>,
    /// Their declared shapes.
    pub declared: Vec<Option<Vec<Dim>>>,
    /// True if the enclosing graph is inferred once.
    pub once: bool,
}

struct Cx<'a> {
    g: &'a Graph,
    n: Node,
    outer: Outer<'a>,
    findings: &'a mut Findings,
    outputs: Vec<Output>,
    uneven: Vec<usize>,
    only: Option<bool>,
}

/// The result of inferring a control-flow node.
#[derive(Default)]
pub(super) struct Found {
    pub outputs: Vec<Output>,
    /// Results of If whose rank differs between the branches and which therefore have no type. Only if the
    /// enclosing graph is inferred once.
    pub uneven: Vec<usize>,
    /// The value of the condition of If without which a call fails, because the other branch is invalid. Only
    /// if the enclosing graph is inferred once.
    pub only: Option<bool>,
}

/// The error about a result whose rank differs between the branches.
pub(super) fn uneven(node: &NodeData, k: usize) -> Error {
    Error::new(
        codes::OP_FEATURE,
        format!(
            "result {k} has another rank in each branch, which is not \
        supported"
        ),
    )
    .at(&node.origin)
    .help(
        "what a loop computes, and results of a branch inside another one, must have one rank: \
            reshape them inside the branches",
    )
}

/// Infers a control-flow node. Returns the result, and the error that ended inference, if any.
pub(super) fn infer(
    g: &mut Graph,
    n: Node,
    outer: Outer,
    syms: &mut SymTable,
    findings: &mut Findings,
) -> (Result<()>, Found) {
    let Op::Control(op) = g.nodes[n].op.clone() else { return (Ok(()), Found::default()) };
    let mut subs = std::mem::take(&mut g.nodes[n].subgraphs);
    let mut cx = Cx { g, n, outer, findings, outputs: vec![], uneven: vec![], only: None };
    let r = match &op {
        Control::If { tables } => cx.branch(tables, &mut subs, syms),
        Control::Loop { tables } => cx.repeat(tables, &mut subs, syms),
        Control::Scan(s) => cx.scan(s, &mut subs, syms),
    };
    let Cx { outputs, uneven, only, .. } = cx;
    g.nodes[n].subgraphs = subs;
    (r, Found { outputs, uneven, only })
}

fn tensor(o: &Operand) -> Option<&TensorType> {
    o.ty.as_tensor()
}

fn truth(v: bool) -> Known {
    ConstData::new(ElemType::Bool, vec![], vec![u8::from(v)]).map_or(Known::No, |c| Known::Const(Arc::new(c)))
}

/// Drops the results of an earlier attempt.
fn reset(sub: &mut Graph) {
    for (_, d) in sub.values.iter_mut() {
        if let Def::Node(..) = d.def {
            (d.ty, d.known) = (None, Known::No);
        }
    }
}

fn capture(sub: &mut Graph, outer: &Graph) {
    for (o, v) in sub.captures.clone() {
        sub.values[v].ty = outer.values[o].ty.clone();
        sub.values[v].known = outer.values[o].known.clone();
    }
}

/// True if a value is known to be true in every run of the body. Its inputs may be known to be true because
/// the body runs.
pub(crate) fn is_true(sub: &Graph, v: Value) -> bool {
    let d = &sub.values[v];
    if let Known::Const(c) = &d.known {
        return c.to_i64s().is_some_and(|v| v.iter().all(|x| *x != 0));
    }
    match &d.def {
        Def::Node(n, _) if matches!(sub.nodes[*n].op, Op::View(crate::ops::view::View::Identity)) => {
            sub.nodes[*n].inputs.first().copied().flatten().is_some_and(|x| is_true(sub, x))
        }
        _ => false,
    }
}

impl Cx<'_> {
    fn origin(&self) -> &Origin {
        &self.g.nodes[self.n].origin
    }
    fn fail<T>(&self, code: crate::diag::Code, title: impl Into<String>) -> Result<T> {
        Error::new(code, title).at(self.origin()).fail()
    }
    fn operand(&self, i: usize) -> Option<&Operand> {
        self.outer.operands.get(i).and_then(|o| o.as_ref())
    }
    /// A size of result `k` that is known at run time or declared by the model.
    fn size(&self, syms: &mut SymTable, k: usize, d: usize, rank: usize) -> Dim {
        let node = &self.g.nodes[self.n];
        let (names, declared) = (self.outer.names.clone(), self.outer.declared.clone());
        let mut cx = InferCx::new(syms, &node.origin, &[], node.schema.since);
        (cx.names, cx.declared) = (names, declared);
        cx.size(k, d, rank)
    }
    /// Types of the body's results; `None`, with findings, if it has errors.
    fn run(
        &mut self,
        sub: &mut Graph,
        syms: &mut SymTable,
        last: bool,
        once: bool,
    ) -> Result<Option<Vec<(ValueType, Known)>>> {
        let (local, out) = self.attempt(sub, syms, once)?;
        if last {
            self.report(&local);
        }
        Ok(out)
    }
    /// Types of the body's results, if it has no errors, and the findings, which are not reported yet.
    fn attempt(&self, sub: &mut Graph, syms: &mut SymTable, once: bool) -> Result<(Findings, Types)> {
        capture(sub, self.g);
        reset(sub);
        let mut local = Findings::default();
        infer_graph(sub, syms, &mut local, &Hints::new(), if once { Role::Branch } else { Role::Body })?;
        if local.has_errors() {
            return Ok((local, None));
        }
        let of = |v: &Value| Some((sub.values[*v].ty.clone()?, sub.values[*v].known.clone()));
        let types = sub.outputs.iter().map(of).collect();
        Ok((local, types))
    }
    fn report(&mut self, local: &Findings) {
        local.errors().iter().chain(local.warnings()).for_each(|e| self.findings.push(e.clone()));
    }
    fn body<'s>(&self, subs: &'s mut [(String, Graph)], name: &str) -> Result<&'s mut Graph> {
        subs.iter_mut()
            .find(|(n, _)| n == name)
            .map(|(_, g)| g)
            .ok_or_else(|| Failure::bug("infer", format!("no graph {name}")))
    }

    /// Infers a body that carries values from one iteration to the next. Returns the results of the body and,
    /// for each carried value, which sizes change.
    fn settle(&mut self, sub: &mut Graph, syms: &mut SymTable, carried: Carried) -> Result<Option<Settled>> {
        let Carried { first_in, first_out, types, tables } = carried;
        let mut inputs: Vec<TensorType> = types.to_vec();
        let mut varies: Vec<Vec<bool>> = types.iter().map(|t| vec![false; t.rank()]).collect();
        let attempts = 2 + tables.len() + types.iter().map(|t| t.rank()).sum::<usize>();
        for _ in 0..attempts {
            for (k, t) in inputs.iter().enumerate() {
                let v = sub.inputs[first_in + k];
                sub.values[v].ty = Some(ValueType::Tensor(t.clone()));
            }
            let scope = syms.open();
            let out = self.run(sub, syms, false, false)?;
            let mut changed = vec![];
            let mut widened = false;
            for (k, t) in inputs.iter().enumerate() {
                let found = out.as_ref().map(|o| &o[first_out + k].0);
                let alike = |f: &TensorType| f.elem == t.elem && f.rank() == t.rank();
                if let Some(f) = found.filter(|f| !f.as_tensor().is_some_and(alike)) {
                    syms.close(scope);
                    return self.changes_form(syms, k, f, t);
                }
                let found = found.and_then(|f| f.as_tensor());
                if let Some(f) = found.filter(|_| tables.contains(&k) && !varies[k].contains(&true)) {
                    let own = columns_of(&types[k], f);
                    if own != types[k] && own.dims[1].as_const().is_some() {
                        types[k] = own;
                        widened = true;
                        continue;
                    }
                }
                // A body with errors for the first sizes may be valid for others.
                let stays = |d: usize| found.is_some_and(|f| syms.eq(f.dims[d], t.dims[d]) == Answer::Yes);
                changed.extend((0..t.rank()).filter(|d| !stays(*d) && !varies[k][*d]).map(|d| (k, d)));
            }
            let conditions = syms.close(scope);
            if widened {
                tables
                    .iter()
                    .filter(|k| !varies[**k].contains(&true))
                    .for_each(|k| inputs[*k] = types[*k].clone());
            }
            if changed.is_empty() && !widened {
                let scope = syms.open();
                let out = if out.is_none() { self.run(sub, syms, true, false)? } else { out };
                syms.close(scope);
                sub.conditions = conditions;
                return Ok(out.map(|o| (o, varies)));
            }
            for (k, d) in changed {
                varies[k][d] = true;
                let name = sub.values[sub.inputs[first_in + k]].name.clone();
                inputs[k].dims[d] = self.fresh(syms, &format!("{name}_{d}"));
            }
        }
        Err(Failure::bug("infer", "the sizes of a loop do not settle"))
    }
    /// The error for a carried value that an iteration leaves in another type or rank.
    fn changes_form<T>(&self, syms: &SymTable, k: usize, found: &ValueType, given: &TensorType) -> Result<T> {
        let text = format!("loop-carried value {k} changes its type or rank, which is not supported");
        Error::new(codes::OP_FEATURE, text)
            .at(self.origin())
            .found_expected(found.display(syms), given.display(syms))
            .fail()
    }
    fn fresh(&self, syms: &mut SymTable, hint: &str) -> Dim {
        let node = &self.g.nodes[self.n];
        InferCx::new(syms, &node.origin, &[], node.schema.since).fresh(hint).into()
    }
    /// Adds the types of the final values of carried values.
    fn carried(&mut self, syms: &mut SymTable, at: usize, carried: &[TensorType], varies: &[Vec<bool>]) {
        for (k, (t, v)) in carried.iter().zip(varies).enumerate() {
            let dims: Vec<Dim> = (0..t.rank())
                .map(|d| if v[d] { self.size(syms, at + k, d, t.rank()) } else { t.dims[d] })
                .collect();
            self.outputs.push(Some((ValueType::Tensor(TensorType::new(t.elem, dims)), Known::No)));
        }
    }
    fn carried_types(&self, from: usize, to: usize) -> Result<Vec<TensorType>> {
        (from..to)
            .map(|i| match self.operand(i).map(|o| &o.ty) {
                Some(ValueType::Tensor(t)) => Ok(t.clone()),
                Some(_) => self
                    .fail(codes::OP_FEATURE, format!("input {i} is no tensor, which is not supported yet")),
                None => self.fail(codes::OP_ARITY, format!("input {i} is missing")),
            })
            .collect()
    }
    fn body_counts<T>(&self, op: &str, found: String, expected: String) -> Result<T> {
        let e = Error::new(codes::GRAPH_INVALID, format!("the body of {op} does not fit the node"))
            .at(self.origin());
        e.found_expected(found, expected)
            .help(
                "inputs and outputs of the body follow those of the node; \
            what the body only reads it sees without an input",
            )
            .fail()
    }
    /// Fails if the types that the body declares for its inputs from `first` on contradict the given ones.
    fn declared_inputs(&self, sub: &Graph, first: usize, given: &[ElemType]) -> Result<()> {
        for (k, elem) in given.iter().enumerate() {
            let d = &sub.values[sub.inputs[first + k]];
            let Some(declared) =
                d.declared.as_ref().and_then(|t| t.as_tensor()).map(|t| t.elem).filter(|t| t != elem)
            else {
                continue;
            };
            let e = Error::new(
                codes::TYPE_INVALID,
                format!(
                    "input {} \"{}\" of the body is declared otherwise than the node gives it",
                    first + k,
                    d.name
                ),
            )
            .at(self.origin());
            return e
                .row("declared", declared.to_string())
                .row("given", elem.to_string())
                .help("correct the declared type, or leave it out")
                .fail();
        }
        Ok(())
    }
    /// Sets the type of a scalar input such as the iteration number; it is a list of one element if the body
    /// declares it so.
    fn scalar_input(&self, sub: &mut Graph, i: usize, elem: ElemType, known: Known) {
        let v = sub.inputs[i];
        let one = matches!(sub.values[v].ty.as_ref().and_then(|t| t.as_tensor()), Some(t) if t.rank() == 1);
        let dims = if one { vec![Dim::constant(1)] } else { vec![] };
        sub.values[v].ty = Some(ValueType::Tensor(TensorType::new(elem, dims)));
        sub.values[v].known = known;
    }
    fn repeat(&mut self, tables: &[usize], subs: &mut [(String, Graph)], syms: &mut SymTable) -> Result<()> {
        let sub = self.body(subs, "body")?;
        let n = self.outer.operands.len().saturating_sub(2);
        if sub.inputs.len() != n + 2 || sub.outputs.len() < n + 1 {
            let found = format!("{} inputs and {} outputs", sub.inputs.len(), sub.outputs.len());
            let expected =
                format!("{} inputs and at least {} outputs, as the node carries {n} values", n + 2, n + 1);
            return self.body_counts("Loop", found, expected);
        }
        for i in 0..2 {
            if self.operand(i).is_some_and(|o| tensor(o).is_none_or(|t| t.count().as_const() != Some(1))) {
                return self.fail(codes::OP_SHAPE, format!("input {i} of Loop must be one number"));
            }
        }
        let mut carried = self.carried_types(2, n + 2)?;
        self.declared_inputs(sub, 0, &[ElemType::I64, ElemType::Bool])?;
        self.declared_inputs(sub, 2, &carried.iter().map(|t| t.elem).collect::<Vec<_>>())?;
        let mark = syms.len();
        let it = syms.fresh_number("iteration", crate::sym::Range::at_least(0));
        self.scalar_input(sub, 0, ElemType::I64, Known::Dims(vec![it.into()]));
        // The body runs only if the condition is true.
        self.scalar_input(sub, 1, ElemType::Bool, truth(true));
        let values = Carried { first_in: 2, first_out: 1, types: &mut carried, tables };
        let Some((out, varies)) = self.settle(sub, syms, values)? else { return Ok(()) };
        if out[0].0.as_tensor().is_none_or(|t| t.elem != ElemType::Bool || t.count().as_const() != Some(1)) {
            return self
                .fail(codes::OP_SHAPE, "the condition that the body computes must be one truth value");
        }
        self.carried(syms, 0, &carried, &varies);
        let exact = is_true(sub, sub.outputs[0])
            && self.operand(1).is_none_or(|c| known_truth(&c.known) == Some(true));
        let trips = self.operand(0).and_then(|o| match &o.known {
            Known::Dims(d) => d.first().copied(),
            Known::Const(c) => c.to_i64s().and_then(|v| v.first().map(|v| Dim::constant(*v))),
            Known::No => None,
        });
        for (j, (ty, _)) in out.iter().enumerate().skip(n + 1) {
            let ValueType::Tensor(t) = ty else {
                return self.fail(codes::OP_FEATURE, "a scan output that is no tensor is not supported");
            };
            let (k, rank) = (j - 1, t.rank() + 1);
            let count = match trips {
                Some(m) if exact => {
                    if syms.is_nonneg(m) {
                        m
                    } else {
                        m.max(0)
                    }
                }
                _ => {
                    let s = self.size(syms, k, 0, rank);
                    if let (Some(sym), Some(m)) = (
                        s.as_sym().filter(|s| syms.kind(*s) == SymKind::Runtime),
                        trips.filter(|m| m.as_const().is_none_or(|m| m < 1 << 24)),
                    ) {
                        syms.bound_product(&[sym], m.max(0));
                    }
                    s
                }
            };
            let mut dims = vec![count];
            for (d, x) in t.dims.iter().enumerate() {
                dims.push(if outside(syms, *x, mark) { *x } else { self.size(syms, k, d + 1, rank) });
            }
            self.outputs.push(Some((ValueType::Tensor(TensorType::new(t.elem, dims)), Known::No)));
        }
        Ok(())
    }
}

/// The type of a sequence's table when it meets another table: without rows, it takes the other's number of
/// columns.
fn columns_of(t: &TensorType, other: &TensorType) -> TensorType {
    match (&t.dims[..], &other.dims[..]) {
        ([len, _], [_, columns]) if len.as_const() == Some(0) => {
            TensorType::new(t.elem, vec![*len, *columns])
        }
        _ => t.clone(),
    }
}

/// Resolves an axis, which may be negative to count from the end.
pub(crate) fn axis(a: i64, rank: usize) -> Option<usize> {
    usize::try_from(from_end(a, rank as i64)).ok().filter(|a| *a < rank)
}

/// The truth value, if it is known.
pub(crate) fn known_truth(k: &Known) -> Option<bool> {
    match k {
        Known::Const(c) => c.to_i64s()?.first().map(|v| *v != 0),
        Known::Dims(d) => d.first()?.as_const().map(|v| v != 0),
        Known::No => None,
    }
}

/// True if a size does not depend on sizes defined in a body: its symbols are older than `mark`.
fn outside(syms: &SymTable, d: Dim, mark: usize) -> bool {
    d.syms().into_iter().all(|s| (s.0 as usize) < mark || syms.kind(s) != SymKind::Runtime)
}
