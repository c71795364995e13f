//! Targets: triple and CPU level -> what schedules and code generation must know.

use crate::diag::{Error, Result, codes};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use target_lexicon::{
    Aarch64Architecture, Architecture, BinaryFormat, Environment, OperatingSystem, Riscv64Architecture,
    Triple,
};

/// What a CPU has beyond the base of its architecture, as far as levels differ in it: bits of
/// [`Known::needs`], and of the answer of `codegen::cpu_level`.
pub mod has {
    /// What every CPU of the architecture has.
    pub const BASE: u32 = 1;
    /// x86-64-v2 of the psABI: SSE 4.2.
    pub const V2: u32 = 1 << 1;
    /// x86-64-v3: AVX2, FMA.
    pub const V3: u32 = 1 << 2;
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
    pub const V4: u32 = 1 << 3;
    /// Dot products of bytes at 256 bits, VEX.
    pub const AVX_VNNI: u32 = 1 << 4;
    /// Dot products of bytes at 512 bits, EVEX.
    pub const AVX512_VNNI: u32 = 1 << 5;
    /// Dot products of bf16 at 512 bits.
    pub const AVX512_BF16: u32 = 1 << 6;
    /// Vectors of RISC-V.
    pub const RVV: u32 = 1 << 1;
    /// aarch64, FEAT_DotProd: dot products of bytes of one sign.
    pub const DOTPROD: u32 = 1 << 1;
    /// FEAT_FP16: arithmetic on f16.
    pub const FP16: u32 = 1 << 2;
    /// FEAT_I8MM: products of matrices of bytes.
    pub const I8MM: u32 = 1 << 3;
    /// FEAT_BF16: dot products and products of matrices of bf16.
    pub const BF16: u32 = 1 << 4;
}

/// A CPU level that `--cpu` can name.
pub struct Known {
    /// As `--cpu` takes it.
    pub name: &'static str,
    /// Architecture.
    pub arch: &'static str,
    /// What a CPU must have for it, bits of [`has`].
    pub needs: u32,
    /// Cranelift settings.
    features: &'static [&'static str],
    /// What its vectors can do.
    caps: Caps,
    /// The name of a CPU, whose code is ordered for it: no name with a + includes it.
    cpu: bool,
}

const N2: u32 = has::BASE | has::V2;
const N3: u32 = N2 | has::V3;
const N4: u32 = N3 | has::V4;
const N4_VNNI: u32 = N4 | has::AVX512_VNNI;
const A82: u32 = has::BASE | has::DOTPROD | has::FP16;
const A86: u32 = A82 | has::I8MM | has::BF16;

/// What rows of [`LEVELS`] have in common.
const LEVEL: Known =
    Known { name: "", arch: "", needs: has::BASE, features: &[], caps: Caps::CRANELIFT, cpu: false };

/// A CPU level of aarch64.
const fn arm(name: &'static str, needs: u32, caps: Caps) -> Known {
    Known { name, arch: "aarch64", needs, caps, ..LEVEL }
}

/// A CPU by its name: the level that it has, ordered for it.
const fn arm_cpu(name: &'static str, needs: u32, caps: Caps) -> Known {
    Known { cpu: true, ..arm(name, needs, caps) }
}

