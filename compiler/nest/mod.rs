//! The loop-nest IR: between operators and machine code.
//!
//! ```text
//! module = sym* buf* kernel* driver
//! buf    = name, ElemType (storage), Dim* (logical shape), layout, place
//! place  = input n | output n | const c | temp | growable | foreign | view of buf | pointer sym | arena slot
//! kernel = name, origin, stmt*
//! driver = stmt*                                 -- what `infer` does: checks, sizes, If, While, Call kernel
//! stmt   = For(kind, var, lo Dim, hi Dim, stmt*)   kind = seq | par | vec(n) | unroll | private
//!        | Let(reg, expr)                        -- a value used several times
//!        | Acc(reg, type, lanes, shape, init) | Set(reg[Dim*], expr)  -- accumulators: mutable, in registers
//!        | Store(buf[Dim*], expr)
//!        | Prefetch(buf[Dim*])                   -- a hint: the element is read soon, by other iterations
//!        | Tile(stmt*)                           -- one function of vectors, where the level has them
//!        | If(expr, stmt*, stmt*) | While(expr, stmt*) | With(sym, expr, extent, stmt*)
//!        | Define(sym, expr, lo, hi)             -- driver: a run-time number, checked against lo..=hi
//!        | Check(expr, status)                   -- leave with a status if false
//!        | Call(kernel)                          -- driver only
//!        | Foreign(function, from bufs, to bufs) -- driver only: a function that the object does not have
//! expr   = Const | Reg | Acc(reg[Dim*], lane?) | Horizontal(op, reg[Dim*]) | Index(Dim)
//!        | Load(buf[Dim*]) | Address(buf)
//!        | Un(op, e) | Bin(op, e, e) | Fma(e, e, e) | Dot(group, e, e, e) | Select(c, e, e) | Cast(type, e)
//!        | Let(reg, e, in e) | With(sym, e, extent, in e)
//!        | Text(len | byte | part | of buf, e*)             -- on texts, values of type `str`
//! ```
//!
//! All bounds, indices, extents and offsets are [`Dim`]s over dim params, loop variables and run-time
//! symbols: one algebra, one simplifier, one prover. Rules that hold at every stage:
//!
//! 1. An expression has the *compute* type ([`ElemType::compute`]) of what it loads; `Load` and `Store`
//!    convert between storage and compute type. `Bool` values are 0 or 1.
//! 2. `Select` is lazy for memory: an access in the arm not taken does not happen.
//! 3. Accesses are in range: provably, or under a `Select`/`If`/`With` that makes them so.
//!    A `Prefetch` is no access: what it names may lie outside the buffer.
//! 4. `With(sym, e, extent, body)`, an expression or a statement, binds an integer value as an index: `0 <= e
//!    < extent` is checked at run time (status `E_INDEX`) and known inside `body`.
//! 5. Iterations of `par` and `vec` loops are independent, except through accumulators with lanes: inside a
//!    `vec(n)` loop an accumulator with `lanes = n` means the lane of the iteration, `(var - lo) mod n`. The
//!    last vector of a `vec` loop may be partial: lanes beyond `hi` do nothing. `unroll` loops have constant
//!    bounds.
//! 6. Every symbol and register has one definition in a body, in scope at each use; scheduled bodies that are
//!    copies of one another share theirs. Accumulator subscripts are constants after unrolling.
//!    A `Define` may redefine a size that is in scope. Every buffer whose shape or address depends on the
//!    size then has undefined contents; a size that a nested body redefined is undefined behind it. A
//!    `growable` buffer (scratch with elements to spare, of which views show the first ones) is the
//!    exception: it keeps its contents while its size, and the sizes of all growable buffers defined together
//!    with it, are unchanged.
//! 7. Types of less than a byte are packed in inputs, outputs and constants, and take a byte each in scratch:
//!    nobody stores to a packed buffer. Outputs are packed through a view that has whole bytes
//!    ([`Module::view_as`]). A view of another element type sees the bits of the elements; a store to one
//!    type and a load of another do not fuse.
//! 8. `Index(d)` is i64. Comparison and logic give `Bool`. Shifts, bit operations and integer arithmetic
//!    wrap.
//! 9. A text (`str`) is an address and a length in bytes: it moves, compares (byte by byte) and is read, and
//!    nothing else. What it shows stays as it is for as long as the call: inputs, constants, and buffers that
//!    `Text(of)` names, which live to the end and of which no byte is written twice. In constants, and where
//!    the interpreter takes and gives texts, the first word of an element is the position of its bytes behind
//!    the elements (`onnxc_runtime::texts`).
//! 10. `Address(buf)`, an i64, is where a buffer begins; it is only in statements of the driver and
//!     counts there as a use of the buffer. A buffer whose place is `pointer sym` begins where `sym` says:
//!     memory of the caller, read only. The interpreter has no addresses; it knows whether two are of one
//!     buffer.
//! 11. A complex number (`c64`, `c128`) is opaque: it moves, and nothing else, and is in buffers only,
//!     not in `Const`. What computes with its parts sees them through a view of floats.
//! 12. `private q of s` names what the iteration `s` of the `par` loop that is the whole kernel has to
//!     itself. Buffers whose first subscript is `q` are private: scratch of this kernel alone, each of whose
//!     elements an iteration writes before it reads it. Since nobody else looks there, `q` may be any
//!     iteration that runs in the same task: code takes the task's first one, whose part then stays in the
//!     cache. `q` is nowhere but in these first subscripts. (In memory, the statement is a loop over
//!     `s..s + 1`.)
//! 13. `tile { .. }` sets statements of a scheduled kernel apart that are one function of the tile backend:
//!     loops, values, accumulators, branches, stores, with a vector loop among them. What it defines ends
//!     with it. It means what is in it, and is a list of statements where there are no tiles.
//!
//! Stages ([`Stage`]) add rules; `verify` checks them: Built (what operators write: no `vec`, `unroll`,
//! lanes) -> Scheduled (tiles, par, vec, unroll, fused) -> Placed (no `temp`: arena slots have offsets and
//! sizes).

