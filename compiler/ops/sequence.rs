//! Sequences and optionals. A graph pass (`passes/graph/sequences`) writes them as tensors before shapes are
//! inferred: a sequence becomes a table and the data of its members, and the operators become those of
//! `bundle`, or nothing where the members are known. Here are their attributes.
//!
//! | operator | versions |
//! |---|---|
//! | SequenceConstruct, SequenceEmpty, SequenceAt, SequenceInsert, SequenceErase, SequenceLength, ConcatFromSequence | 11 |
//! | SplitToSequence | 11, 24: more types |
//! | SequenceMap | 17 |
//! | Optional | 15, 28: more types |
//! | OptionalGetElement | 15; 18: what is no optional is its own element; 28: more types |
//! | OptionalHasElement | 15; 18: so has what is no optional, and nothing has not; 28: more types |

use super::{AttrValue, Attrs, InferCx, LowerCx, Operator};
use crate::diag::{Failure, Result};
use crate::tensor::{ElemType, ValueType};

/// SplitToSequence, of a model and of `bundle`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// May be negative.
    pub axis: i64,
    /// Keep the axis where members have size 1 because no sizes are given.
    pub keepdims: bool,
}

/// ConcatFromSequence, of a model and of `bundle`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concat {
    /// May be negative.
    pub axis: i64,
    /// Members are along an axis of their own.
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
    /// The type of the element where there is none.
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
            "SequenceEmpty" => Sequence::Empty(a.elem_type_opt("dtype")?.unwrap_or(ElemType::F32)),
            "SequenceAt" => Sequence::At,
            "SequenceInsert" => Sequence::Insert,
            "SequenceErase" => Sequence::Erase,
            "SequenceLength" => Sequence::Length,
            "SplitToSequence" => {
                Sequence::Split(Split { axis: a.int("axis", 0)?, keepdims: a.flag("keepdims", true)? })
            }
            "ConcatFromSequence" => Sequence::Concat(Concat {
                axis: a.int_required("axis")?,
                new_axis: a.flag("new_axis", false)?,
            }),
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
