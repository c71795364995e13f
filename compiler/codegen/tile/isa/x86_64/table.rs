//! Operations -> instruction codes: a row per operation, a column per vector length.

use crate::codegen::tile::ir::{Bin, Bits, Bytes, Form, Op, Un};
use iced_x86::Code;

/// Codes at 256 bits (VEX) and 512 bits (EVEX).
pub(super) type Row = [Code; 2];

macro_rules! row {
    ($a:ident $b:ident) => {
        [Code::$a, Code::$b]
    };
}

/// a op b, b from a register or memory.
pub(super) fn bin(op: Bin, bits: Bits) -> Row {
    if bits == Bits::B64 {
        return bin64(op);
    }
    match op {
        Bin::Add => row!(VEX_Vaddps_ymm_ymm_ymmm256 EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er),
        Bin::Sub => row!(VEX_Vsubps_ymm_ymm_ymmm256 EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er),
        Bin::Mul => row!(VEX_Vmulps_ymm_ymm_ymmm256 EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er),
        Bin::Div => row!(VEX_Vdivps_ymm_ymm_ymmm256 EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er),
        Bin::Min => row!(VEX_Vminps_ymm_ymm_ymmm256 EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae),
        Bin::Max => row!(VEX_Vmaxps_ymm_ymm_ymmm256 EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae),
        Bin::And => row!(VEX_Vpand_ymm_ymm_ymmm256 EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32),
        Bin::Or => row!(VEX_Vpor_ymm_ymm_ymmm256 EVEX_Vpord_zmm_k1z_zmm_zmmm512b32),
        Bin::Xor => row!(VEX_Vpxor_ymm_ymm_ymmm256 EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32),
        Bin::AndNot => row!(VEX_Vpandn_ymm_ymm_ymmm256 EVEX_Vpandnd_zmm_k1z_zmm_zmmm512b32),
        Bin::IAdd => row!(VEX_Vpaddd_ymm_ymm_ymmm256 EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32),
        Bin::ISub => row!(VEX_Vpsubd_ymm_ymm_ymmm256 EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32),
        Bin::IMul => row!(VEX_Vpmulld_ymm_ymm_ymmm256 EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32),
        Bin::IMin => row!(VEX_Vpminsd_ymm_ymm_ymmm256 EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32),
        Bin::IMax => row!(VEX_Vpmaxsd_ymm_ymm_ymmm256 EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32),
        Bin::UMin => row!(VEX_Vpminud_ymm_ymm_ymmm256 EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32),
        Bin::UMax => row!(VEX_Vpmaxud_ymm_ymm_ymmm256 EVEX_Vpmaxud_zmm_k1z_zmm_zmmm512b32),
        Bin::Shl => row!(VEX_Vpsllvd_ymm_ymm_ymmm256 EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32),
        Bin::Shr => row!(VEX_Vpsrlvd_ymm_ymm_ymmm256 EVEX_Vpsrlvd_zmm_k1z_zmm_zmmm512b32),
        Bin::Least | Bin::Most => row!(INVALID INVALID),
        Bin::Scale => row!(INVALID EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er),
        Bin::Permute => row!(VEX_Vpermps_ymm_ymm_ymmm256 EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32),
        Bin::Sar => row!(VEX_Vpsravd_ymm_ymm_ymmm256 EVEX_Vpsravd_zmm_k1z_zmm_zmmm512b32),
        Bin::IMulLow => row!(VEX_Vpmuludq_ymm_ymm_ymmm256 EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64),
        Bin::MulAddPairs => row!(VEX_Vpmaddwd_ymm_ymm_ymmm256 EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512),
        Bin::MulAddBytes => row!(VEX_Vpmaddubsw_ymm_ymm_ymmm256 EVEX_Vpmaddubsw_zmm_k1z_zmm_zmmm512),
        Bin::AddWords => row!(VEX_Vpaddw_ymm_ymm_ymmm256 EVEX_Vpaddw_zmm_k1z_zmm_zmmm512),
    }
}