mod body;
pub mod bounds;
pub mod build;
mod check;
mod expr;
mod facts;
pub mod foreign;
pub(crate) mod form;
mod group;
pub mod interp;
pub mod key;
pub mod literals;
mod modes;
mod operation;
pub mod overflow;
pub mod parse;
pub mod patterns;
pub mod print;
pub mod reach;
pub mod reasons;
mod scalar;
pub mod schedule;
pub mod verify;
pub mod visit;

pub use body::Body;
pub use build::KernelBuilder;
pub use foreign::Foreign;
pub use group::DotKind;
pub use modes::{HALVES, HALVES_AT_ONCE, HALVES_IN_SEQUENCE, Math, Optimize};
pub use operation::{BinOp, TextOp, UnOp};
pub use reasons::{Reason, Reasons, Subject};
pub use scalar::Scalar;

use crate::diag::Origin;
use crate::sym::{Dim, Sym, SymTable};
use crate::tensor::{ConstData, ElemType};
use cranelift_entity::{PrimaryMap, entity_impl};
use std::sync::Arc;

/// A buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Buf(u32);
entity_impl!(Buf, "b");

/// A kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel(u32);
entity_impl!(Kernel, "k");

/// A register of a kernel (or of the driver): a `Let` value or an accumulator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(u32);
entity_impl!(Reg, "%");

/// An arena slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);
entity_impl!(Slot, "slot");

/// How far the module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Stage {
    Built,
    Scheduled,
    Placed,
}

/// [`Module::heap`] unless the user says otherwise, in bytes.
pub const HEAP: i64 = 16 << 20;

/// A whole model as loop nests.
#[derive(Clone, Debug)]
pub struct Module {
    /// Identifier of the model (`--name`).
    pub name: String,
    /// Symbols of all dims, run-time sizes and loop variables.
    pub syms: SymTable,
    /// Parameters in the order of the generated signature.
    pub dim_params: Vec<Sym>,
    /// Buffers.
    pub bufs: PrimaryMap<Buf, BufData>,
    /// Kernels.
    pub kernels: PrimaryMap<Kernel, KernelData>,
    /// Register types, numbered over the whole module.
    pub regs: PrimaryMap<Reg, RegData>,
    /// Arena slots (stage Placed).
    pub slots: PrimaryMap<Slot, SlotData>,
    /// Total workspace in bytes as an expression of the dim params (stage Placed).
    pub workspace: Dim,
    /// Bytes at the end of the workspace for buffers whose size only run time knows, where the module has
    /// any.
    pub heap: i64,
    /// The end of the memory for these buffers, which the driver defines first: the workspace of a call may
    /// be larger than [`Module::workspace`], or have less of this memory (stage Placed).
    pub end: Option<Sym>,
    /// Operators that the user provides.
    pub customs: Vec<foreign::Custom>,
    /// What the driver's checks are about.
    pub reasons: Reasons,
    /// What passes may do to floats.
    pub math: Math,
    /// What passes choose algorithms for.
    pub optimize: Optimize,
    /// Memory for texts that kernels make, where they make any.
    pub texts: Option<Texts>,
    /// What `infer` does.
    pub driver: Vec<Stmt>,
    /// Inputs in signature order.
    pub inputs: Vec<Buf>,
    /// Outputs in signature order.
    pub outputs: Vec<Buf>,
    /// Outputs that share memory with inputs which grow, for those who call the module.
    pub states: Vec<State>,
    /// How far the module is.
    pub stage: Stage,
}

