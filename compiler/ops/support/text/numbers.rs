//! Numbers as strings, and code shared with reading them (`parse`).
//!
//! Floats are written as in Python: with the fewest digits that parse to the same value, in plain notation
//! from 1e-4 up to 1e16, otherwise with an exponent. The digits are found by Schubfach (Giulietti, "The
//! Schubfach way to render doubles").

use super::{Sink, lt, not};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Module, Reg, UnOp};
use crate::ops::support::runtime::{self, eq, int, or};
use crate::tensor::{ConstData, ElemType};
use std::sync::{Arc, LazyLock};

/// Smallest exponent of the table of powers of ten.
pub(super) const LEAST: i64 = -342;
const MOST: i64 = 324;

/// 10^e, normalized to 128 bits and rounded up: high and low words.
static POWERS: LazyLock<Vec<u64>> = LazyLock::new(|| {
    (LEAST..=MOST)
        .flat_map(|e| {
            let p = power(e);
            [(p >> 64) as u64, p as u64]
        })
        .collect()
});

/// floor(log2(10^e)).
#[cfg(test)]
fn log2_of_power(e: i64) -> i64 {
    (e * 1_741_647) >> 19
}

/// ceil(10^e * 2^(127 - floor(log2(10^e)))).
fn power(e: i64) -> u128 {
    let mut n = vec![1u32];
    let times = |n: &mut Vec<u32>, m: u32| {
        let mut carry = 0u64;
        for d in n.iter_mut() {
            carry += u64::from(*d) * u64::from(m);
            *d = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            n.push(carry as u32);
        }
    };
    (0..e.unsigned_abs()).for_each(|_| times(&mut n, 10));
    let bits = n.len() as i64 * 32 - i64::from(n.last().map_or(0, |d| d.leading_zeros()));
    if e >= 0 {
        // The upper 128 bits, plus one if any lower bit is set.
        let bit = |i: i64| i >= 0 && n[i as usize / 32] >> (i % 32) & 1 == 1;
        let top = (0..128).fold(0u128, |v, k| v << 1 | u128::from(bit(bits - 1 - k)));
        return top + u128::from((0..bits - 128).any(bit));
    }
    // 2^(bits + 127) / n by binary long division.
    let mut rest = vec![0u32; n.len() + 1];
    rest[(bits - 1) as usize / 32] = 1 << ((bits - 1) % 32);
    n.push(0);
    let mut q = 0u128;
    for _ in 0..128 {
        let mut carry = 0;
        for d in rest.iter_mut() {
            (*d, carry) = (*d << 1 | carry, *d >> 31);
        }
        let fits = rest.iter().rev().cmp(n.iter().rev()).is_ge();
        if fits {
            let mut borrow = 0i64;
            for (d, x) in rest.iter_mut().zip(&n) {
                borrow += i64::from(*d) - i64::from(*x);
                *d = borrow as u32;
                borrow >>= 32;
            }
        }
        q = q << 1 | u128::from(fits);
    }
    q + u128::from(rest.iter().any(|d| *d > 0))
}

pub(super) fn word(v: u64) -> Expr {
    Expr::int(ElemType::U64, v as i64)
}

pub(super) fn as_int(e: Expr) -> Expr {
    Expr::cast(ElemType::U64, ElemType::I64, e)
}

pub(super) fn as_word(e: Expr) -> Expr {
    Expr::cast(ElemType::I64, ElemType::U64, e)
}

pub(super) fn shr(a: Expr, n: u64) -> Expr {
    Expr::bin(BinOp::Shr, a, word(n))
}

pub(super) fn shl(a: Expr, n: Expr) -> Expr {
    Expr::bin(BinOp::Shl, a, n)
}

/// High and low words of a product.
pub(super) fn product(k: &mut KernelBuilder, a: Expr, b: Expr) -> (Expr, Expr) {
    let low = |e: Expr| e.and(word(0xffff_ffff));
    let (a, b) = (k.let_(a), k.let_(b));
    let (ah, al, bh, bl) = (
        k.let_(shr(a.clone(), 32)),
        k.let_(low(a.clone())),
        k.let_(shr(b.clone(), 32)),
        k.let_(low(b.clone())),
    );
    let t = al.clone() * bl.clone();
    let u = k.let_(ah.clone() * bl + shr(t, 32));
    let v = k.let_(al * bh.clone() + low(u.clone()));
    let high = k.let_(ah * bh + shr(u, 32) + shr(v, 32));
    (high, k.let_(a * b))
}

