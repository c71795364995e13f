//! inline_elementwise: fuses chains of elementwise kernels. A consumer that reads exactly its own position
//! computes the producer's expression instead, so that a whole activation becomes one map, which
//! `fuse_epilogues` then fuses into a contraction. The rewriting is that of [`inline_producers`], which also
//! handles other accesses.

use super::inline_producers;
use crate::diag::Result;
use crate::nest::Module;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    inline_producers::inline(m, true)
}