/// An output and the input whose memory it may have, with room along one dimension.
#[derive(Clone, Debug)]
pub struct State {
    /// Number of the output.
    pub output: usize,
    /// Number of the input.
    pub input: usize,
    /// The dimension, whose size is the capacity.
    pub axis: usize,
    /// What is in use of the input.
    pub before: Dim,
    /// What is in use of the output.
    pub after: Dim,
}

/// Memory for the bytes of texts that kernels make, [`Module::heap`] bytes of it: taken from its beginning
/// on, and kept to the end of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texts {
    /// The bytes, of type u8.
    pub bytes: Buf,
    /// How many are taken: one i64.
    pub taken: Buf,
}

/// Type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegData {
    /// Compute type.
    pub ty: ElemType,
    /// The largest magnitude of a float accumulator that holds whole numbers only, exactly.
    pub whole: Option<i64>,
}

/// One memory region.
#[derive(Clone, Debug)]
pub struct BufData {
    /// Name of the graph value it holds, or a made-up one.
    pub name: String,
    /// Storage type.
    pub ty: ElemType,
    /// Logical shape.
    pub dims: Vec<Dim>,
    /// Physical order.
    pub layout: Layout,
    /// Where it lives.
    pub place: Place,
}

impl BufData {
    /// Number of elements.
    pub fn count(&self) -> Dim {
        Dim::product(self.dims.iter().copied())
    }
    /// True if it is known to have no elements.
    pub fn is_empty(&self) -> bool {
        self.dims.iter().any(|n| n.as_const() == Some(0))
    }
}

/// Physical order of a buffer's dimensions, outermost first: row-major unless a pass chose otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// As the logical shape.
    #[default]
    RowMajor,
    /// Logical dimensions in physical order, e.g. `[0, 2, 3, 1]` stores NCHW as NHWC.
    Permuted(Vec<usize>),
}

/// Where a buffer lives.
#[derive(Clone, Debug)]
pub enum Place {
    /// The caller's input number n.
    Input(u32),
    /// The caller's output number n.
    Output(u32),
    /// Read-only data.
    Const(Arc<ConstData>),
    /// Scratch, not placed yet.
    Temp,
    /// Scratch with elements to spare, which keeps its contents while its size stays: see rule 6. Not placed
    /// yet.
    Growable,
    /// Scratch that functions which the object does not have read or write: row-major and of its own type,
    /// and no kernel computes it elsewhere. Not placed yet.
    Foreign,
    /// The same memory as another buffer with as many bytes: both row-major (a reshape), or of one memory
    /// order and one shape but for the innermost dimension, whose elements are of other types (quads of
    /// bytes). Of a growable buffer, its first bytes.
    View(Buf),
    /// Memory of the caller that a descriptor points to: it begins at the value of a symbol that the driver
    /// defines. Read only.
    Pointer(Sym),
    /// Scratch in an arena slot.
    Arena(Slot),
}

impl Place {
    /// True for scratch that has no place yet.
    pub fn is_scratch(&self) -> bool {
        matches!(self, Place::Temp | Place::Growable | Place::Foreign)
    }
}

/// A piece of the workspace; buffers whose lifetimes do not meet share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotData {
    /// Byte offset from the workspace's start, a multiple of 64.
    pub offset: Dim,
    /// Bytes.
    pub size: Dim,
}

/// Minimum scalar operations of a task.
pub(crate) const TASK_WORK: i64 = 60_000;

/// A function of the object: one operator, or several fused ones.
#[derive(Clone, Debug)]
pub struct KernelData {
    /// Symbol-friendly name made from the node's.
    pub name: String,
    /// The node it computes (for fused kernels: the one whose store it is).
    pub origin: Origin,
    /// Estimated scalar operations: decides into how many tasks its outermost `par` loop is split (0: one).
    pub work: Dim,
    /// Whether a schedule has been applied to the body: only then it may have `vec` and `unroll` loops and
    /// accumulators with lanes.
    pub scheduled: bool,
    /// The schedules that were applied, one for each nest in the order of the body; none for bodies that a
    /// pass emits with loops of its own.
    pub schedules: Vec<schedule::Schedule>,
    /// The model allows the kernel's sums of products to take their first factors as integers of 8 bits, one
    /// scale for each block of them (`accuracy_level` 4). The body says what is exact.
    pub narrow: bool,
    /// What it does.
    pub body: Body,
}

