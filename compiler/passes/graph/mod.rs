//! Passes over the graph IR.

pub mod dead;
pub mod infer;
pub mod quantize;
