//! Targets: triple and CPU level -> what schedules and code generation must know.

use crate::diag::{Error, Result, codes};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use target_lexicon::{Architecture, BinaryFormat, OperatingSystem, Triple};

/// A CPU level that `--cpu` can name.
pub struct Known {
    /// As `--cpu` takes it.
    pub name: &'static str,
    /// Architecture.
    pub arch: &'static str,
    /// Rank among the levels of the architecture: 1..=4 are those of the x86-64 psABI, 5 is the fourth and AVX512-VNNI,
    /// 6 that and AVX512-BF16.
    pub rank: u32,
    /// Cranelift settings.
    features: &'static [&'static str],
    /// Bits of the widest vector registers.
    width: u32,
    /// Dot products of bytes.
    dot: bool,
    /// Dot products of bf16.
    bf16: bool,
}

/// CPU levels. Cranelift's vectors have 128 bits on every level; `width` is for code that goes beyond.
pub const LEVELS: &[Known] = &[
    Known { name: "x86-64", arch: "x86_64", rank: 1, features: &[], width: 128, dot: false, bf16: false },
    Known { name: "x86-64-v2", arch: "x86_64", rank: 2, features: V2, width: 128, dot: false, bf16: false },
    Known { name: "x86-64-v3", arch: "x86_64", rank: 3, features: V3, width: 256, dot: false, bf16: false },
    Known { name: "x86-64-v4", arch: "x86_64", rank: 4, features: V3, width: 512, dot: false, bf16: false },
    Known { name: "x86-64-v4-vnni", arch: "x86_64", rank: 5, features: V3, width: 512, dot: true, bf16: false },
    Known { name: "x86-64-v4-bf16", arch: "x86_64", rank: 6, features: V3, width: 512, dot: true, bf16: true },
    Known { name: "generic", arch: "aarch64", rank: 1, features: &[], width: 128, dot: false, bf16: false },
    Known { name: "rv64gc", arch: "riscv64", rank: 1, features: RV64GC, width: 128, dot: false, bf16: false },
    Known { name: "rv64gcv", arch: "riscv64", rank: 2, features: RV64GCV, width: 128, dot: false, bf16: false },
];
const V2: &[&str] = &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"];
const V3: &[&str] = &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt", "has_avx", "has_avx2", "has_bmi1", "has_bmi2", "has_fma", "has_lzcnt"];
const RV64GC: &[&str] = &["has_m", "has_a", "has_f", "has_d", "has_zicsr", "has_zifencei", "has_zca", "has_zcd"];
const RV64GCV: &[&str] = &["has_m", "has_a", "has_f", "has_d", "has_zicsr", "has_zifencei", "has_zca", "has_zcd", "has_v", "has_zvl128b"];

/// What generated code is for: one object for one triple, with code for one or several CPU levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Architecture, system, object format.
    pub triple: Triple,
    /// Lowest first, at least one. Only x86-64 has several: they are told apart when the code is called.
    pub levels: Vec<Level>,
}

/// A CPU level: one set of instructions, one set of facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// As the user named it; `native` for what this machine has.
    pub name: String,
    /// Rank among the levels of the architecture (see [`LEVELS`]).
    pub rank: u32,
    /// What schedules must know.
    pub facts: Facts,
    /// Nobody asked for it by name: a model that has no use for it goes without.
    optional: bool,
    features: Vec<&'static str>,
}

/// Facts for schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// f32 lanes of a vector; 1 where there are no vectors.
    pub lanes: u32,
    /// Vector registers.
    pub registers: u32,
    /// Bits of the widest vector registers: 128, 256 (AVX2 and FMA) or 512 (AVX-512 F, BW, CD, DQ, VL).
    pub width: u32,
    /// Whether vectors have dot products of bytes: AVX512-VNNI, AVX-VNNI.
    pub dot: bool,
    /// Whether vectors have dot products of bf16: AVX512-BF16.
    pub bf16: bool,
}

