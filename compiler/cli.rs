//! The command line: flags and what they mean. Nothing here compiles anything.

// Doc comments here are the help text; groups of flags have none.
#![allow(missing_docs)]

pub mod library;
pub mod values;

use crate::options::{Declaration, Weights};
use crate::sym::text::DimOption;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use values::{ArrayFile, Reference};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "onnxc", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 110)]
#[command(args_conflicts_with_subcommands = true)]
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
  onnxc run model.onnx --input x=x.npy --output y=y.npz
  onnxc verify model.onnx --data test_data_set_0       compare with saved outputs
  onnxc verify model.onnx --per-node                   find the first tensor that differs from ONNX Runtime's
  onnxc report model.onnx -o report.html               a page with graph, times, roofline and memory plan
  onnxc bench model.onnx --threads 4 --per-node        time it, kernel by kernel

Exit codes: 0 ok, 1 model invalid or not supported, 2 usage, 3 input/output, 101 internal error.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check a model and list everything that is wrong or not supported.
    Check(CheckArgs),
    /// Tell what is in a model: inputs, dimensions, operators, weights, memory, arithmetic.
    Inspect(InspectArgs),
    /// Run a model once, in this process.
    Run(RunArgs),
    /// Compare a model's outputs with saved ones.
    Verify(VerifyArgs),
    /// Time a model in this process, and say how far from the machine's limits it is.
    Bench(BenchArgs),
    /// Write a page about a model: graph with fused kernels, times, roofline, memory plan, constants.
    Report(ReportArgs),
    /// Write a weights file with new values for an object that was compiled with --weights file.
    Weights(WeightsArgs),
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages.
    Man {
        /// The folder, e.g. /usr/local/share/man/man1.
        dir: PathBuf,
    },
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

/// `--optimize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OptimizeArg {
    #[default]
    Speed,
    Size,
}

/// `-g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DebugArg {
    Nodes,
    Nest,
}

