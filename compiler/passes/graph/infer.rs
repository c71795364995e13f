//! infer_shapes: types, symbolic shapes and known contents of every value. All findings are collected.

use super::control::{self, Output};
use crate::diag::{Error, Findings, Origin, Result, codes, limits};
use crate::graph::{Def, Graph, Model, Node, Value};
use crate::ops::support::cx::with_operands;
use crate::ops::view::View;
use crate::ops::{InferCx, Known, Op, Operand};
use crate::sym::{Answer, Condition, Dim, Source, Sym, SymTable};
use crate::tensor::{ElemType, TensorType, ValueType};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeSet;

/// Runs the pass.
pub fn run(model: &mut Model, findings: &mut Findings) -> Result<()> {
    for v in model.graph.inputs.clone() {
        if let Some(ValueType::Tensor(t)) = &mut model.graph.values[v].ty {
            t.dims.iter_mut().for_each(|d| *d = model.syms.resolve(*d));
        }
        let d = &model.graph.values[v];
        if let Some(e) = d.ty.as_ref().and_then(|t| too_large(&d.name, t, &model.syms)) {
            findings.push(e.at(&model.origin));
        }
    }
    findings.check()?;
    let hints = declared_shapes(&model.graph, &model.syms);
    infer_graph(&mut model.graph, &mut model.syms, findings, &hints, Role::Main)?;
    let g = &model.graph;
    for v in g.outputs.iter().filter(|v| matches!(g.values[**v].def, Def::Input(_) | Def::Const(_))) {
        let (d, here) = (&g.values[*v], &model.origin);
        if let Some((inferred, declared)) =
            d.ty.as_ref().zip(contradiction(d.ty.as_ref(), d.declared.as_ref(), &model.syms))
        {
            findings.push(
                wrong_output(&d.name, declared, inferred, &model.syms)
                    .at(&here.element(format!("output \"{}\"", d.name))),
            );
        }
    }
    findings.check()?;
    // Expansions may compute more results than are used.
    super::dead::run(model)
}

/// Declared shapes that may be assumed, because they are checked at run time.
pub(super) type Hints = SecondaryMap<Value, Option<Vec<Dim>>>;

/// Cost of a node of a branch for `limits::BODY_NODES`: it may be copied.
const BRANCH: u64 = 8;

/// Adds to the cost of inferring bodies, and fails if it exceeds the limit.
fn spend(syms: &mut SymTable, cost: u64, origin: &Origin) -> Result<()> {
    if !limits::BODY_NODES.exceeded_by(syms.spend_on_bodies(cost)) {
        return Ok(());
    }
    let e = limits::BODY_NODES.error(
        "bodies of branches and loops are inferred too often",
        format!("more than {}", limits::BODY_NODES.value),
    );
    e.at(origin).fail()
}

/// The number of nodes of `n` including its bodies.
fn nodes(g: &Graph, n: Node) -> u64 {
    let inside = |s: &Graph| s.order.iter().map(|n| nodes(s, *n)).sum::<u64>();
    1 + g.nodes[n].subgraphs.iter().map(|(_, s)| inside(s)).sum::<u64>()
}

/// The role of a graph in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The main graph, whose results are the model's.
    Main,
    /// A branch whose enclosing graph is inferred once.
    Branch,
    /// A body that is inferred several times, until the types of carried values settle.
    Body,
}

/// Infers the types of all results of a graph whose inputs and captures have types. Unless the graph is a
/// [`Role::Body`], these types are final, so that conclusions may be written into the graph.
pub(super) fn infer_graph(
    g: &mut Graph,
    syms: &mut SymTable,
    findings: &mut Findings,
    hints: &Hints,
    role: Role,
) -> Result<()> {
    let mut cx = Infer { g, syms, findings, hints, role, place: 0 };
    while let Some(n) = cx.g.order.get(cx.place).copied() {
        if cx.findings.is_full() {
            break;
        }
        cx.place += 1;
        cx.node(n)?;
    }
    Ok(())
}

/// The state of inferring a graph's nodes in order.
struct Infer<'a> {
    g: &'a mut Graph,
    syms: &'a mut SymTable,
    findings: &'a mut Findings,
    hints: &'a Hints,
    role: Role,
    /// Index of the next node in the graph's order.
    place: usize,
}

