//! Strings as numbers: one product of 64 by 128 bits (Lemire, "Number parsing at a gigabyte per second"),
//! rounded to nearest. It is exact for 19 significant digits. A number with more digits is between the one
//! given by the first 19 digits and its successor. If these have different results, all digits are used
//! (`halfway`).

use super::halfway::Scratch;
use super::numbers::{LEAST, Powers, as_word, ascii, product, shl, shr, word};
use super::{lt, not};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Reg, Status, Stmt, UnOp};
use crate::ops::LowerCx;
use crate::ops::support::runtime::{self, eq, int, or};
use crate::tensor::ElemType;

/// Significant digits that always fit 64 bits.
const DIGITS: i64 = 19;

/// A string being read.
struct Reader<'a> {
    s: &'a Expr,
    at: Reg,
    end: Reg,
}

impl Reader<'_> {
    /// A reader of the string without white space at both ends.
    fn new<'a>(k: &mut KernelBuilder, s: &'a Expr) -> Reader<'a> {
        let (at, end) = (k.acc(int(0)), k.acc(Expr::text_len(s.clone())));
        let r = Reader { s, at, end };
        let space = |b: Expr| {
            or(
                eq(b.clone(), ascii(' ')),
                runtime::le(ascii('\t'), b.clone()).and(runtime::le(b, ascii('\r'))),
            )
        };
        let more = lt(Expr::acc(at), Expr::acc(end));
        k.while_(
            Expr::select(more.clone(), space(Expr::text_byte(s.clone(), Expr::acc(at))), Expr::bool(false)),
            |k| k.update(BinOp::Add, at, int(1)),
        );
        k.while_(
            Expr::select(more, space(Expr::text_byte(s.clone(), Expr::acc(end) - int(1))), Expr::bool(false)),
            |k| k.update(BinOp::Sub, end, int(1)),
        );
        r
    }
    /// The next byte, 0 at the end.
    fn peek(&self) -> Expr {
        Expr::select(
            lt(Expr::acc(self.at), Expr::acc(self.end)),
            Expr::text_byte(self.s.clone(), Expr::acc(self.at)),
            Expr::int(ElemType::U8, 0),
        )
    }
    /// Consumes a sign; true for a minus.
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
    /// Consumes a word, case-insensitively, if it is the whole rest; true if so.
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

/// The integer of type `ty` in a string; anything else is an error (`E_VALUE`).
pub fn read_int(k: &mut KernelBuilder, s: &Expr, ty: ElemType) -> Expr {
    let r = Reader::new(k, s);
    let minus = r.sign(k);
    let (v, seen, fits) = (k.acc(word(0)), k.acc(Expr::bool(false)), k.acc(Expr::bool(true)));
    k.while_(Reader::is_digit(r.peek()), |k| {
        let d = k.let_(Expr::cast(ElemType::U8, ElemType::U64, r.peek()) - word(0x30));
        // Ten times the value plus the digit must fit 64 bits.
        let room = runtime::le(Expr::acc(v), (word(u64::MAX) - d.clone()) / word(10));
        k.set(fits, Expr::acc(fits).and(room));
        k.set(v, Expr::acc(v) * word(10) + d);
        k.set(seen, Expr::bool(true));
        k.update(BinOp::Add, r.at, int(1));
    });
    let bits = if ty.is_packed() { ty.bits() } else { ty.compute().bits() };
    let (low, high) = if ty.is_signed_int() {
        (1u64 << (bits - 1), (1u64 << (bits - 1)) - 1)
    } else {
        (0, u64::MAX >> (64 - bits))
    };
    let in_range = runtime::le(Expr::acc(v), Expr::select(minus.clone(), word(low), word(high)));
    let ok = Expr::acc(seen).and(Expr::acc(fits)).and(in_range).and(r.at_end());
    k.push(Stmt::Check { cond: ok, status: Status::Value });
    let v = Expr::select(minus, word(0) - Expr::acc(v), Expr::acc(v));
    k.let_(Expr::cast(ElemType::U64, ty.compute(), v))
}

/// The digits of a decimal.
pub struct Decimal {
    /// Its first significant digits.
    w: Reg,
    /// Number of these digits.
    count: Reg,
    /// The power of ten of the last one.
    e: Reg,
    /// True if other nonzero digits follow.
    tail: Reg,
    /// Position of the first one.
    first: Reg,
}

