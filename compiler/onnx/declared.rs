//! Checks a model's declarations before its graph is built: types and sizes of inputs and outputs,
//! initializers against inputs, and parts that have no effect on inference.

use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto,
    tensor_shape_proto::dimension, type_proto,
};
use super::types::is_unknown;
use crate::diag::{Error, Failure, Findings, Origin, Result, codes};
use crate::tensor::ElemType;
use std::collections::{BTreeMap, BTreeSet};

/// Up to this IR version every initializer must also be an input.
const INITIALIZERS_ARE_INPUTS: i64 = 3;
/// Most names that a message row lists.
const MAX_NAMES: usize = 5;

/// Checks a whole model.
pub fn check(m: &ModelProto, ir: i64, origin: &Origin, findings: &mut Findings) {
    without_effect(m, origin, findings);
    let Some(g) = &m.graph else { return };
    for (list, what) in [(&g.input, "input"), (&g.output, "output"), (&g.value_info, "value_info")] {
        for v in list.iter().filter(|v| v.name.as_deref().is_some_and(|n| !n.is_empty())) {
            sizes(v, what, origin, findings);
        }
    }
    for v in &g.output {
        let at = origin.element(format!("output \"{}\"", v.name.as_deref().unwrap_or_default()));
        if let Some(Err(Failure::Errors(list))) = v.r#type.as_ref().map(|t| complete(t, &at)) {
            list.into_iter().for_each(|e| findings.push(e));
        }
    }
    initializers(g, ir, origin, findings);
}

/// Training, device placement and metadata.
fn without_effect(m: &ModelProto, origin: &Origin, findings: &mut Findings) {
    let mut remark = |what: &str, found: String| {
        findings.push(Error::remark(codes::NO_EFFECT, what).at(origin).row("ignored", found))
    };
    if !m.training_info.is_empty() {
        remark(
            "training information has no effect on inference",
            format!("training_info with {} entries", m.training_info.len()),
        );
    }
    if !m.configuration.is_empty() {
        remark(
            "device configurations have no effect: the code runs on one device",
            format!("configuration with {} entries", m.configuration.len()),
        );
    }
    let mut seen = BTreeSet::new();
    for key in m.metadata_props.iter().filter_map(|p| p.key.as_deref()) {
        if !seen.insert(key) {
            findings.push(
                Error::warning(
                    codes::NO_EFFECT,
                    format!("the metadata have the key \"{key}\" twice: the first entry counts"),
                )
                .at(origin)
                .found_expected(format!("\"{key}\" twice in metadata_props"), "each key once"),
            );
        }
    }
}

/// Reports invalid sizes and names of dimensions. Those of inner values are only hints, and there may be
/// thousands, so unknown sizes are not reported there.
fn sizes(v: &ValueInfoProto, what: &str, origin: &Origin, findings: &mut Findings) {
    let at = origin.element(format!("{what} \"{}\"", v.name.as_deref().unwrap_or_default()));
    let Some(type_proto::Value::TensorType(t)) = v.r#type.as_ref().and_then(|t| t.value.as_ref()) else {
        return;
    };
    for (i, d) in t.shape.iter().flat_map(|s| &s.dim).enumerate() {
        let wrong = |title: String, found: String| {
            Error::new(codes::TYPE_INVALID, title)
                .at(&at)
                .found_expected(found, "a size of 0 or more, a name, or neither for a size that is not known")
        };
        let odd = |title: String, found: String| Error {
            severity: crate::diag::Severity::Warning,
            ..wrong(title, found)
        };
        let hint = what == "value_info";
        match &d.value {
            Some(dimension::Value::DimValue(-1)) if hint => {}
            Some(dimension::Value::DimParam(p)) if hint && is_unknown(p) => {}
            Some(dimension::Value::DimValue(-1)) => findings
                .push(odd(format!("dimension {i} is -1: it counts as not known"), "dim_value -1".into())),
            Some(dimension::Value::DimValue(n)) if *n < 0 => {
                findings.push(wrong(format!("dimension {i} is negative"), format!("dim_value {n}")))
            }
            Some(dimension::Value::DimParam(p)) if is_unknown(p) => {
                let name = if p.is_empty() { "has an empty name" } else { "is called \"?\"" };
                findings.push(odd(
                    format!("dimension {i} {name}: it counts as not known"),
                    format!("dim_param {p:?}"),
                ))
            }
            Some(dimension::Value::DimParam(p)) if p == "*" => {
                let (title, found) = (
                    format!("dimension {i} is \"*\", which once stood for any number of dimensions"),
                    "dim_param \"*\"".to_owned(),
                );
                findings.push(if hint {
                    odd(format!("{title}: the shape is ignored"), found)
                } else {
                    wrong(title, found).help("give the shape with a name or a number for each dimension")
                });
            }
            _ => {}
        }
    }
}

