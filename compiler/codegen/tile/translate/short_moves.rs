//! Copies of elements shorter than a word: whole vectors of bytes are loaded and stored as they are, since
//! nothing is computed of them.

use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Form, Width};
use crate::nest::{Buf, Expr, LoopKind, Module, Stmt};
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
        let (from, read) = moved(self.m, *buf, value)?;
        let adjacent = |buf: Buf, at: &[Dim]| {
            let d = self.substituted(self.linear(buf, at));
            let inner = self.withs.iter().any(|s| d.contains(*s));
            !inner && d.linear_in(var).is_some_and(|x| x.0.as_const() == Some(1))
        };
        let apart = !self.m.overlaps(self.m.storage(*buf), self.m.storage(from));
        (apart && adjacent(*buf, at) && adjacent(from, read)).then_some(size)
    }
    /// Copies a vector of bytes; false if the loop computes elements.
    pub(super) fn copy_bytes(&mut self, buf: Buf, at: &[Dim], value: &Expr) -> Fit<bool> {
        if !self.copies_bytes {
            return Ok(false);
        }
        let Some((from, read)) = moved(self.m, buf, value) else { return Ok(false) };
        let (from, to) = (self.access(from, read)?, self.access(buf, at)?);
        let mem = self.mem(&from)?;
        let v = self.b.load(Form::B32, mem, None);
        let mem = self.mem(&to)?;
        self.b.store(Form::B32, mem, v, None);
        self.stored(to.storage);
        Ok(true)
    }
}

/// The load whose bits a store to a buffer copies.
fn moved<'a>(m: &Module, to: Buf, value: &'a Expr) -> Option<(Buf, &'a [Dim])> {
    let ty = m.bufs[to].ty;
    let load = match value {
        Expr::Cast(t, x) if *t == ty && ty.is_int() => match &**x {
            Expr::Cast(wide, x) if *wide == ElemType::I32 => &**x,
            x => x,
        },
        e => e,
    };
    match load {
        Expr::Load { buf, at } if m.bufs[*buf].ty == ty => Some((*buf, at)),
        _ => None,
    }
}
