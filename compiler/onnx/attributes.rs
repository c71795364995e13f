//! Checks the form of an AttributeProto: a name, a type, and the one value field that belongs to the type
//! (IR.md, "Attributes").

use super::import::Import;
use super::proto::{AttributeProto, attribute_proto::AttributeType};
use super::tensors;
use super::types::{Unnamed, value_type};
use crate::diag::{Error, Origin, Result, codes};
use crate::ops::AttrValue;
use AttributeType as T;
use std::sync::Arc;

/// Prefix of attributes that are private to some tool; they are ignored.
pub const PRIVATE: &str = "__";

/// First IR version in which attributes have a type.
const TYPED: i64 = 2;

/// The value fields of an attribute that are set: the type that each belongs to, and its name in onnx.proto.
fn values(a: &AttributeProto) -> Vec<(T, &'static str)> {
    [
        (a.f.is_some(), T::Float, "f"),
        (a.i.is_some(), T::Int, "i"),
        (a.s.is_some(), T::String, "s"),
        (a.t.is_some(), T::Tensor, "t"),
        (a.g.is_some(), T::Graph, "g"),
        (a.sparse_tensor.is_some(), T::SparseTensor, "sparse_tensor"),
        (a.tp.is_some(), T::TypeProto, "tp"),
        (!a.floats.is_empty(), T::Floats, "floats"),
        (!a.ints.is_empty(), T::Ints, "ints"),
        (!a.strings.is_empty(), T::Strings, "strings"),
        (!a.tensors.is_empty(), T::Tensors, "tensors"),
        (!a.graphs.is_empty(), T::Graphs, "graphs"),
        (!a.sparse_tensors.is_empty(), T::SparseTensors, "sparse_tensors"),
        (!a.type_protos.is_empty(), T::TypeProtos, "type_protos"),
    ]
    .into_iter()
    .filter(|v| v.0)
    .map(|v| (v.1, v.2))
    .collect()
}

/// The name of the value field of a type.
fn field(t: T) -> &'static str {
    match t {
        T::Undefined => "none",
        T::Float => "f",
        T::Int => "i",
        T::String => "s",
        T::Tensor => "t",
        T::Graph => "g",
        T::SparseTensor => "sparse_tensor",
        T::TypeProto => "tp",
        T::Floats => "floats",
        T::Ints => "ints",
        T::Strings => "strings",
        T::Tensors => "tensors",
        T::Graphs => "graphs",
        T::SparseTensors => "sparse_tensors",
        T::TypeProtos => "type_protos",
    }
}

/// The attribute of the enclosing function that this one refers to, if it is a reference.
pub fn reference(a: &AttributeProto) -> Option<&str> {
    a.ref_attr_name.as_deref().filter(|r| !r.is_empty())
}

/// `attribute "alpha" of LeakyRelu`.
pub fn title(a: &AttributeProto, owner: &str) -> String {
    format!("attribute \"{}\" of {owner}", a.name.as_deref().unwrap_or(""))
}

/// Fails if an attribute has no name, or if a name occurs twice.
pub fn check_names(list: &[AttributeProto], owner: &str, at: &Origin) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    let mut errors = vec![];
    for (i, a) in list.iter().enumerate() {
        let name = a.name.as_deref().unwrap_or("");
        if name.is_empty() {
            let e = Error::new(codes::OP_ATTRIBUTE, format!("attribute {i} of {owner} has no name")).at(at);
            errors.push(
                e.found_expected("an empty name", "the name of an attribute")
                    .help("set the attribute's name"),
            );
        } else if !seen.insert(name) {
            let e = Error::new(codes::OP_ATTRIBUTE, format!("{} is given twice", title(a, owner))).at(at);
            errors.push(e.found_expected("two values", "one").help("remove one of them"));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(crate::diag::Failure::Errors(errors)) }
}

