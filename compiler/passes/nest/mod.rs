//! Passes over the nest IR. `inline`, `epilogue` and `fold` fuse, `exact` computes small integer sums as floats, `layout` and
//! `schedule` (with `attention`, `contract`, `pack`, `tiles`, `depthwise`, `lanes` and `rows`; `dots` and `widen`
//! for integers) decide loops, vectors and memory order, `winograd` takes another sum for some convolutions, `place` decides memory. `shape` is what they share.

mod attention;
pub mod contract;
pub mod dead;
pub mod depthwise;
pub mod dots;
mod dynamic;
pub mod epilogue;
pub mod exact;
pub mod fold;
pub mod halves;
pub mod inline;
pub mod lanes;
pub mod layout;
mod lifetimes;
mod pack;
pub mod place;
mod rows;
pub mod schedule;
pub mod shape;
mod tiles;
mod widen;
pub mod winograd;
