//! Wide tiles: leaf functions of 256- and 512-bit vectors for x86-64, which Cranelift has not.
//!
//! A leaf nest becomes a function of the tile IR (`tile` with `loops`, `expr`, `memory` and `turn`; `ir`, `builder`), regalloc2 gives it registers (`consts`, `alloc`), iced-x86 encodes it
//! (`encode`); instruction codes are rows of a table (`table`).

mod access;
mod alloc;
mod apart;
mod builder;
mod consts;
mod convert;
mod encode;
mod expr;
mod fit;
mod floats;
mod gather;
mod index;
pub mod ir;
mod longs;
mod loops;
mod memory;
mod quotient;
mod table;
pub mod tile;
mod turn;

use crate::diag::Result;
use crate::target::{Dot, Facts};
pub use ir::{Func, Width};
use std::fmt::Write;
pub use tile::{Arg, Tile, translate};

/// The machine code of a tile: position-independent, without relocations.
pub fn compile(f: &Func) -> Result<Vec<u8>> {
    let (alloc, out) = alloc::allocate(f)?;
    encode::encode(f.width, &alloc, &out)
}

/// What tiles of a CPU level may use.
#[derive(Clone, Copy, Debug)]
pub struct Isa {
    /// Length of vectors.
    pub width: Width,
    /// Dot products of bytes.
    pub dot: bool,
    /// Dot products of bf16.
    pub bf16: bool,
}

impl Isa {
    /// The tiles of a CPU level; vectors of 128 bits are Cranelift's.
    pub fn of(facts: &Facts) -> Option<Isa> {
        let width = match facts.width {
            256 => Width::Avx2,
            512 => Width::Avx512,
            _ => return None,
        };
        Some(Isa { width, dot: facts.dot == Dot::Quads, bf16: facts.bf16 })
    }
}

/// The operations of a tile as text.
pub fn listing(f: &Func) -> String {
    let mut s = String::new();
    for (i, b) in f.blocks.iter().enumerate() {
        let _ = writeln!(s, "  block {i} {:?} -> {:?} {:?}", b.params, b.succs, b.jump_args);
        for n in &b.nodes {
            let _ = writeln!(s, "    {:?} = {:?} {:?} {:?}", n.def, n.op, n.args, n.mem);
        }
    }
    s
}