/// How a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoopKind {
    /// In order.
    Seq,
    /// In any order, on any thread.
    Par,
    /// n iterations at a time.
    Vec(u32),
    /// Copied for every iteration.
    Unroll,
    /// A single iteration: names the scratch of the iteration of the `par` loop around it (rule 12).
    Private,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Stmt {
    /// `for var in lo..hi`.
    For {
        kind: LoopKind,
        var: Sym,
        lo: Dim,
        hi: Dim,
        body: Vec<Stmt>,
    },
    Let {
        reg: Reg,
        value: Expr,
    },
    /// `shape` is the array of accumulators (empty for one), each with `lanes` lanes, all starting at `init`.
    Acc {
        reg: Reg,
        lanes: u32,
        shape: Vec<u32>,
        init: Expr,
    },
    Set {
        reg: Reg,
        at: Vec<Dim>,
        value: Expr,
    },
    Store {
        buf: Buf,
        at: Vec<Dim>,
        value: Expr,
    },
    /// Asks memory for the line that holds an element, into the second-level cache; nothing that can be seen
    /// happens.
    Prefetch {
        buf: Buf,
        at: Vec<Dim>,
    },
    /// What vectors compute as one function (rule 13).
    Tile {
        body: Vec<Stmt>,
    },
    If {
        cond: Expr,
        then: Vec<Stmt>,
        els: Vec<Stmt>,
    },
    While {
        cond: Expr,
        body: Vec<Stmt>,
    },
    /// Binds an integer value as an index (rule 4).
    With {
        sym: Sym,
        value: Expr,
        extent: Dim,
        body: Vec<Stmt>,
    },
    /// Defines a run-time symbol; leaves with `E_DIM` unless `lo <= value <= hi`.
    Define {
        sym: Sym,
        value: Expr,
        lo: Dim,
        hi: Option<Dim>,
    },
    /// Leaves with `status` if `cond` is false.
    Check {
        cond: Expr,
        status: Status,
    },
    Call(Kernel),
    /// Calls a function that whoever links the object provides; leaves if it fails: with `E_VALUE`, or what a
    /// custom operator returns.
    Foreign(Foreign),
}

/// Status codes of the generated interface (`ONNXC_E_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Status {
    Null = 1,
    Align = 2,
    Dim = 3,
    Capacity = 4,
    Index = 5,
    Value = 6,
    Weights = 7,
    Cancelled = 8,
    Abi = 9,
    Cpu = 10,
}

/// An expression. Types follow rule 1; both operands of a `Bin` have the same type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Expr {
    Const(Scalar),
    Reg(Reg),
    /// Value of an accumulator; `lane` picks one lane of it (a scalar), else the current one (rule 5).
    Acc {
        reg: Reg,
        at: Vec<Dim>,
        lane: Option<Dim>,
    },
    /// All lanes of an accumulator combined.
    Horizontal {
        op: BinOp,
        reg: Reg,
        at: Vec<Dim>,
    },
    Index(Dim),
    Load {
        buf: Buf,
        at: Vec<Dim>,
    },
    /// Where a buffer begins (rule 10).
    Address(Buf),
    Un(UnOp, Box<Expr>),
    Bin(BinOp, Box<Expr>, Box<Expr>),
    /// a * b + c, rounded once where the target has fma (`--math strict`: twice), floats only.
    Fma(Box<Expr>, Box<Expr>, Box<Expr>),
    /// a . b + c: the parts of a, an i32 (an i64 of eight bytes), times those of b, each with its
    /// counterpart, all products added to c. Parts lie side by side in memory and come together by way of
    /// views.
    Dot(DotKind, Box<Expr>, Box<Expr>, Box<Expr>),
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Conversion as in ONNX Cast (float to int truncates, saturating; to bool: not zero).
    Cast(ElemType, Box<Expr>),
    /// An operation on texts.
    Text(TextOp, Vec<Expr>),
    Let {
        reg: Reg,
        value: Box<Expr>,
        body: Box<Expr>,
    },
    With {
        sym: Sym,
        value: Box<Expr>,
        extent: Dim,
        body: Box<Expr>,
    },
}
