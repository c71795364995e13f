//! Loops of tiles: unrolled loops; vectors and their last, partial one; counted loops, which carry
//! accumulators and pointers.

use super::access::Stream;
use super::{Arg, Fit, Lane, Place, Translate, outside};
use super::{fit, unroll};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Form, Value};
use crate::codegen::tile::isa;
use crate::nest::{Buf, Expr, LoopKind, Reg, Stmt, patterns, visit};
use crate::sym::{Atom, Dim, Sym, View};
use crate::tensor::ElemType;

/// The last, partial vector of a number of elements that is a run-time value.
struct LastVector {
    /// The number of its lanes, in a register and as the nest states it.
    count: Value,
    of: Dim,
    /// The loop of the whole vectors before it: its variable, and its value at the end.
    behind: Option<(Sym, Value)>,
    /// The streams after that loop.
    streams: Vec<(Stream, Place)>,
}

/// The most iterations of a loop that ends at a constant distance at the latest: a piece of a longer one.
fn most_between(lo: Dim, hi: Dim) -> Option<i64> {
    let View::Sum { terms: [(1, atoms)], constant } = hi.view() else { return None };
    let [Atom::Min(ends)] = atoms.as_slice() else { return None };
    ends.iter().filter_map(|d| (*d + constant - lo).as_const()).min()
}

