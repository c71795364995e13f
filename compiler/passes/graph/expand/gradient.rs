//! Gradient: reverse-mode differentiation of the subgraph that leads from the tensors in `xs` and `zs` to
//! `y`.
//!
//! If the operands are other values than the named tensors, the subgraph is first copied with the operands
//! substituted. Then its nodes are visited in reverse order: each propagates the adjoints of its results to
//! its operands by the rule of its operator ([`rules`] for element-wise operators, [`shapes`] for operators
//! that move or sum elements, [`layers`] for layers of networks). An adjoint has the type of its value. Nodes
//! on a path from `xs` must have a rule; others may have any operator. The new nodes are ordinary ones, so a
//! Gradient may name the result of another.

mod layers;
mod rules;
mod shapes;

use super::{Make, Piece};
use crate::diag::{Error, Failure, Result, codes};
use crate::graph::{Def, Graph, Node, NodeData, Value};
use crate::ops::Known;
use crate::ops::composite::Gradient;
use crate::sym::{Answer, Dim, SymTable};
use crate::tensor::ElemType;
use std::collections::{HashMap, HashSet};

pub(super) fn expand(g: &mut Graph, n: Node, a: Gradient, syms: &SymTable, once: bool) -> Result<Vec<Node>> {
    let node = g.nodes[n].clone();
    let values: Vec<Value> = node.inputs.iter().copied().flatten().collect();
    let fail = |code, title: String| Error::new(code, title).at(&node.origin);
    if !once {
        return fail(codes::OP_FEATURE, "Gradient in the body of a loop is not supported".into()).fail();
    }
    let (Some(given), Some(named), Some(y)) =
        (values.get(..a.named), values.get(a.named..2 * a.named), values.get(2 * a.named))
    else {
        return Err(Failure::bug("expand", "operands of Gradient are missing"));
    };
    let boundary: HashSet<Value> = named.iter().copied().collect();
    let cone = cone(g, *y, &boundary);
    if given != named {
        return Ok(substitute(g, n, a, &cone, &boundary));
    }
    let float =
        |v: Value| {
            g.values[v].ty.as_ref().and_then(|t| t.as_tensor()).is_some_and(|t| {
                [ElemType::F16, ElemType::BF16, ElemType::F32, ElemType::F64].contains(&t.elem)
            })
        };
    for v in named[..a.xs].iter().chain([y]) {
        if !float(*v) {
            return fail(
                codes::OP_TYPE,
                format!("\"{}\" is no tensor of floating-point numbers", g.values[*v].name),
            )
            .fail();
        }
    }
    // Values that depend on a tensor in xs.
    let mut active: HashSet<Value> = named[..a.xs].iter().copied().collect();
    for m in &cone {
        let d = &g.nodes[*m];
        let captured = d.subgraphs.iter().flat_map(|(_, s)| s.captures.iter().map(|(o, _)| o));
        if d.inputs.iter().flatten().chain(captured).any(|v| active.contains(v)) {
            let results: Vec<Value> =
                d.outputs.iter().flatten().copied().filter(|v| float(*v) && !boundary.contains(v)).collect();
            active.extend(results);
        }
    }
    let pieces: Vec<NodeData> = cone.iter().map(|m| g.nodes[*m].clone()).collect();
    let mut back = Back { make: Make::at(g, n), syms, node: node.clone(), dy: vec![], wants: vec![] };
    let mut adjoint: HashMap<Value, Value> = HashMap::new();
    let seed = back.filled(*y, 1.0);
    adjoint.insert(*y, seed);
    for d in pieces.into_iter().rev() {
        let wants: Vec<bool> = d.inputs.iter().map(|v| v.is_some_and(|v| active.contains(&v))).collect();
        let dy: Vec<Option<Value>> = d
            .outputs
            .iter()
            .map(|v| v.filter(|v| !boundary.contains(v)).and_then(|v| adjoint.get(&v).copied()))
            .collect();
        let through = d.subgraphs.iter().flat_map(|(_, s)| &s.captures).any(|(o, _)| active.contains(o));
        if dy.iter().all(|v| v.is_none()) || !wants.contains(&true) && !through {
            continue;
        }
        let (name, domain) = (d.schema.name, d.schema.domain);
        let inputs = d.inputs.clone();
        back.node = d;
        back.dy = dy;
        back.wants = wants.clone();
        let parts = if domain.is_empty() && !through { back.contributions() } else { Ok(None) };
        let parts = back.make.check(parts)?;
        let Some(parts) = parts else {
            let shown = if domain.is_empty() { name.to_owned() } else { format!("{domain}.{name}") };
            return fail(codes::OP_FEATURE, format!("the gradient of {shown} is not supported"))
                .row("node", back.node.origin.short())
                .help(
                    "compute it from operators that have a gradient, or differentiate where the model was \
                    trained",
                )
                .fail();
        };
        for ((v, part), _) in inputs.into_iter().zip(parts).zip(wants).filter(|(_, w)| *w) {
            if let (Some(v), Some(part)) = (v, part) {
                let sum = match adjoint.get(&v) {
                    Some(before) => back.make.op("Add", &[*before, part]),
                    None => part,
                };
                adjoint.insert(v, sum);
            }
        }
    }
    for (out, x) in node.outputs.iter().zip(named) {
        let Some(out) = out else { continue };
        let v = match adjoint.get(x) {
            Some(v) => *v,
            None => back.filled(*x, 0.0),
        };
        back.make.define(*out, v);
    }
    back.make.finish()
}