/// The same for 64-bit lanes; `lanes64` expands operations that AVX2 lacks.
fn bin64(op: Bin) -> Row {
    match op {
        Bin::Add => row!(VEX_Vaddpd_ymm_ymm_ymmm256 EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er),
        Bin::Sub => row!(VEX_Vsubpd_ymm_ymm_ymmm256 EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er),
        Bin::Mul => row!(VEX_Vmulpd_ymm_ymm_ymmm256 EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er),
        Bin::Div => row!(VEX_Vdivpd_ymm_ymm_ymmm256 EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er),
        Bin::Min => row!(VEX_Vminpd_ymm_ymm_ymmm256 EVEX_Vminpd_zmm_k1z_zmm_zmmm512b64_sae),
        Bin::Max => row!(VEX_Vmaxpd_ymm_ymm_ymmm256 EVEX_Vmaxpd_zmm_k1z_zmm_zmmm512b64_sae),
        Bin::And => row!(VEX_Vpand_ymm_ymm_ymmm256 EVEX_Vpandq_zmm_k1z_zmm_zmmm512b64),
        Bin::Or => row!(VEX_Vpor_ymm_ymm_ymmm256 EVEX_Vporq_zmm_k1z_zmm_zmmm512b64),
        Bin::Xor => row!(VEX_Vpxor_ymm_ymm_ymmm256 EVEX_Vpxorq_zmm_k1z_zmm_zmmm512b64),
        Bin::AndNot => row!(VEX_Vpandn_ymm_ymm_ymmm256 EVEX_Vpandnq_zmm_k1z_zmm_zmmm512b64),
        Bin::IAdd => row!(VEX_Vpaddq_ymm_ymm_ymmm256 EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64),
        Bin::ISub => row!(VEX_Vpsubq_ymm_ymm_ymmm256 EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64),
        Bin::IMul => row!(INVALID EVEX_Vpmullq_zmm_k1z_zmm_zmmm512b64),
        Bin::IMulLow => row!(VEX_Vpmuludq_ymm_ymm_ymmm256 EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64),
        Bin::IMin => row!(INVALID EVEX_Vpminsq_zmm_k1z_zmm_zmmm512b64),
        Bin::IMax => row!(INVALID EVEX_Vpmaxsq_zmm_k1z_zmm_zmmm512b64),
        Bin::UMin => row!(INVALID EVEX_Vpminuq_zmm_k1z_zmm_zmmm512b64),
        Bin::UMax => row!(INVALID EVEX_Vpmaxuq_zmm_k1z_zmm_zmmm512b64),
        Bin::Shl => row!(VEX_Vpsllvq_ymm_ymm_ymmm256 EVEX_Vpsllvq_zmm_k1z_zmm_zmmm512b64),
        Bin::Shr => row!(VEX_Vpsrlvq_ymm_ymm_ymmm256 EVEX_Vpsrlvq_zmm_k1z_zmm_zmmm512b64),
        Bin::Sar => row!(INVALID EVEX_Vpsravq_zmm_k1z_zmm_zmmm512b64),
        Bin::MulAddPairs | Bin::MulAddBytes | Bin::AddWords => row!(INVALID INVALID),
        Bin::Least | Bin::Most => row!(INVALID INVALID),
        Bin::Scale => row!(INVALID EVEX_Vscalefpd_zmm_k1z_zmm_zmmm512b64_er),
        Bin::Permute => row!(INVALID EVEX_Vpermpd_zmm_k1z_zmm_zmmm512b64),
    }
}

