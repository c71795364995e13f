//! The interface of a compiled model: names, types, sizes. The header, the Rust module, the metadata and the
//! entry functions are all generated from this description.

use super::weights_file;
use crate::diag::Origin;
use crate::nest::foreign::{DECODE_IMAGE, Function, symbol};
use crate::nest::{Buf, Module, State, Stmt, visit};
use crate::sym::{Dim, Sym, SymTable};
use crate::tensor::ElemType;

/// The generated interface of one model (ABI 1).
#[derive(Clone, Debug)]
pub struct Interface {
    /// C identifier prefix `<m>`.
    pub name: String,
    /// `onnxc 0.1.0`.
    pub producer: String,
    /// File name of the model, without folders.
    pub model_file: String,
    /// SHA-256 of the model's bytes (external data not included).
    pub model_sha256: [u8; 32],
    /// Target triple.
    pub target: String,
    /// CPU levels that the object has code for, e.g. `x86-64-v2,x86-64-v3`.
    pub cpu: String,
    /// Calls detect the CPU's features ([`Target::asks`](crate::target::Target::asks)) and cache the result
    /// in a word of the object.
    pub asks_cpu: bool,
    /// Calls fail on CPUs that lack the first level.
    pub refuses_cpu: bool,
    /// Dim params in signature order.
    pub dim_params: Vec<DimParam>,
    /// Inputs in graph order.
    pub inputs: Vec<Tensor>,
    /// Outputs in graph order.
    pub outputs: Vec<Tensor>,
    /// Workspace bytes as an expression of the dim params.
    pub workspace: Dim,
    /// Upper bound of the workspace, if every dim param is bounded.
    pub workspace_max: Option<u64>,
    /// Bytes of the workspace for values whose size depends on data, unless the caller gives the size of the
    /// workspace.
    pub heap: u64,
    /// Weights.
    pub weights: Weights,
    /// Outputs that are growing inputs, if they may share memory (`aliases_input`).
    pub states: Vec<State>,
    /// Nodes of the model in order, followed by those of nested graphs that kernels compute.
    pub nodes: Vec<Origin>,
    /// Functions that the object calls and the application provides, other than those of libc and libm.
    pub foreign: Vec<&'static str>,
    /// Functions of custom operators in order, with the operators that they implement.
    pub customs: Vec<(&'static str, Vec<String>)>,
    /// Addresses of these functions, for code in memory.
    pub symbols: Vec<(&'static str, usize)>,
    /// Exported symbols are hidden.
    pub hidden: bool,
    /// Calls report each node to `on_node`.
    pub trace: bool,
    /// All symbols, for printing.
    pub syms: SymTable,
}

impl Interface {
    /// Number of the node that a kernel computes, as passed to `on_node`; for fused nodes the last one.
    pub fn node_of(&self, kernel: &Origin) -> Option<u32> {
        self.nodes.iter().position(|n| same_node(n, kernel)).map(|k| k as u32)
    }
    /// A minimal interface for code in memory that no caller links, which reads its weights from outside.
    pub fn of_module(m: &Module) -> Interface {
        let tensor = |b: &Buf| {
            let d = &m.bufs[*b];
            Tensor {
                name: d.name.clone(),
                ident: d.name.clone(),
                ty: d.ty,
                dims: d.dims.clone(),
                max_dims: vec![None; d.dims.len()],
                aliases_input: None,
                described: None,
            }
        };
        let param = |s: &Sym| {
            let (name, r) = (m.syms.name(*s).to_owned(), m.syms.declared_range(*s));
            DimParam { sym: *s, ident: name.clone(), name, lo: r.lo.unwrap_or(0), hi: r.hi }
        };
        Interface {
            name: m.name.clone(),
            producer: String::new(),
            model_file: String::new(),
            model_sha256: [0; 32],
            target: String::new(),
            cpu: String::new(),
            asks_cpu: false,
            refuses_cpu: false,
            dim_params: m.dim_params.iter().map(param).collect(),
            inputs: m.inputs.iter().map(tensor).collect(),
            outputs: m.outputs.iter().map(tensor).collect(),
            workspace: m.workspace,
            workspace_max: None,
            heap: heap(std::slice::from_ref(m)),
            weights: Weights::default(),
            states: vec![],
            nodes: vec![],
            foreign: foreign(m),
            customs: customs(m),
            symbols: vec![],
            hidden: false,
            trace: false,
            syms: m.syms.clone(),
        }
    }
}

/// True if both are the origin of the same node.
pub fn same_node(a: &Origin, b: &Origin) -> bool {
    a.graph == b.graph && a.node == b.node && a.name == b.name && a.op == b.op && a.output == b.output
}

/// [`Interface::heap`] for the modules of all levels.
pub fn heap(modules: &[Module]) -> u64 {
    modules.iter().filter(|m| m.end.is_some()).map(|m| m.heap.max(0) as u64).max().unwrap_or(0)
}

/// External functions that a module's driver calls.
pub fn foreign(m: &Module) -> Vec<&'static str> {
    let mut found = vec![];
    visit::walk(&m.driver, &mut |s| {
        if let Stmt::Foreign(f) = s
            && !matches!(f.function, Function::Custom(_))
            && found.is_empty()
        {
            found.push(DECODE_IMAGE);
        }
    });
    found
}

/// [`Interface::customs`] of a module.
pub fn customs(m: &Module) -> Vec<(&'static str, Vec<String>)> {
    let mut found: Vec<(&'static str, Vec<String>)> = vec![];
    for c in &m.customs {
        let (symbol, op) = (symbol(&c.symbol), c.origin.op.clone());
        match found.iter_mut().find(|(s, _)| *s == symbol) {
            Some((_, ops)) if ops.contains(&op) => {}
            Some((_, ops)) => ops.push(op),
            None => found.push((symbol, vec![op])),
        }
    }
    found
}

/// A dim param: a leading `int64_t` argument.
#[derive(Clone, Debug)]
pub struct DimParam {
    /// Its symbol.
    pub sym: Sym,
    /// The name in the model.
    pub name: String,
    /// C identifier.
    pub ident: String,
    /// Smallest legal value.
    pub lo: i64,
    /// Largest legal value, if bounded.
    pub hi: Option<i64>,
}

/// An input or output.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The exact ONNX name.
    pub name: String,
    /// C identifier.
    pub ident: String,
    /// Element type.
    pub ty: ElemType,
    /// Dimensions.
    pub dims: Vec<Dim>,
    /// Upper bounds of the dimensions where known.
    pub max_dims: Vec<Option<i64>>,
    /// Outputs: the input it may share memory with.
    pub aliases_input: Option<u32>,
    /// The description of a value that is not a tensor. The caller then passes an `onnxc_value`, `ty` is the
    /// type of its elements, and there are no dims.
    pub described: Option<Described>,
}

impl Tensor {
    /// Number of elements.
    pub fn count(&self) -> Dim {
        Dim::product(self.dims.iter().copied())
    }
}

/// A value that is passed as a descriptor instead of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The kind of the value.
    pub kind: Kind,
    /// True if it may be absent.
    pub optional: bool,
    /// Type of the keys of maps.
    pub key: Option<ElemType>,
    /// Sizes common to all members of a sequence, as far as they are known.
    pub dims: Option<Vec<Option<i64>>>,
}

