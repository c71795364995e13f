//! onnxc: an ahead-of-time compiler from ONNX models to native object files.
//!
//! ```text
//! .onnx - onnx/ -> Graph - passes/graph -> Graph - passes/lower -> Nest - passes/nest -> Nest - codegen/ -> .o .h .rs
//! ```
//!
//! Imports point one way: `diag, target <- sym <- tensor <- nest <- ops <- graph <- {onnx, passes}`;
//! `nest <- codegen`; `pipeline` over all. See ARCHITECTURE.md for the map and the invariants.

pub mod diag;

pub mod sym;
pub mod tensor;
pub mod graph;
pub mod nest;
pub mod onnx;
pub mod ops;
pub mod passes;
pub mod codegen;
pub mod jit;
pub mod target;
pub mod options;
pub mod pipeline;
pub mod arrays;
pub mod cli;
pub mod emit;
pub mod run;
pub mod build;
