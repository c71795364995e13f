//! Elementwise operators of two or more operands under broadcasting.
//!
//! | versions | broadcasting |
//! |---|---|
//! | Add, Sub, Mul, Div, Pow, And, Or, Xor, Equal, Less, Greater, PRelu before 7 | only with `broadcast = 1`: B's shape is aligned at `axis`, or at the end |
//! | from 7 | numpy (Broadcasting.md) |
//! | Max, Min, Sum, Mean before 8 | none: equal shapes |
//!
//! Integers: Div truncates, Mod has the divisor's sign (with `fmod = 1` the dividend's), arithmetic wraps.
//! Mod of floats requires `fmod = 1` before 28. BitShift 28 accepts signed types. The slope of PRelu before 7
//! holds one value, or one per channel.

mod power;

use super::support::power::power as float_power;
use super::{Attrs, Elements, InferCx, Known, LowerCx, Operator};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder};
use crate::ops::from_end;
use crate::sym::{Answer, Dim, SymTable};
use crate::tensor::ElemType;

/// The function, and the broadcasting of old versions.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// The function.
    pub fun: Fun,
    /// Before version 7: `broadcast` and `axis` (for PRelu the axis of the slope is that of the channels).
    pub legacy: Option<(bool, Option<i64>)>,
}

/// The functions.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Fun {
    Plain(BinOp),
    Mean,
    PRelu,
    /// Integer shift.
    Shift(BinOp),
}

const PLAIN: &[(&str, BinOp)] = &[
    ("Add", BinOp::Add),
    ("Sub", BinOp::Sub),
    ("Mul", BinOp::Mul),
    ("Div", BinOp::Div),
    ("Pow", BinOp::Pow),
    ("And", BinOp::And),
    ("Or", BinOp::Or),
    ("Xor", BinOp::Xor),
    ("BitwiseAnd", BinOp::And),
    ("BitwiseOr", BinOp::Or),
    ("BitwiseXor", BinOp::Xor),
    ("Equal", BinOp::Eq),
    ("Less", BinOp::Lt),
    ("LessOrEqual", BinOp::Le),
    ("Greater", BinOp::Gt),
    ("GreaterOrEqual", BinOp::Ge),
    ("Max", BinOp::Max),
    ("Min", BinOp::Min),
    ("Sum", BinOp::Add),
];

/// Most operands that one kernel reads, because code generation takes time quadratic in the length of an
/// expression.
const OPERANDS: usize = 64;

