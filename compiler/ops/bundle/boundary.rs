//! Sequences, optionals and maps at the interface to the caller. Descriptors (`onnxc_value` in the header)
//! are read into the tensors that `bundle` defines, and written from them.
//!
//! A descriptor is an array of seven 64-bit words, of which the first two hold four 32-bit numbers. Inputs
//! are copied, except maps, whose keys and values are read in place. Results are in the workspace: the last
//! statements of the driver take the addresses of all parts, so that all of them are live at the end.

pub(super) mod publish;

use super::{HEAD, ix};
use crate::diag::{Result, codes};
use crate::nest::{BinOp, Buf, Expr, KernelBuilder, LoopKind, Place, Status, Stmt};
use crate::ops::support::cx::MAX_SIZE;
use crate::ops::support::runtime::{check, eq, int, le, or};
use crate::ops::{InferCx, Known, LowerCx};
use crate::sym::{Dim, Range, Sym};
use crate::tensor::{ElemType, MemberType, ValueType};

/// The form of a value at the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Form {
    Sequence,
    /// An optional tensor.
    Optional,
    OptionalSequence,
    Map,
    /// A sequence of maps with the same keys.
    Maps,
}

/// An input or output that is not a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Boundary {
    /// Its form.
    pub form: Form,
    /// Type of its elements, or of the values of its maps.
    pub elem: ElemType,
    /// Type of the keys of its maps.
    pub key: Option<ElemType>,
    /// Sizes common to all members, as far as they are known.
    pub dims: Option<Vec<Option<i64>>>,
}

impl Boundary {
    /// The interface form of a type.
    pub fn of(ty: &ValueType) -> Option<Boundary> {
        let member = |t: &ValueType| match t {
            ValueType::Member(m) => Some(m.clone()),
            _ => None,
        };
        let of = |form, m: MemberType| Boundary { form, elem: m.elem, key: None, dims: m.dims };
        match ty {
            ValueType::Tensor(_) | ValueType::Member(_) => None,
            ValueType::Sequence(t) => match &**t {
                ValueType::Map(k, v) => member(v).map(|m| Boundary { key: Some(*k), ..of(Form::Maps, m) }),
                t => member(t).map(|m| of(Form::Sequence, m)),
            },
            ValueType::Optional(t) => match &**t {
                ValueType::Sequence(t) => member(t).map(|m| of(Form::OptionalSequence, m)),
                t => member(t).map(|m| of(Form::Optional, m)),
            },
            ValueType::Map(k, v) => member(v).map(|m| Boundary { key: Some(*k), ..of(Form::Map, m) }),
        }
    }
    /// Number of tensors that represent it.
    pub fn parts(&self) -> usize {
        if self.form == Form::OptionalSequence { 3 } else { 2 }
    }
    /// Its type.
    pub fn ty(&self) -> ValueType {
        let member = Box::new(ValueType::Member(MemberType { elem: self.elem, dims: self.dims.clone() }));
        let map = || Box::new(ValueType::Map(self.key.unwrap_or(ElemType::I64), member.clone()));
        match self.form {
            Form::Sequence => ValueType::Sequence(member),
            Form::Optional => ValueType::Optional(member),
            Form::OptionalSequence => ValueType::Optional(Box::new(ValueType::Sequence(member))),
            Form::Map => *map(),
            Form::Maps => ValueType::Sequence(map()),
        }
    }
}

/// 64-bit words of a descriptor.
pub const WORDS: i64 = 7;
const LEN: i64 = 2;
const DIMS: i64 = 3;
const DATA: i64 = 4;
const KEYS: i64 = 5;
const ITEMS: i64 = 6;
/// 32-bit words.
const KIND: i64 = 0;
const DTYPE: i64 = 1;
const KEY_DTYPE: i64 = 2;
const RANK: i64 = 3;
/// Kinds of descriptors.
const NONE: i64 = 0;
const TENSOR: i64 = 1;
const SEQUENCE: i64 = 2;
const MAP: i64 = 3;
/// Highest rank of a member of an input, if none is declared.
const MAX_RANK: i64 = 64;