/// The kind of a described value; the numbers are those of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Tensor = 1,
    Sequence = 2,
    Map = 3,
    /// A sequence of maps.
    Maps = 4,
}

impl Described {
    /// `kind` of `onnxc_tensor_info`.
    pub fn code(&self) -> u32 {
        self.kind as u32 | if self.optional { OPTIONAL } else { 0 } | self.key.map_or(0, |k| (k as u32) << 8)
    }
    /// `optional(seq(float32))`.
    pub fn text(&self, elem: &str) -> String {
        let dims = |d: &Vec<Option<i64>>| {
            format!(
                "{elem} [{}]",
                d.iter().map(|d| d.map_or("?".to_owned(), |d| d.to_string())).collect::<Vec<_>>().join(", ")
            )
        };
        let member = self.dims.as_ref().map_or(elem.to_owned(), dims);
        let key = self.key.map_or("int64", ElemType::onnx_name);
        let t = match self.kind {
            Kind::Tensor => member,
            Kind::Sequence => format!("seq({member})"),
            Kind::Map => format!("map({key}, {elem})"),
            Kind::Maps => format!("seq(map({key}, {elem}))"),
        };
        if self.optional { format!("optional({t})") } else { t }
    }
}

/// Flag of [`Described::code`].
pub const OPTIONAL: u32 = 16;

impl Tensor {
    /// True if sizes depend on data: the caller gives a capacity and gets the sizes.
    pub fn from_data(&self, syms: &SymTable) -> bool {
        self.dims.iter().any(|d| syms.at_run_time(*d))
    }
    /// Number of elements, if static.
    pub fn len(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |n, d| n.checked_mul(u64::try_from(d.as_const()?).ok()?))
    }
    /// True if the static number of elements is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
    /// Upper bound of the number of elements.
    pub fn max_len(&self) -> Option<u64> {
        self.max_dims.iter().try_fold(1u64, |n, d| n.checked_mul(u64::try_from((*d)?).ok()?))
    }
}

/// The weights blob.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// Bytes.
    pub size: u64,
    /// Alignment.
    pub align: u64,
    /// The plan of the object. A weights file must contain it.
    pub plan: [u8; weights_file::PLAN],
    /// Number of the plan in the file.
    pub slot: u32,
    /// True if the caller passes a pointer to the mapped weights file.
    pub external: bool,
    /// Name of that file, without folders.
    pub file: String,
}
