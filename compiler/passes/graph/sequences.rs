//! write_sequences: replaces sequences, optionals and maps by tensors, before types are inferred.
//!
//! A sequence whose members are known at compile time is a list of values and costs nothing. Otherwise it is
//! a table and the data of all members ([`crate::ops::bundle`]), and its operators are ordinary kernels.
//! Results of If and Loop become several values: table, data, and a boolean for an optional sequence. Only
//! inputs and outputs of the main graph keep their types: `Unpack` reads the caller's descriptors, and a
//! single `Publish` describes all results.

mod control;
mod operators;

use crate::diag::{Error, Failure, Findings, Origin, Result, codes};
use crate::graph::{Def, Graph, Model, Node, NodeData, Value, ValueData};
use crate::ops::bundle::Bundle;
use crate::ops::bundle::boundary::{Boundary, Form};
use crate::ops::support::schema;
use crate::ops::view::View;
use crate::ops::{Known, Op, Schema};
use crate::tensor::{ConstData, ElemType, ValueType};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// A sequence as two tensors.
#[derive(Clone, Debug)]
struct Seq {
    table: Value,
    data: Value,
    /// Sizes common to all members.
    dims: Option<Vec<Option<i64>>>,
}

/// The representation of a value that is not a tensor.
#[derive(Clone, Debug)]
enum Parts {
    /// A sequence of these tensors. The element type is `elem`, or that of `like`.
    List {
        members: Vec<Value>,
        elem: Option<ElemType>,
        like: Option<Value>,
        rank: usize,
    },
    Seq(Seq),
    /// An optional tensor: at most one member.
    Optional(Seq),
    OptionalSeq {
        flag: Value,
        seq: Seq,
    },
    /// An optional known to have an element.
    Present(Box<Thing>),
    /// An optional of this type known to have no element.
    Absent(ValueType),
    Map {
        keys: Value,
        values: Value,
    },
    Maps {
        keys: Value,
        values: Value,
    },
}

/// A value: a tensor, or the representation of another type.
#[derive(Clone, Debug)]
enum Thing {
    Tensor(Value),
    Parts(Parts),
}

/// The representation in which values must agree where control flow joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tensor,
    Sequence,
    Optional,
    OptionalSequence,
    /// Maps are not supported in control flow.
    Map,
}

impl Kind {
    fn of(t: &Thing) -> Kind {
        match t {
            Thing::Tensor(_) => Kind::Tensor,
            Thing::Parts(p) => match p {
                Parts::List { .. } | Parts::Seq(_) => Kind::Sequence,
                Parts::Optional(_) => Kind::Optional,
                Parts::OptionalSeq { .. } => Kind::OptionalSequence,
                Parts::Present(t) if Kind::of(t) == Kind::Tensor => Kind::Optional,
                Parts::Present(_) => Kind::OptionalSequence,
                Parts::Absent(ValueType::Sequence(_)) => Kind::OptionalSequence,
                Parts::Absent(_) => Kind::Optional,
                Parts::Map { .. } | Parts::Maps { .. } => Kind::Map,
            },
        }
    }
    /// The representation that can hold both.
    fn join(self, other: Kind) -> Option<Kind> {
        use Kind::*;
        Some(match (self, other) {
            (a, b) if a == b => a,
            (Sequence, OptionalSequence) | (OptionalSequence, Sequence) => OptionalSequence,
            (Tensor, Optional) | (Optional, Tensor) => Optional,
            _ => return None,
        })
    }
    /// Number of tensors in the representation.
    fn parts(self) -> usize {
        match self {
            Kind::Tensor => 1,
            Kind::OptionalSequence => 3,
            _ => 2,
        }
    }
    /// Suffixes of the names of its tensors.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Tensor => &[""],
            Kind::OptionalSequence => &[".there", ".table", ".data"],
            _ => &[".table", ".data"],
        }
    }
    /// The value represented by these tensors.
    fn thing(self, v: &[Value]) -> Result<Thing> {
        let seq = |table: Value, data: Value| Seq { table, data, dims: None };
        Ok(match (self, v) {
            (Kind::Tensor, [x]) => Thing::Tensor(*x),
            (Kind::Sequence, [t, d]) => Thing::Parts(Parts::Seq(seq(*t, *d))),
            (Kind::Optional, [t, d]) => Thing::Parts(Parts::Optional(seq(*t, *d))),
            (Kind::OptionalSequence, [f, t, d]) => {
                Thing::Parts(Parts::OptionalSeq { flag: *f, seq: seq(*t, *d) })
            }
            _ => return Err(Failure::bug("write_sequences", "parts that do not fit")),
        })
    }
}

