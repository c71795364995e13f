//! Expressions -> vector operations.

use super::floats::Lanes;
use super::{Fit, NOT_INSIDE, Translate, Val};
use crate::codegen::math::{self, Floats};
use crate::codegen::tile::ir::{Bin, Bits, Form, Op, Pred, Un, Value};
use crate::nest::{BinOp, Expr, Reg, Scalar, UnOp, patterns};
use crate::tensor::ElemType;

pub(super) const NO_TYPE: &str = "an element type without vectors";

/// True for elements of 64 bits.
pub(super) fn is_long(t: ElemType) -> bool {
    matches!(t, ElemType::F64 | ElemType::I64 | ElemType::U64)
}

/// Lane width of a type.
pub(super) fn bits_of(t: ElemType) -> Bits {
    if is_long(t) { Bits::B64 } else { Bits::B32 }
}

/// The memory format of a type, if it has vectors.
pub(super) fn form(ty: ElemType) -> Option<Form> {
    Some(match ty {
        ElemType::F64 | ElemType::I64 | ElemType::U64 => Form::B64,
        ElemType::F32 | ElemType::I32 | ElemType::U32 => Form::B32,
        ElemType::F16 => Form::F16,
        ElemType::BF16 | ElemType::U16 => Form::U16,
        ElemType::I16 => Form::I16,
        ElemType::U8 | ElemType::Bool => Form::U8,
        ElemType::I8 => Form::I8,
        _ => return None,
    })
}

/// The operation on lanes of floats.
fn float_op(op: BinOp) -> Option<Bin> {
    Some(match op {
        BinOp::Add => Bin::Add,
        BinOp::Sub => Bin::Sub,
        BinOp::Mul => Bin::Mul,
        BinOp::Div => Bin::Div,
        _ => return None,
    })
}

/// The operation on lanes of integers.
fn int_op(op: BinOp, signed: bool) -> Option<Bin> {
    Some(match (op, signed) {
        (BinOp::Add, _) => Bin::IAdd,
        (BinOp::Sub, _) => Bin::ISub,
        (BinOp::Mul, _) => Bin::IMul,
        (BinOp::Min, true) => Bin::IMin,
        (BinOp::Max, true) => Bin::IMax,
        (BinOp::Min, false) => Bin::UMin,
        (BinOp::Max, false) => Bin::UMax,
        (BinOp::And, _) => Bin::And,
        (BinOp::Or, _) => Bin::Or,
        (BinOp::Xor, _) => Bin::Xor,
        _ => return None,
    })
}

/// The operation on truth values.
fn mask_op(op: BinOp) -> Option<Op> {
    Some(match op {
        BinOp::And => Op::MaskAnd,
        BinOp::Or => Op::MaskOr,
        BinOp::Xor => Op::MaskXor,
        _ => return None,
    })
}

