//! Loads whose lanes are no neighbours but lie at distances known now: every second element, each of them
//! twice, a row from its end. A few vectors of neighbours hold them all; one shuffle each and a blend put
//! them in place. Nothing before the first of these elements or behind the last is touched.

use super::access::Access;
use super::{Fit, Place, Translate};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Bits, Form, Mem, Op, Value, Width};
use crate::nest::Buf;
use crate::sym::{Dim, Sym};

/// Neighbours that a vector holds, and which lanes take which of them.
struct Part {
    /// The first, in elements from where lane 0 reads.
    first: i64,
    /// How many.
    count: i64,
    /// Lane, and the place of its element.
    lanes: Vec<(u32, u8)>,
}

impl Translate<'_> {
    /// Where the lanes of an access that is not linear in them read, as elements behind that of the first
    /// lane, and where that one reads. Lanes that do not exist count where nobody knows which these are: they
    /// read within the buffer, too.
    pub(super) fn places(&self, storage: Buf, at: Dim, lane: Sym) -> Option<(Dim, Vec<i64>)> {
        let first = at.subst(&mut |s| (s == lane).then(|| Dim::constant(0)));
        let place = |i: u32| {
            let d = at.subst(&mut |s| (s == lane).then(|| Dim::from(i))) - first;
            d.as_const().or_else(|| self.m.syms.simplify(d).as_const())
        };
        let used = self.used_lanes();
        let places: Vec<i64> = (0..used.unwrap_or(self.b.lanes())).map(place).collect::<Option<_>>()?;
        if used.is_none() {
            let (first, total) =
                (first.as_const()?, Dim::product(self.m.bufs[storage].dims.iter().copied()).as_const()?);
            let inside = |p: &i64| first.checked_add(*p).is_some_and(|at| (0..total).contains(&at));
            places.iter().all(inside).then_some(())?;
        }
        Some((first, places))
    }
    /// Lanes that exist, where their number is known.
    pub(super) fn used_lanes(&self) -> Option<u32> {
        match self.mask {
            None => Some(self.b.lanes()),
            Some(k) => self.b.lanes_of(k),
        }
    }
    /// The vectors that hold what an access reads, if a few do.
    fn vectors_of(&self, a: &Access, form: Form) -> Option<Vec<Part>> {
        if !self.b.has(Op::Bin(Bin::Permute, Bits::B32)) {
            return None;
        }
        let wide = self.b.width() == Width::Avx512;
        let (lanes, most) = (i64::from(self.b.lanes()), if wide { 4 } else { 3 });
        if self.b.is_long() || !a.bound.is_empty() || a.window.is_some() {
            return None;
        }
        let places = match &a.places {
            Some(p) => p.clone(),
            None => {
                (0..self.used_lanes()?).map(|i| i64::from(i).checked_mul(a.lane?)).collect::<Option<_>>()?
            }
        };
        let mut order: Vec<(i64, u32)> = places.iter().zip(0..).map(|(p, l)| (*p, l)).collect();
        order.sort_unstable();
        let mut parts: Vec<Part> = vec![];
        for (p, lane) in order {
            match parts.last_mut().filter(|w| p - w.first < lanes) {
                Some(w) => {
                    w.count = p - w.first + 1;
                    w.lanes.push((lane, (p - w.first) as u8));
                }
                None => {
                    // What lies before the next part is there.
                    if let Some(w) = parts.last_mut() {
                        w.count = lanes;
                    }
                    parts.push(Part { first: p, count: 1, lanes: vec![(lane, 0)] });
                }
            }
        }
        // Short elements come in whole vectors only where masks do not apply to them.
        let loads = wide || form == Form::B32 || parts.iter().all(|w| w.count == lanes);
        (parts.len() <= most && loads).then_some(parts)
    }
    /// True for accesses that [`Translate::apart`] knows.
    pub(super) fn is_strided(&self, a: &Access, form: Form) -> bool {
        (a.places.is_some() || !matches!(a.lane, None | Some(0 | 1))) && self.vectors_of(a, form).is_some()
    }
    /// Neighbours from a place on, those lanes of them that a mask keeps.
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
            stream: a.stream.clone(),
            bound: vec![],
            ..*a
        };
        let outer = std::mem::replace(&mut self.mask, mask);
        let v = self.load_at(&neighbours, form, mem);
        self.mask = outer;
        v
    }
    /// What lanes at known distances read.
    pub(super) fn load_strided(&mut self, a: &Access, form: Form) -> Fit<Value> {
        const FAR: &str = "a load that steps too far";
        let Some(parts) = self.vectors_of(a, form) else { return Err("lanes too far apart for shuffles") };
        let (mem, lanes) = (self.mem(a)?, i64::from(self.b.lanes()));
        let key = (Place { base: mem.base, index: mem.index }, mem.disp, form, a.lane, false, self.mask);
        if let (None, Some((_, v))) = (&a.places, self.loaded.get(&key)) {
            return Ok(*v);
        }
        let mut all: Option<Value> = None;
        for w in &parts {
            let bytes = w
                .first
                .checked_mul(i64::from(form.bytes()))
                .and_then(|b| i32::try_from(b).ok())
                .and_then(|b| mem.disp.checked_add(b))
                .ok_or(FAR)?;
            let mask = (w.count < lanes).then(|| self.b.first_lanes(Count::Fixed(w.count)));
            let v = self.load_neighbours(a, form, Mem { disp: bytes, ..mem }, mask);
            // Lanes of other parts pick what makes the numbers of all parts alike where elements lie at equal
            // distances.
            let mut from = [0u8; 16];
            for (p, other) in parts.iter().flat_map(|p| p.lanes.iter().map(move |l| (p, l))) {
                if let Some(f) = from.get_mut(other.0 as usize) {
                    *f = (p.first + i64::from(other.1) - w.first).rem_euclid(lanes) as u8;
                }
            }
            let chosen = w.lanes.iter().fold(0u32, |c, (lane, _)| c | 1u32.checked_shl(*lane).unwrap_or(0));
            let from = self.b.lane_numbers(from);
            let v = self.b.bin(Bin::Permute, from, v?);
            all = Some(match all {
                None => v,
                Some(before) => {
                    let chosen = self.b.some_lanes(chosen);
                    self.b.select(chosen, v, before, Bits::B32)
                }
            });
        }
        let v = all.ok_or("a vector without lanes")?;
        if a.places.is_none() {
            self.loaded.insert(key, (a.storage, v));
        }
        Ok(v)
    }
}
