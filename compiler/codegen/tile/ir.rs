//! The tile IR: vector operations in SSA form inside counted loops.
//!
//! A value is an integer register (pointers, counters), a whole vector, or a mask of its lanes. Vectors have
//! [`Width::lanes`] lanes of 32 bits; a scalar is a vector whose lanes are all equal. A function on 64-bit
//! elements ([`Func::long`]) has half as many lanes: 32-bit elements then occupy the lower half of a vector,
//! and its upper half is undefined. Loops carry values as block parameters, as in regalloc2.

mod elements;
mod op;
mod width;

use crate::target::Adjacent;
pub use elements::{Bits, Bytes, Factors, Form, Literal, Number};
pub use op::{Bin, Op, Pred, Un};
pub use width::Width;

/// A value of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(super) u32);

impl Value {
    /// A fresh value of a function with these classes.
    pub fn fresh(classes: &mut Vec<Class>, class: Class) -> Value {
        classes.push(class);
        Value(classes.len() as u32 - 1)
    }
}

/// The register class of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 64-bit integers and pointers.
    Int,
    /// Vectors.
    Vector,
    /// One truth value per lane: a k register, or a vector of zeros and ones (`Width::masks_are_vectors`).
    Mask,
}

/// A memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mem {
    /// Pointer.
    pub base: Value,
    /// Index register, and its scale of 1, 2, 4 or 8.
    pub index: Option<(Value, u8)>,
    /// Displacement in bytes.
    pub disp: i32,
    /// The operand is one element, for all lanes.
    pub each: bool,
}

impl Mem {
    /// The memory `disp` bytes from a pointer.
    pub fn at(base: Value, disp: i32) -> Mem {
        Mem { base, index: None, disp, each: false }
    }
    /// The registers of the address.
    pub fn values(&self) -> impl Iterator<Item = Value> {
        [Some(self.base), self.index.map(|i| i.0)].into_iter().flatten()
    }
    /// The same, for renaming.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        [Some(&mut self.base), self.index.as_mut().map(|i| &mut i.0)].into_iter().flatten()
    }
}

/// The source line of an instruction in the text, 0 without debug information. All compare equal: functions
/// are compared by their operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line(pub u32);

impl PartialEq for Line {
    fn eq(&self, _: &Line) -> bool {
        true
    }
}

impl Eq for Line {}

impl std::hash::Hash for Line {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Operation.
    pub op: Op,
    /// Operands.
    pub args: Vec<Value>,
    /// Memory operand.
    pub mem: Option<Mem>,
    /// A constant, read from memory, that replaces the last operand.
    pub literal: Option<Literal>,
    /// Result.
    pub def: Option<Value>,
    /// Source line.
    pub line: Line,
}

impl Node {
    /// All operands, with the registers of the memory operand.
    pub fn values(&self) -> impl Iterator<Item = Value> {
        self.args.iter().copied().chain(self.mem.iter().flat_map(Mem::values))
    }
    /// The same, for renaming.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.args.iter_mut().chain(self.mem.iter_mut().flat_map(Mem::values_mut))
    }
}

/// A basic block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// Instructions; the last one is the terminator.
    pub nodes: Vec<Node>,
    /// Block parameters.
    pub params: Vec<Value>,
    /// Successors.
    pub succs: Vec<usize>,
    /// Predecessors.
    pub preds: Vec<usize>,
    /// Arguments for the parameters of its only successor.
    pub jump_args: Vec<Value>,
}

/// A finished function. Equal functions have equal code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Func {
    /// Vector length.
    pub width: Width,
    /// Vectors have lanes of 64 bits, and half as many.
    pub long: bool,
    /// For in-order cores.
    pub in_order: bool,
    /// How adjacent vectors are loaded.
    pub adjacent: Adjacent,
    /// Products of f16 may be accumulated in f16, up to [`HALVES`](crate::nest::HALVES) of them, and what is
    /// computed of f16 and stored as f16 may be.
    pub halves: bool,
    /// The machine has no byte dot products: they are expanded.
    pub in_words: bool,
    /// The machine has no products of matrices of bytes: dot products of eights are two of quads each.
    pub in_quads: bool,
    /// Parameters in order; the first ones arrive in registers (`Width::register_params`).
    pub params: Vec<Value>,
    /// Classes of all values.
    pub classes: Vec<Class>,
    /// Blocks in the order of their code; the first is the entry.
    pub blocks: Vec<Block>,
}
