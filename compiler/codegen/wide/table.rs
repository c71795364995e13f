//! Operations -> instruction codes: one row an operation, one column a vector length.

use super::ir::{Bin, Form, Un};
use iced_x86::Code;

/// Codes at 256 bits (VEX) and 512 bits (EVEX).
pub(super) type Row = [Code; 2];

macro_rules! row {
    ($a:ident $b:ident) => {
        [Code::$a, Code::$b]
    };
}

/// a op b, b from a register or memory.
pub(super) fn bin(op: Bin) -> Row {
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
        Bin::Scale => row!(INVALID EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er),
        Bin::Pick => row!(VEX_Vpermps_ymm_ymm_ymmm256 EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32),
        Bin::Sar => row!(VEX_Vpsravd_ymm_ymm_ymmm256 EVEX_Vpsravd_zmm_k1z_zmm_zmmm512b32),
    }
}

/// op a, with the immediate it takes. Swaps across 128 bits are two-operand shuffles, see [`SWAP_HALVES`].
pub(super) fn un(op: Un) -> (Row, Option<u32>) {
    const ROUND: Row = row!(VEX_Vroundps_ymm_ymmm256_imm8 EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae);
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
        // See [`narrow`].
        Un::Narrow(_) => (row!(INVALID INVALID), None),
        Un::Swap(k) => (row!(VEX_Vpermilps_ymm_ymmm256_imm8 EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8), Some(if k == 1 { 0xB1 } else { 0x4E })),
    }
}

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

/// Exchanges pieces of 128 bits.
pub(super) const SWAP_HALVES: Row = row!(VEX_Vperm2f128_ymm_ymm_ymmm256_imm8 EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8);

/// The fused forms: 231 overwrites the addend, 213 a factor.
pub(super) fn fma(addend: bool, neg: bool) -> Row {
    match (addend, neg) {
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

/// Comparisons of floats.
pub(super) const CMP: Row = row!(VEX_Vcmpps_ymm_ymm_ymmm256_imm8 EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae);
/// Equality of integers at 256 bits; any comparison at 512.
pub(super) const ICMP: Row = row!(VEX_Vpcmpeqd_ymm_ymm_ymmm256 EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8);
/// a > b of integers at 256 bits.
pub(super) const IGREATER: Code = Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256;
/// Selection by a mask.
pub(super) const BLEND: Row = row!(VEX_Vblendvps_ymm_ymm_ymmm256_ymm EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32);
/// Whole registers to and from memory (and spill slots).
pub(super) const MOVE: Row = row!(VEX_Vmovups_ymm_ymmm256 EVEX_Vmovups_zmm_k1z_zmmm512);
/// See [`MOVE`].
pub(super) const MOVE_OUT: Row = row!(VEX_Vmovups_ymmm256_ymm EVEX_Vmovups_zmmm512_k1z_zmm);
/// One float of memory in all lanes.
pub(super) const BROADCAST: Row = row!(VEX_Vbroadcastss_ymm_m32 EVEX_Vbroadcastss_zmm_k1z_xmmm32);
/// Masked moves at 256 bits; at 512 every instruction takes a mask.
pub(super) const MASKED_LOAD: Code = Code::VEX_Vmaskmovps_ymm_ymm_m256;
/// See [`MASKED_LOAD`].
pub(super) const MASKED_STORE: Code = Code::VEX_Vmaskmovps_m256_ymm_ymm;

/// 32-bit pieces of 128 bits where a mask is set.
pub(super) const MASKED_PART: Code = Code::VEX_Vpmaskmovd_xmm_xmm_m128;

/// Loads that convert.
pub(super) fn load(form: Form) -> Row {
    match form {
        Form::Whole => MOVE,
        Form::F16 => row!(VEX_Vcvtph2ps_ymm_xmmm128 EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae),
        Form::I8 => row!(VEX_Vpmovsxbd_ymm_xmmm64 EVEX_Vpmovsxbd_zmm_k1z_xmmm128),
        Form::U8 => row!(VEX_Vpmovzxbd_ymm_xmmm64 EVEX_Vpmovzxbd_zmm_k1z_xmmm128),
        Form::I16 => row!(VEX_Vpmovsxwd_ymm_xmmm128 EVEX_Vpmovsxwd_zmm_k1z_ymmm256),
        Form::U16 => row!(VEX_Vpmovzxwd_ymm_xmmm128 EVEX_Vpmovzxwd_zmm_k1z_ymmm256),
    }
}

/// Stores that convert; `INVALID` where there is none. At 256 bits integers are narrowed before ([`Un::Narrow`]).
pub(super) fn store(form: Form) -> Row {
    match form {
        Form::Whole => MOVE_OUT,
        Form::F16 => row!(VEX_Vcvtps2ph_xmmm128_ymm_imm8 EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae),
        Form::I8 | Form::U8 => row!(VEX_Vmovq_xmmm64_xmm EVEX_Vpmovdb_xmmm128_k1z_zmm),
        Form::I16 | Form::U16 => row!(VEX_Vmovdqu_xmmm128_xmm EVEX_Vpmovdw_ymmm256_k1z_zmm),
    }
}

/// True if the forms can be moved at a width, with a mask or without.
pub(super) fn has(form: Form, stores: bool, masked: bool, column: usize) -> bool {
    let code = if stores { store(form) } else { load(form) }[column];
    code != Code::INVALID && (column == 1 || !masked || form == Form::Whole)
}
