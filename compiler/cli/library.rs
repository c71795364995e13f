//! Flags as the library takes them.

use super::{BenchArgs, CompileArgs, DebugArg, MathArg, ModelArgs, OptimizeArg, VerifyArgs, WeightsArgs};
use crate::diag::Clock;
use crate::options::{DebugText, Math, OptLevel, Optimize, Options, Weights};

impl From<MathArg> for Math {
    fn from(a: MathArg) -> Math {
        match a {
            MathArg::Strict => Math::Strict,
            MathArg::Default => Math::Default,
            MathArg::Fast => Math::Fast,
        }
    }
}

impl From<OptimizeArg> for Optimize {
    fn from(a: OptimizeArg) -> Optimize {
        match a {
            OptimizeArg::Speed => Optimize::Speed,
            OptimizeArg::Size => Optimize::Size,
        }
    }
}

impl From<DebugArg> for DebugText {
    fn from(a: DebugArg) -> DebugText {
        match a {
            DebugArg::Nodes => DebugText::Nodes,
            DebugArg::Nest => DebugText::Nest,
        }
    }
}

impl WeightsArgs {
    /// As the library takes them.
    pub fn options(&self) -> Options {
        self.common.apply(Options {
            output: Some(self.output.clone()),
            target: self.target.clone(),
            cpu: self.cpu.clone(),
            opt: opt_level(self.opt),
            weights: Weights::File(Some(self.output.clone())),
            weights_from: self.weights_from.clone(),
            taps: self.taps.clone(),
            verify: cfg!(debug_assertions),
            ..Options::default()
        })
    }
}

/// The level that `-O` stands for.
fn opt_level(n: u8) -> OptLevel {
    match n {
        0 => OptLevel::O0,
        1 => OptLevel::O1,
        _ => OptLevel::O2,
    }
}

impl VerifyArgs {
    /// `-O`.
    pub fn opt(&self) -> OptLevel {
        opt_level(self.opt)
    }
}

/// `--threads`, counted.
pub fn threads(n: usize) -> usize {
    if n == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { n }
}

impl BenchArgs {
    /// Threads, counted.
    pub fn threads(&self) -> usize {
        threads(self.threads)
    }
    /// `-O`.
    pub fn opt(&self) -> OptLevel {
        opt_level(self.opt)
    }
}

impl ModelArgs {
    /// Options with these arguments put in.
    pub fn apply(&self, options: Options) -> Options {
        let (dims, math, aliases) = (self.dims.clone(), self.math.into(), self.aliases.clone());
        Options {
            dims,
            aliases,
            heap: self.heap,
            math,
            optimize: self.optimize.into(),
            strict: self.strict,
            dim_expressions: self.dim_expressions,
            ignore_output_types: self.ignore_output_types,
            customs: self.customs.clone(),
            ..options
        }
    }
}

impl CompileArgs {
    /// As the library takes them.
    pub fn options(&self) -> Options {
        let stdout = self.output.as_deref().is_some_and(|o| o.as_os_str() == "-");
        self.common.apply(Options {
            name: self.name.clone(),
            output: self.output.clone().filter(|_| !stdout),
            target: self.target.clone(),
            cpu: self.cpu.clone(),
            opt: opt_level(self.opt),
            weights: self.weights.clone().unwrap_or_default(),
            weights_from: self.weights_from.clone(),
            renames: self.renames.iter().cloned().collect(),
            hidden: self.hidden,
            trace: self.trace,
            debug: self.debug.map(DebugText::from),
            taps: self.taps.clone(),
            verify: cfg!(debug_assertions),
            stop_after: self.stop_after.clone(),
            clock: Clock::new(self.time_passes),
            ..Options::default()
        })
    }
}
