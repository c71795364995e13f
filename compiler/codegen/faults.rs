//! The table of checks of a compiled model (abi/README.md, rule 4): the subject of each check and the message
//! of a call that fails it. Code generation adds a row for every error exit of `call`. A failing call stores
//! the row's number and up to four values in the caller's `onnxc_fault`. The rows are in `<m>_model.checks`.

use super::interface::{Interface, Tensor};
use crate::diag::Origin;
use crate::nest::{Buf, Kernel, Module, Reason, Status, Subject, visit};
use crate::sym::{Dim, Source, SymTable};
use std::collections::HashMap;
use std::fmt::Write;

/// Most values of a fault.
pub const VALUES: usize = 4;
/// Longer formulas of sizes are omitted from messages.
const LONGEST: usize = 48;

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Check {
    /// The status that the call returns; `None` for a kernel, whose status is in the fault.
    pub status: Option<Status>,
    /// Name of the node; empty if the call itself is at fault.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// The message, with `%lld` for each value in order and `%%` for a percent sign. If empty, the status is
    /// shown.
    pub text: String,
    /// The subjects of the values.
    pub values: Vec<Of>,
}

/// The subject of a value: a dimension of a tensor, a tensor, or nothing in particular.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Of {
    /// Name of the tensor, or empty.
    pub tensor: String,
    /// Its dimension.
    pub dim: Option<u32>,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    list: Vec<Check>,
    index: HashMap<Check, u32>,
}

impl Checks {
    /// The number of a row, which is added if it does not exist.
    pub fn add(&mut self, c: Check) -> u32 {
        let next = self.list.len() as u32;
        *self.index.entry(c).or_insert_with_key(|c| {
            self.list.push(c.clone());
            next
        })
    }
    /// The rows in order.
    pub fn list(&self) -> &[Check] {
        &self.list
    }
}

impl Check {
    /// A row without a node.
    pub fn new(status: Status, text: impl Into<String>) -> Check {
        Check {
            status: Some(status),
            node: String::new(),
            op: String::new(),
            text: text.into(),
            values: vec![],
        }
    }
    /// Adds values without a subject.
    pub fn with_values(mut self, n: usize) -> Check {
        self.values = vec![Of::default(); n.min(VALUES)];
        self
    }
    /// Sets the node.
    pub fn at(mut self, (node, op): (&str, &str)) -> Check {
        (self.node, self.op) = (node.into(), op.into());
        self
    }
}

/// Name and operator of the node that a kernel computes. An unnamed node gets the name of the kernel.
pub fn node<'a>(origin: &'a Origin, kernel: &'a str) -> (&'a str, &'a str) {
    (if origin.name.is_empty() { kernel } else { &origin.name }, &origin.op)
}

/// The message of a status without a more precise one.
pub fn general(s: Status) -> &'static str {
    match s {
        Status::Null => "a pointer is NULL",
        Status::Align => "an address is not aligned",
        Status::Dim => "sizes do not fit",
        Status::Capacity => "memory is too small",
        Status::Index => "an index is out of range",
        Status::Value => "a value of an operand is not allowed",
        Status::Weights => "the weights are not those of the model",
        Status::Cancelled => "a callback asked to stop",
        Status::Abi => "versions do not match",
        Status::Cpu => "the CPU lacks what the code needs",
    }
}

/// Escapes a name of the model for a message: percent signs are doubled, NULs removed.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('%', "%%").replace('\0', ""))
}

/// The kernel that writes each buffer first.
pub fn makers(m: &Module) -> HashMap<Buf, Kernel> {
    let mut out = HashMap::new();
    for (k, d) in m.kernels.iter() {
        for b in visit::stores(&d.body) {
            out.entry(m.storage(b)).or_insert(k);
        }
    }
    out
}

/// Makes the rows of one module.
pub struct Writer<'a> {
    /// The module.
    pub m: &'a Module,
    /// Its interface.
    pub interface: &'a Interface,
}

