//! Bytes or file -> graph IR. Only this module knows protobuf.
//!
//! `decode` recognises the format of the bytes, `text` parses the ONNX textual syntax, `sort` sorts nodes,
//! `scopes` checks names and order, `functions` checks and inlines model-local functions, `attributes` checks
//! the form of attributes, `nodes` converts nodes, `tensors` and `external` make constants without copying,
//! and `import` builds the graph and collects the findings.

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

/// A model as given by the user.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name in messages.
    pub name: String,
    /// Its bytes, mapped or read.
    pub bytes: Bytes,
    /// Folder that external data must lie in; none for standard input.
    pub folder: Option<PathBuf>,
}

/// What the user specifies about the model.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// `--dim` arguments in order.
    pub dims: Vec<(String, DimOption)>,
    /// Texts of dims such as "2*N" are expressions over other dims. Otherwise they are opaque names.
    pub dim_expressions: bool,
    /// Suffix of the names of capacities, which lowering creates, if there are `--alias` arguments.
    pub capacities: Option<&'static str>,
    /// `--custom` arguments.
    pub customs: Vec<crate::ops::custom::Declaration>,
}

impl ImportOptions {
    /// True if the model has no dimension of that name and it may be a capacity.
    pub(crate) fn is_late(&self, syms: &SymTable, name: &str) -> bool {
        self.capacities.is_some_and(|end| name.ends_with(end)) && syms.lookup(name).is_none()
    }
}

/// Reads a model, binary or in ONNX textual syntax. Errors of its graph are in [`Model::errors`].
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
