//! Elements of 128 bits that only move (complex128): a value is the number of its bits in a table.

use super::code::Access;
use super::*;

impl State<'_> {
    pub(super) fn load_pair(&mut self, a: &Access) -> Res<u64> {
        let (region, base, i) = self.locate(a)?;
        match self.mem[region].bytes().get(base + i * 16..).and_then(|b| b.first_chunk()) {
            Some(b) => Ok(self.pairs.number(u128::from_le_bytes(*b))),
            None => self.outside(a),
        }
    }
    pub(super) fn store_pair(&mut self, a: &Access, number: u64) -> Res<()> {
        let Some(bits) = self.pairs.get(number) else {
            return msg("a value of 128 bits that was never made");
        };
        let (region, base, i) = self.locate(a)?;
        let at = base + i * 16;
        let Region::Own(bytes) = &mut self.mem[region] else {
            return msg("a store of 128 bits to what is read-only");
        };
        match bytes.get_mut(at..at + 16) {
            Some(to) => {
                to.copy_from_slice(&bits.to_le_bytes());
                Ok(())
            }
            None => self.outside(a),
        }
    }
}
