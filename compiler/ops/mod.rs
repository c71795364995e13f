//! Operators: one family, one file, one story (spec link and versions table; struct; `parse`; `infer`; `lower`).
//! One line in `table.rs` registers a family. How to add one: README.md beside this file.
//!
//! An operator never sees the graph: it gets types and known values of its operands ([`InferCx`]) and a nest builder
//! ([`LowerCx`]). Which versions exist, how many operands they take, of which types and with which attributes stands
//! in `schema.txt`, generated from the onnx package; it is checked before an operator sees anything.

pub mod attrs;
pub mod cx;
pub mod radix;
pub mod runtime;
pub mod schema;
pub mod scores;
pub mod text;

pub use attrs::{AttrValue, Attrs};
pub use cx::{InferCx, Known, LowerCx, Operand};
pub use schema::Schema;

use crate::diag::Result;

/// What a family implements.
pub trait Operator: Clone + std::fmt::Debug + Sized {
    /// The operators of the family, `domain:Name`; the domain of `ai.onnx` is left out.
    const OPS: &'static [&'static str];
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
        impl Op {
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

/// Operators that only move elements, or only ask for shapes: they take elements of any type that they are declared for,
/// strings and complex numbers too.
pub const MOVERS: &[&str] = &[
    "CenterCropPad",
    "Compress",
    "Concat",
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "OneHot",
    "Pad",
    "RandomNormalLike",
    "RandomUniformLike",
    "Reshape",
    "ReverseSequence",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "TensorScatter",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
    "com.microsoft:ExpandDims",
    "com.microsoft:GatherND",
    "com.microsoft:UnfoldTensor",
];

/// Operators that the importer itself turns into something else.
pub const AT_IMPORT: &[&str] = &["Constant"];

/// The name with its domain, if that is not ONNX's own.
pub fn qualified(domain: &str, name: &str) -> String {
    if domain.is_empty() { name.to_owned() } else { format!("{domain}:{name}") }
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