/// The nodes that compute `y` from the values of the boundary, in order.
fn cone(g: &Graph, y: Value, boundary: &HashSet<Value>) -> Vec<Node> {
    let mut found: HashSet<Node> = HashSet::new();
    let mut todo = vec![y];
    while let Some(v) = todo.pop() {
        if let (false, Def::Node(m, _)) = (boundary.contains(&v), &g.values[v].def)
            && found.insert(*m)
        {
            let d = &g.nodes[*m];
            todo.extend(d.inputs.iter().flatten());
            todo.extend(d.subgraphs.iter().flat_map(|(_, s)| s.captures.iter().map(|(o, _)| *o)));
        }
    }
    g.order.iter().copied().filter(|m| found.contains(m)).collect()
}

/// Copies the nodes that depend on the named tensors with the operands substituted, and lets the node name
/// the copies.
fn substitute(g: &mut Graph, n: Node, a: Gradient, cone: &[Node], boundary: &HashSet<Value>) -> Vec<Node> {
    let values = g.nodes[n].inputs.clone();
    let mut map: HashMap<Value, Value> =
        (0..a.named).filter_map(|i| Some((values[a.named + i]?, values[i]?))).collect();
    let mut make = Make::at(g, n);
    for m in cone {
        let d = &make.g.nodes[*m];
        let captured = d.subgraphs.iter().flat_map(|(_, s)| s.captures.iter().map(|(o, _)| o));
        if d.inputs.iter().flatten().chain(captured).any(|v| map.contains_key(v)) {
            let kept: Vec<(Value, Value)> =
                boundary.iter().filter_map(|v| Some((*v, *map.get(v)?))).collect();
            make.paste(Piece::new(make.g, *m), &mut map);
            map.extend(kept);
        }
    }
    let mut made = make.made;
    for i in 0..a.named {
        g.nodes[n].inputs[a.named + i] = values[i];
    }
    if let Some(Some(y)) = g.nodes[n].inputs.last_mut() {
        *y = map.get(y).copied().unwrap_or(*y);
    }
    made.push(n);
    made
}

/// One node during the reverse pass.
struct Back<'a, 'b> {
    make: Make<'a>,
    syms: &'b SymTable,
    node: NodeData,
    /// Adjoints of its results.
    dy: Vec<Option<Value>>,
    /// Operands whose adjoints are needed.
    wants: Vec<bool>,
}

/// Adjoints of operands; `None` for operands without one.
type Parts = Vec<Option<Value>>;

/// How the adjoints of operands follow from those of results: of the first operand only, or of all.
enum Rule {
    One(fn(&mut Back<'_, '_>) -> Result<Value>),
    All(fn(&mut Back<'_, '_>) -> Result<Parts>),
}
use Rule::{All, One};

