//! Passes over the nest IR. `inline`, `epilogue` and `fold` fuse, `exact` computes small integer sums as floats, `layout` and
//! `schedule` (with `contract`, `tiles`, `depthwise` and `lanes`) decide loops, vectors and memory order, `winograd` takes
//! another sum for some convolutions, `place` decides memory. `shape` is what they share.

pub mod contract;
pub mod dead;
pub mod depthwise;
mod dynamic;
pub mod epilogue;
pub mod exact;
pub mod fold;
pub mod inline;
pub mod lanes;
pub mod layout;
mod lifetimes;
pub mod place;
pub mod schedule;
pub mod shape;
mod tiles;
pub mod winograd;
