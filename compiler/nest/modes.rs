//! What a compilation may change: the order of sums, the size of the object.

/// Which liberties passes take with the arithmetic of floats. Whatever they take, a call gives the same bits
/// with any number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Math {
    /// None: every sum adds up one term after the other, in the same order on every CPU level; products and
    /// sums of a contraction are fused where the level has that instruction. Operators compute what their
    /// definition says.
    Strict,
    /// Sums in several parts (one for each lane of a vector), and other algorithms with a bounded error:
    /// Winograd's convolutions, Strassen's products of matrices. Subnormal numbers among constant factors of
    /// contractions count as 0, and exponentials in attention that are less than e^-69 of the row's largest.
    #[default]
    Default,
    /// Besides, factors of contractions with constant weights are rounded to bf16 where the CPU multiplies
    /// these, and products of f16 are added up as f16 where it does that, [`HALVES`] of them at most. Activations
    /// of few-bit weights are quantized to 8-bit integers, with one scale for each block.
    Fast,
}

/// Products of f16 that are added up as f16 at most: such a sum is then added to one in f32. The error of a
/// sum is at most so many times 2^-11 of the sum of the magnitudes of its products, whatever its length.
pub const HALVES: i64 = 128;

/// What code is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Optimize {
    /// Time of a call.
    #[default]
    Speed,
    /// Bytes of the object: constants are in it once and as large as they are, and no algorithm comes in
    /// several versions.
    Size,
}

impl Optimize {
    /// Whether an algorithm may add constants and code to gain time.
    pub fn may_grow(self) -> bool {
        self == Optimize::Speed
    }
}
