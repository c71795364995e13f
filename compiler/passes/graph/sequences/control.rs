//! If and Loop with results that are not tensors, and SequenceMap, which becomes a Loop.

use super::{Kind, Parts, Scope, Thing, newest};
use crate::diag::{Error, Failure, Origin, Result, codes};
use crate::graph::{Def, Graph, Node, NodeData, Value};
use crate::ops::Op;
use crate::ops::bundle::Bundle;
use crate::ops::control::Control;
use crate::ops::sequence::Sequence;
use crate::ops::support::schema;
use std::collections::HashMap;

/// Indices of the tables among the tensors of values of these kinds.
fn tables(kinds: &[Kind]) -> Vec<usize> {
    let mut out = vec![];
    let mut at = 0;
    for k in kinds {
        match k {
            Kind::Tensor => {}
            Kind::OptionalSequence => out.push(at + 1),
            _ => out.push(at),
        }
        at += k.parts();
    }
    out
}

fn joined(a: Kind, b: Kind, name: &str, origin: &Origin) -> Result<Kind> {
    match a.join(b) {
        Some(k) if k != Kind::Map => Ok(k),
        _ => Error::new(
            codes::OP_TYPE,
            format!("\"{name}\" has several types, or one that no control flow takes"),
        )
        .at(origin)
        .fail(),
    }
}

