//! Targets: triple and CPU level -> what schedules and code generation must know.

use crate::diag::{Error, Result, codes};
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use target_lexicon::{Architecture, BinaryFormat, OperatingSystem, Triple};

/// CPU levels: name, architecture, Cranelift settings.
pub const LEVELS: &[(&str, &str, &[&str])] =
    &[("x86-64", "x86_64", &[]), ("x86-64-v2", "x86_64", V2), ("x86-64-v3", "x86_64", V3), ("generic", "aarch64", &[]), ("rv64gc", "riscv64", RV64GC), ("rv64gcv", "riscv64", RV64GCV)];
const V2: &[&str] = &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"];
const V3: &[&str] = &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt", "has_avx", "has_avx2", "has_bmi1", "has_bmi2", "has_fma", "has_lzcnt"];
const RV64GC: &[&str] = &["has_m", "has_a", "has_f", "has_d", "has_zicsr", "has_zifencei", "has_zca", "has_zcd"];
const RV64GCV: &[&str] = &["has_m", "has_a", "has_f", "has_d", "has_zicsr", "has_zifencei", "has_zca", "has_zcd", "has_v", "has_zvl128b"];

/// What generated code is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Architecture, system, object format.
    pub triple: Triple,
    /// Level or `native`, as the user named it.
    pub cpu: String,
    features: Vec<&'static str>,
}

/// Facts for schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// f32 lanes of a vector; 1 where there are no vectors.
    pub lanes: u32,
    /// Accumulator tile of contractions: rows, vectors of columns.
    pub tile: (u32, u32),
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
            "x86_64" => "x86-64-v3",
            "aarch64" => "generic",
            _ => "rv64gcv",
        };
        let cpu = cpu.unwrap_or(default);
        let features = if cpu == "native" {
            if Triple::host().architecture != triple.architecture {
                return bad("--cpu native needs the target to be this machine".into(), "a CPU level".into());
            }
            native()
        } else {
            match LEVELS.iter().find(|(n, a, _)| *n == cpu && *a == arch) {
                Some((_, _, f)) => f.to_vec(),
                None => {
                    let known: Vec<&str> = LEVELS.iter().filter(|l| l.1 == arch).map(|l| l.0).collect();
                    return bad(format!("the CPU level \"{cpu}\" is not known for {arch}"), format!("native or one of {}", known.join(", ")));
                }
            }
        };
        Ok(Target { triple, cpu: cpu.to_owned(), features })
    }
    /// This machine, with everything it has.
    pub fn host() -> Result<Target> {
        Target::new(None, Some("native"))
    }
    /// Facts for schedules: the tile fits the vector registers (16 on x86-64, 32 elsewhere).
    pub fn facts(&self) -> Facts {
        match self.triple.architecture {
            Architecture::X86_64 => Facts { lanes: 4, tile: (3, 3) },
            Architecture::Riscv64(_) if !self.features.contains(&"has_v") => Facts { lanes: 1, tile: (1, 1) },
            _ => Facts { lanes: 4, tile: (6, 3) },
        }
    }
    /// Cranelift's view. Tiles are compiled without optimisation: it would undo their order.
    pub fn isa(&self, optimise: bool, pic: bool) -> Result<OwnedTargetIsa> {
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
        for f in &self.features {
            b.enable(f).map_err(|e| bug(format!("{f}: {e}")))?;
        }
        b.finish(settings::Flags::new(shared)).map_err(|e| bug(e.to_string()))
    }
}

#[cfg(target_arch = "x86_64")]
fn native() -> Vec<&'static str> {
    let mut f = vec![];
    macro_rules! probe {
        ($($name:tt => $flag:literal),*) => {$(if std::arch::is_x86_feature_detected!($name) { f.push($flag); })*};
    }
    probe!("sse3" => "has_sse3", "ssse3" => "has_ssse3", "sse4.1" => "has_sse41", "sse4.2" => "has_sse42", "popcnt" => "has_popcnt", "avx" => "has_avx", "avx2" => "has_avx2", "bmi1" => "has_bmi1", "bmi2" => "has_bmi2", "fma" => "has_fma", "lzcnt" => "has_lzcnt");
    f
}

#[cfg(not(target_arch = "x86_64"))]
fn native() -> Vec<&'static str> {
    LEVELS.iter().find(|l| l.1 == std::env::consts::ARCH).map(|l| l.2.to_vec()).unwrap_or_default()
}