/// op a, and its immediate. Swaps across 128 bits are two-operand shuffles, see [`BLOCKS`].
pub(super) fn un(op: Un, bits: Bits) -> (Row, Option<u32>) {
    const ROUND: Row = row!(VEX_Vroundps_ymm_ymmm256_imm8 EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae);
    if bits == Bits::B64 {
        return un64(op);
    }
    match op {
        Un::Sqrt => (row!(VEX_Vsqrtps_ymm_ymmm256 EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er), None),
        Un::ToInt => (row!(VEX_Vcvtps2dq_ymm_ymmm256 EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er), None),
        Un::TruncInt => (row!(VEX_Vcvttps2dq_ymm_ymmm256 EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae), None),
        Un::ToFloat => (row!(VEX_Vcvtdq2ps_ymm_ymmm256 EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er), None),
        Un::IAbs => (row!(VEX_Vpabsd_ymm_ymmm256 EVEX_Vpabsd_zmm_k1z_zmmm512b32), None),
        // Bit 3: no precision exception.
        Un::Round => (ROUND, Some(8)),
        Un::Floor => (ROUND, Some(9)),
        Un::Ceil => (ROUND, Some(10)),
        Un::Trunc => (ROUND, Some(11)),
        Un::Shl(n) => (row!(VEX_Vpslld_ymm_ymm_imm8 EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8), Some(u32::from(n))),
        Un::Shr(n) => (row!(VEX_Vpsrld_ymm_ymm_imm8 EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8), Some(u32::from(n))),
        Un::Sar(n) => (row!(VEX_Vpsrad_ymm_ymm_imm8 EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8), Some(u32::from(n))),
        Un::ShlWords(n) => {
            (row!(VEX_Vpsllw_ymm_ymm_imm8 EVEX_Vpsllw_zmm_k1z_zmmm512_imm8), Some(u32::from(n)))
        }
        Un::SarWords(n) => {
            (row!(VEX_Vpsraw_ymm_ymm_imm8 EVEX_Vpsraw_zmm_k1z_zmmm512_imm8), Some(u32::from(n)))
        }
        // See [`narrow`].
        Un::Narrow(_) => (row!(INVALID INVALID), None),
        Un::Swap(k) => (
            row!(VEX_Vpermilps_ymm_ymmm256_imm8 EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8),
            Some(if k == 1 { 0xB1 } else { 0x4E }),
        ),
        Un::Double => (row!(VEX_Vcvtps2pd_ymm_xmmm128 EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae), None),
        Un::ToDouble => (row!(VEX_Vcvtdq2pd_ymm_xmmm128 EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er), None),
        Un::UnsignedToDouble => (row!(INVALID EVEX_Vcvtudq2pd_zmm_k1z_ymmm256b32_er), None),
        Un::Extend => (row!(VEX_Vpmovsxdq_ymm_xmmm128 EVEX_Vpmovsxdq_zmm_k1z_ymmm256), None),
        Un::ExtendUnsigned => (row!(VEX_Vpmovzxdq_ymm_xmmm128 EVEX_Vpmovzxdq_zmm_k1z_ymmm256), None),
        Un::TruncLong => (row!(INVALID EVEX_Vcvttps2qq_zmm_k1z_ymmm256b32_sae), None),
        Un::TruncUnsigned => (row!(INVALID EVEX_Vcvttps2uqq_zmm_k1z_ymmm256b32_sae), None),
        Un::Part(k) => (
            row!(VEX_Vextractf128_xmmm128_ymm_imm8 EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8),
            Some(u32::from(k)),
        ),
        // And extended to words, see [`WORDS`].
        Un::Brain => (row!(INVALID EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32), None),
        Un::Half => (row!(VEX_Vcvtps2ph_xmmm128_ymm_imm8 INVALID), Some(0)),
        Un::Single | Un::Low | Un::Whole { .. } | Un::UnsignedToFloat => (row!(INVALID INVALID), None),
    }
}

/// Words in lanes of their own, at 512 bits.
pub(super) const WORDS: Code = Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256;

/// Bytes of each half by number, at 256 bits.
pub(super) const SHUFFLE: Code = Code::VEX_Vpshufb_ymm_ymm_ymmm256;

