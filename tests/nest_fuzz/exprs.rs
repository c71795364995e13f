//! Random numbers and random expressions.

use onnxc::nest::{BinOp, Buf, Expr, KernelBuilder, UnOp};
use onnxc::sym::Dim;
use onnxc::tensor::ElemType as T;

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
    pub fn of<X: Copy>(&mut self, v: &[X]) -> X {
        v[self.below(v.len())]
    }
    pub fn between(&mut self, lo: i64, hi: i64) -> i64 {
        lo + self.below((hi - lo + 1) as usize) as i64
    }
}

/// Functions whose results differ in the last bits.
const SMOOTH: &[UnOp] = &[
    UnOp::Tanh,
    UnOp::Sigmoid,
    UnOp::Exp,
    UnOp::Erf,
    UnOp::Sqrt,
    UnOp::Log,
    UnOp::Recip,
    UnOp::Sin,
    UnOp::Cos,
    UnOp::Tan,
    UnOp::Asin,
    UnOp::Acos,
    UnOp::Atan,
    UnOp::Sinh,
    UnOp::Cosh,
    UnOp::Asinh,
    UnOp::Acosh,
    UnOp::Atanh,
    UnOp::Expm1,
    UnOp::Log1p,
];

/// Writes expressions inside a kernel.
pub struct Exprs<'a, 'k, 'm> {
    pub r: &'a mut Rng,
    pub k: &'a mut KernelBuilder<'m>,
    pub at: &'a [Dim],
    /// Buffers that broadcast to `at`: compute type, exact or not.
    pub loads: &'k [(Buf, T, bool)],
}