/// The rules of operators that are not element-wise.
const RULES: &[(&str, Rule)] = &[
    ("AveragePool", One(|b| b.average_pool())),
    ("BatchNormalization", All(|b| b.batch_norm())),
    ("Cast", One(|b| Ok(b.cast_back()))),
    ("Compress", One(|b| b.picked(0))),
    ("Concat", All(|b| b.concatenated())),
    ("Conv", All(|b| b.conv())),
    ("CumSum", One(|b| Ok(b.summed_back()))),
    ("DepthToSpace", One(|b| b.picked(0))),
    ("Dropout", One(|b| b.dropout())),
    ("Expand", One(|b| b.expanded())),
    ("Flatten", One(|b| Ok(b.reshaped()))),
    ("Gather", One(|b| b.picked(0))),
    ("GatherElements", One(|b| b.picked(0))),
    ("GatherND", One(|b| b.picked(0))),
    ("Gemm", All(|b| b.gemm())),
    ("GlobalAveragePool", One(|b| Ok(b.global_average()))),
    ("Identity", One(|b| Ok(b.d()))),
    ("LayerNormalization", All(|b| b.layer_norm())),
    ("LogSoftmax", One(|b| b.softmax())),
    ("MatMul", All(|b| b.matmul())),
    ("MaxPool", One(|b| b.max_pool())),
    ("NegativeLogLikelihoodLoss", All(|b| b.loss())),
    ("Pad", One(|b| b.padded())),
    ("ReduceL1", One(|b| b.reduced())),
    ("ReduceL2", One(|b| b.reduced())),
    ("ReduceLogSum", One(|b| b.reduced())),
    ("ReduceLogSumExp", One(|b| b.reduced())),
    ("ReduceMax", One(|b| b.reduced())),
    ("ReduceMean", One(|b| b.reduced())),
    ("ReduceMin", One(|b| b.reduced())),
    // The derivative is the product of the other elements, even where one is 0. With a dimension for each
    // element it would be a sum.
    ("ReduceProd", One(|b| b.error("a product of all has no simple one").fail())),
    ("ReduceSum", One(|b| b.reduced())),
    ("ReduceSumSquare", One(|b| b.reduced())),
    ("Reshape", One(|b| Ok(b.reshaped()))),
    ("ReverseSequence", One(|b| b.picked(0))),
    ("Slice", One(|b| b.picked(0))),
    ("Softmax", One(|b| b.softmax())),
    ("SoftmaxCrossEntropyLoss", All(|b| b.loss())),
    ("SpaceToDepth", One(|b| b.picked(0))),
    ("Split", One(|b| Ok(b.joined()))),
    ("Squeeze", One(|b| Ok(b.reshaped()))),
    ("Tile", One(|b| b.picked(0))),
    ("Transpose", One(|b| b.transposed_back())),
    ("Trilu", One(|b| Ok(b.triangle()))),
    ("Unsqueeze", One(|b| Ok(b.reshaped()))),
];