impl Infer<'_> {
    fn node(&mut self, n: Node) -> Result<()> {
        let weight = match self.role {
            Role::Main => 0,
            Role::Branch => BRANCH,
            Role::Body => 1,
        };
        if weight > 0 {
            spend(self.syms, weight, &self.g.nodes[n].origin)?;
        }
        // An operand without a type has been reported at its definition.
        let Some(operands) = self.operands(n) else { return Ok(()) };
        if let Some(e) = self.wrong_type(n, &operands) {
            self.findings.push(e.at(&self.g.nodes[n].origin));
            return Ok(());
        }
        let Some((r, outputs)) = self.results(n, &operands)? else { return Ok(()) };
        if let Some(e) = self.opaque(n, &operands, &outputs) {
            self.findings.push(e.at(&self.g.nodes[n].origin));
            return Ok(());
        }
        let impossible = self.syms.take_impossible();
        if self.findings.absorb(r)?.is_none() {
            return Ok(());
        }
        if let Some(Condition::AtMost(a, b)) = impossible {
            let (a, b) = (a.display(self.syms), b.display(self.syms));
            let e = Error::new(codes::OP_SHAPE, "the operator does not take tensors of these sizes");
            let e = e.at(&self.g.nodes[n].origin);
            self.findings.push(e.found_expected(format!("{a} > {b}"), format!("{a} <= {b}")));
            return Ok(());
        }
        let node = &self.g.nodes[n];
        let outputs = super::evaluate::evaluate(node, &operands, &outputs, self.syms).unwrap_or(outputs);
        for (v, r) in node.outputs.clone().into_iter().zip(outputs) {
            if let (Some(v), Some(r)) = (v, r)
                && let Err(e) = self.define(n, v, r)
            {
                self.findings.push(e.at(&self.g.nodes[n].origin));
            }
        }
        let g = &*self.g;
        self.syms.claim(|| source(g, n));
        Ok(())
    }
    fn operands(&self, n: Node) -> Option<Vec<Option<Operand>>> {
        let operand = |v: Value| {
            let d = &self.g.values[v];
            let ty = d.ty.clone()?;
            Some(Some(Operand { name: d.name.clone(), ty, known: d.known.clone() }))
        };
        self.g.nodes[n].inputs.iter().map(|v| v.map_or(Some(None), operand)).collect()
    }
    /// The error about an operand whose type the operator does not accept.
    fn wrong_type(&self, n: Node, operands: &[Option<Operand>]) -> Option<Error> {
        let schema = self.g.nodes[n].schema;
        let types: Vec<Option<&ValueType>> = operands.iter().map(|o| o.as_ref().map(|o| &o.ty)).collect();
        let (i, name, expected) = schema.check_types(&types).err()?;
        let found = types[i].map(|t| t.display(self.syms)).unwrap_or_default();
        let title = format!(
            "input {i} ({name}) has a type that {} version {} does not take",
            schema.name, schema.since
        );
        let e = with_operands(Error::new(codes::OP_TYPE, title), operands, self.syms);
        Some(e.found_expected(found, expected))
    }
    /// The error about an arithmetic operator on elements that can only be moved.
    fn opaque(&self, n: Node, operands: &[Option<Operand>], outputs: &[Output]) -> Option<Error> {
        let node = &self.g.nodes[n];
        let types = operands.iter().flatten().map(|o| &o.ty).chain(outputs.iter().flatten().map(|o| &o.0));
        let takes = |t: &ElemType| {
            node.op.elements(&crate::ops::qualified(node.schema.domain, node.schema.name)).take(*t)
        };
        let elem = types.filter_map(|t| t.as_tensor()).map(|t| t.elem).find(|t| !takes(t))?;
        let what = if elem == ElemType::Str { "strings" } else { "complex numbers" };
        let title =
            format!("{} computes with its elements, and nothing says what comes of {what}", node.schema.name);
        Some(Error::new(codes::OP_FEATURE, title))
    }
    /// The operator's results. `None` if the node has been replaced, or an error has been reported.
    fn results(
        &mut self,
        n: Node,
        operands: &[Option<Operand>],
    ) -> Result<Option<(Result<()>, Vec<Output>)>> {
        let node = &self.g.nodes[n];
        let name = |v: &Option<Value>| v.map_or_else(String::new, |v| self.g.values[v].name.clone());
        let names = node.outputs.iter().map(name).collect();
        let declared = node.outputs.iter().map(|v| self.hints[(*v)?].clone()).collect();
        let expands = matches!(node.op, Op::Control(_) | Op::Composite(_) | Op::Contrib(_));
        if !expands && !super::expand::complex::applies(node, operands) {
            let mut cx = InferCx::new(self.syms, &node.origin, operands, node.schema.since);
            (cx.names, cx.declared) = (names, declared);
            cx.outputs = vec![None; node.outputs.len()];
            return Ok(Some((node.op.infer(&mut cx), cx.outputs)));
        }
        let once = self.role != Role::Body;
        let made = super::expand::expand(self.g, n, operands, self.syms, once);
        match self.findings.absorb(made)? {
            None => return Ok(None),
            Some(Some(made)) => {
                self.replace(made);
                return Ok(None);
            }
            Some(None) if !matches!(self.g.nodes[n].op, Op::Control(_)) => return Ok(None),
            Some(None) => {}
        }
        let outer = control::Outer { operands, names, declared, once };
        let (r, found) = control::infer(self.g, n, outer, self.syms, self.findings);
        if r.is_ok() && !found.uneven.is_empty() {
            self.sink(n, &found.uneven)?;
            return Ok(None);
        }
        if let (Ok(()), Some(truth)) = (&r, found.only) {
            let made = super::expand::branches::keep(self.g, n, truth)?;
            self.replace(made);
            return Ok(None);
        }
        Ok(Some((r, found.outputs)))
    }
    /// Replaces the current node by others, which are inferred next.
    fn replace(&mut self, made: Vec<Node>) {
        self.place -= 1;
        self.g.order.splice(self.place..=self.place, made);
    }
    /// Moves the users of results whose rank differs between the branches of node `n` into the branches. The
    /// node is then inferred again.
    fn sink(&mut self, n: Node, uneven: &[usize]) -> Result<()> {
        self.place -= 1;
        if self.role == Role::Main {
            super::expand::branches::describe(self.g, n, uneven)?;
        }
        // Each user is copied into both branches, including its bodies.
        let users: u64 = self.g.order[self.place..].iter().map(|n| nodes(self.g, *n)).sum();
        spend(self.syms, 2 * BRANCH * users, &self.g.nodes[n].origin)?;
        if !super::expand::branches::sink(self.g, n, self.place, uneven) {
            self.findings.push(control::uneven(&self.g.nodes[n], uneven[0]));
            self.place += 1;
        }
        Ok(())
    }
    /// Sets the type and the known contents of a result.
    fn define(
        &mut self,
        n: Node,
        v: Value,
        (ty, known): (ValueType, Known),
    ) -> std::result::Result<(), Error> {
        let syms = &mut *self.syms;
        let ty = admit(&self.g.values[v].name, ty, syms)?;
        if let Some(e) = too_large(&self.g.values[v].name, &ty, syms) {
            return Err(e);
        }
        let output = self.g.outputs.contains(&v);
        let d = &mut self.g.values[v];
        if let Some(declared) = contradiction(Some(&ty), d.declared.as_ref(), syms) {
            // A nested graph's results may have other sizes in each run.
            let elements = |t: Option<&ValueType>| t.and_then(|t| t.as_tensor()).map(|t| t.elem);
            let other = self.role == Role::Main || elements(Some(&ty)) != elements(d.declared.as_ref());
            let e = if output && other {
                wrong_output(&d.name, declared, &ty, syms)
            } else {
                let title = format!(
                    "\"{}\" is declared otherwise than the operators compute it: what they compute counts",
                    d.name
                );
                let e = Error::warning(codes::TYPE_INVALID, title)
                    .row("declared", declared)
                    .row("computed", ty.display(syms));
                e.help("run onnx.shape_inference over the model without its value_info")
            };
            self.findings.push(e.at(&self.g.nodes[n].origin));
        }
        d.known = match known {
            Known::Dims(v) => Known::Dims(v.into_iter().map(|d| short(syms.simplify(d), syms)).collect()),
            k => k,
        };
        d.ty = Some(ty);
        Ok(())
    }
}

