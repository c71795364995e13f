//! Loads whose lanes are not contiguous but at constant offsets: every second element, each element twice, a
//! reversed row. A few contiguous vectors contain all elements; each is shuffled, and the results are
//! blended. Nothing before the first of these elements or after the last is accessed.

use super::access::{Access, NOT_LINEAR};
use super::{Arg, Fit, Place, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Mem, Op, Pred, Value, Width};
use crate::nest::Buf;
use crate::sym::broadcast::is_factor;
use crate::sym::{Dim, Sym};

/// Contiguous elements in a vector, and the lanes that read them.
struct Part {
    /// The first, relative to the element of lane 0.
    first: i64,
    /// Their number.
    count: i64,
    /// Lanes, and the positions of their elements.
    lanes: Vec<(u32, u8)>,
}

/// What exists around an access: the position of the first lane's element, if it is known, and the elements
/// of the buffer.
struct Around {
    position: Option<Dim>,
    total: Dim,
}

/// Every second element of two vectors of four, the first of which begins `before` elements before the first
/// lane's.
fn every_second(before: i64, used: u32) -> Vec<Part> {
    let part = |k: u32| {
        let lanes = (2 * k..used.min(2 * k + 2)).map(|lane| (lane, (2 * i64::from(lane % 2) + before) as u8));
        Part { first: 4 * i64::from(k) - before, count: 4, lanes: lanes.collect() }
    };
    vec![part(0), part(1)]
}

/// True for [`every_second`] with this distance.
fn is_every_second(parts: &[Part], before: u8) -> bool {
    let suits = |k: usize, w: &Part| {
        w.lanes.iter().all(|(lane, place)| *lane / 2 == k as u32 && *place == 2 * (*lane % 2) as u8 + before)
    };
    parts.len() == 2 && parts.iter().enumerate().all(|(k, w)| suits(k, w))
}

