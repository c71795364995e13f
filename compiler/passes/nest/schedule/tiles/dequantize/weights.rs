//! Weights of few bits, packed in words: conversion of an element to a float.

use super::{Place, byte_dots};
use crate::nest::key::Writer;
use crate::nest::{BinOp, Buf, Expr, Module, Stmt, UnOp};
use crate::sym::{Dim, Sym};
use crate::tensor::words::position;
use crate::tensor::{ElemType, SmallFloat};

/// The value that is subtracted from elements.
#[derive(Clone, Copy)]
pub(crate) enum Zero {
    /// One number.
    Number(f32),
    /// `[panel][block][column]`, and an additional constant.
    Table(Buf, f32),
}

/// The encoding of elements.
#[derive(Clone, Copy)]
pub(crate) enum Code {
    /// Unsigned integers.
    Integer,
    /// Finite numbers of a small float format.
    Float(SmallFloat),
    /// Indices into a constant table with an entry for each code.
    Place(Buf),
}

/// The factors of elements, `[panel][block][column]`.
#[derive(Clone, Copy)]
pub(crate) enum Scale {
    /// Floats.
    Float(Buf),
    /// Exponents of two with a bias of 127: none of them is 0 or 255.
    Power(Buf),
}

/// The weights, packed.
#[derive(Clone)]
pub(crate) struct Nest {
    /// The column loop and its extent.
    pub n: Sym,
    pub columns: i64,
    /// Columns of a panel.
    pub width: i64,
    /// The row loop and its extent.
    pub row: Option<(Sym, Dim)>,
    /// Other row loops, which are not contiguous with it.
    pub outer: Vec<(Sym, Dim)>,
    /// `[panel][word][column]`.
    pub words: Buf,
    pub bits: i64,
    pub code: Code,
    pub scale: Option<Scale>,
    pub zero: Option<Zero>,
    /// Elements of a block: whole words, or the whole column.
    pub block: i64,
    /// Elements of a column.
    pub reduction: i64,
    /// The activations quantized to 8 bits, if the model allows it and the level has dot products of bytes.
    pub bytes: Option<byte_dots::Bytes>,
}