/// Options that every command shares.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Fix a symbolic dimension (N=4) or bound it ('N<=32', '1<=N<=32'); repeat for several.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = values::dim)]
    pub dims: Vec<(String, DimOption)>,
    /// Workspace for values whose size depends on data and has no bound, and as much again for new strings,
    /// in bytes or as 64K, 16M, 1G; a caller may give another size. Default: 16M.
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub heap: Option<i64>,
    /// Allowed transformations of float arithmetic. strict: none, sums in one order on every CPU level.
    /// default: sums in several parts, Winograd convolutions, Strassen products. fast: in addition, constant
    /// weights and what they multiply are rounded to bf16 on CPUs with AVX512_BF16; an object with several
    /// CPU levels then holds both f32 and bf16 weights, and --cpu x86-64-v4-bf16 alone halves them.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub math: MathArg,
    /// What to optimize. speed: the time of a call. size: the bytes of the object: weights are stored once
    /// and in their own size (no Winograd convolutions), there is one version of each algorithm, and without
    /// --cpu there is code for one CPU level, x86-64-v3 on x86-64.
    #[arg(long, value_enum, default_value_t, value_name = "GOAL")]
    pub optimize: OptimizeArg,
    /// Read the text of a dimension such as "2*N" as an expression over other dimensions. By default it is an
    /// opaque name, as ONNX defines it.
    #[arg(long)]
    pub dim_expressions: bool,
    /// Ignore the types that the model declares for its outputs: what the operators compute counts. By
    /// default a declared type that contradicts them is an error.
    #[arg(long)]
    pub ignore_output_types: bool,
    /// State in place: the output may share the memory of the input, and a step stores only what it appends.
    /// A star is the same text in both names: 'present.*=past.*'. The growing dimension becomes a capacity
    /// that the caller chooses, named PAST_capacity after the size PAST in use (--dim fixes it). Repeat for
    /// several. `run`, `verify` and `bench` take an input of the size in use, and allocate room for one step,
    /// or for --size PAST_capacity.
    #[arg(long = "alias", value_name = "OUTPUT=INPUT", value_parser = values::pair)]
    pub aliases: Vec<(String, String)>,
    /// Compute an operator with a function of your own: int32_t SYMBOL(const onnxc_custom *call), declared in
    /// the header. The model declares the shapes of its results; with like=N, those that it does not declare
    /// have the shape of input N. Repeat for several.
    #[arg(long = "custom", value_name = "DOMAIN:OP=SYMBOL", value_parser = values::custom)]
    pub customs: Vec<Declaration>,
    /// Treat warnings as errors.
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
    /// Prefix of all identifiers; default: the stem of the output file, else of the model.
    #[arg(long, value_name = "IDENT", value_parser = values::identifier)]
    pub name: Option<String>,
    /// Target triple; default: this machine.
    #[arg(long, value_name = "TRIPLE", value_parser = values::triple)]
    pub target: Option<String>,
    /// CPU levels, separated by commas: x86-64, x86-64-v2, x86-64-v3, x86-64-v3-vnni, x86-64-v4,
    /// x86-64-v4-vnni, x86-64-v4-bf16 (several: the object picks the last one of these that the machine has
    /// when it is called; x86-64-v3+: this one and those behind it that the model has a use for); for aarch64
    /// armv8-a, armv8.2-a+dotprod+fp16, armv8.6-a+i8mm+bf16 or the name of a CPU such as cortex-a55; rv64gc,
    /// rv64gcv; or native. Default for x86-64: x86-64-v2+, which is v2, v3, v4, for quantized models v3-vnni
    /// and v4-vnni, and with --math fast v4-bf16; for aarch64 armv8-a+, on macOS apple-m1.
    #[arg(long, value_name = "LEVELS", value_parser = values::cpu)]
    pub cpu: Option<String>,
    /// What to write, separated by commas. Default: obj,header.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = values::kinds())]
    pub emit: Vec<String>,
    /// Weights inside the object (embed), in a file beside it (file), or in a file of this name (file=PATH).
    /// Default: embed.
    #[arg(long, value_name = "WHERE", value_parser = values::weights)]
    pub weights: Option<Weights>,
    /// Share the weights file of another model: the file that --weights file writes contains what FILE
    /// contains, at the same offsets, and the constants of this model that FILE lacks. It serves the objects
    /// of both models.
    #[arg(long, value_name = "FILE")]
    pub weights_from: Option<PathBuf>,
    /// Give an ONNX name an identifier of your own; repeat for several.
    #[arg(long = "rename", value_name = "ONNX_NAME=IDENT", value_parser = values::pair)]
    pub renames: Vec<(String, String)>,
    /// Hide the object's symbols: a shared library or program that it is linked into does not export them.
    #[arg(long)]
    pub hidden: bool,
    /// Debug information: debuggers and profilers show lines of a text of the model, which is written beside
    /// the object. nodes: the graph; a kernel has the line of its node. nest: the loop nests; every
    /// instruction has the line of its statement. -g alone is -g=nodes.
    #[arg(short = 'g', long = "debug-info", value_enum, value_name = "TEXT", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "nodes")]
    pub debug: Option<DebugArg>,
    /// Report every node to the callback `on_node` of `infer_exec`, before and after it runs.
    #[arg(long)]
    pub trace: bool,
    /// Make an inner tensor an output, by its name in the model; * and ? match any text, `all` is every
    /// tensor. Repeat for several. Nodes do not fuse across a tap.
    #[arg(long = "tap", value_name = "NAME")]
    pub taps: Vec<String>,
    /// Write a Makefile rule with all files that were read.
    #[arg(
        long = "depfile",
        value_name = "FILE",
        help = "Write a Makefile rule with all files that were read (also as -MD FILE)"
    )]
    pub depfile: Option<PathBuf>,
    /// Keep compilations in this folder and reuse them when model and options are the same. Default: the
    /// folder in ONNXC_CACHE, if set. ONNXC_CACHE_SIZE limits its size (4 GiB).
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
    /// 0: none, 1: fusion, 2: tiles, vectors and layouts.
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=3))]
    pub opt: u8,
    /// Stop after this pass and print the IR (with -o -) or write it.
    #[arg(long, value_name = "PASS", value_parser = values::passes())]
    pub stop_after: Option<String>,
    /// Print the time of each pass, of code generation and of writing.
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