impl Back<'_, '_> {
    /// The contributions of the node to the adjoints of its operands; `None` if its operator has no rule.
    fn contributions(&mut self) -> Result<Option<Parts>> {
        if let Some(p) = self.elementwise()? {
            return Ok(Some(p));
        }
        let name = self.name();
        match RULES.iter().find(|r| r.0 == name) {
            Some((_, One(rule))) => Ok(Some(vec![Some(rule(self)?)])),
            Some((_, All(rule))) => rule(self).map(Some),
            None => Ok(None),
        }
    }
    fn error(&self, title: &str) -> Error {
        Error::new(
            codes::OP_FEATURE,
            format!("the gradient of {} is not supported here: {title}", self.node.schema.name),
        )
        .at(&self.make.origin)
        .row("node", self.node.origin.short())
    }
    fn name(&self) -> &'static str {
        self.node.schema.name
    }
    fn since(&self) -> i64 {
        self.node.schema.since
    }
    fn has(&self, i: usize) -> bool {
        self.node.inputs.get(i).is_some_and(|v| v.is_some())
    }
    fn wants(&self, i: usize) -> bool {
        self.wants.get(i).copied().unwrap_or(false)
    }
    /// Operand `i`.
    fn x(&self, i: usize) -> Value {
        let missing = || Failure::bug("gradient", format!("{} without operand {i}", self.name()));
        self.make.need(self.node.inputs.get(i).copied().flatten(), missing)
    }
    /// Result `k`.
    fn y(&self, k: usize) -> Value {
        let missing = || Failure::bug("gradient", format!("{} without result {k}", self.name()));
        self.make.need(self.node.outputs.get(k).copied().flatten(), missing)
    }
    /// The adjoint of the first result, which must be the only result with an adjoint.
    fn d(&self) -> Value {
        if self.dy.iter().skip(1).any(|v| v.is_some()) {
            self.make.fail(self.error("a result beside the first is used"));
        }
        self.make.need(self.dy.first().copied().flatten(), || Failure::bug("gradient", "no adjoint"))
    }
    fn int(&self, name: &str, default: i64) -> i64 {
        self.node.int(name).unwrap_or(default)
    }
    fn float(&self, name: &str, default: f64) -> f64 {
        self.node.float(name).map_or(default, f64::from)
    }
    fn text(&self, name: &str, default: &str) -> String {
        self.node.text(name).unwrap_or_else(|| default.to_owned())
    }
    /// The integers of operand `i`, if they are known.
    fn known_ints(&self, i: usize) -> Option<Vec<i64>> {
        let v = self.node.inputs.get(i).copied().flatten()?;
        match &self.make.g.values[v].known {
            Known::Const(c) => c.to_i64s(),
            Known::Dims(d) => d.iter().map(|d| d.as_const()).collect(),
            Known::No => None,
        }
    }
    /// The shape of a value as a list.
    fn shape(&mut self, v: Value) -> Value {
        match self.make.known_dims(v) {
            Some(dims) => self.make.ints(&dims),
            None => self.make.op("Shape", &[v]),
        }
    }
    /// A number of the type of `like`.
    fn number(&mut self, like: Value, v: f64) -> Value {
        let elem = self.make.elem(like);
        self.make.number(elem, v)
    }
    /// A tensor with the type and shape of `like`, filled with one number.
    fn filled(&mut self, like: Value, v: f64) -> Value {
        let (c, shape) = (self.number(like, v), self.shape(like));
        self.make.op("Expand", &[c, shape])
    }
    fn op(&mut self, name: &str, inputs: &[Value]) -> Value {
        self.make.op(name, inputs)
    }
    fn mul(&mut self, a: Value, b: Value) -> Value {
        self.op("Mul", &[a, b])
    }
    /// `v` times a number.
    fn scaled(&mut self, v: Value, like: Value, by: f64) -> Value {
        if by == 1.0 {
            return v;
        }
        let c = self.number(like, by);
        self.mul(v, c)
    }
    /// `a` where a condition is true, else 0.
    fn where_or_zero(&mut self, cond: Value, a: Value, like: Value) -> Value {
        let zero = self.number(like, 0.0);
        self.op("Where", &[cond, a, zero])
    }
    /// A sum over dimensions, which are kept with size 1.
    fn summed(&mut self, v: Value, axes: &[i64]) -> Value {
        if axes.is_empty() {
            return v;
        }
        let axes = self.make.ints(axes);
        self.op("ReduceSum", &[v, axes])
    }
    /// The adjoint of an operand that was broadcast to the shape `from`: sums over the broadcast dimensions.
    fn narrowed(&mut self, d: Value, from: &[Dim], x: Value) -> Result<Value> {
        let to = self.make.dims(x)?;
        let extra = from.len().saturating_sub(to.len());
        let mut axes: Vec<i64> = (0..extra as i64).collect();
        for (i, (f, t)) in from[extra..].iter().zip(&to).enumerate() {
            match (self.syms.eq(*f, *t), t.as_const()) {
                (Answer::Yes, _) => {}
                (_, Some(1)) => axes.push((extra + i) as i64),
                // A size other than 1 is not broadcast.
                (_, Some(_)) => {}
                _ if f.as_const() == Some(1) => {}
                _ => {
                    return self
                        .error("only run time knows whether a dimension is broadcast; bind it with --dim")
                        .fail();
                }
            }
        }
        let d = self.summed(d, &axes);
        if extra == 0 {
            return Ok(d);
        }
        let shape = self.shape(x);
        Ok(self.op("Reshape", &[d, shape]))
    }
    /// As [`Back::narrowed`], for an adjoint with the shape of the first result.
    fn narrowed_from_result(&mut self, d: Value, x: Value) -> Result<Value> {
        let from = self.make.dims(self.y(0))?;
        self.narrowed(d, &from, x)
    }
}
