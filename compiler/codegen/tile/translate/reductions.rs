//! Reductions across the lanes of accumulators.

use super::expr::bits_of;
use super::{Fit, Translate, Val};
use crate::codegen::tile::ir::{Bin, Bits, Op};
use crate::nest::{BinOp, Expr, patterns};
use crate::sym::Dim;

impl Translate<'_> {
    /// The reductions of several accumulators, one in each lane ([`patterns::reductions_by_lane`]).
    pub(super) fn reductions(&mut self, e: &Expr) -> Fit<Option<Val>> {
        let Some((lane, op, accs)) = patterns::reductions_by_lane(e) else { return Ok(None) };
        let here = self.lane_sym() == Some(lane) && self.at_lane(lane, 0).as_const() == Some(0);
        if !here || accs.len() > self.b.lanes() as usize || !self.b.has(Op::SomeLanes(0)) {
            return Ok(None);
        }
        let accs = accs.into_iter().map(|(reg, at)| self.acc(reg, at)).collect::<Fit<Vec<Val>>>()?;
        self.reduced(op, accs).map(Some)
    }
    /// The reduction of accumulator i in lane i: of the only one in all lanes. Each step halves the number of
    /// vectors or, once there is one, the distance between lanes. The order of operations within an
    /// accumulator does not depend on the others.
    pub(super) fn reduced(&mut self, op: BinOp, mut accs: Vec<Val>) -> Fit<Val> {
        let mut k = self.b.lanes() as usize / 2;
        while k > 0 {
            let here = k.min(accs.len());
            let pairs = (0..here).map(|i| (accs[i], accs.get(i + k).copied())).collect::<Vec<_>>();
            accs = pairs.into_iter().map(|(a, b)| self.halved(op, k, a, b)).collect::<Fit<_>>()?;
            k /= 2;
        }
        accs.into_iter().next().ok_or("a reduction of no accumulator")
    }
    /// One lane of an accumulator, in all lanes. ISAs without permutations of 64 bits permute pairs of 32
    /// bits.
    pub(super) fn one_lane(&mut self, v: Val, lane: Dim) -> Fit<Val> {
        let lane = self.substituted(lane).as_const().ok_or("a lane that is not a number")?;
        let has = |bits: Bits| self.b.has(Op::Bin(Bin::Permute, bits));
        let (places, bits) = match bits_of(v.ty) {
            _ if !has(Bits::B32) => return Err("a single lane"),
            Bits::B64 if has(Bits::B64) => (self.b.bits64(lane as u64), Bits::B64),
            Bits::B64 => {
                let word = |i: usize| (2 * lane) as u8 + (i % 2) as u8;
                (self.b.lane_numbers(std::array::from_fn(word)), Bits::B32)
            }
            bits => (self.b.bits(lane as u32), bits),
        };
        Ok(Val { v: self.b.bin_of(Bin::Permute, places, v.v, bits), ..v })
    }
    /// The operation between lanes at distance `k`: of `a` in the lanes whose number does not have the bit
    /// `k`, of `b` in the others.
    fn halved(&mut self, op: BinOp, k: usize, a: Val, b: Option<Val>) -> Fit<Val> {
        let bits = bits_of(a.ty);
        let (own, other) = match b {
            None => (a.v, a.v),
            Some(b) => {
                let set = self.b.lanes_where(|l| l & k as u32 != 0);
                (self.b.select(set, b.v, a.v, bits), self.b.select(set, a.v, b.v, bits))
            }
        };
        let other = self.b.swap_lanes(k as u8, other, bits);
        self.binary(op, Val { v: own, ..a }, Val { v: other, ..a }, false)
    }
}
