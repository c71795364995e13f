//! Vectors as columns of what is stored: if lanes are strided while an unrolled loop around them is
//! contiguous, the vectors of its iterations are transposed in registers, and rows are stored as vectors.

use super::expr::{form, is_long};
use super::transpose::LEAST;
use super::{Fit, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Form, Op, Value};
use crate::nest::{Buf, LoopKind, Stmt, visit};
use crate::sym::{Dim, Sym};

/// An unrolled loop: its variable, first value and iterations.
type Rows = (Sym, Dim, i64);

/// The vector loop inside it.
struct Columns<'a> {
    lane: Sym,
    lanes: i64,
    nest: &'a Stmt,
    buf: Buf,
    at: &'a [Dim],
}

/// The stores of its lanes: the form of elements, and their distance from lane to lane.
#[derive(Clone, Copy)]
struct Strided {
    form: Form,
    across: Dim,
}

impl Translate<'_> {
    /// Translates the body of an unrolled loop whose vectors are columns of what it stores. False if it is no
    /// such loop; nothing is translated then.
    pub(super) fn store_columns(&mut self, rows: Rows, body: &[Stmt]) -> Fit<bool> {
        let Some((around, columns)) = columns(body) else { return Ok(false) };
        let Some(stores) = self.strided(rows, &columns) else { return Ok(false) };
        self.columns_of(rows, &around, &columns, stores)?;
        Ok(true)
    }
    /// The stores of columns, if rows of them can be vectors.
    fn strided(&self, (var, _, count): Rows, c: &Columns) -> Option<Strided> {
        let lanes = i64::from(self.b.lanes());
        let ty = self.m.bufs[c.buf].ty;
        let form = form(ty).filter(|f| matches!(f, Form::B32 | Form::B64))?;
        let linear = self.substituted(self.linear(c.buf, c.at));
        let (across, along) = (linear.linear_in(c.lane)?.0, linear.linear_in(var)?.0);
        let strided = !matches!(across.as_const(), Some(0 | 1)) && !self.is_inner(across);
        let reads = || visit::loads(std::slice::from_ref(c.nest));
        // Machines that store strided lanes by one instruction do so.
        let fits = (LEAST..=lanes).contains(&c.lanes)
            && (LEAST..=lanes).contains(&count)
            && is_long(ty) == self.b.is_long()
            && strided
            && along.as_const() == Some(1)
            && !self.b.has(Op::StoreStrided(form))
            && (count == lanes || self.stores_first(form))
            && !reads().iter().any(|b| self.m.overlaps(self.m.storage(*b), self.m.storage(c.buf)));
        fits.then_some(Strided { form, across })
    }
    /// The columns of each iteration of the unrolled loops between `rows` and the vectors.
    fn columns_of(&mut self, rows: Rows, around: &[Rows], c: &Columns, stores: Strided) -> Fit<()> {
        if let [(var, lo, n), around @ ..] = around {
            let mut each = 0..*n;
            return each
                .try_for_each(|i| self.with(*var, *lo + i, |t| t.columns_of(rows, around, c, stores)));
        }
        let (var, lo, count) = rows;
        let outer = self.columns.replace(vec![]);
        let nest = std::slice::from_ref(c.nest);
        let all = (0..count).try_for_each(|i| self.with(var, lo + i, |t| t.block(nest)));
        let mut v = std::mem::replace(&mut self.columns, outer).unwrap_or_default();
        all?;
        v.resize(self.b.lanes() as usize, self.zeros());
        self.transpose(&mut v, c.lanes as usize);
        self.store_rows(rows, c, stores, &v)
    }
    /// Stores the vector of each lane, `count` elements along the unrolled loop.
    fn store_rows(
        &mut self,
        (var, lo, count): Rows,
        c: &Columns,
        Strided { form, across }: Strided,
        v: &[Value],
    ) -> Fit<()> {
        let mask = (count < i64::from(self.b.lanes())).then(|| self.b.first_lanes(Count::Fixed(count)));
        let place = |t: &mut Self, r: i64| {
            let a = t.with(c.lane, r.into(), |t| t.with(var, lo, |t| t.access(c.buf, c.at)))?;
            t.mem(&a)
        };
        let distance = match across.as_const() {
            Some(_) => None,
            None => Some(self.count(across * i64::from(form.bytes()))?),
        };
        let mut mem = place(self, 0)?;
        for (r, v) in v.iter().enumerate().take(c.lanes as usize) {
            match distance {
                _ if r == 0 => {}
                Some(Count::Run(step)) => mem.base = self.b.add(mem.base, step),
                _ => mem = place(self, r as i64)?,
            }
            self.b.store(form, mem, *v, mask);
        }
        self.stored(self.m.storage(c.buf));
        Ok(())
    }
}

/// The only store of vectors inside unrolled loops, and these loops.
fn columns(mut body: &[Stmt]) -> Option<(Vec<Rows>, Columns<'_>)> {
    let mut around = vec![];
    loop {
        let [nest @ Stmt::For { kind, var, lo, hi, body: inside }] = body else { return None };
        match kind {
            LoopKind::Unroll => {
                around.push((*var, *lo, (*hi - *lo).as_const()?));
                body = inside;
            }
            LoopKind::Vec(_) if lo.as_const() == Some(0) => {
                let [before @ .., Stmt::Store { buf, at, .. }] = inside.as_slice() else { return None };
                let plain = before.iter().all(|s| matches!(s, Stmt::Let { .. }));
                let c = Columns { lane: *var, lanes: hi.as_const()?, nest, buf: *buf, at };
                return plain.then_some((around, c));
            }
            _ => return None,
        }
    }
}
