//! TypeProto -> ValueType.

use super::proto::{
    TensorShapeProto, TypeProto, tensor_shape_proto, tensor_shape_proto::dimension, type_proto,
};
use crate::diag::{Error, Failure, Origin, codes, limits};
use crate::sym::{Dim, SymKind, SymTable};
use crate::tensor::{ElemType, MemberType, TensorType, ValueType};

/// The element type of a number in the file, or an error.
pub fn elem_type(n: Option<i32>, origin: &Origin) -> Result<ElemType, Failure> {
    match n {
        Some(n) if n != 0 => ElemType::from_onnx(n).ok_or_else(|| {
            Error::new(codes::TYPE_INVALID, format!("unknown element type {n}"))
                .at(origin)
                .found_expected(n.to_string(), "a number of TensorProto.DataType, 1 to 28")
                .into()
        }),
        n => Err(Error::new(codes::TYPE_INVALID, "the element type is missing")
            .at(origin)
            .found_expected(
                if n.is_some() { "0 (UNDEFINED)" } else { "none" },
                "a number of TensorProto.DataType, 1 to 28",
            )
            .into()),
    }
}

/// How to treat dims that have neither a value nor a name.
pub enum Unnamed<'a> {
    /// Make a symbol with this name.
    Symbol(&'a str),
    /// Drop the whole type, which is only a hint.
    Hint,
    /// Keep only known sizes: the members of a sequence differ.
    Member,
}

/// Converts a type. `None` for a hint that is incomplete.
pub fn value_type(
    t: &TypeProto,
    syms: &mut SymTable,
    unnamed: &Unnamed,
    origin: &Origin,
) -> Result<Option<ValueType>, Failure> {
    let invalid = |title: &str| -> Failure { Error::new(codes::TYPE_INVALID, title).at(origin).into() };
    if let Unnamed::Symbol(_) = unnamed {
        super::declared::complete(t, origin)?;
    }
    let inner = |t: &Option<Box<TypeProto>>, syms: &mut SymTable| match t {
        Some(t) => value_type(t, syms, &Unnamed::Member, origin).map(|v| v.map(Box::new)),
        None => Err(invalid("the type of the elements is missing")),
    };
    Ok(match &t.value {
        None => None,
        Some(type_proto::Value::TensorType(t)) => {
            let elem = elem_type(t.elem_type, origin)?;
            let rank = t.shape.as_ref().map_or(0, |s| s.dim.len());
            if limits::RANK.exceeded_by(rank as u64) {
                return Err(limits::RANK.error("the tensor has too many dimensions", rank).at(origin).into());
            }
            match (&t.shape, unnamed) {
                (s, Unnamed::Member) => {
                    Some(ValueType::Member(MemberType { elem, dims: s.as_ref().map(member_dims) }))
                }
                (Some(s), _) => {
                    shape(s, syms, unnamed).map(|dims| ValueType::Tensor(TensorType::new(elem, dims)))
                }
                (None, Unnamed::Hint) => None,
                (None, Unnamed::Symbol(_)) => {
                    return Err(Error::new(codes::TYPE_INVALID, "the input has no shape")
                        .at(origin)
                        .found_expected(
                            "a tensor type of unknown rank",
                            "a shape, its dims numbers, names or left open",
                        )
                        .help("export the model with shapes: onnxc needs the rank of every input")
                        .into());
                }
            }
        }
        Some(type_proto::Value::SequenceType(s)) => inner(&s.elem_type, syms)?.map(ValueType::Sequence),
        Some(type_proto::Value::OptionalType(s)) => inner(&s.elem_type, syms)?.map(ValueType::Optional),
        Some(type_proto::Value::MapType(m)) => {
            let key = elem_type(m.key_type, origin)?;
            inner(&m.value_type, syms)?.map(|v| ValueType::Map(key, v))
        }
        Some(type_proto::Value::SparseTensorType(_) | type_proto::Value::OpaqueType(_)) => {
            return Err(Error::new(
                codes::TYPE_UNSUPPORTED,
                "sparse tensors and opaque values are not supported",
            )
            .at(origin)
            .into());
        }
    })
}

/// Sizes that all members have in common. A name is no such size: it may denote a different size in each
/// member.
fn member_dims(s: &TensorShapeProto) -> Vec<Option<i64>> {
    let known = |d: &tensor_shape_proto::Dimension| match d.value {
        Some(dimension::Value::DimValue(v)) if v >= 0 => Some(v),
        _ => None,
    };
    s.dim.iter().map(known).collect()
}

fn shape(s: &TensorShapeProto, syms: &mut SymTable, unnamed: &Unnamed) -> Option<Vec<Dim>> {
    let mut dims = vec![];
    for (i, d) in s.dim.iter().enumerate() {
        dims.push(match (&d.value, unnamed) {
            (Some(dimension::Value::DimValue(v)), _) if *v >= 0 => Dim::constant(*v),
            (Some(dimension::Value::DimParam(p)), Unnamed::Symbol(_) | Unnamed::Hint)
                if !is_unknown(p) && p != "*" =>
            {
                named(p, syms)
            }
            (_, Unnamed::Symbol(name)) => syms.fresh(SymKind::Unnamed, &format!("{name}_dim{i}")).into(),
            (_, Unnamed::Hint | Unnamed::Member) => return None,
        });
    }
    Some(dims)
}

/// True for the text of a `dim_param` that is no name: exporters write "?" for a size that is not known.
pub(super) fn is_unknown(p: &str) -> bool {
    matches!(p, "" | "?")
}

/// The dim of a `dim_param`. It is a name, except that exporters also write expressions over other names
/// ("2*N", "past + S"), which are parsed if the user says so.
fn named(p: &str, syms: &mut SymTable) -> Dim {
    if syms.expressions
        && !syms.is_param(p)
        && !limits::DIM_TEXT.exceeded_by(p.len() as u64)
        && p.contains(['+', '*', '-', '('])
    {
        let table = &*syms;
        if let Ok(d) = crate::sym::text::parse(p, &mut |n| table.lookup(n)) {
            return d;
        }
    }
    syms.param(p).into()
}
