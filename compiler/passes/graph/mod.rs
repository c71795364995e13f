//! Passes over the graph IR.

pub(super) mod control;
pub mod dead;
mod evaluate;
mod expand;
pub mod infer;
pub mod quantize;
pub mod sequences;
pub mod tap;