/// What [`SHUFFLE`] takes for [`Un::Narrow`].
pub(super) fn narrow(bytes: u8) -> [u32; 8] {
    const NONE: u32 = 0x8080_8080;
    match bytes {
        1 => [0x0c08_0400, NONE, NONE, NONE, NONE, 0x0c08_0400, NONE, NONE],
        _ => [0x0504_0100, 0x0d0c_0908, NONE, NONE, NONE, NONE, 0x0504_0100, 0x0d0c_0908],
    }
}

/// The same of 64-bit lanes.
fn un64(op: Un) -> (Row, Option<u32>) {
    const ROUND: Row = row!(VEX_Vroundpd_ymm_ymmm256_imm8 EVEX_Vrndscalepd_zmm_k1z_zmmm512b64_imm8_sae);
    match op {
        Un::Sqrt => (row!(VEX_Vsqrtpd_ymm_ymmm256 EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er), None),
        Un::Round => (ROUND, Some(8)),
        Un::Floor => (ROUND, Some(9)),
        Un::Ceil => (ROUND, Some(10)),
        Un::Trunc => (ROUND, Some(11)),
        Un::ToInt => (row!(VEX_Vcvtpd2dq_xmm_ymmm256 EVEX_Vcvtpd2dq_ymm_k1z_zmmm512b64_er), None),
        Un::TruncInt => (row!(VEX_Vcvttpd2dq_xmm_ymmm256 EVEX_Vcvttpd2dq_ymm_k1z_zmmm512b64_sae), None),
        Un::Single => (row!(VEX_Vcvtpd2ps_xmm_ymmm256 EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er), None),
        Un::ToFloat => (row!(INVALID EVEX_Vcvtqq2ps_ymm_k1z_zmmm512b64_er), None),
        Un::UnsignedToFloat => (row!(INVALID EVEX_Vcvtuqq2ps_ymm_k1z_zmmm512b64_er), None),
        Un::ToDouble => (row!(INVALID EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er), None),
        Un::UnsignedToDouble => (row!(INVALID EVEX_Vcvtuqq2pd_zmm_k1z_zmmm512b64_er), None),
        Un::TruncLong => (row!(INVALID EVEX_Vcvttpd2qq_zmm_k1z_zmmm512b64_sae), None),
        Un::TruncUnsigned => (row!(INVALID EVEX_Vcvttpd2uqq_zmm_k1z_zmmm512b64_sae), None),
        Un::Low => (row!(INVALID EVEX_Vpmovqd_ymmm256_k1z_zmm), None),
        Un::IAbs => (row!(INVALID EVEX_Vpabsq_zmm_k1z_zmmm512b64), None),
        Un::Shl(n) => (row!(VEX_Vpsllq_ymm_ymm_imm8 EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8), Some(u32::from(n))),
        Un::Shr(n) => (row!(VEX_Vpsrlq_ymm_ymm_imm8 EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8), Some(u32::from(n))),
        Un::Sar(n) => (row!(INVALID EVEX_Vpsraq_zmm_k1z_zmmm512b64_imm8), Some(u32::from(n))),
        // Swaps count lanes of 32 bits.
        Un::Swap(_)
        | Un::ShlWords(_)
        | Un::SarWords(_)
        | Un::Narrow(_)
        | Un::Part(_)
        | Un::Half
        | Un::Brain
        | Un::Whole { .. }
        | Un::Double
        | Un::Extend
        | Un::ExtendUnsigned => (row!(INVALID INVALID), None),
    }
}

/// Whether operand and result of an operation are vectors of half the length: 32-bit lanes beside 64-bit
/// lanes.
pub(super) fn halves(op: Un, bits: Bits) -> (bool, bool) {
    let from = bits == Bits::B32
        && matches!(
            op,
            Un::Double
                | Un::ToDouble
                | Un::UnsignedToDouble
                | Un::Extend
                | Un::ExtendUnsigned
                | Un::TruncLong
                | Un::TruncUnsigned
        );
    let to = bits == Bits::B64
        && matches!(op, Un::ToInt | Un::TruncInt | Un::Single | Un::ToFloat | Un::UnsignedToFloat | Un::Low);
    (from, to)
}