impl Translate<'_> {
    pub(super) fn value(&mut self, e: &Expr) -> Fit<Val> {
        if let Some(v) = self.evaluated(e) {
            return Ok(v);
        }
        if let Some(v) = self.compound(e)? {
            return Ok(v);
        }
        match e {
            Expr::Const(s) => self.constant(*s),
            Expr::Reg(r) => self.regs.get(r).copied().ok_or(NOT_INSIDE),
            Expr::Acc { reg, at, lane: None } => self.acc(*reg, at),
            Expr::Acc { reg, at, lane: Some(lane) } => {
                let v = self.acc(*reg, at)?;
                self.one_lane(v, *lane)
            }
            Expr::Horizontal { op, reg, at } => {
                let v = self.acc(*reg, at)?;
                self.reduced(*op, vec![v])
            }
            Expr::Index(d) if self.b.is_long() => {
                let d = self.substituted(*d);
                self.index(d)
            }
            Expr::Index(_) | Expr::Address(_) => Err("an index as a number"),
            Expr::Load { buf, at } => self.load(*buf, at),
            Expr::Un(op, a) => {
                let a = self.value(a)?;
                self.unary(*op, a)
            }
            Expr::Bin(op, a, b) => self.operation(*op, a, b),
            Expr::Fma(a, b, c) => self.fma(a, b, c),
            Expr::Dot(g, a, b, c) => self.dot(*g, a, b, c),
            Expr::Select(c, a, b) => self.choice(c, a, b),
            Expr::Cast(to, a) => self.converted(*to, a),
            Expr::Let { reg, value, body } => {
                self.bind(*reg, value)?;
                self.value(body)
            }
            Expr::With { sym, value, extent, body } => self.with_index(*sym, value, *extent, body),
            Expr::Text(..) => Err("a text"),
        }
    }
    /// Expressions of several operations that have a shorter form of their own.
    fn compound(&mut self, e: &Expr) -> Fit<Option<Val>> {
        if let Some((x, limit)) = patterns::exp_or_zero(e).filter(|x| x.1 >= math::NORMAL) {
            let x = self.value(x)?;
            let v = math::exp_or_zero(&mut Lanes { b: &mut self.b, bits: Bits::B32 }, x.v, limit);
            return Ok(Some(Val { v, ..x }));
        }
        if let Some(v) = self.reductions(e)? {
            return Ok(Some(v));
        }
        if let Some((base, p)) = patterns::constant_power(e) {
            let x = self.value(base)?;
            let v = math::power(&mut Lanes { b: &mut self.b, bits: bits_of(x.ty) }, x.v, p);
            return Ok(Some(Val { v, ..x }));
        }
        if let Some((x, factor)) = patterns::exact_product(e) {
            let x = self.value(x)?;
            let factor = self.number(factor, x.ty);
            return Ok(Some(Val { v: self.b.bin_of(Bin::Mul, x.v, factor, bits_of(x.ty)), ..x }));
        }
        if let Some((op, x, by)) = patterns::constant_divisor(e) {
            let x = self.value(x)?;
            return self.quotient(op, x, by).map(Some);
        }
        Ok(None)
    }
    fn operation(&mut self, op: BinOp, a: &Expr, b: &Expr) -> Fit<Val> {
        match (a, b) {
            (_, Expr::Const(n)) if matches!(op, BinOp::Shl | BinOp::Shr) && !self.b.is_long() => {
                let a = self.value(a)?;
                return self.shift_by(op, a, n.bits);
            }
            (Expr::Index(x), Expr::Index(y)) if op.is_comparison() => {
                return self.compare_indices(op, *x, *y);
            }
            _ => {}
        }
        if op.is_comparison()
            && let Some(v) = self.compare_with_shared(op, a, b)?
        {
            return Ok(v);
        }
        let known = matches!(b, Expr::Const(c) if !c.to_f64().is_nan());
        let (a, b) = (self.value(a)?, self.value(b)?);
        self.binary(op, a, b, known)
    }
    fn fma(&mut self, a: &Expr, b: &Expr, c: &Expr) -> Fit<Val> {
        let (a, b, c) = (self.value(a)?, self.value(b)?, self.value(c)?);
        if !matches!(a.ty, ElemType::F32 | ElemType::F64) {
            return Err(NO_TYPE);
        }
        Ok(Val { v: self.b.fma_of(a.v, b.v, c.v, bits_of(a.ty)), ..a })
    }
    /// Defines a register: an integer that all lanes share, or one for each lane.
    pub(super) fn bind(&mut self, reg: Reg, value: &Expr) -> Fit<()> {
        if self.is_shared(self.m.regs[reg].ty) {
            return self.define_shared(reg, value);
        }
        let v = self.value(value)?;
        self.regs.insert(reg, v);
        Ok(())
    }
    fn constant(&mut self, s: Scalar) -> Fit<Val> {
        let v = match s.ty {
            ElemType::Bool => self.b.all_lanes(s.bits != 0),
            ElemType::F32 | ElemType::I32 | ElemType::U32 => self.b.bits(s.bits as u32),
            ElemType::U8 | ElemType::U16 => self.b.bits(s.bits as u32),
            ElemType::I8 => self.b.bits(i32::from(s.bits as i8) as u32),
            ElemType::I16 => self.b.bits(i32::from(s.bits as i16) as u32),
            t if is_long(t) && self.b.is_long() => self.b.bits64(s.bits),
            _ => return Err(NO_TYPE),
        };
        Ok(Val { v, ty: s.ty })
    }
    fn unary(&mut self, op: UnOp, a: Val) -> Fit<Val> {
        let bits = bits_of(a.ty);
        let int = matches!(a.ty, ElemType::I32 | ElemType::U32 | ElemType::I64 | ElemType::U64);
        let v = match (op, a.ty) {
            (UnOp::Not, ElemType::Bool) => self.b.not(a.v),
            (UnOp::Bits(t), x)
                if (int || matches!(x, ElemType::F32 | ElemType::F64))
                    && t.compute() == t
                    && t.bits() == x.bits()
                    && form(t).is_some() =>
            {
                return Ok(Val { ty: t, ..a });
            }
            (UnOp::Neg, _) if int => {
                let zero = self.number(0.0, a.ty);
                self.b.bin_of(Bin::ISub, zero, a.v, bits)
            }
            (UnOp::Abs, ElemType::I32) => self.b.un(Un::IAbs, a.v),
            (UnOp::Abs, ElemType::I64) => self.b.long_abs(a.v),
            (UnOp::Abs, ElemType::U32 | ElemType::U64) => a.v,
            (UnOp::Sign, _) if int => {
                let (zero, one) = (self.number(0.0, a.ty), self.number(1.0, a.ty));
                let is_zero = self.b.icmp(Pred::Eq, a.v, zero, bits);
                let sign = self.b.select(is_zero, zero, one, bits);
                if a.ty.is_signed_int() {
                    let (minus, below) = (self.number(-1.0, a.ty), self.b.icmp(Pred::Lt, a.v, zero, bits));
                    self.b.select(below, minus, sign, bits)
                } else {
                    sign
                }
            }
            (UnOp::BitNot, _) if int => {
                let ones = if bits == Bits::B64 { self.b.bits64(u64::MAX) } else { self.b.bits(u32::MAX) };
                self.b.bin_of(Bin::Xor, a.v, ones, bits)
            }
            (_, ElemType::F32 | ElemType::F64) => return self.float_unary(op, a),
            _ => return Err("an operation without vectors"),
        };
        Ok(Val { v, ..a })
    }
    /// A constant of a type in all lanes.
    pub(super) fn number(&mut self, x: f64, ty: ElemType) -> Value {
        let bits = Scalar::from_f64(ty, x).bits;
        if is_long(ty) { self.b.bits64(bits) } else { self.b.bits(bits as u32) }
    }
    fn float_unary(&mut self, op: UnOp, a: Val) -> Fit<Val> {
        let (x, bits) = (a.v, bits_of(a.ty));
        let sign = |t: &mut Self| t.number(-0.0, a.ty);
        let rounded = |t: &mut Self, op: Un| t.b.un_of(op, x, bits);
        let v = match op {
            UnOp::Neg => {
                let sign = sign(self);
                self.b.bin_of(Bin::Xor, x, sign, bits)
            }
            UnOp::Abs => self.magnitude(a),
            UnOp::Floor => rounded(self, Un::Floor),
            UnOp::Ceil => rounded(self, Un::Ceil),
            UnOp::Trunc => rounded(self, Un::Trunc),
            UnOp::Round => rounded(self, Un::Round),
            UnOp::Sqrt => rounded(self, Un::Sqrt),
            UnOp::Recip => {
                let one = self.number(1.0, a.ty);
                self.b.bin_of(Bin::Div, one, x, bits)
            }
            UnOp::Sign => {
                // Zero and NaN are unchanged.
                let (zero, one, minus) =
                    (self.number(0.0, a.ty), self.number(1.0, a.ty), self.number(-1.0, a.ty));
                let (pos, neg) = (self.b.cmp(Pred::Lt, zero, x, bits), self.b.cmp(Pred::Lt, x, zero, bits));
                let r = self.b.select(neg, minus, x, bits);
                self.b.select(pos, one, r, bits)
            }
            UnOp::IsNan => return Ok(Val { v: self.b.cmp(Pred::Unordered, x, x, bits), ty: ElemType::Bool }),
            UnOp::IsInf => {
                let (m, inf) = (self.magnitude(a), self.number(f64::INFINITY, a.ty));
                return Ok(Val { v: self.b.cmp(Pred::Eq, m, inf, bits), ty: ElemType::Bool });
            }
            op if op.is_elementary(a.ty) => math::function(&mut Lanes { b: &mut self.b, bits }, op, a.ty, x),
            _ => return Err("a function without vectors"),
        };
        Ok(Val { v, ..a })
    }
    fn magnitude(&mut self, a: Val) -> Value {
        Lanes { b: &mut self.b, bits: bits_of(a.ty) }.abs(a.v)
    }
    /// `known`: the second operand is a constant other than NaN.
    pub(super) fn binary(&mut self, op: BinOp, a: Val, b: Val, known: bool) -> Fit<Val> {
        if op.is_comparison() {
            return self.compare(op, a, b);
        }
        let bits = bits_of(a.ty);
        let v = match a.ty {
            t if !t.is_float() && matches!(op, BinOp::Div | BinOp::Rem | BinOp::Mod) => {
                return self.division(op, a, b);
            }
            ElemType::F32 | ElemType::F64 => match (float_op(op), op) {
                (Some(op), _) => self.b.bin_of(op, a.v, b.v, bits),
                (None, BinOp::Min) => self.extreme([Bin::Least, Bin::Min], (a.v, b.v), bits, known),
                (None, BinOp::Max) => self.extreme([Bin::Most, Bin::Max], (a.v, b.v), bits, known),
                (None, BinOp::Rem) if a.ty == ElemType::F32 => {
                    math::remainder(&mut Lanes { b: &mut self.b, bits }, a.v, b.v)
                }
                _ => return Err("a function without vectors"),
            },
            ElemType::I32 | ElemType::U32 | ElemType::I64 | ElemType::U64 => {
                if matches!(op, BinOp::Shl | BinOp::Shr) {
                    return self.shift(op, a, b);
                }
                let op =
                    int_op(op, a.ty.is_signed_int()).ok_or("an operation of integers without vectors")?;
                if bits == Bits::B64 { self.b.long(op, a.v, b.v) } else { self.b.bin(op, a.v, b.v) }
            }
            ElemType::Bool => self.b.masks(mask_op(op).ok_or("an operation of truth values")?, a.v, b.v),
            _ => return Err(NO_TYPE),
        };
        Ok(Val { v, ..a })
    }
    /// The minimum or maximum of floats, NaN if either is: by an instruction with this behaviour, or by one
    /// that returns its second operand in that case.
    fn extreme(&mut self, [ieee, plain]: [Bin; 2], (a, b): (Value, Value), bits: Bits, known: bool) -> Value {
        // The initial value of a reduction.
        let neutral = if ieee == Bin::Most { f64::NEG_INFINITY } else { f64::INFINITY };
        if self.b.number(a) == Some(neutral) {
            return b;
        }
        if self.b.has(Op::Bin(ieee, bits)) {
            return self.b.bin_of(ieee, a, b, bits);
        }
        // The first operand is the accumulator of a reduction, whose latency matters.
        let r = self.b.bin_of(plain, b, a, bits);
        if known {
            return r;
        }
        let nan = self.b.cmp(Pred::Unordered, b, b, bits);
        self.b.select(nan, b, r, bits)
    }
    /// A shift by a constant.
    fn shift_by(&mut self, op: BinOp, a: Val, n: u64) -> Fit<Val> {
        let n = n as u8 & 31;
        let op = match (op, a.ty) {
            (BinOp::Shl, ElemType::I32 | ElemType::U32) => Un::Shl(n),
            (_, ElemType::I32) => Un::Sar(n),
            (_, ElemType::U32) => Un::Shr(n),
            _ => return Err(NO_TYPE),
        };
        Ok(if n == 0 { a } else { Val { v: self.b.un(op, a.v), ..a } })
    }
    /// Shift counts are taken modulo the width, while instructions shift everything out.
    fn shift(&mut self, op: BinOp, a: Val, n: Val) -> Fit<Val> {
        let bits = bits_of(a.ty);
        let most = self.number(f64::from(a.ty.bits() - 1), a.ty);
        let n = self.b.bin_of(Bin::And, n.v, most, bits);
        let op = match op {
            BinOp::Shl => Bin::Shl,
            _ if a.ty.is_signed_int() => Bin::Sar,
            _ => Bin::Shr,
        };
        let v = if bits == Bits::B64 { self.b.long(op, a.v, n) } else { self.b.bin(op, a.v, n) };
        Ok(Val { v, ..a })
    }
    pub(super) fn compare(&mut self, op: BinOp, a: Val, b: Val) -> Fit<Val> {
        let (x, y, p) = match op {
            BinOp::Eq => (a.v, b.v, Pred::Eq),
            BinOp::Ne => (a.v, b.v, Pred::Ne),
            BinOp::Lt => (a.v, b.v, Pred::Lt),
            BinOp::Le => (a.v, b.v, Pred::Le),
            BinOp::Gt => (b.v, a.v, Pred::Lt),
            _ => (b.v, a.v, Pred::Le),
        };
        let bits = bits_of(a.ty);
        let v = match a.ty {
            ElemType::F32 | ElemType::F64 => self.b.cmp(p, x, y, bits),
            ElemType::I32 | ElemType::I64 | ElemType::I8 | ElemType::U8 | ElemType::I16 | ElemType::U16 => {
                self.b.icmp(p, x, y, bits)
            }
            ElemType::U32 | ElemType::U64 => self.b.ucmp(p, x, y, bits),
            ElemType::Bool if matches!(p, Pred::Eq | Pred::Ne) => {
                let d = self.b.masks(Op::MaskXor, x, y);
                if p == Pred::Eq { self.b.not(d) } else { d }
            }
            _ => return Err("a comparison without vectors"),
        };
        Ok(Val { v, ty: ElemType::Bool })
    }
}
