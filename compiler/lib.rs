//! onnxc: an ahead-of-time compiler from ONNX models to native object files.
//!
//! ```text
//! .onnx - onnx/ -> Graph - passes/graph -> Graph - passes/lower -> Nest - passes/nest -> Nest - codegen/ -> .o .h .rs
//! ```
//!
//! Imports point one way: `diag, maps, target <- sym <- tensor <- nest <- ops <- graph <- {onnx, passes}`;
//! `nest <- codegen`; `pipeline` over all. See ARCHITECTURE.md for the map and the invariants.

pub mod diag;

pub mod arrays;
pub mod bench;
pub mod build;
pub mod cache;
#[cfg(feature = "cli")]
pub mod cli;
pub mod codegen;
#[cfg(feature = "cli")]
pub mod commands;
pub mod emit;
pub mod graph;
pub mod io_descriptors;
pub mod jit;
mod maps;
pub mod nest;
pub mod onnx;
pub mod ops;
pub mod options;
pub mod passes;
pub mod pipeline;
pub mod random;
#[cfg(feature = "cli")]
pub mod report;
pub mod run;
pub mod sym;
pub mod target;
pub mod tensor;