impl Exprs<'_, '_, '_> {
    /// A value of the compute type `ty`, and whether it is exact. `exact`: it must be.
    pub fn of_type(&mut self, ty: T, depth: usize, exact: bool) -> (Expr, bool) {
        if depth == 0 {
            return self.leaf(ty, exact);
        }
        let d = depth - 1;
        if self.r.chance(15) {
            let c = self.condition(d);
            let ((a, ea), (b, eb)) = (self.of_type(ty, d, exact), self.of_type(ty, d, exact));
            return (Expr::select(c, a, b), ea && eb);
        }
        if self.r.chance(12) {
            let (v, e) = self.of_type(ty, d, exact);
            let (w, f) = self.of_type(ty, 0, exact);
            let op = if ty == T::Bool { BinOp::Xor } else { BinOp::Add };
            let again = self.k.shared(v, |_, v| Expr::bin(op, Expr::bin(op, v.clone(), w), v));
            return (again, e && f);
        }
        if ty == T::Bool {
            if self.r.chance(40) {
                return (self.condition(d), true);
            }
            let op = self.r.of(&[BinOp::And, BinOp::Or, BinOp::Xor]);
            let (a, b) = (self.of_type(ty, d, true).0, self.of_type(ty, d, true).0);
            return (if self.r.chance(25) { Expr::un(UnOp::Not, a) } else { Expr::bin(op, a, b) }, true);
        }
        if ty.is_float() {
            if self.r.chance(35) {
                let (a, e) = self.of_type(ty, d, exact);
                let plain = [UnOp::Neg, UnOp::Abs];
                let op = if exact || self.r.chance(35) { self.r.of(&plain) } else { self.r.of(SMOOTH) };
                let smooth = plain.contains(&op);
                let within = |a: Expr, x: f64| a.min(Expr::num(ty, x)).max(Expr::num(ty, -x));
                // Inside their domains, and away from where they rise without bound.
                let a = match op {
                    UnOp::Exp | UnOp::Expm1 | UnOp::Sinh | UnOp::Cosh => within(a, 3.0),
                    UnOp::Sqrt | UnOp::Log | UnOp::Log1p | UnOp::Recip => {
                        Expr::un(UnOp::Abs, a) + Expr::num(ty, 0.25)
                    }
                    UnOp::Acosh => Expr::un(UnOp::Abs, a) + Expr::num(ty, 1.25),
                    UnOp::Sin | UnOp::Cos => within(a, 8.0),
                    UnOp::Tan | UnOp::Asin | UnOp::Acos | UnOp::Atanh => within(a, 0.875),
                    _ => a,
                };
                let rounding = e && self.r.chance(25);
                let v = Expr::un(op, a);
                return match rounding {
                    true if smooth => (
                        Expr::un(
                            self.r.of(&[UnOp::Floor, UnOp::Ceil, UnOp::Trunc, UnOp::Round, UnOp::Sign]),
                            v,
                        ),
                        e,
                    ),
                    _ => (v, e && smooth),
                };
            }
            if self.r.chance(10) {
                let ((a, ea), (b, eb)) = (self.of_type(ty, d, true), self.of_type(ty, d, true));
                let b = Expr::un(UnOp::Abs, b) + Expr::num(ty, 0.5);
                return match self.r.below(if exact { 2 } else { 4 }) {
                    0 => (Expr::bin(BinOp::Rem, a, b), ea && eb),
                    1 => (Expr::bin(BinOp::Mod, a, Expr::un(UnOp::Neg, b)), ea && eb),
                    2 => (Expr::bin(BinOp::Atan2, a, b), false),
                    _ => (
                        Expr::bin(
                            BinOp::Pow,
                            b.min(Expr::num(ty, 4.0)),
                            a.min(Expr::num(ty, 3.0)).max(Expr::num(ty, -3.0)),
                        ),
                        false,
                    ),
                };
            }
            let op = self.r.of(&[BinOp::Add, BinOp::Sub, BinOp::Mul, BinOp::Min, BinOp::Max, BinOp::Div]);
            let ((a, ea), (b, eb)) = (self.of_type(ty, d, exact), self.of_type(ty, d, exact));
            let b = if op == BinOp::Div { Expr::un(UnOp::Abs, b) + Expr::num(ty, 0.5) } else { b };
            return (Expr::bin(op, a, b), ea && eb);
        }
        if self.r.chance(25) {
            let op = if ty.is_signed_int() {
                self.r.of(&[UnOp::Neg, UnOp::Abs, UnOp::BitNot, UnOp::Sign])
            } else {
                UnOp::BitNot
            };
            return (Expr::un(op, self.of_type(ty, d, true).0), true);
        }
        let op = self.r.of(&[
            BinOp::Add,
            BinOp::Sub,
            BinOp::Mul,
            BinOp::Min,
            BinOp::Max,
            BinOp::And,
            BinOp::Or,
            BinOp::Xor,
            BinOp::Div,
            BinOp::Rem,
            BinOp::Mod,
            BinOp::Shl,
            BinOp::Shr,
        ]);
        let a = self.of_type(ty, d, true).0;
        let b = match op {
            BinOp::Div | BinOp::Rem | BinOp::Mod => {
                let v = self.r.between(1, 9);
                Expr::int(ty, if ty.is_signed_int() && self.r.chance(40) { -v } else { v })
            }
            BinOp::Shl | BinOp::Shr => Expr::int(ty, self.r.between(0, 7)),
            _ => self.of_type(ty, d, true).0,
        };
        (Expr::bin(op, a, b), true)
    }
    /// A truth that is the same whatever the rounding.
    fn condition(&mut self, depth: usize) -> Expr {
        let cmp = self.r.of(&[BinOp::Eq, BinOp::Ne, BinOp::Lt, BinOp::Le, BinOp::Gt, BinOp::Ge]);
        if self.r.chance(25) && !self.at.is_empty() {
            let i = self.at[self.r.below(self.at.len())];
            let c = self.r.between(0, 6);
            return Expr::cmp_index(cmp, i, c);
        }
        if self.r.chance(8) {
            let v = self.of_type(T::F32, depth, true).0;
            let zero = Expr::num(T::F32, 0.0);
            return Expr::un(
                self.r.of(&[UnOp::IsNan, UnOp::IsInf]),
                if self.r.chance(50) { v / zero } else { v },
            );
        }
        let ty = self.r.of(&[T::F32, T::I32, T::I64, T::U8, T::F64, T::F32]);
        let (a, b) = (self.of_type(ty, depth, true).0, self.of_type(ty, depth, true).0);
        Expr::bin(cmp, a, b)
    }
    fn leaf(&mut self, ty: T, exact: bool) -> (Expr, bool) {
        let usable: Vec<(Buf, T, bool)> =
            self.loads.iter().copied().filter(|l| l.2 || !exact && ty.is_float() && l.1.is_float()).collect();
        if usable.is_empty() || self.r.chance(15) {
            if self.r.chance(30) && !self.at.is_empty() {
                let i = self.at[self.r.below(self.at.len())];
                return (Expr::cast(T::I64, ty, Expr::index(i)), true);
            }
            let v = self.r.between(-8, 8) as f64 / if ty.is_float() { 4.0 } else { 1.0 };
            return (
                if ty == T::Bool {
                    Expr::bool(v > 0.0)
                } else if ty.is_float() {
                    Expr::num(ty, v)
                } else {
                    Expr::int(ty, v as i64)
                },
                true,
            );
        }
        let (b, from, exact) = self.r.of(&usable);
        let v = self.k.load_broadcast(b, self.at);
        (Expr::cast(from, ty, v), exact)
    }
}