/// Interleaves lanes of two vectors within 128 bits.
pub(super) fn zip(bits: Bits, upper: bool) -> Row {
    match (bits, upper) {
        (Bits::B32, false) => row!(VEX_Vunpcklps_ymm_ymm_ymmm256 EVEX_Vunpcklps_zmm_k1z_zmm_zmmm512b32),
        (Bits::B32, true) => row!(VEX_Vunpckhps_ymm_ymm_ymmm256 EVEX_Vunpckhps_zmm_k1z_zmm_zmmm512b32),
        (Bits::B64, false) => row!(VEX_Vunpcklpd_ymm_ymm_ymmm256 EVEX_Vunpcklpd_zmm_k1z_zmm_zmmm512b64),
        (Bits::B64, true) => row!(VEX_Vunpckhpd_ymm_ymm_ymmm256 EVEX_Vunpckhpd_zmm_k1z_zmm_zmmm512b64),
    }
}

/// Selects pieces of 128 bits of two vectors, and the immediates for those with even and odd indices.
pub(super) const BLOCKS: Row =
    row!(VEX_Vperm2f128_ymm_ymm_ymmm256_imm8 EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8);
/// See [`BLOCKS`].
pub(super) const EVERY_OTHER: [[u32; 2]; 2] = [[0x20, 0x31], [0x88, 0xDD]];

/// The fused forms: 231 overwrites the addend, 213 a factor.
pub(super) fn fma(addend: bool, neg: bool, bits: Bits) -> Row {
    match (addend, neg) {
        (true, false) if bits == Bits::B64 => {
            row!(VEX_Vfmadd231pd_ymm_ymm_ymmm256 EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er)
        }
        (false, false) if bits == Bits::B64 => {
            row!(VEX_Vfmadd213pd_ymm_ymm_ymmm256 EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er)
        }
        (true, true) if bits == Bits::B64 => {
            row!(VEX_Vfnmadd231pd_ymm_ymm_ymmm256 EVEX_Vfnmadd231pd_zmm_k1z_zmm_zmmm512b64_er)
        }
        (false, true) if bits == Bits::B64 => {
            row!(VEX_Vfnmadd213pd_ymm_ymm_ymmm256 EVEX_Vfnmadd213pd_zmm_k1z_zmm_zmmm512b64_er)
        }
        (true, false) => row!(VEX_Vfmadd231ps_ymm_ymm_ymmm256 EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er),
        (false, false) => row!(VEX_Vfmadd213ps_ymm_ymm_ymmm256 EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er),
        (true, true) => row!(VEX_Vfnmadd231ps_ymm_ymm_ymmm256 EVEX_Vfnmadd231ps_zmm_k1z_zmm_zmmm512b32_er),
        (false, true) => row!(VEX_Vfnmadd213ps_ymm_ymm_ymmm256 EVEX_Vfnmadd213ps_zmm_k1z_zmm_zmmm512b32_er),
    }
}

/// Sums of four products of bytes.
pub(super) const DOT: Row = row!(VEX_Vpdpbusd_ymm_ymm_ymmm256 EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32);

/// Sums of two products of bf16.
pub(super) const DOT2: Row = row!(INVALID EVEX_Vdpbf16ps_zmm_k1z_zmm_zmmm512b32);
/// [`Op::Permute2`].
pub(super) const PERMUTE2: Row = row!(INVALID EVEX_Vpermt2ps_zmm_k1z_zmm_zmmm512b32);
/// [`Op::PermuteWords2`].
pub(super) const PERMUTE_WORDS2: Row = row!(INVALID EVEX_Vpermt2w_zmm_k1z_zmm_zmmm512);