impl Operator for Binary {
    const OPS: &'static [&'static str] = &[
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "And",
        "Or",
        "Xor",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Equal",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "Max",
        "Min",
        "Sum",
        "Mean",
        "Mod",
        "PRelu",
        "BitShift",
    ];
    fn elements(op: &str) -> Elements {
        if op == "Equal" { Elements::Strings } else { Elements::Numbers }
    }
    fn parse(a: &mut Attrs) -> Result<Self> {
        a.ignore("consumed_inputs");
        let legacy = match a.op() {
            "PRelu" if a.since() < 7 => Some((true, Some(1))),
            _ if a.knows("broadcast") => Some((a.flag("broadcast", false), a.int_opt("axis"))),
            _ => None,
        };
        let fun = match a.op() {
            "Mean" => Fun::Mean,
            "PRelu" => Fun::PRelu,
            "Mod" => Fun::Plain(if a.flag("fmod", false) { BinOp::Rem } else { BinOp::Mod }),
            "BitShift" => {
                Fun::Shift(a.choice("direction", "", &[("LEFT", BinOp::Shl), ("RIGHT", BinOp::Shr)]))
            }
            op => match PLAIN.iter().find(|(n, _)| *n == op) {
                Some((_, f)) => Fun::Plain(*f),
                None => return a.error("not a binary operator").fail(),
            },
        };
        Ok(Binary { fun, legacy })
    }
    fn infer(&self, cx: &mut InferCx) -> Result<()> {
        let elem = match self.fun {
            Fun::Plain(f) if f.is_comparison() => ElemType::Bool,
            _ => cx.tensor(0).elem,
        };
        if self.fun == Fun::Plain(BinOp::Mod) && elem.is_float() && cx.since < 28 {
            return cx.error(codes::OP_TYPE, "Mod of floating-point numbers needs fmod = 1").fail();
        }
        let shapes: Vec<Vec<Dim>> =
            (0..cx.inputs.len()).map(|i| self.aligned(i, cx)).collect::<Result<_>>()?;
        let refs: Vec<&[Dim]> = shapes.iter().map(|s| s.as_slice()).collect();
        let shape = cx.broadcast(&refs)?;
        if self.fun == Fun::PRelu && shape.len() != shapes[0].len() {
            return cx.error(codes::OP_SHAPE, "the slope must broadcast to the input").fail();
        }
        let known = self.known(cx);
        cx.set_known(0, elem, shape, known);
        Ok(())
    }
    fn lower(&self, cx: &mut LowerCx) -> Result<()> {
        let out = cx.output(0);
        let rank = cx.dims(out).len();
        let mut inputs: Vec<Buf> = (0..cx.inputs.len()).map(|i| self.legacy_view(i, rank, cx)).collect();
        let n = inputs.len() as f64;
        self.join(&mut inputs, cx);
        let types: Vec<ElemType> = inputs.iter().map(|b| cx.elem(*b).compute()).collect();
        let ty = types[0];
        let fun = self.fun;
        // A single number is loaded as a constant.
        let one = cx.constant(1).is_some_and(|c| c.count() == 1);
        if fun == Fun::Plain(BinOp::Pow) && types.iter().all(|t| t.is_int()) && !one {
            power::elementwise(cx, inputs[0], inputs[1]);
            return Ok(());
        }
        cx.map(out, |k, at| {
            let mut v: Vec<Expr> = inputs.iter().map(|b| k.load_broadcast(*b, at)).collect();
            match fun {
                Fun::Plain(BinOp::Mod) if ty.is_float() => float_mod(k, ty, v.remove(0), v.remove(0)),
                Fun::Plain(BinOp::Pow) => pow(k, v.remove(0), types[0], v.remove(0), types[1]),
                Fun::Plain(f) => {
                    v.into_iter().reduce(|a, b| Expr::bin(f, a, b)).unwrap_or(Expr::num(ty, 0.0))
                }
                Fun::Mean => {
                    let sum = v.into_iter().reduce(|a, b| a + b).unwrap_or(Expr::num(ty, 0.0));
                    if n == 1.0 { sum } else { sum / Expr::num(ty, n) }
                }
                Fun::PRelu => {
                    let x = v.remove(0);
                    let slope = v.remove(0);
                    k.shared(x, |_, x| {
                        Expr::select(
                            Expr::bin(BinOp::Lt, x.clone(), Expr::num(ty, 0.0)),
                            x.clone() * slope,
                            x,
                        )
                    })
                }
                Fun::Shift(op) => shift(k, op, ty, v.remove(0), v.remove(0)),
            }
        });
        Ok(())
    }
}

/// A shift by at least the width or by a negative amount yields -1 for a right shift of a negative number,
/// else 0.
fn shift(k: &mut KernelBuilder, op: BinOp, ty: ElemType, x: Expr, n: Expr) -> Expr {
    let signed = ty.is_signed_int();
    let zero = || Expr::int(ty, 0);
    let lt = |a: Expr, b: Expr| Expr::bin(BinOp::Lt, a, b);
    k.shared(x, |k, x| {
        k.shared(n, |_, n| {
            let mut inside = lt(n.clone(), Expr::int(ty, i64::from(ty.bits())));
            if signed {
                inside = inside.and(Expr::bin(BinOp::Ge, n.clone(), zero()));
            }
            let fill = if signed && op == BinOp::Shr {
                Expr::select(lt(x.clone(), zero()), Expr::int(ty, -1), zero())
            } else {
                zero()
            };
            Expr::select(inside, Expr::bin(op, x, n), fill)
        })
    })
}