/// The type of an attribute that has a value. The only value field that is set must be that of the type.
/// Scalars and lists may have no field set: proto3 writers omit zeros, and empty lists have no elements.
pub fn kind(a: &AttributeProto, owner: &str, ir: i64, at: &Origin) -> Result<T> {
    let title = title(a, owner);
    let fail = |what: &str, found: String, expected: String, help: &str| -> Result<T> {
        Error::new(codes::OP_ATTRIBUTE, format!("{title} {what}"))
            .at(at)
            .found_expected(found, expected)
            .help(help)
            .fail()
    };
    let rewrite = "write the model with onnx.helper.make_attribute, which sets type and value";
    let set = values(a);
    let shown = |v: &[(T, &str)]| v.iter().map(|v| v.1).collect::<Vec<_>>().join(" and ");
    if set.len() > 1 {
        return fail(
            "has several values",
            format!("fields {}", shown(&set)),
            "one value field".into(),
            rewrite,
        );
    }
    let Some(number) = a.r#type.filter(|t| ir >= TYPED || *t != 0) else {
        return match set.first() {
            Some((t, _)) if ir < TYPED => Ok(*t),
            None if ir < TYPED => Ok(T::Undefined),
            _ => {
                let found = if set.is_empty() {
                    "neither type nor value".to_owned()
                } else {
                    format!("field {} without a type", shown(&set))
                };
                fail(
                    "has no type",
                    found,
                    format!("a type, as of IR version {TYPED} (the model has {ir})"),
                    rewrite,
                )
            }
        };
    };
    let Ok(t) = T::try_from(number) else {
        return fail(
            "has a type that ONNX does not have",
            number.to_string(),
            "an AttributeType, 1 (FLOAT) to 14 (TYPE_PROTOS)".into(),
            rewrite,
        );
    };
    match set.first() {
        Some((found, name)) if *found != t => fail(
            "has a value that is not of its type",
            format!("type {} with field {name}", t.as_str_name()),
            format!("field {}", field(t)),
            rewrite,
        ),
        None if matches!(t, T::Tensor | T::Graph | T::SparseTensor | T::TypeProto) => fail(
            "has no value",
            format!("type {} without field {}", t.as_str_name(), field(t)),
            format!("a value in field {}", field(t)),
            rewrite,
        ),
        _ if t == T::Undefined => fail(
            "has no type",
            "type UNDEFINED".into(),
            "a type, 1 (FLOAT) to 14 (TYPE_PROTOS)".into(),
            rewrite,
        ),
        _ => Ok(t),
    }
}

/// Fails on a reference that also has a value.
pub fn check_reference(a: &AttributeProto, owner: &str, at: &Origin) -> Result<()> {
    let Some(r) = reference(a) else { return Ok(()) };
    match values(a).first() {
        None => Ok(()),
        Some((_, field)) => {
            Error::new(codes::OP_ATTRIBUTE, format!("{} is a reference and has a value", title(a, owner)))
                .at(at)
                .found_expected(format!("reference \"{r}\" and field {field}"), "one of them")
                .help("remove the value, or clear ref_attr_name")
                .fail()
        }
    }
}

impl Import {
    /// The value of a node's attribute; `None` for a graph.
    pub(super) fn attribute(&mut self, a: &AttributeProto, origin: &Origin) -> Result<Option<AttrValue>> {
        let name = a.name.as_deref().unwrap_or("");
        let at = origin.element(format!("attribute \"{name}\""));
        let title = title(a, &origin.op);
        if let Some(r) = reference(a) {
            let e = Error::new(codes::OP_ATTRIBUTE, format!("{title} is a reference outside a function"))
                .at(origin);
            return e
                .found_expected(
                    format!("reference \"{r}\""),
                    "a value: only bodies of functions refer to attributes",
                )
                .help("set the attribute's value and clear ref_attr_name")
                .fail();
        }
        let unsupported = |what: &str| {
            let e = Error::new(codes::OP_FEATURE, format!("{title} is {what}, which is not supported"))
                .at(origin);
            e.found_expected(
                format!("an attribute of {what}"),
                "a kind of attribute that an operator of ONNX has",
            )
            .fail()
        };
        Ok(Some(match kind(a, &origin.op, self.ir, origin)? {
            T::Graph => return Ok(None),
            T::Float => AttrValue::Float(a.f.unwrap_or(0.0)),
            T::Int => AttrValue::Int(a.i.unwrap_or(0)),
            T::String => AttrValue::String(a.s.clone().unwrap_or_default().to_vec()),
            T::Floats => AttrValue::Floats(a.floats.clone()),
            T::Ints => AttrValue::Ints(a.ints.clone()),
            T::Strings => AttrValue::Strings(a.strings.iter().map(|s| s.to_vec()).collect()),
            T::Tensor => match &a.t {
                Some(t) => AttrValue::Tensor(Arc::new(tensors::tensor(t, &mut self.external, &at)?)),
                None => return unsupported("no tensor"),
            },
            T::Tensors => AttrValue::Tensors(
                a.tensors
                    .iter()
                    .map(|t| tensors::tensor(t, &mut self.external, &at).map(Arc::new))
                    .collect::<Result<_>>()?,
            ),
            T::SparseTensor => match &a.sparse_tensor {
                Some(t) => AttrValue::Tensor(Arc::new(tensors::sparse(t, &mut self.external, &at)?)),
                None => return unsupported("no tensor"),
            },
            T::TypeProto => match a
                .tp
                .as_ref()
                .map(|t| value_type(t, &mut self.syms, &Unnamed::Member, &at))
                .transpose()?
                .flatten()
            {
                Some(t) => AttrValue::Type(t),
                None => {
                    let e =
                        Error::new(codes::OP_ATTRIBUTE, format!("{title} is an incomplete type")).at(origin);
                    return e
                        .found_expected("a TypeProto without a value", "a type")
                        .help("set the type's kind and its elements")
                        .fail();
                }
            },
            // An empty list of an untyped attribute.
            T::Undefined => AttrValue::Ints(vec![]),
            T::Graphs => return unsupported("a list of graphs"),
            T::SparseTensors => return unsupported("a list of sparse tensors"),
            T::TypeProtos => return unsupported("a list of types"),
        }))
    }
}