/// A graph during rewriting.
struct Scope {
    g: Graph,
    order: Vec<Node>,
    parts: HashMap<Value, Parts>,
    /// Tables of lists that have been packed.
    packed: HashMap<Value, Seq>,
}

/// Runs the pass.
pub fn run(model: &mut Model, findings: &mut Findings) -> Result<()> {
    let inputs = model
        .graph
        .inputs
        .iter()
        .any(|v| model.graph.values[*v].ty.as_ref().is_some_and(|t| t.as_tensor().is_none()));
    if !inputs && !concerned(&model.graph) {
        return Ok(());
    }
    let mut s = Scope {
        g: std::mem::take(&mut model.graph),
        order: vec![],
        parts: HashMap::new(),
        packed: HashMap::new(),
    };
    let done = s.inputs(&model.origin).and_then(|()| s.body()).and_then(|()| s.outputs(&model.origin));
    model.graph = s.g;
    findings.absorb(done)?;
    findings.check()
}

fn concerned(g: &Graph) -> bool {
    g.order.iter().any(|n| {
        let node = &g.nodes[*n];
        matches!(node.op, Op::Sequence(_) | Op::Maps(_)) || node.subgraphs.iter().any(|(_, s)| concerned(s))
    })
}

/// An Identity that accepts any type: sequences and optionals may hold types that Identity does not take.
fn identity() -> Result<&'static Schema> {
    static ANY: LazyLock<Option<Schema>> = LazyLock::new(|| {
        newest("Identity").ok().map(|s| Schema {
            domain: s.domain,
            since: s.since,
            ..schema::internal(s.name)
        })
    });
    ANY.as_ref().map_or_else(|| newest("Identity"), Ok)
}

/// The newest version of an operator.
fn newest(name: &str) -> Result<&'static Schema> {
    schema::versions("", name).last().ok_or_else(|| Failure::bug("write_sequences", name))
}