impl Decimal {
    fn new(k: &mut KernelBuilder) -> Decimal {
        Decimal {
            w: k.acc(word(0)),
            count: k.acc(int(0)),
            e: k.acc(int(0)),
            tail: k.acc(Expr::bool(false)),
            first: k.acc(int(0)),
        }
    }
    /// The power of ten of the first digit.
    pub(super) fn lead(&self) -> Expr {
        Expr::acc(self.e) + Expr::acc(self.count) - int(1)
    }
    /// Position of the first digit.
    pub(super) fn first(&self) -> Expr {
        Expr::acc(self.first)
    }
    /// Reads digits with an optional point; true if there is a digit.
    fn digits(&self, k: &mut KernelBuilder, r: &Reader) -> Expr {
        let (seen, dotted) = (k.acc(Expr::bool(false)), k.acc(Expr::bool(false)));
        let dot = |b: Expr| eq(b, ascii('.')).and(not(Expr::acc(dotted)));
        k.while_(or(Reader::is_digit(r.peek()), dot(r.peek())), |k| {
            let b = k.let_(r.peek());
            let is_dot = k.let_(eq(b.clone(), ascii('.')));
            k.if_(is_dot.clone(), |k| k.set(dotted, Expr::bool(true)));
            k.if_(not(is_dot), |k| {
                let d = k.let_(Expr::cast(ElemType::U8, ElemType::U64, b) - word(0x30));
                k.set(seen, Expr::bool(true));
                let counts = k.let_(lt(Expr::acc(self.count), int(DIGITS)));
                let after = k.let_(Expr::select(Expr::acc(dotted), int(1), int(0)));
                k.if_(counts.clone(), |k| {
                    k.set(
                        self.first,
                        Expr::select(
                            eq(Expr::acc(self.count), int(0)),
                            Expr::acc(r.at),
                            Expr::acc(self.first),
                        ),
                    );
                    k.set(self.w, Expr::acc(self.w) * word(10) + d.clone());
                    // Leading zeros do not count.
                    k.update(
                        BinOp::Add,
                        self.count,
                        Expr::select(eq(Expr::acc(self.w), word(0)), int(0), int(1)),
                    );
                    k.set(self.e, Expr::acc(self.e) - after.clone());
                });
                k.if_(not(counts), |k| {
                    k.set(self.tail, or(Expr::acc(self.tail), Expr::bin(BinOp::Ne, d, word(0))));
                    k.set(self.e, Expr::acc(self.e) + int(1) - after);
                });
            });
            k.update(BinOp::Add, r.at, int(1));
        });
        k.let_(Expr::acc(seen))
    }
    /// Bits of the nearest f64, and whether it may be the next one instead, which only a comparison of all
    /// digits can decide.
    fn nearest(
        &self,
        k: &mut KernelBuilder,
        powers: &Powers,
        s: &Expr,
        exact: Option<Scratch>,
    ) -> (Expr, Expr) {
        let (bits, other) = (k.acc(word(0)), k.acc(word(0)));
        let turn = k.acc(word(0));
        let turns = k.let_(Expr::select(Expr::acc(self.tail), word(2), word(1)));
        k.while_(lt(Expr::acc(turn), turns), |k| {
            let v = nearest(k, powers, Expr::acc(self.w) + Expr::acc(turn), Expr::acc(self.e));
            k.set(bits, Expr::select(eq(Expr::acc(turn), word(0)), v.clone(), Expr::acc(bits)));
            k.set(other, v);
            k.update(BinOp::Add, turn, word(1));
        });
        let unsure = k.let_(Expr::bin(BinOp::Ne, Expr::acc(bits), Expr::acc(other)));
        if let Some(scratch) = exact {
            k.if_(unsure.clone(), |k| {
                let v = scratch.decide(k, s, self, Expr::acc(bits));
                k.set(bits, v);
            });
        }
        (k.let_(Expr::acc(bits)), unsure)
    }
}

/// The f64 in a string; anything else is an error (`E_VALUE`). The second result is true if the value may be
/// the next larger one in magnitude; with memory the value is exact.
pub fn read_float(k: &mut KernelBuilder, powers: &Powers, s: &Expr, exact: Option<Scratch>) -> (Expr, Expr) {
    let r = Reader::new(k, s);
    let minus = r.sign(k);
    let infinite =
        ["inf", "infinity"].map(|w| r.word(k, w)).into_iter().reduce(or).unwrap_or(Expr::bool(false));
    let nan = r.word(k, "nan");
    let named = k.let_(or(infinite.clone(), nan.clone()));
    let decimal = Decimal::new(k);
    let seen = decimal.digits(k, &r);
    let b = k.let_(r.peek());
    let fine = k.acc(seen.clone());
    k.if_(seen.and(or(eq(b.clone(), ascii('e')), eq(b, ascii('E')))), |k| {
        k.update(BinOp::Add, r.at, int(1));
        let minus = r.sign(k);
        let (x, any) = (k.acc(int(0)), k.acc(Expr::bool(false)));
        k.while_(Reader::is_digit(r.peek()), |k| {
            let d = Expr::cast(ElemType::U8, ElemType::I64, r.peek()) - int(0x30);
            // Larger than any length of a string.
            k.set(x, (Expr::acc(x) * int(10) + d).min(int(1 << 50)));
            k.set(any, Expr::bool(true));
            k.update(BinOp::Add, r.at, int(1));
        });
        k.set(fine, Expr::acc(any));
        k.set(decimal.e, Expr::acc(decimal.e) + Expr::select(minus, int(0) - Expr::acc(x), Expr::acc(x)));
    });
    let ok = or(named.clone(), Expr::acc(fine)).and(r.at_end());
    k.push(Stmt::Check { cond: ok, status: Status::Value });
    let (bits, open) = (k.acc(word(0)), k.acc(Expr::bool(false)));
    k.if_(not(named), |k| {
        let (v, unsure) = decimal.nearest(k, powers, s, exact);
        k.set(bits, v);
        k.set(open, unsure);
    });
    let special = Expr::select(infinite.clone(), word(f64::INFINITY.to_bits()), word(f64::NAN.to_bits()));
    let size = Expr::select(or(infinite, nan), special, Expr::acc(bits));
    let v = Expr::bin(BinOp::Or, size, Expr::select(minus, word(1 << 63), word(0)));
    (k.let_(Expr::un(UnOp::Bits(ElemType::F64), v)), k.let_(Expr::acc(open)))
}