impl Writer<'_> {
    fn syms(&self) -> &SymTable {
        &self.m.syms
    }
    /// `"x" dimension 1`, or `input "x" dimension 1`.
    fn place(&self, tensor: &str, dim: usize) -> String {
        let of = |list: &[Tensor]| list.iter().any(|t| t.name == tensor);
        let what = if of(&self.interface.inputs) {
            "input "
        } else if of(&self.interface.outputs) {
            "output "
        } else {
            ""
        };
        format!("{what}{} dimension {dim}", quoted(tensor))
    }
    /// The formula of a size in parentheses, unless it is trivial or long.
    fn formula(&self, d: Dim) -> String {
        let text = d.display(self.syms()).to_string();
        if d.as_const().is_some() || text.len() > LONGEST {
            String::new()
        } else {
            format!(" ({})", text.replace('%', "%%"))
        }
    }
    /// The first tensor that has the size and is not among `used`: first the tensors of the source, then the
    /// model's inputs.
    fn tensor(&self, d: Dim, source: &Source, used: &[Of]) -> Option<Of> {
        let d = self.syms().resolve(d);
        let inputs =
            self.interface.inputs.iter().filter(|_| source.tensors.is_empty() || d.as_const().is_none());
        let all = source.tensors.iter().map(|(n, dims)| (n, dims)).chain(inputs.map(|t| (&t.name, &t.dims)));
        all.flat_map(|(n, dims)| dims.iter().enumerate().map(move |(k, x)| (n, k, *x)))
            .filter(|(_, _, x)| self.syms().resolve(*x) == d)
            .map(|(n, k, _)| Of { tensor: n.clone(), dim: Some(k as u32) })
            .find(|of| !used.contains(of))
    }
    /// The name of a dim param in messages: the first dimension of an input that is equal to it.
    pub fn param(&self, d: Dim) -> (String, Of) {
        match self.tensor(d, &Source::default(), &[]) {
            Some(of) => {
                (format!("{}{}", self.place(&of.tensor, of.dim.unwrap_or(0) as usize), self.formula(d)), of)
            }
            None => (format!("dimension{}", self.formula(d)), Of::default()),
        }
    }
    /// The row of a check with a reason, and the sizes whose values it shows.
    pub fn row(&self, r: &Reason, status: Status) -> (Check, Vec<Dim>) {
        let mut c = Check::new(status, "").at((&r.source.node, &r.source.op));
        let mut shown = vec![];
        let mut word = |c: &mut Check, s: &Subject| {
            let (name, of, d) = match s {
                Subject::Value(d) => (String::new(), Of::default(), *d),
                Subject::Size(d) if d.as_const().is_some() => (String::new(), Of::default(), *d),
                Subject::Size(d) => match self.tensor(*d, &r.source, &c.values) {
                    Some(of) => (
                        format!(
                            "{}{} is ",
                            self.place(&of.tensor, of.dim.unwrap_or(0) as usize),
                            self.formula(*d)
                        ),
                        of,
                        *d,
                    ),
                    None => (format!("a size{} is ", self.formula(*d)), Of::default(), *d),
                },
            };
            match d.as_const() {
                Some(n) => format!("{name}{n}"),
                None if shown.len() == VALUES => name,
                None => {
                    shown.push(d);
                    c.values.push(of);
                    format!("{name}%lld")
                }
            }
        };
        // A rule names its subjects in order, each once.
        let mut rest = r.rule.as_str();
        for (k, s) in r.subjects.iter().enumerate() {
            let Some((before, after)) = rest.split_once(&format!("{{{k}}}")) else { break };
            c.text.push_str(&before.replace('%', "%%"));
            let w = word(&mut c, s);
            c.text.push_str(&w);
            rest = after;
        }
        c.text.push_str(&rest.replace('%', "%%"));
        if c.text.is_empty() {
            c.text = general(status).into();
        }
        (c, shown)
    }
    /// The row of an output whose capacity is too small, and the sizes whose values it shows.
    pub fn capacity(&self, t: &Tensor) -> (Check, Vec<Dim>) {
        let mut c = Check::new(Status::Capacity, "");
        let (mut shown, mut list) = (vec![], vec![]);
        for (k, d) in t.dims.iter().enumerate() {
            list.push(match d.as_const() {
                Some(n) => n.to_string(),
                None if shown.len() < VALUES => {
                    shown.push(*d);
                    c.values.push(Of { tensor: t.name.clone(), dim: Some(k as u32) });
                    "%lld".into()
                }
                None => "...".into(),
            });
        }
        let _ = write!(
            c.text,
            "output {} has the dimensions [{}], and its capacity is smaller",
            quoted(&t.name),
            list.join(", ")
        );
        (c, shown)
    }
}
