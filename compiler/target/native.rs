//! The CPU level of the host machine.

#[cfg(not(target_arch = "x86_64"))]
use super::LEVELS;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::has;
use super::{Caps, Level};
use target_lexicon::Architecture;

#[cfg(target_arch = "x86_64")]
pub(super) fn native(architecture: Architecture) -> Level {
    let mut f = vec![];
    macro_rules! probe {
        ($($name:tt => $flag:literal),*) => {
            $(if std::arch::is_x86_feature_detected!($name) {
                f.push($flag);
            })*
        };
    }
    probe!(
        "sse3" => "has_sse3", "ssse3" => "has_ssse3", "sse4.1" => "has_sse41", "sse4.2" => "has_sse42",
        "popcnt" => "has_popcnt", "avx" => "has_avx", "avx2" => "has_avx2", "bmi1" => "has_bmi1",
        "bmi2" => "has_bmi2", "fma" => "has_fma", "lzcnt" => "has_lzcnt"
    );
    macro_rules! all {
        ($($name:tt),*) => { true $(&& std::arch::is_x86_feature_detected!($name))* };
    }
    // A level requires all features that the psABI lists for it, so `needs` and `caps` promise no more than a
    // named level does.
    let v2 = all!("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cmpxchg16b");
    let v3 = v2 && all!("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe");
    let v4 = v3 && all!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl");
    let avx_vnni = v3 && all!("avxvnni");
    let vnni = v4 && all!("avx512vnni");
    let bf16 = vnni && all!("avx512bf16");
    let found = [
        (v2, has::V2),
        (v3, has::V3),
        (v4, has::V4),
        (avx_vnni, has::AVX_VNNI),
        (vnni, has::AVX512_VNNI),
        (bf16, has::AVX512_BF16),
    ];
    let needs = found.into_iter().filter(|x| x.0).fold(has::BASE, |n, x| n | x.1);
    let caps = match (v4, v3) {
        (true, _) if bf16 => Caps::AVX512_BF16,
        (true, _) if vnni => Caps::AVX512_VNNI,
        (true, _) => Caps::AVX512,
        (_, true) if avx_vnni => Caps::AVX_VNNI,
        (_, true) => Caps::AVX2,
        _ => Caps::SSE2,
    };
    Level::new("native", needs, architecture, &f, caps)
}

#[cfg(target_arch = "aarch64")]
pub(super) fn native(architecture: Architecture) -> Level {
    use std::arch::is_aarch64_feature_detected as detected;
    let found = [
        (detected!("dotprod"), has::DOTPROD),
        (detected!("fp16"), has::FP16),
        (detected!("i8mm"), has::I8MM),
        (detected!("bf16"), has::BF16),
    ];
    let needs = found.into_iter().filter(|x| x.0).fold(has::BASE, |n, x| n | x.1);
    // The capabilities of the best level of this CPU.
    let best = LEVELS.iter().rfind(|l| l.arch == "aarch64" && !l.cpu && l.needs & needs == l.needs);
    Level::new("native", needs, architecture, &[], best.map_or(Caps::NEON, |l| l.caps))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn native(architecture: Architecture) -> Level {
    match LEVELS.iter().find(|l| l.arch == std::env::consts::ARCH) {
        Some(l) => Level::new("native", l.needs, architecture, l.features, l.caps),
        None => Level::new("native", 0, architecture, &[], Caps::CRANELIFT),
    }
}