/// CPU levels, of an architecture the better ones later: a CPU runs the last one of an object that it has all
/// of. They need not contain each other: CPUs with dot products at 256 bits only and CPUs with AVX-512 only
/// have one of two levels each. Cranelift's vectors have 128 bits on every level; [`Caps`] say what there is
/// beyond.
///
/// Levels of aarch64 are spelled as compilers spell them for `-march`. A level needs what its code may use,
/// no more: a CPU that lacks other parts of Armv8.6-A, but has I8MM and BF16, runs that one. Names of CPUs
/// stand behind the levels.
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
    arm_cpu("cortex-a53", has::BASE, Caps::NEON_IN_ORDER),
    arm_cpu("cortex-a55", A82, Caps { in_order: true, ..Caps::NEON_DOT }),
    arm_cpu("cortex-a72", has::BASE, Caps::NEON),
    arm_cpu("cortex-a73", has::BASE, Caps::NEON),
    arm_cpu("cortex-a75", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a76", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a77", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a78", A82, Caps::NEON_DOT),
    arm_cpu("cortex-x1", A82, Caps::NEON_DOT),
    arm_cpu("cortex-a510", A86, Caps { in_order: true, ..Caps::NEON_I8MM }),
    arm_cpu("cortex-a710", A86, Caps::NEON_I8MM),
    arm_cpu("cortex-x2", A86, Caps::NEON_I8MM),
    arm_cpu("neoverse-n1", A82, Caps::NEON_DOT),
    arm_cpu("neoverse-n2", A86, Caps::NEON_I8MM),
    arm_cpu("neoverse-v1", A86, Caps::NEON_I8MM),
    arm_cpu("neoverse-v2", A86, Caps::NEON_I8MM),
    arm_cpu("apple-m1", A82, Caps::NEON_DOT),
    arm_cpu("apple-m2", A86, Caps::NEON_I8MM),
    Known {
        name: "rv64gc",
        arch: "riscv64",
        needs: has::BASE,
        features: RV64GC,
        caps: Caps::CRANELIFT,
        ..LEVEL
    },
    Known {
        name: "rv64gcv",
        arch: "riscv64",
        needs: has::BASE | has::RVV,
        features: RV64GCV,
        caps: Caps::CRANELIFT,
        ..LEVEL
    },
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

/// What generated code is for: one object for one triple, with code for one or several CPU levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Architecture, system, object format.
    pub triple: Triple,
    /// In the order of [`LEVELS`], at least one. x86-64 and aarch64 may have several: they are told apart
    /// when the code is called, and the first is for CPUs that have no other.
    pub levels: Vec<Level>,
}

/// A CPU level: one set of instructions, one set of facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// As the user named it; `native` for what this machine has.
    pub name: String,
    /// What a CPU must have for it, bits of [`has`]; of `native`, all that this machine has.
    pub needs: u32,
    /// What schedules must know.
    pub facts: Facts,
    /// Nobody asked for it by name: a model that has no use for it goes without.
    optional: bool,
    features: Vec<&'static str>,
}

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
    /// Lanes that read elements at distances known at compile time, squares that are transposed in registers.
    pub shuffles: bool,
    /// Lanes that read elements from anywhere.
    pub gathers: bool,
    /// Loads and stores that convert floats of 16 bits.
    pub short_floats: bool,
    /// Arithmetic on lanes of 64 bits.
    pub long_lanes: bool,
    /// Dot products of integers.
    pub dot: Dot,
    /// Dot products of bf16, or products of matrices of them where there are those of bytes.
    pub bf16: bool,
    /// Products of vectors with one lane of another: elements that multiply whole rows are loaded as vectors.
    pub by_lane: bool,
    /// Cores that begin no instruction before the one before it.
    pub in_order: bool,
}

impl Caps {
    /// Vectors of 128 bits by Cranelift, on every architecture.
    const CRANELIFT: Caps = Caps {
        bits: 128,
        tiles: Tiles::None,
        masks: false,
        shuffles: false,
        gathers: false,
        short_floats: false,
        long_lanes: false,
        dot: Dot::None,
        bf16: false,
        by_lane: false,
        in_order: false,
    };
    const NEON: Caps =
        Caps { tiles: Tiles::Neon, short_floats: true, long_lanes: true, by_lane: true, ..Caps::CRANELIFT };
    const NEON_IN_ORDER: Caps = Caps { in_order: true, ..Caps::NEON };
    const NEON_DOT: Caps = Caps { dot: Dot::QuadsOfOneSign, ..Caps::NEON };
    const NEON_I8MM: Caps = Caps { dot: Dot::QuadsOfAnySign, bf16: true, ..Caps::NEON_DOT };
    const SSE2: Caps = Caps { dot: Dot::Pairs, ..Caps::CRANELIFT };
    const AVX2: Caps = Caps {
        bits: 256,
        tiles: Tiles::Avx2,
        masks: true,
        shuffles: true,
        gathers: true,
        short_floats: true,
        long_lanes: true,
        dot: Dot::Pairs,
        bf16: false,
        by_lane: false,
        in_order: false,
    };
    const AVX_VNNI: Caps = Caps { dot: Dot::Quads, ..Caps::AVX2 };
    const AVX512: Caps = Caps { bits: 512, tiles: Tiles::Avx512, ..Caps::AVX2 };
    const AVX512_VNNI: Caps = Caps { dot: Dot::Quads, ..Caps::AVX512 };
    const AVX512_BF16: Caps = Caps { bf16: true, ..Caps::AVX512_VNNI };
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
    /// The same of bytes of one sign: FEAT_DotProd.
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
        matches!(self, Dot::QuadsOfOneSign | Dot::QuadsOfAnySign)
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

/// Facts for schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// f32 lanes of a vector; 1 where there are no vectors.
    pub lanes: u32,
    /// Vector registers.
    pub registers: u32,
    /// What vectors can do.
    pub caps: Caps,
}