/// Comparisons of floats.
pub(super) fn cmp(bits: Bits) -> Row {
    match bits {
        Bits::B32 => row!(VEX_Vcmpps_ymm_ymm_ymmm256_imm8 EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae),
        Bits::B64 => row!(VEX_Vcmppd_ymm_ymm_ymmm256_imm8 EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae),
    }
}
/// Equality of integers at 256 bits; any comparison at 512.
pub(super) fn icmp(bits: Bits) -> Row {
    match bits {
        Bits::B32 => row!(VEX_Vpcmpeqd_ymm_ymm_ymmm256 EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8),
        Bits::B64 => row!(VEX_Vpcmpeqq_ymm_ymm_ymmm256 EVEX_Vpcmpq_kr_k1_zmm_zmmm512b64_imm8),
    }
}
/// The same of unsigned integers.
pub(super) fn ucmp(bits: Bits) -> Row {
    let wide = match bits {
        Bits::B32 => Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8,
        Bits::B64 => Code::EVEX_Vpcmpuq_kr_k1_zmm_zmmm512b64_imm8,
    };
    [Code::INVALID, wide]
}
/// a > b of integers at 256 bits.
pub(super) fn igreater(bits: Bits) -> Code {
    match bits {
        Bits::B32 => Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256,
        Bits::B64 => Code::VEX_Vpcmpgtq_ymm_ymm_ymmm256,
    }
}
/// Selection by a mask.
pub(super) fn blend(bits: Bits) -> Row {
    match bits {
        Bits::B32 => row!(VEX_Vblendvps_ymm_ymm_ymmm256_ymm EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32),
        Bits::B64 => row!(VEX_Vblendvpd_ymm_ymm_ymmm256_ymm EVEX_Vblendmpd_zmm_k1z_zmm_zmmm512b64),
    }
}
/// Whole registers to and from memory (and spill slots).
pub(super) const MOVE: Row = row!(VEX_Vmovups_ymm_ymmm256 EVEX_Vmovups_zmm_k1z_zmmm512);
/// See [`MOVE`].
pub(super) const MOVE_OUT: Row = row!(VEX_Vmovups_ymmm256_ymm EVEX_Vmovups_zmmm512_k1z_zmm);
/// One number of memory in all lanes.
pub(super) fn broadcast(bits: Bits) -> Row {
    match bits {
        Bits::B32 => row!(VEX_Vbroadcastss_ymm_m32 EVEX_Vbroadcastss_zmm_k1z_xmmm32),
        Bits::B64 => row!(VEX_Vbroadcastsd_ymm_m64 EVEX_Vbroadcastsd_zmm_k1z_xmmm64),
    }
}
/// Masked moves at 256 bits, in and out; at 512 every instruction takes a mask.
pub(super) fn masked(form: Form, half: bool) -> [Code; 2] {
    match (form, half) {
        (Form::B64, _) => [Code::VEX_Vmaskmovpd_ymm_ymm_m256, Code::VEX_Vmaskmovpd_m256_ymm_ymm],
        (_, true) => [Code::VEX_Vmaskmovps_xmm_xmm_m128, Code::VEX_Vmaskmovps_m128_xmm_xmm],
        (_, false) => [Code::VEX_Vmaskmovps_ymm_ymm_m256, Code::VEX_Vmaskmovps_m256_ymm_ymm],
    }
}

/// 32-bit pieces of 128 bits where a mask is set.
pub(super) const MASKED_PART: Code = Code::VEX_Vpmaskmovd_xmm_xmm_m128;