impl Scope {
    /// Captures value `v` of the enclosing graph.
    fn capture(&mut self, outer: &Graph, v: Value) -> Value {
        if let Some((_, inner)) = self.g.captures.iter().find(|(o, _)| *o == v) {
            return *inner;
        }
        let inner =
            self.g.values.push(crate::graph::ValueData { def: Def::Capture, ..outer.values[v].clone() });
        self.g.captures.push((v, inner));
        inner
    }
    fn captured(&mut self, outer: &Graph, p: Parts) -> Parts {
        let seq = |s: &mut Self, q: super::Seq| super::Seq {
            table: s.capture(outer, q.table),
            data: s.capture(outer, q.data),
            dims: q.dims,
        };
        match p {
            Parts::List { members, elem, like, rank } => {
                let like = like.map(|v| self.capture(outer, v));
                Parts::List {
                    members: members.into_iter().map(|v| self.capture(outer, v)).collect(),
                    elem,
                    like,
                    rank,
                }
            }
            Parts::Seq(q) => Parts::Seq(seq(self, q)),
            Parts::Optional(q) => Parts::Optional(seq(self, q)),
            Parts::OptionalSeq { flag, seq: q } => {
                Parts::OptionalSeq { flag: self.capture(outer, flag), seq: seq(self, q) }
            }
            Parts::Present(t) => Parts::Present(Box::new(match *t {
                Thing::Tensor(v) => Thing::Tensor(self.capture(outer, v)),
                Thing::Parts(p) => Thing::Parts(self.captured(outer, p)),
            })),
            Parts::Absent(t) => Parts::Absent(t),
            Parts::Map { keys, values } => {
                Parts::Map { keys: self.capture(outer, keys), values: self.capture(outer, values) }
            }
            Parts::Maps { keys, values } => {
                Parts::Maps { keys: self.capture(outer, keys), values: self.capture(outer, values) }
            }
        }
    }
    /// A scope for a body, with the representations of its captured values.
    fn enter(&self, g: Graph) -> Scope {
        let mut inner = Scope { g, order: vec![], parts: HashMap::new(), packed: HashMap::new() };
        for (o, v) in std::mem::take(&mut inner.g.captures) {
            match self.parts.get(&o) {
                None => inner.g.captures.push((o, v)),
                Some(p) => {
                    inner.g.values[v].def = Def::Unused;
                    let p = inner.captured(&self.g, p.clone());
                    inner.parts.insert(v, p);
                }
            }
        }
        inner
    }
    /// Converts the outputs of a body from number `first` on to tensors.
    fn leave(&mut self, first: usize, kinds: &[Kind], origin: &Origin) -> Result<()> {
        let (values, names, elems) = (
            std::mem::take(&mut self.g.outputs),
            std::mem::take(&mut self.g.output_names),
            std::mem::take(&mut self.g.output_elems),
        );
        for (k, v) in values.into_iter().enumerate() {
            let kind = k.checked_sub(first).and_then(|k| kinds.get(k)).copied().unwrap_or(Kind::Tensor);
            let name = names.get(k).cloned().unwrap_or_default();
            let parts = self.convert(self.thing(v), kind, &name, origin)?;
            for (p, s) in parts.into_iter().zip(kind.suffixes()) {
                self.g.outputs.push(p);
                self.g.output_names.push(format!("{name}{s}"));
                self.g.output_elems.push(elems.get(k).copied().flatten());
            }
        }
        // The conversions follow all other nodes.
        self.g.order.append(&mut self.order);
        Ok(())
    }
    /// Replaces the results of node `n` that are not tensors by new ones.
    fn results(&mut self, n: Node, kinds: &[Kind]) -> Result<()> {
        let old = std::mem::take(&mut self.g.nodes[n].outputs);
        let mut new: Vec<Option<Value>> = vec![];
        for (k, v) in old.into_iter().enumerate() {
            let kind = kinds.get(k).copied().unwrap_or(Kind::Tensor);
            match v {
                None => new.extend(std::iter::repeat_n(None, kind.parts())),
                Some(v) if kind == Kind::Tensor => {
                    self.g.values[v].def = Def::Node(n, new.len() as u32);
                    new.push(Some(v));
                }
                Some(v) => {
                    let name = self.name(v);
                    let first = new.len();
                    let parts: Vec<Value> = kind
                        .suffixes()
                        .iter()
                        .enumerate()
                        .map(|(j, s)| self.value(format!("{name}{s}"), Def::Node(n, (first + j) as u32)))
                        .collect();
                    new.extend(parts.iter().copied().map(Some));
                    self.g.values[v].def = Def::Unused;
                    if let Thing::Parts(p) = kind.thing(&parts)? {
                        self.parts.insert(v, p);
                    }
                }
            }
        }
        self.g.nodes[n].outputs = new;
        Ok(())
    }
    /// Fails unless the first `count` inputs are tensors or omitted.
    fn tensors(&self, n: Node, count: usize) -> Result<()> {
        for i in (0..count).filter(|i| self.operand_opt(n, *i).is_some()) {
            self.tensor(n, i)?;
        }
        Ok(())
    }
    pub(super) fn control(&mut self, n: Node, op: &Control) -> Result<()> {
        match op {
            Control::If { .. } => {
                self.tensors(n, 1)?;
                self.branch(n)
            }
            Control::Loop { .. } => {
                self.tensors(n, 2)?;
                self.repeat(n)
            }
            Control::Scan(_) => {
                self.tensors(n, self.g.nodes[n].inputs.len())?;
                let origin = self.origin(n);
                for (name, g) in std::mem::take(&mut self.g.nodes[n].subgraphs) {
                    let mut inner = self.enter(g);
                    inner.body()?;
                    inner.leave(0, &[], &origin)?;
                    self.g.nodes[n].subgraphs.push((name, inner.g));
                }
                self.order.push(n);
                Ok(())
            }
        }
    }
    fn branch(&mut self, n: Node) -> Result<()> {
        let origin = self.origin(n);
        let mut inner = vec![];
        let mut kinds: Vec<Option<Kind>> = vec![None; self.g.nodes[n].outputs.len()];
        for (name, g) in std::mem::take(&mut self.g.nodes[n].subgraphs) {
            let mut s = self.enter(g);
            s.body()?;
            for (k, v) in kinds.iter_mut().zip(&s.g.outputs) {
                let own = Kind::of(&s.thing(*v));
                *k = Some(k.map_or(Ok(own), |k| joined(k, own, &s.name(*v), &origin))?);
            }
            inner.push((name, s));
        }
        let kinds: Vec<Kind> = kinds.into_iter().map(|k| k.unwrap_or(Kind::Tensor)).collect();
        for (name, mut s) in inner {
            s.leave(0, &kinds, &origin)?;
            self.g.nodes[n].subgraphs.push((name, s.g));
        }
        self.g.nodes[n].op = Op::Control(Control::If { tables: tables(&kinds) });
        self.results(n, &kinds)?;
        self.order.push(n);
        Ok(())
    }
    /// A carried value may be a sequence at first and an optional one later. The body is rewritten for a
    /// representation that can hold both.
    fn repeat(&mut self, n: Node) -> Result<()> {
        let origin = self.origin(n);
        let mut subs = std::mem::take(&mut self.g.nodes[n].subgraphs);
        let (Some((name, body)), true) = (subs.pop(), subs.is_empty()) else {
            return Err(Failure::bug("write_sequences", "a loop with several bodies"));
        };
        let carried: Vec<Value> =
            (2..self.g.nodes[n].inputs.len()).map(|i| self.operand(n, i)).collect::<Result<_>>()?;
        let mut kinds: Vec<Kind> = carried.iter().map(|v| Kind::of(&self.thing(*v))).collect();
        let inner = loop {
            let mut s = self.enter(body.clone());
            let inputs = std::mem::take(&mut s.g.inputs);
            for (i, v) in inputs.into_iter().enumerate() {
                let kind = i.checked_sub(2).and_then(|k| kinds.get(k)).copied().unwrap_or(Kind::Tensor);
                let first = s.g.inputs.len();
                if kind == Kind::Tensor {
                    s.g.values[v].def = Def::Input(first as u32);
                    s.g.inputs.push(v);
                    continue;
                }
                let name = s.name(v);
                let parts: Vec<Value> = kind
                    .suffixes()
                    .iter()
                    .enumerate()
                    .map(|(j, x)| s.value(format!("{name}{x}"), Def::Input((first + j) as u32)))
                    .collect();
                s.g.inputs.extend(&parts);
                s.g.values[v].def = Def::Unused;
                if let Thing::Parts(p) = kind.thing(&parts)? {
                    s.parts.insert(v, p);
                }
            }
            s.body()?;
            let mut after = vec![];
            for (k, v) in kinds.iter().zip(s.g.outputs.iter().skip(1)) {
                after.push(joined(*k, Kind::of(&s.thing(*v)), &s.name(*v), &origin)?);
            }
            if after == kinds || after.len() != kinds.len() {
                break s;
            }
            kinds = after;
        };
        let mut inner = inner;
        inner.leave(1, &kinds, &origin)?;
        let mut inputs: Vec<Option<Value>> = (0..2).map(|i| self.operand_opt(n, i)).collect();
        for (v, kind) in carried.into_iter().zip(&kinds) {
            let name = self.name(v);
            let parts = self.convert(self.thing(v), *kind, &name, &origin)?;
            inputs.extend(parts.into_iter().map(Some));
        }
        let node = &mut self.g.nodes[n];
        node.inputs = inputs;
        node.subgraphs = vec![(name, inner.g)];
        node.op = Op::Control(Control::Loop { tables: tables(&kinds) });
        self.results(n, &kinds)?;
        self.order.push(n);
        Ok(())
    }