pub(super) fn infer_unpack(cx: &mut InferCx, b: &Boundary) -> Result<()> {
    if let Form::Map = b.form {
        let n = cx.size(0, 0, 1);
        cx.set(0, b.key.unwrap_or(ElemType::I64), vec![n]);
        cx.set(1, b.elem, vec![n]);
        return Ok(());
    }
    if let Form::Maps = b.form {
        return cx.error(codes::OP_FEATURE, "no operator takes a sequence of maps").fail();
    }
    let first = usize::from(b.form == Form::OptionalSequence);
    if first == 1 {
        cx.set(0, ElemType::Bool, vec![]);
    }
    let len = cx.size(first, 0, 2);
    if b.form == Form::Optional {
        cx.bound(&[len], Dim::constant(1));
    }
    let columns = match &b.dims {
        Some(d) => Dim::constant(d.len() as i64 + HEAD),
        None => cx.size(first, 1, 2),
    };
    cx.set(first, ElemType::I64, vec![len, columns]);
    let total = cx.size(first + 1, 0, 1);
    cx.set(first + 1, b.elem, vec![total]);
    Ok(())
}

/// Fields of the descriptors in a buffer, for kernels and for the driver.
struct Fields {
    words: Buf,
    halves: Buf,
}

impl Fields {
    fn new(cx: &mut LowerCx, words: Buf, count: Dim) -> Fields {
        let words = cx.m.view(words, vec![count, Dim::constant(WORDS)]);
        let halves = cx.m.view_as(words, ElemType::I32, vec![count, Dim::constant(2 * WORDS)]);
        Fields { words, halves }
    }
    fn word(&self, i: Dim, w: i64) -> Expr {
        Expr::Load { buf: self.words, at: vec![i, Dim::constant(w)] }
    }
    fn half(&self, i: Dim, h: i64) -> Expr {
        Expr::cast(
            ElemType::I32,
            ElemType::I64,
            Expr::Load { buf: self.halves, at: vec![i, Dim::constant(h)] },
        )
    }
    /// Writes a descriptor: kind, dtype, key dtype, rank; len, dims, data, keys, items.
    fn store(&self, k: &mut KernelBuilder, i: Dim, halves: [Expr; 4], words: [Expr; 5]) {
        for (h, v) in halves.into_iter().enumerate() {
            k.store(self.halves, &[i, Dim::from(h)], Expr::cast(ElemType::I64, ElemType::I32, v));
        }
        for (w, v) in words.into_iter().enumerate() {
            k.store(self.words, &[i, Dim::from(w) + LEN], v);
        }
    }
}

fn demand(cx: &mut LowerCx, cond: Expr, status: Status) {
    cx.m.driver.push(Stmt::Check { cond, status });
}

/// An address that the driver reads.
fn address(cx: &mut LowerCx, hint: &str, value: Expr) -> Sym {
    let sym = cx.m.syms.fresh_number(hint, Range::at_least(0));
    cx.m.driver.push(Stmt::Define { sym, value, lo: Dim::constant(0), hi: None });
    sym
}

/// A number that is redefined in each iteration of a driver loop.
fn again(cx: &mut LowerCx, hint: &str, value: Expr) -> Dim {
    address(cx, hint, value).into()
}

/// Emits `body` for each `0..len` as a driver loop.
fn each(cx: &mut LowerCx, len: Dim, body: impl FnOnce(&mut LowerCx, Dim)) {
    let at = cx.temp("item", ElemType::I64, vec![]);
    cx.kernel(|k| k.store(at, &[], int(0)));
    let outer = std::mem::take(&mut cx.m.driver);
    let i = again(cx, "item", Expr::Load { buf: at, at: vec![] });
    body(cx, i);
    cx.kernel(|k| k.store(at, &[], ix(i + 1)));
    let body = std::mem::replace(&mut cx.m.driver, outer);
    let cond = Expr::bin(BinOp::Lt, Expr::Load { buf: at, at: vec![] }, ix(len));
    cx.m.driver.push(Stmt::While { cond, body });
}

