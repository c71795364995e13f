//! The operators of sequences, optionals and maps.

use super::{Kind, Parts, Scope, Seq, Thing, newest};
use crate::diag::{Result, codes};
use crate::graph::{Def, Node, Value};
use crate::ops::bundle::Bundle;
use crate::ops::from_end;
use crate::ops::maps::{Keys, Maps};
use crate::ops::sequence::{Concat, Sequence, Split};
use crate::ops::support::schema;
use crate::ops::view::View;
use crate::ops::{AttrValue, Attrs, Op};
use crate::tensor::{ConstData, ElemType};
use std::sync::Arc;

/// Sequences up to this length remain lists of values.
const MOST: usize = 64;

fn truth(v: bool) -> Option<Arc<ConstData>> {
    ConstData::new(ElemType::Bool, vec![], vec![u8::from(v)]).map(Arc::new)
}

/// Position `p` in `0..=last`; a negative one counts from `len`.
fn place(p: i64, len: usize, last: usize) -> Option<usize> {
    usize::try_from(from_end(p, len as i64)).ok().filter(|p| *p <= last)
}

impl Scope {
    /// A constant position in a list. `default` without an operand, `None` if it is unknown or out of range.
    fn place_in(
        &self,
        n: Node,
        i: usize,
        len: usize,
        last: Option<usize>,
        default: Option<usize>,
    ) -> Option<usize> {
        match self.operand_opt(n, i) {
            None => default,
            Some(v) => place(self.number(v)?, len, last?),
        }
    }
    /// The members and type of operand 0, if it is a list.
    fn list(&self, n: Node) -> Option<(Vec<Value>, Option<ElemType>, Option<Value>)> {
        match self.thing(self.operand_opt(n, 0)?) {
            Thing::Parts(Parts::List { members, elem, like, .. }) => Some((members, elem, like)),
            _ => None,
        }
    }
    /// Replaces the results of node `n` by new ones, which represent a sequence.
    fn become_parts(
        &mut self,
        n: Node,
        op: Bundle,
        inputs: Vec<Value>,
        suffixes: &[&str],
    ) -> Result<Vec<Value>> {
        let name = self.result(n).map(|v| self.name(v)).unwrap_or_default();
        if let Some(v) = self.result(n) {
            self.g.values[v].def = Def::Unused;
        }
        let made: Vec<Value> = suffixes
            .iter()
            .enumerate()
            .map(|(k, s)| self.value(format!("{name}{s}"), Def::Node(n, k as u32)))
            .collect();
        self.become_bundle(n, op, inputs)?;
        self.g.nodes[n].outputs = made.iter().copied().map(Some).collect();
        Ok(made)
    }
    fn give_list(
        &mut self,
        n: Node,
        members: Vec<Value>,
        elem: Option<ElemType>,
        like: Option<Value>,
    ) -> Result<()> {
        self.give(n, Thing::Parts(Parts::List { members, elem, like, rank: 0 }))
    }
    pub(super) fn operator(&mut self, n: Node, op: &Sequence) -> Result<()> {
        let out = self.result(n);
        let set = |s: &mut Self, p: Parts| {
            if let Some(v) = out {
                s.parts.insert(v, p);
            }
        };
        match op {
            Sequence::Construct => {
                let members = (0..self.g.nodes[n].inputs.len())
                    .map(|i| self.tensor(n, i))
                    .collect::<Result<Vec<_>>>()?;
                let like = members.first().copied();
                self.give_list(n, members, None, like)
            }
            Sequence::Empty(elem) => self.give_list(n, vec![], Some(*elem), None),
            Sequence::At => {
                if let Some((m, ..)) = self.list(n)
                    && let Some(p) = self.place_in(n, 1, m.len(), m.len().checked_sub(1), None)
                {
                    return self.same(n, m[p]);
                }
                let (s, p) = (self.sequence(n, 0)?, self.tensor(n, 1)?);
                self.become_bundle(n, Bundle::At { dims: s.dims }, vec![s.table, s.data, p])
            }
            Sequence::Insert => {
                let x = self.tensor(n, 1)?;
                if let Some((mut m, elem, like)) = self.list(n).filter(|l| l.0.len() < MOST)
                    && let Some(p) = self.place_in(n, 2, m.len(), Some(m.len()), Some(m.len()))
                {
                    m.insert(p, x);
                    return self.give_list(n, m, elem, like.or(Some(x)));
                }
                let s = self.sequence(n, 0)?;
                let inputs = [s.table, s.data, x].into_iter().chain(self.operand_opt(n, 2)).collect();
                let v = self.become_parts(n, Bundle::Insert, inputs, Kind::Sequence.suffixes())?;
                set(self, Parts::Seq(Seq { table: v[0], data: v[1], dims: None }));
                Ok(())
            }
            Sequence::Erase => {
                if let Some((mut m, elem, like)) = self.list(n)
                    && let Some(p) =
                        self.place_in(n, 1, m.len(), m.len().checked_sub(1), m.len().checked_sub(1))
                {
                    m.remove(p);
                    return self.give_list(n, m, elem, like);
                }
                let s = self.sequence(n, 0)?;
                let inputs = [s.table].into_iter().chain(self.operand_opt(n, 1)).collect();
                let v = self.become_parts(n, Bundle::Erase, inputs, &[".table"])?;
                set(self, Parts::Seq(Seq { table: v[0], ..s }));
                Ok(())
            }
            Sequence::Length => {
                if let Some((m, ..)) = self.list(n) {
                    return self.known(n, Some(Arc::new(ConstData::i64s_shaped(vec![], &[m.len() as i64]))));
                }
                let s = self.sequence(n, 0)?;
                self.become_bundle(n, Bundle::Length, vec![s.table])
            }
            Sequence::Split(s) => self.split(n, *s),
            Sequence::Concat(c) => self.concat(n, *c),
            Sequence::Map => self.map(n),
            Sequence::Optional(ty) => {
                let t = match (self.operand_opt(n, 0), ty) {
                    (Some(v), _) => Parts::Present(Box::new(self.thing(v))),
                    (None, Some(ty)) => Parts::Absent(ty.clone()),
                    (None, None) => {
                        return self.fail(
                            n,
                            codes::OP_ATTRIBUTE,
                            "Optional without an element needs the attribute type",
                        );
                    }
                };
                self.give(n, Thing::Parts(t))
            }
            Sequence::GetElement => self.element(n),
            Sequence::HasElement => {
                let Some(v) = self.operand_opt(n, 0) else { return self.known(n, truth(false)) };
                match self.thing(v) {
                    Thing::Parts(Parts::Absent(_)) => self.known(n, truth(false)),
                    Thing::Parts(Parts::Optional(s)) => self.become_bundle(n, Bundle::Has, vec![s.table]),
                    Thing::Parts(Parts::OptionalSeq { flag, .. }) => self.same(n, flag),
                    _ => self.known(n, truth(true)),
                }
            }
        }
    }
    fn element(&mut self, n: Node) -> Result<()> {
        let (v, origin) = (self.operand(n, 0)?, self.origin(n));
        let mut t = self.thing(v);
        if let Thing::Parts(Parts::Absent(_)) = t {
            // The error occurs only if the node runs; it may be in a branch that is not taken.
            let (kind, name) = (Kind::of(&t), self.name(v));
            let parts = self.convert(t, kind, &name, &origin)?;
            t = kind.thing(&parts)?;
        }
        match t {
            Thing::Parts(Parts::Present(t)) => self.give(n, *t),
            Thing::Parts(Parts::Optional(s)) => {
                self.become_bundle(n, Bundle::At { dims: s.dims }, vec![s.table, s.data])
            }
            Thing::Parts(Parts::OptionalSeq { flag, seq }) => {
                let out = self.result(n);
                let v = self.become_parts(
                    n,
                    Bundle::Require { truth: true },
                    vec![flag, seq.table],
                    &[".table"],
                )?;
                if let Some(out) = out {
                    self.parts.insert(out, Parts::Seq(Seq { table: v[0], ..seq }));
                }
                Ok(())
            }
            t => self.give(n, t),
        }
    }
    fn split(&mut self, n: Node, op: Split) -> Result<()> {
        let Split { axis, keepdims } = op;
        let (x, sizes) = (self.tensor(n, 0)?, self.operand_opt(n, 1));
        if let Some(parts) = self.known_parts(x, sizes, axis)
            && (sizes.is_some() || keepdims)
            && let Some(out) = self.result(n)
        {
            let split = schema::versions("", "Split").iter().find(|s| s.since == 13);
            let Some(split) = split else { return self.fail(n, codes::OP_UNSUPPORTED, "Split") };
            let list = self.constant("parts", Some(Arc::new(ConstData::from_i64s(&parts))))?;
            let (name, origin) = (self.name(out), self.origin(n));
            self.g.values[out].def = Def::Unused;
            let members: Vec<Value> =
                (0..parts.len()).map(|k| self.value(format!("{name}.{k}"), Def::Node(n, k as u32))).collect();
            let attrs = vec![("axis".into(), AttrValue::Int(axis))];
            let op = crate::ops::read(Attrs::new(split, (2, members.len()), origin, attrs.clone(), vec![]))?;
            self.become_op(n, op, split, vec![Some(x), Some(list)]);
            self.g.nodes[n].attrs = attrs;
            self.g.nodes[n].outputs = members.iter().copied().map(Some).collect();
            self.parts.insert(out, Parts::List { members, elem: None, like: Some(x), rank: 0 });
            return Ok(());
        }
        let out = self.result(n);
        let inputs = [x].into_iter().chain(sizes).collect();
        let v = self.become_parts(n, Bundle::Split(op), inputs, Kind::Sequence.suffixes())?;
        if let Some(out) = out {
            self.parts.insert(out, Parts::Seq(Seq { table: v[0], data: v[1], dims: None }));
        }
        Ok(())
    }
    /// Sizes of the parts of `x`, if they are known and few.
    fn known_parts(&self, x: Value, sizes: Option<Value>, axis: i64) -> Option<Vec<i64>> {
        let along = || {
            let t = self.g.values[x].ty.as_ref()?.as_tensor()?;
            let a = usize::try_from(from_end(axis, t.rank() as i64)).ok()?;
            t.dims.get(a)?.as_const()
        };
        let parts = match sizes {
            None => vec![1; usize::try_from(along()?).ok().filter(|n| *n <= MOST)?],
            Some(v) => {
                let crate::ops::Known::Const(c) = &self.g.values[v].known else { return None };
                match (c.dims(), c.to_i64s()?) {
                    ([], v) => {
                        let (n, all) = (*v.first().filter(|n| **n > 0)?, along()?);
                        (0..all.checked_add(n - 1)? / n).take(MOST + 1).map(|k| n.min(all - k * n)).collect()
                    }
                    (_, v) => v,
                }
            }
        };
        ((1..=MOST).contains(&parts.len()) && parts.iter().all(|p| *p >= 0)).then_some(parts)
    }
    fn concat(&mut self, n: Node, op: Concat) -> Result<()> {
        let Concat { axis, new_axis } = op;
        let Some((members, ..)) = self.list(n).filter(|l| !l.0.is_empty()) else {
            let s = self.sequence(n, 0)?;
            return self.become_bundle(n, Bundle::Concat(op), vec![s.table, s.data]);
        };
        let mut operands = members;
        if new_axis {
            let (unsqueeze, origin) =
                (schema::versions("", "Unsqueeze").iter().find(|s| s.since == 11), self.origin(n));
            let Some(unsqueeze) = unsqueeze else { return self.fail(n, codes::OP_UNSUPPORTED, "Unsqueeze") };
            for x in &mut operands {
                let node = Node::from_u32(self.g.nodes.len() as u32);
                let name = self.name(*x);
                let y = self.value(name, Def::Node(node, 0));
                let data = crate::graph::NodeData {
                    op: Op::View(View::Unsqueeze(Some(vec![axis]))),
                    schema: unsqueeze,
                    attrs: vec![("axes".into(), AttrValue::Ints(vec![axis]))],
                    inputs: vec![Some(*x)],
                    outputs: vec![Some(y)],
                    subgraphs: vec![],
                    origin: origin.clone(),
                };
                self.g.nodes.push(data);
                self.order.push(node);
                *x = y;
            }
        }
        let op = Op::Concat(crate::ops::concat::Concat { axis });
        self.become_op(n, op, newest("Concat")?, operands.into_iter().map(Some).collect());
        self.g.nodes[n].attrs = vec![("axis".into(), AttrValue::Int(axis))];
        Ok(())
    }
    pub(super) fn maps(&mut self, n: Node, op: Maps) -> Result<()> {
        let v = self.operand(n, 0)?;
        match (op, self.thing(v)) {
            (Maps::Zip(list), Thing::Tensor(_)) => {
                let count = match &list {
                    Keys::Numbers(v) => v.len(),
                    Keys::Strings(v) => v.len(),
                };
                let out = self.result(n);
                let keys = self.constant("keys", list.data())?;
                let rows = self.become_parts(n, Bundle::Rows(count as i64), vec![v], &[".values"])?;
                if let Some(out) = out {
                    self.parts.insert(out, Parts::Maps { keys, values: rows[0] });
                }
                Ok(())
            }
            (op @ (Maps::Cast { .. } | Maps::Vectorize(_)), Thing::Parts(Parts::Map { keys, values })) => {
                let schema = Bundle::Rows(0).schema()?;
                self.become_op(n, Op::Maps(op), schema, vec![Some(keys), Some(values)]);
                Ok(())
            }
            _ => self.fail(n, codes::OP_TYPE, "the operand is not of the type that the operator takes"),
        }
    }
}
