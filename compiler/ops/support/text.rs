//! Code shared by operators on strings: creating strings, reading them by code point, and looking them up.
//!
//! New strings are first measured and then written by the same code: a [`Sink`] either counts or stores.
//! Their bytes are consecutive in memory that is live until the end of the call ([`crate::nest::Texts`]).
//! Substrings of existing strings need no memory.

pub mod automaton;
pub mod fixed;
pub mod halfway;
pub mod letters;
pub mod numbers;
pub mod parse;
pub mod parts;
pub mod re2;

use super::runtime;
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Module, Reg, Status, Stmt, Texts, UnOp};
use crate::ops::LowerCx;
use crate::sym::Dim;
use crate::tensor::{ConstData, ElemType};
use runtime::{eq, int};
use std::sync::Arc;

/// `a < b`.
pub fn lt(a: Expr, b: Expr) -> Expr {
    Expr::bin(BinOp::Lt, a, b)
}

/// `!a`.
pub fn not(a: Expr) -> Expr {
    Expr::un(UnOp::Not, a)
}

/// Strings as a constant vector.
pub fn list<T: AsRef<[u8]>>(m: &mut Module, name: &str, v: &[T]) -> Buf {
    let data =
        ConstData::strings(vec![v.len() as i64], v.iter().map(|s| s.as_ref().to_vec().into()).collect());
    m.constant(name, Arc::new(data.unwrap_or_else(|| ConstData::from_i64s(&[]))))
}

/// One string as a constant.
pub fn constant(m: &mut Module, name: &str, s: impl AsRef<[u8]>) -> Expr {
    let buf = list(m, name, &[s]);
    Expr::Load { buf, at: vec![Dim::constant(0)] }
}

/// The destination of the bytes of new strings.
pub struct Sink {
    /// Position of the next byte.
    at: Reg,
    /// The memory; `None` while bytes are counted.
    to: Option<(Texts, Dim)>,
}

impl Sink {
    /// Appends a byte, of type u8.
    pub fn byte(&self, k: &mut KernelBuilder, b: Expr) {
        if let Some((t, room)) = self.to {
            k.at_index(Expr::acc(self.at), room, |k, i| k.store(t.bytes, &[i], b));
        }
        k.update(BinOp::Add, self.at, int(1));
    }
    /// Appends all bytes of a string.
    pub fn text(&self, k: &mut KernelBuilder, s: Expr) {
        let s = k.let_(s);
        let n = k.let_(Expr::text_len(s.clone()));
        if let Some((t, room)) = self.to {
            let i = k.acc(int(0));
            k.while_(lt(Expr::acc(i), n.clone()), |k| {
                let b = Expr::text_byte(s, Expr::acc(i));
                k.at_index(Expr::acc(self.at) + Expr::acc(i), room, |k, at| k.store(t.bytes, &[at], b));
                k.update(BinOp::Add, i, int(1));
            });
        }
        k.update(BinOp::Add, self.at, n);
    }
    /// The string of the bytes from `from` on, if they are stored.
    fn since(&self, from: Expr) -> Option<Expr> {
        self.to.map(|(t, _)| Expr::text_part(Expr::text_of(t.bytes), from.clone(), Expr::acc(self.at) - from))
    }
}

