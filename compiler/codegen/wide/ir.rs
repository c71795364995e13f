//! The tile IR: vector operations in SSA form inside counted loops, and the builder that makes it.
//!
//! A value is an integer register (pointers, counters), a whole vector, or a mask of its lanes. Vectors have
//! [`Width::lanes`] lanes of 32 bits; a scalar is a vector whose lanes are all equal. Loops carry values as block
//! parameters, as regalloc2 wants them; edges from a block with several successors to one with several predecessors
//! are split here.

use crate::codegen::math::Table;
use crate::codegen::{Map, Set};

/// Vector length, and with it the encoding and what there are masks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 256 bits, VEX: AVX2 and FMA (x86-64-v3).
    Avx2,
    /// 512 bits, EVEX: AVX-512 F, BW, DQ, VL (x86-64-v4).
    Avx512,
}

impl Width {
    /// Lanes of 32 bits.
    pub fn lanes(self) -> u32 {
        match self {
            Width::Avx2 => 8,
            Width::Avx512 => 16,
        }
    }
    /// Bytes of a vector.
    pub fn bytes(self) -> u32 {
        self.lanes() * 4
    }
    /// Column of the code tables.
    pub(super) fn column(self) -> usize {
        match self {
            Width::Avx2 => 0,
            Width::Avx512 => 1,
        }
    }
}

/// A value of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub(super) u32);

/// What kind of register holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 64-bit integers and pointers.
    Int,
    /// Vectors.
    Vector,
    /// One truth value a lane: a k register, or with AVX2 a vector of zeros and ones.
    Mask,
}

/// Comparison; the discriminants are the immediates of `vcmpps` (ordered, quiet) and `vpcmpd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Pred {
    Eq = 0,
    Lt = 1,
    Le = 2,
    Unordered = 3,
    Ne = 4,
}

/// Operations on two vectors, lane by lane; the second operand may come from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Bin {
    Add,
    Sub,
    Mul,
    Div,
    /// The second operand if either is NaN or both are zero, as the instruction has it.
    Min,
    Max,
    And,
    Or,
    Xor,
    /// not a and b.
    AndNot,
    IAdd,
    ISub,
    IMul,
    IMin,
    IMax,
    UMin,
    UMax,
    Shl,
    Shr,
    Sar,
    /// a * 2^floor(b), AVX-512 only.
    Scale,
    /// The lane of b that the lowest bits of a say.
    Pick,
}

/// Operations on one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Un {
    Sqrt,
    /// To an integer value, halves to even.
    Round,
    Floor,
    Ceil,
    Trunc,
    /// f32 -> i32: rounding to nearest, towards zero.
    ToInt,
    TruncInt,
    /// i32 -> f32.
    ToFloat,
    IAbs,
    Shl(u8),
    Shr(u8),
    Sar(u8),
    /// Lane i <-> lane i ^ k.
    Swap(u8),
}

/// How a vector stands in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Form {
    /// 32 bits a lane.
    Whole,
    /// IEEE half precision, converted.
    F16,
    /// 8 and 16 bits, extended on load, cut off on store.
    I8,
    U8,
    I16,
    U16,
}

