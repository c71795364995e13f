//! Machine code that detects which of the features that levels need the CPU has. An object with code for
//! several levels calls it once.

mod aarch64;
mod riscv64;
mod x86_64;

use super::unwind::Steps;
use crate::diag::Result;
use cranelift_codegen::binemit::Reloc;
use target_lexicon::{Architecture, Triple};

/// A function without arguments in the system's calling convention. It returns bits of
/// [`has`](crate::target::has), at least one.
pub struct Asking {
    /// Its code.
    pub bytes: Vec<u8>,
    /// Its effects on the frame.
    pub steps: Steps,
    /// References to system functions: offset, kind, function.
    pub imports: Vec<(u32, Reloc, Import)>,
}

/// A system function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Import {
    /// Its symbol.
    pub name: &'static str,
    /// True if its address may be 0, because nothing defines it.
    pub weak: bool,
}

/// The detection function of a target.
pub fn code(triple: &Triple) -> Result<Asking> {
    match triple.architecture {
        Architecture::Aarch64(_) => aarch64::code(triple),
        Architecture::Riscv64(_) => riscv64::code(),
        _ => x86_64::code(),
    }
}