/// The description of a node in messages of failed calls: its name, and the shapes of its operands and
/// results.
fn source(g: &Graph, n: Node) -> Source {
    let node = &g.nodes[n];
    let shape = |v: &Value| {
        let d = &g.values[*v];
        Some((d.name.clone(), d.ty.as_ref()?.as_tensor()?.dims.to_vec()))
    };
    let tensors = node.inputs.iter().chain(&node.outputs).flatten().filter_map(shape).collect();
    Source { node: g.called(n), op: node.origin.op.clone(), tensors }
}

/// Shapes declared for the model's outputs, also for values from which an output is computed by operators
/// that keep the shape. All their sizes must be known at entry. Shapes declared for inner values are not
/// used: they are often out of date, and no caller would notice.
fn declared_shapes(g: &Graph, syms: &SymTable) -> SecondaryMap<Value, Option<Vec<Dim>>> {
    let params: BTreeSet<Sym> = g
        .inputs
        .iter()
        .filter_map(|v| g.values[*v].ty.as_ref()?.as_tensor())
        .flat_map(|t| t.dims.iter().flat_map(|d| d.syms()))
        .collect();
    let mut out: SecondaryMap<Value, Option<Vec<Dim>>> = SecondaryMap::new();
    for v in &g.outputs {
        let (v, d) = (*v, &g.values[*v]);
        out[v] = d.declared.as_ref().and_then(|t| declared_dims(t, &params, syms));
    }
    for n in g.order.iter().rev() {
        let node = &g.nodes[*n];
        if let (Op::Unary(_) | Op::Cast(_) | Op::View(View::Identity), Some(Some(x)), Some(Some(y))) =
            (&node.op, node.inputs.first(), node.outputs.first())
            && out[*x].is_none()
        {
            out[*x] = out[*y].clone();
        }
    }
    out
}