impl Translate<'_> {
    pub(super) fn for_(&mut self, kind: LoopKind, var: Sym, lo: Dim, hi: Dim, body: &[Stmt]) -> Fit<()> {
        let (lo, hi) = (self.substituted(lo), self.substituted(hi));
        let trip = self.m.syms.simplify(hi - lo);
        let kind = if self.written_out(kind, trip.as_const(), body) { LoopKind::Unroll } else { kind };
        match (kind, trip.as_const()) {
            (_, Some(n)) if n <= 0 => Ok(()),
            (LoopKind::Unroll, Some(n)) => {
                if self.lane.is_none() && self.mask.is_none() {
                    if self.columns.is_none() && self.store_columns((var, lo, n), body)? {
                        return Ok(());
                    }
                    self.transpose_columns((var, lo, n), body)?;
                }
                for i in 0..n {
                    if !self.transposed.is_empty() {
                        self.turning = i as usize;
                    }
                    self.with(var, lo + i, |t| t.block(body))?;
                }
                self.transposed.clear();
                Ok(())
            }
            (LoopKind::Private, _) => Err("what names the scratch of a task"),
            (LoopKind::Unroll, None) => Err("an unrolled loop without constant bounds"),
            (LoopKind::Seq | LoopKind::Par, Some(1)) => self.with(var, lo, |t| t.block(body)),
            (LoopKind::Seq | LoopKind::Par, _) => self.shifted(var, lo, |t| {
                let end = t.count(trip)?;
                let guard = !t.m.syms.is_pos(trip);
                t.trips.push(trip);
                if let Some(n) = most_between(lo, hi).or_else(|| t.most_of(trip)) {
                    t.most.insert(var, n);
                }
                let r = t.counted(var, end, guard, (1, 1), body);
                t.trips.pop();
                r
            }),
            (LoopKind::Vec(n), _) => {
                if self.lane.is_some() {
                    return Err("a vector loop inside a vector loop");
                }
                self.lane = Some(Lane { sym: var });
                let r = self.with_conditions(body, |t| {
                    let done = t.short_moves(var, lo, trip, body)?;
                    let (lo, trip) = (lo + done, t.m.syms.simplify(trip - done));
                    t.shifted(var, lo, |t| t.vector(var, trip, i64::from(n), body))
                });
                self.lane = None;
                r
            }
        }
    }
    /// The most iterations of a loop; variables of the tile count from 0, and have other bounds.
    fn most_of(&self, trip: Dim) -> Option<i64> {
        if self.vars.loop_in(trip) { None } else { self.m.syms.range(trip).hi }
    }
    /// Runs `f` with a dim substituted for a variable.
    pub(super) fn with<T>(&mut self, var: Sym, d: Dim, f: impl FnOnce(&mut Self) -> Fit<T>) -> Fit<T> {
        let before = self.put.insert(var, d);
        let r = f(self);
        match before {
            Some(b) => self.put.insert(var, b),
            None => self.put.remove(&var),
        };
        r
    }
    /// Runs `f` with a variable rebased to count from 0.
    pub(super) fn shifted<T>(&mut self, var: Sym, lo: Dim, f: impl FnOnce(&mut Self) -> Fit<T>) -> Fit<T> {
        if lo.as_const() == Some(0) { f(self) } else { self.with(var, lo + Dim::sym(var), f) }
    }
    fn vector(&mut self, var: Sym, trip: Dim, lanes: i64, body: &[Stmt]) -> Fit<()> {
        match trip.as_const() {
            Some(n) => self.known_vectors(var, n, lanes, body),
            None => self.counted_vectors(var, trip, lanes, body),
        }
    }
    /// Vectors of a number of elements that is a run-time value.
    fn counted_vectors(&mut self, var: Sym, trip: Dim, lanes: i64, body: &[Stmt]) -> Fit<()> {
        let Count::Run(n) = self.count(trip)? else { return Err("a size that is no register") };
        let form = if self.m.has_short_elements(body) { Form::U8 } else { Form::B32 };
        let masks = isa::machine(self.b.width()).has(form, true, true);
        let full = trip.modulo(lanes).as_const() == Some(0);
        // A single vector at most: no loop.
        let single = self.m.syms.le(trip, Dim::constant(lanes)) == crate::sym::Answer::Yes;
        let last = if single {
            if masks && self.runs_for(trip) {
                return self.masked(trip, n, |t| t.block(body));
            }
            LastVector { count: n, of: trip, behind: None, streams: vec![] }
        } else {
            let whole = self.b.and_imm(n, -(lanes as i32));
            let streams = self.counted_streams(var, Count::Run(whole), true, (lanes, lanes), body)?;
            if full {
                return Ok(());
            }
            let count = self.b.and_imm(n, lanes as i32 - 1);
            LastVector { count, of: trip.modulo(lanes), behind: Some((var, whole)), streams }
        };
        // Without masks, each number of lanes has separate code.
        let counts: Vec<Option<i64>> = match (full, masks) {
            (true, _) => vec![Some(lanes)],
            (false, true) => vec![None],
            (false, false) => (1..lanes + i64::from(single)).map(Some).collect(),
        };
        counts.into_iter().try_for_each(|k| self.last_vector(&last, k, lanes, body))
    }
    /// The last vector, if it has `known` lanes, or any number of them.
    fn last_vector(&mut self, last: &LastVector, known: Option<i64>, lanes: i64, body: &[Stmt]) -> Fit<()> {
        let runs = match known {
            None => last.count,
            Some(k) => self.b.equals(last.count, k),
        };
        let opened = self.b.open_if_positive(runs);
        self.arm(opened, body, |t| {
            t.loaded.clear();
            if let Some((_, whole)) = last.behind {
                for (s, p) in &last.streams {
                    let p = Place { index: p.index.map(|(_, k)| (whole, k)), ..*p };
                    t.streams.insert(s.clone(), p);
                }
            }
            let mask = match known {
                Some(k) if k == lanes => None,
                Some(k) => Some(t.b.first_lanes(Count::Fixed(k))),
                None => Some(t.b.first_lanes(Count::Run(last.count))),
            };
            t.active.extend(last.behind);
            t.with_mask(mask, (last.of, last.count), |t| t.block(body))?;
            if last.behind.is_some() {
                t.active.pop();
            }
            Ok(())
        })
    }
    /// Vectors of `n` elements.
    fn known_vectors(&mut self, var: Sym, n: i64, lanes: i64, body: &[Stmt]) -> Fit<()> {
        let (whole, rest) = (n / lanes * lanes, n % lanes);
        // Several vectors per iteration, and the remaining ones.
        let copies = if whole > lanes && isa::machine(self.b.width()).unrolls() {
            self.unroll().vectors(body)
        } else {
            1
        };
        let each = lanes * copies;
        let blocks = whole / each * each;
        if blocks == lanes {
            // One vector: the variable is the lane number.
            self.block(body)?;
        } else if blocks > each {
            self.counted(var, Count::Fixed(blocks), false, (each, lanes), body)?;
        }
        let from = if blocks > each || blocks == lanes { blocks } else { 0 };
        for at in (from..whole).step_by(lanes as usize) {
            self.ahead(var, at, |t| t.block(body))?;
        }
        if rest > 0 {
            let d = self.put.get(&var).copied().unwrap_or(Dim::sym(var));
            let d = d.subst(&mut |s| (s == var).then(|| Dim::sym(var) + whole));
            let outer = self.mask.replace(self.b.first_lanes(Count::Fixed(rest)));
            let r = self.with(var, d, |t| t.block(body));
            self.mask = outer;
            r?;
        }
        Ok(())
    }
    /// True if an enclosing loop implies that at least one of these elements exists.
    fn runs_for(&self, trip: Dim) -> bool {
        let once = self.m.syms.simplify(trip.min(1));
        once.as_const() == Some(1) || self.trips.contains(&once)
    }
    /// Runs `f` with the first `n` lanes active.
    fn masked(&mut self, trip: Dim, n: Value, f: impl FnOnce(&mut Self) -> Fit<()>) -> Fit<()> {
        let mask = self.b.first_lanes(Count::Run(n));
        self.with_mask(Some(mask), (trip, n), f)
    }
    /// Runs `f` with the lanes of a mask active, which are those of the last, partial vector: their number as
    /// a dim and in a register.
    fn with_mask(
        &mut self,
        mask: Option<Value>,
        (of, count): (Dim, Value),
        f: impl FnOnce(&mut Self) -> Fit<()>,
    ) -> Fit<()> {
        let outer = (
            std::mem::replace(&mut self.mask, mask),
            std::mem::replace(&mut self.rest, mask.map(|m| (m, count))),
            std::mem::replace(&mut self.rest_of, of),
        );
        let r = f(self);
        (self.mask, self.rest, self.rest_of) = outer;
        r
    }
    /// A uniform branch inside a loop; Cranelift compiles outermost branches.
    pub(super) fn branch(&mut self, cond: &Expr, then: &[Stmt], els: &[Stmt]) -> Fit<()> {
        if self.active.is_empty() {
            return Err("a branch around a tile");
        }
        let margin = patterns::margin(cond).map(|d| self.m.syms.simplify(self.substituted(d)));
        if let Some(d) = margin.filter(|d| !self.is_inner(*d)) {
            return self.branch_on_sizes(d, then, els);
        }
        if fit::loops(then) || fit::loops(els) {
            return Err("a branch around loops on what these depend on");
        }
        if self.varies(cond) {
            return Err("a branch on lanes");
        }
        let c = self.value(cond)?;
        if c.ty != ElemType::Bool {
            return Err("a branch on a number");
        }
        let not = self.b.not(c.v);
        for (c, body) in [(c.v, then), (not, els)] {
            if !body.is_empty() {
                let opened = self.b.open_if_any(c);
                self.arm(opened, body, |t| t.block(body))?;
            }
        }
        Ok(())
    }
    /// A branch whose first arm runs if `margin` is positive, which no loop of the tile changes.
    fn branch_on_sizes(&mut self, margin: Dim, then: &[Stmt], els: &[Stmt]) -> Fit<()> {
        if let Some(n) = margin.as_const() {
            return self.block(if n > 0 { then } else { els });
        }
        for (d, body) in [(margin, then), (Dim::constant(1) - margin, els)] {
            if body.is_empty() {
                continue;
            }
            let Count::Run(n) = self.count(d)? else { return Err("a size that is no register") };
            let opened = self.b.open_if_positive(n);
            self.arm(opened, body, |t| t.block(body))?;
        }
        Ok(())
    }
    /// A region that may not run, for statements `body`, which `emit` translates.
    fn arm(&mut self, opened: usize, body: &[Stmt], emit: impl FnOnce(&mut Self) -> Fit<()>) -> Fit<()> {
        let before = self.accs_set_in(body);
        let around = self.acc_values(&before);
        let saved = (self.streams.clone(), self.loaded.clone());
        emit(self)?;
        (self.streams, self.loaded) = saved;
        self.forget(body);
        let through = self.acc_values(&before);
        let merged = self.b.close_if(opened, &around, &through);
        self.set_acc_values(&before, &merged);
        Ok(())
    }
    pub(super) fn counted(
        &mut self,
        var: Sym,
        end: Count,
        guard: bool,
        steps: (i64, i64),
        body: &[Stmt],
    ) -> Fit<()> {
        self.counted_streams(var, end, guard, steps, body).map(drop)
    }
    /// Runs `f` with a variable advanced by a constant.
    pub(super) fn ahead<T>(&mut self, var: Sym, by: i64, f: impl FnOnce(&mut Self) -> Fit<T>) -> Fit<T> {
        if by == 0 {
            return f(self);
        }
        let d = self.put.get(&var).copied().unwrap_or(Dim::sym(var));
        let d = d.subst(&mut |s| (s == var).then(|| Dim::sym(var) + by));
        self.with(var, d, f)
    }
    /// `for var in (0..end).step_by(step)`, each iteration in parts of `part`; accumulators and pointers are
    /// carried. Returns the streams after the loop.
    fn counted_streams(
        &mut self,
        var: Sym,
        end: Count,
        guard: bool,
        (step, part): (i64, i64),
        body: &[Stmt],
    ) -> Fit<Vec<(Stream, Place)>> {
        let moving = self.moving(var, (step, part), body)?;
        // A counter that all streams share replaces separate pointers.
        let scale = |s: &Stream| {
            let bytes = s.1.last()?.1.as_const()? * i64::from(self.size_of(s.0));
            matches!(bytes, 1 | 2 | 4 | 8).then_some(bytes as u8)
        };
        let innermost = !has_loop(body, i64::from(self.b.lanes()));
        let indexed = innermost && moving.len() > 1 && isa::machine(self.b.width()).indexed();
        let (by_index, by_pointer): (Vec<Stream>, Vec<Stream>) =
            moving.into_iter().partition(|s| indexed && scale(s).is_some() && !self.with_rows.contains(s));
        let scales: Vec<u8> = by_index.iter().map(|s| scale(s).unwrap_or(1)).collect();
        let accs = self.accs_set_in(body);
        let mut carried = self.acc_values(&accs);
        let base_of = |t: &mut Self, s: &Stream| -> Fit<Place> {
            let outside = (s.0, s.1[..s.1.len() - 1].to_vec());
            t.place(&outside)
        };
        let mut starts = vec![];
        for s in &by_pointer {
            let p = base_of(self, s)?;
            starts.push(self.flat(p));
        }
        let mut bases = vec![];
        for s in &by_index {
            let p = base_of(self, s)?;
            bases.push(self.flat(p));
        }
        let strides: Vec<Option<Value>> =
            by_pointer.iter().map(|s| self.stride_value(s, step)).collect::<Fit<_>>()?;
        carried.extend(&starts);
        let saved = (self.streams.clone(), self.loaded.clone());
        self.forget(body);
        let l = self.b.open_loop(end, guard, &carried);
        let inside = l.inside.clone();
        self.set_acc_values(&accs, &inside[..inside.len() - starts.len()]);
        let pointers = inside[inside.len() - starts.len()..].to_vec();
        for (s, p) in by_pointer.iter().zip(&pointers) {
            self.streams.insert(s.clone(), Place { base: *p, index: None });
        }
        for ((s, b), k) in by_index.iter().zip(&bases).zip(&scales) {
            self.streams.insert(s.clone(), Place { base: *b, index: Some((l.i, *k)) });
        }
        self.active.push((var, l.i));
        let parts = |t: &mut Self| {
            (0..step).step_by(part as usize).try_for_each(|at| t.ahead(var, at, |t| t.block(body)))
        };
        // Vectors are independent of each other, which schedules guarantee for the longest ones.
        if step > part && self.unroll().alternates(body) {
            self.alternately(var, (step, part), body)?;
        } else if step > part && !unroll::reads_back(self.m, body) {
            self.stores_last(parts)?
        } else {
            parts(self)?
        }
        self.active.pop();
        let mut after = self.acc_values(&accs);
        for ((s, p), run) in by_pointer.iter().zip(&pointers).zip(&strides) {
            let next = match run {
                Some(v) => self.b.add(*p, *v),
                None => {
                    let bytes = s.1.last().and_then(|c| c.1.as_const()).unwrap_or(0)
                        * step
                        * i64::from(self.size_of(s.0));
                    self.b.add_imm(*p, bytes)
                }
            };
            after.push(next);
        }
        (self.streams, self.loaded) = saved;
        self.forget(body);
        let merged = self.b.close_loop(l, step, &after);
        let n = merged.len() - starts.len();
        self.set_acc_values(&accs, &merged[..n]);
        let mut out: Vec<(Stream, Place)> = by_pointer
            .into_iter()
            .zip(&merged[n..])
            .map(|(s, p)| (s, Place { base: *p, index: None }))
            .collect();
        out.extend(
            by_index
                .into_iter()
                .zip(bases)
                .zip(scales)
                .map(|((s, b), k)| (s, Place { base: b, index: Some((b, k)) })),
        );
        Ok(out)
    }
    /// The vectors of an iteration, statement by statement.
    fn alternately(&mut self, var: Sym, (step, part): (i64, i64), body: &[Stmt]) -> Fit<()> {
        let mut regs = vec![self.regs.clone(); (step / part) as usize];
        for s in body {
            for (at, own) in (0..step).step_by(part as usize).zip(&mut regs) {
                std::mem::swap(&mut self.regs, own);
                let r = self.ahead(var, at, |t| t.block(std::slice::from_ref(s)));
                std::mem::swap(&mut self.regs, own);
                r?;
            }
        }
        Ok(())
    }
    /// A run-time stride in bytes as a register; `None` for constants.
    fn stride_value(&mut self, s: &Stream, step: i64) -> Fit<Option<Value>> {
        let Some((_, c)) = s.1.last() else { return Err("a stream without a stride") };
        if c.as_const().is_some() {
            return Ok(None);
        }
        let bytes = *c * step * i64::from(self.size_of(s.0));
        match self.count(bytes)? {
            Count::Run(v) => Ok(Some(v)),
            Count::Fixed(_) => Ok(None),
        }
    }
    pub(super) fn size_of(&self, arg: usize) -> u32 {
        match &self.args[arg] {
            Arg::Pointer { size, .. } => *size,
            Arg::Number(_) => 1,
        }
    }
    /// The address without an index register.
    fn flat(&mut self, p: Place) -> Value {
        match p.index {
            None => p.base,
            // Only innermost loops use index registers.
            Some((i, _)) => self.b.add(p.base, i),
        }
    }
    fn accs_set_in(&self, body: &[Stmt]) -> Vec<Reg> {
        let mut v = vec![];
        visit::walk(body, &mut |s| {
            if let Stmt::Set { reg, .. } = s
                && self.accs.contains_key(reg)
                && !v.contains(reg)
            {
                v.push(*reg);
            }
        });
        let checks = |e: &Expr| matches!(e, Expr::With { .. }) || patterns::may_divide_by_zero(self.m, e);
        if visit::any_expr(body, &mut |e| checks(e)) && self.accs.contains_key(&outside()) {
            v.push(outside());
        }
        v
    }
    fn acc_values(&self, regs: &[Reg]) -> Vec<Value> {
        regs.iter().flat_map(|r| self.accs[r].values.iter().copied()).collect()
    }
    fn set_acc_values(&mut self, regs: &[Reg], values: &[Value]) {
        let mut it = values.iter().copied();
        for r in regs {
            if let Some(a) = self.accs.get_mut(r) {
                a.values.iter_mut().zip(&mut it).for_each(|(x, v)| *x = v);
            }
        }
    }
    /// Invalidates loads that stores in a body may change.
    fn forget(&mut self, body: &[Stmt]) {
        let stored: Vec<Buf> = visit::stores(body).into_iter().map(|b| self.m.storage(b)).collect();
        let m = self.m;
        self.loaded.retain(|_, (b, _)| !stored.iter().any(|s| m.overlaps(*s, *b)));
    }
}

/// True if a body contains a loop that is not a single vector.
fn has_loop(body: &[Stmt], lanes: i64) -> bool {
    let mut found = false;
    visit::walk(body, &mut |s| {
        if let Stmt::For { kind, lo, hi, .. } = s {
            let trip = (*hi - *lo).as_const();
            found |= match kind {
                LoopKind::Unroll | LoopKind::Private => false,
                LoopKind::Vec(_) => trip.is_none_or(|t| t >= 2 * lanes),
                _ => trip != Some(1),
            };
        }
    });
    found
}
