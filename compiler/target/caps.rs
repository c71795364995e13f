//! Capabilities of the vectors of a CPU level.

/// Capabilities of a level's vectors. Schedules and `codegen::tile` query the capability they need and never
/// a vector length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bits per vector.
    pub bits: u32,
    /// Instructions for tiles.
    pub tiles: Tiles,
    /// Masked vectors, which cost no more than whole ones.
    pub masks: bool,
    /// The same for elements shorter than 32 bits, with a number of elements known only at run time.
    pub short_masks: bool,
    /// Permutations of the lanes of vectors.
    pub shuffles: Shuffles,
    /// Gathers: loads from arbitrary positions.
    pub gathers: bool,
    /// Loads of lanes at offsets of their own, which cost no more than scalar loads.
    pub indexed: bool,
    /// Strided loads and stores.
    pub strided: bool,
    /// Loads and stores that convert 16-bit floats.
    pub short_floats: bool,
    /// Arithmetic on 64-bit lanes.
    pub long_lanes: bool,
    /// Integer dot products.
    pub dot: Dot,
    /// Constant bytes of dot products are in groups of eight: products of byte matrices read them so, on this
    /// level or on another one of the object, with which it shares them.
    pub eights: bool,
    /// bf16 dot products, or bf16 matrix products where there are byte matrix products.
    pub bf16: bool,
    /// Arithmetic on 16-bit floats, with twice as many lanes per vector.
    pub halves: bool,
    /// Multiplication by one lane of another vector: elements that multiply whole rows are loaded as vectors.
    pub by_lane: bool,
    /// Multiplication by a scalar in a float register: elements that multiply whole rows occupy no vector
    /// register.
    pub by_scalar: bool,
    /// In-order cores.
    pub in_order: bool,
    /// How adjacent vectors are loaded.
    pub adjacent: Adjacent,
}

impl Caps {
    /// Cranelift's vectors of 128 bits, on every architecture.
    pub(super) const CRANELIFT: Caps = Caps {
        bits: 128,
        tiles: Tiles::None,
        masks: false,
        short_masks: false,
        shuffles: Shuffles::None,
        gathers: false,
        indexed: false,
        strided: false,
        short_floats: false,
        long_lanes: false,
        dot: Dot::None,
        eights: false,
        bf16: false,
        halves: false,
        by_lane: false,
        by_scalar: false,
        in_order: false,
        adjacent: Adjacent::ApartIfNear,
    };
    pub(super) const NEON: Caps = Caps {
        tiles: Tiles::Neon,
        shuffles: Shuffles::Known,
        short_floats: true,
        long_lanes: true,
        dot: Dot::QuadsInWords,
        by_lane: true,
        ..Caps::CRANELIFT
    };
    pub(super) const NEON_DOT: Caps = Caps { dot: Dot::QuadsOfOneSign, halves: true, ..Caps::NEON };
    pub(super) const NEON_I8MM: Caps =
        Caps { dot: Dot::QuadsOfAnySign, eights: true, bf16: true, ..Caps::NEON_DOT };
    /// The same for cores that execute instructions in their order.
    pub(super) const fn in_order(self) -> Caps {
        Caps { in_order: true, adjacent: Adjacent::Apart, ..self }
    }
    /// Groups of two vector registers with this many bits in total.
    pub(super) const fn rvv(bits: u32) -> Caps {
        Caps {
            bits,
            tiles: Tiles::Rvv,
            masks: true,
            short_masks: true,
            long_lanes: true,
            indexed: true,
            strided: true,
            short_floats: true,
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
        shuffles: Shuffles::Computed,
        gathers: true,
        indexed: false,
        strided: false,
        short_floats: true,
        long_lanes: true,
        dot: Dot::Pairs,
        eights: false,
        bf16: false,
        halves: false,
        by_lane: false,
        by_scalar: false,
        in_order: false,
        adjacent: Adjacent::ApartIfNear,
    };
    pub(super) const AVX_VNNI: Caps = Caps { dot: Dot::Quads, ..Caps::AVX2 };
    pub(super) const AVX512: Caps = Caps { bits: 512, tiles: Tiles::Avx512, short_masks: true, ..Caps::AVX2 };
    pub(super) const AVX512_VNNI: Caps = Caps { dot: Dot::Quads, ..Caps::AVX512 };
    pub(super) const AVX512_BF16: Caps = Caps { bf16: true, ..Caps::AVX512_VNNI };

    /// True for vectors of a number of lanes below the length of a vector, which may be a run-time value.
    pub fn has_partial(&self, lanes: Option<i64>) -> bool {
        self.masks || lanes.is_some() && self.tiles == Tiles::Neon
    }
    /// True if vectors of elements shorter than 32 bits, unlike those of words, are partial only with a
    /// number of lanes known at compile time.
    pub fn lacks_short_masks(&self) -> bool {
        self.masks && !self.short_masks
    }
    /// True if the independent vectors of a tile are interleaved, operation by operation
    /// (`codegen/tile/interleave.rs`).
    pub fn interleaves(&self) -> bool {
        self.tiles == Tiles::Neon
    }
    /// True if vectors are permuted in units of 16 bits, by which a table of 256 bytes in registers is looked up.
    pub fn permutes_words(&self) -> bool {
        self.tiles == Tiles::Avx512
    }
    /// True for products of unsigned by signed bytes, added in pairs to 16-bit words: AVX2, AVX-512 BW.
    pub fn pairs_bytes(&self) -> bool {
        matches!(self.tiles, Tiles::Avx2 | Tiles::Avx512)
    }
}

/// The instruction set from which `codegen::tile` makes tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// None: all code is generated by Cranelift.
    None,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// Advanced SIMD of Armv8-A.
    Neon,
    /// RISC-V vectors, in groups of two registers.
    Rvv,
}

