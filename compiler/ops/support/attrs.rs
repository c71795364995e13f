//! Attributes of one node, with typed getters that record which attributes were read: an attribute that was
//! not read is an error. A getter whose attribute does not fit keeps the error and returns the default, so
//! that `parse` of an operator is the list of its attributes; its caller reports the first error
//! ([`Attrs::check`]).

use crate::diag::{Error, Origin, Result, codes};
use crate::ops::Schema;
use crate::tensor::{ConstData, ElemType, ValueType};
use std::sync::Arc;

/// A decoded attribute value. Graph attributes are stored separately, in the node's `subgraphs`.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum AttrValue {
    Float(f32),
    Int(i64),
    String(Vec<u8>),
    Tensor(Arc<ConstData>),
    Type(ValueType),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Strings(Vec<Vec<u8>>),
    Tensors(Vec<Arc<ConstData>>),
}

impl AttrValue {
    /// For messages: the value and its kind.
    pub fn describe(&self) -> String {
        let text = |s: &[u8]| format!("\"{}\"", String::from_utf8_lossy(s));
        match self {
            AttrValue::Float(f) => format!("{f:?} (a float)"),
            AttrValue::Int(i) => format!("{i} (an integer)"),
            AttrValue::String(s) => format!("{} (a string)", text(s)),
            AttrValue::Tensor(_) => "a tensor".into(),
            AttrValue::Type(_) => "a type".into(),
            AttrValue::Floats(v) => format!("{v:?} (a list of floats)"),
            AttrValue::Ints(v) => format!("{v:?} (a list of integers)"),
            AttrValue::Strings(v) => {
                format!("[{}] (a list of strings)", v.iter().map(|s| text(s)).collect::<Vec<_>>().join(", "))
            }
            AttrValue::Tensors(_) => "a list of tensors".into(),
        }
    }
}

/// The attributes of one node, with its operator and version.
#[derive(Clone, Debug)]
pub struct Attrs {
    schema: &'static Schema,
    n_inputs: usize,
    n_outputs: usize,
    origin: Origin,
    values: Vec<(String, AttrValue)>,
    read: Vec<String>,
    subgraphs: Vec<String>,
    failure: Option<Error>,
}

