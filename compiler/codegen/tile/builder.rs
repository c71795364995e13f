//! Builds functions of the tile IR: constants once at the entry, loops with their carried values. Critical
//! edges are split here.

mod control;
mod hoist;
mod integers;
mod memory;

use crate::codegen::math::Table;
use crate::codegen::tile::ir::{
    Bin, Bits, Block, Class, Func, Line, Mem, Node, Number, Op, Pred, Un, Value, Width,
};
use crate::codegen::tile::isa;
use crate::codegen::{Map, Set};
use crate::target::Adjacent;

/// A bound or a count: a constant or a register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// A compile-time constant.
    Fixed(i64),
    /// A run-time value.
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

/// Every other lane.
static EVEN: Table = [0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14];

/// Builds a function.
pub struct Builder {
    f: Func,
    /// Constants, defined once at the entry.
    hoisted: Vec<Node>,
    known: Map<Op, Value>,
    /// Vector operations of one or two operands of this block, for common subexpression elimination in
    /// unrolled loops.
    made: Map<(Op, Value, Value), Value>,
    /// The same for integer operations, and vectors and masks derived from them.
    counted: Map<(Op, Vec<Value>), Value>,
    conditions: Set<Value>,
    /// Results of operations that compute positions ([`Builder::are_positions`]).
    positions: Set<Value>,
    /// Vectors and masks whose lanes are provably equal.
    uniform: Set<Value>,
    /// Functions may use table lookups, if the vectors have them. Results differ from those of levels
    /// without.
    pub(super) tables: bool,
    /// An instruction may round to bf16, which flushes subnormal numbers to 0.
    pub(super) rounds_to_bf16: bool,
    /// The source line of the instructions being translated.
    pub(super) line: Line,
}

/// True for integer operations, and for operations that derive vectors and masks from integers: positions and
/// masks that accesses share.
fn counts(op: Op) -> bool {
    matches!(
        op,
        Op::Int(_)
            | Op::Add
            | Op::AddImm(_)
            | Op::Mul
            | Op::Quotient
            | Op::MulImm(_)
            | Op::AndImm(_)
            | Op::ShrImm(_)
            | Op::Lesser
            | Op::Greater
            | Op::Splat(_)
            | Op::ICmp(..)
            | Op::UCmp(..)
    )
}