/// Loads that convert; `half`: so many lanes of 32 bits as a vector has of 64.
pub(super) fn load(form: Form, half: bool) -> Row {
    match (form, half) {
        (Form::NearU8, _) => row!(INVALID INVALID),
        (Form::B64, _) => row!(VEX_Vmovupd_ymm_ymmm256 EVEX_Vmovupd_zmm_k1z_zmmm512),
        (Form::B32, false) => MOVE,
        (Form::F16, false) => row!(VEX_Vcvtph2ps_ymm_xmmm128 EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae),
        (Form::I8, false) => row!(VEX_Vpmovsxbd_ymm_xmmm64 EVEX_Vpmovsxbd_zmm_k1z_xmmm128),
        (Form::U8, false) => row!(VEX_Vpmovzxbd_ymm_xmmm64 EVEX_Vpmovzxbd_zmm_k1z_xmmm128),
        (Form::I16, false) => row!(VEX_Vpmovsxwd_ymm_xmmm128 EVEX_Vpmovsxwd_zmm_k1z_ymmm256),
        (Form::U16, false) => row!(VEX_Vpmovzxwd_ymm_xmmm128 EVEX_Vpmovzxwd_zmm_k1z_ymmm256),
        (Form::B32, true) => row!(VEX_Vmovups_xmm_xmmm128 EVEX_Vmovups_ymm_k1z_ymmm256),
        (Form::F16, true) => row!(VEX_Vcvtph2ps_xmm_xmmm64 EVEX_Vcvtph2ps_ymm_k1z_xmmm128),
        (Form::I8, true) => row!(VEX_Vpmovsxbd_xmm_xmmm32 EVEX_Vpmovsxbd_ymm_k1z_xmmm64),
        (Form::U8, true) => row!(VEX_Vpmovzxbd_xmm_xmmm32 EVEX_Vpmovzxbd_ymm_k1z_xmmm64),
        (Form::I16, true) => row!(VEX_Vpmovsxwd_xmm_xmmm64 EVEX_Vpmovsxwd_ymm_k1z_xmmm128),
        (Form::U16, true) => row!(VEX_Vpmovzxwd_xmm_xmmm64 EVEX_Vpmovzxwd_ymm_k1z_xmmm128),
    }
}

/// Stores that convert; `INVALID` if there is none. At 256 bits, integers are narrowed first
/// ([`Un::Narrow`]).
pub(super) fn store(form: Form, half: bool) -> Row {
    match (form, half) {
        (Form::NearU8, false) => row!(INVALID EVEX_Vpmovusdb_xmmm128_k1z_zmm),
        (Form::NearU8, true) => row!(INVALID EVEX_Vpmovusdb_xmmm64_k1z_ymm),
        (Form::B64, _) => row!(VEX_Vmovupd_ymmm256_ymm EVEX_Vmovupd_zmmm512_k1z_zmm),
        (Form::B32, false) => MOVE_OUT,
        (Form::F16, false) => row!(VEX_Vcvtps2ph_xmmm128_ymm_imm8 EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae),
        (Form::I8 | Form::U8, false) => row!(VEX_Vmovq_xmmm64_xmm EVEX_Vpmovdb_xmmm128_k1z_zmm),
        (Form::I16 | Form::U16, false) => row!(VEX_Vmovdqu_xmmm128_xmm EVEX_Vpmovdw_ymmm256_k1z_zmm),
        (Form::B32, true) => row!(VEX_Vmovups_xmmm128_xmm EVEX_Vmovups_ymmm256_k1z_ymm),
        (Form::F16, true) => row!(VEX_Vcvtps2ph_xmmm64_xmm_imm8 EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8),
        (Form::I8 | Form::U8, true) => row!(VEX_Vmovd_rm32_xmm EVEX_Vpmovdb_xmmm64_k1z_ymm),
        (Form::I16 | Form::U16, true) => row!(VEX_Vmovq_xmmm64_xmm EVEX_Vpmovdw_xmmm128_k1z_ymm),
    }
}

/// True for operations whose last source may be a whole vector in memory.
pub(super) fn may_read_memory(op: Op) -> bool {
    use Op::{Bin, Dot, Dot2, Fma213, Fma231, Permute2, PermuteWords2};
    matches!(op, Bin(..) | Fma231 { .. } | Fma213 { .. } | Dot(_) | Dot2 | Permute2 | PermuteWords2)
}