/// Stores a new string for each element of `out`: `write` passes its bytes to the sink.
pub fn produce(cx: &mut LowerCx, out: Buf, write: impl Fn(&mut KernelBuilder, &[Dim], &Sink)) {
    let dims = cx.dims(out);
    let from = cx.temp("from", ElemType::I64, dims.clone());
    let texts = cx.m.texts();
    let room = cx.m.bufs[texts.bytes].dims[0];
    let zero = Dim::constant(0);
    cx.kernel(|k| {
        let taken = k.load(texts.taken, &[zero]);
        let at = k.acc(taken);
        k.nest(LoopKind::Seq, &dims, |k, i| {
            k.store(from, i, Expr::acc(at));
            write(k, i, &Sink { at, to: None });
            k.push(Stmt::Check {
                cond: runtime::le(Expr::acc(at), Expr::index(room)),
                status: Status::Capacity,
            });
        });
        k.store(texts.taken, &[zero], Expr::acc(at));
    });
    cx.kernel(|k| {
        k.nest(LoopKind::Par, &dims, |k, i| {
            let start = k.load(from, i);
            let start = k.let_(start);
            let at = k.acc(start.clone());
            let sink = Sink { at, to: Some((texts, room)) };
            write(k, i, &sink);
            if let Some(s) = sink.since(start) {
                k.store(out, i, s);
            }
        });
    });
}

/// A code point of a string: its value and its number of bytes, both i64. Invalid UTF-8 gives arbitrary
/// values, but never more bytes than there are. `at` must be inside.
pub fn code_point(k: &mut KernelBuilder, s: &Expr, at: Expr) -> (Expr, Expr) {
    let at = k.let_(at);
    let byte = |e: Expr| Expr::cast(ElemType::U8, ElemType::I64, e);
    let first = k.let_(byte(Expr::text_byte(s.clone(), at.clone())));
    let left = Expr::text_len(s.clone()) - at.clone();
    let (value, size) = (k.acc(first.clone()), k.acc(int(1)));
    k.if_(Expr::bin(BinOp::Ge, first.clone(), int(0x80)), |k| {
        let from = |limit: i64| runtime::one_if(Expr::bin(BinOp::Ge, first.clone(), int(limit)));
        let n = k.let_((int(1) + from(0xc0) + from(0xe0) + from(0xf0)).min(left));
        k.set(size, n.clone());
        // The payload bits of the first byte: five for two bytes, four for three, three for four.
        let bits = Expr::select(
            lt(first.clone(), int(0xe0)),
            int(0x1f),
            Expr::select(lt(first.clone(), int(0xf0)), int(0x0f), int(7)),
        );
        k.set(value, first.clone().and(bits));
        let i = k.acc(int(1));
        k.while_(lt(Expr::acc(i), n), |k| {
            let b = byte(Expr::text_byte(s.clone(), at.clone() + Expr::acc(i)));
            k.set(value, Expr::acc(value) * int(64) + b.and(int(0x3f)));
            k.update(BinOp::Add, i, int(1));
        });
    });
    let (value, size) = (k.let_(Expr::acc(value)), k.let_(Expr::acc(size)));
    (value, size)
}

/// The number of code points of a string: bytes that are not continuation bytes.
pub fn count_points(k: &mut KernelBuilder, s: &Expr) -> Expr {
    let (i, n) = (k.acc(int(0)), k.acc(int(0)));
    k.while_(lt(Expr::acc(i), Expr::text_len(s.clone())), |k| {
        let b = Expr::text_byte(s.clone(), Expr::acc(i)).and(Expr::int(ElemType::U8, 0xc0));
        k.update(BinOp::Add, n, runtime::one_if(Expr::bin(BinOp::Ne, b, Expr::int(ElemType::U8, 0x80))));
        k.update(BinOp::Add, i, int(1));
    });
    k.let_(Expr::acc(n))
}

/// A hash table from keys to their numbers, with open addressing.
pub struct Dictionary {
    /// -1 or the number of a key; the length is a power of two.
    slots: Buf,
    size: i64,
    keys: Buf,
    count: i64,
}

/// Multiplier of FNV-1a, for 64 bits.
const PRIME: u64 = 0x0100_0000_01b3;
/// Initial hash value.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// Multiplicative hash of integers: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn hash_bytes(s: &[u8]) -> u64 {
    s.iter().fold(BASIS, |h, b| (h ^ u64::from(*b)).wrapping_mul(PRIME))
}