impl Attrs {
    /// Attributes of a node with numbers of inputs and outputs; `subgraphs` are the names of graph
    /// attributes.
    pub fn new(
        schema: &'static Schema,
        (n_inputs, n_outputs): (usize, usize),
        origin: Origin,
        values: Vec<(String, AttrValue)>,
        subgraphs: Vec<String>,
    ) -> Self {
        Attrs { schema, n_inputs, n_outputs, origin, values, read: vec![], subgraphs, failure: None }
    }
    /// The attributes that another operator of ai.onnx has in common with this node; `None` if there is no
    /// such version. They count as read.
    pub fn of(&mut self, name: &str, opset: i64) -> Option<Attrs> {
        let schema = crate::ops::find("", name, opset).ok()?;
        let values: Vec<_> =
            self.values.iter().filter(|(n, _)| schema.attributes.iter().any(|a| a.0 == n)).cloned().collect();
        self.read.extend(values.iter().map(|v| v.0.clone()));
        Some(Attrs {
            schema,
            n_inputs: 1,
            n_outputs: 1,
            origin: self.origin.clone(),
            values,
            read: vec![],
            subgraphs: vec![],
            failure: None,
        })
    }
    /// Operator set domain, "" for ai.onnx.
    pub fn domain(&self) -> &'static str {
        self.schema.domain
    }
    /// Operator name.
    pub fn op(&self) -> &'static str {
        self.schema.name
    }
    /// Version of the operator in force.
    pub fn since(&self) -> i64 {
        self.schema.since
    }
    /// True if the version in force has the attribute.
    pub fn knows(&self, name: &str) -> bool {
        self.schema.attributes.iter().any(|(n, ..)| *n == name)
    }
    /// Names and kinds of all attributes of the version in force.
    pub fn known(&self) -> Vec<(&'static str, &'static str)> {
        self.schema.attributes.iter().map(|a| (a.0, a.1)).collect()
    }
    /// Number of given inputs, without trailing omitted ones.
    pub fn n_inputs(&self) -> usize {
        self.n_inputs
    }
    /// Number of outputs given.
    pub fn n_outputs(&self) -> usize {
        self.n_outputs
    }
    /// The node.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
    /// Names of graph attributes.
    pub fn subgraphs(&self) -> &[String] {
        &self.subgraphs
    }
    /// The raw value, recorded as read.
    pub fn get(&mut self, name: &str) -> Option<&AttrValue> {
        if !self.read.iter().any(|r| r == name) {
            self.read.push(name.to_owned());
        }
        self.values.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
    /// Keeps an error, if it is the first one, until the attributes are read ([`Attrs::check`]).
    pub fn fail(&mut self, e: Error) {
        self.failure.get_or_insert(e);
    }
    /// The first error of a getter, if there is one, else what was parsed.
    pub fn check<T>(&mut self, parsed: Result<T>) -> Result<T> {
        self.failure.take().map_or(parsed, Error::fail)
    }
    fn wrong(&mut self, name: &str, expected: &str) {
        let shown = format!("{} version {}", self.op(), self.since());
        let (title, found) = match self.values.iter().find(|(n, _)| n == name) {
            Some((_, v)) => (format!("attribute \"{name}\" of {} does not fit", self.op()), v.describe()),
            None => (format!("{shown} needs the attribute {name}"), "no value".into()),
        };
        let e = self.error(title).found_expected(found, expected);
        self.fail(e.help(format!("the specification of {shown} says what the attribute may be")));
    }
    /// An optional value: `read` tells what it expected of one that does not fit.
    fn value<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&AttrValue) -> std::result::Result<T, &'static str>,
    ) -> Option<T> {
        read(self.get(name)?).map_err(|expected| self.wrong(name, expected)).ok()
    }
    /// An optional integer.
    pub fn int_opt(&mut self, name: &str) -> Option<i64> {
        self.value(name, |v| if let AttrValue::Int(i) = v { Ok(*i) } else { Err("an integer") })
    }
    /// An integer with a default.
    pub fn int(&mut self, name: &str, default: i64) -> i64 {
        self.int_opt(name).unwrap_or(default)
    }
    /// A required integer.
    pub fn int_required(&mut self, name: &str) -> i64 {
        self.int_opt(name).unwrap_or_else(|| {
            self.wrong(name, "an integer (the attribute is required)");
            0
        })
    }
    /// A 0/1 flag with a default.
    pub fn flag(&mut self, name: &str, default: bool) -> bool {
        self.int(name, i64::from(default)) != 0
    }
    /// An optional float.
    pub fn float_opt(&mut self, name: &str) -> Option<f32> {
        self.value(name, |v| if let AttrValue::Float(f) = v { Ok(*f) } else { Err("a float") })
    }
    /// A float with a default.
    pub fn float(&mut self, name: &str, default: f32) -> f32 {
        self.float_opt(name).unwrap_or(default)
    }
    /// Optional integers.
    pub fn ints_opt(&mut self, name: &str) -> Option<Vec<i64>> {
        self.value(name, |v| match v {
            AttrValue::Ints(v) => Ok(v.clone()),
            AttrValue::Floats(v) if v.is_empty() => Ok(vec![]),
            _ => Err("a list of integers"),
        })
    }
    /// Integers; none if the attribute is absent.
    pub fn ints(&mut self, name: &str) -> Vec<i64> {
        self.ints_opt(name).unwrap_or_default()
    }
    /// Optional floats.
    pub fn floats_opt(&mut self, name: &str) -> Option<Vec<f32>> {
        self.value(name, |v| match v {
            AttrValue::Floats(v) => Ok(v.clone()),
            AttrValue::Ints(v) if v.is_empty() => Ok(vec![]),
            _ => Err("a list of floats"),
        })
    }
    /// Floats; none if the attribute is absent.
    pub fn floats(&mut self, name: &str) -> Vec<f32> {
        self.floats_opt(name).unwrap_or_default()
    }
    /// An optional string (UTF-8).
    pub fn string_opt(&mut self, name: &str) -> Option<String> {
        self.value(name, |v| match v {
            AttrValue::String(s) => String::from_utf8(s.clone()).map_err(|_| "a string in UTF-8"),
            _ => Err("a string"),
        })
    }
    /// Optional strings (UTF-8).
    pub fn strings_opt(&mut self, name: &str) -> Option<Vec<String>> {
        self.value(name, |v| match v {
            AttrValue::Strings(v) => {
                let strings = v.iter().map(|s| String::from_utf8(s.clone()));
                strings.collect::<std::result::Result<_, _>>().map_err(|_| "strings in UTF-8")
            }
            AttrValue::Ints(v) if v.is_empty() => Ok(vec![]),
            AttrValue::Floats(v) if v.is_empty() => Ok(vec![]),
            _ => Err("a list of strings"),
        })
    }
    /// Strings; none if the attribute is absent.
    pub fn strings(&mut self, name: &str) -> Vec<String> {
        self.strings_opt(name).unwrap_or_default()
    }
    /// What a string from a closed list stands for. The attribute is required if the default is not in the
    /// list.
    pub fn choice<T: Clone>(&mut self, name: &str, default: &str, choices: &[(&str, T)]) -> T {
        let s = self.string_opt(name).unwrap_or_else(|| default.to_owned());
        let found = choices.iter().find(|c| c.0 == s).unwrap_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|c| c.0).collect();
            self.wrong(name, &format!("one of {}", names.join(", ")));
            &choices[0]
        });
        found.1.clone()
    }
    /// As [`Attrs::choice`], by the position in the list.
    pub fn numbered<T: Clone>(&mut self, name: &str, default: i64, choices: &[(&str, T)]) -> T {
        let n = self.int(name, default);
        let found = usize::try_from(n).ok().and_then(|n| choices.get(n)).unwrap_or_else(|| {
            self.fail(self.error(format!("{name} is {n}, not 0 to {}", choices.len() - 1)));
            &choices[0]
        });
        found.1.clone()
    }
    /// An optional tensor.
    pub fn tensor_opt(&mut self, name: &str) -> Option<Arc<ConstData>> {
        self.value(name, |v| if let AttrValue::Tensor(t) = v { Ok(t.clone()) } else { Err("a tensor") })
    }
    /// An element type by its number.
    pub fn elem_type_opt(&mut self, name: &str) -> Option<ElemType> {
        let n = self.int_opt(name)?;
        let t = i32::try_from(n).ok().and_then(ElemType::from_onnx);
        if t.is_none() {
            self.wrong(name, "the number of an element type");
        }
        t
    }
    /// Accepts an attribute without effect (e.g. `consumed_inputs` of the first versions).
    pub fn ignore(&mut self, name: &str) {
        self.get(name);
    }
    /// An error about an attribute.
    pub fn error(&self, title: impl Into<String>) -> Error {
        Error::new(codes::OP_ATTRIBUTE, title).at(&self.origin)
    }
    /// Keeps an error about the value of an attribute unless `holds`.
    pub fn expect(&mut self, name: &str, found: impl std::fmt::Display, holds: bool, expected: &str) {
        if !holds {
            let e = self.error(format!("attribute \"{name}\" is {found}"));
            self.fail(e.found_expected(found.to_string(), expected));
        }
    }
    /// Fails unless `holds`; `otherwise` describes the error.
    pub fn require(&self, holds: bool, otherwise: &str) -> Result<()> {
        if holds { Ok(()) } else { self.error(otherwise).fail() }
    }
    /// Fails on attributes that this version does not have, on missing required ones, and on attributes that
    /// the operator did not read.
    pub fn finish(&self) -> Result<()> {
        let fail = |title: String, found: String, expected: String| {
            let e = Error::new(codes::OP_ATTRIBUTE, title).at(&self.origin).found_expected(found, expected);
            e.help("the model may have been written for another operator set version").fail()
        };
        let shown = format!("{} version {}", self.op(), self.since());
        let left: Vec<&str> = self
            .values
            .iter()
            .map(|(n, _)| n)
            .chain(&self.subgraphs)
            .map(String::as_str)
            .filter(|n| !self.knows(n))
            .collect();
        if !left.is_empty() {
            let known: Vec<&str> = self.schema.attributes.iter().map(|a| a.0).collect();
            let known = if known.is_empty() { "no attributes".into() } else { known.join(", ") };
            return fail(format!("{shown} has no attribute {}", left.join(", ")), left.join(", "), known);
        }
        let graph =
            |n: &&String| self.schema.attributes.iter().any(|(a, kind, _)| a == *n && *kind != "graph");
        if let Some(name) = self.subgraphs.iter().find(graph) {
            let kind = self.schema.attributes.iter().find(|a| a.0 == name).map_or("", |a| a.1);
            return Error::new(
                codes::OP_ATTRIBUTE,
                format!("attribute \"{name}\" of {} does not fit", self.op()),
            )
            .at(&self.origin)
            .found_expected("a graph", kind)
            .fail();
        }
        let missing: Vec<&str> = self
            .schema
            .attributes
            .iter()
            .filter(|(n, kind, required)| {
                *required && *kind != "graph" && !self.values.iter().any(|(v, _)| v == n)
            })
            .map(|a| a.0)
            .collect();
        if !missing.is_empty() {
            return fail(
                format!("{shown} needs the attribute {}", missing.join(", ")),
                "no value".into(),
                missing.join(", "),
            );
        }
        let unread: Vec<&str> = self
            .values
            .iter()
            .map(|(n, _)| n.as_str())
            .filter(|n| !self.read.iter().any(|r| r == n))
            .collect();
        if unread.is_empty() {
            return Ok(());
        }
        let e = Error::new(
            codes::OP_ATTRIBUTE,
            format!("the attribute {} of {} is not supported", unread.join(", "), self.op()),
        )
        .at(&self.origin);
        e.found_expected(unread.join(", "), "no value").help("remove it if its value is the default").fail()
    }
}