/// Elements of `x` as f64, converted and stored in `y`. The few elements that need all of their digits are
/// handled one by one after the others.
pub fn read_floats(cx: &mut LowerCx, x: Buf, y: Buf, convert: impl Fn(&mut KernelBuilder, Expr) -> Expr) {
    let powers = Powers::new(cx.m);
    let dims = cx.dims(y);
    let open = cx.temp("open", ElemType::Bool, dims.clone());
    let scratch = Scratch::new(cx);
    for (kind, exact) in [(LoopKind::Par, None), (LoopKind::Seq, Some(scratch))] {
        cx.kernel(|k| {
            k.nest(kind, &dims, |k, at| {
                let one = |k: &mut KernelBuilder| {
                    let s = k.load(x, at);
                    let s = k.let_(s);
                    let (v, unsure) = read_float(k, &powers, &s, exact);
                    let v = convert(k, v);
                    k.store(y, at, v);
                    unsure
                };
                if exact.is_none() {
                    let unsure = one(k);
                    k.store(open, at, unsure);
                } else {
                    let again = k.load(open, at);
                    k.if_(again, |k| drop(one(k)));
                }
            });
        });
    }
}

/// Bits of the f64 nearest to w * 10^e.
fn nearest(k: &mut KernelBuilder, powers: &Powers, w: Expr, e: Expr) -> Expr {
    let (w, e) = (k.let_(w), k.let_(e));
    let bits = k.acc(word(0));
    let huge = k.let_(lt(int(309), e.clone()));
    k.if_(huge.clone().and(Expr::bin(BinOp::Ne, w.clone(), word(0))), |k| {
        k.set(bits, word(f64::INFINITY.to_bits()))
    });
    let inside =
        not(huge).and(runtime::le(int(LEAST), e.clone())).and(Expr::bin(BinOp::Ne, w.clone(), word(0)));
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
        let m = k.let_(Expr::select(
            small.clone(),
            Expr::bin(BinOp::Or, shl(high.clone(), one.clone()), shr(middle.clone(), 63)),
            high,
        ));
        let below = k.let_(Expr::select(small.clone(), shl(middle.clone(), one), middle));
        // Powers from 10^-27 to 10^-1 are rounded up, and their products may be halfway cases. The last word
        // is then ignored.
        let rounded = runtime::le(int(-27), e.clone()).and(lt(e.clone(), int(0)));
        let last = Expr::select(rounded, word(0), x_low);
        let more = k.let_(Expr::bin(BinOp::Ne, Expr::bin(BinOp::Or, below, last), word(0)));
        let log = Expr::bin(BinOp::Shr, e * int(1_741_647), int(19));
        // Exponent of the highest bit.
        let exponent = k.let_(int(64) + log - Expr::acc(shift) - Expr::select(small, int(1), int(0)));
        let drop = k.let_(int(11).max(int(11 - 1022) - exponent.clone()));
        k.if_(runtime::le(drop.clone(), int(64)), |k| {
            // A shift by 64 bits takes two steps.
            let half = k.let_(as_word(drop.clone() - int(1)));
            let kept = k.let_(shr(Expr::bin(BinOp::Shr, m.clone(), half.clone()), 1));
            let first = k.let_(Expr::bin(BinOp::Shr, m.clone(), half.clone()).and(word(1)));
            let rest = m.and(shl(word(1), half) - word(1));
            let beyond = or(more, Expr::bin(BinOp::Ne, rest, word(0)));
            let odd = eq(kept.clone().and(word(1)), word(1));
            let up = eq(first, word(1)).and(or(beyond, odd));
            let n = k.let_(kept + Expr::select(up, word(1), word(0)));
            // The hidden bit adds one to the exponent, and a carry propagates into it.
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