impl Form {
    /// Bytes of a lane in memory.
    pub fn bytes(self) -> u32 {
        match self {
            Form::Whole => 4,
            Form::F16 | Form::I16 | Form::U16 => 2,
            Form::I8 | Form::U8 => 1,
        }
    }
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Defines the parameters.
    Args,
    /// A parameter that arrives on the stack, by number.
    StackArg(u32),
    /// An integer.
    Int(i64),
    /// a + immediate.
    AddImm(i32),
    /// a + b.
    Add,
    /// a & immediate.
    AndImm(i32),
    /// All lanes the same 32 bits.
    Const(u32),
    /// A number for each of 16 lanes, AVX-512 only.
    Table(&'static Table),
    /// Lane numbers 0, 1, 2, ...
    Iota,
    /// An integer in all lanes.
    Splat,
    /// The mask of the first n lanes.
    FirstLanes(u32),
    /// A vector from memory; an argument is a mask, lanes outside read as 0 and touch nothing.
    Load(Form),
    /// One element of memory in all lanes; an argument is a mask, without lanes in which nothing is read.
    Broadcast(Form),
    /// Asks for a line of memory, into the second-level cache if `far`; the address need not exist.
    Prefetch {
        /// Not into the first.
        far: bool,
    },
    /// A vector to memory; a second argument is a mask.
    Store(Form),
    /// The first lane to memory.
    StoreScalar,
    /// Lane by lane.
    Bin(Bin),
    /// Lane by lane.
    Un(Un),
    /// a * b + c, or c - a * b, rounded once.
    Fma {
        /// Subtract the product.
        neg: bool,
    },
    /// `Fma` that overwrites its first argument: c, a, b (the addend), or a, b, c (a factor).
    Fma231 {
        /// Subtract the product.
        neg: bool,
    },
    /// See `Fma231`.
    Fma213 {
        /// Subtract the product.
        neg: bool,
    },
    /// First argument plus four products of bytes a lane: unsigned ones of the second, signed ones of the third. It
    /// overwrites the first. AVX512-VNNI; at 256 bits AVX-VNNI.
    Dot,
    /// c + the products of two pairs of bf16, the upper ones first.
    Dot2,
    /// Compares floats.
    Cmp(Pred),
    /// Compares signed integers.
    ICmp(Pred),
    /// Masks combined.
    MaskAnd,
    /// Masks combined.
    MaskOr,
    /// Masks combined.
    MaskXor,
    /// The lanes of its second argument where the mask (the third) is set, else those of the first.
    Select,
    /// To the only successor.
    Jump,
    /// To the first successor if a < b (or a < immediate), else to the second.
    BranchLess(Option<i32>),
    /// The end.
    Ret,
}

/// A memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mem {
    /// Pointer.
    pub base: Value,
    /// Added, times 1, 2, 4 or 8.
    pub index: Option<(Value, u8)>,
    /// Bytes added.
    pub disp: i32,
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
    /// A number in all lanes, read from behind the code, in place of the last operand.
    pub literal: Option<u32>,
    /// Result.
    pub def: Option<Value>,
}

/// A basic block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// Instructions; the last one leaves.
    pub nodes: Vec<Node>,
    /// Values that predecessors hand over.
    pub params: Vec<Value>,
    /// Where it goes.
    pub succs: Vec<usize>,
    /// Where it comes from.
    pub preds: Vec<usize>,
    /// What it hands to its only successor.
    pub jump_args: Vec<Value>,
}

/// A finished function. Equal functions have equal code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Func {
    /// Vector length.
    pub width: Width,
    /// Parameters in order; the first six arrive in registers.
    pub params: Vec<Value>,
    /// Classes of all values.
    pub classes: Vec<Class>,
    /// Blocks in the order of their code; the first is the entry.
    pub blocks: Vec<Block>,
}

/// Parameters in registers (System V).
pub const REGISTER_PARAMS: usize = 6;

/// A bound or a count: a number or a register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// Known now.
    Fixed(i64),
    /// Known at run time.
    Run(Value),
}

/// An open loop.
pub struct Loop {
    /// The counter: 0, step, 2 * step, ...
    pub i: Value,
    /// The carried values at the head of an iteration.
    pub inside: Vec<Value>,
    head: usize,
    end: Count,
    around: Option<(usize, Vec<Value>)>,
}

/// Makes a function.
pub struct Builder {
    f: Func,
    /// Constants, made once at the entry.
    hoisted: Vec<Node>,
    known: Map<Op, Value>,
    conditions: Set<Value>,
    /// Functions may use tables, where the vectors have them: other results than those of levels that have none.
    pub(super) tables: bool,
}

