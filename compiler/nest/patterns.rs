//! Expressions with a shorter form than their operations one by one, and divisions that may fail.

use super::{BinOp, Expr, Module, Reg, UnOp};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Base and exponent of a power with a constant exponent for which a few operations do.
pub fn constant_power(e: &Expr) -> Option<(&Expr, f64)> {
    let Expr::Bin(BinOp::Pow, base, exponent) = e else { return None };
    match **exponent {
        Expr::Const(c)
            if matches!(c.ty, ElemType::F32 | ElemType::F64)
                && [-1.0, -0.5, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0].contains(&c.to_f64()) =>
        {
            Some((base, c.to_f64()))
        }
        _ => None,
    }
}

/// Dividend and factor of a quotient of floats by a power of two: the product with the reciprocal is the same
/// number, since both are the rounded value of one quotient. Neither divisor nor reciprocal is subnormal: the
/// reciprocal of a smaller divisor is beyond the type.
pub fn exact_product(e: &Expr) -> Option<(&Expr, f64)> {
    let Expr::Bin(BinOp::Div, a, by) = e else { return None };
    let Expr::Const(c) = **by else { return None };
    let least = match c.ty {
        ElemType::F32 => f64::from(f32::MIN_POSITIVE),
        ElemType::F64 => f64::MIN_POSITIVE,
        _ => return None,
    };
    let by = c.to_f64();
    let mantissa = (1u64 << (f64::MANTISSA_DIGITS - 1)) - 1;
    let exact = by.to_bits() & mantissa == 0 && by.abs() >= least && by.recip().abs() >= least;
    exact.then(|| (&**a, by.recip()))
}

/// Operand and limit of `select(x < limit, 0, exp(x))` in f32: e^x that is 0 below a limit.
pub fn exp_or_zero(e: &Expr) -> Option<(&Expr, f64)> {
    let Expr::Select(below, zero, exp) = e else { return None };
    let (Expr::Bin(BinOp::Lt, x, limit), Expr::Un(UnOp::Exp, operand)) = (&**below, &**exp) else {
        return None;
    };
    let (Expr::Const(limit), Expr::Const(zero)) = (&**limit, &**zero) else { return None };
    let zero = zero.ty == ElemType::F32 && zero.bits == 0;
    (x == operand && zero && limit.ty == ElemType::F32).then(|| (&**x, limit.to_f64()))
}

/// True for a quotient or remainder of integers whose divisor may be 0, which is an error.
pub fn may_divide_by_zero(m: &Module, e: &Expr) -> bool {
    let Expr::Bin(BinOp::Div | BinOp::Rem | BinOp::Mod, _, by) = e else { return false };
    match &**by {
        Expr::Const(c) => !c.ty.is_float() && c.bits == 0,
        by => !m.type_of(by).is_float(),
    }
}

/// A quotient of integers by a number, or its rest, that products with the number's reciprocal give exactly:
/// what is divided by what. Numbers whose reciprocal is exact or of no use (0, 1, -1) are none of these, nor
/// are large ones.
pub fn constant_divisor(e: &Expr) -> Option<(BinOp, &Expr, i64)> {
    let Expr::Bin(op @ (BinOp::Div | BinOp::Rem | BinOp::Mod), a, by) = e else { return None };
    let Expr::Const(c) = **by else { return None };
    let limit = match c.ty {
        ElemType::I64 | ElemType::U64 => 1i64 << 50,
        ElemType::I32 | ElemType::U32 | ElemType::I16 | ElemType::U16 | ElemType::I8 | ElemType::U8 => {
            1 << 21
        }
        _ => return None,
    };
    let by = if c.ty == ElemType::U64 { i64::try_from(c.bits).ok()? } else { c.to_i64() };
    ((2..limit).contains(&by.checked_abs()?)).then_some((*op, &**a, by))
}

/// Reductions of accumulators, one in each lane: the lane's variable, the operation, and the accumulators by
/// lane.
pub type ReductionsByLane<'e> = (Sym, BinOp, Vec<(Reg, &'e [Dim])>);

/// `select(l == 0, reduce(a0), select(l == 1, reduce(a1), ... reduce(an)))`.
pub fn reductions_by_lane(e: &Expr) -> Option<ReductionsByLane<'_>> {
    let (mut lane, mut op, mut accs, mut rest) = (None, None, vec![], Some(e));
    while let Some(e) = rest {
        let reduction = match e {
            Expr::Select(cond, first, others) => {
                let Expr::Bin(BinOp::Eq, a, b) = &**cond else { return None };
                let (Expr::Index(l), Expr::Index(n)) = (&**a, &**b) else { return None };
                let l = l.as_sym()?;
                if n.as_const() != i64::try_from(accs.len()).ok() || *lane.get_or_insert(l) != l {
                    return None;
                }
                rest = Some(others);
                &**first
            }
            e => {
                rest = None;
                e
            }
        };
        let Expr::Horizontal { op: o, reg, at } = reduction else { return None };
        if *op.get_or_insert(*o) != *o {
            return None;
        }
        accs.push((*reg, at.as_slice()));
    }
    Some((lane?, op?, accs))
}

/// An integer that is positive exactly if a condition on indices holds.
pub fn margin(cond: &Expr) -> Option<Dim> {
    let Expr::Bin(op, a, b) = cond else { return None };
    if let (BinOp::And | BinOp::Or, Some(a), Some(b)) = (op, margin(a), margin(b)) {
        return Some(if *op == BinOp::And { a.min(b) } else { a.max(b) });
    }
    let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b) else { return None };
    let (a, b) = (*a, *b);
    match op {
        BinOp::Lt => Some(b - a),
        BinOp::Le => Some(b - a + 1),
        BinOp::Gt => Some(a - b),
        BinOp::Ge => Some(a - b + 1),
        BinOp::Eq => Some((a - b).min(b - a) + 1),
        BinOp::Ne => Some((a - b).max(b - a)),
        _ => None,
    }
}

/// True for an entry of a constant table: only the value of the index tells which.
pub fn is_lookup(m: &Module, e: &Expr) -> bool {
    let Expr::With { sym, body, .. } = e else { return false };
    matches!(&**body, Expr::Load { buf, at } if m.is_constant(*buf) && at[..] == [Dim::sym(*sym)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::Scalar;

    #[test]
    fn quotients_by_powers_of_two_are_products() {
        let factor = |ty, by: f64| {
            let by = Expr::Const(Scalar::from_f64(ty, by));
            let e = Expr::bin(BinOp::Div, Expr::num(ty, 3.0), by);
            exact_product(&e).map(|p| p.1)
        };
        let (short, long) = (f64::from(f32::MIN_POSITIVE), f64::MIN_POSITIVE);
        for (ty, least) in [(ElemType::F32, short), (ElemType::F64, long)] {
            for by in [1.0, 4.0, -0.5, least, 1.0 / least] {
                assert_eq!(factor(ty, by), Some(1.0 / by), "{by}");
            }
            for by in [0.0, 3.0, 6.0, 0.1, least / 2.0, least / 8.0, 2.0 / least, f64::INFINITY, f64::NAN] {
                assert_eq!(factor(ty, by), None, "{by}");
            }
        }
        assert_eq!(factor(ElemType::I32, 4.0), None);
    }
}
