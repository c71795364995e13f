//! Lengths of vectors.

/// Vector length, which also determines the encoding and the operations that can be masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 256 bits, VEX: AVX2 and FMA (x86-64-v3).
    Avx2,
    /// 512 bits, EVEX: AVX-512 F, BW, DQ, VL (x86-64-v4).
    Avx512,
    /// 128 bits: Advanced SIMD of Armv8-A.
    Neon,
    /// 256 bits: two registers of RISC-V, of at least 128 bits each (Zvl128b).
    Rvv128,
    /// 512 bits: two of at least 256 bits (Zvl256b).
    Rvv256,
    /// 1024 bits: two of at least 512 bits (Zvl512b).
    Rvv512,
}

impl Width {
    /// Lanes of 32 bits.
    pub fn lanes(self) -> u32 {
        match self {
            Width::Neon => 4,
            Width::Avx2 | Width::Rvv128 => 8,
            Width::Avx512 | Width::Rvv256 => 16,
            Width::Rvv512 => 32,
        }
    }
    /// Bytes of a vector.
    pub fn bytes(self) -> u32 {
        self.lanes() * 4
    }
    /// Number of allocatable vector registers.
    pub(in crate::codegen::tile) fn registers(self) -> usize {
        match self {
            Width::Avx2 => 16,
            Width::Avx512 | Width::Neon => 32,
            // Groups of two; four registers are reserved for masks and temporaries.
            Width::Rvv128 | Width::Rvv256 | Width::Rvv512 => 14,
        }
    }
    /// Number of parameters passed in registers: System V of x86-64, AAPCS64, psABI of RISC-V.
    pub(in crate::codegen::tile) fn register_params(self) -> usize {
        match self {
            Width::Avx2 | Width::Avx512 => 6,
            Width::Neon | Width::Rvv128 | Width::Rvv256 | Width::Rvv512 => 8,
        }
    }
    /// True if masks are vectors whose lanes are all ones or all zeros.
    pub(in crate::codegen::tile) fn masks_are_vectors(self) -> bool {
        matches!(self, Width::Avx2 | Width::Neon)
    }
    /// True if conversions of floats to integers require an explicit test for NaN.
    pub(in crate::codegen::tile) fn checks_for_nan(self) -> bool {
        matches!(self, Width::Rvv128 | Width::Rvv256 | Width::Rvv512)
    }
    /// True if conversions of floats to integers saturate, and convert NaN to 0.
    pub(in crate::codegen::tile) fn saturates(self) -> bool {
        matches!(self, Width::Neon | Width::Rvv128 | Width::Rvv256 | Width::Rvv512)
    }
}
