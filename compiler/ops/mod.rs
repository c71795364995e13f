//! Operators: one family, one file, one story (spec link and versions table; struct; `parse`; `infer`;
//! `lower`). One line in `table.rs` registers a family. How to add one: README.md beside this file.
//!
//! An operator never sees the graph: it gets types and known values of its operands ([`InferCx`]) and a nest
//! builder ([`LowerCx`]). Which versions exist, how many operands they take, of which types and with which
//! attributes is in `schema.txt`, generated from the onnx package; it is checked before an operator sees
//! anything.

pub mod support;

pub use support::attrs::{AttrValue, Attrs};
pub use support::cx::{InferCx, Known, LowerCx, Operand};
pub use support::schema::{self, Schema};

use crate::diag::Result;
use crate::tensor::ElemType;

/// Which elements an operator takes, of those types that it is declared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// It computes with numbers.
    Numbers,
    /// Strings besides.
    Strings,
    /// Complex numbers besides.
    Complex,
    /// Any: it only moves elements, or asks for shapes.
    Any,
}

impl Elements {
    /// Whether elements of a type are among them.
    pub fn take(self, t: ElemType) -> bool {
        match self {
            Elements::Any => true,
            Elements::Strings => !t.is_complex(),
            Elements::Complex => t != ElemType::Str,
            Elements::Numbers => t != ElemType::Str && !t.is_complex(),
        }
    }
}

/// What a family implements.
pub trait Operator: Clone + std::fmt::Debug + Sized {
    /// The operators of the family, `domain:Name`; the domain of `ai.onnx` is left out.
    const OPS: &'static [&'static str];
    /// What an operator of the family takes besides numbers; the name is as in [`Operator::OPS`].
    fn elements(_op: &str) -> Elements {
        Elements::Numbers
    }
    /// Attributes of the version in force ([`Attrs::since`]). An attribute nobody read is an error.
    fn parse(a: &mut Attrs) -> Result<Self>;
    /// Types, shapes and known values of the outputs.
    fn infer(&self, cx: &mut InferCx) -> Result<()>;
    /// Loop nests that compute the outputs.
    fn lower(&self, cx: &mut LowerCx) -> Result<()>;
}

macro_rules! ops {
    ($($variant:ident = $module:ident;)*) => {
        $(pub mod $module;)*
        /// A node's operator with its attributes.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub enum Op { $($variant($module::$variant)),* }
        /// Every family: its file, its operators.
        pub const FAMILIES: &[(&str, &[&str])] = &[$((stringify!($module), $module::$variant::OPS)),*];
        /// Parses an operator whose [`find`] succeeded.
        pub fn parse(a: &mut Attrs) -> Result<Op> {
            let name = qualified(a.domain(), a.op());
            $(if $module::$variant::OPS.contains(&name.as_str()) {
                return Ok(Op::$variant($module::$variant::parse(a)?));
            })*
            Err(crate::diag::Failure::bug("ops::parse", format!("{name} is not in the table")))
        }
        /// What an operator of the table takes besides numbers.
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
                match self { $(Op::$variant(o) => o.infer(cx)),* }
            }
            /// See [`Operator::lower`].
            pub fn lower(&self, cx: &mut LowerCx) -> Result<()> {
                match self { $(Op::$variant(o) => o.lower(cx)),* }
            }
        }
    };
}

include!("table.rs");

/// Operators that the importer itself turns into something else.
pub const AT_IMPORT: &[&str] = &["Constant"];

/// The name with its domain, if that is not ONNX's own.
pub fn qualified(domain: &str, name: &str) -> String {
    if domain.is_empty() { name.to_owned() } else { format!("{domain}:{name}") }
}

/// True if both are one domain: ONNX's own has two names.
pub fn is_domain(a: &str, b: &str) -> bool {
    let short = |d: &'_ str| if d == "ai.onnx" { String::new() } else { d.to_owned() };
    short(a) == short(b)
}

/// The name with its domain as messages show it: `Relu`, `com.microsoft.Gelu`.
pub fn dotted(domain: &str, name: &str) -> String {
    if domain.is_empty() { name.to_owned() } else { format!("{domain}.{name}") }
}

/// The schema in force for an operator at an operator set version; why not, otherwise.
pub fn find(domain: &str, name: &str, opset: i64) -> std::result::Result<&'static Schema, Unknown> {
    let q = qualified(domain, name);
    if !FAMILIES.iter().any(|(_, f)| f.contains(&q.as_str())) {
        return Err(Unknown::Operator);
    }
    schema::versions(domain, name).iter().rev().find(|s| s.since <= opset).ok_or(Unknown::Version)
}

/// Why an operator is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No such operator.
    Operator,
    /// It does not exist yet at this operator set version.
    Version,
}
