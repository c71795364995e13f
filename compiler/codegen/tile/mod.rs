//! Vector code: leaf functions with instruction selection and register allocation independent of Cranelift.
//!
//! [`translate()`] turns a leaf nest into a function of the tile IR ([`ir`], built with `builder`). It
//! queries the capabilities of a machine and knows no instructions. [`text`] prints and parses functions.
//! `rematerialize` places constants, `regalloc` assigns registers (regalloc2), `moves` removes its redundant
//! moves, and a machine under `isa` selects and encodes instructions.

mod builder;
mod interleave;
pub mod ir;
mod isa;
mod live;
mod merge;
mod moves;
mod regalloc;
mod rematerialize;
pub mod text;
pub mod translate;
mod verify;

use super::debug::Rows;
use super::unwind::Steps;
use crate::diag::{Failure, Result};
use crate::target::{Caps, Facts, Tiles};
use cranelift_codegen::binemit::Reloc;
pub use ir::{Func, Width};
pub(in crate::codegen) use isa::{aarch64, riscv64};
pub use merge::{Merged, merge};
pub use translate::{Arg, Check, Misfit, NOT_INSIDE, Setting, Tile, told_by_constants, translate};

/// The machine code of a tile, position-independent, without relocations.
pub struct Code {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Their effects on the frame.
    pub steps: Steps,
    /// Their source lines.
    pub rows: Rows,
    /// Bytes of stack that they use, including the return address.
    pub stack: u32,
}

/// A function that passes literals to a function which others share ([`merge`]).
pub struct Stub {
    /// The bytes: a jump, and the literals.
    pub bytes: Vec<u8>,
    /// The offset of the jump's target, its relocation and the addend.
    pub jump: u32,
    /// See `jump`.
    pub kind: Reloc,
    /// See `jump`.
    pub addend: i64,
    /// Its alignment.
    pub align: u64,
}

/// Compiles a tile.
pub fn compile(f: &Func) -> Result<Code> {
    if cfg!(debug_assertions) {
        reads_back(f).map_err(|e| Failure::bug("text of a tile", e))?;
    }
    let machine = isa::machine(f.width);
    let (alloc, out) = regalloc::allocate(select(f)?, machine)?;
    machine.encode(&alloc, &out)
}

/// The function after placement of constants and instruction selection.
pub fn select(f: &Func) -> Result<Func> {
    let machine = isa::machine(f.width);
    if cfg!(debug_assertions) {
        verify::verify(f, machine).map_err(|e| Failure::bug("verify tile", e))?;
    }
    let mut f = f.clone();
    if machine.unrolls() {
        interleave::chains(&mut f);
    }
    rematerialize::place(&mut f, machine.folds());
    machine.select(&mut f);
    Ok(f)
}

/// Whether the function survives printing and parsing.
fn reads_back(f: &Func) -> std::result::Result<(), String> {
    let text = text::print(f);
    let again = text::print(&text::parse(&text)?);
    if again == text { Ok(()) } else { Err(format!("it reads back as\n{again}\nfrom\n{text}")) }
}

/// The vectors of the tiles of a CPU level.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// Length of vectors.
    pub width: Width,
    /// Their capabilities.
    pub caps: Caps,
}

impl Vectors {
    /// The tiles of a CPU level, if there are any.
    pub fn of(facts: &Facts) -> Option<Vectors> {
        let width = match facts.caps.tiles {
            Tiles::None => return None,
            Tiles::Avx2 => Width::Avx2,
            Tiles::Avx512 => Width::Avx512,
            Tiles::Neon => Width::Neon,
            Tiles::Rvv => match facts.lanes {
                8 => Width::Rvv128,
                16 => Width::Rvv256,
                _ => Width::Rvv512,
            },
        };
        Some(Vectors { width, caps: facts.caps })
    }
}
