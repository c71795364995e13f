//! Machine code that tells what the CPU has of what levels need. An object with code for several levels asks
//! it once.

mod aarch64;
mod riscv64;
mod x86_64;

use super::unwind::Steps;
use crate::diag::Result;
use cranelift_codegen::binemit::Reloc;
use target_lexicon::{Architecture, Triple};

/// A function without arguments that returns bits of [`has`](crate::target::has), at least one, in the
/// calling convention of the system.
pub struct Asking {
    /// Its code.
    pub bytes: Vec<u8>,
    /// What it does to its frame.
    pub steps: Steps,
    /// References to functions of the system: offset, kind, function.
    pub imports: Vec<(u32, Reloc, Import)>,
}

/// A function of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Import {
    /// Its symbol.
    pub name: &'static str,
    /// Its address is 0 where nothing defines it.
    pub weak: bool,
}

/// The function for a target.
pub fn code(triple: &Triple) -> Result<Asking> {
    match triple.architecture {
        Architecture::Aarch64(_) => aarch64::code(triple),
        Architecture::Riscv64(_) => riscv64::code(),
        _ => x86_64::code(),
    }
}
