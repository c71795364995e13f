//! Warnings about features that are newer than the model's IR version. Such features are accepted, because
//! exporters often write too old a version.

use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto,
    attribute_proto::AttributeType, type_proto,
};
use crate::diag::{Error, Findings, Origin, codes};
use crate::tensor::ElemType;
use std::collections::BTreeMap;

/// Graphs and types are examined up to this depth. Deeper ones are rejected elsewhere.
const MAX_DEPTH: usize = 100;

/// Element types added after IR version 3.
fn since(elem: ElemType) -> i64 {
    use ElemType::*;
    match elem {
        BF16 => 4,
        F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ => 9,
        U4 | I4 => 10,
        F4E2M1 => 11,
        F8E8M0 => 12,
        U2 | I2 => 13,
        F6E2M3 | F6E3M2 => 14,
        _ => 1,
    }
}

/// Warns about each feature once, at its first place.
pub fn check(m: &ModelProto, ir: i64, origin: &Origin, findings: &mut Findings) {
    let mut w = Walk { ir, found: BTreeMap::new(), depth: 0 };
    if !m.functions.is_empty() {
        w.feature(8, "functions", || "functions".into());
    }
    m.functions.iter().for_each(|f| w.function(f));
    if let Some(g) = &m.graph {
        w.graph(g);
    }
    for ((since, what), place) in w.found {
        findings.push(
            Error::warning(codes::NEWER_FEATURE, format!("the model's IR version does not have {what} yet"))
                .at(&origin.element(place))
                .found_expected(format!("{what} at IR version {ir}"), format!("IR version {since} or newer"))
                .help(format!("set ir_version to {since}: other runtimes may refuse the model")),
        );
    }
}

struct Walk {
    ir: i64,
    /// (first IR version, feature) -> first place.
    found: BTreeMap<(i64, String), String>,
    depth: usize,
}

impl Walk {
    fn feature(&mut self, since: i64, what: &str, place: impl FnOnce() -> String) {
        if self.ir < since {
            self.found.entry((since, what.to_owned())).or_insert_with(place);
        }
    }
    fn nested(&mut self, f: impl FnOnce(&mut Self)) {
        if self.depth < MAX_DEPTH {
            self.depth += 1;
            f(self);
            self.depth -= 1;
        }
    }
    fn elem(&mut self, number: Option<i32>, place: &dyn Fn() -> String) {
        if let Some(e) = number.and_then(ElemType::from_onnx) {
            self.feature(since(e), &format!("the type {}", e.onnx_name()), place);
        }
    }
    fn tensor(&mut self, t: &TensorProto, what: &str) {
        self.elem(t.data_type, &|| format!("{what} \"{}\"", t.name.as_deref().unwrap_or_default()));
    }
    fn function(&mut self, f: &FunctionProto) {
        let place = || format!("function \"{}\"", f.name.as_deref().unwrap_or_default());
        if f.overload.as_deref().is_some_and(|o| !o.is_empty()) {
            self.feature(10, "overloads of functions", place);
        }
        if !f.attribute_proto.is_empty() {
            self.feature(9, "default values of function attributes", place);
        }
        f.node.iter().for_each(|n| self.node(n));
    }
    fn graph(&mut self, g: &GraphProto) {
        g.initializer.iter().for_each(|t| self.tensor(t, "initializer"));
        if let Some(s) = g.sparse_initializer.first() {
            self.feature(6, "sparse initializers", || {
                format!(
                    "sparse initializer \"{}\"",
                    s.values.as_ref().and_then(|v| v.name.as_deref()).unwrap_or_default()
                )
            });
        }
        for (list, what) in [(&g.input, "input"), (&g.output, "output"), (&g.value_info, "value_info")] {
            for v in list {
                let place = || format!("{what} \"{}\"", v.name.as_deref().unwrap_or_default());
                v.r#type.iter().for_each(|t| self.ty(t, &place));
            }
        }
        g.node.iter().for_each(|n| self.node(n));
    }
    fn node(&mut self, n: &NodeProto) {
        let place = || {
            format!(
                "node \"{}\" ({})",
                n.name.as_deref().unwrap_or_default(),
                n.op_type.as_deref().unwrap_or_default()
            )
        };
        if n.overload.as_deref().is_some_and(|o| !o.is_empty()) {
            self.feature(10, "overloads of functions", place);
        }
        n.attribute.iter().for_each(|a| self.attribute(a, &place));
    }
    fn attribute(&mut self, a: &AttributeProto, place: &dyn Fn() -> String) {
        let kind = a.r#type.and_then(|t| AttributeType::try_from(t).ok());
        match kind {
            Some(AttributeType::SparseTensor | AttributeType::SparseTensors) => {
                self.feature(6, "sparse tensor attributes", place)
            }
            Some(AttributeType::TypeProto | AttributeType::TypeProtos) => {
                self.feature(8, "type attributes", place)
            }
            _ => {}
        }
        a.t.iter().chain(&a.tensors).for_each(|t| self.elem(t.data_type, place));
        a.tp.iter().chain(&a.type_protos).for_each(|t| self.ty(t, place));
        a.g.iter().chain(&a.graphs).for_each(|g| self.nested(|w| w.graph(g)));
    }
    fn ty(&mut self, t: &TypeProto, place: &dyn Fn() -> String) {
        let inner = match &t.value {
            Some(type_proto::Value::TensorType(t)) => return self.elem(t.elem_type, place),
            Some(type_proto::Value::SparseTensorType(t)) => return self.elem(t.elem_type, place),
            Some(type_proto::Value::SequenceType(s)) => &s.elem_type,
            Some(type_proto::Value::MapType(m)) => &m.value_type,
            Some(type_proto::Value::OptionalType(o)) => {
                self.feature(8, "optional types", place);
                &o.elem_type
            }
            _ => return,
        };
        if let Some(t) = inner {
            self.nested(|w| w.ty(t, place));
        }
    }
}
