//! Passes over the nest IR. `inline`, `epilogue`, `copies` and `fold` fuse, `exact` computes small integer sums as floats,
//! `layout` (with `flat`) and `schedule` (with `attention`, `contract`, `pack`, `tiles`, `depthwise`, `turn`, `lanes` and `rows`;
//! `dots`, `widen` and `columns` for quantized numbers, `halves` for bf16, both with `grouped`) decide loops, vectors and memory order. For some
//! convolutions `winograd` takes another sum, `gate` other factors, `phases` fuller vectors, `pooled` vectors along rows under a
//! pooling window, `bands` a kernel together with a depthwise one. `beside` makes one kernel of chains that do not need each other. `join` and `split` decide which kernels compute rows, `digits` takes loops of maps apart, `moves` spares conversions. `storage` keeps scratch in f32,
//! `place` decides memory. `shape` is what they share, `uses` who reads and writes what, `work` what they weigh.

mod attention;
pub mod bands;
pub mod beside;
mod columns;
pub mod contract;
mod copies;
pub mod dead;
pub mod depthwise;
mod digits;
pub mod dots;
mod dynamic;
pub mod epilogue;
pub mod exact;
mod flat;
pub mod fold;
pub mod gate;
mod grouped;
pub mod halves;
pub mod inline;
pub mod join;
pub mod lanes;
pub mod layout;
mod lifetimes;
mod longs;
mod moves;
mod pack;
mod pad;
pub mod phases;
pub mod place;
pub mod planes;
pub mod pooled;
mod quotient;
mod rows;
pub mod schedule;
pub mod shape;
pub mod split;
pub mod storage;
pub mod strassen;
mod tiles;
mod turn;
mod uses;
mod widen;
pub mod winograd;
pub mod work;
