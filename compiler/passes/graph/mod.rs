//! Passes over the graph IR.

pub(super) mod control;
pub mod dead;
pub mod infer;
pub mod quantize;
