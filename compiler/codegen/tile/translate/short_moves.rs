//! Copies of elements shorter than a word: whole vectors of bytes are loaded and stored as they are, since
//! nothing is computed of them. A constant may take the place of the elements under a condition that is the
//! same in all lanes, such as a row of a border.

use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bits, Form, Width};
use crate::codegen::tile::isa;
use crate::nest::{Buf, Expr, LoopKind, Module, Scalar, Stmt};
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

impl Translate<'_> {
    /// Translates the part of the vector loop `for var in lo..lo + trip` that fills vectors of bytes, if the
    /// body only copies short elements. Returns the number of iterations that this part has.
    pub(super) fn short_moves(&mut self, var: Sym, lo: Dim, trip: Dim, body: &[Stmt]) -> Fit<Dim> {
        let Some(each) = self.elements_per_vector(var, body) else { return Ok(Dim::constant(0)) };
        let whole = trip.floor_div(each) * each;
        let outer = std::mem::replace(&mut self.copies_bytes, true);
        let r = self.shifted(var, lo, |t| match t.count(whole)? {
            Count::Fixed(0) => Ok(()),
            Count::Fixed(n) if n == each => t.block(body),
            n => t.counted(var, n, matches!(n, Count::Run(_)), (each, each), body),
        });
        self.copies_bytes = outer;
        r.map(|()| whole)
    }
    /// The iterations of a loop that [`Self::short_moves`] translates; 0 for loops without vectors.
    pub(super) fn moved_in_words(&self, kind: LoopKind, var: Sym, trip: Dim, body: &[Stmt]) -> Dim {
        let each = if matches!(kind, LoopKind::Vec(_)) { self.elements_per_vector(var, body) } else { None };
        each.map_or(Dim::constant(0), |each| trip.floor_div(each) * each)
    }
    /// The elements of a vector of bytes in such a body.
    fn elements_per_vector(&self, var: Sym, body: &[Stmt]) -> Option<i64> {
        Some(i64::from(self.b.lanes()) * self.elements_per_word(var, body)?)
    }
    /// The elements per word of a body that only copies contiguous short elements.
    fn elements_per_word(&self, var: Sym, body: &[Stmt]) -> Option<i64> {
        // Vectors of other machines need aligned words.
        let whole = matches!(self.b.width(), Width::Avx2 | Width::Avx512 | Width::Neon);
        if !whole || self.b.is_long() || self.mask.is_some() || self.columns.is_some() {
            return None;
        }
        let mut sizes = body.iter().map(|s| self.moved_size(var, s));
        let first = sizes.next()??;
        sizes.all(|s| s == Some(first)).then_some(4 / i64::from(first))
    }
    /// The size in bytes of the elements that a statement copies.
    fn moved_size(&self, var: Sym, s: &Stmt) -> Option<u32> {
        let Stmt::Store { buf, at, value } = s else { return None };
        let size = self.m.bufs[*buf].ty.bytes().filter(|n| matches!(n, 1 | 2))?;
        let Moved { from, at: read, unless } = moved(self.m, *buf, value)?;
        let adjacent = |buf: Buf, at: &[Dim]| {
            let d = self.substituted(self.linear(buf, at));
            let inner = self.vars.with_in(d);
            !inner && d.linear_in(var).is_some_and(|x| x.0.as_const() == Some(1))
        };
        let apart = !self.m.overlaps(self.m.storage(*buf), self.m.storage(from));
        let fits = unless.is_none_or(|u| {
            let masked = isa::machine(self.b.width()).has(Form::B32, false, true);
            let varies = |d: Dim| d.contains(var) || self.vars.with_in(d);
            masked && self.is_of_positions(u.condition, &varies)
        });
        (apart && fits && adjacent(*buf, at) && adjacent(from, read)).then_some(size)
    }
    /// Copies a vector of bytes; false if the loop computes elements.
    pub(super) fn copy_bytes(&mut self, buf: Buf, at: &[Dim], value: &Expr) -> Fit<bool> {
        if !self.copies_bytes {
            return Ok(false);
        }
        let Some(Moved { from, at: read, unless }) = moved(self.m, buf, value) else { return Ok(false) };
        let mask = match &unless {
            Some(u) => {
                let c = self.value(u.condition)?.v;
                Some(self.b.condition(c))
            }
            None => None,
        };
        let (from, to) = (self.access(from, read)?, self.access(buf, at)?);
        let mem = self.mem(&from)?;
        let mut v = self.b.load(Form::B32, mem, mask);
        if let (Some(mask), Some(u)) = (mask, unless.filter(|u| u.word != 0)) {
            let word = self.b.bits(u.word);
            v = self.b.select(mask, v, word, Bits::B32);
        }
        let mem = self.mem(&to)?;
        self.b.store(Form::B32, mem, v, None);
        self.stored(to.storage);
        Ok(true)
    }
}

/// What a store copies.
struct Moved<'a> {
    from: Buf,
    at: &'a [Dim],
    /// A constant in place of elements.
    unless: Option<Unless<'a>>,
}

/// The constant that is stored unless `condition` holds.
struct Unless<'a> {
    condition: &'a Expr,
    /// A word of such elements.
    word: u32,
}

/// What a store of this value copies, if it copies the bits of a load.
fn moved<'a>(m: &Module, to: Buf, value: &'a Expr) -> Option<Moved<'a>> {
    let ty = m.bufs[to].ty;
    let narrowed = match value {
        Expr::Cast(t, x) if *t == ty && ty.is_int() => Some(&**x),
        _ => None,
    };
    match narrowed.unwrap_or(value) {
        Expr::Select(condition, element, constant) => {
            let Expr::Const(c) = &**constant else { return None };
            let (from, at) = loaded(m, ty, element, narrowed.is_some())?;
            Some(Moved { from, at, unless: Some(Unless { condition, word: repeated(ty, *c)? }) })
        }
        element => {
            loaded(m, ty, element, narrowed.is_some()).map(|(from, at)| Moved { from, at, unless: None })
        }
    }
}

/// The load of an element of a type; `widened` if the element is extended to 32 bits.
fn loaded<'a>(m: &Module, ty: ElemType, e: &'a Expr, widened: bool) -> Option<(Buf, &'a [Dim])> {
    let load = match e {
        Expr::Cast(ElemType::I32, x) if widened => &**x,
        e => e,
    };
    match load {
        Expr::Load { buf, at } if m.bufs[*buf].ty == ty => Some((*buf, at)),
        _ => None,
    }
}

/// A word of elements of a type of one or two bytes that have this value.
fn repeated(ty: ElemType, c: Scalar) -> Option<u32> {
    let bits = u32::try_from(c.bits & 0xffff).ok()?;
    match ty.bytes()? {
        1 => Some((bits & 0xff) * 0x0101_0101),
        2 => Some(bits * 0x0001_0001),
        _ => None,
    }
    .filter(|_| c.ty == ty || c.ty == ElemType::I32 && ty.is_int())
}
