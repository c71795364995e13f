//! The Cranelift backend: every kernel, on every target.
//!
//! `driver` emits what the entry function does, `func` walks statements and keeps scopes, `index` emits dims and addresses, `expr` emits values (scalar, or four
//! lanes inside `vec` loops), `math` the elementary functions, `convert` conversions and storage types, `text` strings.

mod convert;
mod dispatch;
mod driver;
pub mod entry;
mod expr;
mod func;
mod index;
mod math;
mod private;
mod text;

pub use func::{KernelCode, LIBM_NAMESPACE, Libm, TILE_NAMESPACE, imported_signature, kernel};
