//! Complex numbers and their parts: complex[d...] is float[d..., 2] in memory, the real part first.
//!
//! Most operators on complex numbers only move them ([`super::Elements::Any`]). Shape inference replaces
//! arithmetic ones by operators on the parts, between these two nodes (`passes/graph/expand/complex.rs`).
//! Both nodes are views, which cost nothing.

use super::support::schema::{self, Schema};
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Failure, Result};
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use std::sync::{Arc, LazyLock};

/// Nodes that only passes create.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Complex {
    /// Complex numbers as pairs of floats, along an additional last dimension.
    Parts,
    /// Pairs of floats as complex numbers.
    Join,
}

static SCHEMAS: LazyLock<[Schema; 2]> =
    LazyLock::new(|| ["ComplexParts", "ComplexJoin"].map(schema::internal));

impl Complex {
    /// The operator's schema.
    pub fn schema(self) -> &'static Schema {
        let [parts, join] = &*SCHEMAS;
        if self == Complex::Parts { parts } else { join }
    }
}

impl Operator for Complex {
    const OPS: &'static [&'static str] = &[];
    fn elements(_op: &str) -> Elements {
        Elements::Complex
    }
    fn parse(_: &mut Attrs) -> Result<Self> {
        Err(Failure::bug("complex", "no operator of a model"))
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let t = cx.tensor(0).clone();
        let (elem, dims) = match (self, t.elem.part(), t.elem) {
            (Complex::Parts, Some(part), _) => (part, [t.dims.as_slice(), &[Dim::constant(2)]].concat()),
            (Complex::Join, _, ElemType::F32) => {
                (ElemType::C64, t.dims[..t.rank().saturating_sub(1)].to_vec())
            }
            (Complex::Join, _, ElemType::F64) => {
                (ElemType::C128, t.dims[..t.rank().saturating_sub(1)].to_vec())
            }
            _ => return Err(Failure::bug("complex", format!("{self:?} of {}", t.elem))),
        };
        let sizes = dims.iter().map(|d| d.as_const()).collect::<Option<Vec<i64>>>();
        let known = cx
            .constant(0)
            .zip(sizes)
            .and_then(|(c, d)| ConstData::new(elem, d, c.bytes()))
            .map_or(Known::No, |c| Known::Const(Arc::new(c)));
        cx.set_known(0, elem, dims, known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let (x, y) = (cx.input(0), cx.output(0));
        let (elem, dims) = (cx.elem(y), cx.dims(y));
        cx.outputs[0] = Some(cx.m.view_as(x, elem, dims));
        Ok(())
    }
}