/// a - floor(a / b) * b from the exact remainder: the result, including zero, has the divisor's sign.
fn float_mod(k: &mut KernelBuilder, ty: ElemType, a: Expr, b: Expr) -> Expr {
    let zero = || Expr::num(ty, 0.0);
    let negative = |e: Expr| Expr::bin(BinOp::Lt, e, zero());
    k.shared(b, |k, b| {
        let rest = Expr::bin(BinOp::Rem, a, b.clone());
        k.shared(rest, |_, r| {
            let other_sign = Expr::bin(BinOp::Ne, negative(r.clone()), negative(b.clone()));
            let moved = Expr::select(other_sign, r.clone() + b.clone(), r.clone());
            let none = Expr::select(negative(b), Expr::num(ty, -0.0), zero());
            Expr::select(Expr::bin(BinOp::Eq, r, zero()), none, moved)
        })
    })
}

/// The exponent may have another type. The power is computed in the base's type, or in f64 if only the
/// exponent is a float.
fn pow(k: &mut KernelBuilder, x: Expr, tx: ElemType, y: Expr, ty: ElemType) -> Expr {
    match (tx.is_float(), ty.is_float()) {
        (false, false) if let Expr::Const(n) = y => power::constant(k, tx, x, n),
        (true, _) => {
            let exponent = match y {
                Expr::Const(c) => Expr::num(tx, c.to_f64()),
                y => Expr::cast(ty, tx, y),
            };
            float_power(k, tx, x, exponent)
        }
        (false, false) => Expr::bin(BinOp::Pow, x, Expr::cast(ty, tx, y)),
        (false, true) => Expr::cast(
            ElemType::F64,
            tx,
            Expr::bin(BinOp::Pow, Expr::cast(tx, ElemType::F64, x), Expr::cast(ty, ElemType::F64, y)),
        ),
    }
}