/// A declared shape, if every size is known at entry.
fn declared_dims(ty: &ValueType, params: &BTreeSet<Sym>, syms: &SymTable) -> Option<Vec<Dim>> {
    let dims: Vec<Dim> = ty.as_tensor()?.dims.iter().map(|d| syms.resolve(*d)).collect();
    dims.iter().all(|d| d.syms().is_subset(params)).then_some(dims)
}

/// The error about a tensor whose size in bits does not fit 63 bits, in which positions are computed.
fn too_large(name: &str, ty: &ValueType, syms: &SymTable) -> Option<Error> {
    let t = ty.as_tensor()?;
    if limits::RANK.exceeded_by(t.rank() as u64) {
        return Some(limits::RANK.error(format!("\"{name}\" has too many dimensions"), t.rank()));
    }
    let bits = t.count() * i64::from(t.elem.bits());
    if !bits.is_overflow() && t.dims.iter().all(|d| !d.is_overflow()) {
        return None;
    }
    let e = Error::new(codes::DIM_OVERFLOW, format!("\"{name}\" is too large"))
        .found_expected(ty.display(syms), "fewer than 2^63 bits");
    Some(e.help("bound or fix the dimensions: --dim 'N<=...' or --dim N=..."))
}

/// Sizes with more atoms than this become derived symbols, so that expressions over them stay small.
const LARGE: u32 = 32;

/// Admits the sizes of a result: requirements that cannot be proven are checked at run time. An error if a
/// size is negative for all values of its symbols.
fn admit(name: &str, ty: ValueType, syms: &mut SymTable) -> std::result::Result<ValueType, Error> {
    let ValueType::Tensor(t) = ty else { return Ok(ty) };
    for d in &t.dims {
        if syms.admit_extent(*d) == Answer::No {
            let found = TensorType::new(t.elem, t.dims.clone()).display(syms);
            return Err(Error::new(codes::OP_SHAPE, format!("\"{name}\" has a negative size"))
                .found_expected(found, "sizes of 0 or more"));
        }
    }
    // The new conditions may simplify the sizes.
    let mut dims: Vec<Dim> = t.dims.into_iter().map(|d| syms.simplify(d)).collect();
    // A product of sums has a term for each combination, so the formulas are shortened further if it is too
    // large.
    for most in [LARGE, LARGE / 4, 2] {
        dims.iter_mut().filter(|d| d.size() > most).for_each(|d| *d = syms.name_extent(*d, "size"));
        let positions = Dim::product(dims.iter().copied());
        if !positions.is_overflow() {
            break;
        }
    }
    Ok(ValueType::Tensor(TensorType::new(t.elem, dims)))
}

/// A derived symbol for a large formula.
fn short(d: Dim, syms: &mut SymTable) -> Dim {
    if d.size() > LARGE { syms.name_formula(d, "value") } else { d }
}

/// The text of a declared type that contradicts the inferred one. Declared types are only compared, never
/// used.
fn contradiction(
    inferred: Option<&ValueType>,
    declared: Option<&ValueType>,
    syms: &SymTable,
) -> Option<String> {
    let (inferred, declared) = (inferred?, declared?);
    contradicts(inferred, declared, syms).then(|| declared.display(syms))
}

fn contradicts(a: &ValueType, b: &ValueType, syms: &SymTable) -> bool {
    match (a, b) {
        (ValueType::Tensor(a), ValueType::Tensor(b)) => {
            a.elem != b.elem
                || a.rank() != b.rank()
                || a.dims.iter().zip(&b.dims).any(|(x, y)| syms.eq(*x, *y) == Answer::No)
        }
        (ValueType::Member(a), ValueType::Member(b)) => a.elem != b.elem,
        (ValueType::Member(a), ValueType::Tensor(b)) | (ValueType::Tensor(b), ValueType::Member(a)) => {
            a.elem != b.elem
        }
        (ValueType::Sequence(a), ValueType::Sequence(b))
        | (ValueType::Optional(a), ValueType::Optional(b)) => contradicts(a, b, syms),
        (ValueType::Map(k, a), ValueType::Map(l, b)) => k != l || contradicts(a, b, syms),
        _ => true,
    }
}

/// The error about an output of the model whose declared type differs from the inferred one.
fn wrong_output(name: &str, declared: String, inferred: &ValueType, syms: &SymTable) -> Error {
    let e = Error::new(
        codes::TYPE_INVALID,
        format!("the output \"{name}\" is declared otherwise than the operators compute it"),
    );
    let e = e.row("declared", declared).row("computed", inferred.display(syms));
    e.help("correct the output's declared type, leave its shape out, or ignore it: --ignore-output-types")
}