/// The powers of ten as a constant.
pub struct Powers(Buf);

impl Powers {
    /// Adds them to a module.
    pub fn new(m: &mut Module) -> Powers {
        let bytes: Vec<u8> = POWERS.iter().flat_map(|w| w.to_le_bytes()).collect();
        let data = ConstData::new(ElemType::U64, vec![POWERS.len() as i64], bytes);
        Powers(m.constant("powers", Arc::new(data.unwrap_or_else(|| ConstData::from_i64s(&[])))))
    }
    /// High and low words of 10^e.
    pub(super) fn get(&self, k: &mut KernelBuilder, e: Expr) -> (Expr, Expr) {
        let n = k.m.bufs[self.0].dims[0];
        let at = k.let_((e - int(LEAST)) * int(2));
        let part = |k: &mut KernelBuilder, i: i64| {
            let v = k.with_index(at.clone() + int(i), n, |k, p| k.load(self.0, &[p]));
            k.let_(v)
        };
        (part(k, 0), part(k, 1))
    }
}

pub(super) fn ascii(c: char) -> Expr {
    Expr::int(ElemType::U8, i64::from(c as u32))
}

/// Passes the characters of an ASCII text to the sink.
pub fn put(k: &mut KernelBuilder, sink: &Sink, s: &str) {
    s.chars().for_each(|c| sink.byte(k, ascii(c)));
}

/// The largest power of ten that does not exceed `v`; 1 for 0.
pub(super) fn top_power(k: &mut KernelBuilder, v: &Expr) -> (Reg, Reg) {
    let (p, n) = (k.acc(word(1)), k.acc(int(1)));
    k.while_(runtime::le(Expr::acc(p), v.clone() / word(10)), |k| {
        k.set(p, Expr::acc(p) * word(10));
        k.update(BinOp::Add, n, int(1));
    });
    (p, n)
}

/// Passes the digits of `v` to the sink, with a point before digit `dot` if there is such a digit.
pub(super) fn digits(k: &mut KernelBuilder, sink: &Sink, v: &Expr, dot: Option<Expr>) {
    let (p, _) = top_power(k, v);
    let (rest, at) = (k.acc(v.clone()), k.acc(int(0)));
    k.while_(lt(word(0), Expr::acc(p)), |k| {
        if let Some(d) = &dot {
            k.if_(eq(Expr::acc(at), d.clone()), |k| sink.byte(k, ascii('.')));
        }
        let d = k.let_(Expr::acc(rest) / Expr::acc(p));
        sink.byte(k, Expr::cast(ElemType::U64, ElemType::U8, d.clone() + word(0x30)));
        k.set(rest, Expr::acc(rest) - d * Expr::acc(p));
        k.set(p, Expr::acc(p) / word(10));
        k.update(BinOp::Add, at, int(1));
    });
}

fn zeros(k: &mut KernelBuilder, sink: &Sink, n: Expr) {
    let i = k.acc(int(0));
    k.while_(lt(Expr::acc(i), n), |k| {
        sink.byte(k, ascii('0'));
        k.update(BinOp::Add, i, int(1));
    });
}

/// Writes an integer of a compute type.
pub fn write_int(k: &mut KernelBuilder, v: Expr, sink: &Sink) {
    let ty = k.m.type_of(&v);
    let v = k.let_(v);
    let size = if ty.is_signed_int() {
        let wide = k.let_(Expr::cast(ty, ElemType::I64, v));
        let negative = k.let_(lt(wide.clone(), int(0)));
        k.if_(negative.clone(), |k| sink.byte(k, ascii('-')));
        let w = as_word(wide);
        Expr::select(negative, word(0) - w.clone(), w)
    } else {
        Expr::cast(ty, ElemType::U64, v)
    };
    let size = k.let_(size);
    digits(k, sink, &size, None);
}

/// Writes a bool.
pub fn write_bool(k: &mut KernelBuilder, v: Expr, sink: &Sink) {
    let v = k.let_(v);
    k.if_(v.clone(), |k| put(k, sink, "True"));
    k.if_(not(v), |k| put(k, sink, "False"));
}

/// The parameters of a binary format: significand with the hidden bit, and exponent bias.
#[derive(Clone, Copy)]
struct Format {
    significand: u64,
    bias: i64,
    bits: u64,
}