/// True if the machine has an operation.
pub(super) fn has_op(op: Op, column: usize) -> bool {
    let code = match op {
        Op::Bin(op, bits) => bin(op, bits)[column],
        // Expanded at 256 bits.
        Op::Un(Un::Narrow(_), _) => return column == 0,
        Op::Un(op, bits) => un(op, bits).0[column],
        Op::UCmp(_, bits) => ucmp(bits)[column],
        Op::Dot2 => DOT2[column],
        Op::Permute2 => PERMUTE2[column],
        Op::PermuteWords2 => PERMUTE_WORDS2[column],
        // AVX-512 has masks.
        Op::LoadFirst(form, _) | Op::StoreFirst(form, _) => return column == 0 && form.bytes() < 4,
        Op::SelectInto(..) => return false,
        Op::FmaLane { .. } | Op::FmaHalves { .. } | Op::DotLane { .. } => return false,
        Op::MulHalves { .. } | Op::BinHalves(_) => return false,
        Op::Dot8 { .. } | Op::MatrixDot { .. } | Op::Unzip { .. } => return false,
        Op::MulBytes { .. } | Op::AddMulBytes { .. } | Op::AddPairs(_) => return false,
        Op::BytesFrom | Op::BytesInto | Op::ByteNumbers(_) => return false,
        Op::Dot(bytes) => return bytes == Bytes::Mixed,
        Op::Scatter(_) => return column == 1,
        Op::StoreLane(form, lane) => store_lane(form, lane).0[column],
        op => return !op.is_of_riscv(),
    };
    code != Code::INVALID
}

/// True if the forms can be moved at a width, with a mask or without.
pub(super) fn has(form: Form, stores: bool, masked: bool, column: usize) -> bool {
    let code = if stores { store(form, false) } else { load(form, false) }[column];
    code != Code::INVALID && (column == 1 || !masked || matches!(form, Form::B32 | Form::B64))
}

/// Gathers; `long`: lanes have 64 bits.
pub(super) fn gather(form: Form, long: bool) -> Row {
    match (form, long) {
        (Form::B64, _) => row!(VEX_Vgatherqpd_ymm_vm64y_ymm EVEX_Vgatherqpd_zmm_k1_vm64z),
        (_, true) => row!(VEX_Vgatherqps_xmm_vm64y_xmm EVEX_Vgatherqps_ymm_k1_vm64z),
        (_, false) => row!(VEX_Vgatherdps_ymm_vm32y_ymm EVEX_Vgatherdps_zmm_k1_vm32z),
    }
}

/// Scatters.
pub(super) fn scatter(form: Form, long: bool) -> Code {
    match (form, long) {
        (Form::B64, _) => Code::EVEX_Vscatterqpd_vm64z_k1_zmm,
        (Form::B32, true) => Code::EVEX_Vscatterqps_vm64z_k1_ymm,
        (Form::B32, false) => Code::EVEX_Vscatterdps_vm32z_k1_zmm,
        _ => Code::INVALID,
    }
}

/// Stores a lane of the first 16 bytes, with the immediate that selects it; `INVALID` if there is no
/// instruction.
pub(super) fn store_lane(form: Form, lane: u8) -> (Row, Option<u32>) {
    let lane = u32::from(lane);
    match form {
        Form::B64 if lane == 0 => (row!(VEX_Vmovlpd_m64_xmm EVEX_Vmovlpd_m64_xmm), None),
        Form::B64 => (row!(VEX_Vmovhpd_m64_xmm EVEX_Vmovhpd_m64_xmm), None),
        Form::B32 => (row!(VEX_Vextractps_rm32_xmm_imm8 EVEX_Vextractps_rm32_xmm_imm8), Some(lane)),
        Form::U8 | Form::I8 => (row!(VEX_Vpextrb_r32m8_xmm_imm8 EVEX_Vpextrb_r32m8_xmm_imm8), Some(4 * lane)),
        Form::U16 | Form::I16 => {
            (row!(VEX_Vpextrw_r32m16_xmm_imm8 EVEX_Vpextrw_r32m16_xmm_imm8), Some(2 * lane))
        }
        Form::F16 | Form::NearU8 => (row!(INVALID INVALID), None),
    }
}