impl Binary {
    /// Combines the first of many operands (Sum, Mean, Max, Min) in separate kernels, in operand order.
    fn join(&self, inputs: &mut Vec<Buf>, cx: &mut LowerCx) {
        let out = cx.output(0);
        while inputs.len() > OPERANDS {
            let rest = inputs.split_off(OPERANDS);
            let ty = cx.elem(inputs[0]).compute();
            let dims = cx.dims(out);
            let part = cx.m.temp(cx.m.bufs[out].name.clone(), ty, dims);
            let op = match self.fun {
                Fun::Plain(op) => op,
                _ => BinOp::Add,
            };
            cx.map(part, |k, at| {
                let loads: Vec<Expr> = inputs.iter().map(|b| k.load_broadcast(*b, at)).collect();
                loads.into_iter().reduce(|a, b| Expr::bin(op, a, b)).unwrap_or(Expr::num(ty, 0.0))
            });
            *inputs = std::iter::once(part).chain(rest).collect();
        }
    }
    /// The shape of operand `i`, with trailing dimensions as implied by `axis` of old versions.
    fn aligned(&self, i: usize, cx: &InferCx) -> Result<Vec<Dim>> {
        let mut dims = cx.tensor(i).dims.clone();
        if let (1, Some((on, axis))) = (i, self.legacy) {
            let a = &cx.tensor(0).dims;
            if !on && a.len() != dims.len() {
                return cx.error(codes::OP_SHAPE, "the shapes differ and `broadcast` is not set").fail();
            }
            if let Some(axis) = axis.filter(|_| on && !self.single_slope(&dims)) {
                let axis = cx.axis(axis, a.len().max(1))?;
                if axis + dims.len() > a.len() {
                    return cx
                        .error(codes::OP_SHAPE, format!("the second operand does not fit at axis {axis}"))
                        .fail();
                }
                dims.resize(a.len() - axis, Dim::constant(1));
            }
        }
        Ok(dims)
    }
    /// PRelu with a single slope for all channels, whose shape needs no alignment.
    fn single_slope(&self, dims: &[Dim]) -> bool {
        self.fun == Fun::PRelu && Dim::product(dims.iter().copied()).as_const() == Some(1)
    }
    fn legacy_view(&self, i: usize, rank: usize, cx: &mut LowerCx) -> Buf {
        let b = cx.input(i);
        match self.legacy {
            Some((true, Some(axis))) if i == 1 && !self.single_slope(&cx.dims(b)) => {
                let axis = from_end(axis, rank as i64) as usize;
                let mut dims = cx.dims(b);
                dims.resize(rank - axis, Dim::constant(1));
                cx.m.view(b, dims)
            }
            _ => b,
        }
    }
    fn known(&self, cx: &InferCx) -> Known {
        let Fun::Plain(op) = self.fun else { return Known::No };
        let values: Option<Vec<Vec<Dim>>> = (0..cx.inputs.len()).map(|i| cx.dims_value(i)).collect();
        let is_int = cx.inputs.iter().flatten().all(|o| {
            o.ty.as_tensor().is_some_and(|t| matches!(t.elem, ElemType::I64 | ElemType::I32 | ElemType::Bool))
        });
        let (Some(values), true) = (values, is_int) else { return Known::No };
        let n = values.iter().map(Vec::len).max().unwrap_or(0);
        if values.iter().any(|v| v.len() != n && v.len() != 1)
            || cx.inputs.iter().flatten().any(|o| o.ty.as_tensor().is_some_and(|t| t.rank() > 1))
        {
            return Known::No;
        }
        let at = |v: &Vec<Dim>, i: usize| if v.len() == 1 { v[0] } else { v[i] };
        let fold = |i: usize| {
            let mut it = values.iter().map(|v| at(v, i));
            let first = it.next()?;
            it.try_fold(first, |a, b| fold_dims(cx.syms, op, a, b))
        };
        (0..n).map(fold).collect::<Option<Vec<_>>>().map_or(Known::No, Known::Dims)
    }
}

/// An integer operation on dims, if the result is certain.
fn fold_dims(syms: &SymTable, op: BinOp, a: Dim, b: Dim) -> Option<Dim> {
    let truth = |x: Answer| match x {
        Answer::Yes => Some(Dim::constant(1)),
        Answer::No => Some(Dim::constant(0)),
        Answer::Unknown => None,
    };
    match op {
        BinOp::Add => Some(a + b),
        BinOp::Sub => Some(a - b),
        BinOp::Mul => Some(a * b),
        BinOp::Min => Some(a.min(b)),
        BinOp::Max => Some(a.max(b)),
        BinOp::Div if b.as_const() != Some(0) && syms.is_nonneg(a) && syms.is_pos(b) => Some(a.floor_div(b)),
        // Integer quotients are rounded towards zero.
        BinOp::Div
            if b.as_const().is_none() && syms.is_pos(b)
                || b.as_const().is_some_and(|b| b > 0) && a.as_const().is_none() =>
        {
            Some(a.max(0).floor_div(b) - (-a).max(0).floor_div(b))
        }
        BinOp::Mod if syms.is_pos(b) => Some(a.modulo(b)),
        // A divisor of zero has no result.
        BinOp::Mod if a == b => Some(Dim::constant(0)),
        BinOp::Div => a.as_const().zip(b.as_const()).and_then(|(a, b)| a.checked_div(b)).map(Dim::constant),
        BinOp::Eq => truth(syms.eq(a, b)),
        BinOp::Lt => truth(syms.lt(a, b)),
        BinOp::Le => truth(syms.le(a, b)),
        BinOp::Gt => truth(syms.lt(b, a)),
        BinOp::Ge => truth(syms.le(b, a)),
        BinOp::And => {
            Some(a * b).filter(|_| a.as_const().is_some_and(|v| v < 2) && b.as_const().is_some_and(|v| v < 2))
        }
        _ => None,
    }
}
