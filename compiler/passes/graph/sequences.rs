//! write_sequences: sequences, optionals and maps become tensors, before anything looks at types.
//!
//! A sequence is a list of values where its members are known here: then it costs nothing. Otherwise it is a
//! table and the data of all members ([`crate::ops::bundle`]), and its operators are kernels like others.
//! Values that If and Loop hand on become several: table, data, and for an optional sequence a truth value.
//! Only inputs and outputs of the main graph keep their types: `Unpack` reads what the caller describes, one
//! `Publish` describes all results.

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
    /// Sizes that all members have.
    dims: Option<Vec<Option<i64>>>,
}

/// What stands for a value that is no tensor.
#[derive(Clone, Debug)]
enum Parts {
    /// A sequence of these tensors. `elem`, or the type of `like`, is that of its elements.
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
    /// An optional that is known to have an element.
    Present(Box<Thing>),
    /// One that is known to have none, of this type.
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

/// A value: a tensor, or what stands for it.
#[derive(Clone, Debug)]
enum Thing {
    Tensor(Value),
    Parts(Parts),
}

/// What must agree where control flow joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tensor,
    Sequence,
    Optional,
    OptionalSequence,
    /// Maps do not go through control flow.
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
    /// What holds both.
    fn join(self, other: Kind) -> Option<Kind> {
        use Kind::*;
        Some(match (self, other) {
            (a, b) if a == b => a,
            (Sequence, OptionalSequence) | (OptionalSequence, Sequence) => OptionalSequence,
            (Tensor, Optional) | (Optional, Tensor) => Optional,
            _ => return None,
        })
    }
    /// How many tensors it is.
    fn parts(self) -> usize {
        match self {
            Kind::Tensor => 1,
            Kind::OptionalSequence => 3,
            _ => 2,
        }
    }
    /// What is behind a name in its parts.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Kind::Tensor => &[""],
            Kind::OptionalSequence => &[".there", ".table", ".data"],
            _ => &[".table", ".data"],
        }
    }
    /// The value that these tensors are.
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

/// A graph while it is rewritten.
struct Scope {
    g: Graph,
    order: Vec<Node>,
    parts: HashMap<Value, Parts>,
    /// Tables of lists that something needed one of.
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

/// Of any type: what sequences and optionals hold is more than what Identity takes.
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
    /// A value without a definition yet.
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
    /// A new node with new values named after `name`.
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
    /// Node `n` with another operator and its own result.
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
    /// The tensor result of node `n` is `v`.
    fn same(&mut self, n: Node, v: Value) -> Result<()> {
        self.become_op(n, Op::View(View::Identity), identity()?, vec![Some(v)]);
        Ok(())
    }
    /// The tensor result of node `n` is a constant.
    fn known(&mut self, n: Node, data: Option<Arc<ConstData>>) -> Result<()> {
        let Some(v) = self.result(n) else { return Ok(()) };
        let data = data.ok_or_else(|| Failure::bug("write_sequences", "a constant that can not be"))?;
        let d = &mut self.g.values[v];
        (d.ty, d.known, d.def) =
            (Some(ValueType::Tensor(data.tensor_type())), Known::Const(data.clone()), Def::Const(data));
        Ok(())
    }
    /// The result of node `n` is what `t` is.
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
    /// What a value is.
    fn thing(&self, v: Value) -> Thing {
        self.parts.get(&v).cloned().map_or(Thing::Tensor(v), Thing::Parts)
    }
    /// Operand `i` of node `n`, which is given.
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
    /// The first number in a constant.
    fn number(&self, v: Value) -> Option<i64> {
        match &self.g.values[v].known {
            Known::Const(c) => c.to_i64s()?.first().copied(),
            _ => None,
        }
    }
    /// A table and data for what is a sequence.
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
    /// The tensors of a value where control flow wants `kind`.
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
    /// Descriptors of the caller are read first of all.
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
    /// Results that are no tensors are described last of all.
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
            // The types of elements and keys are those that inference finds.
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
        // The body was left with its nodes in order; these are behind.
        self.g.order.append(&mut self.order);
        Ok(())
    }
    /// All nodes of the graph.
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
                    // Inputs still have their types: inference finds all that do not fit, at once.
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
