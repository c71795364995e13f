//! Passes over the nest IR.

pub mod dead;
pub mod place;