/// Uses the high bits, which are the best mixed after a multiplication.
fn slot(hash: u64, size: i64) -> usize {
    (hash.wrapping_mul(GOLDEN) >> (64 - size.trailing_zeros())) as usize
}

impl Dictionary {
    /// A table of strings; the first of equal keys counts.
    pub fn of_strings<T: AsRef<[u8]>>(m: &mut Module, keys: &[T]) -> Dictionary {
        let hashes: Vec<u64> = keys.iter().map(|s| hash_bytes(s.as_ref())).collect();
        let buf = list(m, "keys", keys);
        Dictionary::new(m, buf, &hashes, &|i, j| keys[i].as_ref() == keys[j].as_ref())
    }
    /// A table of integers.
    pub fn of_ints(m: &mut Module, keys: &[i64]) -> Dictionary {
        let hashes: Vec<u64> = keys.iter().map(|v| *v as u64).collect();
        let buf = m.constant("keys", Arc::new(ConstData::from_i64s(keys)));
        Dictionary::new(m, buf, &hashes, &|i, j| keys[i] == keys[j])
    }
    fn new(m: &mut Module, keys: Buf, hashes: &[u64], same: &dyn Fn(usize, usize) -> bool) -> Dictionary {
        let size = (hashes.len().max(1) * 2).next_power_of_two().max(2);
        let mut slots = vec![-1i64; size];
        for (i, h) in hashes.iter().enumerate() {
            let mut at = slot(*h, size as i64);
            while slots[at] >= 0 && !same(slots[at] as usize, i) {
                at = (at + 1) % size;
            }
            if slots[at] < 0 {
                slots[at] = i as i64;
            }
        }
        let slots = m.constant("slots", Arc::new(ConstData::from_i64s(&slots)));
        Dictionary { slots, size: size as i64, keys, count: hashes.len() as i64 }
    }
    /// The number of the key that equals `v` (a string or an i64), or -1.
    pub fn find(&self, k: &mut KernelBuilder, v: Expr) -> Expr {
        let v = k.let_(v);
        let word = |v: u64| Expr::int(ElemType::U64, v as i64);
        let hash = if k.m.type_of(&v) == ElemType::Str {
            let (h, i) = (k.acc(word(BASIS)), k.acc(int(0)));
            k.while_(lt(Expr::acc(i), Expr::text_len(v.clone())), |k| {
                let b = Expr::cast(ElemType::U8, ElemType::U64, Expr::text_byte(v.clone(), Expr::acc(i)));
                k.set(h, Expr::bin(BinOp::Xor, Expr::acc(h), b) * word(PRIME));
                k.update(BinOp::Add, i, int(1));
            });
            Expr::acc(h)
        } else {
            Expr::cast(ElemType::I64, ElemType::U64, v.clone())
        };
        let start =
            Expr::bin(BinOp::Shr, hash * word(GOLDEN), word(u64::from(64 - self.size.trailing_zeros())));
        let (at, found) = (k.acc(Expr::cast(ElemType::U64, ElemType::I64, start)), k.acc(int(-2)));
        let (size, keys) = (Dim::constant(self.size), Dim::constant(self.count.max(1)));
        k.while_(eq(Expr::acc(found), int(-2)), |k| {
            let here = k.with_index(Expr::acc(at), size, |k, i| k.load(self.slots, &[i]));
            let here = k.let_(here);
            // Another key: continue with the next slot.
            let other = if self.count == 0 {
                Expr::bool(false)
            } else {
                k.with_index(here.clone(), keys, |k, i| {
                    Expr::bin(BinOp::Ne, k.load(self.keys, &[i]), v.clone())
                })
            };
            let other = Expr::select(lt(here.clone(), int(0)), Expr::bool(false), other);
            k.set(found, Expr::select(other, int(-2), here));
            k.set(at, (Expr::acc(at) + int(1)).and(int(self.size - 1)));
        });
        k.let_(Expr::acc(found))
    }
}
