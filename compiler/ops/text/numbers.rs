//! Numbers as strings and back.
//!
//! Floats are written as Python writes them: with the fewest digits that lead back to the same value, in plain notation from
//! 1e-4 up to 1e16, else with an exponent. The digits are found by Schubfach (Giulietti, "The Schubfach way to render
//! doubles"). Reading is the way back by one product of 64 and 128 bits (Lemire, "Number parsing at a gigabyte per second"),
//! rounded to nearest: exact for 19 significant digits; what follows them decides where these alone are halfway.

use super::{Sink, lt, not};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Module, Reg, Status, Stmt, UnOp};
use crate::ops::runtime::{self, eq, int, or};
use crate::tensor::{ConstData, ElemType};
use std::sync::{Arc, LazyLock};

/// Exponents of the table of powers of ten.
const LEAST: i64 = -342;
const MOST: i64 = 324;
/// Significant digits that 64 bits always hold.
const DIGITS: i64 = 19;

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
        // The upper 128 bits, and one more if any below is set.
        let bit = |i: i64| i >= 0 && n[i as usize / 32] >> (i % 32) & 1 == 1;
        let top = (0..128).fold(0u128, |v, k| v << 1 | u128::from(bit(bits - 1 - k)));
        return top + u128::from((0..bits - 128).any(bit));
    }
    // 2^(bits + 127) / n, digit by digit in base 2.
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

fn word(v: u64) -> Expr {
    Expr::int(ElemType::U64, v as i64)
}

fn as_int(e: Expr) -> Expr {
    Expr::cast(ElemType::U64, ElemType::I64, e)
}

fn as_word(e: Expr) -> Expr {
    Expr::cast(ElemType::I64, ElemType::U64, e)
}

fn shr(a: Expr, n: u64) -> Expr {
    Expr::bin(BinOp::Shr, a, word(n))
}

fn shl(a: Expr, n: Expr) -> Expr {
    Expr::bin(BinOp::Shl, a, n)
}

/// High and low words of a product.
fn product(k: &mut KernelBuilder, a: Expr, b: Expr) -> (Expr, Expr) {
    let low = |e: Expr| e.and(word(0xffff_ffff));
    let (a, b) = (k.let_(a), k.let_(b));
    let (ah, al, bh, bl) = (k.let_(shr(a.clone(), 32)), k.let_(low(a.clone())), k.let_(shr(b.clone(), 32)), k.let_(low(b.clone())));
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
    fn get(&self, k: &mut KernelBuilder, e: Expr) -> (Expr, Expr) {
        let n = k.m.bufs[self.0].dims[0];
        let at = k.let_((e - int(LEAST)) * int(2));
        let part = |k: &mut KernelBuilder, i: i64| {
            let v = k.with_index(at.clone() + int(i), n, |k, p| k.load(self.0, &[p]));
            k.let_(v)
        };
        (part(k, 0), part(k, 1))
    }
}

fn ascii(c: char) -> Expr {
    Expr::int(ElemType::U8, i64::from(c as u32))
}

fn text(k: &mut KernelBuilder, sink: &Sink, s: &str) {
    s.chars().for_each(|c| sink.byte(k, ascii(c)));
}

/// The largest power of ten that is not above `v`, 1 for 0.
fn top_power(k: &mut KernelBuilder, v: &Expr) -> (Reg, Reg) {
    let (p, n) = (k.acc(word(1)), k.acc(int(1)));
    k.while_(runtime::le(Expr::acc(p), v.clone() / word(10)), |k| {
        k.set(p, Expr::acc(p) * word(10));
        k.update(BinOp::Add, n, int(1));
    });
    (p, n)
}

