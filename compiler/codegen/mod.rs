//! Nest IR (stage Placed) -> machine code.
//!
//! Every kernel becomes a local function `(frame, begin, end) -> status`. `begin..end` is the range of its
//! outermost `par` loop, and `frame` is the table of pointers and sizes that the entry function fills in
//! ([`frame::Frame`]). The entry function is the module's driver. The same code goes into objects
//! ([`object`]) and into memory (`crate::jit`).

pub mod asm;
pub mod assemble;
pub mod clif;
pub mod cpu_level;
pub mod customs;
pub mod debug;
mod dialect;
pub mod faults;
pub mod frame;
pub mod header;
pub mod hpp;
pub mod interface;
pub mod literals;
pub mod math;
pub mod meta;
pub mod names;
pub mod object;
mod recorder;
pub mod rust;
mod rust_error;
mod rust_value;
pub mod shared;
pub mod sizes;
pub mod tile;
pub mod unwind;
pub mod weights;
pub mod weights_file;

use crate::maps::{Map, Set};