/// Defines the size of output `k` in dimension `d`; for an unused output, a separate number.
fn defined(cx: &mut LowerCx, k: usize, d: usize, value: Expr) -> Dim {
    match cx.output_opt(k).map(|b| cx.dims(b)[d]) {
        Some(n) => {
            cx.define(n, value);
            n
        }
        None => cx.number("count", value, Some(0), Some(MAX_SIZE)),
    }
}

/// Reads a descriptor given by the caller.
pub(super) fn unpack(cx: &mut LowerCx, b: &Boundary) -> Result<()> {
    let given = cx.input(0);
    let own = Fields::new(cx, given, Dim::constant(1));
    let zero = Dim::constant(0);
    let kind = own.half(zero, KIND);
    if let Form::Map = b.form {
        return unpack_map(cx, b, &own);
    }
    let (is, first) = (
        if b.form == Form::Optional { TENSOR } else { SEQUENCE },
        usize::from(b.form == Form::OptionalSequence),
    );
    let there = eq(kind.clone(), int(is));
    demand(
        cx,
        if b.form == Form::Sequence { there.clone() } else { or(there.clone(), eq(kind, int(NONE))) },
        Status::Value,
    );
    if let (1, Some(flag)) = (first, cx.output_opt(0)) {
        let there = there.clone();
        cx.map(flag, |_, _| there);
    }
    let count = if b.form == Form::Optional { int(1) } else { own.word(zero, LEN) };
    let len = defined(cx, first, 0, Expr::select(there.clone(), count, int(0)));
    let items = if b.form == Form::Optional {
        Expr::Address(given)
    } else {
        Expr::select(there, own.word(zero, ITEMS), int(0))
    };
    let items = address(cx, "items", items);
    demand(cx, or(Expr::cmp_index(BinOp::Eq, len, 0), Expr::cmp_index(BinOp::Ne, items, 0)), Status::Null);
    let items = cx.m.buf("items", ElemType::I64, vec![len, Dim::constant(WORDS)], Place::Pointer(items));
    let items = Fields::new(cx, items, len);
    let columns = match &b.dims {
        Some(d) => Dim::constant(d.len() as i64 + HEAD),
        None => {
            let most = cx.compute(1, |k, out| {
                let most = k.acc(int(0));
                k.range(LoopKind::Seq, "m", 0, len, |k, m| {
                    let r = k.let_(items.half(m, RANK));
                    check(k, le(int(0), r.clone()).and(le(r.clone(), int(MAX_RANK))));
                    k.update(BinOp::Max, most, r);
                });
                k.store(out, &[zero], Expr::acc(most));
            });
            defined(cx, first, 1, Expr::Load { buf: most, at: vec![zero] } + int(HEAD))
        }
    };
    let table = match cx.output_opt(first) {
        Some(t) => t,
        None => cx.temp("table", ElemType::I64, vec![len, columns]),
    };
    let total = cx.temp("total", ElemType::I64, vec![]);
    cx.kernel(|k| k.store(total, &[], int(0)));
    each(cx, len, |cx, i| {
        let dims = again(cx, "dims", items.word(i, DIMS));
        row(cx, b, &items, i, dims, table, total);
    });
    let total = defined(cx, first + 1, 0, Expr::Load { buf: total, at: vec![] });
    let Some(data) = cx.output_opt(first + 1) else { return Ok(()) };
    let elem = cx.elem(data);
    each(cx, len, |cx, i| {
        let place = |r: Dim| Expr::Load { buf: table, at: vec![r, zero] };
        let from = address(cx, "data", items.word(i, DATA));
        let start = again(cx, "place", place(i));
        let end = Expr::select(Expr::cmp_index(BinOp::Lt, i + 1, len), place(i + 1), ix(total));
        let n = again(cx, "count", end - ix(start));
        demand(cx, or(Expr::cmp_index(BinOp::Eq, n, 0), Expr::cmp_index(BinOp::Ne, from, 0)), Status::Null);
        let member = cx.m.buf("member", elem, vec![n], Place::Pointer(from));
        cx.kernel(|k| {
            k.nest(LoopKind::Par, &[n], |k, at| {
                let v = k.load(member, at);
                k.store(data, &[start + at[0]], v);
            });
        });
    });
    Ok(())
}

