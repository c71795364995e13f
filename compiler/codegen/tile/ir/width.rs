//! Lengths of vectors.

/// Vector length, and with it the encoding and what there are masks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 256 bits, VEX: AVX2 and FMA (x86-64-v3).
    Avx2,
    /// 512 bits, EVEX: AVX-512 F, BW, DQ, VL (x86-64-v4).
    Avx512,
    /// 128 bits: Advanced SIMD of Armv8-A.
    Neon,
}

impl Width {
    /// Lanes of 32 bits.
    pub fn lanes(self) -> u32 {
        match self {
            Width::Avx2 => 8,
            Width::Avx512 => 16,
            Width::Neon => 4,
        }
    }
    /// Bytes of a vector.
    pub fn bytes(self) -> u32 {
        self.lanes() * 4
    }
    /// Vector registers.
    pub(in crate::codegen::tile) fn registers(self) -> usize {
        match self {
            Width::Avx2 => 16,
            Width::Avx512 | Width::Neon => 32,
        }
    }
    /// Parameters that arrive in registers: System V of x86-64, AAPCS64.
    pub(in crate::codegen::tile) fn register_params(self) -> usize {
        match self {
            Width::Avx2 | Width::Avx512 => 6,
            Width::Neon => 8,
        }
    }
    /// True if masks are vectors whose lanes are all ones or all zeros.
    pub(in crate::codegen::tile) fn masks_are_vectors(self) -> bool {
        self != Width::Avx512
    }
    /// True if conversions of floats to integers saturate, and give 0 for NaN.
    pub(in crate::codegen::tile) fn saturates(self) -> bool {
        self == Width::Neon
    }
}
