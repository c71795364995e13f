//! Bytes or file -> graph IR. After this module nobody sees protobuf.
//!
//! `decode` recognises what the bytes are, `text` reads the ONNX textual syntax, `sort` sorts nodes, `scopes`
//! checks names and order, `functions` checks and inlines model-local functions, `attributes` checks the form
//! of attributes, `nodes` reads nodes, `tensors` and `external` make constants without copying, `import`
//! builds the graph and gathers findings.

pub mod attributes;
pub mod declared;
pub mod decode;
pub mod external;
pub mod functions;
pub mod import;
pub mod nodes;
pub mod scopes;
pub mod sort;
pub mod tensors;
pub mod text;
pub mod types;
pub mod versions;
pub mod wire;

/// Generated from proto/onnx.proto (tests/generated.rs).
#[allow(missing_docs, clippy::all)]
pub mod proto {
    include!("generated/onnx.rs");
}

use crate::diag::Result;
use crate::graph::Model;
use crate::sym::SymTable;
use crate::sym::text::DimOption;
use bytes::Bytes;
use std::path::PathBuf;

/// A model as the user handed it over.
#[derive(Clone, Debug)]
pub struct Source {
    /// What to call it in messages.
    pub name: String,
    /// Its bytes, mapped or read.
    pub bytes: Bytes,
    /// Folder that external data must lie in; none for standard input.
    pub folder: Option<PathBuf>,
}

/// What the user says about the model's sizes.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// `--dim` arguments in order.
    pub dims: Vec<(String, DimOption)>,
    /// Texts of dims such as "2*N" are expressions over other dims; they are opaque names otherwise.
    pub dim_expressions: bool,
    /// There are `--alias`: a dimension whose name ends with this may be a capacity, which lowering makes.
    pub capacities: Option<&'static str>,
    /// `--custom` arguments.
    pub customs: Vec<crate::ops::custom::Declaration>,
}

impl ImportOptions {
    /// True if the model has no dimension of that name, and it may be a capacity.
    pub(crate) fn is_late(&self, syms: &SymTable, name: &str) -> bool {
        self.capacities.is_some_and(|end| name.ends_with(end)) && syms.lookup(name).is_none()
    }
}

/// Reads a model: binary, or ONNX textual syntax. Faults of its graph are in [`Model::errors`].
pub fn read(source: &Source, options: &ImportOptions) -> Result<Model> {
    let decode::Decoded { model, warnings } = decode::decode(source)?;
    import::import(model, source, options, warnings)
}

/// Opens a model file without reading it.
pub fn open(path: &std::path::Path) -> Result<Source> {
    let bytes = external::map_file(path)?;
    let folder =
        path.parent().map(|p| if p.as_os_str().is_empty() { PathBuf::from(".") } else { p.to_owned() });
    Ok(Source { name: path.display().to_string(), bytes, folder })
}
