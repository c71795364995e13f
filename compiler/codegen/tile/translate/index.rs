//! Loop variables and sizes as integers in lanes. With 32-bit lanes, the part of an index that is uniform
//! stays a 64-bit integer unless it provably fits.

use super::gather::NO_STRIDE;
use super::windows::{Moving, taken_apart};
use super::{Fit, Translate, Val};
use crate::codegen::tile::builder::Count;
use crate::codegen::tile::ir::{Bin, Op, Value};
use crate::nest::BinOp;
use crate::sym::{Dim, Sym};
use crate::tensor::ElemType;

/// Products of lane numbers with this value are far from the limits of 32 bits.
pub(super) const MOST_STEP: u64 = 1 << 24;

/// A decomposed index: counters with their factors, the factor of the lane, and the invariant rest.
pub(super) struct Parts {
    pub counters: Vec<(Value, i64)>,
    pub lane: i64,
    pub rest: Dim,
}

impl Translate<'_> {
    /// True if an index fits in 32 bits; bounds are those of the variables in the nest.
    fn fits(&self, d: Dim) -> bool {
        let r = self.m.syms.range(d);
        matches!((r.lo, r.hi), (Some(lo), Some(hi)) if i32::try_from(lo).is_ok() && i32::try_from(hi).is_ok())
    }
    /// Compares two indices.
    pub(super) fn compare_indices(&mut self, op: BinOp, a: Dim, b: Dim) -> Fit<Val> {
        let near = self.b.is_long() || self.fits(a) && self.fits(b);
        let (a, b) = (self.substituted(a), self.substituted(b));
        // Rows of a tile compare the same columns.
        let key = (op, a, b, self.b.block());
        if let Some(found) = self.compared.get(&key) {
            return Ok(*found);
        }
        let (a, b) = if near { (self.index(a)?, self.index(b)?) } else { self.difference(a - b)? };
        let found = self.compare(op, a, b)?;
        self.compared.insert(key, found);
        Ok(found)
    }
    /// Two 32-bit values whose comparison equals that of an index with 0: the lane part and the rest,
    /// clamped.
    fn difference(&mut self, d: Dim) -> Fit<(Val, Val)> {
        let p = self.parts(d)?;
        if p.lane.unsigned_abs() > MOST_STEP {
            return Err("a comparison of indices beyond 32 bits");
        }
        let rest = self.scalar(&Parts {
            counters: p.counters.iter().map(|(v, c)| (*v, c.wrapping_neg())).collect(),
            lane: 0,
            rest: Dim::constant(0) - p.rest,
        })?;
        let rest = match rest {
            Count::Fixed(n) => self.index_number(n.clamp(i32::MIN.into(), i32::MAX.into())),
            Count::Run(v) => {
                let v = self.b.limited(v, i32::MIN.into(), i32::MAX.into());
                self.b.splat(v)
            }
        };
        let lane = match p.lane {
            0 => self.index_number(0),
            1 => self.b.iota(),
            n => {
                let (iota, step) = (self.b.iota(), self.index_number(n));
                self.index_op(Bin::IMul, iota, step)
            }
        };
        Ok((Val { v: lane, ty: ElemType::I32 }, Val { v: rest, ty: ElemType::I32 }))
    }
    /// An index converted to another type, with 32-bit lanes.
    pub(super) fn index_as(&mut self, to: ElemType, d: Dim) -> Fit<Val> {
        let fits = self.fits(d);
        let d = self.substituted(d);
        if fits {
            let v = self.index(d)?;
            return self.cast(to, v);
        }
        let p = self.parts(d)?;
        if p.lane != 0 || to != ElemType::F32 {
            return Err("an index beyond 32 bits as a number");
        }
        let v = match self.scalar(&p)? {
            Count::Fixed(n) => self.b.f32(n as f32),
            Count::Run(v) => self.b.vector(Op::SplatFloat, &[v], None),
        };
        Ok(Val { v, ty: to })
    }
    pub(super) fn parts(&self, d: Dim) -> Fit<Parts> {
        let mut p = Parts { counters: vec![], lane: 0, rest: d };
        let lane = self.lane_sym();
        let mut loops: Vec<(Sym, Option<Value>)> =
            self.counters().iter().map(|(s, v)| (*s, Some(*v))).collect();
        if let Some(l) = lane.filter(|l| !loops.iter().any(|x| x.0 == *l)) {
            loops.push((l, None));
        }
        for (s, counter) in loops {
            if !p.rest.contains(s) {
                continue;
            }
            let Some((c, r)) = p.rest.linear_in(s) else {
                return Err("an index that is not linear in a loop variable");
            };
            let Some(c) = c.as_const() else { return Err(NO_STRIDE) };
            p.rest = r;
            p.counters.extend(counter.map(|v| (v, c)));
            if Some(s) == lane {
                p.lane = c;
            }
        }
        Ok(p)
    }
    /// The uniform part.
    pub(super) fn scalar(&mut self, p: &Parts) -> Fit<Count> {
        let mut sum = self.count(p.rest)?;
        for (v, c) in &p.counters {
            let Ok(c) = i32::try_from(*c) else { return Err("an index with a stride beyond 32 bits") };
            let t = self.b.mul_imm(*v, c);
            sum = Count::Run(match sum {
                Count::Fixed(n) => self.b.add_imm(t, n),
                Count::Run(s) => self.b.add(s, t),
            });
        }
        Ok(sum)
    }
    /// An index in lanes.
    pub(super) fn index(&mut self, d: Dim) -> Fit<Val> {
        let (d, own) = match self.numbers_of_lanes(d) {
            Some((shared, numbers)) => (shared, Some(self.b.lane_numbers(numbers))),
            None => (d, None),
        };
        let p = self.parts(d)?;
        let mut terms: Vec<(Value, i64)> = own.map(|v| (v, 1)).into_iter().collect();
        for (v, c) in p.counters {
            terms.push((self.b.splat(v), c));
        }
        if p.lane != 0 {
            terms.push((self.b.iota(), p.lane));
        }
        let mut sum: Option<Value> = None;
        for (v, c) in terms {
            let t = if c == 1 {
                v
            } else {
                let k = self.index_number(c);
                self.index_op(Bin::IMul, v, k)
            };
            sum = Some(match sum {
                Some(s) => self.index_op(Bin::IAdd, s, t),
                None => t,
            });
        }
        let base = match self.count(p.rest)? {
            Count::Fixed(c) => self.index_number(c),
            Count::Run(v) => self.b.splat(v),
        };
        let v = match sum {
            Some(s) => self.index_op(Bin::IAdd, s, base),
            None => base,
        };
        Ok(Val { v, ty: if self.b.is_long() { ElemType::I64 } else { ElemType::I32 } })
    }
    /// A position that is not linear in the lanes of a single vector, as a uniform part and a small constant
    /// per lane, such as remainders of the lane number.
    fn numbers_of_lanes(&self, d: Dim) -> Option<(Dim, [u8; 16])> {
        let lane = self.lane_sym().filter(|l| !self.counters().iter().any(|c| c.0 == *l))?;
        if self.b.is_long() || !d.contains(lane) || d.linear_in(lane).is_some() {
            return None;
        }
        let Moving::Sum(own, shared) = taken_apart(d, lane).ok()? else { return None };
        let mut numbers = [0u8; 16];
        for (n, i) in numbers.iter_mut().zip(0..i64::from(self.b.lanes())) {
            *n = own.eval(&|s| (s == lane).then_some(i)).and_then(|p| u8::try_from(p).ok())?;
        }
        Some((shared, numbers))
    }
    /// A constant in the lane width.
    pub(super) fn index_number(&mut self, c: i64) -> Value {
        if self.b.is_long() { self.b.bits64(c as u64) } else { self.b.bits(c as i32 as u32) }
    }
    pub(super) fn index_op(&mut self, op: Bin, a: Value, b: Value) -> Value {
        if self.b.is_long() { self.b.long(op, a, b) } else { self.b.bin(op, a, b) }
    }
}
