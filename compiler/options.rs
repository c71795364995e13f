//! What a user can ask for, whichever way they ask: command line, build script, tests.

use crate::diag::Clock;
pub use crate::nest::{Math, Optimize};
pub use crate::ops::custom::Declaration;
use crate::sym::text::DimOption;
use crate::target::Target;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How much the nest passes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum OptLevel {
    /// Only what is needed for correct code.
    O0,
    /// Fusion.
    O1,
    /// Tiles, vectors and layouts.
    #[default]
    O2,
}

/// Where weights go.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Weights {
    /// Into the object.
    #[default]
    Embed,
    /// Into a file of their own; `None` is `<output>.weights`.
    File(Option<PathBuf>),
}

/// The text whose lines debug information gives to code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugText {
    /// The graph: a kernel has the line of its node.
    Nodes,
    /// The nests: each statement has its own.
    Nest,
}

impl DebugText {
    /// The output that is that text, by its name in `emit::KINDS`.
    pub fn kind(self) -> &'static str {
        match self {
            DebugText::Nodes => "graph",
            DebugText::Nest => "nest",
        }
    }
}

/// Options of a compilation.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `<m>`: prefix of all identifiers; `None` is the stem of `output`, else of the model.
    pub name: Option<String>,
    /// The object file, where there will be one.
    pub output: Option<PathBuf>,
    /// Target triple; `None` is this machine.
    pub target: Option<String>,
    /// CPU levels, separated by commas; `None` is the default of the architecture.
    pub cpu: Option<String>,
    /// `--dim` in order.
    pub dims: Vec<(String, DimOption)>,
    /// Bytes of workspace for values whose size run time defines and nothing bounds; `None` is the default.
    pub heap: Option<i64>,
    /// What may be done to floats.
    pub math: Math,
    /// What code is made for.
    pub optimize: Optimize,
    /// `--opt`.
    pub opt: OptLevel,
    /// Weights in the object or beside it.
    pub weights: Weights,
    /// A weights file of another model, whose constants are shared.
    pub weights_from: Option<PathBuf>,
    /// ONNX name -> identifier.
    pub renames: BTreeMap<String, String>,
    /// Verifies the IR after each pass (always on in debug builds).
    pub verify: bool,
    /// Stops after the pass of this name.
    pub stop_after: Option<String>,
    /// Exported symbols are hidden: no symbols of the shared library that the object is linked into.
    pub hidden: bool,
    /// Calls report each node to `on_node` of their `exec`.
    pub trace: bool,
    /// Debug information, and the text that it is about, which is written beside the object.
    pub debug: Option<DebugText>,
    /// Patterns of inner tensors that become outputs (`*` and `?`, or `all`).
    pub taps: Vec<String>,
    /// Operators that functions of the user's own compute.
    pub customs: Vec<Declaration>,
    /// Outputs and the inputs whose memory they may have (`*` stands for the same text in both).
    pub aliases: Vec<(String, String)>,
    /// Warnings are errors.
    pub strict: bool,
    /// Texts of dims such as "2*N" are expressions over other dims; they are opaque names otherwise.
    pub dim_expressions: bool,
    /// Types that the model declares for its outputs do not count; they are errors otherwise if they
    /// contradict the operators.
    pub ignore_output_types: bool,
    /// Prints each pass and its time to stderr.
    pub clock: Clock,
}

impl Options {
    /// Weights are in a file of their own.
    pub fn external(&self) -> bool {
        self.weights != Weights::Embed || self.weights_from.is_some()
    }
    /// The weights file that is written beside an object of this path.
    pub fn weights_path(&self, output: &Path) -> Option<PathBuf> {
        match &self.weights {
            Weights::File(Some(p)) => Some(p.clone()),
            _ => self.external().then(|| output.with_extension("weights")),
        }
    }
    /// The absolute path of the weights file that is read, as one more file that a compilation depends on.
    pub fn weights_read(&self) -> Option<PathBuf> {
        self.weights_from.as_ref().map(|p| std::path::absolute(p).unwrap_or_else(|_| p.clone()))
    }
    /// The flags that a weights file depends on, with their values.
    pub fn of_plan(&self) -> Vec<(&'static str, String)> {
        let list = |v: Vec<String>| if v.is_empty() { "none".to_owned() } else { v.join(" ") };
        let pairs = |v: &[(String, String)]| list(v.iter().map(|(a, b)| format!("{a}={b}")).collect());
        vec![
            ("--target", self.target.clone().unwrap_or_else(|| "this machine".into())),
            ("--cpu", self.cpu.clone().unwrap_or_else(|| "default".into())),
            ("-O", format!("{:?}", self.opt).trim_start_matches('O').to_owned()),
            ("--math", format!("{:?}", self.math).to_lowercase()),
            ("--optimize", format!("{:?}", self.optimize).to_lowercase()),
            ("--dim", list(self.dims.iter().map(|(n, d)| d.text(n)).collect())),
            ("--dim-expressions", self.dim_expressions.to_string()),
            ("--ignore-output-types", self.ignore_output_types.to_string()),
            ("--heap", self.heap.map_or("default".into(), |h| h.to_string())),
            ("--alias", pairs(&self.aliases)),
            ("--tap", list(self.taps.clone())),
            ("--custom", list(self.customs.iter().map(|d| format!("{}:{}", d.domain, d.op)).collect())),
        ]
    }
    /// The target and its CPU levels.
    pub fn target(&self) -> crate::diag::Result<Target> {
        let mut target = Target::new(self.target.as_deref(), self.cpu.as_deref())?;
        if self.cpu.is_none() && self.optimize == Optimize::Size {
            target.keep_one();
        }
        Ok(target)
    }
}

/// `--custom`: `DOMAIN:OP=SYMBOL`, and `,like=N` behind it.
pub fn custom(text: &str) -> std::result::Result<Declaration, String> {
    let bad = || {
        "expected DOMAIN:OP=SYMBOL or DOMAIN:OP=SYMBOL,like=N, such as com.example:Scale=my_scale".to_owned()
    };
    let (operator, function) = text.split_once('=').ok_or_else(bad)?;
    let (domain, op) = operator.rsplit_once(':').unwrap_or(("", operator));
    let (symbol, like) = match function.split_once(',') {
        Some((symbol, rest)) => {
            let n = rest.strip_prefix("like=").and_then(|n| n.parse().ok()).ok_or_else(bad)?;
            (symbol, Some(n))
        }
        None => (function, None),
    };
    if op.is_empty() {
        return Err(bad());
    }
    if !crate::codegen::names::is_identifier(symbol) {
        return Err(format!("'{symbol}' is no identifier of C"));
    }
    // Generated code calls these with other arguments.
    if crate::codegen::clif::is_math(symbol) || symbol.starts_with("onnxc_") || symbol.starts_with("mem") {
        return Err(format!("'{symbol}' is a function of the C library or of onnxc: choose another name"));
    }
    Ok(Declaration { domain: domain.to_owned(), op: op.to_owned(), symbol: symbol.to_owned(), like })
}
