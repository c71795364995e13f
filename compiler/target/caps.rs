//! What the vectors of a CPU level can do.

/// What the vectors of a level can do. Schedules and `codegen::tile` ask for what they need and never for a
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bits of a vector.
    pub bits: u32,
    /// Instructions of tiles.
    pub tiles: Tiles,
    /// Vectors with fewer elements than they have lanes, at no more than the price of a whole one.
    pub masks: bool,
    /// The same of elements shorter than 32 bits, where run time tells how many.
    pub short_masks: bool,
    /// Lanes that read elements at distances known at compile time, squares that are transposed in registers.
    pub shuffles: bool,
    /// Lanes that read elements from anywhere.
    pub gathers: bool,
    /// Lanes that read and write elements at equal distances, one after the other.
    pub strided: bool,
    /// Loads and stores that convert floats of 16 bits.
    pub short_floats: bool,
    /// Arithmetic on lanes of 64 bits.
    pub long_lanes: bool,
    /// Dot products of integers.
    pub dot: Dot,
    /// Dot products of bf16, or products of matrices of them where there are those of bytes.
    pub bf16: bool,
    /// Arithmetic on lanes of 16-bit floats, twice as many to a vector.
    pub halves: bool,
    /// Products of vectors with one lane of another: elements that multiply whole rows are loaded as vectors.
    pub by_lane: bool,
    /// Products of vectors with a float of another register file: elements that multiply whole rows take no
    /// vector register.
    pub by_scalar: bool,
    /// Cores that begin no instruction before the one before it.
    pub in_order: bool,
}

impl Caps {
    /// Vectors of 128 bits by Cranelift, on every architecture.
    pub(super) const CRANELIFT: Caps = Caps {
        bits: 128,
        tiles: Tiles::None,
        masks: false,
        short_masks: false,
        shuffles: false,
        gathers: false,
        strided: false,
        short_floats: false,
        long_lanes: false,
        dot: Dot::None,
        bf16: false,
        halves: false,
        by_lane: false,
        by_scalar: false,
        in_order: false,
    };
    pub(super) const NEON: Caps = Caps {
        tiles: Tiles::Neon,
        short_floats: true,
        long_lanes: true,
        dot: Dot::QuadsInWords,
        by_lane: true,
        ..Caps::CRANELIFT
    };
    pub(super) const NEON_IN_ORDER: Caps = Caps { in_order: true, ..Caps::NEON };
    pub(super) const NEON_DOT: Caps = Caps { dot: Dot::QuadsOfOneSign, halves: true, ..Caps::NEON };
    pub(super) const NEON_I8MM: Caps = Caps { dot: Dot::QuadsOfAnySign, bf16: true, ..Caps::NEON_DOT };
    /// Groups of two vector registers that hold so many bits.
    pub(super) const fn rvv(bits: u32) -> Caps {
        Caps {
            bits,
            tiles: Tiles::Rvv,
            masks: true,
            short_masks: true,
            long_lanes: true,
            strided: true,
            by_scalar: true,
            ..Caps::CRANELIFT
        }
    }
    pub(super) const SSE2: Caps = Caps { dot: Dot::Pairs, ..Caps::CRANELIFT };
    pub(super) const AVX2: Caps = Caps {
        bits: 256,
        tiles: Tiles::Avx2,
        masks: true,
        short_masks: false,
        shuffles: true,
        gathers: true,
        strided: false,
        short_floats: true,
        long_lanes: true,
        dot: Dot::Pairs,
        bf16: false,
        halves: false,
        by_lane: false,
        by_scalar: false,
        in_order: false,
    };
    pub(super) const AVX_VNNI: Caps = Caps { dot: Dot::Quads, ..Caps::AVX2 };
    pub(super) const AVX512: Caps = Caps { bits: 512, tiles: Tiles::Avx512, short_masks: true, ..Caps::AVX2 };
    pub(super) const AVX512_VNNI: Caps = Caps { dot: Dot::Quads, ..Caps::AVX512 };
    pub(super) const AVX512_BF16: Caps = Caps { bf16: true, ..Caps::AVX512_VNNI };

    /// Products of unsigned by signed bytes, added by pairs to words of 16 bits: AVX2, AVX-512 BW.
    pub fn pairs_bytes(&self) -> bool {
        matches!(self.tiles, Tiles::Avx2 | Tiles::Avx512)
    }
}

/// Instructions that `codegen::tile` makes tiles of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// None: all code is Cranelift's.
    None,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// Advanced SIMD of Armv8-A.
    Neon,
    /// Vectors of RISC-V, in groups of two registers.
    Rvv,
}

/// Dot products of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dot {
    /// None.
    None,
    /// Two products of 16 bits, which are added to a sum: every x86-64.
    Pairs,
    /// Four products of bytes and a sum, unsigned by signed ones: AVX512-VNNI, AVX-VNNI.
    Quads,
    /// The same of bytes of one sign, put together from products of 16 bits: Advanced SIMD.
    QuadsInWords,
    /// By one instruction: FEAT_DotProd.
    QuadsOfOneSign,
    /// Of bytes of any signs, and products of matrices of bytes, eight of each row: FEAT_I8MM.
    QuadsOfAnySign,
}

impl Dot {
    /// True for dot products of unsigned by signed bytes.
    pub fn mixes_signs(self) -> bool {
        matches!(self, Dot::Quads | Dot::QuadsOfAnySign)
    }
    /// True for dot products of signed bytes, and of unsigned ones.
    pub fn keeps_signs(self) -> bool {
        matches!(self, Dot::QuadsInWords | Dot::QuadsOfOneSign | Dot::QuadsOfAnySign)
    }
    /// True for products of matrices of bytes.
    pub fn has_matrices(self) -> bool {
        self == Dot::QuadsOfAnySign
    }
    /// True for dot products of bytes.
    pub fn is_of_bytes(self) -> bool {
        self.mixes_signs() || self.keeps_signs()
    }
}