impl Nest {
    /// Writes everything into a key.
    pub fn key(&self, w: &mut Writer) {
        let Nest { n, columns, width, row, outer, words, bits, code, scale, zero, block, reduction, bytes } =
            self;
        w.sym(*n);
        w.put([*columns, *width, *bits, *block, *reduction].map(|n| n as u64));
        w.loops(&row.iter().chain(outer).copied().collect::<Vec<_>>());
        w.put([u64::from(row.is_some())]);
        w.buf(*words);
        match code {
            Code::Integer => w.put([0]),
            Code::Float(f) => {
                w.put([1]);
                w.plain(f);
            }
            Code::Place(values) => {
                w.put([2]);
                w.buf(*values);
            }
        }
        match scale {
            None => w.put([0]),
            Some(Scale::Float(b)) => {
                w.put([1]);
                w.buf(*b);
            }
            Some(Scale::Power(b)) => {
                w.put([2]);
                w.buf(*b);
            }
        }
        match zero {
            None => w.put([0]),
            Some(Zero::Number(v)) => w.put([1, u64::from(v.to_bits())]),
            Some(Zero::Table(b, by)) => {
                w.put([2, u64::from(by.to_bits())]);
                w.buf(*b);
            }
        }
        w.put([u64::from(bytes.is_some())]);
        if let Some(bytes) = bytes {
            bytes.key(w);
        }
    }
    /// Elements of a word.
    pub(in super::super) fn per_word(&self) -> i64 {
        32 / self.bits
    }
    /// Wraps a body in the other row loops.
    pub(in super::super) fn around(&self, body: Vec<Stmt>) -> Vec<Stmt> {
        self.outer.iter().rev().fold(body, |body, (var, hi)| vec![Stmt::seq(*var, *hi, body)])
    }
    /// Element `j` of a word as a float.
    pub(in super::super) fn field(&self, m: &mut Module, word: Expr, j: i64) -> Expr {
        let (int, place) = (ElemType::I32, position(self.bits, j));
        if let Code::Float(f) = self.code {
            return small_float(m, f, word, (self.bits * place) as u32);
        }
        let word =
            if place == 0 { word } else { Expr::bin(BinOp::Shr, word, Expr::int(int, self.bits * place)) };
        let code = word.and(Expr::int(int, (1 << self.bits) - 1));
        match self.code {
            Code::Place(values) => {
                let extent = Dim::constant(1 << self.bits);
                let sym = m.syms.loop_var("x", Dim::constant(0), extent);
                let number = Expr::Load { buf: values, at: vec![sym.into()] };
                Expr::With { sym, value: Box::new(code), extent, body: Box::new(number) }
            }
            _ => Expr::cast(int, ElemType::F32, code),
        }
    }
    pub(in super::super) fn word(&self, at: Place, word: Dim, lane: Dim) -> Expr {
        Expr::Load { buf: self.words, at: vec![at.panel, word, at.column + lane] }
    }
    /// The zero point of a block, as a float.
    pub(in super::super) fn zero(&self, m: &Module, at: Place, block: Dim, lane: Dim) -> Option<Expr> {
        self.zero.as_ref().map(|z| match z {
            Zero::Number(v) => Expr::f32(*v),
            Zero::Table(buf, by) => {
                let v = Expr::Load { buf: *buf, at: vec![at.panel, block, at.column + lane] };
                let ty = m.bufs[*buf].ty.compute();
                let v = if ty.is_int() {
                    Expr::cast(ElemType::I32, ElemType::F32, Expr::cast(ty, ElemType::I32, v))
                } else {
                    v
                };
                if *by == 0.0 { v } else { v + Expr::f32(*by) }
            }
        })
    }
    pub(in super::super) fn scale(&self, at: Place, block: Dim, lane: Dim) -> Option<Expr> {
        let of = |buf: Buf| Expr::Load { buf, at: vec![at.panel, block, at.column + lane] };
        self.scale.map(|s| match s {
            Scale::Float(buf) => of(buf),
            Scale::Power(buf) => {
                let code = Expr::cast(ElemType::U8, ElemType::I32, of(buf));
                Expr::un(UnOp::Bits(ElemType::F32), Expr::bin(BinOp::Shl, code, Expr::int(ElemType::I32, 23)))
            }
        })
    }
    /// An element as in the model.
    pub(in super::super) fn value(
        &self,
        m: &mut Module,
        at: Place,
        (word, j): (Dim, i64),
        block: Dim,
        lane: Dim,
    ) -> Expr {
        let v = self.field(m, self.word(at, word, lane), j);
        let v = match self.zero(m, at, block, lane) {
            Some(z) => v - z,
            None => v,
        };
        match self.scale(at, block, lane) {
            Some(s) => v * s,
            None => v,
        }
    }
}

/// The number of format `f` whose code is in a word from bit `low` on, as a float.
///
/// With the exponent of the format moved to that of f32, `u` is the number wherever the exponent is not 0.
/// Else it is `2^-bias (1 + m)` where `2^(1 - bias) m = 2 u - 2^(1 - bias)` is wanted. The smaller of both is
/// right: they are equal at the least number with an exponent, and the second one grows twice as fast.
/// Subnormal floats, which are slow, never appear.
fn small_float(m: &mut Module, f: SmallFloat, word: Expr, low: u32) -> Expr {
    let (int, float) = (ElemType::I32, ElemType::F32);
    let number = |v: i64| Expr::int(int, v);
    let moved = |from: u32, to: u32| match to.cmp(&from) {
        std::cmp::Ordering::Equal => word.clone(),
        std::cmp::Ordering::Greater => Expr::bin(BinOp::Shl, word.clone(), number(i64::from(to - from))),
        std::cmp::Ordering::Less => Expr::bin(BinOp::Shr, word.clone(), number(i64::from(from - to))),
    };
    let sign = moved(low + f.exp + f.man, 31).and(number(i64::from(i32::MIN)));
    let magnitude = moved(low, 23 - f.man).and(number(((1 << (f.exp + f.man)) - 1) << (23 - f.man)));
    let u = magnitude + number(i64::from(127 - f.bias) << 23);
    let (bits, least) = (m.reg(int), Expr::f32(((1 - f.bias) as f32).exp2()));
    let twice = Expr::un(UnOp::Bits(float), Expr::Reg(bits)) * Expr::f32(2.0) - least;
    let magnitude = Expr::Reg(bits).min(Expr::un(UnOp::Bits(int), twice));
    let both = Expr::bin(BinOp::Or, magnitude, sign);
    Expr::un(UnOp::Bits(float), Expr::Let { reg: bits, value: Box::new(u), body: Box::new(both) })
}