impl Builder {
    /// An empty function. `long`: lanes have 64 bits; `in_order`: scheduled for in-order cores.
    pub fn new(width: Width, long: bool, in_order: bool) -> Builder {
        Builder {
            f: Func {
                width,
                long,
                in_order,
                adjacent: Adjacent::ApartIfNear,
                halves: false,
                in_words: false,
                in_quads: false,
                params: vec![],
                classes: vec![],
                blocks: vec![Block::default()],
            },
            hoisted: vec![],
            known: Map::default(),
            made: Map::default(),
            counted: Map::default(),
            conditions: Set::default(),
            positions: Set::default(),
            uniform: Set::default(),
            tables: false,
            rounds_to_bf16: false,
            line: Line::default(),
        }
    }
    /// Arithmetic of f16 may be in f16 ([`Func::halves`]).
    pub(super) fn has_halves(&self) -> bool {
        self.f.halves
    }
    /// See [`Func::adjacent`].
    pub(super) fn set_adjacent(&mut self, adjacent: Adjacent) {
        self.f.adjacent = adjacent;
    }
    /// See [`Builder::has_halves`].
    pub(super) fn allow_halves(&mut self) {
        self.f.halves = true;
    }
    /// Dot products of bytes are expanded ([`Func::in_words`]).
    pub(super) fn sum_in_words(&mut self) {
        self.f.in_words = true;
    }
    /// Dot products of eights are of two quads ([`Func::in_quads`]).
    pub(super) fn halve_eights(&mut self) {
        self.f.in_quads = true;
    }
    /// Vector length.
    pub fn width(&self) -> Width {
        self.f.width
    }
    /// True if the machine has an operation.
    pub(super) fn has(&self, op: Op) -> bool {
        isa::machine(self.f.width).has_op(op)
    }
    /// True if lanes have 64 bits.
    pub fn is_long(&self) -> bool {
        self.f.long
    }
    /// Lanes of a vector.
    pub fn lanes(&self) -> u32 {
        self.f.width.lanes() / if self.f.long { 2 } else { 1 }
    }
    fn fresh(&mut self, c: Class) -> Value {
        Value::fresh(&mut self.f.classes, c)
    }
    fn class(&self, v: Value) -> Class {
        self.f.classes[v.0 as usize]
    }
    /// The index of the block to which instructions are appended.
    pub(super) fn block(&self) -> usize {
        self.f.blocks.len() - 1
    }
    /// Adds a parameter.
    pub fn param(&mut self) -> Value {
        let v = self.fresh(Class::Int);
        self.f.params.push(v);
        v
    }
    /// Appends an instruction.
    pub fn push(&mut self, op: Op, args: &[Value], mem: Option<Mem>, def: Option<Class>) -> Option<Value> {
        let def = def.map(|c| self.fresh(c));
        self.node(op, args, mem, def);
        def
    }
    fn node(&mut self, op: Op, args: &[Value], mem: Option<Mem>, def: Option<Value>) {
        let (b, args, line) = (self.block(), args.to_vec(), self.line);
        self.f.blocks[b].nodes.push(Node { op, args, mem, literal: None, def, line });
    }
    fn value(&mut self, op: Op, args: &[Value], mem: Option<Mem>, class: Class) -> Value {
        let again = mem.is_none() && counts(op);
        if again && let Some(v) = self.counted.get(&(op, args.to_vec())) {
            return *v;
        }
        let def = self.fresh(class);
        self.node(op, args, mem, Some(def));
        self.note_uniform(op, args, def);
        if again {
            self.counted.insert((op, args.to_vec()), def);
        }
        def
    }
    fn note_uniform(&mut self, op: Op, args: &[Value], def: Value) {
        let each = |b: &Builder| args.iter().all(|a| b.uniform.contains(a));
        let alike = match op {
            Op::Const(_) | Op::Splat(_) | Op::SplatFloat => true,
            Op::FirstLanes(n) => n == 0 || n >= self.lanes(),
            Op::Broadcast(_) => args.is_empty(),
            Op::Un(Un::Narrow(_), _) => false,
            Op::Bin(Bin::Permute, _) => args.iter().any(|a| self.uniform.contains(a)),
            // An intersection of masks is uniform if its operands are.
            Op::Bin(..)
            | Op::Un(..)
            | Op::Fma { .. }
            | Op::Cmp(..)
            | Op::ICmp(..)
            | Op::UCmp(..)
            | Op::MaskAnd
            | Op::MaskOr
            | Op::MaskXor
            | Op::Select(_) => each(self),
            _ => false,
        };
        if alike {
            self.uniform.insert(def);
        }
    }
    /// True if all lanes of a vector or mask are provably equal.
    pub fn is_uniform(&self, v: Value) -> bool {
        self.uniform.contains(&v)
    }
    fn constant(&mut self, op: Op, class: Class) -> Value {
        if let Some(v) = self.known.get(&op) {
            return *v;
        }
        let def = self.fresh(class);
        self.hoisted.push(Node {
            op,
            args: vec![],
            mem: None,
            literal: None,
            def: Some(def),
            line: self.line,
        });
        self.known.insert(op, def);
        self.note_uniform(op, &[], def);
        def
    }
    /// A 32-bit pattern in all lanes.
    pub fn bits(&mut self, x: u32) -> Value {
        self.constant(Op::Const(Number::Word(x)), Class::Vector)
    }
    /// A 64-bit pattern in all lanes.
    pub fn bits64(&mut self, x: u64) -> Value {
        self.constant(Op::Const(Number::Long(x)), Class::Vector)
    }
    /// A float in all lanes.
    pub fn f32(&mut self, x: f32) -> Value {
        self.bits(x.to_bits())
    }
    /// A constant per lane.
    pub fn table(&mut self, x: &'static Table) -> Value {
        self.constant(Op::Table(x), Class::Vector)
    }
    /// A small integer per 32-bit lane.
    pub(super) fn lane_numbers(&mut self, x: [u8; 16]) -> Value {
        self.constant(Op::LaneNumbers(x), Class::Vector)
    }
    /// Lanes of a vector of 32-bit lanes in another order: `chosen` are pairs of a lane of the result and one
    /// of the vector. The other lanes are those of `before`; without it, they are undefined.
    pub(super) fn permute_into(&mut self, before: Option<Value>, v: Value, chosen: &[(u32, u8)]) -> Value {
        if before.is_none() && chosen.iter().all(|(lane, place)| *lane == u32::from(*place)) {
            return v;
        }
        let mut numbers = [u8::MAX; 16];
        for (lane, place) in chosen {
            for (k, n) in (0..4).zip(numbers.iter_mut().skip(4 * *lane as usize)) {
                *n = 4 * *place + k;
            }
        }
        let numbers = self.constant(Op::ByteNumbers(numbers), Class::Vector);
        match before {
            None => self.value(Op::BytesFrom, &[v, numbers], None, Class::Vector),
            Some(before) => self.value(Op::BytesInto, &[before, v, numbers], None, Class::Vector),
        }
    }
    /// The constant mask of 32-bit lanes with the given bits.
    pub(super) fn some_lanes(&mut self, x: u32) -> Value {
        self.constant(Op::SomeLanes(x), Class::Mask)
    }
    /// The constant mask of the lanes with these numbers. Masks in vectors have bits for lanes of 32 bits.
    pub(super) fn lanes_where(&mut self, set: impl Fn(u32) -> bool) -> Value {
        let parts = if self.f.long && self.f.width.masks_are_vectors() { 2 } else { 1 };
        let bits = (0..parts * self.lanes()).filter(|i| set(i / parts)).fold(0, |m, i| m | 1 << i);
        self.some_lanes(bits)
    }
    /// Width of lane indices.
    pub(super) fn index_bits(&self) -> Bits {
        if self.f.long { Bits::B64 } else { Bits::B32 }
    }
    /// Lane numbers.
    pub fn iota(&mut self) -> Value {
        self.iota_by(1)
    }
    /// Lane numbers times a constant.
    pub fn iota_by(&mut self, n: u32) -> Value {
        self.constant(Op::Iota(n, self.index_bits()), Class::Vector)
    }
    /// Broadcasts an integer.
    pub fn splat(&mut self, x: Value) -> Value {
        self.value(Op::Splat(self.index_bits()), &[x], None, Class::Vector)
    }
    /// A vector made by an operation.
    pub(super) fn vector(&mut self, op: Op, args: &[Value], mem: Option<Mem>) -> Value {
        self.value(op, args, mem, Class::Vector)
    }
    /// Marks a mask as possibly empty.
    pub fn condition(&mut self, mask: Value) -> Value {
        self.conditions.insert(mask);
        mask
    }
    /// True for masks that may be empty.
    pub fn is_condition(&self, mask: Value) -> bool {
        self.conditions.contains(&mask)
    }
    /// The mask of the first n lanes.
    pub fn first_lanes(&mut self, n: Count) -> Value {
        match n {
            Count::Fixed(n) => self.constant(Op::FirstLanes(n as u32), Class::Mask),
            Count::Run(n) => {
                let (i, n) = (self.iota(), self.splat(n));
                self.icmp(Pred::Lt, i, n, self.index_bits())
            }
        }
    }
    /// The number of lanes of a mask of leading lanes, if it is constant.
    pub fn lanes_of(&self, mask: Value) -> Option<u32> {
        self.known.iter().find_map(|(op, v)| {
            if let (Op::FirstLanes(n), true) = (op, *v == mask) { Some(*n) } else { None }
        })
    }
    /// The value of a constant in all lanes.
    pub(super) fn number(&self, v: Value) -> Option<f64> {
        self.known.iter().filter(|(_, x)| **x == v).find_map(|(op, _)| match op {
            Op::Const(Number::Word(bits)) => Some(f32::from_bits(*bits).into()),
            Op::Const(Number::Long(bits)) => Some(f64::from_bits(*bits)),
            _ => None,
        })
    }
    /// True for constants other than NaN.
    pub(super) fn is_number(&self, v: Value) -> bool {
        self.number(v).is_some_and(|x| !x.is_nan())
    }
    /// A lane-wise operation on 32 bits.
    pub fn bin(&mut self, op: Bin, a: Value, b: Value) -> Value {
        self.bin_of(op, a, b, Bits::B32)
    }
    /// A lane-wise operation.
    pub fn bin_of(&mut self, op: Bin, a: Value, b: Value, bits: Bits) -> Value {
        self.once((Op::Bin(op, bits), a, b), &[a, b])
    }
    /// A vector operation, or what it made of its operands in this block before.
    fn once(&mut self, key: (Op, Value, Value), operands: &[Value]) -> Value {
        if let Some(v) = self.made.get(&key) {
            return *v;
        }
        let v = self.value(key.0, operands, None, Class::Vector);
        self.made.insert(key, v);
        v
    }
    /// A lane-wise operation on 32 bits.
    pub fn un(&mut self, op: Un, a: Value) -> Value {
        self.un_of(op, a, Bits::B32)
    }
    /// A lane-wise operation; `bits` of the operand.
    pub fn un_of(&mut self, op: Un, a: Value, bits: Bits) -> Value {
        self.value(Op::Un(op, bits), &[a], None, Class::Vector)
    }
    /// The same, or what it made of the operand in this block before.
    pub(super) fn un_once(&mut self, op: Un, a: Value) -> Value {
        self.once((Op::Un(op, Bits::B32), a, a), &[a])
    }
    /// Exchanges lanes i and i ^ k, of `bits`. ISAs without a form of 64 bits exchange pairs of 32 bits.
    pub fn swap_lanes(&mut self, k: u8, a: Value, bits: Bits) -> Value {
        let words = if bits == Bits::B64 { 2 } else { 1 };
        let own = Op::Un(Un::Swap(k * words), bits);
        if bits == Bits::B64 && !self.has(own) {
            self.un(Un::Swap(k * words), a)
        } else {
            self.value(own, &[a], None, Class::Vector)
        }
    }
    /// Lanes of two vectors in another order: [`Op::Zip`] and its like.
    pub(super) fn shuffle(&mut self, op: Op, a: Value, b: Value) -> Value {
        self.value(op, &[a, b], None, Class::Vector)
    }
    /// Units of two vectors by number: [`Op::Permute2`] and its like; arguments as theirs.
    pub(super) fn shuffle3(&mut self, op: Op, args: [Value; 3]) -> Value {
        self.vector(op, &args, None)
    }
    /// The lanes of a vector, or of two, by number: those of the second follow those of the first.
    pub(super) fn permuted(&mut self, places: Value, lower: Value, upper: Option<Value>) -> Value {
        let Some(upper) = upper else { return self.bin(Bin::Permute, places, lower) };
        if self.has(Op::Permute2) {
            return self.vector(Op::Permute2, &[lower, places, upper], None);
        }
        // Numbers beyond a vector wrap to its beginning.
        let [lower, upper] = [lower, upper].map(|v| self.bin(Bin::Permute, places, v));
        let lanes = self.bits(self.lanes());
        let behind = self.icmp(Pred::Le, lanes, places, Bits::B32);
        self.select(behind, upper, lower, Bits::B32)
    }
    /// a * b + c.
    pub fn fma_of(&mut self, a: Value, b: Value, c: Value, bits: Bits) -> Value {
        self.value(Op::Fma { neg: false, bits }, &[a, b, c], None, Class::Vector)
    }
    /// Compares floats.
    pub fn cmp(&mut self, p: Pred, a: Value, b: Value, bits: Bits) -> Value {
        let c = self.value(Op::Cmp(p, bits), &[a, b], None, Class::Mask);
        self.mask_of(c, bits)
    }
    /// Masks in vector registers have the width of the function's longest elements: one of 32 bits is
    /// extended.
    fn mask_of(&mut self, c: Value, bits: Bits) -> Value {
        if !self.f.width.masks_are_vectors() || !self.f.long || bits == Bits::B64 {
            return c;
        }
        self.value(Op::Un(Un::Extend, Bits::B32), &[c], None, Class::Mask)
    }
    /// A mask with the width that instructions on elements of a size require.
    pub(super) fn mask_for(&mut self, mask: Value, bits: Bits) -> Value {
        if !self.f.width.masks_are_vectors() || !self.f.long || bits == Bits::B64 {
            return mask;
        }
        if self.has(Op::Un(Un::Low, Bits::B64)) {
            return self.value(Op::Un(Un::Low, Bits::B64), &[mask], None, Class::Mask);
        }
        let even = self.table(&EVEN);
        self.value(Op::Bin(Bin::Permute, Bits::B32), &[even, mask], None, Class::Mask)
    }
    /// Compares integers.
    pub fn icmp(&mut self, p: Pred, a: Value, b: Value, bits: Bits) -> Value {
        match (self.f.width, p) {
            // AVX2 has only equality and "greater".
            (Width::Avx2, Pred::Le) => {
                let c = self.value(Op::ICmp(Pred::Lt, bits), &[b, a], None, Class::Mask);
                let c = self.mask_of(c, bits);
                self.not(c)
            }
            (Width::Avx2, Pred::Ne) => {
                let c = self.value(Op::ICmp(Pred::Eq, bits), &[a, b], None, Class::Mask);
                let c = self.mask_of(c, bits);
                self.not(c)
            }
            _ => {
                let c = self.value(Op::ICmp(p, bits), &[a, b], None, Class::Mask);
                self.mask_of(c, bits)
            }
        }
    }
    /// Compares unsigned integers on a machine that has [`Op::UCmp`].
    pub fn native_ucmp(&mut self, p: Pred, a: Value, b: Value, bits: Bits) -> Value {
        let c = self.value(Op::UCmp(p, bits), &[a, b], None, Class::Mask);
        self.mask_of(c, bits)
    }
    /// The mask of all lanes, or the empty mask.
    pub fn all_lanes(&mut self, set: bool) -> Value {
        let n = if set { self.lanes() } else { 0 };
        self.constant(Op::FirstLanes(n), Class::Mask)
    }
    /// The complement of a mask.
    pub fn not(&mut self, mask: Value) -> Value {
        let all = self.all_lanes(true);
        self.masks(Op::MaskXor, mask, all)
    }
    /// A mask defined by an operation.
    pub(super) fn mask(&mut self, op: Op, args: &[Value]) -> Value {
        self.value(op, args, None, Class::Mask)
    }
    /// Combines masks (`MaskAnd`, `MaskOr`, `MaskXor`).
    pub fn masks(&mut self, op: Op, a: Value, b: Value) -> Value {
        self.value(op, &[a, b], None, Class::Mask)
    }
    /// `a` where the mask is set, else `b`.
    pub fn select(&mut self, mask: Value, a: Value, b: Value, bits: Bits) -> Value {
        let mask = self.mask_for(mask, bits);
        self.value(Op::Select(bits), &[b, a, mask], None, Class::Vector)
    }
    /// Finishes the function; it returns whether mask `any` is not empty.
    pub fn finish(mut self, any: Option<Value>) -> Func {
        match any {
            Some(mask) => self.push(Op::RetAny, &[mask], None, None),
            None => self.push(Op::Ret, &[], None, None),
        };
        let mut head = vec![Node {
            op: Op::Args,
            args: vec![],
            mem: None,
            literal: None,
            def: None,
            line: Line::default(),
        }];
        for (i, p) in self.f.params.iter().enumerate().skip(self.f.width.register_params()) {
            head.push(Node {
                op: Op::StackArg((i - self.f.width.register_params()) as u32),
                args: vec![],
                mem: None,
                literal: None,
                def: Some(*p),
                line: Line::default(),
            });
        }
        head.append(&mut self.hoisted);
        head.append(&mut self.f.blocks[0].nodes);
        self.f.blocks[0].nodes = head;
        self.f
    }
}
