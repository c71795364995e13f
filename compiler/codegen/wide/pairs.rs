//! Loads whose lanes step over every second element: two vectors of neighbours, of which one shuffle each and a blend keep
//! the even places. Nothing beyond the last lane's element is touched.

use super::access::Access;
use super::builder::Count;
use super::ir::{Bin, Bits, Form, Mem, Value};
use super::tile::{Fit, Translate};

impl Translate<'_> {
    /// True for accesses that [`Translate::every_second`] knows.
    pub(super) fn is_every_second(&self, a: &Access, form: Form) -> bool {
        a.lane == 2 && form == Form::Whole && !self.b.is_long() && self.mask.is_none_or(|k| self.b.lanes_of(k).is_some())
    }
    /// The vector of an access with two elements per lane; `mem` is where the first lane's stands.
    pub(super) fn every_second(&mut self, form: Form, mem: Mem) -> Fit<Value> {
        let lanes = self.b.width().lanes();
        let used = match self.mask {
            None => lanes,
            Some(k) => self.b.lanes_of(k).ok_or("a load that steps over elements, for lanes that run time knows")?,
        };
        let elements = 2 * used - 1;
        let even = self.b.iota_by(2);
        let mut part = |first: u32| {
            let n = (elements - first).min(lanes);
            let mask = (n < lanes).then(|| self.b.first_lanes(Count::Fixed(i64::from(n))));
            let v = self.b.load(form, Mem { disp: mem.disp.wrapping_add(4 * first as i32), ..mem }, mask);
            self.b.bin(Bin::Pick, even, v)
        };
        let low = part(0);
        if elements <= lanes {
            return Ok(low);
        }
        let high = part(lanes);
        let lower = self.b.first_lanes(Count::Fixed(i64::from(lanes / 2)));
        Ok(self.b.select(lower, low, high, Bits::B32))
    }
}
