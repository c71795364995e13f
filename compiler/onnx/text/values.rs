//! Types, attribute values and tensor literals of the ONNX textual syntax.

use super::Parser;
use super::cursor::Literal;
use crate::diag::Result;
use crate::onnx::proto::{
    AttributeProto, TensorProto, TensorShapeProto, TypeProto,
    attribute_proto::AttributeType,
    tensor_proto::{DataLocation, DataType},
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use crate::tensor::ElemType;

const I64: std::ops::RangeInclusive<i128> = i64::MIN as i128..=i64::MAX as i128;

/// Names of attribute kinds; for lists, with the kind of one element.
const KINDS: &[(&str, AttributeType, Option<AttributeType>)] = {
    use AttributeType as T;
    &[
        ("float", T::Float, None),
        ("int", T::Int, None),
        ("string", T::String, None),
        ("tensor", T::Tensor, None),
        ("graph", T::Graph, None),
        ("sparse_tensor", T::SparseTensor, None),
        ("type_proto", T::TypeProto, None),
        ("floats", T::Floats, Some(T::Float)),
        ("ints", T::Ints, Some(T::Int)),
        ("strings", T::Strings, Some(T::String)),
        ("tensors", T::Tensors, Some(T::Tensor)),
        ("graphs", T::Graphs, Some(T::Graph)),
        ("sparse_tensors", T::SparseTensors, Some(T::SparseTensor)),
        ("type_protos", T::TypeProtos, Some(T::TypeProto)),
    ]
};

fn kind_name(k: AttributeType) -> &'static str {
    KINDS.iter().find(|(_, t, _)| *t == k).map_or("undefined", |(n, ..)| n)
}

fn elem_type(name: &str) -> Option<DataType> {
    match name {
        "float6e2m3" => Some(DataType::Float6e2m3),
        "float6e3m2" => Some(DataType::Float6e3m2),
        _ => DataType::try_from(i32::from(ElemType::from_onnx_name(name)? as u8)).ok(),
    }
}

