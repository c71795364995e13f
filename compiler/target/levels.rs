//! The table of CPU levels.

use super::caps::{Adjacent, Caps};

/// Features beyond the base of an architecture that distinguish levels: bits of [`Known::needs`] and of the
/// result of `codegen::cpu_level`.
pub mod has {
    /// Features of every CPU of the architecture.
    pub const BASE: u32 = 1;
    /// x86-64-v2 of the psABI: SSE 4.2.
    pub const V2: u32 = 1 << 1;
    /// x86-64-v3: AVX2, FMA.
    pub const V3: u32 = 1 << 2;
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
    pub const V4: u32 = 1 << 3;
    /// 256-bit dot products of bytes, VEX-encoded.
    pub const AVX_VNNI: u32 = 1 << 4;
    /// 512-bit dot products of bytes, EVEX-encoded.
    pub const AVX512_VNNI: u32 = 1 << 5;
    /// 512-bit dot products of bf16.
    pub const AVX512_BF16: u32 = 1 << 6;
    /// RISC-V vectors.
    pub const RVV: u32 = 1 << 1;
    /// Vector registers of at least 256 bits.
    pub const ZVL256: u32 = 1 << 2;
    /// Vector registers of at least 512 bits.
    pub const ZVL512: u32 = 1 << 3;
    /// aarch64, FEAT_DotProd: dot products of bytes of equal signedness.
    pub const DOTPROD: u32 = 1 << 1;
    /// FEAT_FP16: arithmetic on f16.
    pub const FP16: u32 = 1 << 2;
    /// FEAT_I8MM: products of byte matrices.
    pub const I8MM: u32 = 1 << 3;
    /// FEAT_BF16: bf16 dot products and matrix products.
    pub const BF16: u32 = 1 << 4;
}

/// A CPU level that `--cpu` can name.
pub struct Known {
    /// Its name for `--cpu`.
    pub name: &'static str,
    /// Architecture.
    pub arch: &'static str,
    /// The features that a CPU must have, bits of [`has`].
    pub needs: u32,
    /// Cranelift settings.
    pub(super) features: &'static [&'static str],
    /// Capabilities of its vectors.
    pub(super) caps: Caps,
    /// The name of a CPU for which the code is scheduled. A name with a + does not include it.
    pub(super) cpu: bool,
}

const N2: u32 = has::BASE | has::V2;
const N3: u32 = N2 | has::V3;
const N4: u32 = N3 | has::V4;
const N4_VNNI: u32 = N4 | has::AVX512_VNNI;
const RVV128: u32 = has::BASE | has::RVV;
const RVV256: u32 = RVV128 | has::ZVL256;
const RVV512: u32 = RVV256 | has::ZVL512;
const A82: u32 = has::BASE | has::DOTPROD | has::FP16;
const A86: u32 = A82 | has::I8MM | has::BF16;

/// Defaults of the rows of [`LEVELS`].
const LEVEL: Known =
    Known { name: "", arch: "", needs: has::BASE, features: &[], caps: Caps::CRANELIFT, cpu: false };

/// A CPU level of aarch64.
const fn arm(name: &'static str, needs: u32, caps: Caps) -> Known {
    Known { name, arch: "aarch64", needs, caps, ..LEVEL }
}

/// A CPU by name: its level, with code scheduled for it.
const fn arm_cpu(name: &'static str, needs: u32, caps: Caps) -> Known {
    Known { cpu: true, ..arm(name, needs, caps) }
}

/// A level of RISC-V with vectors: two registers of its minimum length hold this many bits.
const fn riscv(name: &'static str, needs: u32, bits: u32) -> Known {
    Known { name, arch: "riscv64", needs, features: RV64GCV, caps: Caps::rvv(bits), ..LEVEL }
}

/// A RISC-V level that a name with a + does not include.
const fn riscv_cpu(name: &'static str, needs: u32, bits: u32) -> Known {
    Known { cpu: true, ..riscv(name, needs, bits) }
}

