//! Vectors: leaf functions whose instructions and registers are chosen here, not by Cranelift.
//!
//! A leaf nest becomes a function of the tile IR ([`ir`], made with `builder`) by [`translate()`], which asks
//! what a machine can do and knows no instruction. [`text`] prints it and reads it back. `rematerialize`
//! decides where constants are, `regalloc` gives registers (regalloc2), and a machine under `isa` selects and
//! encodes instructions.

mod builder;
mod interleave;
pub mod ir;
mod isa;
mod live;
mod regalloc;
mod rematerialize;
pub mod text;
pub mod translate;
mod verify;

use super::debug::Rows;
use super::unwind::Steps;
use crate::diag::{Failure, Result};
use crate::target::{Caps, Facts, Tiles};
pub use ir::{Func, Width};
pub(in crate::codegen) use isa::{aarch64, riscv64};
pub use translate::{Arg, Misfit, NOT_INSIDE, Setting, Tile, told_by_constants, translate};

/// The machine code of a tile, position-independent, without relocations.
pub struct Code {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What they do to the frame.
    pub steps: Steps,
    /// The lines that they come from.
    pub rows: Rows,
    /// Bytes of stack that they use, with the return address.
    pub stack: u32,
}

/// The code of a tile.
pub fn compile(f: &Func) -> Result<Code> {
    if cfg!(debug_assertions) {
        reads_back(f).map_err(|e| Failure::bug("text of a tile", e))?;
    }
    let machine = isa::machine(f.width);
    let (alloc, out) = regalloc::allocate(select(f)?, machine)?;
    machine.encode(&alloc, &out)
}

/// The function with constants where registers are few, and with the operations that its machine has
/// instructions for.
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

/// Whether the text of a function says what the function does.
fn reads_back(f: &Func) -> std::result::Result<(), String> {
    let text = text::print(f);
    let again = text::print(&text::parse(&text)?);
    if again == text { Ok(()) } else { Err(format!("it reads back as\n{again}\nfrom\n{text}")) }
}

/// What tiles of a CPU level may use.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// Length of vectors.
    pub width: Width,
    /// What they can do.
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
