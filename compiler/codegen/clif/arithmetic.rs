//! Arithmetic, comparisons and selects. Integers use Cranelift's instructions, with checked divisions; floats
//! follow the NaN rules of the nest IR.

use super::convert::scalar_type;
use super::expr::Val;
use super::func::Emit;
use crate::diag::Result;
use crate::nest::{BinOp, DotKind, Scalar, Status, UnOp};
use crate::tensor::ElemType;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I16X8, I32, I32X4, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};

impl Emit<'_, '_> {
    pub fn fma(&mut self, a: Val, b: Val, c: Val) -> Val {
        let v = if self.has_fma() {
            self.b.ins().fma(a.v, b.v, c.v)
        } else {
            let p = self.b.ins().fmul(a.v, b.v);
            self.b.ins().fadd(p, c.v)
        };
        Val { v, ..a }
    }
    /// A dot product. Words are computed in vectors or scalars; the other kinds, whose instructions only
    /// tiles use, are computed element by element in scalars.
    pub(super) fn dot(&mut self, g: DotKind, a: Val, b: Val, c: Val) -> Val {
        match (g, g.signs()) {
            (DotKind::LongNarrowBytes | DotKind::LongHalves, _) => {
                let mut sum = c;
                for shift in [0, 32] {
                    let mut part = |x: Val| {
                        let v = self.b.ins().ushr_imm_u(x.v, shift);
                        Val { v: self.b.ins().ireduce(I32, v), ..x }
                    };
                    let (x, y) = (part(a), part(b));
                    sum = if g == DotKind::LongHalves {
                        self.dot_of_halves(x, y, sum)
                    } else {
                        self.dot_of_narrow_bytes(x, y, sum)
                    };
                }
                sum
            }
            (DotKind::NarrowBytes, _) => self.dot_of_narrow_bytes(a, b, c),
            (_, Some((first, second))) => self.dot_of_bytes((a, first), (b, second), c, g.size()),
            (DotKind::PairedBytes, _) => self.dot_of_paired_bytes(a, b, c),
            (DotKind::Words, _) => self.dot_of_words(a, b, c),
            (DotKind::WordsByBytes, _) => self.dot_of_words_by_bytes(a, b, c),
            _ => self.dot_of_halves(a, b, c),
        }
    }
    /// A dot product of `size` bytes; each operand comes with whether its bytes are signed.
    fn dot_of_bytes(&mut self, a: (Val, bool), b: (Val, bool), c: Val, size: i64) -> Val {
        let mut sum = c.v;
        let upper = 8 * (size - 1);
        for i in 0..size {
            let mut part = |(v, signed): (Val, bool)| {
                if signed {
                    let v = self.b.ins().ishl_imm_u(v.v, upper - 8 * i);
                    self.b.ins().sshr_imm_u(v, upper)
                } else {
                    let v = self.b.ins().ushr_imm_u(v.v, 8 * i);
                    self.b.ins().band_imm_u(v, 255)
                }
            };
            let (x, y) = (part(a), part(b));
            let p = self.b.ins().imul(x, y);
            let p = if size == 8 { self.b.ins().ireduce(I32, p) } else { p };
            sum = self.b.ins().iadd(sum, p);
        }
        Val { v: sum, ..c }
    }
    fn dot_of_narrow_bytes(&mut self, a: Val, b: Val, c: Val) -> Val {
        let mut sum = c.v;
        for i in [0, 1] {
            let mut product = |i: i64| {
                let mut part = |x: Val| {
                    let x = self.b.ins().ishl_imm_u(x.v, 24 - 8 * i);
                    self.b.ins().sshr_imm_u(x, 24)
                };
                let (x, y) = (part(a), part(b));
                self.b.ins().imul(x, y)
            };
            let (x, y) = (product(i), product(i + 2));
            let x = self.b.ins().iadd(x, y);
            let x = self.b.ins().ishl_imm_u(x, 16);
            let x = self.b.ins().sshr_imm_u(x, 16);
            sum = self.b.ins().iadd(sum, x);
        }
        Val { v: sum, ..c }
    }
    fn dot_of_paired_bytes(&mut self, a: Val, b: Val, c: Val) -> Val {
        let mut halves = [c.v; 2];
        for (h, half) in halves.iter_mut().enumerate() {
            let mut sum = None;
            for i in [2 * h as i64, 2 * h as i64 + 1] {
                let x = self.b.ins().ushr_imm_u(a.v, 8 * i);
                let x = self.b.ins().band_imm_u(x, 255);
                let y = self.b.ins().ishl_imm_u(b.v, 24 - 8 * i);
                let y = self.b.ins().sshr_imm_u(y, 24);
                let p = self.b.ins().imul(x, y);
                sum = Some(sum.map_or(p, |s| self.b.ins().iadd(s, p)));
            }
            let (least, most) = (i64::from(i16::MIN), i64::from(i16::MAX));
            let (least, most) = (self.b.ins().iconst(I32, least), self.b.ins().iconst(I32, most));
            let sum = sum.unwrap_or(c.v);
            let sum = self.b.ins().smax(sum, least);
            let sum = self.b.ins().smin(sum, most);
            let before = self.b.ins().ushr_imm_u(c.v, 16 * h as i64);
            let sum = self.b.ins().iadd(before, sum);
            *half = self.b.ins().band_imm_u(sum, 0xffff);
        }
        let upper = self.b.ins().ishl_imm_u(halves[1], 16);
        Val { v: self.b.ins().bor(halves[0], upper), ..c }
    }
    fn dot_of_words(&mut self, a: Val, b: Val, c: Val) -> Val {
        let vec = a.vec || b.vec || c.vec;
        let (a, b, c) = (self.widen(a, vec), self.widen(b, vec), self.widen(c, vec));
        if !vec {
            let mut sum = c.v;
            for upper in [false, true] {
                let mut part = |x: Val| {
                    let x = if upper { x.v } else { self.b.ins().ishl_imm_u(x.v, 16) };
                    self.b.ins().sshr_imm_u(x, 16)
                };
                let (x, y) = (part(a), part(b));
                let p = self.b.ins().imul(x, y);
                sum = self.b.ins().iadd(sum, p);
            }
            return Val { v: sum, ..c };
        }
        let (x, y) = (self.bits_as(I16X8, a.v), self.bits_as(I16X8, b.v));
        // The pattern that Cranelift matches to one instruction of x86-64.
        let (x0, y0) = (self.b.ins().swiden_low(x), self.b.ins().swiden_low(y));
        let low = self.b.ins().imul(x0, y0);
        let (x1, y1) = (self.b.ins().swiden_high(x), self.b.ins().swiden_high(y));
        let high = self.b.ins().imul(x1, y1);
        let products = self.b.ins().iadd_pairwise(low, high);
        Val { v: self.b.ins().iadd(products, c.v), ..c }
    }
    /// The bytes with even and those with odd numbers are extended in place.
    fn dot_of_words_by_bytes(&mut self, a: Val, b: Val, c: Val) -> Val {
        let vec = b.vec || c.vec;
        let b = self.widen(b, vec);
        [false, true].into_iter().fold(c, |sum, odd| {
            let words = self.once_per_block((a.v, odd, vec), |s| {
                let v = if odd { s.b.ins().ushr_imm_u(a.v, 32) } else { a.v };
                let v = s.b.ins().ireduce(I32, v);
                if vec { s.b.ins().splat(I32X4, v) } else { v }
            });
            let bytes = self.once_per_block((b.v, odd, vec), |s| s.words_of_bytes(b, odd));
            self.dot_of_words(Val { v: words, ty: ElemType::I32, vec }, Val { v: bytes, ..b }, sum)
        })
    }
    /// The even or the odd bytes of each lane as words.
    fn words_of_bytes(&mut self, b: Val, odd: bool) -> Value {
        if b.vec {
            let x = self.bits_as(I16X8, b.v);
            let x = if odd { x } else { self.b.ins().ishl_imm_u(x, 8) };
            let x = self.b.ins().sshr_imm_u(x, 8);
            return self.bits_as(I32X4, x);
        }
        let mut byte = |i: i64| {
            let x = self.b.ins().ishl_imm_u(b.v, 24 - 8 * i);
            self.b.ins().sshr_imm_u(x, 24)
        };
        let (low, high) = (byte(i64::from(odd)), byte(2 + i64::from(odd)));
        let low = self.b.ins().band_imm_u(low, 0xffff);
        let high = self.b.ins().ishl_imm_u(high, 16);
        self.b.ins().bor(low, high)
    }
    /// The even or odd factors of a dot product in a value, as a vector if the last of `of` is true, which
    /// several of a block share: Cranelift does not optimise tiles.
    fn once_per_block(&mut self, of: (Value, bool, bool), make: impl FnOnce(&mut Self) -> Value) -> Value {
        let Some(block) = self.b.current_block() else { return make(self) };
        if let Some(v) = self.factors.get(&(block, of)) {
            return *v;
        }
        let v = make(self);
        self.factors.insert((block, of), v);
        v
    }
    /// A dot product of 16-bit floats. The upper halves come first, as in the instruction.
    fn dot_of_halves(&mut self, a: Val, b: Val, c: Val) -> Val {
        let upper = |s: &mut Self, x: Val| {
            let v = s.b.ins().band_imm_u(x.v, 0xffff_0000);
            Val { v: s.b.ins().bitcast(F32, MemFlagsData::new(), v), ..c }
        };
        let lower = |s: &mut Self, x: Val| {
            let v = s.b.ins().ishl_imm_u(x.v, 16);
            Val { v: s.b.ins().bitcast(F32, MemFlagsData::new(), v), ..c }
        };
        let (x, y) = (upper(self, a), upper(self, b));
        let sum = self.fma(x, y, c);
        let (x, y) = (lower(self, a), lower(self, b));
        self.fma(x, y, sum)
    }
    pub(super) fn has_fma(&self) -> bool {
        self.isa.triple().architecture != target_lexicon::Architecture::X86_64
            || self.isa.isa_flags().iter().any(|f| f.name == "has_fma" && f.value_string() == "true")
    }
    /// Lane-wise select; the condition is a mask.
    pub fn blend(&mut self, c: Val, a: Val, b: Val) -> Val {
        if !c.vec {
            let (a, b) = self.level(a, b);
            return Val { v: self.b.ins().select(c.v, a.v, b.v), ..a };
        }
        let mask = if a.ty == ElemType::F32 { self.bits_as(F32X4, c.v) } else { c.v };
        Val { v: self.b.ins().bitselect(mask, a.v, b.v), ..a }
    }
    /// Compares with "less than" in every case, so that x86 lowers a blend of the same operands to a minimum
    /// or maximum.
    pub fn float_cmp(&mut self, cc: FloatCC, a: Val, b: Val) -> Val {
        if cc == FloatCC::UnorderedOrLessThan && a.vec {
            // aarch64 has no lowering of this comparison for vectors.
            let c = self.b.ins().fcmp(FloatCC::LessThanOrEqual, b.v, a.v);
            return Val { v: self.b.ins().bnot(c), ty: ElemType::Bool, vec: true };
        }
        let (cc, a, b) = match cc {
            FloatCC::GreaterThan => (FloatCC::LessThan, b, a),
            FloatCC::GreaterThanOrEqual => (FloatCC::LessThanOrEqual, b, a),
            _ => (cc, a, b),
        };
        Val { v: self.b.ins().fcmp(cc, a.v, b.v), ty: ElemType::Bool, vec: a.vec }
    }
    pub fn binary(&mut self, op: BinOp, a: Val, b: Val) -> Result<Val> {
        let ty = a.ty;
        if ty == ElemType::Str {
            return self.compare_texts(op, a, b);
        }
        if op.is_comparison() {
            return Ok(self.compare(op, a, b));
        }
        if ty.is_float() {
            return self.float_binary(op, a, b);
        }
        let v = match op {
            BinOp::Add => self.b.ins().iadd(a.v, b.v),
            BinOp::Sub => self.b.ins().isub(a.v, b.v),
            BinOp::Mul if matches!(scalar_type(ty), I8) => {
                // Not every target has 8-bit multiplication.
                let (x, y) = (self.b.ins().uextend(I32, a.v), self.b.ins().uextend(I32, b.v));
                let p = self.b.ins().imul(x, y);
                self.b.ins().ireduce(I8, p)
            }
            BinOp::Mul => self.b.ins().imul(a.v, b.v),
            BinOp::And => self.b.ins().band(a.v, b.v),
            BinOp::Or => self.b.ins().bor(a.v, b.v),
            BinOp::Xor => self.b.ins().bxor(a.v, b.v),
            BinOp::Min | BinOp::Max => {
                let c = self.compare(if op == BinOp::Min { BinOp::Lt } else { BinOp::Gt }, a, b);
                return Ok(self.blend(c, a, b));
            }
            BinOp::Shl => self.b.ins().ishl(a.v, b.v),
            BinOp::Shr if ty.is_signed_int() => self.b.ins().sshr(a.v, b.v),
            BinOp::Shr => self.b.ins().ushr(a.v, b.v),
            BinOp::Div | BinOp::Rem | BinOp::Mod => return self.int_division(op, a, b),
            BinOp::Pow => return self.int_power(a, b),
            BinOp::Atan2 => return self.bug("atan2 of integers"),
            _ => return self.bug("comparison"),
        };
        Ok(Val { v, ..a })
    }
    fn int_division(&mut self, op: BinOp, a: Val, b: Val) -> Result<Val> {
        let t = scalar_type(a.ty);
        let wide = if matches!(t, I64) { I64 } else { I32 };
        let signed = a.ty.is_signed_int();
        let ext = |e: &mut Self, v: Value| {
            if t == wide {
                v
            } else if signed {
                e.b.ins().sextend(wide, v)
            } else {
                e.b.ins().uextend(wide, v)
            }
        };
        let (x, y) = (ext(self, a.v), ext(self, b.v));
        let ok = self.b.ins().icmp_imm_s(IntCC::NotEqual, y, 0);
        self.require(ok, Status::Value);
        let v = if signed {
            // The smallest value divided by -1 would trap, so it is negated instead.
            let minus = self.b.ins().icmp_imm_s(IntCC::Equal, y, -1);
            let one = self.b.ins().iconst(wide, 1);
            let safe = self.b.ins().select(minus, one, y);
            let q = self.b.ins().sdiv(x, safe);
            let n = self.b.ins().ineg(x);
            let q = self.b.ins().select(minus, n, q);
            match op {
                BinOp::Div => q,
                _ => {
                    let p = self.b.ins().imul(q, y);
                    let r = self.b.ins().isub(x, p);
                    if op == BinOp::Rem {
                        r
                    } else {
                        let s = self.b.ins().bxor(r, y);
                        let differs = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, s, 0);
                        let rest = self.b.ins().icmp_imm_s(IntCC::NotEqual, r, 0);
                        let fix = self.b.ins().band(differs, rest);
                        let moved = self.b.ins().iadd(r, y);
                        self.b.ins().select(fix, moved, r)
                    }
                }
            }
        } else if op == BinOp::Div {
            self.b.ins().udiv(x, y)
        } else {
            self.b.ins().urem(x, y)
        };
        let v = if t == wide { v } else { self.b.ins().ireduce(t, v) };
        Ok(Val { v, ..a })
    }
    /// Power through f64, which is exact for small powers, as in numpy. A negative exponent gives 0 unless
    /// the base is 1 or -1.
    fn int_power(&mut self, a: Val, b: Val) -> Result<Val> {
        let (x, y) = (self.cast(ElemType::F64, a)?, self.cast(ElemType::F64, b)?);
        let p = self.call_imported("pow", &[x.v, y.v]);
        self.cast(a.ty, Val { v: p, ty: ElemType::F64, vec: false })
    }
    pub fn compare(&mut self, op: BinOp, a: Val, b: Val) -> Val {
        if a.ty.is_float() {
            let cc = match op {
                BinOp::Eq => FloatCC::Equal,
                BinOp::Ne => FloatCC::NotEqual,
                BinOp::Lt => FloatCC::LessThan,
                BinOp::Le => FloatCC::LessThanOrEqual,
                BinOp::Gt => FloatCC::GreaterThan,
                _ => FloatCC::GreaterThanOrEqual,
            };
            return self.float_cmp(cc, a, b);
        }
        let signed = a.ty.is_signed_int();
        let cc = match (op, signed) {
            (BinOp::Eq, _) => IntCC::Equal,
            (BinOp::Ne, _) => IntCC::NotEqual,
            (BinOp::Lt, true) => IntCC::SignedLessThan,
            (BinOp::Le, true) => IntCC::SignedLessThanOrEqual,
            (BinOp::Gt, true) => IntCC::SignedGreaterThan,
            (_, true) => IntCC::SignedGreaterThanOrEqual,
            (BinOp::Lt, false) => IntCC::UnsignedLessThan,
            (BinOp::Le, false) => IntCC::UnsignedLessThanOrEqual,
            (BinOp::Gt, false) => IntCC::UnsignedGreaterThan,
            (_, false) => IntCC::UnsignedGreaterThanOrEqual,
        };
        Val { v: self.b.ins().icmp(cc, a.v, b.v), ty: ElemType::Bool, vec: a.vec }
    }
    fn float_binary(&mut self, op: BinOp, a: Val, b: Val) -> Result<Val> {
        let v = match op {
            BinOp::Add => self.b.ins().fadd(a.v, b.v),
            BinOp::Sub => self.b.ins().fsub(a.v, b.v),
            BinOp::Mul => self.b.ins().fmul(a.v, b.v),
            BinOp::Div => self.b.ins().fdiv(a.v, b.v),
            BinOp::Min | BinOp::Max => {
                // The rule of the x86 instruction (the second operand unless the first is strictly smaller),
                // then NaN of the first.
                let cc = if op == BinOp::Min { FloatCC::LessThan } else { FloatCC::GreaterThan };
                let c = self.float_cmp(cc, a, b);
                let m = self.blend(c, a, b);
                let nan = self.float_cmp(FloatCC::Unordered, a, a);
                return Ok(self.blend(nan, a, m));
            }
            BinOp::Pow | BinOp::Atan2 | BinOp::Rem | BinOp::Mod => {
                if a.vec {
                    return self.bug("no vector form");
                }
                let name = match op {
                    BinOp::Pow => "pow",
                    BinOp::Atan2 => "atan2",
                    _ => "fmod",
                };
                let (x, y) = (self.cast(ElemType::F64, a)?, self.cast(ElemType::F64, b)?);
                let r = self.call_imported(name, &[x.v, y.v]);
                let r = self.cast(a.ty, Val { v: r, ty: ElemType::F64, vec: false })?;
                return Ok(if op == BinOp::Mod { self.floored(r, b) } else { r });
            }
            _ => return self.bug(format!("{op:?} of floats")),
        };
        Ok(Val { v, ..a })
    }
    pub fn unary(&mut self, op: UnOp, a: Val) -> Result<Val> {
        if a.ty.is_float() {
            return self.float_unary(op, a);
        }
        let t = scalar_type(a.ty);
        let v = match op {
            UnOp::Neg => self.b.ins().ineg(a.v),
            UnOp::Abs if !a.ty.is_signed_int() => a.v,
            UnOp::Abs => {
                let n = self.b.ins().ineg(a.v);
                let c = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, a.v, 0);
                self.b.ins().select(c, n, a.v)
            }
            UnOp::Sign => {
                let (one, zero) = (self.b.ins().iconst(t, 1), self.b.ins().iconst(t, 0));
                let nz = self.b.ins().icmp_imm_s(IntCC::NotEqual, a.v, 0);
                let p = self.b.ins().select(nz, one, zero);
                if a.ty.is_signed_int() {
                    let c = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, a.v, 0);
                    let m = self.b.ins().ineg(one);
                    self.b.ins().select(c, m, p)
                } else {
                    p
                }
            }
            UnOp::Not if a.vec => self.b.ins().bnot(a.v),
            UnOp::Not => self.b.ins().icmp_imm_s(IntCC::Equal, a.v, 0),
            UnOp::BitNot => self.b.ins().bnot(a.v),
            UnOp::IsNan | UnOp::IsInf => return Ok(self.constant(Scalar { ty: ElemType::Bool, bits: 0 })),
            UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round => a.v,
            UnOp::Bits(to) => {
                let v = match to {
                    ElemType::F32 => self.bits_as(F32, a.v),
                    ElemType::F64 => self.bits_as(F64, a.v),
                    _ => a.v,
                };
                return Ok(Val { v, ty: to, vec: false });
            }
            _ => return self.bug(format!("{op:?} of {}", a.ty)),
        };
        Ok(Val { v, ..a })
    }
}
