//! Constants.

use super::encode::{Emit, OWN};
use super::table::{self, Width};
use crate::codegen::tile::ir::{Bits, Number, Op};

/// True for integers that vector instructions can encode.
fn is_tiny(x: i64) -> bool {
    (-16..16).contains(&x)
}

/// A number of five bits in the field of the second vector.
pub(super) fn tiny(x: i64) -> u32 {
    x as u32 & 31
}

/// The bits of a constant in an integer register.
pub(super) fn as_int(x: Number) -> i64 {
    match x {
        Number::Word(x) => i64::from(x as i32),
        Number::Long(x) => x as i64,
    }
}

impl Emit<'_> {
    pub(super) fn constant(&mut self, op: Op, d: u32) {
        match op {
            Op::Const(x) => {
                self.want(Width::of(x.bits()));
                let x = as_int(x);
                if is_tiny(x) {
                    self.code.vector(table::SPLAT_NUMBER, d, 0, tiny(x));
                } else {
                    self.code.int(OWN, x);
                    self.code.vector(table::SPLAT, d, 0, OWN);
                }
            }
            Op::Number(x, f) => {
                let from = match as_int(x) {
                    0 => 0,
                    x => {
                        self.code.int(OWN, x);
                        OWN
                    }
                };
                self.code.two(table::to_float_register(x.bits()), u32::from(f), from);
            }
            Op::SomeLanes(k) => self.mask(d, k),
            Op::FirstLanes(n) => self.mask(d, if n >= 32 { u32::MAX } else { (1 << n) - 1 }),
            Op::LanesSwapped(k, bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::LANE_NUMBERS, d, 0, 0);
                if u32::from(k) < 16 {
                    self.code.vector(table::XOR_NUMBER, d, d, u32::from(k));
                } else {
                    self.code.int(OWN, i64::from(k));
                    self.code.vector(
                        table::bin_int(crate::codegen::tile::ir::Bin::Xor).unwrap_or(0),
                        d,
                        d,
                        OWN,
                    );
                }
            }
            Op::Iota(n, bits) => {
                self.want(Width::of(bits));
                self.code.vector(table::LANE_NUMBERS, d, 0, 0);
                if n != 1 {
                    self.code.int(OWN, i64::from(n));
                    self.code.vector(
                        table::bin_int(crate::codegen::tile::ir::Bin::IMul).unwrap_or(0),
                        d,
                        d,
                        OWN,
                    );
                }
            }
            _ => {}
        }
    }
    /// A constant mask. Between instructions, the vector type has 32 bits or more.
    fn mask(&mut self, d: u32, bits: u32) {
        self.want(Width::of(if self.f.long { Bits::B64 } else { Bits::B32 }));
        self.code.int(OWN, i64::from(bits as i32));
        self.code.vector(table::SET_FIRST, d, 0, OWN);
    }
}