impl Parser<'_> {
    /// True if a type is next.
    pub(super) fn at_type(&mut self) -> bool {
        self.c.peek_ident().is_some_and(|w| {
            elem_type(w).is_some() || matches!(w, "seq" | "map" | "optional" | "sparse_tensor" | "opaque")
        })
    }
    fn elem(&mut self, what: &str) -> Result<DataType> {
        let at = self.c.mark();
        let word = self.c.ident(what)?;
        elem_type(word).ok_or_else(|| self.c.found(at, &format!("\"{word}\""), what))
    }
    pub(super) fn ty(&mut self) -> Result<TypeProto> {
        use type_proto::{Map, Opaque, Optional, Sequence, SparseTensor, Tensor, Value};
        let at = self.c.mark();
        let word = self.c.ident("a type")?;
        let value = if let Some(e) = elem_type(word) {
            Value::TensorType(Tensor { elem_type: Some(e as i32), shape: self.shape()? })
        } else {
            if !matches!(word, "seq" | "map" | "optional" | "sparse_tensor" | "opaque") {
                return Err(self.c.found(at, &format!("\"{word}\""), "a type"));
            }
            self.c.expect('(', "after the type's name")?;
            let v = match word {
                "seq" => Value::SequenceType(Box::new(Sequence {
                    elem_type: Some(Box::new(self.nested(Self::ty)?)),
                })),
                "optional" => Value::OptionalType(Box::new(Optional {
                    elem_type: Some(Box::new(self.nested(Self::ty)?)),
                })),
                "map" => {
                    let key_type = Some(self.elem("the element type of the keys")? as i32);
                    self.c.expect(',', "after the type of the keys")?;
                    Value::MapType(Box::new(Map {
                        key_type,
                        value_type: Some(Box::new(self.nested(Self::ty)?)),
                    }))
                }
                "sparse_tensor" => {
                    let elem_type = Some(self.elem("an element type")? as i32);
                    Value::SparseTensorType(SparseTensor { elem_type, shape: self.shape()? })
                }
                _ => Value::OpaqueType(self.opaque().map(|(domain, name)| Opaque { domain, name })?),
            };
            self.c.expect(')', "after the type")?;
            v
        };
        Ok(TypeProto { value: Some(value), ..Default::default() })
    }
    /// Domain and name of an opaque type. A single one is the name.
    fn opaque(&mut self) -> Result<(Option<String>, Option<String>)> {
        if self.c.peek() == Some(b')') {
            return Ok((None, None));
        }
        let mut first = self.c.ident("the name of an opaque type")?.to_owned();
        while self.c.eat(b'.') {
            first.push('.');
            first.push_str(self.c.ident("a part of the name")?);
        }
        if self.c.eat(b',') {
            let name = self.c.ident("the name of an opaque type")?.to_owned();
            return Ok((Some(first), Some(name)));
        }
        Ok((None, Some(first)))
    }
    /// A shape: without brackets a scalar, with empty brackets of unknown rank.
    fn shape(&mut self) -> Result<Option<TensorShapeProto>> {
        if !self.c.eat(b'[') {
            return Ok(Some(TensorShapeProto::default()));
        }
        if self.c.eat(b']') {
            return Ok(None);
        }
        let mut dim = vec![];
        self.list(']', "after a dimension", |p| {
            let value = if p.c.eat(b'?') {
                None
            } else if let Some(name) = p.c.name_opt()? {
                Some(dimension::Value::DimParam(name))
            } else {
                Some(dimension::Value::DimValue(p.c.int("a dimension, a name or \"?\"", I64)?))
            };
            dim.push(Dimension { value, denotation: None });
            Ok(())
        })?;
        Ok(Some(TensorShapeProto { dim }))
    }
    /// Data of a tensor: values in braces, or the location of external data in brackets. `at` is the position
    /// of its type.
    pub(super) fn tensor_data(&mut self, t: &mut TensorProto, ty: &TypeProto, at: usize) -> Result<()> {
        let Some(type_proto::Value::TensorType(ty)) = &ty.value else {
            return Err(self.c.error_at(at, "only tensors can have values here"));
        };
        let Some(shape) = &ty.shape else {
            return Err(self.c.error_at(at, "a tensor with values needs a shape"));
        };
        for d in &shape.dim {
            match &d.value {
                Some(dimension::Value::DimValue(v)) => t.dims.push(*v),
                _ => {
                    return Err(self
                        .c
                        .error_at(at, "the dimensions of a tensor with values must be numbers"));
                }
            }
        }
        t.data_type = ty.elem_type;
        let elem = ty.elem_type.and_then(|n| DataType::try_from(n).ok()).unwrap_or_default();
        if self.c.eat(b'{') {
            return self.list('}', "after a value", |p| p.tensor_value(t, elem));
        }
        if self.c.eat(b'[') {
            t.data_location = Some(DataLocation::External as i32);
            return self.entries(&mut t.external_data);
        }
        Err(self.c.expected("the tensor's values in braces, or the place of external data in brackets"))
    }
    /// Adds one value to the field that onnx.proto specifies for the type. Small floats are given as bit
    /// patterns.
    fn tensor_value(&mut self, t: &mut TensorProto, elem: DataType) -> Result<()> {
        use DataType as D;
        let small = |p: &mut Self, lo: i128, hi: i128| p.c.int::<i32>("a value", lo..=hi);
        match elem {
            D::Float | D::Complex64 => t.float_data.push(self.c.float()?),
            D::Double | D::Complex128 => t.double_data.push(self.c.double()?),
            D::String => t.string_data.push(self.c.quoted()?.into()),
            D::Int64 => t.int64_data.push(self.c.int("a value", I64)?),
            D::Uint64 => t.uint64_data.push(self.c.int("a value", 0..=u64::MAX.into())?),
            D::Uint32 => t.uint64_data.push(self.c.int("a value", 0..=u32::MAX.into())?),
            D::Int32 => t.int32_data.push(small(self, i32::MIN.into(), i32::MAX.into())?),
            D::Int16 => t.int32_data.push(small(self, i16::MIN.into(), i16::MAX.into())?),
            D::Uint16 => t.int32_data.push(small(self, 0, u16::MAX.into())?),
            D::Int8 => t.int32_data.push(small(self, i8::MIN.into(), i8::MAX.into())?),
            D::Uint8 => t.int32_data.push(small(self, 0, u8::MAX.into())?),
            D::Bool => t.int32_data.push(small(self, 0, 1)?),
            D::Float16 | D::Bfloat16 => {
                let v = self.c.int("a value by its bits", 0..=u16::MAX.into())?;
                t.int32_data.push(v);
            }
            D::Float8e4m3fn
            | D::Float8e4m3fnuz
            | D::Float8e5m2
            | D::Float8e5m2fnuz
            | D::Float8e8m0
            | D::Float6e2m3
            | D::Float6e3m2 => {
                let v = self.c.int("a value by its bits", 0..=u8::MAX.into())?;
                t.int32_data.push(v);
            }
            // A byte of packed elements per value, as in int32_data.
            D::Uint4 | D::Int4 | D::Float4e2m1 | D::Uint2 | D::Int2 => {
                let v = self.c.int("a byte of packed values", i8::MIN.into()..=u8::MAX.into())?;
                t.int32_data.push(v);
            }
            D::Undefined => return Err(self.c.expected("a value of a known type")),
        }
        Ok(())
    }
    /// `: kind = value` of an attribute.
    pub(super) fn attribute(&mut self, name: String) -> Result<AttributeProto> {
        let mut a = AttributeProto { name: Some(name), ..Default::default() };
        let mut kind = None;
        if self.c.eat(b':') {
            let at = self.c.mark();
            let word = self.c.ident("the kind of an attribute")?;
            kind = KINDS.iter().find(|(n, ..)| *n == word);
            if kind.is_none() {
                let all: Vec<&str> = KINDS.iter().map(|k| k.0).collect();
                return Err(self.c.found(at, &format!("\"{word}\""), &all.join(", ")));
            }
        }
        if let Some((_, t, _)) = kind {
            a.set_type(*t);
        }
        self.c.expect('=', "before an attribute's value")?;
        let at = self.c.mark();
        if !self.c.eat(b'[') {
            self.attribute_value(&mut a, kind.map(|k| k.1))?;
            return Ok(a);
        }
        if self.c.peek() == Some(b']') {
            match kind {
                None => {
                    return Err(self.c.error_help(
                        at,
                        "an empty list needs a kind",
                        "write it like axes: ints = []",
                    ));
                }
                Some((n, _, None)) => {
                    return Err(self.c.found(at, "a list", &format!("one value, as the kind is {n}")));
                }
                Some(_) => {}
            }
        }
        let one = kind.map(|(_, t, one)| one.unwrap_or(*t));
        let mut list = vec![];
        self.list(']', "after a value", |p| {
            let at = p.c.mark();
            let mut v = AttributeProto::default();
            p.attribute_value(&mut v, one)?;
            if v.ref_attr_name.is_some() {
                return Err(p.c.error_at(at, "a list can not have a reference to an attribute"));
            }
            list.push((at, v));
            Ok(())
        })?;
        self.collect(&mut a, list)?;
        Ok(a)
    }
    /// Stores the values of a list in the field of their kind. A list of integers and floats becomes floats.
    fn collect(&mut self, a: &mut AttributeProto, mut list: Vec<(usize, AttributeProto)>) -> Result<()> {
        use AttributeType as T;
        let float = list.iter().any(|(_, v)| v.r#type() == T::Float);
        for (_, v) in &mut list {
            if let (true, Some(i), T::Int) = (float, v.i, v.r#type()) {
                v.f = Some(i as f32);
                v.set_type(T::Float);
            }
        }
        let Some(first) = list.first().map(|(_, v)| v.r#type()) else { return Ok(()) };
        for (at, v) in list {
            if v.r#type() != first {
                return Err(self.c.found(
                    at,
                    kind_name(v.r#type()),
                    &format!("{}, as the first value of the list", kind_name(first)),
                ));
            }
            a.ints.extend(v.i.filter(|_| first == T::Int));
            a.floats.extend(v.f);
            a.strings.extend(v.s);
            a.tensors.extend(v.t);
            a.graphs.extend(v.g);
            a.type_protos.extend(v.tp);
        }
        if let Some((_, t, _)) = KINDS.iter().find(|k| k.2 == Some(first)) {
            a.set_type(*t);
        }
        Ok(())
    }
    /// One value. A float may be written as an integer.
    fn attribute_value(&mut self, a: &mut AttributeProto, expected: Option<AttributeType>) -> Result<()> {
        use AttributeType as T;
        let at = self.c.mark();
        if self.c.eat(b'@') {
            a.ref_attr_name = Some(self.c.name("the name of the function's attribute")?);
            return Ok(());
        }
        let found = if self.at_type() {
            let ty = self.ty()?;
            if matches!(self.c.peek(), Some(b'{' | b'=' | b'"')) || self.c.peek_ident().is_some() {
                let mut t =
                    TensorProto { name: Some(self.c.name_opt()?.unwrap_or_default()), ..Default::default() };
                self.c.eat(b'=');
                self.tensor_data(&mut t, &ty, at)?;
                a.t = Some(t);
                T::Tensor
            } else {
                a.tp = Some(ty);
                T::TypeProto
            }
        } else if self.c.peek_ident().is_some() && !self.c.at_float_word() || self.at_quoted_graph()? {
            a.g = Some(self.graph()?);
            T::Graph
        } else {
            match self.c.literal()? {
                Literal::Str(s) => {
                    a.s = Some(s.into());
                    T::String
                }
                Literal::Int(_) if expected != Some(T::Float) => {
                    self.c.rewind(at);
                    a.i = Some(self.c.int("a value", I64)?);
                    T::Int
                }
                Literal::Int(_) | Literal::Float(_) => {
                    self.c.rewind(at);
                    a.f = Some(self.c.float()?);
                    T::Float
                }
            }
        };
        match expected {
            Some(e) if e != found => {
                Err(self.c.found(at, &format!("a value of kind {}", kind_name(found)), kind_name(e)))
            }
            _ => {
                a.set_type(found);
                Ok(())
            }
        }
    }
    /// True if a graph with a quoted name is next. Unlike a string, it is followed by inputs or an arrow.
    fn at_quoted_graph(&mut self) -> Result<bool> {
        if self.c.peek() != Some(b'"') {
            return Ok(false);
        }
        let at = self.c.mark();
        self.c.quoted()?;
        let hit = matches!(self.c.peek(), Some(b'(' | b'='));
        self.c.rewind(at);
        Ok(hit)
    }
}
