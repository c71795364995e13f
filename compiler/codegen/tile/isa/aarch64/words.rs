//! Dot products of bytes on machines without an instruction for them: products of 16 bits, whose pairs are
//! added to the accumulator (SMULL, SADALP).
//!
//! Both factors are permuted (TBL): the first two bytes of each group of four move to the lower half of a
//! register, the last two to the upper half. A product of the lower halves then has two products of each lane
//! in adjacent words, and one of the upper halves has the other two. Both are exact, and so is the pairwise
//! addition to accumulators of 32 bits. A vector is permuted once for all products of a block, so that
//! sixteen products take four instructions, the throughput of f32. If the sum of both products fits in 16
//! bits ([`Bytes::Narrow`]), the second product is added to the first (SMLAL), and their sum to the
//! accumulator: three instructions. Panels are those of levels with dot products.

use super::elements;
use crate::codegen::math::Table;
use crate::codegen::tile::ir::{Bytes, Class, Form, Func, Line, Node, Op, Value};
use crate::codegen::tile::isa::node;
use crate::codegen::{Map, Set};
use std::collections::VecDeque;

/// The source bytes of a permuted vector.
static PARTS: Table = bytes([0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]);
/// The same for a group in the first lane, broadcast.
static PARTS_OF_FIRST: Table = bytes([0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3]);
/// Number of dot products issued before a product begins, so that its factors have arrived.
const LATE: usize = 2;
/// Number of dot products that begin between the steps of another, so that in-order cores do not stall.
const BETWEEN: [usize; 2] = [1, 3];

const fn bytes(b: [u8; 16]) -> Table {
    let mut t = [0; 16];
    let mut i = 0;
    while i < 16 {
        t[i / 4] |= (b[i] as u32) << (8 * (i % 4));
        i += 1;
    }
    t
}

/// Expands the byte dot products of a function.
pub(super) fn products(f: &mut Func) {
    let is_one = |n: &Node| matches!(n.op, Op::Dot(_));
    if !f.blocks.iter().flat_map(|b| &b.nodes).any(is_one) {
        return;
    }
    // Of a group that only dot products use, a single lane suffices.
    let firsts = elements(&f.blocks, Form::B32, &|n, i| i > 0 && is_one(n));
    let mut table = |t: &'static Table| {
        let def = Value::fresh(&mut f.classes, Class::Vector);
        // The first instruction defines the parameters.
        f.blocks[0].nodes.insert(1, node(Op::Table(t), vec![], Some(def), Line::default()));
        def
    };
    let tables = [table(&PARTS), table(&PARTS_OF_FIRST)];
    for b in &mut f.blocks {
        let nodes = std::mem::take(&mut b.nodes);
        let mut r = Rewrite {
            tables,
            firsts: &firsts,
            classes: &mut f.classes,
            parts: Map::default(),
            count: 0,
            begun: VecDeque::new(),
            steps: vec![],
            out: vec![],
        };
        nodes.into_iter().for_each(|n| r.node(n));
        b.nodes = r.out;
    }
}

/// A dot product with permuted factors.
struct Begun {
    bytes: Bytes,
    factors: Vec<Value>,
    /// The accumulator before and after.
    sums: (Value, Value),
    line: Line,
}

/// A step of a dot product, and the index of the product before which it is issued.
type Step = (usize, Node);

/// A block being rewritten.
struct Rewrite<'a> {
    tables: [Value; 2],
    firsts: &'a Set<Value>,
    classes: &'a mut Vec<Class>,
    /// Permuted vectors.
    parts: Map<Value, Value>,
    /// Number of dot products issued.
    count: usize,
    begun: VecDeque<Begun>,
    steps: Vec<Step>,
    out: Vec<Node>,
}

impl Rewrite<'_> {
    fn push(&mut self, op: Op, args: Vec<Value>, line: Line) -> Value {
        let def = Value::fresh(self.classes, Class::Vector);
        self.out.push(node(op, args, Some(def), line));
        def
    }
    fn node(&mut self, mut n: Node) {
        let leaves = matches!(n.op, Op::Jump | Op::BranchLess(_) | Op::Ret | Op::RetAny);
        if leaves || self.reads_unfinished(&n) {
            self.multiply(0);
            self.take_steps(usize::MAX);
        }
        match (n.op, n.args.as_slice(), n.def) {
            (Op::Dot(bytes), &[c, x, y], Some(sum)) => {
                let factors = vec![self.parts(x, n.line), self.parts(y, n.line)];
                self.begun.push_back(Begun { bytes, factors, sums: (c, sum), line: n.line });
                self.multiply(LATE);
            }
            _ => {
                if n.def.is_some_and(|d| self.firsts.contains(&d)) {
                    n.op = Op::LoadFirst(Form::B32, 1);
                }
                self.out.push(n);
            }
        }
    }
    /// True if an instruction reads an accumulator that is not complete.
    fn reads_unfinished(&self, n: &Node) -> bool {
        let reads = |v: Option<Value>| v.is_some_and(|v| n.args.contains(&v));
        self.begun.iter().any(|b| reads(Some(b.sums.1))) || self.steps.iter().any(|s| reads(s.1.def))
    }
    /// A factor with separated halves.
    fn parts(&mut self, v: Value, line: Line) -> Value {
        if let Some(p) = self.parts.get(&v) {
            return *p;
        }
        let table = self.tables[usize::from(self.firsts.contains(&v))];
        let p = self.push(Op::BytesFrom, vec![v, table], line);
        self.parts.insert(v, p);
        p
    }
    /// Issues the products of pending dot products, except for the last ones.
    fn multiply(&mut self, left: usize) {
        while self.begun.len() > left {
            let Some(b) = self.begun.pop_front() else { return };
            let (lower, line) = (Op::MulBytes { bytes: b.bytes, upper: false }, b.line);
            let product = self.push(lower, b.factors.clone(), line);
            let between = Value::fresh(self.classes, Class::Vector);
            let ((before, sum), [second, third]) = (b.sums, BETWEEN.map(|n| self.count + n));
            let add =
                |args: [Value; 2], def: Value| node(Op::AddPairs(b.bytes), args.to_vec(), Some(def), line);
            if b.bytes == Bytes::Narrow {
                let op = Op::AddMulBytes { bytes: b.bytes, upper: true };
                let args = [product].into_iter().chain(b.factors).collect();
                self.steps.push((second, node(op, args, Some(between), line)));
                self.steps.push((third, add([before, between], sum)));
            } else {
                let other = self.push(Op::MulBytes { bytes: b.bytes, upper: true }, b.factors, line);
                self.steps.push((second, add([before, product], between)));
                self.steps.push((third, add([between, other], sum)));
            }
            self.take_steps(self.count);
            self.count += 1;
        }
    }
    /// Issues the steps that were delayed until dot product `now`.
    fn take_steps(&mut self, now: usize) {
        self.out.extend(self.steps.extract_if(.., |s| s.0 <= now).map(|s| s.1));
    }
}