/// Permutations of lanes that cost little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shuffles {
    /// None.
    None,
    /// Those known at compile time: squares are transposed in registers, and loads at known distances are
    /// permuted.
    Known,
    /// Those computed at run time as well.
    Computed,
}

impl Shuffles {
    /// True if lanes are permuted in an order known at compile time.
    pub fn are_known(self) -> bool {
        self >= Shuffles::Known
    }
    /// True if lanes are permuted in an order that only run time knows.
    pub fn are_computed(self) -> bool {
        self == Shuffles::Computed
    }
}

/// How adjacent vectors are loaded fastest, on machines that can load two of them by one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adjacent {
    /// By one instruction each: a load of two occupies the core for longer than two loads.
    Apart,
    /// By one instruction each if displacements from a base are short, else by one for both.
    ApartIfNear,
    /// By one instruction for both, which takes no longer than a load of one.
    Together,
}

/// Integer dot products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dot {
    /// None.
    None,
    /// Two 16-bit products, whose sum is added to an accumulator: every x86-64.
    Pairs,
    /// Four byte products and their sum, unsigned by signed: AVX512-VNNI, AVX-VNNI.
    Quads,
    /// Four byte products of equal signedness, put together from 16-bit products: Advanced SIMD.
    QuadsInWords,
    /// The same by one instruction: FEAT_DotProd.
    QuadsOfOneSign,
    /// Four byte products of any signedness, and products of byte matrices with eight elements per row:
    /// FEAT_I8MM.
    QuadsOfAnySign,
}

impl Dot {
    /// True for dot products of unsigned by signed bytes.
    pub fn mixes_signs(self) -> bool {
        matches!(self, Dot::Quads | Dot::QuadsOfAnySign)
    }
    /// True for dot products of bytes of equal signedness.
    pub fn keeps_signs(self) -> bool {
        matches!(self, Dot::QuadsInWords | Dot::QuadsOfOneSign | Dot::QuadsOfAnySign)
    }
    /// True for products of byte matrices.
    pub fn has_matrices(self) -> bool {
        self == Dot::QuadsOfAnySign
    }
    /// True for dot products of bytes.
    pub fn is_of_bytes(self) -> bool {
        self.mixes_signs() || self.keeps_signs()
    }
}
