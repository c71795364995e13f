//! The command line: flags and what they mean. Nothing here compiles anything.

// Doc comments here are the help text; groups of flags have none.
#![allow(missing_docs)]

use crate::diag::{Error, Result, codes};
use crate::options::{Math, OptLevel, Options, Weights};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "onnxc", version, about = ABOUT, args_conflicts_with_subcommands = true, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub compile: CompileArgs,
}

const ABOUT: &str = "Ahead-of-time compiler from ONNX models to native object files.

Writes an object file and a C header with a stateless `infer` function:

    onnxc model.onnx -o model.o
    cc main.c model.o

The object needs no runtime library. Weights are inside it, or beside it with --weights file.";

const EXAMPLES: &str = "Examples:
  onnxc model.onnx -o model.o                          object and header for this machine
  onnxc model.onnx -o model.o --dim N=1                fix the dimension N
  onnxc model.onnx -o model.o --dim 'N<=32'            bound it: the workspace gets a fixed size
  onnxc model.onnx -o m.o --target aarch64-apple-darwin
  onnxc model.onnx --emit nest -o -                    print the loop nests
  onnxc run model.onnx --input x=x.npy --output y=y.npy
  onnxc verify model.onnx --data test_data_set_0       compare with saved outputs
  onnxc bench model.onnx --threads 4 --per-node        time it, kernel by kernel

Exit codes: 0 ok, 1 model invalid or not supported, 2 usage, 3 input/output, 101 internal error.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check a model and list everything that is wrong or not supported.
    Check(CheckArgs),
    /// Run a model once, in this process.
    Run(RunArgs),
    /// Compare a model's outputs with saved ones.
    Verify(VerifyArgs),
    /// Time a model in this process, and say how far from the machine's limits it is.
    Bench(BenchArgs),
    /// Explain a diagnostic code, or list all of them.
    Explain {
        /// E.g. E0101.
        code: Option<String>,
    },
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MessageFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// `--math`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MathArg {
    Strict,
    #[default]
    Default,
    Fast,
}

impl From<MathArg> for Math {
    fn from(a: MathArg) -> Math {
        match a {
            MathArg::Strict => Math::Strict,
            MathArg::Default => Math::Default,
            MathArg::Fast => Math::Fast,
        }
    }
}

/// Options that every command shares.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Fix a symbolic dimension (N=4) or bound it ('N<=32', '1<=N<=32'); repeat for several.
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    pub dims: Vec<String>,
    /// Workspace for values whose size follows from data and has no bound, unless a caller gives another size, and as much for new strings, in bytes or as 64K,
    /// 16M, 1G. Default: 16M.
    #[arg(long, value_name = "SIZE")]
    pub heap: Option<String>,
    /// Liberties with floats. strict: none, sums in one order on every CPU level. default: sums in parts, Winograd's
    /// convolutions, Strassen's products of matrices. fast: also weights and what they multiply rounded to bf16, on CPUs with AVX512_BF16; an object holds
    /// what its CPU levels read, with several of them both floats and bf16: --cpu x86-64-v4-bf16 alone halves the weights.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub math: MathArg,
    /// Read the text of a dimension such as "2*N" as an expression over other dimensions. By default it is a name like any
    /// other, as ONNX has it.
    #[arg(long)]
    pub dim_expressions: bool,
    /// Stop at warnings as at errors.
    #[arg(long)]
    pub strict: bool,
    /// How findings are printed on stderr.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub message_format: MessageFormat,
}

