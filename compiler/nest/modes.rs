//! Modes of a compilation: floating-point semantics, and optimisation for time or size.

/// Transformations of floating-point arithmetic that passes may apply. In every mode, a call gives the same
/// bits with any number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Math {
    /// None: every sum adds its terms in order, in the same order on every CPU level; products and sums of a
    /// contraction are fused if the level has that instruction. Operators compute their definitions.
    Strict,
    /// Reassociation of sums (an accumulator per lane), and other algorithms with a bounded error: Winograd's
    /// convolutions, Strassen's matrix products. Subnormal numbers among constant factors of contractions are
    /// flushed to 0, and so are exponentials in attention that are less than e^-69 of the row's largest.
    #[default]
    Default,
    /// In addition, factors of contractions with constant weights are rounded to bf16 if the CPU multiplies
    /// these, and products of f16 are accumulated in f16 if it supports that, at most [`HALVES`] of them.
    /// Activations of few-bit weights are quantized to 8-bit integers, with one scale per block.
    Fast,
}

/// Maximum f16 products that are accumulated in f16; the partial sum is then added to an f32 accumulator.
/// [`HALVES_AT_ONCE`] of them are added up at a time, and these sums then to each other, or at most
/// [`HALVES_IN_SEQUENCE`] one after the other. The error is at most 128 times 2^-11 of the sum of the
/// magnitudes of the products, for any length of the reduction.
pub const HALVES: i64 = 512;

/// f16 products whose sum is added to that of the ones before.
pub const HALVES_AT_ONCE: i64 = 16;

/// Maximum f16 products that are accumulated in f16 one after the other.
pub const HALVES_IN_SEQUENCE: i64 = 128;

/// The objective of optimisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Optimize {
    /// Time of a call.
    #[default]
    Speed,
    /// Bytes of the object: constants are stored once in their original size, and no algorithm is emitted in
    /// several versions.
    Size,
}

impl Optimize {
    /// Whether an algorithm may add constants and code to gain time.
    pub fn may_grow(self) -> bool {
        self == Optimize::Speed
    }
}