/// Hands the digits of `v` to the sink; before the digit number `dot` a point, if there is such a digit.
fn digits(k: &mut KernelBuilder, sink: &Sink, v: &Expr, dot: Option<Expr>) {
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

/// An integer of a compute type.
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

/// A truth value.
pub fn write_bool(k: &mut KernelBuilder, v: Expr, sink: &Sink) {
    let v = k.let_(v);
    k.if_(v.clone(), |k| text(k, sink, "True"));
    k.if_(not(v), |k| text(k, sink, "False"));
}

/// Bits of a binary format: significand with the hidden bit, and the exponent's bias.
#[derive(Clone, Copy)]
struct Format {
    significand: u64,
    bias: i64,
    bits: u64,
}

/// A float of compute type `f32` or `f64`; of f16 with the digits that an f16 needs.
pub fn write_float(k: &mut KernelBuilder, powers: &Powers, v: Expr, half: bool, sink: &Sink) {
    let ty = k.m.type_of(&v);
    let v = k.let_(v);
    let bits = match ty {
        ElemType::F64 => Expr::un(UnOp::Bits(ElemType::U64), v.clone()),
        _ => Expr::cast(ElemType::U32, ElemType::U64, Expr::un(UnOp::Bits(ElemType::U32), v.clone())),
    };
    let bits = k.let_(bits);
    let f = if ty == ElemType::F64 { Format { significand: 53, bias: 1075, bits: 64 } } else { Format { significand: 24, bias: 150, bits: 32 } };
    let nan = k.let_(Expr::un(UnOp::IsNan, v.clone()));
    k.if_(nan.clone(), |k| text(k, sink, "nan"));
    k.if_(not(nan), |k| {
        let negative = k.let_(Expr::bin(BinOp::Ne, shr(bits.clone(), f.bits - 1), word(0)));
        k.if_(negative, |k| sink.byte(k, ascii('-')));
        let size = k.let_(bits.and(word((1 << (f.bits - 1)) - 1)));
        let infinite = k.let_(Expr::un(UnOp::IsInf, v));
        k.if_(infinite.clone(), |k| text(k, sink, "inf"));
        let zero = k.let_(eq(size.clone(), word(0)));
        k.if_(zero.clone(), |k| text(k, sink, "0.0"));
        k.if_(not(or(infinite, zero)), |k| {
            let (c, q, closer) = parts(k, &size, f, half);
            let (d, e) = shortest(k, powers, c, q, closer);
            layout(k, sink, d, e);
        });
    });
}

/// A positive value as c * 2^q, and 1 where the next smaller value is closer than the next larger one.
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

/// Upper word of the product of a power and a number, with the lowest bit set if anything follows.
fn round_to_odd(k: &mut KernelBuilder, g: &(Expr, Expr), v: Expr) -> Expr {
    let v = k.let_(v);
    let (x, _) = product(k, g.1.clone(), v.clone());
    let (y, y_low) = product(k, g.0.clone(), v);
    let low = k.let_(y_low + x.clone());
    let carry = Expr::select(lt(low.clone(), x), word(1), word(0));
    let sticky = Expr::select(lt(word(1), low), word(1), word(0));
    k.let_(Expr::bin(BinOp::Or, y + carry, sticky))
}

/// The shortest decimal within half a step of c * 2^q: its digits and its exponent, without zeros at the end.
fn shortest(k: &mut KernelBuilder, powers: &Powers, c: Expr, q: Expr, closer: Expr) -> (Expr, Expr) {
    let odd = k.let_(c.clone().and(word(1)));
    let (left, mid, right) = (c.clone() * word(4) - word(2) + closer.clone(), c.clone() * word(4), c * word(4) + word(2));
    let floor_shift = |e: Expr, n: i64| Expr::bin(BinOp::Shr, e, int(n));
    let e = k.let_(floor_shift(q.clone() * int(1_262_611) - Expr::select(eq(closer, word(1)), int(524_031), int(0)), 22));
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

/// Digits times a power of ten, as Python lays them out.
fn layout(k: &mut KernelBuilder, sink: &Sink, d: Expr, e: Expr) {
    let (_, n) = top_power(k, &d);
    let n = k.let_(Expr::acc(n));
    // Digits before the point.
    let point = k.let_(n.clone() + e);
    let plain = k.let_(runtime::le(int(-3), point.clone()).and(runtime::le(point.clone(), int(16))));
    k.if_(plain.clone(), |k| {
        k.if_(runtime::le(point.clone(), int(0)), |k| {
            text(k, sink, "0.");
            zeros(k, sink, int(0) - point.clone());
        });
        digits(k, sink, &d, Some(Expr::select(lt(int(0), point.clone()), point.clone(), int(-1))));
        k.if_(runtime::le(n.clone(), point.clone()), |k| {
            zeros(k, sink, point.clone() - n.clone());
            text(k, sink, ".0");
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

/// A string while it is read.
struct Reader<'a> {
    s: &'a Expr,
    at: Reg,
    end: Reg,
}

impl Reader<'_> {
    /// Without white space at both ends.
    fn new<'a>(k: &mut KernelBuilder, s: &'a Expr) -> Reader<'a> {
        let (at, end) = (k.acc(int(0)), k.acc(Expr::text_len(s.clone())));
        let r = Reader { s, at, end };
        let space = |b: Expr| or(eq(b.clone(), ascii(' ')), runtime::le(ascii('\t'), b.clone()).and(runtime::le(b, ascii('\r'))));
        let more = lt(Expr::acc(at), Expr::acc(end));
        k.while_(Expr::select(more.clone(), space(Expr::text_byte(s.clone(), Expr::acc(at))), Expr::bool(false)), |k| k.update(BinOp::Add, at, int(1)));
        k.while_(Expr::select(more, space(Expr::text_byte(s.clone(), Expr::acc(end) - int(1))), Expr::bool(false)), |k| k.update(BinOp::Sub, end, int(1)));
        r
    }
    /// The next byte, 0 at the end.
    fn peek(&self) -> Expr {
        Expr::select(lt(Expr::acc(self.at), Expr::acc(self.end)), Expr::text_byte(self.s.clone(), Expr::acc(self.at)), Expr::int(ElemType::U8, 0))
    }
    /// Takes a sign; true if it is a minus.
    fn sign(&self, k: &mut KernelBuilder) -> Expr {
        let b = k.let_(self.peek());
        let minus = k.let_(eq(b.clone(), ascii('-')));
        k.if_(or(minus.clone(), eq(b, ascii('+'))), |k| k.update(BinOp::Add, self.at, int(1)));
        minus
    }
    fn is_digit(b: Expr) -> Expr {
        runtime::le(ascii('0'), b.clone()).and(runtime::le(b, ascii('9')))
    }
    fn at_end(&self) -> Expr {
        eq(Expr::acc(self.at), Expr::acc(self.end))
    }
    /// Takes a word, in any case, if it is all that is left; true if so.
    fn word(&self, k: &mut KernelBuilder, w: &str) -> Expr {
        let hit = k.acc(eq(Expr::acc(self.end) - Expr::acc(self.at), int(w.len() as i64)));
        for (i, c) in w.chars().enumerate() {
            let b = Expr::text_byte(self.s.clone(), Expr::acc(self.at) + int(i as i64));
            let same = eq(Expr::bin(BinOp::Or, b, Expr::int(ElemType::U8, 0x20)), ascii(c));
            k.set(hit, Expr::select(Expr::acc(hit), same, Expr::bool(false)));
        }
        k.if_(Expr::acc(hit), |k| k.set(self.at, Expr::acc(self.end)));
        k.let_(Expr::acc(hit))
    }
}

/// The integer of type `ty` that a string is; anything else leaves with `E_VALUE`.
pub fn read_int(k: &mut KernelBuilder, s: &Expr, ty: ElemType) -> Expr {
    let r = Reader::new(k, s);
    let minus = r.sign(k);
    let (v, seen, fits) = (k.acc(word(0)), k.acc(Expr::bool(false)), k.acc(Expr::bool(true)));
    k.while_(Reader::is_digit(r.peek()), |k| {
        let d = k.let_(Expr::cast(ElemType::U8, ElemType::U64, r.peek()) - word(0x30));
        // Ten times it and the digit must stay within 64 bits.
        let room = runtime::le(Expr::acc(v), (word(u64::MAX) - d.clone()) / word(10));
        k.set(fits, Expr::acc(fits).and(room));
        k.set(v, Expr::acc(v) * word(10) + d);
        k.set(seen, Expr::bool(true));
        k.update(BinOp::Add, r.at, int(1));
    });
    let bits = if ty.is_packed() { ty.bits() } else { ty.compute().bits() };
    let (low, high) = if ty.is_signed_int() { (1u64 << (bits - 1), (1u64 << (bits - 1)) - 1) } else { (0, u64::MAX >> (64 - bits)) };
    let in_range = runtime::le(Expr::acc(v), Expr::select(minus.clone(), word(low), word(high)));
    let ok = Expr::acc(seen).and(Expr::acc(fits)).and(in_range).and(r.at_end());
    k.push(Stmt::Check { cond: ok, status: Status::Value });
    let v = Expr::select(minus, word(0) - Expr::acc(v), Expr::acc(v));
    k.let_(Expr::cast(ElemType::U64, ty.compute(), v))
}

/// The f64 that a string is; anything else leaves with `E_VALUE`.
pub fn read_float(k: &mut KernelBuilder, powers: &Powers, s: &Expr) -> Expr {
    let r = Reader::new(k, s);
    let minus = r.sign(k);
    let infinite = ["inf", "infinity"].map(|w| r.word(k, w)).into_iter().reduce(or).unwrap_or(Expr::bool(false));
    let nan = r.word(k, "nan");
    let named = k.let_(or(infinite.clone(), nan.clone()));
    // Digits, of which the first ones count; how far the point is from their end; whether others follow that are not 0.
    let (w, count, e, tail) = (k.acc(word(0)), k.acc(int(0)), k.acc(int(0)), k.acc(Expr::bool(false)));
    let (seen, dotted) = (k.acc(Expr::bool(false)), k.acc(Expr::bool(false)));
    let dot = |b: Expr| eq(b, ascii('.')).and(not(Expr::acc(dotted)));
    k.while_(or(Reader::is_digit(r.peek()), dot(r.peek())), |k| {
        let b = k.let_(r.peek());
        let is_dot = k.let_(eq(b.clone(), ascii('.')));
        k.if_(is_dot.clone(), |k| k.set(dotted, Expr::bool(true)));
        k.if_(not(is_dot), |k| {
            let d = k.let_(Expr::cast(ElemType::U8, ElemType::U64, b) - word(0x30));
            k.set(seen, Expr::bool(true));
            let counts = k.let_(lt(Expr::acc(count), int(DIGITS)));
            let after = k.let_(Expr::select(Expr::acc(dotted), int(1), int(0)));
            k.if_(counts.clone(), |k| {
                k.set(w, Expr::acc(w) * word(10) + d.clone());
                // Zeros in front do not count.
                k.update(BinOp::Add, count, Expr::select(eq(Expr::acc(w), word(0)), int(0), int(1)));
                k.set(e, Expr::acc(e) - after.clone());
            });
            k.if_(not(counts), |k| {
                k.set(tail, or(Expr::acc(tail), Expr::bin(BinOp::Ne, d, word(0))));
                k.set(e, Expr::acc(e) + int(1) - after);
            });
        });
        k.update(BinOp::Add, r.at, int(1));
    });
    let b = k.let_(r.peek());
    let fine = k.acc(Expr::acc(seen));
    k.if_(Expr::acc(seen).and(or(eq(b.clone(), ascii('e')), eq(b, ascii('E')))), |k| {
        k.update(BinOp::Add, r.at, int(1));
        let minus = r.sign(k);
        let (x, any) = (k.acc(int(0)), k.acc(Expr::bool(false)));
        k.while_(Reader::is_digit(r.peek()), |k| {
            let d = Expr::cast(ElemType::U8, ElemType::I64, r.peek()) - int(0x30);
            // Beyond any length of a string.
            k.set(x, (Expr::acc(x) * int(10) + d).min(int(1 << 50)));
            k.set(any, Expr::bool(true));
            k.update(BinOp::Add, r.at, int(1));
        });
        k.set(fine, Expr::acc(any));
        k.set(e, Expr::acc(e) + Expr::select(minus, int(0) - Expr::acc(x), Expr::acc(x)));
    });
    let ok = or(named.clone(), Expr::acc(fine)).and(r.at_end());
    k.push(Stmt::Check { cond: ok, status: Status::Value });
    let bits = k.acc(word(0));
    k.if_(not(named), |k| {
        let v = nearest(k, powers, Expr::acc(w), Expr::acc(e), Expr::acc(tail));
        k.set(bits, v);
    });
    let special = Expr::select(infinite.clone(), word(f64::INFINITY.to_bits()), word(f64::NAN.to_bits()));
    let size = Expr::select(or(infinite, nan), special, Expr::acc(bits));
    let v = Expr::bin(BinOp::Or, size, Expr::select(minus, word(1 << 63), word(0)));
    k.let_(Expr::un(UnOp::Bits(ElemType::F64), v))
}

/// Bits of the f64 nearest to w * 10^e, or to a little more than that.
fn nearest(k: &mut KernelBuilder, powers: &Powers, w: Expr, e: Expr, tail: Expr) -> Expr {
    let (w, e) = (k.let_(w), k.let_(e));
    let bits = k.acc(word(0));
    let huge = k.let_(lt(int(309), e.clone()));
    k.if_(huge.clone().and(Expr::bin(BinOp::Ne, w.clone(), word(0))), |k| k.set(bits, word(f64::INFINITY.to_bits())));
    let inside = not(huge).and(runtime::le(int(LEAST), e.clone())).and(Expr::bin(BinOp::Ne, w.clone(), word(0)));
    k.if_(inside, |k| {
        let (top, shift) = (k.acc(w), k.acc(int(0)));
        k.while_(lt(Expr::acc(top), word(1 << 63)), |k| {
            k.set(top, Expr::acc(top) * word(2));
            k.update(BinOp::Add, shift, int(1));
        });
        let g = powers.get(k, e.clone());
        let (x, x_low) = product(k, g.1, Expr::acc(top));
        let (y, y_low) = product(k, g.0, Expr::acc(top));
        let middle = k.let_(y_low + x.clone());
        let high = k.let_(y + Expr::select(lt(middle.clone(), x), word(1), word(0)));
        let small = k.let_(lt(high.clone(), word(1 << 63)));
        let one = word(1);
        let m = k.let_(Expr::select(small.clone(), Expr::bin(BinOp::Or, shl(high.clone(), one.clone()), shr(middle.clone(), 63)), high));
        let below = k.let_(Expr::select(small.clone(), shl(middle.clone(), one), middle));
        // Powers from 10^-27 to 10^-1 are rounded up, and products with them may be halfway: then the last word is none.
        let rounded = runtime::le(int(-27), e.clone()).and(lt(e.clone(), int(0)));
        let last = Expr::select(rounded, word(0), x_low);
        let more = k.let_(or(tail, Expr::bin(BinOp::Ne, Expr::bin(BinOp::Or, below, last), word(0))));
        let log = Expr::bin(BinOp::Shr, e * int(1_741_647), int(19));
        // Exponent of the highest bit.
        let exponent = k.let_(int(64) + log - Expr::acc(shift) - Expr::select(small, int(1), int(0)));
        let drop = k.let_(int(11).max(int(11 - 1022) - exponent.clone()));
        k.if_(runtime::le(drop.clone(), int(64)), |k| {
            // By 64 bits in two steps.
            let half = k.let_(as_word(drop.clone() - int(1)));
            let kept = k.let_(shr(Expr::bin(BinOp::Shr, m.clone(), half.clone()), 1));
            let first = k.let_(Expr::bin(BinOp::Shr, m.clone(), half.clone()).and(word(1)));
            let rest = m.and(shl(word(1), half) - word(1));
            let beyond = or(more, Expr::bin(BinOp::Ne, rest, word(0)));
            let odd = eq(kept.clone().and(word(1)), word(1));
            let up = eq(first, word(1)).and(or(beyond, odd));
            let n = k.let_(kept + Expr::select(up, word(1), word(0)));
            // The hidden bit adds one to the exponent; a carry runs on into it.
            let normal = runtime::le(int(-1022), exponent.clone());
            let field = Expr::select(normal, exponent.clone() + int(1022), int(0)).max(int(0));
            let v = k.let_(shl(as_word(field), word(52)) + n);
            let infinity = word(f64::INFINITY.to_bits());
            let over = or(lt(int(1023), exponent), runtime::le(infinity.clone(), v.clone()));
            k.set(bits, Expr::select(over, infinity, v));
        });
    });
    k.let_(Expr::acc(bits))
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