/// `onnxc inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model; - reads standard input.
    pub model: PathBuf,
    /// CPU levels of the object, as for compiling.
    #[arg(long, value_name = "LEVELS", value_parser = values::cpu)]
    pub cpu: Option<String>,
    /// Size of a symbolic dimension for memory and arithmetic; default: the least that the model allows.
    #[arg(long = "size", value_name = "NAME=SIZE", value_parser = values::size)]
    pub sizes: Vec<(String, i64)>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The model; - reads standard input.
    pub model: PathBuf,
    /// An input from a .npy, .npz or .pb file or a picture (resized; floats are 0 to 1), or FILE.npz alone:
    /// all inputs that it names.
    #[arg(long = "input", value_name = "NAME=FILE", value_parser = values::array_file)]
    pub inputs: Vec<ArrayFile>,
    /// Make inputs without a file from this seed: numbers, indices within the tensor that they index,
    /// strings, sequences of four members. Symbolic dimensions are those of --size, else the least that the
    /// model allows.
    #[arg(long, value_name = "SEED")]
    pub random: Option<u64>,
    /// Size of a dimension of random inputs that stays symbolic in the compiled code (--dim fixes it
    /// instead).
    #[arg(long = "size", value_name = "NAME=SIZE", value_parser = values::size)]
    pub sizes: Vec<(String, i64)>,
    /// Write an output to a .npy, .npz or .pb file, or all outputs to FILE.npz. Several may go to one .npz
    /// file.
    #[arg(long = "output", value_name = "NAME=FILE", value_parser = values::array_file)]
    pub outputs: Vec<ArrayFile>,
    /// The shared library with the functions of --custom.
    #[arg(long, value_name = "FILE", requires = "customs")]
    pub custom_library: Option<PathBuf>,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The model.
    pub model: PathBuf,
    /// A folder with input_0.pb .. and output_0.pb .. (ONNX test data), a folder of such folders, or an .npz
    /// with arrays named like the inputs and outputs.
    #[arg(long, value_name = "PATH", required_unless_present = "per_node")]
    pub data: Vec<PathBuf>,
    /// Compare every tensor of the main graph with --reference and mark the first one that differs. Inputs
    /// are those of --data and --input, others are random.
    #[arg(long)]
    pub per_node: bool,
    /// What --per-node compares with: onnxruntime or onnx, which run in Python, or an .npz file with tensors
    /// by their names.
    #[arg(long, value_name = "WHAT", default_value = "onnxruntime", value_parser = values::reference)]
    #[arg(requires = "per_node")]
    pub reference: Reference,
    /// The Python that has the package of --reference.
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "per_node")]
    pub python: PathBuf,
    /// With --per-node: only these tensors; * and ? stand for any text.
    #[arg(long = "tap", value_name = "NAME", requires = "per_node")]
    pub taps: Vec<String>,
    /// With --per-node: an input from a .npy, .npz or .pb file, as for `run`.
    #[arg(long = "input", value_name = "NAME=FILE", value_parser = values::array_file)]
    #[arg(requires = "per_node", conflicts_with = "data")]
    pub inputs: Vec<ArrayFile>,
    /// With --per-node: seed of random inputs; default: 1.
    #[arg(long, value_name = "SEED", requires = "per_node", conflicts_with = "data")]
    pub random: Option<u64>,
    /// With --per-node: size of a dimension of random inputs.
    #[arg(long = "size", value_name = "NAME=SIZE", value_parser = values::size, requires = "per_node")]
    #[arg(conflicts_with = "data")]
    pub sizes: Vec<(String, i64)>,
    /// CPU level of the code, as for compiling; native is everything that this machine has.
    #[arg(long, value_name = "LEVEL", default_value = "native", value_parser = values::cpu)]
    pub cpu: String,
    /// 0: none, 1: fusion, 2: tiles, vectors and layouts.
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=3))]
    pub opt: u8,
    /// Relative tolerance.
    #[arg(long, default_value_t = 1e-3, value_parser = values::tolerance)]
    pub rtol: f64,
    /// Absolute tolerance.
    #[arg(long, default_value_t = 1e-5, value_parser = values::tolerance)]
    pub atol: f64,
    /// The shared library with the functions of --custom.
    #[arg(long, value_name = "FILE", requires = "customs")]
    pub custom_library: Option<PathBuf>,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The model; - reads standard input.
    #[arg(required_unless_present = "machine")]
    pub model: Option<PathBuf>,
    /// Size of a dimension that stays symbolic in the compiled code (--dim fixes it instead); default: 1 or
    /// the least that is allowed.
    #[arg(long = "size", value_name = "NAME=SIZE", value_parser = values::size)]
    pub sizes: Vec<(String, i64)>,
    /// CPU level of the code, as for compiling; native is everything that this machine has.
    #[arg(long, value_name = "LEVEL", default_value = "native", value_parser = values::cpu)]
    pub cpu: String,
    /// 0: none, 1: fusion, 2: tiles, vectors and layouts.
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=3))]
    pub opt: u8,
    /// Threads, the calling one included; 0: one per CPU.
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: usize,
    /// How long to measure.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = values::seconds)]
    pub seconds: f64,
    /// Also time every kernel and say what bounds it.
    #[arg(long)]
    pub per_node: bool,
    /// An input from a .npy, .npz or .pb file, as for `run`.
    #[arg(long = "input", value_name = "NAME=FILE", value_parser = values::array_file)]
    pub inputs: Vec<ArrayFile>,
    /// Inputs without a file are made from this seed: numbers, strings, sequences of four members.
    #[arg(long, value_name = "SEED", default_value = "1")]
    pub seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Only measure the machine: peak of multiply-adds, bandwidth of memory.
    #[arg(long, conflicts_with_all = ["model", "per_node"])]
    pub machine: bool,
    /// The shared library with the functions of --custom.
    #[arg(long, value_name = "FILE", requires = "customs")]
    pub custom_library: Option<PathBuf>,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The model; - reads standard input.
    pub model: PathBuf,
    /// The HTML file; default: MODEL.report.html in the current folder. - prints it.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Size of a symbolic dimension; default: 1 or the least that is allowed.
    #[arg(long = "size", value_name = "NAME=SIZE", value_parser = values::size)]
    pub sizes: Vec<(String, i64)>,
    /// CPU level of the code, as for compiling; native is everything that this machine has.
    #[arg(long, value_name = "LEVEL", default_value = "native", value_parser = values::cpu)]
    pub cpu: String,
    /// Do not run the model: no times and no roofline.
    #[arg(long)]
    pub no_run: bool,
    /// Threads, the calling one included; 0: one per CPU.
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "no_run")]
    pub threads: usize,
    /// How long to measure.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::seconds)]
    #[arg(conflicts_with = "no_run")]
    pub seconds: f64,
    /// An input from a .npy, .npz or .pb file, as for `run`.
    #[arg(long = "input", value_name = "NAME=FILE", value_parser = values::array_file)]
    #[arg(conflicts_with = "no_run")]
    pub inputs: Vec<ArrayFile>,
    /// Inputs without a file are made from this seed.
    #[arg(long, value_name = "SEED", default_value = "1", conflicts_with = "no_run")]
    pub seed: u64,
    /// The shared library with the functions of --custom.
    #[arg(long, value_name = "FILE", requires = "customs", conflicts_with = "no_run")]
    pub custom_library: Option<PathBuf>,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// `onnxc weights`.
