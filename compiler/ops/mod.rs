//! Operators: one file per family (spec link and versions table; struct; `parse`; `infer`; `lower`). One line
//! in `table.rs` registers a family. README.md in this folder explains how to add one.
//!
//! An operator never sees the graph: it gets types and known values of its operands ([`InferCx`]) and a nest
//! builder ([`LowerCx`]). Versions, numbers and types of operands, and attributes are in `schema.txt`, which
//! is generated from the onnx package. They are checked before an operator is called.

pub mod support;

pub use support::attrs::{AttrValue, Attrs};
pub use support::cx::{InferCx, Known, LowerCx, Operand};
pub use support::schema::{self, Schema};

use crate::diag::Result;
use crate::tensor::ElemType;

/// The elements that an operator accepts, within the types that it is declared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Numbers only: it computes with them.
    Numbers,
    /// Numbers and strings.
    Strings,
    /// Numbers and complex numbers.
    Complex,
    /// All elements: it only moves them, or uses shapes only.
    Any,
}

impl Elements {
    /// True if elements of a type are accepted.
    pub fn take(self, t: ElemType) -> bool {
        match self {
            Elements::Any => true,
            Elements::Strings => !t.is_complex(),
            Elements::Complex => t != ElemType::Str,
            Elements::Numbers => t != ElemType::Str && !t.is_complex(),
        }
    }
}

/// The interface of a family.
pub trait Operator: Clone + std::fmt::Debug + Sized {
    /// The operators of the family, `domain:Name`; the domain `ai.onnx` is omitted.
    const OPS: &'static [&'static str];
    /// The elements that an operator of the family accepts; the name is as in [`Operator::OPS`].
    fn elements(_op: &str) -> Elements {
        Elements::Numbers
    }
    /// Reads the attributes of the version in force ([`Attrs::since`]). An attribute that is not read is an
    /// error. If a getter failed, its error is reported in place of the result.
    fn parse(a: &mut Attrs) -> Result<Self>;
    /// Infers types, shapes and known values of the outputs.
    fn infer(&self, cx: &mut InferCx) -> Result<()>;
    /// Emits loop nests that compute the outputs.
    fn lower(&self, cx: &mut LowerCx) -> Result<()>;
}

macro_rules! ops {
    ($($variant:ident = $module:ident;)*) => {
        $(pub mod $module;)*
        /// A node's operator with its attributes.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub enum Op { $($variant($module::$variant)),* }
        /// Every family with its file and operators.
        pub const FAMILIES: &[(&str, &[&str])] = &[$((stringify!($module), $module::$variant::OPS)),*];
        /// Parses an operator that [`find`] has found.
        pub fn parse(a: &mut Attrs) -> Result<Op> {
            let name = qualified(a.domain(), a.op());
            $(if $module::$variant::OPS.contains(&name.as_str()) {
                let parsed = $module::$variant::parse(a).map(Op::$variant);
                return a.check(parsed);
            })*
            Err(crate::diag::Failure::bug("ops::parse", format!("{name} is not in the table")))
        }
        /// The elements that an operator of the table accepts.
        pub fn elements(name: &str) -> Elements {
            $(if $module::$variant::OPS.contains(&name) {
                return $module::$variant::elements(name);
            })*
            Elements::Numbers
        }
        impl Op {
            /// See [`Operator::elements`].
            pub fn elements(&self, name: &str) -> Elements {
                match self { $(Op::$variant(_) => $module::$variant::elements(name)),* }
            }
            /// See [`Operator::infer`].
            pub fn infer(&self, cx: &mut InferCx) -> Result<()> {
                let inferred = match self { $(Op::$variant(o) => o.infer(cx)),* };
                cx.check(inferred)
            }
            /// See [`Operator::lower`].
            pub fn lower(&self, cx: &mut LowerCx) -> Result<()> {
                match self { $(Op::$variant(o) => o.lower(cx)),* }
            }
        }
    };
}

include!("table.rs");

/// Parses an operator, and fails on attributes that it does not have or has not read.
pub fn read(mut a: Attrs) -> Result<Op> {
    let op = parse(&mut a)?;
    a.finish()?;
    Ok(op)
}

/// Operators that the importer replaces itself.
pub const AT_IMPORT: &[&str] = &["Constant"];

/// A position among `n`, which counts from the end if it is negative. It is not checked.
pub fn from_end(position: i64, n: i64) -> i64 {
    if position < 0 { position + n } else { position }
}

/// The name with its domain, unless the domain is ONNX's own.
pub fn qualified(domain: &str, name: &str) -> String {
    if domain.is_empty() { name.to_owned() } else { format!("{domain}:{name}") }
}

/// True if both are the same domain: ONNX's own has two names.
pub fn is_domain(a: &str, b: &str) -> bool {
    let short = |d: &'_ str| if d == "ai.onnx" { String::new() } else { d.to_owned() };
    short(a) == short(b)
}

/// The name with its domain for messages: `Relu`, `com.microsoft.Gelu`.
pub fn dotted(domain: &str, name: &str) -> String {
    if domain.is_empty() { name.to_owned() } else { format!("{domain}.{name}") }
}

/// The schema in force for an operator at an operator set version, or the reason why there is none.
pub fn find(domain: &str, name: &str, opset: i64) -> std::result::Result<&'static Schema, Unknown> {
    let q = qualified(domain, name);
    if !FAMILIES.iter().any(|(_, f)| f.contains(&q.as_str())) {
        return Err(Unknown::Operator);
    }
    schema::versions(domain, name).iter().rev().find(|s| s.since <= opset).ok_or(Unknown::Version)
}

/// The reason why an operator is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No such operator.
    Operator,
    /// It does not exist yet at this operator set version.
    Version,
}