/// Fails unless a type is complete at every depth and supported by onnxc.
pub fn complete(t: &TypeProto, at: &Origin) -> Result<()> {
    complete_at(t, "type", at, 0)
}

fn complete_at(t: &TypeProto, path: &str, at: &Origin, depth: usize) -> Result<()> {
    let missing = |field: &str, expected: &str| -> Result<()> {
        Error::new(codes::TYPE_INVALID, "the type is incomplete")
            .at(at)
            .found_expected(format!("{path}{field} is missing"), expected)
            .fail()
    };
    let inner = |t: &Option<Box<TypeProto>>, field: &str| match t {
        Some(t) if depth < super::wire::MAX_DEPTH => {
            complete_at(t, &format!("{path}.{field}"), at, depth + 1)
        }
        _ => missing(&format!(".{field}"), "the type of the elements"),
    };
    match &t.value {
        None => missing("", "a tensor, sequence, optional or map type"),
        Some(type_proto::Value::TensorType(t)) => match t.elem_type {
            None => missing(".tensor_type.elem_type", "the element type"),
            n => super::types::elem_type(n, at).map(drop),
        },
        Some(type_proto::Value::SequenceType(s)) => inner(&s.elem_type, "sequence_type.elem_type"),
        Some(type_proto::Value::OptionalType(s)) => inner(&s.elem_type, "optional_type.elem_type"),
        Some(type_proto::Value::MapType(m)) => {
            let Some(key) = m.key_type else { return missing(".map_type.key_type", "int64 or string") };
            let key = super::types::elem_type(Some(key), at)?;
            if !key.is_int() && key != ElemType::Str {
                return Error::new(codes::TYPE_INVALID, "the keys of a map are integers or strings")
                    .at(at)
                    .found_expected(format!("map({}, ...)", key.onnx_name()), "integers or strings")
                    .fail();
            }
            inner(&m.value_type, "map_type.value_type")
        }
        Some(type_proto::Value::SparseTensorType(s)) => {
            let elem = super::types::elem_type(s.elem_type, at)?;
            unsupported(at, format!("sparse_tensor({})", elem.onnx_name()))
        }
        Some(type_proto::Value::OpaqueType(o)) => unsupported(
            at,
            format!(
                "opaque({}, {})",
                o.domain.as_deref().unwrap_or_default(),
                o.name.as_deref().unwrap_or_default()
            ),
        ),
    }
}

fn unsupported(at: &Origin, ty: String) -> Result<()> {
    Error::new(codes::TYPE_UNSUPPORTED, "values of this type are not supported")
        .at(at)
        .found_expected(ty, "tensors, sequences, optionals or maps")
        .fail()
}