/// Writes a float of compute type `f32` or `f64`; an f16 with the digits that it needs.
pub fn write_float(k: &mut KernelBuilder, powers: &Powers, v: Expr, half: bool, sink: &Sink) {
    let ty = k.m.type_of(&v);
    let v = k.let_(v);
    let bits = match ty {
        ElemType::F64 => Expr::un(UnOp::Bits(ElemType::U64), v.clone()),
        _ => Expr::cast(ElemType::U32, ElemType::U64, Expr::un(UnOp::Bits(ElemType::U32), v.clone())),
    };
    let bits = k.let_(bits);
    let f = if ty == ElemType::F64 {
        Format { significand: 53, bias: 1075, bits: 64 }
    } else {
        Format { significand: 24, bias: 150, bits: 32 }
    };
    let nan = k.let_(Expr::un(UnOp::IsNan, v.clone()));
    k.if_(nan.clone(), |k| put(k, sink, "nan"));
    k.if_(not(nan), |k| {
        let negative = k.let_(Expr::bin(BinOp::Ne, shr(bits.clone(), f.bits - 1), word(0)));
        k.if_(negative, |k| sink.byte(k, ascii('-')));
        let size = k.let_(bits.and(word((1 << (f.bits - 1)) - 1)));
        let infinite = k.let_(Expr::un(UnOp::IsInf, v));
        k.if_(infinite.clone(), |k| put(k, sink, "inf"));
        let zero = k.let_(eq(size.clone(), word(0)));
        k.if_(zero.clone(), |k| put(k, sink, "0.0"));
        k.if_(not(or(infinite, zero)), |k| {
            let (c, q, closer) = parts(k, &size, f, half);
            let (d, e) = shortest(k, powers, c, q, closer);
            layout(k, sink, d, e);
        });
    });
}

/// A positive value as c * 2^q, and 1 if the next smaller value is closer than the next larger one.
fn parts(k: &mut KernelBuilder, size: &Expr, f: Format, half: bool) -> (Expr, Expr, Expr) {
    let stored = f.significand - 1;
    let exponent = k.let_(as_int(shr(size.clone(), stored)));
    let fraction = k.let_(size.clone().and(word((1 << stored) - 1)));
    let normal = k.let_(lt(int(0), exponent.clone()));
    let c = k.let_(Expr::select(normal.clone(), fraction.clone() + word(1 << stored), fraction.clone()));
    let q = k.let_(Expr::select(normal, exponent.clone(), int(1)) - int(f.bias));
    let power_of_two = eq(fraction, word(0));
    if !half {
        return (c, q, k.let_(Expr::select(power_of_two.and(lt(int(1), exponent)), word(1), word(0))));
    }
    // An f16 has 11 bits, and its exponents end at -24: as an f32 it is normal.
    let drop = k.let_(int(13).max(int(-24) - q.clone()));
    let c = k.let_(Expr::bin(BinOp::Shr, c, as_word(drop.clone())));
    let q = k.let_(q + drop);
    let closer = eq(c.clone(), word(1 << 10)).and(lt(int(-24), q.clone()));
    (c, q, k.let_(Expr::select(closer, word(1), word(0))))
}

/// Upper word of the product of a power and a number, with the lowest bit set if any lower bit is.
fn round_to_odd(k: &mut KernelBuilder, g: &(Expr, Expr), v: Expr) -> Expr {
    let v = k.let_(v);
    let (x, _) = product(k, g.1.clone(), v.clone());
    let (y, y_low) = product(k, g.0.clone(), v);
    let low = k.let_(y_low + x.clone());
    let carry = Expr::select(lt(low.clone(), x), word(1), word(0));
    let sticky = Expr::select(lt(word(1), low), word(1), word(0));
    k.let_(Expr::bin(BinOp::Or, y + carry, sticky))
}