impl Scope {
    fn origin(&self, n: Node) -> Origin {
        self.g.nodes[n].origin.clone()
    }
    fn fail<T>(&self, n: Node, code: crate::diag::Code, title: impl Into<String>) -> Result<T> {
        Error::new(code, title).at(&self.g.nodes[n].origin).fail()
    }
    fn name(&self, v: Value) -> String {
        self.g.values[v].name.clone()
    }
    /// Adds a value.
    fn value(&mut self, name: String, def: Def) -> Value {
        self.g.values.push(ValueData { name, ty: None, declared: None, def, known: Known::No })
    }
    fn constant(&mut self, name: &str, data: Option<Arc<ConstData>>) -> Result<Value> {
        let data = data.ok_or_else(|| Failure::bug("write_sequences", "a constant that can not be"))?;
        Ok(self.g.add_const(name, data))
    }
    fn truth(&mut self, v: bool) -> Result<Value> {
        self.constant("there", ConstData::new(ElemType::Bool, vec![], vec![u8::from(v)]).map(Arc::new))
    }
    /// Adds a node whose results are named after `name`.
    fn emit(
        &mut self,
        op: Bundle,
        inputs: Vec<Value>,
        name: &str,
        suffixes: &[&str],
        origin: &Origin,
    ) -> Result<Vec<Value>> {
        let (schema, n) = (op.schema()?, Node::from_u32(self.g.nodes.len() as u32));
        let outputs: Vec<Value> = suffixes
            .iter()
            .enumerate()
            .map(|(k, s)| self.value(format!("{name}{s}"), Def::Node(n, k as u32)))
            .collect();
        let node = NodeData {
            op: Op::Bundle(op),
            schema,
            attrs: vec![],
            inputs: inputs.into_iter().map(Some).collect(),
            outputs: outputs.iter().copied().map(Some).collect(),
            subgraphs: vec![],
            origin: origin.clone(),
        };
        self.g.nodes.push(node);
        self.order.push(n);
        Ok(outputs)
    }
    /// Replaces the operator and operands of node `n`, which keeps its result.
    fn become_op(&mut self, n: Node, op: Op, schema: &'static Schema, inputs: Vec<Option<Value>>) {
        let node = &mut self.g.nodes[n];
        (node.op, node.schema, node.inputs) = (op, schema, inputs);
        node.attrs.clear();
        self.order.push(n);
    }
    fn become_bundle(&mut self, n: Node, op: Bundle, inputs: Vec<Value>) -> Result<()> {
        let schema = op.schema()?;
        self.become_op(n, Op::Bundle(op), schema, inputs.into_iter().map(Some).collect());
        Ok(())
    }
    /// Result 0 of node `n`.
    fn result(&self, n: Node) -> Option<Value> {
        self.g.nodes[n].outputs.first().copied().flatten()
    }
    /// Makes the tensor result of node `n` equal to `v`.
    fn same(&mut self, n: Node, v: Value) -> Result<()> {
        self.become_op(n, Op::View(View::Identity), identity()?, vec![Some(v)]);
        Ok(())
    }
    /// Makes the tensor result of node `n` a constant.
    fn known(&mut self, n: Node, data: Option<Arc<ConstData>>) -> Result<()> {
        let Some(v) = self.result(n) else { return Ok(()) };
        let data = data.ok_or_else(|| Failure::bug("write_sequences", "a constant that can not be"))?;
        let d = &mut self.g.values[v];
        (d.ty, d.known, d.def) =
            (Some(ValueType::Tensor(data.tensor_type())), Known::Const(data.clone()), Def::Const(data));
        Ok(())
    }
    /// Makes the result of node `n` equal to `t`.
    fn give(&mut self, n: Node, t: Thing) -> Result<()> {
        match (t, self.result(n)) {
            (Thing::Tensor(v), _) => self.same(n, v),
            (Thing::Parts(p), Some(v)) => {
                self.g.values[v].def = Def::Unused;
                self.parts.insert(v, p);
                Ok(())
            }
            (Thing::Parts(_), None) => Ok(()),
        }
    }
    /// The representation of a value.
    fn thing(&self, v: Value) -> Thing {
        self.parts.get(&v).cloned().map_or(Thing::Tensor(v), Thing::Parts)
    }
    /// Operand `i` of node `n`, which must not be omitted.
    fn operand(&self, n: Node, i: usize) -> Result<Value> {
        match self.g.nodes[n].inputs.get(i).copied().flatten() {
            Some(v) => Ok(v),
            None => self.fail(n, codes::OP_ARITY, format!("input {i} is missing")),
        }
    }
    fn operand_opt(&self, n: Node, i: usize) -> Option<Value> {
        self.g.nodes[n].inputs.get(i).copied().flatten()
    }
    /// An operand that must be a tensor.
    fn tensor(&self, n: Node, i: usize) -> Result<Value> {
        let v = self.operand(n, i)?;
        if self.parts.contains_key(&v) {
            self.fail(n, codes::OP_TYPE, format!("input {i} must be a tensor"))
        } else {
            Ok(v)
        }
    }
    /// The first number of a constant.
    fn number(&self, v: Value) -> Option<i64> {
        match &self.g.values[v].known {
            Known::Const(c) => c.to_i64s()?.first().copied(),
            _ => None,
        }
    }
    /// The table and data of a sequence.
    fn seq(&mut self, p: Parts, name: &str, origin: &Origin) -> Result<Seq> {
        match p {
            Parts::Seq(s) | Parts::Optional(s) | Parts::OptionalSeq { seq: s, .. } => Ok(s),
            Parts::List { members, elem, like, rank } => {
                let extra = if elem.is_some() { None } else { like.filter(|_| members.is_empty()) };
                let op = Bundle::Pack { elem, rank, like: usize::from(extra.is_some()) };
                let inputs = extra.into_iter().chain(members).collect();
                let v = self.emit(op, inputs, name, Kind::Sequence.suffixes(), origin)?;
                Ok(Seq { table: v[0], data: v[1], dims: None })
            }
            _ => Error::new(codes::OP_TYPE, format!("\"{name}\" must be a sequence")).at(origin).fail(),
        }
    }
    /// Operand `i` of node `n` as a sequence.
    fn sequence(&mut self, n: Node, i: usize) -> Result<Seq> {
        let (v, origin) = (self.operand(n, i)?, self.origin(n));
        match self.thing(v) {
            Thing::Parts(p @ (Parts::List { .. } | Parts::Seq(_))) => {
                if let Some(s) = self.packed.get(&v) {
                    return Ok(s.clone());
                }
                let name = self.name(v);
                let s = self.seq(p, &name, &origin)?;
                self.packed.insert(v, s.clone());
                Ok(s)
            }
            _ => self.fail(n, codes::OP_TYPE, format!("input {i} must be a sequence")),
        }
    }
    /// Converts a value to the tensors of `kind`, for control flow.
    fn convert(&mut self, t: Thing, kind: Kind, name: &str, origin: &Origin) -> Result<Vec<Value>> {
        let none = |elem, rank| Parts::List { members: vec![], elem: Some(elem), like: None, rank };
        let pair = |s: Seq| vec![s.table, s.data];
        Ok(match (kind, t) {
            (Kind::Tensor, Thing::Tensor(v)) => vec![v],
            (Kind::Sequence, Thing::Parts(p)) => pair(self.seq(p, name, origin)?),
            (Kind::Optional, Thing::Tensor(v)) => pair(self.seq(
                Parts::List { members: vec![v], elem: None, like: None, rank: 0 },
                name,
                origin,
            )?),
            (Kind::Optional, Thing::Parts(Parts::Present(t))) => self.convert(*t, kind, name, origin)?,
            (Kind::Optional, Thing::Parts(Parts::Absent(ValueType::Member(m)))) => {
                pair(self.seq(none(m.elem, m.dims.map_or(0, |d| d.len())), name, origin)?)
            }
            (Kind::Optional, Thing::Parts(p @ Parts::Optional(_))) => pair(self.seq(p, name, origin)?),
            (Kind::OptionalSequence, Thing::Parts(Parts::OptionalSeq { flag, seq })) => {
                vec![flag, seq.table, seq.data]
            }
            (Kind::OptionalSequence, Thing::Parts(Parts::Present(t))) => {
                self.convert(*t, kind, name, origin)?
            }
            (Kind::OptionalSequence, Thing::Parts(Parts::Absent(ValueType::Sequence(t)))) => {
                let ValueType::Member(m) = *t else {
                    return Error::new(
                        codes::OP_FEATURE,
                        "an optional sequence of something else than tensors is not supported",
                    )
                    .at(origin)
                    .fail();
                };
                let s = self.seq(none(m.elem, m.dims.map_or(0, |d| d.len())), name, origin)?;
                vec![self.truth(false)?, s.table, s.data]
            }
            (Kind::OptionalSequence, Thing::Parts(p @ (Parts::List { .. } | Parts::Seq(_)))) => {
                let s = self.seq(p, name, origin)?;
                vec![self.truth(true)?, s.table, s.data]
            }
            _ => {
                return Error::new(codes::OP_TYPE, format!("\"{name}\" has a type that does not fit here"))
                    .at(origin)
                    .fail();
            }
        })
    }
    /// Adds the nodes that read the caller's descriptors, before all others.
    fn inputs(&mut self, origin: &Origin) -> Result<()> {
        for v in self.g.inputs.clone() {
            let Some(ty) = self.g.values[v].ty.clone().filter(|t| t.as_tensor().is_none()) else { continue };
            let name = self.name(v);
            let Some(b) = Boundary::of(&ty) else {
                return Error::new(
                    codes::OP_FEATURE,
                    format!("input \"{name}\" has a type that no operator takes"),
                )
                .at(origin)
                .fail();
            };
            let (form, dims) = (b.form, b.dims.clone());
            let suffixes: &[&str] = match form {
                Form::Map | Form::Maps => &[".keys", ".values"],
                Form::OptionalSequence => Kind::OptionalSequence.suffixes(),
                _ => Kind::Sequence.suffixes(),
            };
            let p = self.emit(
                Bundle::Unpack(b),
                vec![v],
                &name,
                suffixes,
                &origin.element(format!("input \"{name}\"")),
            )?;
            let parts = match (form, &p[..]) {
                (Form::Sequence, [t, d]) => Parts::Seq(Seq { table: *t, data: *d, dims }),
                (Form::Optional, [t, d]) => Parts::Optional(Seq { table: *t, data: *d, dims }),
                (Form::OptionalSequence, [f, t, d]) => {
                    Parts::OptionalSeq { flag: *f, seq: Seq { table: *t, data: *d, dims } }
                }
                (Form::Map, [k, v]) => Parts::Map { keys: *k, values: *v },
                (_, [k, v]) => Parts::Maps { keys: *k, values: *v },
                _ => return Err(Failure::bug("write_sequences", "an input in pieces")),
            };
            self.parts.insert(v, parts);
        }
        Ok(())
    }
    /// Adds the node that describes results that are not tensors, after all others.
    fn outputs(&mut self, origin: &Origin) -> Result<()> {
        let (mut list, mut inputs, mut names, mut places) = (vec![], vec![], vec![], vec![]);
        for (k, v) in self.g.outputs.clone().into_iter().enumerate() {
            let Thing::Parts(p) = self.thing(v) else { continue };
            let name = self.g.output_names[k].clone();
            let map = |form, keys: Value, values: Value| (form, vec![keys, values]);
            let (form, parts) = match p {
                Parts::Map { keys, values } => map(Form::Map, keys, values),
                Parts::Maps { keys, values } => map(Form::Maps, keys, values),
                p => {
                    let t = Thing::Parts(p);
                    let kind = Kind::of(&t);
                    let form = match kind {
                        Kind::Optional => Form::Optional,
                        Kind::OptionalSequence => Form::OptionalSequence,
                        _ => Form::Sequence,
                    };
                    (form, self.convert(t, kind, &name, origin)?)
                }
            };
            // Inference determines the types of elements and keys.
            let key = matches!(form, Form::Map | Form::Maps).then_some(ElemType::I64);
            list.push(Boundary { form, elem: ElemType::F32, key, dims: None });
            inputs.extend(parts);
            names.push(name);
            places.push(k);
        }
        if !list.is_empty() {
            let suffixes: Vec<&str> = names.iter().map(String::as_str).collect();
            let v = self.emit(Bundle::Publish(list), inputs, "", &suffixes, &origin.element("outputs"))?;
            places.into_iter().zip(v).for_each(|(k, v)| self.g.outputs[k] = v);
        }
        // The body has been completed; these nodes follow it.
        self.g.order.append(&mut self.order);
        Ok(())
    }
    /// Rewrites all nodes of the graph.
    fn body(&mut self) -> Result<()> {
        for n in std::mem::take(&mut self.g.order) {
            self.node(n)?;
        }
        self.g.order = std::mem::take(&mut self.order);
        Ok(())
    }
    fn node(&mut self, n: Node) -> Result<()> {
        match self.g.nodes[n].op.clone() {
            Op::Sequence(q) => self.operator(n, &q),
            Op::Maps(m) => self.maps(n, m),
            Op::Control(c) => self.control(n, &c),
            Op::View(View::Identity) => {
                let v = self.operand(n, 0)?;
                match self.thing(v) {
                    Thing::Tensor(_) => self.order.push(n),
                    t => self.give(n, t)?,
                }
                Ok(())
            }
            _ => {
                for i in 0..self.g.nodes[n].inputs.len() {
                    // Inputs keep their types, so that inference reports all mismatches at once.
                    if self.operand_opt(n, i).is_some_and(|v| !matches!(self.g.values[v].def, Def::Input(_)))
                    {
                        self.tensor(n, i)?;
                    }
                }
                self.order.push(n);
                Ok(())
            }
        }
    }
}
