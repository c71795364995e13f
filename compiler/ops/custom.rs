//! Custom operators: nodes computed by a user's function (`--custom domain:Op=symbol`,
//! docs/custom-operators.md).
//!
//! They have no specification and no versions: any attributes except tensors and graphs, any operands that
//! are tensors of numbers. Types and shapes of the results are those that the model declares, or those of an
//! input that the user names. The driver calls the function; nothing is fused across it.

use super::{AttrValue, Attrs, Elements, InferCx, LowerCx, Operator, schema};
use crate::diag::{Error, Origin, Result, codes};
use crate::nest::foreign::{self, Attribute, Function};
use crate::tensor::{ElemType, TensorType, ValueType};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

/// A `--custom` argument: an operator and the function that computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Domain, as the model has it; "" for ai.onnx.
    pub domain: String,
    /// Operator.
    pub op: String,
    /// The function.
    pub symbol: String,
    /// The input whose type and shape apply to results that the model does not declare.
    pub like: Option<usize>,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Custom {
    declaration: Declaration,
    attributes: Vec<(String, Attribute)>,
    /// The declared type of each output, over sizes that are known at entry.
    declared: Vec<Option<TensorType>>,
}

impl Custom {
    /// A node with these attributes.
    pub fn new(
        declaration: &Declaration,
        attributes: &[(String, AttrValue)],
        declared: Vec<Option<TensorType>>,
        origin: &Origin,
    ) -> Result<Custom> {
        let attributes = attributes.iter().map(|(n, v)| attribute(n, v, origin)).collect::<Result<_>>()?;
        Ok(Custom { declaration: declaration.clone(), attributes, declared })
    }
}

fn attribute(name: &str, v: &AttrValue, origin: &Origin) -> Result<(String, Attribute)> {
    let value = match v.clone() {
        AttrValue::Float(v) => Attribute::Float(v),
        AttrValue::Int(v) => Attribute::Int(v),
        AttrValue::String(v) => Attribute::String(v),
        AttrValue::Floats(v) => Attribute::Floats(v),
        AttrValue::Ints(v) => Attribute::Ints(v),
        AttrValue::Strings(v) => Attribute::Strings(v),
        AttrValue::Tensor(_) | AttrValue::Tensors(_) | AttrValue::Type(_) => {
            let title = format!("attribute \"{name}\" of a custom operator has no form in C");
            return Error::new(codes::OP_ATTRIBUTE, title)
                .at(origin)
                .found_expected(v.describe(), "numbers, strings or lists of them")
                .help("make a tensor an input of the node, with an initializer")
                .fail();
        }
    };
    Ok((name.to_owned(), value))
}

/// True if elements of the type are stored as in C.
fn plain(t: ElemType) -> bool {
    t != ElemType::Str && !t.is_complex() && !t.is_packed()
}

/// The schema of a custom operator: any operands.
pub fn schema_of(domain: &str, name: &str) -> &'static schema::Schema {
    type Known = HashMap<(String, String), &'static schema::Schema>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let leak = |s: &str| -> &'static str { Box::leak(s.to_owned().into_boxed_str()) };
    let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    // Schemas live as long as the program, and each name is created once.
    known.entry((domain.to_owned(), name.to_owned())).or_insert_with(|| {
        Box::leak(Box::new(schema::Schema { domain: leak(domain), ..schema::internal(leak(name)) }))
    })
}

impl Operator for Custom {
    // Not part of the table: the importer creates them from the user's declarations.
    const OPS: &'static [&'static str] = &[];
    fn elements(_: &str) -> Elements {
        // It reports unsupported types itself.
        Elements::Any
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        Err(crate::diag::Failure::bug("ops::custom", format!("{} is not in the table", a.op())))
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        for (i, o) in cx.inputs.iter().enumerate() {
            let Some(o) = o else { continue };
            if !matches!(&o.ty, ValueType::Tensor(t) if plain(t.elem)) {
                let what = format!("input {i} of a custom operator is no tensor of numbers");
                let e = cx.error(codes::OP_TYPE, what);
                return e
                    .found_expected(
                        o.ty.display(cx.syms),
                        "a tensor of numbers of 8 bits or more, or of bool",
                    )
                    .help("convert it before the node, with Cast for instance")
                    .fail();
            }
        }
        let like = match self.declaration.like {
            Some(i) if cx.has(i) => Some(cx.tensor(i).clone()),
            _ => None,
        };
        for k in 0..cx.outputs.len() {
            if cx.names.get(k).is_none_or(|n| n.is_empty()) {
                continue;
            }
            let Some(t) = self.declared.get(k).cloned().flatten().or_else(|| like.clone()) else {
                let d = &self.declaration;
                let title = format!("the shape of \"{}\" is not known", cx.names[k]);
                return cx
                    .error(codes::OP_SHAPE, title)
                    .found_expected(
                        "a result of a custom operator without a declared shape",
                        "value_info with a type and a size, over those of the model's inputs, for each \
                            dimension",
                    )
                    .help(format!(
                        "declare it in the model, or say which input it is like: --custom {}:{}={},like=0",
                        d.domain, d.op, d.symbol
                    ))
                    .fail();
            };
            if !plain(t.elem) {
                let e = cx.error(
                    codes::OP_TYPE,
                    format!("output {k} of a custom operator has the type {}", t.elem),
                );
                return e
                    .found_expected(t.elem.to_string(), "numbers of 8 bits or more, or bool")
                    .help("declare another type, and convert behind the node")
                    .fail();
            }
            let dims = t.dims.iter().map(|d| cx.syms.resolve(*d)).collect::<Vec<_>>();
            cx.set(k, t.elem, dims);
        }
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let number = cx.m.customs.len() as u32;
        let given = |list: &[Option<crate::nest::Buf>]| list.iter().map(Option::is_some).collect::<Vec<_>>();
        cx.m.customs.push(foreign::Custom {
            symbol: self.declaration.symbol.clone(),
            origin: cx.origin.clone(),
            inputs: given(cx.inputs),
            outputs: given(&cx.outputs),
            attributes: self.attributes.clone(),
        });
        let from = cx.inputs.iter().copied().flatten().collect();
        let to = cx.outputs.iter().copied().flatten().collect();
        cx.m.call_foreign(Function::Custom(number), from, to);
        Ok(())
    }
}