/// The shortest decimal within half a step of c * 2^q: its digits and its exponent, without trailing zeros.
fn shortest(k: &mut KernelBuilder, powers: &Powers, c: Expr, q: Expr, closer: Expr) -> (Expr, Expr) {
    let odd = k.let_(c.clone().and(word(1)));
    let (left, mid, right) =
        (c.clone() * word(4) - word(2) + closer.clone(), c.clone() * word(4), c * word(4) + word(2));
    let floor_shift = |e: Expr, n: i64| Expr::bin(BinOp::Shr, e, int(n));
    let e = k.let_(floor_shift(
        q.clone() * int(1_262_611) - Expr::select(eq(closer, word(1)), int(524_031), int(0)),
        22,
    ));
    let h = k.let_(as_word(q + floor_shift((int(0) - e.clone()) * int(1_741_647), 19) + int(1)));
    let g = powers.get(k, int(0) - e.clone());
    let vl = round_to_odd(k, &g, shl(left, h.clone()));
    let v = round_to_odd(k, &g, shl(mid, h.clone()));
    let vr = round_to_odd(k, &g, shl(right, h));
    let (lower, upper) = (k.let_(vl + odd.clone()), k.let_(vr - odd));
    let s = k.let_(v.clone() / word(4));
    let (digits, exponent) = (k.acc(word(0)), k.acc(e.clone()));
    let found = k.acc(Expr::bool(false));
    let le = runtime::le;
    let one_if = |c: Expr| Expr::select(c, word(1), word(0));
    k.if_(le(word(10), s.clone()), |k| {
        let t = k.let_(s.clone() / word(10));
        let up = k.let_(le(lower.clone(), t.clone() * word(40)));
        let down = k.let_(le(t.clone() * word(40) + word(40), upper.clone()));
        k.if_(Expr::bin(BinOp::Ne, up, down.clone()), |k| {
            k.set(digits, t + one_if(down));
            k.set(exponent, e.clone() + int(1));
            k.set(found, Expr::bool(true));
        });
    });
    k.if_(not(Expr::acc(found)), |k| {
        let up = k.let_(le(lower, s.clone() * word(4)));
        let down = k.let_(le(s.clone() * word(4) + word(4), upper));
        let middle = k.let_(s.clone() * word(4) + word(2));
        let tie = eq(v.clone(), middle.clone()).and(Expr::bin(BinOp::Ne, s.clone().and(word(1)), word(0)));
        let round = or(lt(middle, v), tie);
        let one = Expr::bin(BinOp::Ne, up, down.clone());
        k.set(digits, s + Expr::select(one, one_if(down), one_if(round)));
    });
    let shorter = |d: Reg| eq(Expr::bin(BinOp::Rem, Expr::acc(d), word(10)), word(0));
    k.while_(shorter(digits), |k| {
        k.set(digits, Expr::acc(digits) / word(10));
        k.update(BinOp::Add, exponent, int(1));
    });
    (k.let_(Expr::acc(digits)), k.let_(Expr::acc(exponent)))
}

/// Writes digits times a power of ten in Python's layout.
fn layout(k: &mut KernelBuilder, sink: &Sink, d: Expr, e: Expr) {
    let (_, n) = top_power(k, &d);
    let n = k.let_(Expr::acc(n));
    // Number of digits before the point.
    let point = k.let_(n.clone() + e);
    let plain = k.let_(runtime::le(int(-3), point.clone()).and(runtime::le(point.clone(), int(16))));
    k.if_(plain.clone(), |k| {
        k.if_(runtime::le(point.clone(), int(0)), |k| {
            put(k, sink, "0.");
            zeros(k, sink, int(0) - point.clone());
        });
        digits(k, sink, &d, Some(Expr::select(lt(int(0), point.clone()), point.clone(), int(-1))));
        k.if_(runtime::le(n.clone(), point.clone()), |k| {
            zeros(k, sink, point.clone() - n.clone());
            put(k, sink, ".0");
        });
    });
    k.if_(not(plain), |k| {
        digits(k, sink, &d, Some(int(1)));
        sink.byte(k, ascii('e'));
        let e = k.let_(point - int(1));
        let negative = k.let_(lt(e.clone(), int(0)));
        sink.byte(k, Expr::select(negative, ascii('-'), ascii('+')));
        let size = k.let_(as_word(Expr::un(UnOp::Abs, e)));
        k.if_(lt(size.clone(), word(10)), |k| sink.byte(k, ascii('0')));
        digits(k, sink, &size, None);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_normalized_and_rounded_up() {
        assert_eq!(power(0), 1 << 127);
        assert_eq!(power(1), 10 << 124);
        assert_eq!(power(-292), 0xff77_b1fc_bebc_dc4f_25e8_e89c_13bb_0f7b);
        for e in LEAST..=MOST {
            assert_eq!(power(e) >> 127, 1, "{e}");
            let scale = (log2_of_power(e) - 127) as i32;
            let have = power(e) as f64 * 2f64.powi(scale / 2) * 2f64.powi(scale - scale / 2);
            let want = format!("1e{e}").parse::<f64>().unwrap_or(0.0);
            assert!(!(-300..=308).contains(&e) || (have / want - 1.0).abs() < 1e-12, "{e}: {have} {want}");
        }
    }
}
