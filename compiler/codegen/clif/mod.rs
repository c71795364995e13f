//! The Cranelift backend: every kernel, on every target.
//!
//! `driver` emits the body of the entry function, `fault` its error exits, `trace` its reports to the caller.
//! For a kernel, `func` keeps the state, `stmt` and `loops` walk statements, `index` emits dims and
//! addresses, `memory` loads and stores, `accumulators` the accumulators of nests. `expr` emits values,
//! scalar or four lanes inside `vec` loops (`lanes`), with `arithmetic`, `math` for elementary functions,
//! `convert` for conversions and storage types, `pairs` for 128-bit values, and `text` for strings. `branch`
//! emits parts that are executed under a condition.

mod accumulators;
mod arithmetic;
mod branch;
mod convert;
mod custom;
mod dispatch;
mod driver;
pub mod entry;
mod expr;
pub mod fault;
mod func;
mod index;
mod lanes;
mod loops;
mod math;
mod memory;
mod pairs;
mod series;
mod small;
mod stmt;
mod text;
mod trace;

pub use func::{
    KernelCode, LIBM_NAMESPACE, Libm, Setting, TILE_NAMESPACE, imported_signature, is_math, kernel, stub,
};