/// Compilation.
#[derive(Debug, Args)]
pub struct CompileArgs {
    /// The model: binary ONNX or ONNX text; - reads standard input.
    #[arg(value_name = "MODEL", required = true)]
    pub model: Option<PathBuf>,
    /// Object file; other outputs are written beside it. - prints a single text output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Prefix of all identifiers; default: the file's stem.
    #[arg(long, value_name = "IDENT")]
    pub name: Option<String>,
    /// Target triple; default: this machine.
    #[arg(long, value_name = "TRIPLE")]
    pub target: Option<String>,
    /// CPU levels, separated by commas: x86-64, x86-64-v2, x86-64-v3, x86-64-v3-vnni, x86-64-v4, x86-64-v4-vnni,
    /// x86-64-v4-bf16 (several: the object picks the last one of these that the machine has when it is called; x86-64-v3+:
    /// this one and those behind it that the model has a use for), generic (aarch64), rv64gc, rv64gcv, or native. Default
    /// for x86-64: x86-64-v2+, which is v2, v3, v4, for quantized models v3-vnni and v4-vnni, and with --math fast v4-bf16.
    #[arg(long, value_name = "LEVELS")]
    pub cpu: Option<String>,
    /// What to write, separated by commas: obj, header, rust, graph, nest, clif, asm, plan. Default: obj,header.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    pub emit: Vec<String>,
    /// Weights inside the object (embed), in a file beside it (file), or in a file of this name (file=PATH).
    #[arg(long, value_name = "WHERE", default_value = "embed")]
    pub weights: String,
    /// Give an ONNX name an identifier of your own; repeat for several.
    #[arg(long = "rename", value_name = "ONNX_NAME=IDENT")]
    pub renames: Vec<String>,
    /// Write a Makefile rule with all files that were read.
    #[arg(long = "depfile", value_name = "FILE", help = "Write a Makefile rule with all files that were read (also as -MD FILE)")]
    pub depfile: Option<PathBuf>,
    /// 0: none, 1: fusion, 2: tiles, vectors and layouts.
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub opt: u8,
    /// Stop after this pass and print the IR (with -o -) or write it.
    #[arg(long, value_name = "PASS")]
    pub stop_after: Option<String>,
    /// Print what each pass took.
    #[arg(long)]
    pub time_passes: bool,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The model; - reads standard input.
    pub model: PathBuf,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The model; - reads standard input.
    pub model: PathBuf,
    /// An input from a .npy or .pb file.
    #[arg(long = "input", value_name = "NAME=FILE")]
    pub inputs: Vec<String>,
    /// Inputs without a file are made from this seed: numbers, strings, sequences of four members (symbolic dimensions are 1
    /// where no file says more).
    #[arg(long, value_name = "SEED")]
    pub random: Option<u64>,
    /// Write an output to a .npy file.
    #[arg(long = "output", value_name = "NAME=FILE")]
    pub outputs: Vec<String>,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The model.
    pub model: PathBuf,
    /// A folder with input_0.pb .. and output_0.pb .. (ONNX test data), a folder of such folders, or an .npz with arrays
    /// named like the inputs and outputs.
    #[arg(long, value_name = "PATH", required = true)]
    pub data: Vec<PathBuf>,
    /// Relative tolerance.
    #[arg(long, default_value_t = 1e-3)]
    pub rtol: f64,
    /// Absolute tolerance.
    #[arg(long, default_value_t = 1e-5)]
    pub atol: f64,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The model; - reads standard input.
    #[arg(required_unless_present = "machine")]
    pub model: Option<PathBuf>,
    /// Size of a dimension that stays symbolic in the compiled code (--dim fixes it instead); default: 1 or the least
    /// that is allowed.
    #[arg(long = "size", value_name = "NAME=SIZE")]
    pub size: Vec<String>,
    /// CPU level of the code, as for compiling; native is everything that this machine has.
    #[arg(long, value_name = "LEVEL", default_value = "native")]
    pub cpu: String,
    /// 0: none, 1: fusion, 2: tiles, vectors and layouts.
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub opt: u8,
    /// Threads, the calling one included; 0: one per CPU.
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: usize,
    /// How long to measure.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Also time every kernel and say what bounds it.
    #[arg(long)]
    pub per_node: bool,
    /// An input from a .npy or .pb file, as for `run`.
    #[arg(long = "input", value_name = "NAME=FILE")]
    pub inputs: Vec<String>,
    /// Inputs without a file are made from this seed: numbers, strings, sequences of four members.
    #[arg(long, value_name = "SEED", default_value = "1")]
    pub seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Only measure the machine: peak of multiply-adds, bandwidth of memory.
    #[arg(long, conflicts_with_all = ["model", "per_node"])]
    pub machine: bool,
    #[command(flatten)]
    pub common: ModelArgs,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    text.parse().ok().filter(|s| *s > 0.0 && *s <= 86_400.0).ok_or_else(|| "a number of seconds above 0".into())
}