impl Builder {
    /// An empty function.
    pub fn new(width: Width) -> Builder {
        Builder { f: Func { width, params: vec![], classes: vec![], blocks: vec![Block::default()] }, hoisted: vec![], known: Map::default(), conditions: Set::default(), tables: false }
    }
    /// Vector length.
    pub fn width(&self) -> Width {
        self.f.width
    }
    fn fresh(&mut self, c: Class) -> Value {
        self.f.classes.push(c);
        Value(self.f.classes.len() as u32 - 1)
    }
    fn class(&self, v: Value) -> Class {
        self.f.classes[v.0 as usize]
    }
    /// One more parameter.
    pub fn param(&mut self) -> Value {
        let v = self.fresh(Class::Int);
        self.f.params.push(v);
        v
    }
    /// Appends an instruction.
    pub fn push(&mut self, op: Op, args: &[Value], mem: Option<Mem>, def: Option<Class>) -> Option<Value> {
        let def = def.map(|c| self.fresh(c));
        let b = self.f.blocks.len() - 1;
        self.f.blocks[b].nodes.push(Node { op, args: args.to_vec(), mem, literal: None, def });
        def
    }
    fn value(&mut self, op: Op, args: &[Value], mem: Option<Mem>, class: Class) -> Value {
        let def = self.fresh(class);
        let b = self.f.blocks.len() - 1;
        self.f.blocks[b].nodes.push(Node { op, args: args.to_vec(), mem, literal: None, def: Some(def) });
        def
    }
    fn constant(&mut self, op: Op, class: Class) -> Value {
        if let Some(v) = self.known.get(&op) {
            return *v;
        }
        let def = self.fresh(class);
        self.hoisted.push(Node { op, args: vec![], mem: None, literal: None, def: Some(def) });
        self.known.insert(op, def);
        def
    }
    /// 32 bits in all lanes.
    pub fn bits(&mut self, x: u32) -> Value {
        self.constant(Op::Const(x), Class::Vector)
    }
    /// A float in all lanes.
    pub fn f32(&mut self, x: f32) -> Value {
        self.bits(x.to_bits())
    }
    /// A number for each lane.
    pub fn table(&mut self, x: &'static Table) -> Value {
        self.constant(Op::Table(x), Class::Vector)
    }
    /// Lane numbers.
    pub fn iota(&mut self) -> Value {
        self.constant(Op::Iota, Class::Vector)
    }
    /// An integer in all lanes.
    pub fn splat(&mut self, x: Value) -> Value {
        self.value(Op::Splat, &[x], None, Class::Vector)
    }
    /// A vector made by an operation.
    pub(super) fn vector(&mut self, op: Op, args: &[Value], mem: Option<Mem>) -> Value {
        self.value(op, args, mem, Class::Vector)
    }
    /// Remembers that a mask may have no lane at all.
    pub fn condition(&mut self, mask: Value) -> Value {
        self.conditions.insert(mask);
        mask
    }
    /// True for masks that may have no lane.
    pub fn is_condition(&self, mask: Value) -> bool {
        self.conditions.contains(&mask)
    }
    /// An integer.
    pub fn int(&mut self, x: i64) -> Value {
        self.value(Op::Int(x), &[], None, Class::Int)
    }
    /// Pointer or integer plus a number.
    pub fn add_imm(&mut self, x: Value, n: i64) -> Value {
        match i32::try_from(n) {
            Ok(0) => x,
            Ok(n) => self.value(Op::AddImm(n), &[x], None, Class::Int),
            Err(_) => {
                let n = self.int(n);
                self.add(x, n)
            }
        }
    }
    /// x + y.
    pub fn add(&mut self, x: Value, y: Value) -> Value {
        self.value(Op::Add, &[x, y], None, Class::Int)
    }
    /// x & n.
    pub fn and_imm(&mut self, x: Value, n: i32) -> Value {
        self.value(Op::AndImm(n), &[x], None, Class::Int)
    }
    /// The mask of the first lanes.
    pub fn first_lanes(&mut self, n: Count) -> Value {
        match n {
            Count::Fixed(n) => self.constant(Op::FirstLanes(n as u32), Class::Mask),
            Count::Run(n) => {
                let (i, n) = (self.iota(), self.splat(n));
                self.icmp(Pred::Lt, i, n)
            }
        }
    }
    /// A vector from memory.
    pub fn load(&mut self, form: Form, mem: Mem, mask: Option<Value>) -> Value {
        self.value(Op::Load(form), mask.as_slice(), Some(mem), Class::Vector)
    }
    /// Asks for a line of memory.
    pub fn prefetch(&mut self, mem: Mem, far: bool) {
        self.push(Op::Prefetch { far }, &[], Some(mem), None);
    }
    /// An element from memory in all lanes.
    pub fn broadcast(&mut self, form: Form, mem: Mem) -> Value {
        self.value(Op::Broadcast(form), &[], Some(mem), Class::Vector)
    }
    /// A vector to memory.
    pub fn store(&mut self, form: Form, mem: Mem, v: Value, mask: Option<Value>) {
        let args: Vec<Value> = std::iter::once(v).chain(mask).collect();
        self.push(Op::Store(form), &args, Some(mem), None);
    }
    /// The first lane to memory.
    pub fn store_scalar(&mut self, mem: Mem, v: Value) {
        self.push(Op::StoreScalar, &[v], Some(mem), None);
    }
    /// Lane by lane.
    pub fn bin(&mut self, op: Bin, a: Value, b: Value) -> Value {
        self.value(Op::Bin(op), &[a, b], None, Class::Vector)
    }
    /// Lane by lane.
    pub fn un(&mut self, op: Un, a: Value) -> Value {
        self.value(Op::Un(op), &[a], None, Class::Vector)
    }
    /// a * b + c.
    pub fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.value(Op::Fma { neg: false }, &[a, b, c], None, Class::Vector)
    }
    /// Compares floats.
    pub fn cmp(&mut self, p: Pred, a: Value, b: Value) -> Value {
        self.value(Op::Cmp(p), &[a, b], None, Class::Mask)
    }
    /// Compares integers.
    pub fn icmp(&mut self, p: Pred, a: Value, b: Value) -> Value {
        match (self.f.width, p) {
            // AVX2 has equality and "greater" only.
            (Width::Avx2, Pred::Le) => {
                let c = self.value(Op::ICmp(Pred::Lt), &[b, a], None, Class::Mask);
                self.not(c)
            }
            (Width::Avx2, Pred::Ne) => {
                let c = self.value(Op::ICmp(Pred::Eq), &[a, b], None, Class::Mask);
                self.not(c)
            }
            _ => self.value(Op::ICmp(p), &[a, b], None, Class::Mask),
        }
    }
    /// All lanes, or none, as a mask.
    pub fn all_lanes(&mut self, set: bool) -> Value {
        let n = if set { self.f.width.lanes() } else { 0 };
        self.constant(Op::FirstLanes(n), Class::Mask)
    }
    /// The other lanes.
    pub fn not(&mut self, mask: Value) -> Value {
        let all = self.all_lanes(true);
        self.masks(Op::MaskXor, mask, all)
    }
    /// Combines masks (`MaskAnd`, `MaskOr`, `MaskXor`).
    pub fn masks(&mut self, op: Op, a: Value, b: Value) -> Value {
        self.value(op, &[a, b], None, Class::Mask)
    }
    /// `a` where the mask is set, else `b`.
    pub fn select(&mut self, mask: Value, a: Value, b: Value) -> Value {
        self.value(Op::Select, &[b, a, mask], None, Class::Vector)
    }
    fn new_block(&mut self) -> usize {
        self.f.blocks.push(Block::default());
        self.f.blocks.len() - 1
    }
    fn edge(&mut self, from: usize, to: usize) {
        self.f.blocks[from].succs.push(to);
        self.f.blocks[to].preds.push(from);
    }
    fn current(&self) -> usize {
        self.f.blocks.len() - 1
    }
    fn branch_less(&mut self, a: Value, b: Count) -> usize {
        match b {
            Count::Fixed(n) if i32::try_from(n).is_ok() => self.push(Op::BranchLess(Some(n as i32)), &[a], None, None),
            Count::Fixed(n) => {
                let n = self.int(n);
                self.push(Op::BranchLess(None), &[a, n], None, None)
            }
            Count::Run(n) => self.push(Op::BranchLess(None), &[a, n], None, None),
        };
        self.current()
    }
    /// Opens `for i in (0..end).step_by(step)` that carries values. With `guard` the loop may run not at all; without,
    /// `end > 0` is promised.
    pub fn open_loop(&mut self, end: Count, guard: bool, carried: &[Value]) -> Loop {
        let zero = self.int(0);
        let first: Vec<Value> = std::iter::once(zero).chain(carried.iter().copied()).collect();
        let around = if guard {
            let before = self.branch_less(zero, end);
            let enter = self.new_block();
            self.edge(before, enter);
            Some((before, carried.to_vec()))
        } else {
            None
        };
        let enter = self.current();
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[enter].jump_args = first;
        let head = self.new_block();
        self.edge(enter, head);
        let i = self.fresh(Class::Int);
        let inside: Vec<Value> = carried.iter().map(|v| self.fresh(self.class(*v))).collect();
        self.f.blocks[head].params = std::iter::once(i).chain(inside.iter().copied()).collect();
        Loop { i, inside, head, end, around }
    }
    /// Closes a loop with what its carried values become; returns them as they are afterwards.
    pub fn close_loop(&mut self, l: Loop, step: i64, after: &[Value]) -> Vec<Value> {
        let next = self.add_imm(l.i, step);
        let tail = self.branch_less(next, l.end);
        let latch = self.new_block();
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[latch].jump_args = std::iter::once(next).chain(after.iter().copied()).collect();
        self.edge(tail, latch);
        self.edge(latch, l.head);
        let out = self.new_block();
        self.edge(tail, out);
        match l.around {
            None => after.to_vec(),
            Some((before, carried)) => self.join(before, out, &carried, after),
        }
    }
    /// Opens a part that runs only if `n > 0`; hand what this returns to [`Builder::close_if`].
    pub fn open_if_positive(&mut self, n: Value) -> usize {
        let zero = self.int(0);
        let before = self.branch_less(zero, Count::Run(n));
        let inside = self.new_block();
        self.edge(before, inside);
        before
    }
    /// Values after the part: `through` if it ran, else `around`.
    pub fn close_if(&mut self, opened: usize, around: &[Value], through: &[Value]) -> Vec<Value> {
        let out = self.current();
        self.join(opened, out, around, through)
    }
    /// Ends `out` and the way around it (the second successor of `before`) in a common block.
    fn join(&mut self, before: usize, out: usize, around: &[Value], through: &[Value]) -> Vec<Value> {
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[out].jump_args = through.to_vec();
        let way = self.new_block();
        self.edge(before, way);
        self.push(Op::Jump, &[], None, None);
        self.f.blocks[way].jump_args = around.to_vec();
        let exit = self.new_block();
        self.edge(out, exit);
        self.edge(way, exit);
        let merged: Vec<Value> = around.iter().map(|v| self.fresh(self.class(*v))).collect();
        self.f.blocks[exit].params = merged.clone();
        merged
    }
    /// The finished function.
    pub fn finish(mut self) -> Func {
        self.push(Op::Ret, &[], None, None);
        let mut head = vec![Node { op: Op::Args, args: vec![], mem: None, literal: None, def: None }];
        for (i, p) in self.f.params.iter().enumerate().skip(REGISTER_PARAMS) {
            head.push(Node { op: Op::StackArg((i - REGISTER_PARAMS) as u32), args: vec![], mem: None, literal: None, def: Some(*p) });
        }
        head.append(&mut self.hoisted);
        head.append(&mut self.f.blocks[0].nodes);
        self.f.blocks[0].nodes = head;
        self.f
    }
}
