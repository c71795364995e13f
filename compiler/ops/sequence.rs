//! Sequences and optionals. A graph pass (`passes/graph/sequences`) replaces them by tensors before shape
//! inference: a sequence becomes a table and the data of its members, and the operators become those of
//! `bundle`, or nothing if the members are known. This file has their attributes.
//!
//! | operator | versions |
//! |---|---|
//! | SequenceConstruct, SequenceEmpty, SequenceAt, SequenceInsert, SequenceErase, SequenceLength, ConcatFromSequence | 11 |
//! | SplitToSequence | 11, 24: more types |
//! | SequenceMap | 17 |
//! | Optional | 15, 28: more types |
//! | OptionalGetElement | 15; 18: a value that is not an optional is its own element; 28: more types |
//! | OptionalHasElement | 15; 18: true for a value that is not an optional, false for none; 28: more types |

use super::{AttrValue, Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Failure, Result};
use crate::tensor::{ElemType, ValueType};

/// SplitToSequence, in models and in `bundle`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// May be negative.
    pub axis: i64,
    /// Keeps the axis if no sizes are given, so that members have size 1 there.
    pub keepdims: bool,
}

/// ConcatFromSequence, in models and in `bundle`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concat {
    /// May be negative.
    pub axis: i64,
    /// True if members are stacked along a new axis.
    pub new_axis: bool,
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Sequence {
    Construct,
    Empty(ElemType),
    At,
    Insert,
    Erase,
    Length,
    Split(Split),
    Concat(Concat),
    Map,
    /// The type of the element, if there is none.
    Optional(Option<ValueType>),
    GetElement,
    HasElement,
}

impl Operator for Sequence {
    const OPS: &'static [&'static str] = &[
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceAt",
        "SequenceInsert",
        "SequenceErase",
        "SequenceLength",
        "SplitToSequence",
        "ConcatFromSequence",
        "SequenceMap",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
    ];
    fn parse(a: &mut Attrs) -> Result<Self> {
        Ok(match a.op() {
            "SequenceConstruct" => Sequence::Construct,
            "SequenceEmpty" => Sequence::Empty(a.elem_type_opt("dtype").unwrap_or(ElemType::F32)),
            "SequenceAt" => Sequence::At,
            "SequenceInsert" => Sequence::Insert,
            "SequenceErase" => Sequence::Erase,
            "SequenceLength" => Sequence::Length,
            "SplitToSequence" => {
                Sequence::Split(Split { axis: a.int("axis", 0), keepdims: a.flag("keepdims", true) })
            }
            "ConcatFromSequence" => {
                Sequence::Concat(Concat { axis: a.int_required("axis"), new_axis: a.flag("new_axis", false) })
            }
            "SequenceMap" => {
                a.require(a.subgraphs().iter().any(|s| s == "body"), "SequenceMap needs the graph body")?;
                Sequence::Map
            }
            "Optional" => {
                let ty = match a.get("type") {
                    Some(AttrValue::Type(t)) => Some(t.clone()),
                    Some(_) => return a.error("attribute \"type\" of Optional must be a type").fail(),
                    None => None,
                };
                if ty.is_none() && a.n_inputs() == 0 {
                    return a.error("Optional without an element needs the attribute type").fail();
                }
                Sequence::Optional(ty)
            }
            "OptionalGetElement" => Sequence::GetElement,
            _ => Sequence::HasElement,
        })
    }
    fn infer(&self, _: &mut InferCx) -> Result<()> {
        Err(Failure::bug("infer", "sequences are written as tensors before"))
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        cx.bug("sequences are written as tensors before")
    }
}