/// CPU levels. Within an architecture better levels come later: a CPU runs the last level of an object whose
/// features it has. Levels need not contain each other: CPUs with 256-bit dot products only and CPUs with
/// AVX-512 only each have one of two levels. Cranelift's vectors have 128 bits on every level; [`Caps`] has
/// the capabilities beyond those.
///
/// Levels of aarch64 are spelled as for the `-march` option of compilers. A level requires only the features
/// that its code may use: a CPU with I8MM and BF16 runs that level even if it lacks other parts of Armv8.6-A.
/// Names of CPUs follow the levels.
pub const LEVELS: &[Known] = &[
    Known { name: "x86-64", arch: "x86_64", needs: has::BASE, features: &[], caps: Caps::SSE2, ..LEVEL },
    Known { name: "x86-64-v2", arch: "x86_64", needs: N2, features: V2, caps: Caps::SSE2, ..LEVEL },
    Known { name: "x86-64-v3", arch: "x86_64", needs: N3, features: V3, caps: Caps::AVX2, ..LEVEL },
    Known {
        name: "x86-64-v3-vnni",
        arch: "x86_64",
        needs: N3 | has::AVX_VNNI,
        features: V3,
        caps: Caps::AVX_VNNI,
        ..LEVEL
    },
    Known { name: "x86-64-v4", arch: "x86_64", needs: N4, features: V3, caps: Caps::AVX512, ..LEVEL },
    Known {
        name: "x86-64-v4-vnni",
        arch: "x86_64",
        needs: N4_VNNI,
        features: V3,
        caps: Caps::AVX512_VNNI,
        ..LEVEL
    },
    Known {
        name: "x86-64-v4-bf16",
        arch: "x86_64",
        needs: N4_VNNI | has::AVX512_BF16,
        features: V3,
        caps: Caps::AVX512_BF16,
        ..LEVEL
    },
    arm("armv8-a", has::BASE, Caps::NEON),
    arm("armv8.2-a+dotprod+fp16", A82, Caps::NEON_DOT),
    arm("armv8.6-a+i8mm+bf16", A86, Caps::NEON_I8MM),
    arm_cpu("generic", has::BASE, Caps::NEON),
    arm_cpu("cortex-a53", has::BASE, Caps::NEON.in_order()),
    arm_cpu("cortex-a55", A82, Caps::NEON_DOT.in_order()),
    arm_cpu("cortex-a72", has::BASE, Caps::NEON),
    arm_cpu("cortex-a73", has::BASE, Caps::NEON),
    arm_cpu("cortex-a75", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a76", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a77", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a78", A82, Caps::NEON_DOT),
    arm_cpu("cortex-x1", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a510", A86, Caps::NEON_I8MM.in_order()),
    arm_cpu("cortex-a710", A86, Caps::NEON_I8MM),
    arm_cpu("cortex-x2", A86, Caps::NEON_I8MM),
    arm_cpu("neoverse-n1", A82, Caps::NEON_DOT),
    arm_cpu("neoverse-n2", A86, Caps::NEON_I8MM),
    arm_cpu("neoverse-v1", A86, Caps::NEON_I8MM),
    arm_cpu("neoverse-v2", A86, Caps::NEON_I8MM),
    arm_cpu("apple-m1", A82, Caps { adjacent: Adjacent::Together, ..Caps::NEON_DOT }),
    arm_cpu("apple-m2", A86, Caps { adjacent: Adjacent::Together, ..Caps::NEON_I8MM }),
    Known {
        name: "rv64gc",
        arch: "riscv64",
        needs: has::BASE,
        features: RV64GC,
        caps: Caps::CRANELIFT,
        ..LEVEL
    },
    riscv("rv64gcv", RVV128, 256),
    riscv("rv64gcv_zvl256b", RVV256, 512),
    // Tiles of 32 lanes pack weights differently: by name only.
    riscv_cpu("rv64gcv_zvl512b", RVV512, 1024),
    riscv_cpu("sifive-p670", RVV128, 256),
    riscv_cpu("sifive-x280", RVV512, 1024),
    riscv_cpu("spacemit-x60", RVV256, 512),
];
const V2: &[&str] = &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"];
const V3: &[&str] = &[
    "has_sse3",
    "has_ssse3",
    "has_sse41",
    "has_sse42",
    "has_popcnt",
    "has_avx",
    "has_avx2",
    "has_bmi1",
    "has_bmi2",
    "has_fma",
    "has_lzcnt",
];
const RV64GC: &[&str] =
    &["has_m", "has_a", "has_f", "has_d", "has_zicsr", "has_zifencei", "has_zca", "has_zcd"];
const RV64GCV: &[&str] = &[
    "has_m",
    "has_a",
    "has_f",
    "has_d",
    "has_zicsr",
    "has_zifencei",
    "has_zca",
    "has_zcd",
    "has_v",
    "has_zvl128b",
];