impl Translate<'_> {
    /// The offsets of the lanes of a non-linear access, relative to the element of the first lane, and the
    /// position of that one. If the active lanes are unknown, all lanes count: inactive ones are within the
    /// buffer, too.
    pub(super) fn places(&self, storage: Buf, at: Dim, lane: Sym) -> Option<(Dim, Vec<i64>)> {
        let first = at.subst(&mut |s| (s == lane).then(|| Dim::constant(0)));
        let place = |i: u32| {
            let d = at.subst(&mut |s| (s == lane).then(|| Dim::from(i))) - first;
            d.as_const().or_else(|| self.m.syms.simplify(d).as_const())
        };
        let used = self.used_lanes();
        let places: Vec<i64> = (0..used.unwrap_or(self.b.lanes())).map(place).collect::<Option<_>>()?;
        if used.is_none() && self.lanes_left().is_none() {
            let (first, total) = (first.as_const()?, self.elements(storage).as_const()?);
            let inside = |p: &i64| first.checked_add(*p).is_some_and(|at| (0..total).contains(&at));
            places.iter().all(inside).then_some(())?;
        }
        Some((first, places))
    }
    /// The active lanes, if their number is constant.
    pub(super) fn used_lanes(&self) -> Option<u32> {
        match self.mask {
            None => Some(self.b.lanes()),
            Some(k) => self.b.lanes_of(k),
        }
    }
    /// The vectors that contain the elements of an access, if few suffice.
    fn vectors_of(&self, a: &Access, form: Form) -> Option<Vec<Part>> {
        if self.b.is_long() || !a.bound.is_empty() || a.window.is_some() {
            return None;
        }
        let used = match self.used_lanes() {
            Some(n) => n,
            // Inactive lanes are masked.
            None => self.lanes_left().map(|_| self.most_left())?,
        };
        let places: Vec<(u32, i64)> = match &a.places {
            Some(p) => (0..).zip(p.iter().copied()).collect(),
            None => {
                (0..used).map(|i| Some((i, i64::from(i).checked_mul(a.lane?)?))).collect::<Option<_>>()?
            }
        };
        if !self.b.has(Op::BytesFrom) {
            return self.parts_of(&places, form);
        }
        let around = Around { position: self.first_position(a, form), total: self.elements(a.storage) };
        if a.lane == Some(2) && used > 2 && form == Form::B32 {
            // Vectors from an even position on are shared with the elements between these ones.
            let odd = i64::from(a.disp / form.bytes() as i32).rem_euclid(2);
            let begins = |before: &i64| self.has_elements(&around, -before, 8 - before);
            if let Some(before) = [odd, 1 - odd].into_iter().find(begins) {
                return Some(every_second(before, used));
            }
        }
        let mut parts = self.parts_of(&places, form)?;
        self.complete(&mut parts, &around);
        Some(parts)
    }
    /// The position of the first lane's element in the buffer, if it and the bounds of its variables are
    /// known: those of the tile count from 0, and have the bounds of their loops only if these begin there.
    fn first_position(&self, a: &Access, form: Form) -> Option<Dim> {
        let bytes = form.bytes() as i32;
        let Some(Arg::Pointer { linear, size, .. }) = self.args.get(a.stream.0) else { return None };
        let stored = self.m.bufs[a.storage].ty.bytes() == Some(form.bytes());
        if !stored || *size != form.bytes() || a.disp % bytes != 0 {
            return None;
        }
        let moves = a.stream.1.iter().map(|(s, stride)| Dim::sym(*s) * *stride);
        let uniform = a.uniform.unwrap_or(Dim::constant(0));
        let position = moves.fold(*linear + uniform + i64::from(a.disp / bytes), |all, d| all + d);
        let begins_at_zero =
            |s: &Sym| self.m.syms.loop_range(*s).is_some_and(|(lo, _)| lo.as_const() == Some(0));
        position.syms().iter().all(|s| !self.vars.loops.contains(s) || begins_at_zero(s)).then_some(position)
    }
    /// The elements of a buffer.
    pub(super) fn elements(&self, storage: Buf) -> Dim {
        self.m.bufs[storage].count()
    }
    /// True if the buffer is proven to have the elements `from..to`, relative to the first lane's.
    fn has_elements(&self, around: &Around, from: i64, to: i64) -> bool {
        let Some(position) = around.position else { return false };
        let (syms, left) = (&self.m.syms, around.total - position);
        (from >= 0 || syms.is_nonneg(position + from)) && syms.is_nonneg(left - to)
    }
    /// Extends parts to whole vectors where the elements exist.
    fn complete(&self, parts: &mut [Part], around: &Around) {
        let lanes = i64::from(self.b.lanes());
        let first = parts.first().map_or(0, |w| w.first);
        for w in parts.iter_mut().filter(|w| w.count < lanes) {
            let missing = lanes - w.count;
            if self.has_elements(around, w.first, w.first + lanes) {
                w.count = lanes;
            } else if w.first - missing >= first || self.has_elements(around, w.first - missing, w.first) {
                (w.first, w.count) = (w.first - missing, lanes);
                w.lanes.iter_mut().for_each(|l| l.1 += missing as u8);
            }
        }
    }
    /// The vectors that contain the elements of some lanes, if few suffice.
    fn parts_of(&self, places: &[(u32, i64)], form: Form) -> Option<Vec<Part>> {
        let bytes = self.b.has(Op::BytesFrom);
        if !bytes && !self.b.has(Op::Bin(Bin::Permute, Bits::B32)) || self.b.is_long() {
            return None;
        }
        // Vectors of these levels are loaded partially at no cost.
        let partial = bytes || self.b.width() == Width::Avx512;
        let (lanes, most) = (i64::from(self.b.lanes()), if partial { 4 } else { 3 });
        let mut order: Vec<(i64, u32)> = places.iter().map(|(l, p)| (*p, *l)).collect();
        order.sort_unstable();
        let mut parts: Vec<Part> = vec![];
        for (p, lane) in order {
            match parts.last_mut().filter(|w| p - w.first < lanes) {
                Some(w) => {
                    w.count = p - w.first + 1;
                    w.lanes.push((lane, (p - w.first) as u8));
                }
                None => {
                    // A part ends before the next one begins.
                    if let Some(w) = parts.last_mut() {
                        w.count = lanes;
                    }
                    parts.push(Part { first: p, count: 1, lanes: vec![(lane, 0)] });
                }
            }
        }
        // Short elements can be loaded as whole vectors only if they cannot be masked.
        let whole = self.used_lanes().is_some() && parts.iter().all(|w| w.count == lanes);
        let loads = partial || form == Form::B32 || whole;
        (parts.len() <= most && loads).then_some(parts)
    }
    /// The most active lanes of a last vector of run-time length.
    fn most_left(&self) -> u32 {
        let most = self.m.syms.range(self.rest_of).hi.and_then(|n| u32::try_from(n).ok());
        most.map_or(self.b.lanes(), |n| n.clamp(1, self.b.lanes()))
    }
    /// The active lanes of a last vector of run-time length.
    fn lanes_left(&self) -> Option<Value> {
        self.rest.filter(|(k, _)| self.mask == Some(*k) && self.used_lanes().is_none()).map(|r| r.1)
    }
    /// The mask of the elements of a part that active lanes read; none if it is a whole vector.
    fn elements_of(&mut self, w: &Part) -> Option<Value> {
        let lanes = i64::from(self.b.lanes());
        let Some(left) = self.lanes_left() else {
            return (w.count < lanes).then(|| self.b.first_lanes(Count::Fixed(w.count)));
        };
        // The first lane that reads each element.
        let mut readers = [u8::MAX; 16];
        for (lane, place) in &w.lanes {
            if let Some(r) = readers.get_mut(usize::from(*place)) {
                *r = (*r).min(*lane as u8);
            }
        }
        let (readers, left) = (self.b.lane_numbers(readers), self.b.splat(left));
        Some(self.b.icmp(Pred::Lt, readers, left, Bits::B32))
    }
    /// True for accesses that [`Translate::vectors_of`] supports.
    pub(super) fn is_strided(&self, a: &Access, form: Form) -> bool {
        (a.places.is_some() || !matches!(a.lane, None | Some(0 | 1))) && self.vectors_of(a, form).is_some()
    }
    /// True for lanes that read either contiguous elements or a single one, decided at run time: operands of
    /// a possible broadcast.
    pub(super) fn is_repeated(&self, a: &Access, form: Form) -> bool {
        a.lane.is_none() && a.bound.is_empty() && is_factor(&self.m.syms, a.step) && self.has_windows(form)
    }
    /// The elements of such lanes: existing elements, permuted by indices that are all 0 for a broadcast.
    pub(super) fn load_repeated(&mut self, a: &Access, form: Form) -> Fit<Value> {
        let lanes = i64::from(self.b.lanes());
        let count = |t: &mut Self, used: i64| match t.count(a.step * (used - 1) + 1)? {
            Count::Run(n) => Ok(n),
            Count::Fixed(_) => Err("a distance that is no register"),
        };
        let elements = match (self.used_lanes(), self.lanes_left()) {
            (Some(used), _) => count(self, i64::from(used))?,
            (None, Some(n)) => {
                let all = count(self, lanes)?;
                self.b.lesser(all, n)
            }
            _ => return Err("lanes of a condition that repeat an element"),
        };
        let Count::Run(minus) = self.count(Dim::constant(0) - a.step)? else {
            return Err("a distance that is no register");
        };
        let mem = self.mem(a)?;
        let mask = self.b.first_lanes(Count::Run(elements));
        let v = self.load_neighbours(a, form, mem, Some(mask))?;
        let (iota, all) = (self.b.iota(), self.b.splat(minus));
        let numbers = self.b.bin(Bin::And, iota, all);
        Ok(self.b.bin(Bin::Permute, numbers, v))
    }
    /// Contiguous elements at an address, with inactive lanes masked.
    pub(super) fn load_neighbours(
        &mut self,
        a: &Access,
        form: Form,
        mem: Mem,
        mask: Option<Value>,
    ) -> Fit<Value> {
        let neighbours = Access {
            lane: Some(1),
            step: Dim::constant(1),
            places: None,
            window: None,
            indexed: None,
            stream: a.stream.clone(),
            uniform: a.uniform,
            bound: vec![],
            ..*a
        };
        let outer = std::mem::replace(&mut self.mask, mask);
        let v = self.load_at(&neighbours, form, mem);
        self.mask = outer;
        v
    }
    /// A reversed row of 64-bit elements: those that active lanes read, permuted. Lane 0 reads the last one.
    pub(super) fn load_reversed(&mut self, a: &Access, form: Form, mem: Mem) -> Fit<Option<Value>> {
        let reversed = a.bound.is_empty() && a.lane == Some(-1) && form == Form::B64 && self.b.is_long();
        if !reversed || !self.b.has(Op::Bin(Bin::Permute, Bits::B64)) {
            return Ok(None);
        }
        let last = match (self.used_lanes(), self.lanes_left()) {
            (Some(n), _) => self.b.int(i64::from(n) - 1),
            (None, Some(n)) => self.b.add_imm(n, -1),
            _ => return Ok(None),
        };
        let base = self.b.address(mem);
        let before = self.b.mul_imm(last, -(form.bytes() as i32));
        let first = self.b.add(base, before);
        let v = self.load_neighbours(a, form, Mem::at(first, 0), self.mask)?;
        let begin = self.b.next_value();
        let (numbers, last) = (self.b.iota(), self.b.splat(last));
        let places = self.index_op(Bin::ISub, last, numbers);
        self.b.are_positions(begin);
        Ok(Some(self.b.bin_of(Bin::Permute, places, v, Bits::B64)))
    }
    /// The elements of lanes at constant offsets.
    pub(super) fn load_strided(&mut self, a: &Access, form: Form) -> Fit<Value> {
        let Some(parts) = self.vectors_of(a, form) else { return Err("lanes too far apart for shuffles") };
        let mem = self.mem(a)?;
        let key = (Place { base: mem.base, index: mem.index }, mem.disp, form, a.lane, false, self.mask);
        if let (None, Some((_, v))) = (&a.places, self.loaded.get(&key)) {
            return Ok(*v);
        }
        let begin = self.b.next_value();
        let v = self.load_parts(a, form, &parts, None)?.ok_or("a vector without lanes")?;
        if self.m.is_constant(a.storage) {
            self.b.are_positions(begin);
        }
        if a.places.is_none() {
            self.loaded.insert(key, (a.storage, v));
        }
        Ok(v)
    }
    /// The lanes of some parts, blended into a vector with the others.
    fn load_parts(
        &mut self,
        a: &Access,
        form: Form,
        parts: &[Part],
        mut all: Option<Value>,
    ) -> Fit<Option<Value>> {
        const FAR: &str = "a load that steps too far";
        let mem = self.mem(a)?;
        let shuffle = [false, true].into_iter().find(|odd| {
            self.b.has(Op::Unzip { odd: *odd }) && all.is_none() && is_every_second(parts, u8::from(*odd))
        });
        let mut loaded: Vec<(&Part, Value)> = vec![];
        for w in parts {
            let bytes = w
                .first
                .checked_mul(i64::from(form.bytes()))
                .and_then(|b| i32::try_from(b).ok())
                .and_then(|b| mem.disp.checked_add(b))
                .ok_or(FAR)?;
            let mask = self.elements_of(w);
            let v = self.load_neighbours(a, form, Mem { disp: bytes, ..mem }, mask);
            if let Some(odd) = shuffle {
                all = Some(match all {
                    None => v?,
                    Some(before) => self.b.shuffle(Op::Unzip { odd }, before, v?),
                });
                continue;
            }
            if self.b.has(Op::BytesFrom) {
                all = Some(self.b.permute_into(all, v?, &w.lanes));
                continue;
            }
            loaded.push((w, v?));
        }
        let pairs = self.b.has(Op::Permute2);
        for of in loaded.chunks(if pairs { 2 } else { 1 }) {
            let [lower, upper @ ..] = of else { continue };
            let (v, chosen) = self.permuted_parts(parts, *lower, upper.first().copied());
            all = Some(match all {
                None => v,
                Some(before) => {
                    let chosen = self.b.some_lanes(chosen);
                    self.b.select(chosen, v, before, Bits::B32)
                }
            });
        }
        Ok(all)
    }
    /// The lanes of a loaded part, or of two of all `parts`, in their places, and the bits of these lanes.
    fn permuted_parts(
        &mut self,
        parts: &[Part],
        lower: (&Part, Value),
        upper: Option<(&Part, Value)>,
    ) -> (Value, u32) {
        let lanes = i64::from(self.b.lanes());
        let all = if upper.is_some() { 2 * lanes } else { lanes };
        let mut from = [0u8; 16];
        let mut put = |lane: u32, number: i64| {
            if let Some(f) = from.get_mut(lane as usize) {
                *f = number.rem_euclid(all) as u8;
            }
        };
        // Inactive lanes of a permutation are chosen so that the indices of all parts are equal for
        // equidistant elements.
        for (p, (lane, place)) in parts.iter().flat_map(|p| p.lanes.iter().map(move |l| (p, l))) {
            put(*lane, p.first + i64::from(*place) - lower.0.first);
        }
        let mut chosen = 0u32;
        for (i, (w, _)) in (0..).zip([Some(lower), upper].into_iter().flatten()) {
            for (lane, place) in &w.lanes {
                put(*lane, i * lanes + i64::from(*place));
                chosen |= 1u32.checked_shl(*lane).unwrap_or(0);
            }
        }
        let from = self.b.lane_numbers(from);
        (self.b.permuted(from, lower.1, upper.map(|w| w.1)), chosen)
    }
    /// Elements in a few planes at a run-time distance, at constant offsets in each: an image whose channels
    /// are the phases of a row.
    pub(super) fn load_from_planes(&mut self, buf: Buf, at: &[Dim], form: Form) -> Fit<Value> {
        let open = |l: &Sym| self.put.get(l).is_none_or(|d| d.contains(*l));
        let Some(lane) = self.lane_sym().filter(open) else { return Err(NOT_LINEAR) };
        if self.counters().iter().any(|c| c.0 == lane) {
            return Err(NOT_LINEAR);
        }
        let linear = self.substituted(self.linear(buf, at));
        let used = match (self.used_lanes(), self.lanes_left()) {
            (Some(n), _) => n,
            (None, Some(_)) => self.b.lanes(),
            _ => return Err(NOT_LINEAR),
        };
        let planes = self.m.syms.planes(linear, lane, 0..i64::from(used));
        if planes.len() > PLANES {
            return Err(NOT_LINEAR);
        }
        let mut all = None;
        for p in planes {
            let (first, _) = p[0];
            let places: Vec<(u32, i64)> = p.iter().map(|(i, place)| (*i as u32, *place)).collect();
            let parts = self.parts_of(&places, form).ok_or(NOT_LINEAR)?;
            let a = self.with(lane, self.at_lane(lane, first), |t| t.access(buf, at))?;
            if !a.bound.is_empty() || a.window.is_some() || a.places.is_some() {
                return Err(NOT_LINEAR);
            }
            all = self.load_parts(&a, form, &parts, all)?;
        }
        all.ok_or("a vector without lanes")
    }
    /// The value of the variable of a vector loop in a lane.
    pub(super) fn at_lane(&self, lane: Sym, i: i64) -> Dim {
        let i = Dim::constant(i);
        self.put.get(&lane).map_or(i, |d| d.subst(&mut |s| (s == lane).then_some(i)))
    }
}

/// Maximum planes that the lanes of a vector read.
pub(super) const PLANES: usize = 4;
