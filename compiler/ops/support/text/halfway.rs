//! Exact comparison, digit by digit, of a decimal with more digits than a word holds with the midpoint of two
//! floats.

use super::lt;
use super::numbers::{as_int, ascii, shr, top_power, word};
use super::parse::Decimal;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, Reg};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{eq, int, le, or};
use crate::sym::Dim;
use crate::tensor::ElemType;

/// Words for the digits of a midpoint, nine digits each: there are at most 768 digits.
const WORDS: i64 = 90;
const BASE: u64 = 1_000_000_000;

/// Memory for the digits of one number at a time.
#[derive(Clone, Copy)]
pub struct Scratch(Buf);

impl Scratch {
    /// Adds the memory to a module.
    pub fn new(cx: &mut LowerCx) -> Scratch {
        Scratch(cx.temp("digits", ElemType::U64, vec![Dim::constant(WORDS)]))
    }
    fn get(self, k: &mut KernelBuilder, i: Expr) -> Expr {
        let v = k.with_index(i, Dim::constant(WORDS), |k, i| k.load(self.0, &[i]));
        k.let_(v)
    }
    fn set(self, k: &mut KernelBuilder, i: Expr, v: Expr) {
        k.at_index(i, Dim::constant(WORDS), |k, i| k.store(self.0, &[i], v));
    }
    /// The midpoint of a positive f64 of these bits and its successor, as an integer times a power of ten:
    /// the number of words of the integer, and the power.
    fn middle(self, k: &mut KernelBuilder, bits: &Expr) -> (Reg, Expr) {
        let exponent = k.let_(as_int(shr(bits.clone(), 52)));
        let fraction = bits.clone().and(word((1 << 52) - 1));
        let m = k.let_(fraction + Expr::select(lt(int(0), exponent.clone()), word(1 << 52), word(0)));
        // h * 2^t, and 2^t is 5^-t * 10^t.
        let h = k.let_(m * word(2) + word(1));
        let t = k.let_(exponent.max(int(1)) - int(1076));
        let high = k.let_(h.clone() / word(BASE));
        self.set(k, int(0), h - high.clone() * word(BASE));
        self.set(k, int(1), high.clone());
        let n = k.acc(Expr::select(eq(high, word(0)), int(1), int(2)));
        let below = k.let_(lt(t.clone(), int(0)));
        let (one, twelve) = (
            k.let_(Expr::select(below.clone(), word(5), word(2))),
            k.let_(Expr::select(below.clone(), word(5u64.pow(12)), word(1 << 12))),
        );
        let left = k.acc(Expr::select(below, int(0) - t.clone(), t.clone()));
        k.while_(lt(int(0), Expr::acc(left)), |k| {
            let many = k.let_(le(int(12), Expr::acc(left)));
            k.update(BinOp::Sub, left, Expr::select(many.clone(), int(12), int(1)));
            let by = k.let_(Expr::select(many, twelve, one));
            let (i, carry) = (k.acc(int(0)), k.acc(word(0)));
            k.while_(lt(Expr::acc(i), Expr::acc(n)), |k| {
                let v = self.get(k, Expr::acc(i));
                let v = k.let_(v * by + Expr::acc(carry));
                let over = k.let_(v.clone() / word(BASE));
                self.set(k, Expr::acc(i), v - over.clone() * word(BASE));
                k.set(carry, over);
                k.update(BinOp::Add, i, int(1));
            });
            k.if_(lt(word(0), Expr::acc(carry)), |k| {
                self.set(k, Expr::acc(n), Expr::acc(carry));
                k.update(BinOp::Add, n, int(1));
            });
        });
        (n, k.let_(t.min(int(0))))
    }
    /// The float nearest to a decimal between the float of these bits and its successor, ties to even.
    pub fn decide(self, k: &mut KernelBuilder, s: &Expr, d: &Decimal, bits: Expr) -> Expr {
        let bits = k.let_(bits);
        let (n, power) = self.middle(k, &bits);
        let top = self.get(k, Expr::acc(n) - int(1));
        let (p, digits) = top_power(k, &top);
        let left = k.acc(Expr::acc(digits) + (Expr::acc(n) - int(1)) * int(9));
        // Compares the decimal with the midpoint, first by the power of ten of the first digit.
        let lead = k.let_(d.lead() - (Expr::acc(left) - int(1) + power));
        let order = k.acc(Expr::select(
            lt(lead.clone(), int(0)),
            int(-1),
            Expr::select(lt(int(0), lead), int(1), int(0)),
        ));
        let (at, ended) = (k.acc(d.first()), k.acc(Expr::bool(false)));
        let (group, word_at) = (k.acc(top), k.acc(Expr::acc(n) - int(1)));
        let more = or(lt(int(0), Expr::acc(left)), eq(Expr::acc(ended), Expr::bool(false)));
        k.while_(eq(Expr::acc(order), int(0)).and(more), |k| {
            let inside = lt(Expr::acc(at), Expr::text_len(s.clone()));
            let b = k.let_(Expr::select(
                inside,
                Expr::text_byte(s.clone(), Expr::acc(at)),
                Expr::int(ElemType::U8, 0),
            ));
            k.update(BinOp::Add, at, int(1));
            let dot = k.let_(eq(b.clone(), ascii('.')));
            let digit = k.let_(le(ascii('0'), b.clone()).and(le(b.clone(), ascii('9'))));
            k.set(ended, or(Expr::acc(ended), eq(or(dot.clone(), digit.clone()), Expr::bool(false))));
            k.if_(eq(dot, Expr::bool(false)), |k| {
                let own = Expr::cast(ElemType::U8, ElemType::U64, b) - word(0x30);
                let own = k.let_(Expr::select(Expr::acc(ended), word(0), own));
                let other = k.acc(word(0));
                k.if_(lt(int(0), Expr::acc(left)), |k| {
                    let v = k.let_(Expr::acc(group) / Expr::acc(p));
                    k.set(other, v.clone());
                    k.set(group, Expr::acc(group) - v * Expr::acc(p));
                    k.set(p, Expr::acc(p) / word(10));
                    k.update(BinOp::Sub, left, int(1));
                    let next = eq(Expr::acc(p), word(0)).and(lt(int(0), Expr::acc(left)));
                    k.if_(next, |k| {
                        k.update(BinOp::Sub, word_at, int(1));
                        let v = self.get(k, Expr::acc(word_at));
                        k.set(group, v);
                        k.set(p, word(BASE / 10));
                    });
                });
                let larger = lt(Expr::acc(other), own.clone());
                k.set(
                    order,
                    Expr::select(larger, int(1), Expr::select(lt(own, Expr::acc(other)), int(-1), int(0))),
                );
            });
        });
        let odd = eq(bits.clone().and(word(1)), word(1));
        let up = or(lt(int(0), Expr::acc(order)), eq(Expr::acc(order), int(0)).and(odd));
        k.let_(bits + Expr::select(up, word(1), word(0)))
    }
}
