//! Passes over the graph IR.

pub(super) mod control;
pub mod dead;
mod evaluate;
pub mod infer;
pub mod quantize;