/// Checks member `i` and writes its row of the table.
fn row(cx: &mut LowerCx, b: &Boundary, items: &Fields, i: Dim, dims: Dim, table: Buf, total: Buf) {
    let columns = cx.dims(table)[1];
    let Some(sym) = dims.as_sym() else { return };
    let sizes = cx.m.buf("dims", ElemType::I64, vec![columns - HEAD], Place::Pointer(sym));
    let elem = i64::from(b.elem as u8);
    let zero = Dim::constant(0);
    cx.kernel(|k| {
        check(k, eq(items.half(i, KIND), int(TENSOR)).and(eq(items.half(i, DTYPE), int(elem))));
        let rank = k.let_(items.half(i, RANK));
        match &b.dims {
            Some(_) => check(k, eq(rank.clone(), ix(columns - HEAD))),
            None => check(k, le(int(0), rank.clone()).and(le(rank.clone(), ix(columns - HEAD)))),
        }
        k.push(Stmt::Check {
            cond: or(eq(rank.clone(), int(0)), Expr::cmp_index(BinOp::Ne, dims, 0)),
            status: Status::Null,
        });
        let count = k.acc(int(1));
        k.range(LoopKind::Seq, "d", 0, columns - HEAD, |k, d| {
            let n = Expr::select(Expr::bin(BinOp::Lt, ix(d), rank.clone()), k.load(sizes, &[d]), int(1));
            let n = k.let_(n);
            check(k, le(int(0), n.clone()).and(le(n.clone(), int(MAX_SIZE))));
            k.set(count, Expr::acc(count) * n.clone());
            check(k, le(Expr::acc(count), int(MAX_SIZE)));
            k.store(
                table,
                &[i, d + HEAD],
                Expr::select(Expr::bin(BinOp::Lt, ix(d), rank.clone()), n, int(0)),
            );
        });
        for (d, n) in b.dims.iter().flatten().enumerate() {
            if let Some(n) = n {
                let have = k.load(table, &[i, Dim::from(d) + HEAD]);
                check(k, eq(have, int(*n)));
            }
        }
        let place = k.load(total, &[]);
        let place = k.let_(place);
        check(k, le(place.clone(), int(MAX_SIZE)));
        k.store(table, &[i, zero], place.clone());
        k.store(table, &[i, Dim::constant(1)], rank);
        k.store(total, &[], place + Expr::acc(count));
    });
}

fn unpack_map(cx: &mut LowerCx, b: &Boundary, own: &Fields) -> Result<()> {
    let zero = Dim::constant(0);
    let key = b.key.unwrap_or(ElemType::I64);
    let right = eq(own.half(zero, KIND), int(MAP))
        .and(eq(own.half(zero, DTYPE), int(i64::from(b.elem as u8))))
        .and(eq(own.half(zero, KEY_DTYPE), int(i64::from(key as u8))));
    demand(cx, right, Status::Value);
    let n = match (cx.output_opt(0), cx.output_opt(1)) {
        (Some(o), _) | (None, Some(o)) => cx.dims(o)[0],
        (None, None) => return Ok(()),
    };
    cx.define(n, own.word(zero, LEN));
    for (k, field, ty) in [(0, KEYS, key), (1, DATA, b.elem)] {
        let from = address(cx, "map", own.word(zero, field));
        demand(cx, or(Expr::cmp_index(BinOp::Eq, n, 0), Expr::cmp_index(BinOp::Ne, from, 0)), Status::Null);
        if cx.output_opt(k).is_some() {
            cx.outputs[k] =
                Some(cx.m.buf(if k == 0 { "keys" } else { "values" }, ty, vec![n], Place::Pointer(from)));
        }
    }
    Ok(())
}