#[derive(Debug, Args)]
pub struct WeightsArgs {
    /// The model with the new values; - reads standard input.
    pub model: PathBuf,
    /// The weights file to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// A weights file of the object: the new file must fit the same object. It is refused where a value that
    /// changed is part of the object's code.
    #[arg(long, value_name = "FILE")]
    pub fits: PathBuf,
    /// The new weights file of the model whose file the object shares (--weights-from of its compilation).
    #[arg(long, value_name = "FILE")]
    pub weights_from: Option<PathBuf>,
    /// Target triple of the object.
    #[arg(long, value_name = "TRIPLE", value_parser = values::triple)]
    pub target: Option<String>,
    /// CPU levels of the object.
    #[arg(long, value_name = "LEVELS", value_parser = values::cpu)]
    pub cpu: Option<String>,
    /// Optimization of the object.
    #[arg(short = 'O', value_name = "LEVEL", default_value = "2")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=3))]
    pub opt: u8,
    /// Inner tensors that are outputs of the object.
    #[arg(long = "tap", value_name = "NAME")]
    pub taps: Vec<String>,
    #[command(flatten)]
    pub common: ModelArgs,
}

/// Arguments with compiler-style spellings put into the form that clap knows: `-MD file`.
pub fn normalize(args: impl Iterator<Item = std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    args.map(|a| if a == "-MD" { "--depfile".into() } else { a }).collect()
}