impl Level {
    fn new(name: &str, rank: u32, architecture: Architecture, features: &[&'static str], width: u32, (dot, bf16): (bool, bool)) -> Level {
        let (lanes, registers) = match architecture {
            Architecture::X86_64 => (width / 32, if width == 512 { 32 } else { 16 }),
            Architecture::Riscv64(_) if !features.contains(&"has_v") => (1, 1),
            _ => (4, 32),
        };
        Level { name: name.to_owned(), rank, facts: Facts { lanes, registers, width, dot, bf16 }, optional: false, features: features.to_vec() }
    }
    /// Name in symbols of an object with several levels: `v3` of `x86-64-v3`, `vnni` of `x86-64-v4-vnni`.
    pub fn short(&self) -> &str {
        self.name.strip_prefix("x86-64-").and_then(|s| s.rsplit('-').next()).unwrap_or("v1")
    }
}

impl Target {
    /// The target of a triple (`None`: this machine) and a CPU level (`None`: the default of the architecture).
    pub fn new(triple: Option<&str>, cpu: Option<&str>) -> Result<Target> {
        let bad = |title: String, expected: String| Error::new(codes::TARGET, title).row("expected", expected).fail();
        let triple = match triple {
            None => Triple::host(),
            Some(t) => match t.parse::<Triple>() {
                Ok(t) => t,
                Err(e) => return bad(format!("the target triple \"{t}\" is not known: {e}"), "e.g. x86_64-unknown-linux-gnu, aarch64-apple-darwin, riscv64gc-unknown-linux-gnu".into()),
            },
        };
        let arch = match triple.architecture {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64(_) => "aarch64",
            Architecture::Riscv64(_) => "riscv64",
            _ => return bad(format!("the architecture of \"{triple}\" is not supported"), "x86_64, aarch64 or riscv64".into()),
        };
        if arch == "aarch64" && triple.operating_system == OperatingSystem::Windows {
            return bad("aarch64 Windows is not supported".into(), "its unwind information is not written yet: use x86_64-pc-windows-msvc".into());
        }
        if !matches!(triple.binary_format, BinaryFormat::Elf | BinaryFormat::Macho | BinaryFormat::Coff) {
            return bad(format!("the object format of \"{triple}\" is not supported"), "ELF, Mach-O or COFF".into());
        }
        let default = match arch {
            "x86_64" => "x86-64-v2+",
            "aarch64" => "generic",
            _ => "rv64gcv",
        };
        let cpu = cpu.unwrap_or(default);
        if cpu == "native" {
            if Triple::host().architecture != triple.architecture {
                return bad("--cpu native needs the target to be this machine".into(), "a CPU level".into());
            }
            let levels = vec![native(triple.architecture)];
            return Ok(Target { triple, levels });
        }
        let of_arch = || LEVELS.iter().filter(|l| l.arch == arch);
        let mut known: Vec<&Known> = vec![];
        let mut above: Vec<&Known> = vec![];
        for name in cpu.split(',').map(str::trim) {
            let (name, upwards) = name.strip_suffix('+').map_or((name, false), |n| (n, true));
            match of_arch().find(|l| l.name == name) {
                Some(l) => {
                    known.push(l);
                    above.extend(of_arch().filter(|a| upwards && a.rank > l.rank));
                }
                None => {
                    let names: Vec<&str> = of_arch().map(|l| l.name).collect();
                    let several = if arch == "x86_64" { ", or several of them separated by commas, or one with a + for all from there on" } else { "" };
                    return bad(format!("the CPU level \"{name}\" is not known for {arch}"), format!("native or one of {}{several}", names.join(", ")));
                }
            }
        }
        let named: Vec<u32> = known.iter().map(|l| l.rank).collect();
        known.append(&mut above);
        known.sort_by_key(|l| l.rank);
        known.dedup_by_key(|l| l.rank);
        if known.len() > 1 && arch != "x86_64" {
            return bad(format!("an object for {arch} has code for one CPU level, not for \"{cpu}\""), "one level: code for several is for x86_64".into());
        }
        let level = |l: &Known| Level { optional: !named.contains(&l.rank), ..Level::new(l.name, l.rank, triple.architecture, l.features, l.width, (l.dot, l.bf16)) };
        let levels = known.into_iter().map(level).collect();
        Ok(Target { triple, levels })
    }
    /// This machine, with everything it has.
    pub fn host() -> Result<Target> {
        Target::new(None, Some("native"))
    }
    /// The level that every machine of this target has.
    pub fn lowest(&self) -> &Level {
        // `new` makes targets, with one level at least.
        &self.levels[0]
    }
    /// Drops levels that a model has no use for, but those that the user named.
    pub fn keep(&mut self, useful: impl Fn(&Facts) -> bool) {
        self.levels.retain(|l| !l.optional || useful(&l.facts));
    }
    /// Names of the levels, separated by commas.
    pub fn cpu(&self) -> String {
        self.levels.iter().map(|l| l.name.as_str()).collect::<Vec<_>>().join(",")
    }
    /// Cranelift's view of a level. Tiles are compiled without optimisation: it would undo their order.
    pub fn isa(&self, level: &Level, optimise: bool, pic: bool) -> Result<OwnedTargetIsa> {
        let bug = |e: String| crate::diag::Failure::bug("target", e);
        let mut shared = settings::builder();
        for (k, v) in [
            ("is_pic", if pic { "true" } else { "false" }),
            ("opt_level", if optimise { "speed" } else { "none" }),
            ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
            ("unwind_info", "false"),
            ("enable_probestack", "false"),
        ] {
            shared.set(k, v).map_err(|e| bug(format!("{k}: {e}")))?;
        }
        let mut b = isa::lookup(self.triple.clone()).map_err(|e| bug(e.to_string()))?;
        for f in &level.features {
            b.enable(f).map_err(|e| bug(format!("{f}: {e}")))?;
        }
        b.finish(settings::Flags::new(shared)).map_err(|e| bug(e.to_string()))
    }
}

#[cfg(target_arch = "x86_64")]
fn native(architecture: Architecture) -> Level {
    let mut f = vec![];
    macro_rules! probe {
        ($($name:tt => $flag:literal),*) => {$(if std::arch::is_x86_feature_detected!($name) { f.push($flag); })*};
    }
    probe!("sse3" => "has_sse3", "ssse3" => "has_ssse3", "sse4.1" => "has_sse41", "sse4.2" => "has_sse42", "popcnt" => "has_popcnt", "avx" => "has_avx", "avx2" => "has_avx2", "bmi1" => "has_bmi1", "bmi2" => "has_bmi2", "fma" => "has_fma", "lzcnt" => "has_lzcnt");
    macro_rules! all {
        ($($name:tt),*) => { true $(&& std::arch::is_x86_feature_detected!($name))* };
    }
    // A level has all that the psABI lists for it, so `rank` and `width` promise no more than a named level does.
    let v2 = all!("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cmpxchg16b");
    let v3 = v2 && all!("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe");
    let v4 = v3 && all!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl");
    let vnni = v4 && all!("avx512vnni");
    let bf16 = vnni && all!("avx512bf16");
    let rank = 1 + u32::from(bf16) + u32::from(v2) + u32::from(v3) + u32::from(v4) + u32::from(vnni);
    Level::new(
        "native",
        rank,
        architecture,
        &f,
        if v4 {
            512
        } else if v3 {
            256
        } else {
            128
        },
        (vnni, bf16),
    )
}

#[cfg(not(target_arch = "x86_64"))]
fn native(architecture: Architecture) -> Level {
    match LEVELS.iter().find(|l| l.arch == std::env::consts::ARCH) {
        Some(l) => Level::new("native", l.rank, architecture, l.features, l.width, (l.dot, l.bf16)),
        None => Level::new("native", 0, architecture, &[], 128, (false, false)),
    }
}
