//! Targets: the properties of a triple and CPU level that schedules and code generation depend on.

mod caps;
mod levels;
mod native;

use crate::diag::{Error, Result, codes};
pub use caps::{Adjacent, Caps, Dot, Shuffles, Tiles};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
pub use levels::{Known, LEVELS, has};
use native::native;
use target_lexicon::{
    Aarch64Architecture, Architecture, BinaryFormat, Environment, OperatingSystem, Riscv64Architecture,
    Triple,
};

/// The target of generated code: one object for one triple, with code for one or several CPU levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Architecture, system, object format.
    pub triple: Triple,
    /// At least one, in the order of [`LEVELS`]. x86-64 and aarch64 may have several. A level is selected
    /// when the code is called; the first one is for CPUs that satisfy no other.
    pub levels: Vec<Level>,
}

/// A CPU level: a set of instructions and the facts that schedules use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The name that the user gave; `native` for the features of this machine.
    pub name: String,
    /// The features that a CPU must have, bits of [`has`]; for `native`, all features of this machine.
    pub needs: u32,
    /// Facts for schedules.
    pub facts: Facts,
    /// Not named by the user: omitted if the model does not benefit from it.
    optional: bool,
    features: Vec<&'static str>,
}

/// Facts for schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// f32 lanes of a vector; 1 if there are no vectors.
    pub lanes: u32,
    /// Vector registers.
    pub registers: u32,
    /// Capabilities of its vectors.
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
            // Without fused multiply-adds, two of the sixteen registers hold products before they are added.
            Architecture::X86_64 if caps.tiles == Tiles::None => (4, 14),
            Architecture::X86_64 => (caps.bits / 32, if caps.bits == 512 { 32 } else { 16 }),
            _ if caps.tiles == Tiles::Rvv => (caps.bits / 32, 14),
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
    /// The level without compressed instructions; `None` if it has none.
    pub fn uncompressed(&self) -> Option<Level> {
        let compressed = |f: &&'static str| f.starts_with("has_zc");
        self.features.iter().any(compressed).then(|| {
            let features = self.features.iter().copied().filter(|f| !compressed(f)).collect();
            Level { features, ..self.clone() }
        })
    }
    /// True if a machine of level `native` can run code of this level.
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
        let name = if arm {
            of_arm()
        } else if let Some(extensions) = self.name.strip_prefix("rv64") {
            extensions
        } else {
            self.name.strip_prefix("x86-64-").unwrap_or("v1")
        };
        name.replace(['-', '.'], "_")
    }
}

impl Target {
    /// A supported triple. Bare-metal triples have ELF objects, UEFI triples COFF objects.
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
    /// The target of a triple (`None`: this machine) and a CPU level (`None`: the triple's default).
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
                return e
                    .found_expected(
                        "no --cpu",
                        "--cpu rv64gc if the CPU has the extensions F and D: \
                    the object then has the ABI lp64, as the triple says",
                    )
                    .fail();
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
        // Indices of the levels of the architecture.
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
            let of = if arch != "x86_64" { triple.to_string() } else { arch.to_owned() };
            return bad(
                format!("an object for {of} has code for one CPU level, not for \"{cpu}\""),
                "one level: code for several is for x86_64, for aarch64 with ELF or Windows, and for riscv64 \
                 with Linux"
                    .into(),
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
        let mut levels: Vec<Level> = known.into_iter().map(level).collect();
        let eights = levels.iter().any(|l| l.facts.caps.eights);
        for l in &mut levels {
            l.facts.caps.eights |= eights && l.facts.caps.dot.keeps_signs();
        }
        Ok(Target { triple, levels })
    }
    /// This machine with all its features.
    pub fn host() -> Result<Target> {
        Target::new(None, Some("native"))
    }
    /// The level for machines that satisfy no other level of this target.
    pub fn lowest(&self) -> &Level {
        // `new` makes at least one level.
        &self.levels[0]
    }
    /// True if calls return an error status on a CPU that lacks the lowest level. Only x86-64 can detect
    /// features without the operating system; on other architectures they may be unknown.
    pub fn refuses(&self) -> bool {
        // macOS enables the AVX-512 registers of a process only on first use, so a CPU that has AVX-512 would
        // be rejected.
        let unknown = self.triple.binary_format == BinaryFormat::Macho && self.lowest().needs & has::V4 != 0;
        matches!(self.triple.architecture, Architecture::X86_64)
            && self.lowest().needs != has::BASE
            && !unknown
    }
    /// True if calls detect the CPU's features, to select a level or to reject the CPU.
    pub fn asks(&self) -> bool {
        self.levels.len() > 1 || self.refuses()
    }
    /// The level that every CPU of the architecture has, for code that runs before detection.
    pub fn base(&self) -> Level {
        Level { features: vec![], ..self.lowest().clone() }
    }
    /// Drops levels that a model does not benefit from, except those that the user named.
    pub fn keep(&mut self, useful: impl Fn(&Facts) -> bool) {
        self.levels.retain(|l| !l.optional || useful(&l.facts));
    }
    /// Keeps one of several levels. For x86-64 this is x86-64-v3, the lowest one whose code comes from the
    /// tile backend and is half the size of Cranelift's vector code. Otherwise it is the lowest.
    pub fn keep_one(&mut self) {
        let one = self.levels.iter().position(|l| l.name == "x86-64-v3").unwrap_or(0);
        self.levels = vec![self.levels.swap_remove(one)];
    }
    /// Names of the levels, separated by commas.
    pub fn cpu(&self) -> String {
        self.levels.iter().map(|l| l.name.as_str()).collect::<Vec<_>>().join(",")
    }
    /// True if floats are passed in integer registers although the code may use float registers: the lp64 ABI
    /// of riscv64.
    pub fn soft_float(&self) -> bool {
        self.triple.architecture == Architecture::Riscv64(Riscv64Architecture::Riscv64imac)
    }
    /// Cranelift's ISA for a level. Tiles are compiled without optimisation, which would undo their order.
    pub fn isa(&self, level: &Level, optimise: bool, pic: bool) -> Result<OwnedTargetIsa> {
        let bug = |e: String| crate::diag::Failure::bug("target", e);
        // Objects have unwind information, code in memory has none.
        let unwinds = pic;
        // Windows images on aarch64 may be loaded at any address: addresses are made of pages and offsets, as
        // within one object.
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
        // UEFI has the calling convention of Windows, but Cranelift does not know UEFI.
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

/// The default levels of aarch64: all from Armv8-A upwards if the code can detect the CPU. All Macs have at
/// least the features of the M1. (Phones and tablets do not: the A12, which Apple's current systems support,
/// has no dot products.)
fn default_arm(triple: &Triple) -> &'static str {
    match triple.operating_system {
        OperatingSystem::Darwin(_) | OperatingSystem::MacOSX(_) => "apple-m1",
        _ if has_detection(triple) => "armv8-a+",
        _ => "armv8-a",
    }
}

/// True if code can detect the CPU's features (`codegen::cpu_level`).
fn has_detection(triple: &Triple) -> bool {
    match triple.architecture {
        Architecture::X86_64 => true,
        // UEFI uses COFF but lacks the system functions of Windows.
        Architecture::Aarch64(_) => {
            triple.binary_format == BinaryFormat::Elf || triple.operating_system == OperatingSystem::Windows
        }
        Architecture::Riscv64(_) => matches!(triple.operating_system, OperatingSystem::Linux),
        _ => false,
    }
}
