//! inline_elementwise: joins chains of elementwise kernels. A consumer that reads exactly its own position
//! computes the producer's expression instead, so that a whole activation becomes one map, which
//! `fuse_epilogues` then hangs onto a contraction. The rewriting is that of [`inline_producers`], which
//! follows other accesses as well.

use super::inline_producers;
use crate::diag::Result;
use crate::nest::Module;

/// Runs the pass.
pub fn run(m: &mut Module) -> Result<()> {
    inline_producers::inline(m, true)
}