/// The level that `-O` stands for.
fn opt_level(n: u8) -> OptLevel {
    match n {
        0 => OptLevel::O0,
        1 => OptLevel::O1,
        _ => OptLevel::O2,
    }
}

impl BenchArgs {
    /// Threads, counted.
    pub fn threads(&self) -> usize {
        if self.threads == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { self.threads }
    }
    /// `-O`.
    pub fn opt(&self) -> OptLevel {
        opt_level(self.opt)
    }
    /// The parsed `--size` arguments.
    pub fn sizes(&self) -> Result<Vec<(String, i64)>> {
        let parse = |s: &String| {
            let (name, value) = pair(s, "--size")?;
            match value.parse() {
                Ok(n) if n >= 0 => Ok((name, n)),
                _ => Error::new(codes::OPTION, format!("--size: \"{value}\" is not a size")).fail(),
            }
        };
        self.size.iter().map(parse).collect()
    }
}

impl ModelArgs {
    /// The parsed `--dim` arguments.
    pub fn dims(&self) -> Result<Vec<(String, crate::sym::text::DimOption)>> {
        self.dims.iter().map(|d| crate::sym::text::parse_dim_option(d).map_err(|m| Error::new(codes::DIM_OPTION, format!("--dim: {m}")).into())).collect()
    }
}

impl ModelArgs {
    /// Options with these arguments put in.
    pub fn apply(&self, options: Options) -> Result<Options> {
        Ok(Options { dims: self.dims()?, heap: self.heap()?, math: self.math.into(), strict: self.strict, dim_expressions: self.dim_expressions, ..options })
    }
    /// The parsed `--heap` argument.
    pub fn heap(&self) -> Result<Option<i64>> {
        let Some(text) = &self.heap else { return Ok(None) };
        let (digits, shift) = match text.trim_end_matches(['K', 'M', 'G']) {
            d if d.len() == text.len() => (d, 0),
            d if d.len() + 1 == text.len() => (
                d,
                if text.ends_with('K') {
                    10
                } else if text.ends_with('M') {
                    20
                } else {
                    30
                },
            ),
            _ => ("", 0),
        };
        match digits.parse::<i64>().ok().and_then(|n| n.checked_mul(1 << shift)).filter(|n| (0..=1 << 40).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Error::new(codes::OPTION, "--heap").found_expected(text.clone(), "bytes, or a number with K, M or G, up to 1024G").fail(),
        }
    }
}

/// Splits `name=value`.
pub fn pair(text: &str, flag: &str) -> Result<(String, String)> {
    match text.rsplit_once('=') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() => Ok((a.to_owned(), b.to_owned())),
        _ => Error::new(codes::OPTION, format!("{flag}: \"{text}\" is not of the form name=value")).fail(),
    }
}

impl CompileArgs {
    /// As the library takes them.
    pub fn options(&self) -> Result<Options> {
        let weights = match self.weights.split_once('=') {
            None if self.weights == "embed" => Weights::Embed,
            None if self.weights == "file" => Weights::File(None),
            Some(("file", p)) if !p.is_empty() => Weights::File(Some(p.into())),
            _ => return Error::new(codes::OPTION, "--weights").found_expected(self.weights.clone(), "embed, file or file=PATH").fail(),
        };
        Ok(Options {
            name: self.name.clone(),
            target: self.target.clone(),
            cpu: self.cpu.clone(),
            dims: self.common.dims()?,
            heap: self.common.heap()?,
            math: self.common.math.into(),
            opt: opt_level(self.opt),
            weights,
            renames: self.renames.iter().map(|r| pair(r, "--rename")).collect::<Result<_>>()?,
            verify: cfg!(debug_assertions),
            stop_after: self.stop_after.clone(),
            strict: self.common.strict,
            dim_expressions: self.common.dim_expressions,
            time: self.time_passes,
        })
    }
}

/// Arguments with compiler-style spellings put into the form that clap knows: `-MD file`.
pub fn normalize(args: impl Iterator<Item = std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    args.map(|a| if a == "-MD" { "--depfile".into() } else { a }).collect()
}