    // ---- SequenceMap ----

    /// Becomes a Loop over the length of the first sequence, with SequenceAt for members and SequenceInsert
    /// for results.
    pub(super) fn map(&mut self, n: Node) -> Result<()> {
        let origin = self.origin(n);
        if let Thing::Parts(Parts::List { members, .. }) = self.thing(self.operand(n, 0)?)
            && members.is_empty()
        {
            return self.map_of_none(n);
        }
        let first = self.sequence(n, 0)?;
        let operands: Vec<Value> =
            (0..self.g.nodes[n].inputs.len()).map(|i| self.operand(n, i)).collect::<Result<_>>()?;
        let mut subs = std::mem::take(&mut self.g.nodes[n].subgraphs);
        let (Some((name, mut g)), true) = (subs.pop(), subs.is_empty()) else {
            return Err(Failure::bug("write_sequences", "a map with several bodies"));
        };
        if g.inputs.len() != operands.len() || g.outputs.len() < self.g.nodes[n].outputs.len() {
            let title = format!(
                "the body of SequenceMap has {} inputs and {} outputs, the node {} and {}",
                g.inputs.len(),
                g.outputs.len(),
                operands.len(),
                self.g.nodes[n].outputs.len()
            );
            return self.fail(n, codes::GRAPH_INVALID, title);
        }
        let count = self.emit(Bundle::Length, vec![first.table], "count", &[""], &origin)?;
        let (at, insert) = (self.schema(n, "SequenceAt")?, self.schema(n, "SequenceInsert")?);
        let value = |g: &mut Graph, name: &str, def: Def| {
            g.values.push(crate::graph::ValueData {
                name: name.to_owned(),
                ty: None,
                declared: None,
                def,
                known: Default::default(),
            })
        };
        let node = |g: &mut Graph, op: Sequence, schema, inputs: Vec<Value>, out: Value| {
            let m = g.nodes.push(NodeData {
                op: Op::Sequence(op),
                schema,
                attrs: vec![],
                inputs: inputs.into_iter().map(Some).collect(),
                outputs: vec![Some(out)],
                subgraphs: vec![],
                origin: origin.clone(),
            });
            (g.values[out].def, g.values[out].ty) = (Def::Node(m, 0), None);
            m
        };
        let (turn, go) = (value(&mut g, "item", Def::Input(0)), value(&mut g, "more", Def::Input(1)));
        let mut before = vec![];
        for (k, (x, v)) in operands.iter().zip(std::mem::take(&mut g.inputs)).enumerate() {
            if let Thing::Tensor(_) = self.thing(*x) {
                g.values[v].def = Def::Capture;
                g.captures.push((*x, v));
                continue;
            }
            let s = self.sequence(n, k)?;
            let mut from = *x;
            if k > 0 {
                // All sequences must have the same length.
                let t = self.emit(
                    Bundle::Alike,
                    vec![s.table, first.table],
                    &self.name(*x),
                    &[".table"],
                    &origin,
                )?;
                from = self.value(self.name(*x), Def::Unused);
                self.parts.insert(from, Parts::Seq(super::Seq { table: t[0], ..s }));
            }
            let c = value(&mut g, &self.name(*x), Def::Capture);
            g.captures.push((from, c));
            before.push(node(&mut g, Sequence::At, at, vec![c, turn], v));
        }
        g.order.splice(0..0, before);
        g.inputs = vec![turn, go];
        let mut carried = vec![];
        let (results, names) = (std::mem::take(&mut g.outputs), std::mem::take(&mut g.output_names));
        g.outputs.push(go);
        g.output_names.push("more".into());
        let elems = std::mem::take(&mut g.output_elems);
        for (k, (y, name)) in results.into_iter().zip(names).enumerate().take(self.g.nodes[n].outputs.len()) {
            let Some(elem) = elems.get(k).copied().flatten() else {
                return self.fail(
                    n,
                    codes::TYPE_INVALID,
                    format!("output \"{name}\" of the body has no element type"),
                );
            };
            let so_far = value(&mut g, &format!("{name}.all"), Def::Input(2 + k as u32));
            g.inputs.push(so_far);
            let next = value(&mut g, &format!("{name}.next"), Def::Unused);
            let m = node(&mut g, Sequence::Insert, insert, vec![so_far, y], next);
            g.order.push(m);
            g.outputs.push(next);
            g.output_names.push(format!("{name}.next"));
            let none = self.value(format!("{name}.none"), Def::Unused);
            self.parts.insert(none, Parts::List { members: vec![], elem: Some(elem), like: None, rank: 0 });
            carried.push(none);
        }
        let (repeat, data) = (newest("Loop")?, &mut self.g.nodes[n]);
        (data.op, data.schema) = (Op::Control(Control::Loop { tables: vec![] }), repeat);
        data.attrs.clear();
        data.inputs =
            [count[0]].into_iter().map(Some).chain([None]).chain(carried.into_iter().map(Some)).collect();
        data.subgraphs = vec![(name, g)];
        self.repeat(n)
    }
    /// Without members the results are empty, whatever the body computes.
    fn map_of_none(&mut self, n: Node) -> Result<()> {
        let subs = std::mem::take(&mut self.g.nodes[n].subgraphs);
        let elems = subs.first().map(|(_, g)| g.output_elems.clone()).unwrap_or_default();
        for (k, v) in
            self.g.nodes[n].outputs.clone().into_iter().enumerate().filter_map(|(k, v)| Some((k, v?)))
        {
            let Some(elem) = elems.get(k).copied().flatten() else {
                return self.fail(
                    n,
                    codes::TYPE_INVALID,
                    format!("output {k} of the body has no element type"),
                );
            };
            self.g.values[v].def = Def::Unused;
            self.parts.insert(v, Parts::List { members: vec![], elem: Some(elem), like: None, rank: 0 });
        }
        Ok(())
    }
    fn schema(&self, n: Node, name: &str) -> Result<&'static schema::Schema> {
        match schema::versions("", name).first() {
            Some(s) => Ok(s),
            None => self.fail(n, codes::OP_UNSUPPORTED, name),
        }
    }
}