impl Level {
    fn new(
        name: &str,
        needs: u32,
        architecture: Architecture,
        features: &[&'static str],
        caps: Caps,
    ) -> Level {
        let (lanes, registers) = match architecture {
            Architecture::X86_64 => (caps.bits / 32, if caps.bits == 512 { 32 } else { 16 }),
            Architecture::Riscv64(_) if !features.contains(&"has_v") => (1, 1),
            _ => (4, 32),
        };
        Level {
            name: name.to_owned(),
            needs,
            facts: Facts { lanes, registers, caps },
            optional: false,
            features: features.to_vec(),
        }
    }
    /// True if a machine of level `native` runs code of this level.
    pub fn runs_on(&self, native: &Level) -> bool {
        self.needs & native.needs == self.needs
    }
    /// Name in symbols of an object with several levels: `v3` of `x86-64-v3`, `v4_vnni` of `x86-64-v4-vnni`,
    /// `v8_2` of `armv8.2-a+dotprod+fp16`.
    pub fn short(&self) -> String {
        let arm = LEVELS.iter().any(|l| l.arch == "aarch64" && l.name == self.name);
        let of_arm = || match self.name.strip_prefix("arm") {
            Some(version) => version.split_once("-a").map_or(version, |v| v.0),
            None => &self.name,
        };
        let name = if arm { of_arm() } else { self.name.strip_prefix("x86-64-").unwrap_or("v1") };
        name.replace(['-', '.'], "_")
    }
}

impl Target {
    /// A triple that objects can be made for. Triples of bare metal have ELF objects, those of UEFI COFF.
    pub fn triple(text: &str) -> std::result::Result<Triple, Error> {
        let bad =
            |title: String, expected: &str| Err(Error::new(codes::TARGET, title).row("expected", expected));
        let mut triple = match text.parse::<Triple>() {
            Ok(t) => t,
            Err(e) => {
                return bad(
                    format!("the target triple \"{text}\" is not known: {e}"),
                    "e.g. x86_64-unknown-linux-gnu, aarch64-apple-darwin, riscv64gc-unknown-linux-gnu",
                );
            }
        };
        match triple.architecture {
            Architecture::X86_64 if triple.environment == Environment::Gnux32 => {
                return bad(
                    format!("\"{text}\" has pointers of 32 bits"),
                    "pointers of 64 bits: x86_64-unknown-linux-gnu",
                );
            }
            Architecture::Aarch64(_) if triple.environment == Environment::GnuIlp32 => {
                return bad(
                    format!("\"{text}\" has pointers of 32 bits"),
                    "pointers of 64 bits: aarch64-unknown-linux-gnu",
                );
            }
            Architecture::Aarch64(Aarch64Architecture::Aarch64be) => {
                return bad(format!("\"{text}\" is big-endian"), "a little-endian target");
            }
            Architecture::X86_64 | Architecture::Aarch64(_) | Architecture::Riscv64(_) => {}
            _ => {
                return bad(
                    format!("the architecture of \"{text}\" is not supported"),
                    "x86_64, aarch64 or riscv64",
                );
            }
        }
        triple.binary_format = match (triple.operating_system, triple.binary_format) {
            (OperatingSystem::Uefi, _) => BinaryFormat::Coff,
            (_, BinaryFormat::Unknown) => BinaryFormat::Elf,
            (_, f) => f,
        };
        if !matches!(triple.binary_format, BinaryFormat::Elf | BinaryFormat::Macho | BinaryFormat::Coff) {
            return bad(format!("the object format of \"{text}\" is not supported"), "ELF, Mach-O or COFF");
        }
        if matches!(triple.architecture, Architecture::Riscv64(_))
            && triple.binary_format != BinaryFormat::Elf
        {
            return bad(format!("objects for \"{text}\" are not supported"), "ELF objects for riscv64");
        }
        Ok(triple)
    }
    /// The target of a triple (`None`: this machine) and a CPU level (`None`: the default of the triple,
    /// which every CPU that the triple names has).
    pub fn new(triple: Option<&str>, cpu: Option<&str>) -> Result<Target> {
        let bad = |title: String, expected: String| {
            Error::new(codes::TARGET, title).row("expected", expected).fail()
        };
        let triple = triple.map_or_else(|| Ok(Triple::host()), Target::triple)?;
        let (arch, default) = match triple.architecture {
            Architecture::X86_64 => ("x86_64", "x86-64-v2+"),
            Architecture::Aarch64(_) => ("aarch64", default_arm(&triple)),
            Architecture::Riscv64(Riscv64Architecture::Riscv64a23) => ("riscv64", "rv64gcv"),
            Architecture::Riscv64(Riscv64Architecture::Riscv64imac) if cpu.is_none() => {
                let e = Error::new(
                    codes::TARGET,
                    format!("\"{triple}\" names CPUs without floating point, which no level has"),
                );
                return e.found_expected("no --cpu", "--cpu rv64gc if the CPU has the extensions F and D: the object then has the ABI lp64, as the triple says").fail();
            }
            _ => ("riscv64", "rv64gc"),
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
        // Places among the levels of the architecture.
        let (mut named, mut above): (Vec<usize>, Vec<usize>) = (vec![], vec![]);
        for name in cpu.split(',').map(str::trim) {
            let (name, upwards) = name.strip_suffix('+').map_or((name, false), |n| (n, true));
            match of_arch().position(|l| l.name == name) {
                Some(at) => {
                    named.push(at);
                    let levels = of_arch().enumerate().filter(|(i, l)| *i > at && !l.cpu);
                    above.extend(levels.map(|(i, _)| i).filter(|_| upwards));
                }
                None => {
                    let names: Vec<&str> = of_arch().map(|l| l.name).collect();
                    let several = if arch != "riscv64" {
                        ", or several of them separated by commas, or one with a + for all from there on"
                    } else {
                        ""
                    };
                    return bad(
                        format!("the CPU level \"{name}\" is not known for {arch}"),
                        format!("native or one of {}{several}", names.join(", ")),
                    );
                }
            }
        }
        let known: Vec<(usize, &'static Known)> =
            of_arch().enumerate().filter(|(at, _)| named.contains(at) || above.contains(at)).collect();
        if known.len() > 1 && !has_detection(&triple) {
            let of = if arch == "aarch64" { triple.to_string() } else { arch.to_owned() };
            return bad(
                format!("an object for {of} has code for one CPU level, not for \"{cpu}\""),
                "one level: code for several is for x86_64, and for aarch64 with ELF or Windows".into(),
            );
        }
        let alike = |(i, a): (usize, &(usize, &'static Known))| {
            known[i + 1..].iter().find(|b| b.1.needs == a.1.needs).map(|b| (a.1, b.1))
        };
        if let Some((a, b)) = known.iter().enumerate().find_map(alike) {
            return bad(
                format!("nothing tells CPUs of the levels \"{}\" and \"{}\" apart", a.name, b.name),
                "levels that need something of their own of a CPU, or one of the two".into(),
            );
        }
        let level = |(at, l): (usize, &Known)| Level {
            optional: !named.contains(&at),
            ..Level::new(l.name, l.needs, triple.architecture, l.features, l.caps)
        };
        let levels = known.into_iter().map(level).collect();
        Ok(Target { triple, levels })
    }
    /// This machine, with everything it has.
    pub fn host() -> Result<Target> {
        Target::new(None, Some("native"))
    }
    /// The level of machines that have no other of this target.
    pub fn lowest(&self) -> &Level {
        // `new` makes targets, with one level at least.
        &self.levels[0]
    }
    /// Whether calls end with a status on a CPU that lacks the lowest level. Only x86-64 has a way to ask
    /// without the help of the system: others may not know what the CPU has.
    pub fn refuses(&self) -> bool {
        // macOS saves the registers of AVX-512 only once a process uses them: a CPU that has it would be
        // refused.
        let unknown = self.triple.binary_format == BinaryFormat::Macho && self.lowest().needs & has::V4 != 0;
        matches!(self.triple.architecture, Architecture::X86_64)
            && self.lowest().needs != has::BASE
            && !unknown
    }
    /// Whether calls ask what the CPU has: to choose a level, or to refuse.
    pub fn asks(&self) -> bool {
        self.levels.len() > 1 || self.refuses()
    }
    /// The level that every CPU of the architecture has: code that runs before the CPU is known.
    pub fn base(&self) -> Level {
        Level { features: vec![], ..self.lowest().clone() }
    }
    /// Drops levels that a model has no use for, but those that the user named.
    pub fn keep(&mut self, useful: impl Fn(&Facts) -> bool) {
        self.levels.retain(|l| !l.optional || useful(&l.facts));
    }
    /// Keeps one level, where there are several: of x86-64 x86-64-v3, the first whose code comes from the
    /// tile backend, which takes half the bytes of Cranelift's vectors; else the lowest.
    pub fn keep_one(&mut self) {
        let one = self.levels.iter().position(|l| l.name == "x86-64-v3").unwrap_or(0);
        self.levels = vec![self.levels.swap_remove(one)];
    }
    /// Names of the levels, separated by commas.
    pub fn cpu(&self) -> String {
        self.levels.iter().map(|l| l.name.as_str()).collect::<Vec<_>>().join(",")
    }
    /// True where floats are passed in integer registers though the code may use those for floats: lp64 of
    /// riscv64.
    pub fn soft_float(&self) -> bool {
        self.triple.architecture == Architecture::Riscv64(Riscv64Architecture::Riscv64imac)
    }
    /// Cranelift's view of a level. Tiles are compiled without optimisation: it would undo their order.
    pub fn isa(&self, level: &Level, optimise: bool, pic: bool) -> Result<OwnedTargetIsa> {
        let bug = |e: String| crate::diag::Failure::bug("target", e);
        // Images of Windows on aarch64 are loaded anywhere: addresses are made of pages and offsets, as
        // within one object.
        // Objects have unwind information, code in memory has none.
        let unwinds = pic;
        let pic = pic
            && !(self.triple.binary_format == BinaryFormat::Coff
                && matches!(self.triple.architecture, Architecture::Aarch64(_)));
        let mut shared = settings::builder();
        for (k, v) in [
            ("is_pic", if pic { "true" } else { "false" }),
            ("opt_level", if optimise { "speed" } else { "none" }),
            ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
            ("unwind_info", if unwinds { "true" } else { "false" }),
            ("enable_probestack", "false"),
        ] {
            shared.set(k, v).map_err(|e| bug(format!("{k}: {e}")))?;
        }
        // UEFI has the calling convention of Windows, which Cranelift does not know.
        let triple = match self.triple.operating_system {
            OperatingSystem::Uefi => {
                Triple { operating_system: OperatingSystem::Windows, ..self.triple.clone() }
            }
            _ => self.triple.clone(),
        };
        let mut b = isa::lookup(triple).map_err(|e| bug(e.to_string()))?;
        for f in &level.features {
            b.enable(f).map_err(|e| bug(format!("{f}: {e}")))?;
        }
        b.finish(settings::Flags::new(shared)).map_err(|e| bug(e.to_string()))
    }
}

/// The levels of aarch64 that an object has by default: from Armv8-A on where it can ask which CPU runs it. All
/// Macs have what the M1 has. (Of phones and tablets the A12, which current systems of Apple support, has no
/// dot products.)
fn default_arm(triple: &Triple) -> &'static str {
    match triple.operating_system {
        OperatingSystem::Darwin(_) | OperatingSystem::MacOSX(_) => "apple-m1",
        _ if has_detection(triple) => "armv8-a+",
        _ => "armv8-a",
    }
}

/// Whether code can ask what the CPU has (`codegen::cpu_level`).
fn has_detection(triple: &Triple) -> bool {
    match triple.architecture {
        Architecture::X86_64 => true,
        // UEFI has COFF, but not the system's functions.
        Architecture::Aarch64(_) => {
            triple.binary_format == BinaryFormat::Elf || triple.operating_system == OperatingSystem::Windows
        }
        _ => false,
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
    // A level has all that the psABI lists for it, so `needs` and `caps` promise no more than a named level
    // does.
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
fn native(architecture: Architecture) -> Level {
    use std::arch::is_aarch64_feature_detected as detected;
    let found = [
        (detected!("dotprod"), has::DOTPROD),
        (detected!("fp16"), has::FP16),
        (detected!("i8mm"), has::I8MM),
        (detected!("bf16"), has::BF16),
    ];
    let needs = found.into_iter().filter(|x| x.0).fold(has::BASE, |n, x| n | x.1);
    // What the best level of this CPU promises.
    let best = LEVELS.iter().rfind(|l| l.arch == "aarch64" && !l.cpu && l.needs & needs == l.needs);
    Level::new("native", needs, architecture, &[], best.map_or(Caps::NEON, |l| l.caps))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn native(architecture: Architecture) -> Level {
    match LEVELS.iter().find(|l| l.arch == std::env::consts::ARCH) {
        Some(l) => Level::new("native", l.needs, architecture, l.features, l.caps),
        None => Level::new("native", 0, architecture, &[], Caps::CRANELIFT),
    }
}