fn initializers(g: &GraphProto, ir: i64, origin: &Origin, findings: &mut Findings) {
    let inputs: BTreeSet<&str> = g.input.iter().filter_map(|i| i.name.as_deref()).collect();
    let sparse = g.sparse_initializer.iter().map(|s| s.values.as_ref().and_then(|v| v.name.as_deref()));
    let names: Vec<Option<&str>> = g.initializer.iter().map(|t| t.name.as_deref()).chain(sparse).collect();
    let list = |it: &mut dyn Iterator<Item = &str>| {
        let all: Vec<&str> = it.collect();
        let more = if all.len() > MAX_NAMES {
            format!(" and {} more", all.len() - MAX_NAMES)
        } else {
            String::new()
        };
        (!all.is_empty()).then(|| {
            format!(
                "{}{more}",
                all.iter().take(MAX_NAMES).map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ")
            )
        })
    };
    if ir <= INITIALIZERS_ARE_INPUTS {
        if let Some(found) = list(&mut names.iter().flatten().copied().filter(|n| !inputs.contains(n))) {
            findings.push(
                Error::warning(
                    codes::GRAPH_INVALID,
                    "initializers are not listed as inputs: they count as constants",
                )
                .at(origin)
                .found_expected(
                    found,
                    format!(
                        "every initializer among the inputs at IR version {ir}, or IR version {} or newer",
                        INITIALIZERS_ARE_INPUTS + 1
                    ),
                ),
            );
        }
    } else if let Some(found) = list(&mut names.iter().flatten().copied().filter(|n| inputs.contains(n))) {
        findings.push(
            Error::remark(
                codes::NO_EFFECT,
                "inputs with default values are constants: the generated function does not take them",
            )
            .at(origin)
            .row("inputs", found)
            .help("remove the initializers to make them arguments"),
        );
    }
}

/// Checks an input against the initializer of the same name, its default value. Returns the sizes that the
/// default value fixes, by the names of dims.
pub fn default_value(
    i: &ValueInfoProto,
    elem: ElemType,
    dims: &[i64],
    at: &Origin,
) -> Result<BTreeMap<String, i64>> {
    let mut out = BTreeMap::new();
    let Some(type_proto::Value::TensorType(t)) = i.r#type.as_ref().and_then(|t| t.value.as_ref()) else {
        return Ok(out);
    };
    let declared = t
        .elem_type
        .and_then(ElemType::from_onnx)
        .map_or("a type of its own".into(), |e| e.onnx_name().to_owned());
    let shown = |d: &super::proto::tensor_shape_proto::Dimension| match &d.value {
        Some(dimension::Value::DimValue(n)) => n.to_string(),
        Some(dimension::Value::DimParam(p)) => p.clone(),
        None => "?".into(),
    };
    let shape = t.shape.as_ref().map(|s| &s.dim);
    let text =
        shape.map_or("[..]".into(), |s| format!("[{}]", s.iter().map(shown).collect::<Vec<_>>().join(", ")));
    let differ = || -> Result<BTreeMap<String, i64>> {
        Error::new(codes::TYPE_INVALID, "an initializer does not fit the input of the same name")
            .at(at)
            .found_expected(
                format!("initializer {}{dims:?}", elem.onnx_name()),
                format!("input {declared}{text}"),
            )
            .fail()
    };
    if t.elem_type.and_then(ElemType::from_onnx) != Some(elem) || shape.is_some_and(|s| s.len() != dims.len())
    {
        return differ();
    }
    for (d, n) in shape.into_iter().flatten().zip(dims) {
        match &d.value {
            Some(dimension::Value::DimValue(v)) if *v >= 0 && v != n => return differ(),
            Some(dimension::Value::DimParam(p))
                if !p.is_empty() && out.insert(p.clone(), *n).is_some_and(|old| old != *n) =>
            {
                return differ();
            }
            _ => {}
        }
    }
    Ok(out)
}

/// True if a node of the graph or of a nested graph reads the name, or if the graph returns it.
pub fn uses(g: &GraphProto, name: &str) -> bool {
    g.output.iter().any(|o| o.name.as_deref() == Some(name)) || g.node.iter().any(|n| node_uses(n, name))
}

fn node_uses(n: &NodeProto, name: &str) -> bool {
    let text = |s: &bytes::Bytes| s.as_ref() == name.as_bytes();
    // Gradient names tensors in attributes.
    let in_attribute = |a: &AttributeProto| {
        a.s.as_ref().is_some_and(text)
            || a.strings.iter().any(text)
            || a.g.iter().chain(&a.graphs).any(|g| uses(g, name))
    };
    n.input.iter().any(|i| i == name) || n.attribute.iter().any(in_attribute)
}

/// True for a tensor whose data is in an external file.
pub fn is_external(t: &TensorProto) -> bool {
    t.data_location == Some(super::proto::tensor_proto::DataLocation::External as i32)
}
